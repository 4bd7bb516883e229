"""Distances of windows of light curves from the training data, against numbers worked out by hand."""

import numpy as np
import pytest

from nightjar_alerts.models.drift import LIMITS, MIN_POINTS, WINDOW, InputReference, summary
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from support.graphs import echo_manifest
from support.statistics import survey_statistics

MANIFEST = echo_manifest()
BANDS = len(MANIFEST.bands)
FIRST = np.zeros(WINDOW, np.int64)


def curve(flux: list[float], error: float = 1.0, band: str = "r", **metadata: float) -> LightCurve:
    errors = error * np.linspace(1, 2, len(flux))
    return LightCurve.from_columns(60_000.0 + np.arange(len(flux)), flux, errors, [band] * len(flux), metadata=metadata)


def usual(count: int = WINDOW) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Rows of light curves that the statistics describe: 10 points in r, error 1 nJy, ratio 0.1."""
    row = np.concatenate([[1.0, 0.1, 0.0], [10.0 * (name == "r") for name in MANIFEST.bands], np.ones(64)])
    return np.tile(row[: 3 + BANDS + len(METADATA_COLUMNS)], (count, 1))


def distances(
    rows_NK: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    class_N: np.ndarray[tuple[int], np.dtype[np.int64]] = FIRST,
) -> dict[str, float]:
    return InputReference(MANIFEST, survey_statistics(MANIFEST)).distances(rows_NK, class_N)


def test_summary_of_a_light_curve_has_its_numbers() -> None:
    row_K = summary(curve([-20.0, 5.0, 10.0, 40.0], z_final=0.1), MANIFEST)
    assert row_K[0] == pytest.approx(1 + 2 / 3)  # the upper one of the middle two of 1, 4/3, 5/3 and 2
    assert row_K[1] == pytest.approx((1 + 2 / 3) / 40)
    assert np.isnan(row_K[2])
    assert row_K[3 : 3 + BANDS].tolist() == [4.0 * (name == "r") for name in MANIFEST.bands]
    present = [name for name, missing in zip(METADATA_COLUMNS, row_K[3 + BANDS :], strict=True) if not missing]
    assert present == ["z_final"]


def test_summary_of_a_long_light_curve_has_its_lowest_flux() -> None:
    assert summary(curve([*[100.0] * MIN_POINTS, 40.0]), MANIFEST)[2] == pytest.approx(0.4)
    assert summary(curve([*[0.0] * MIN_POINTS]), MANIFEST)[2] == 0


def test_summary_leaves_out_filters_without_a_band() -> None:
    assert summary(curve([1.0, 2.0], band="V"), MANIFEST)[3 : 3 + BANDS].tolist() == [0.0] * BANDS


def test_usual_window_has_no_distance() -> None:
    assert distances(usual()) == pytest.approx(dict.fromkeys(LIMITS, 0.0), abs=1e-9)


def test_scaled_fluxes_are_a_distance_of_the_flux_scale_alone() -> None:
    rows_NK = usual()
    rows_NK[:, 0] *= 36
    expected = dict.fromkeys(LIMITS, 0.0) | {"flux_scale": np.log10(36)}
    assert distances(rows_NK) == pytest.approx(expected, abs=1e-9)
    rows_NK[:, 0] /= 36 * 1000
    assert distances(rows_NK)["flux_scale"] == pytest.approx(3)


def test_half_of_a_window_with_a_fault_has_the_distance_of_its_kind() -> None:
    rows_NK, class_N = usual(), FIRST.copy()
    half, r = slice(0, WINDOW // 2), 3 + MANIFEST.bands.index("r")
    class_N[half] = 3
    assert distances(rows_NK, class_N)["class_mix"] == pytest.approx(0.5)
    rows_NK[half, r] = 0
    assert distances(rows_NK)["missing_bands"] == pytest.approx(0.5)
    rows_NK[half, 3 + BANDS] = 0
    assert distances(rows_NK)["missing_metadata"] == pytest.approx(0.5)


def test_fewer_points_and_higher_lowest_flux_have_their_distances() -> None:
    rows_NK = usual()
    rows_NK[:, 3 + MANIFEST.bands.index("r")] = 4
    rows_NK[:, 2] = 0.8
    found = distances(rows_NK)
    assert found["points_per_band"] == pytest.approx(np.log2(11) - np.log2(5))
    assert found["total_flux"] == pytest.approx(0.8)


def test_windows_with_few_long_or_classified_light_curves_are_not_compared() -> None:
    rows_NK = usual()
    rows_NK[60:, 2] = np.nan
    found = distances(rows_NK, np.where(np.arange(WINDOW) < 60, 0, -1))
    assert np.isnan([found["total_flux"], found["class_mix"]]).all()


def test_statistics_without_long_light_curves_compare_no_total_flux() -> None:
    reference = InputReference(MANIFEST, survey_statistics(MANIFEST, lowest_flux=None))
    assert np.isnan(reference.distances(usual(), FIRST)["total_flux"])
