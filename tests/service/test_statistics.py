"""Totals of a model: what a run and a request add to them."""

import threading

import numpy as np
import pytest

from service.inference.batching import Prediction, RunReport
from service.inference.failures import InferenceFailed
from service.statistics import ModelStatistics
from support.graphs import question


def report(size: int, answered: int) -> RunReport:
    """A run of 3 ms after 0.2 ms of padding and before 0.1 ms of copying, for which light curve i waited i + 1 ms."""
    waits = [1e-3 * (place + 1) for place in range(answered)]
    answers = [Prediction({"probabilities": np.zeros(2)}, size, wait, 2e-4, 3e-3) for wait in waits]
    return RunReport(
        questions=[question(0.0)] * size,
        answers=[*answers, *[InferenceFailed()] * (size - answered)],
        tokens=10 * size,
        length=10,
        assemble_seconds=2e-4,
        run_seconds=3e-3,
        expert_load={},
        split_seconds=1e-4,
    )


def test_a_run_counts_once_by_size_and_once_for_each_light_curve_that_it_answered() -> None:
    statistics = ModelStatistics()
    assert statistics.totals().last_run == 0
    for size, answered in ((3, 2), (3, 3), (1, 1)):
        statistics.record_run(report(size, answered))
    totals = statistics.totals()
    assert {total.count for total in (totals.ran, totals.assembled, totals.queued, totals.split)} == {6}
    assert totals.ran.seconds == pytest.approx(6 * 3e-3)
    assert totals.queued.seconds == pytest.approx(1e-3 * (1 + 2 + 1 + 2 + 3 + 1))
    assert {size: (runs.run.count, runs.assemble.count) for size, runs in totals.runs.items()} == {3: (2, 2), 1: (1, 1)}
    assert totals.runs[3].run.seconds == pytest.approx(2 * 3e-3)
    assert (totals.split.seconds, totals.runs[1].split.seconds) == pytest.approx((6e-4, 1e-4))
    assert totals.last_run > 1.7e9


def test_a_request_counts_for_each_of_its_light_curves() -> None:
    statistics = ModelStatistics()
    statistics.record_request([True, False, True], 0.5)
    totals = statistics.totals()
    assert (totals.answered.count, totals.answered.seconds) == (2, 1.0)
    assert (totals.failed.count, totals.failed.seconds) == (1, 0.5)


def test_what_was_read_does_not_change_afterwards() -> None:
    statistics = ModelStatistics()
    statistics.record_run(report(1, 1))
    before = statistics.totals()
    statistics.record_run(report(1, 1))
    assert before.runs[1].run.count == before.ran.count == 1


def test_threads_lose_nothing() -> None:
    statistics, run = ModelStatistics(), report(2, 2)

    def work() -> None:
        for _ in range(500):
            statistics.record_run(run)
            statistics.record_request([True, True], 0.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = statistics.totals()
    assert (totals.ran.count, totals.runs[2].run.count, totals.answered.count) == (4000, 2000, 4000)
