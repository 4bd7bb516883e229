"""One batch: rows matched to light curves, and whatever fails isolated."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from nightjar_alerts.service.engine.adapter import Arrays, ModelInput, TaskAdapter
from nightjar_alerts.service.engine.batch import BatchRunner, InferenceFailed, Prediction, QueueEntry
from support.graphs import EchoGraph, echo_manifest, model_input, poison

ADAPTER = TaskAdapter(echo_manifest())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def group(loop: asyncio.AbstractEventLoop, *questions: ModelInput) -> list[QueueEntry]:
    return [QueueEntry(len(asked), 0.0, None, asked, loop.create_future(), 1e-3) for asked in questions]


def test_rows_are_matched_to_their_light_curves(loop: asyncio.AbstractEventLoop) -> None:
    answers, [report] = BatchRunner(EchoGraph(), ADAPTER).run_batch(
        group(loop, model_input(1, 5), model_input(2, 9), model_input(3, 1))
    )
    assert [item.outputs["probabilities"].tolist() for item in answers if isinstance(item, Prediction)] == [
        [1, 5],
        [2, 9],
        [3, 1],
    ]
    assert (report.size, report.length) == (3, 9)
    assert report.run_seconds >= 0
    assert set(report.expert_load) == {"input_expert_load", "expert_load"}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
def test_one_poisonous_row_costs_at_most_two_runs_a_level(loop: asyncio.AbstractEventLoop, size: int) -> None:
    for culprit in range(size):
        graph = EchoGraph()
        graph.on_marker[float(culprit)] = poison
        answers, reports = BatchRunner(graph, ADAPTER).run_batch(
            group(loop, *(model_input(marker) for marker in range(size)))
        )
        assert [isinstance(item, InferenceFailed) for item in answers] == [n == culprit for n in range(size)]
        assert len(graph.batches) <= 1 + 2 * int(np.ceil(np.log2(size)))
        assert sum(report.size for report in reports) == size - 1


def test_when_everything_fails_everything_is_answered(loop: asyncio.AbstractEventLoop) -> None:
    def broken(inputs: Arrays) -> Arrays:
        raise RuntimeError("no such kernel")

    answers, reports = BatchRunner(broken, ADAPTER).run_batch(
        group(loop, *(model_input(marker) for marker in range(9)))
    )
    assert [type(item) for item in answers] == [InferenceFailed] * 9
    assert reports == []


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"probabilities": np.zeros((1, 2), np.float32)},
        {"probabilities": np.zeros((1, 2), np.float32), "embedding": np.zeros((3, 2), np.float32)},
        {"probabilities": np.zeros((2, 2), np.float32), "embedding": np.zeros((2, 2), np.float32)},
    ],
)
def test_a_graph_that_answers_something_else_is_a_failure(loop: asyncio.AbstractEventLoop, outputs: Arrays) -> None:
    answers, _ = BatchRunner(lambda inputs: outputs, ADAPTER).run_batch(group(loop, model_input(1)))
    assert [type(item) for item in answers] == [InferenceFailed]
