"""One batch: rows matched to light curves, and whatever fails isolated."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from nightjar_alerts.service.engine.batch import (
    Arrays,
    Classification,
    Graph,
    InferenceFailed,
    ModelInput,
    Prediction,
    QueueEntry,
    answer,
)
from nightjar_alerts.service.engine.policy import CostModel
from nightjar_alerts.service.engine.supervise import Supervisor
from support.graphs import EchoGraph, echo_manifest, poison, question

PROGRAM = Classification(echo_manifest())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def group(loop: asyncio.AbstractEventLoop, *questions: ModelInput) -> list[QueueEntry]:
    return [QueueEntry(len(asked), 0.0, None, asked, loop.create_future(), 1e-3) for asked in questions]


def test_rows_are_matched_to_their_light_curves(loop: asyncio.AbstractEventLoop) -> None:
    answers, [report] = answer(Graph(EchoGraph()), PROGRAM, group(loop, question(1, 5), question(2, 9), question(3, 1)))
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
        answers, reports = answer(Graph(graph), PROGRAM, group(loop, *(question(marker) for marker in range(size))))
        assert [isinstance(item, InferenceFailed) for item in answers] == [n == culprit for n in range(size)]
        assert len(graph.batches) <= 1 + 2 * int(np.ceil(np.log2(size)))
        assert sum(report.size for report in reports) == size - 1


def test_when_everything_fails_everything_is_answered(loop: asyncio.AbstractEventLoop) -> None:
    def broken(inputs: Arrays) -> Arrays:
        raise RuntimeError("no such kernel")

    answers, reports = answer(Graph(broken), PROGRAM, group(loop, *(question(marker) for marker in range(9))))
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
    answers, _ = answer(Graph(lambda inputs: outputs), PROGRAM, group(loop, question(1)))
    assert [type(item) for item in answers] == [InferenceFailed]


class StagingGraph(EchoGraph):
    """Notes what happens in what order, and whether a run was given what was staged for it."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def stage(self, inputs: Arrays) -> Arrays:
        self.events.append("staged")
        return dict(inputs)

    def __call__(self, inputs: Arrays) -> Arrays:
        self.events.append("ran")
        return super().__call__(inputs)


class Slot:
    """Notes when it is taken."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __enter__(self) -> None:
        self.events.append("took the slot")

    def __exit__(self, *_: object) -> None:
        self.events.append("left the slot")


def test_inputs_are_copied_to_a_device_before_the_slot_is_taken(loop: asyncio.AbstractEventLoop) -> None:
    """Another thread's run may hold the slot meanwhile; a watch over the graph changes nothing of that."""
    for watch in (lambda graph: graph, lambda graph: Supervisor(graph, CostModel(1.0, 0.0, 0.0), {}, 10.0)):
        events: list[str] = []
        answers, _ = answer(Graph(watch(StagingGraph(events)), Slot(events)), PROGRAM, group(loop, question(1, 5)))
        assert isinstance(answers[0], Prediction)
        assert events == ["staged", "took the slot", "ran", "left the slot"]
