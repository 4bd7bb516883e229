"""Many light curves at once are what each of them is alone, good or bad."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models import bulk
from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError
from nightjar_alerts.models.photometry import BANDS

FIELDS = ("mjd", "flux", "flux_err", "band", "detected")


def columns(length: int, seed: int = 0, **changes: Any) -> Columns:
    rng = np.random.default_rng(seed)
    drawn = Columns(
        mjd=60_000.0 + np.sort(rng.uniform(0, 100, length)),
        flux=rng.normal(0, 100, length).astype(np.float32),
        flux_err=rng.uniform(1, 50, length).astype(np.float32),
        band=rng.integers(0, 6, length).astype(np.uint8),
        metadata={"mwebv": 0.1},
        object_id=str(seed),
    )
    return replace(drawn, **changes)


def alone(one: Columns) -> LightCurve | LightCurveError:
    try:
        return one.light_curve()
    except LightCurveError as error:
        return error


def assert_as_alone(many: list[Columns]) -> None:
    for found, one in zip(light_curves(many), many, strict=True):
        expected = alone(one)
        if isinstance(expected, LightCurveError) or isinstance(found, LightCurveError):
            assert isinstance(expected, LightCurveError)
            assert isinstance(found, LightCurveError)
            assert (found.pointer, found.reason, str(found)) == (expected.pointer, expected.reason, str(expected))
            continue
        assert (found.object_id, found.metadata) == (expected.object_id, expected.metadata)
        for name in FIELDS:
            ours, theirs = getattr(found, name), getattr(expected, name)
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


CHANGES: list[dict[str, Any]] = [
    {},
    {"mjd": [60_000.0, np.nan, 60_002.0]},
    {"mjd": [60_000.0, 2_460_000.5, 60_002.0]},
    {"mjd": [60_002.0, 60_001.0, 60_000.0]},
    {"mjd": [60_000.0, 60_000.0, 60_001.0]},
    {"mjd": [60_000.0, 60_000.0, 60_001.0], "band": ["g", "g", "r"]},
    {"mjd": np.empty(0), "flux": np.empty(0), "flux_err": np.empty(0), "band": []},
    {"mjd": np.ones((3, 1)), "flux": np.ones((3, 1)), "flux_err": np.ones((3, 1)), "band": np.ones((3, 1), int)},
    {"flux": [1.0, np.inf, 2.0]},
    {"flux": [1.0, 1e39, 2.0]},
    {"flux": [1.0, 1e37, 2.0], "flux_unit": "uJy"},
    {"flux": [1.0, 2.0]},
    {"flux": [1.25, -2.5, 1e5], "flux_unit": "FLUXCAL"},
    {"flux_err": [1.0, 0.0, 1.0]},
    {"flux_err": [1.0, np.nan, 1.0]},
    {"band": [0, 1, 6]},
    {"band": np.array([0, 1, 6])},
    {"band": np.array([0, 2**63, 1], np.uint64)},
    {"band": ["g", "Y", "y"]},
    {"band": ["g", "x", "y"]},
    {"detected": [True, False, True]},
    {"detected": np.array([False, True, True])},
    {"detected": [True]},
]


def test_every_case_among_good_ones() -> None:
    assert_as_alone([columns(3, i, **c) for i, c in enumerate(CHANGES)])


@pytest.mark.parametrize("many", [[], [columns(5)], [columns(3, flux=[1.0])], [columns(1, i) for i in range(3)]])
def test_few_and_none(many: list[Columns]) -> None:
    assert_as_alone(many)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9), st.sampled_from(["mjd", "flux", "flux_err", "none"]))))
def test_faults_anywhere(drawn: list[tuple[int, int, str]]) -> None:
    many = [columns(length, seed) for length, seed, _ in drawn]
    for one, (length, seed, spoiled) in zip(many, drawn, strict=True):
        if spoiled != "none":
            getattr(one, spoiled)[seed % length] = np.nan if seed % 2 else -1.0
    assert_as_alone(many)


def test_names_of_bands_are_indices() -> None:
    named, numbered = light_curves([columns(6, band=list(BANDS)), columns(6, band=np.arange(6))])
    assert isinstance(named, LightCurve)
    assert isinstance(numbered, LightCurve)
    np.testing.assert_array_equal(named.band, numbered.band)


def test_portions_are_in_order_and_of_a_bounded_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_STEP_POINTS", 10)
    sizes = [4, 4, 4, 30, 1, 9, 1, 0]
    portions = [list(portion) for portion in bulk._portions(list(range(len(sizes))), sizes)]
    assert portions == [[0, 1], [2], [3], [4, 5], [6, 7]]
