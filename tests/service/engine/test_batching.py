"""Batches: rows are matched to light curves, and failures are isolated."""

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.items import Prediction
from support.engines import batch_of, runner
from support.graphs import EchoGraph, model_input, poison


def test_run_batch_matches_rows_to_light_curves() -> None:
    answers, [report] = runner(EchoGraph()).run_batch(batch_of(model_input(1, 5), model_input(2, 9), model_input(3, 1)))
    assert [item.outputs["probabilities"].tolist() for item in answers if isinstance(item, Prediction)] == [
        [1, 5],
        [2, 9],
        [3, 1],
    ]
    assert (report.size, report.length) == (3, 9)
    assert report.run_seconds >= 0
    assert set(report.expert_load) == {"input_expert_load", "expert_load"}


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
def test_run_batch_bisection_takes_at_most_two_runs_per_level(size: int) -> None:
    for culprit in range(size):
        graph = EchoGraph()
        graph.on_marker[1.0 + culprit] = poison  # the made-up light curve has 0
        answers, reports = runner(graph).run_batch(batch_of(*(model_input(1 + marker) for marker in range(size))))
        assert [isinstance(item, InferenceFailed) for item in answers] == [n == culprit for n in range(size)]
        made_up = 1  # runs after the culprit has failed alone
        assert len(graph.batches) <= 1 + 2 * int(np.ceil(np.log2(size))) + made_up
        assert sum(report.size for report in reports) == size - 1


def test_run_batch_all_light_curves_failing_returns_an_error_for_each() -> None:
    graph = EchoGraph()
    graph.on_marker |= dict.fromkeys(map(float, range(1, 10)), poison)
    answers, reports = runner(graph).run_batch(batch_of(*(model_input(marker) for marker in range(1, 10))))
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
def test_run_batch_unexpected_outputs_are_a_failure(outputs: Arrays) -> None:
    answers, _ = runner(lambda inputs: outputs).run_batch(batch_of(model_input(1)))
    assert [type(item) for item in answers] == [InferenceFailed]
