"""Totals of a model: what a run and a request add to them."""

import threading

import numpy as np
import pytest

from nightjar_alerts.service.engine.batch import InferenceFailed, Prediction, RunReport
from nightjar_alerts.service.observe import model_statistics as statistics_module
from nightjar_alerts.service.observe.model_statistics import ModelStatistics
from support.graphs import question


def report(size: int, answered: int) -> RunReport:
    """A run of 3 ms after 0.2 ms of padding and before 0.1 ms of copying, for which light curve i waited i + 1 ms."""
    waits = [1e-3 * (place + 1) for place in range(answered)]
    answers = [Prediction({"probabilities": np.array([0.3, 0.7])}, size, wait, 2e-4, 3e-3) for wait in waits]
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
        statistics.record_run(report(size, answered), 2e-3)
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
    statistics.record_request(2, 1, 0.5)
    totals = statistics.totals()
    assert (totals.answered.count, totals.answered.seconds) == (2, 1.0)
    assert (totals.failed.count, totals.failed.seconds) == (1, 0.5)


def test_statistics_that_were_read_do_not_change_afterwards() -> None:
    statistics = ModelStatistics()
    statistics.record_run(report(1, 1), 2e-3)
    before = statistics.totals()
    statistics.record_run(report(1, 1), 2e-3)
    assert before.runs[1].run.count == before.ran.count == 1


def test_threads_lose_nothing() -> None:
    statistics, run = ModelStatistics(), report(2, 2)

    def work() -> None:
        for _ in range(500):
            statistics.record_run(run, 2e-3)
            statistics.record_request(2, 0, 0.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = statistics.totals()
    assert (totals.ran.count, totals.runs[2].run.count, totals.answered.count) == (4000, 2000, 4000)


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(statistics_module, "time", clock)
    return clock


def test_a_period_tells_what_happened_in_it(clock: Clock) -> None:
    statistics = ModelStatistics()
    statistics.record_run(report(3, 2), 2e-3)
    statistics.record_request(2, 1, 0.02)
    statistics.record_stages({"decode": 1e-3})
    statistics.record_lookup(4, 3, 1e-5)
    period = statistics.period()
    assert (period.answered, period.failed, period.hits, period.misses) == (2, 1, 4, 3)
    assert (dict(period.sizes), dict(period.classes)) == ({3: 1}, {1: 2})
    assert (period.padding.mean, period.cost_error.mean) == pytest.approx((1.0, 1.5))
    assert {name: stage.count for name, stage in period.stages.items()} == {
        "queue": 2, "assemble": 2, "run": 2, "total": 1, "decode": 1
    }  # fmt: skip
    assert period.stages["queue"].mean == pytest.approx(1.5e-3)


def test_windows_forget_and_the_whole_does_not(clock: Clock) -> None:
    statistics = ModelStatistics()
    for minute in range(60):
        clock.now = 1000.0 + 60 * minute
        statistics.record_request(minute + 1, 0, 0.01)
    assert statistics.period().answered == sum(range(1, 61))
    assert statistics.period(60.0).answered in (60, 60 + 59)
    assert statistics.period(300.0).answered in (sum(range(56, 61)), sum(range(55, 61)))
    assert statistics.period(900.0).answered in (sum(range(46, 61)), sum(range(45, 61)))
    assert statistics.period().began == 1000.0
    clock.now += 3600
    assert [statistics.period(seconds).answered for seconds in (60.0, 300.0, 900.0)] == [0, 0, 0]
    assert statistics.period().answered == statistics.totals().answered.count == sum(range(1, 61))
    assert len(statistics._slots) < 5


def test_work_that_is_told_of_later_counts_where_it_happened(clock: Clock) -> None:
    statistics = ModelStatistics()
    clock.now += 1000
    statistics.record_request(1, 0, 0.01, at=clock.now - 5)
    statistics.record_request(2, 0, 0.01, at=clock.now - 200)
    statistics.record_run(report(1, 1), 2e-3, at=clock.now - 990)
    assert [statistics.period(seconds).answered for seconds in (60.0, 300.0, 900.0, None)] == [1, 3, 3, 3]
    assert (statistics.period(900.0).sizes.total(), statistics.period().sizes.total()) == (0, 1)
    assert statistics.totals().last_run == clock.now - 990


@pytest.mark.parametrize("window", [60.0, 300.0, 900.0])
def test_a_window_is_as_long_as_it_says_but_for_a_slot(clock: Clock, window: float) -> None:
    statistics = ModelStatistics()
    for step in range(20_000):
        clock.now = 1000.0 + 0.25 * step
        statistics.record_stages({"decode": 1e-3})
    period = statistics.period(window)
    assert window - 10 <= clock.now - period.began <= window
    assert period.stages["decode"].count == pytest.approx(4 * (clock.now - period.began), abs=2)
