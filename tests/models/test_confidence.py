"""Confidence in the manifest: formulas restated, sets that hold what they must, nonsense refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, LARGEST_TEMPERATURE, Calibration, Manifest, load_bundle
from nightjar_alerts.models.posterior import Novelty, PredictionSets, SetThresholds
from support.graphs import echo_manifest

SETS = PredictionSets(
    coverages=(0.8, 0.9),
    default=0.9,
    groups=(
        SetThresholds(detections=0, largest=(0.75, 0.95), views=10),
        SetThresholds(detections=3, largest=(0.0, 0.7), views=10),
    ),
    split="validation",
)
P = np.array([0.1, 0.5, 0.06, 0.34])


def test_the_temperature_follows_the_length() -> None:
    fit = Calibration(method="temperature_by_length", temperature=1.1, coefficients=(0.3, -0.2, 0.05), lengths=(2, 100))
    expected = [np.exp(0.3 - 0.2 * np.log(n) + 0.05 * np.log(n) ** 2) for n in (2, 2, 7, 100, 100)]
    np.testing.assert_allclose(fit.temperatures(np.array([1, 2, 7, 100, 5000])), expected)
    same = Calibration(method="temperature", temperature=1.7)
    assert same.temperatures(np.array([1, 50])).tolist() == [1.7, 1.7]


def test_a_temperature_by_length_stays_within_the_bounds_of_its_fit() -> None:
    steep = Calibration(method="temperature_by_length", temperature=1.0, coefficients=(-9.0, 9.0), lengths=(1, 50))
    temperatures = steep.temperatures(np.array([1, 2, 50]))
    np.testing.assert_allclose(temperatures, [1 / LARGEST_TEMPERATURE, np.exp(9 * np.log(2) - 9), LARGEST_TEMPERATURE])


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "temperature", "coefficients": (0.1,)},
        {"method": "temperature_by_length"},
        {"method": "temperature_by_length", "coefficients": (0.1, 0.2)},
        {"method": "temperature", "lengths": (1, 2)},
        {"method": "temperature", "temperature": 0.0},
    ],
)
def test_a_calibration_has_what_its_method_needs(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Calibration.model_validate({"temperature": 1.0} | changes)


@pytest.mark.parametrize(
    ("detections", "coverage", "classes", "stated"),
    [
        (1, None, [1, 3, 0, 2], 0.9),
        (2, 0.5, [1, 3], 0.8),
        (2, 0.8, [1, 3], 0.8),
        (2, 0.81, [1, 3, 0, 2], 0.9),
        (3, 0.9, [1, 3], 0.9),
        (50, 0.8, [1], 0.8),
        (50, 0.95, [1, 3, 0, 2], 1.0),
    ],
)
def test_sets_by_detections_and_coverage(
    detections: int, coverage: float | None, classes: list[int], stated: float
) -> None:
    named = SETS.named(P, detections, coverage)
    assert (named.classes.tolist(), named.coverage) == (classes, stated)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any), min_size=1, max_size=5),
    st.integers(0, 9),
    st.sampled_from([None, 0.5, 0.81, 0.95]),
)
def test_sets_of_several_light_curves_are_those_of_each(
    weights: list[list[int]], detections: int, coverage: float | None
) -> None:
    """Equal probabilities are common among these, and keep their order."""
    rows = [np.array(row) / sum(row) for row in weights]
    members, stated = SETS.members_each([row.tolist() for row in rows], [(detections, 1, 0.0)] * len(rows), coverage)
    alone = [SETS.named(row, detections, coverage) for row in rows]
    assert members == [tuple(one.classes.tolist()) for one in alone]
    assert {one.coverage for one in alone} == {stated}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(lambda w: sum(w) > 0), st.integers(0, 9))
def test_a_set_is_what_the_definition_says(weights: list[float], detections: int) -> None:
    p = np.array(weights) / sum(weights)
    largest = SETS.groups[detections >= 3].largest[1]
    expected = {int(p.argmax())} | {index for index, value in enumerate(p) if 1 - value <= largest}
    found = SETS.named(p, detections).classes.tolist()
    assert set(found) == expected
    assert p[found].tolist() == sorted(p[found].tolist(), reverse=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"coverages": (0.9, 0.8)},
        {"default": 0.85},
        {"groups": (SetThresholds(detections=1, largest=(0.1, 0.2), views=1),)},
        {"groups": (SETS.groups[0], SETS.groups[0])},
        {"groups": (SetThresholds(detections=0, largest=(0.1,), views=1),)},
    ],
)
def test_sets_in_disorder_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PredictionSets.model_validate(SETS.model_dump() | changes)


def test_manifests_say_it_and_older_ones_need_not() -> None:
    shipped, older = load_bundle(DEFAULT_BUNDLE).manifest, echo_manifest()
    assert (older.novelty, older.prediction_sets) == (None, None)
    assert shipped.novelty is not None
    assert shipped.prediction_sets is not None
    novelty = Novelty(
        threshold=0.99, false_alarm_rate=0.01, by_detections={1: 0.02}, split="x", objects=9, reference_objects=9
    )
    told = older.model_copy(update={"novelty": novelty, "prediction_sets": SETS})
    assert Manifest.model_validate_json(told.model_dump_json()) == told
