"""Measured once, recalled at the next start, measured again when it does not hold; the settings overrule."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from nightjar_alerts.service.engine import load as loading
from nightjar_alerts.service.engine import machine
from nightjar_alerts.service.engine.batch import Arrays, Classification
from nightjar_alerts.service.engine.load import LoadedModel, calibrate, load_model
from nightjar_alerts.service.engine.machine import CoreLayout, Measured
from nightjar_alerts.service.engine.policy import CostModel, RunSample
from support.graphs import EchoGraph, echo_manifest

PROGRAM = Classification(echo_manifest())
TUNED = CoreLayout(3, 1, 7)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run takes a millisecond, however busy the machine is: what is kept of a run holds at the next start."""
    monkeypatch.setattr(loading, "clock_of", lambda *_: partial(next, count(0.0, 1e-3)))


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of candidates at every trial; the winner is one that nobody would come up with."""
    seen = list[int]()

    def tune(candidates: list[CoreLayout], *_: object) -> tuple[CoreLayout, bool]:
        seen.append(len(candidates))
        return TUNED, True

    monkeypatch.setattr(machine, "tune", tune)
    return seen


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for every warm-up."""
    seen, real = list[int](), machine.measure

    def measure(*given: object, **named: object) -> list[RunSample]:
        seen.append(1)
        return real(*given, **named)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(loading, "measure", measure)
    return iter([seen])


def load(bundle: Path, folder: Path, wish: CoreLayout | None = None, tune: bool = True) -> LoadedModel:
    return load_model(bundle, wish=wish or CoreLayout(), folder=folder, tune=tune)


def test_a_restart_measures_nothing(
    tiny_bundle: Path, tmp_path: Path, trials: list[int], measurements: Iterator[list[int]]
) -> None:
    [warm_ups] = measurements
    first, second = load(tiny_bundle, tmp_path), load(tiny_bundle, tmp_path)
    assert (len(trials), len(warm_ups)) == (1, 1)
    assert first.layout == second.layout == TUNED
    assert (first.cost, first.max_tokens) == (second.cost, second.max_tokens)


def test_learned_costs_are_there_after_a_restart(tiny_bundle: Path, tmp_path: Path, trials: list[int]) -> None:
    first = load(tiny_bundle, tmp_path)
    learned = [run._replace(seconds=1.5 * run.seconds) for run in first.samples]
    first.keep(learned)
    second = load(tiny_bundle, tmp_path)
    assert second.samples == learned
    assert second.cost.seconds(4, 50) == pytest.approx(1.5 * first.cost.seconds(4, 50), rel=1e-3)
    assert (second.layout, len(trials)) == (TUNED, 1)


def test_a_wish_is_granted_and_kept_apart(tiny_bundle: Path, tmp_path: Path, trials: list[int]) -> None:
    load(tiny_bundle, tmp_path)
    fixed = load(tiny_bundle, tmp_path, CoreLayout(1, 2, 3))
    assert (fixed.layout, len(trials)) == (CoreLayout(1, 2, 3), 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_that_was_loaded_quietly_is_tried_out_at_the_next_start(
    tiny_bundle: Path, tmp_path: Path, trials: list[int]
) -> None:
    quiet = load(tiny_bundle, tmp_path, tune=False)
    assert (quiet.layout.threads, trials) == (1, [])
    assert load(tiny_bundle, tmp_path).layout == TUNED
    assert load(tiny_bundle, tmp_path, tune=False).layout == TUNED  # a reload knows it, too


def test_trials_that_ran_out_of_time_are_made_again(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(CoreLayout(2, 1, 2), False), (TUNED, True)]
    monkeypatch.setattr(machine, "tune", lambda *_: found.pop(0))
    assert load(tiny_bundle, tmp_path).layout == CoreLayout(2, 1, 2)
    assert load(tiny_bundle, tmp_path).layout == TUNED
    assert load(tiny_bundle, tmp_path).layout == TUNED
    assert found == []


@pytest.mark.parametrize("factor", [0.1, 0.8, 1.3, 10.0])
def test_measurements_that_do_not_hold_any_more_are_made_again(factor: float) -> None:
    """The machine as remembered is ``factor`` times as slow as it is."""
    fresh = calibrate(lambda _: EchoGraph(), PROGRAM, "cuda", CoreLayout(1, 1, 1), None, tune=False)
    slow = CostModel(20e-3 * factor, 0.0, 0.0)
    runs = tuple((run.batch, run.length, run.tokens, slow.seconds(*run[:3])) for run in fresh.samples)
    known = Measured(runs=runs, max_tokens=77, layout=(1, 1, 1), tuned=True)

    class Sleepy(EchoGraph):
        def __call__(self, inputs: Arrays) -> Arrays:
            calibration_clock.now += 20e-3
            return super().__call__(inputs)

    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    calibration_clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "clock_of", lambda *_: calibration_clock)
        found = calibrate(lambda _: Sleepy(), PROGRAM, "cuda", CoreLayout(1, 1, 1), known, tune=False)
    assert (found.max_tokens == 77) == (0.5 < factor < 2)
