"""Use of the machine: what a wish leaves open, and what is chosen among it."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.service.engine import machine as layouts
from nightjar_alerts.service.engine.batch import Arrays, Classification, RunGraph
from nightjar_alerts.service.engine.machine import CoreLayout, Shape, candidates, probe, throughput, tune, usual
from support.graphs import EchoGraph, echo_manifest

PROGRAM = Classification(echo_manifest())
wishes = st.builds(CoreLayout, st.integers(0, 4), st.integers(0, 4), st.integers(0, 8))


@pytest.mark.parametrize(
    ("wish", "cores", "expected"),
    [
        (CoreLayout(), 8, CoreLayout(8, 1, 8)),
        (CoreLayout(runs=3), 8, CoreLayout(3, 1, 3)),
        (CoreLayout(threads=4), 8, CoreLayout(2, 4, 2)),
        (CoreLayout(threads=4), 2, CoreLayout(1, 4, 1)),
        (CoreLayout(runs=2, batches=5), 8, CoreLayout(2, 1, 5)),
        (CoreLayout(runs=4, batches=2), 8, CoreLayout(4, 1, 4)),
    ],
)
def test_the_usual_layout(wish: CoreLayout, cores: int, expected: CoreLayout) -> None:
    assert usual(wish, cores) == expected


def test_two_cores_have_these_to_choose_from() -> None:
    expected = [CoreLayout(2, 1, 2), CoreLayout(2, 1, 4), CoreLayout(4, 1, 4), CoreLayout(1, 2, 2)]
    assert candidates(CoreLayout(), 2, on_gpu=False) == expected
    assert CoreLayout(1, 1, 2) in candidates(CoreLayout(), 2, on_gpu=True)


@given(wishes, st.integers(1, 64), st.booleans())
def test_every_candidate_grants_the_wish(wish: CoreLayout, cores: int, on_gpu: bool) -> None:
    found = candidates(wish, cores, on_gpu)
    assert len(found) == len(set(found)) > 0
    for layout in found:
        assert layout.batches >= layout.runs >= 1
        assert (layout.runs, layout.threads) == (wish.runs or layout.runs, wish.threads or layout.threads)
        assert layout.batches >= wish.batches
    if not wish.is_open:
        assert len(found) == 1


@pytest.mark.parametrize(("rates", "expected"), [((100, 103), 0), ((100, 110), 1), ((100, 90), 0)])
def test_only_what_is_clearly_better_displaces_the_simplest(
    monkeypatch: pytest.MonkeyPatch, rates: tuple[float, float], expected: int
) -> None:
    both = [CoreLayout(2, 1, 2), CoreLayout(2, 1, 4)]
    measured = dict(zip(both, rates, strict=True))
    monkeypatch.setattr(layouts, "throughput", lambda layout, *_: measured[layout])
    assert tune(both, lambda _: EchoGraph(), PROGRAM) == (both[expected], True)


def test_a_layout_that_is_better_in_one_round_alone_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [CoreLayout(2, 1, 2), CoreLayout(4, 1, 4)]
    rates = iter([100.0, 130.0, 110.0, 109.0])  # turn and turn about
    monkeypatch.setattr(layouts, "throughput", lambda *_: next(rates))
    assert tune(both, lambda _: EchoGraph(), PROGRAM) == (both[0], True)


def test_a_single_layout_needs_no_trial() -> None:
    opened = list[int]()
    assert tune([CoreLayout(1, 3, 1)], opened.append, PROGRAM) == (CoreLayout(1, 3, 1), True)  # type: ignore[arg-type]  # never called
    assert opened == []


def test_trials_end_when_their_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[CoreLayout]()
    monkeypatch.setattr(layouts, "TUNE_SECONDS", 0.0)
    monkeypatch.setattr(layouts, "throughput", lambda layout, *_: tried.append(layout))
    assert tune([CoreLayout(2, 1, 2), CoreLayout(2, 1, 4)], lambda _: EchoGraph(), PROGRAM) == (
        CoreLayout(2, 1, 2),
        False,
    )
    assert tried == []


class Crowd:
    """A graph that sleeps, and counts how many runs there are at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock, self.echo = threading.Lock(), EchoGraph()

    def __call__(self, inputs: Arrays) -> Arrays:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.005)
        with self.lock:
            self.now -= 1
        return self.echo(inputs)


def rate(layout: CoreLayout, graph: RunGraph) -> float:
    return throughput(layout, graph, PROGRAM, [probe(PROGRAM, Shape(2, 8, 8))], 0.1)


@pytest.mark.parametrize("layout", [CoreLayout(1, 1, 1), CoreLayout(2, 1, 4), CoreLayout(3, 1, 3)])
def test_a_trial_runs_as_many_at_a_time_as_the_layout_says(layout: CoreLayout) -> None:
    crowd = Crowd()
    assert rate(layout, crowd) > 0
    assert crowd.most == layout.runs


def test_a_trial_counts_observations_a_second() -> None:
    """Two light curves of 8 in every run of at least 5 ms; how much longer it takes is the machine's affair."""
    assert 0 < rate(CoreLayout(1, 1, 1), Crowd()) < 2 * 8 / 0.005
