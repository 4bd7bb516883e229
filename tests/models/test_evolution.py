"""The light curve after each detection, and the steadiness of a sequence of posteriors, against plain loops."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models.evolution import MAX_STEPS, RECENT_DETECTIONS, History, history, sample, stability
from nightjar_alerts.models.lightcurve import LightCurve


def light_curve(mjd: list[float], detected: list[bool], band: list[str] | None = None) -> LightCurve:
    rows = len(mjd)
    return LightCurve.from_columns(
        mjd,
        np.arange(rows) + 100.0,
        np.full(rows, 5.0),
        band or ["g", "r"] * (rows // 2) + ["g"] * (rows % 2),
        detected,
        {"REDSHIFT_HELIO": 0.1},
        "object",
        survey="ztf",
    )


def times_of(steps: History) -> list[list[float]]:
    return [sorted(curve.mjd.tolist()) for curve in steps.curves]


def test_history_of_mixed_points_has_a_step_for_each_detection_with_all_that_came_before() -> None:
    steps = history(light_curve([5.0, 1.0, 3.0, 2.0, 4.0], [True, False, True, True, False]))
    assert steps.mjd.tolist() == [2.0, 3.0, 5.0]
    assert times_of(steps) == [[1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]]
    assert steps.detections == [1, 2, 3]
    assert not steps.sampled
    last = steps.curves[-1]
    assert (last.object_id, last.survey, dict(last.metadata)) == ("object", "ztf", {"REDSHIFT_HELIO": 0.1})


def test_history_with_two_filters_at_one_time_makes_one_step() -> None:
    steps = history(light_curve([1.0, 1.0, 2.0], [True, True, True], ["g", "r", "g"]))
    assert steps.mjd.tolist() == [1.0, 2.0]
    assert steps.detections == [2, 3]


def test_history_leaves_out_what_follows_the_last_detection() -> None:
    steps = history(light_curve([1.0, 2.0, 3.0], [False, True, False]))
    assert times_of(steps) == [[1.0, 2.0]]


def test_history_without_a_detection_is_the_whole_light_curve() -> None:
    steps = history(light_curve([3.0, 1.0, 2.0], [False, False, False]))
    assert steps.mjd.tolist() == [3.0]
    assert times_of(steps) == [[1.0, 2.0, 3.0]]
    assert steps.detections == [0]


def test_history_beyond_the_bound_is_sampled_and_ends_with_the_whole_light_curve() -> None:
    steps = history(light_curve([float(day) for day in range(390)], [True] * 390))
    assert steps.sampled
    assert steps.times == 390
    assert len(steps.mjd) == MAX_STEPS
    assert steps.mjd[0] == 0.0
    assert steps.mjd[-RECENT_DETECTIONS:].tolist() == [385.0, 386.0, 387.0, 388.0, 389.0]
    assert len(steps.curves[-1]) == 390


@given(st.integers(1, 400), st.integers(RECENT_DETECTIONS + 1, 120))
def test_sample_is_ascending_bounded_and_keeps_the_ends(number: int, most: int) -> None:
    indices = sample(number, most).tolist()
    assert indices == sorted(set(indices))
    assert len(indices) == min(number, most)
    assert indices[0] == 0
    assert indices[-RECENT_DETECTIONS:] == list(range(max(0, number - RECENT_DETECTIONS), number))
    gaps = np.diff(indices[: -RECENT_DETECTIONS + 1])
    assert not gaps.size or gaps.max() - gaps.min() <= 1


probabilities = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4).map(
    lambda row: (np.array(row) / sum(row)).tolist()
)


@given(st.lists(probabilities, min_size=2, max_size=12))
def test_stability_agrees_with_a_plain_loop(rows: list[list[float]]) -> None:
    mjd = [60_000.0 + 3 * step for step in range(len(rows))]
    steady = stability(mjd, rows)
    changed = [
        time
        for time, before, after in zip(mjd[1:], rows, rows[1:], strict=False)
        if before.index(max(before)) != after.index(max(after))
    ]
    recent = rows[-5:]
    distances = [
        sum(abs(p - q) for p, q in zip(before, after, strict=True)) / 2 for before, after in itertools.pairwise(recent)
    ]
    assert steady.class_changes == len(changed)
    assert steady.last_change_mjd == (changed[-1] if changed else None)
    assert steady.recent_variation == pytest.approx(sum(distances) / len(distances), abs=1e-12)


def test_stability_of_a_single_step_has_no_variation() -> None:
    steady = stability([1.0], [[0.2, 0.8]])
    assert (steady.class_changes, steady.last_change_mjd, steady.recent_variation) == (0, None, None)
