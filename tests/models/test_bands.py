"""Filters of surveys and bands of networks."""

import tracemalloc

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError, Limits, featurise, without_reference
from nightjar_alerts.models.photometry import BANDS, FILTERS, BandMap


def curve(band: list[str], survey: str = "") -> LightCurve:
    n = len(band)
    return LightCurve.from_columns(60_000.0 + np.arange(n), np.arange(n) + 1.0, np.ones(n), band, survey=survey)


def test_the_six_bands_keep_their_numbers() -> None:
    assert BandMap(("g", "r")).indices == (1, 2)
    assert BandMap(("g", "r")).labels == BANDS
    assert BandMap(("c", "o")).indices == (0, 1)
    assert BandMap(("c", "o")).labels == ("c", "o")
    assert BandMap(("g", "c"), (4, 2)).labels == ("", "", "c", "", "g")


def test_a_survey_s_own_entry_counts_first() -> None:
    bands = BandMap(("g", "r"), groups={"o": "r", "atlas:o": "g", "ztf:y": "r"})
    places = dict(zip(FILTERS, bands.table("atlas").tolist(), strict=True))
    assert (places["o"], places["g"], places["c"], places["Y"]) == (1, 1, -1, -1)
    assert dict(zip(FILTERS, bands.table("lsst").tolist(), strict=True))["o"] == 2
    assert dict(zip(FILTERS, bands.table("ztf").tolist(), strict=True))["Y"] == 2
    assert bands.table("anything a client names") is bands.table("")


@pytest.mark.parametrize(
    ("bands", "indices", "groups", "message"),
    [
        ((), None, None, "different ones"),
        (("g", "g"), None, None, "different ones"),
        (("q",), None, None, "different ones of u, g"),
        (("g", "r"), (1,), None, "index of its own"),
        (("g", "r"), (1, 1), None, "index of its own"),
        (("g", "r"), (-1, 1), None, "index of its own"),
        (("g",), None, {"o": "r"}, "'r' is none of the bands"),
        (("g",), None, {"atlas:q": "g"}, "names no known filter"),
    ],
)
def test_band_maps_that_make_no_sense_are_refused(
    bands: tuple[str, ...], indices: tuple[int, ...] | None, groups: dict[str, str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BandMap(bands, indices, groups)


def test_points_in_other_filters_are_left_out_and_counted() -> None:
    tokens = featurise(curve(["c", "o", "g", "c"], "atlas"), Limits(), "nJy", (), BandMap(("c", "o")))
    assert tokens.band.tolist() == [0, 1, 0]
    assert tokens.points_per_band == (2, 1)
    assert tokens.other_filters == {"g": 1}
    usual = featurise(curve(["c", "o", "g", "c"], "atlas"), Limits(), "nJy", ())
    assert usual.band.tolist() == [1]
    assert usual.other_filters == {"c": 2, "o": 1}


@pytest.mark.parametrize("own", [4, 5])
def test_a_band_with_enough_points_in_its_own_filter_leaves_others_out(own: int) -> None:
    bands = BandMap(BANDS, groups={"V": "r", "B": "g"})
    tokens = featurise(curve(["V", "B", *["r"] * own, "BP"]), Limits(), "nJy", (), bands)
    if own < 5:
        assert (tokens.points_per_band[1:3], tokens.other_filters) == ((1, own + 1), {"BP": 1})
    else:
        assert (tokens.points_per_band[1:3], tokens.other_filters) == ((1, own), {"V": 1, "BP": 1})
        assert tokens.time.tolist() == pytest.approx(np.arange(own + 1))


def test_a_curve_without_a_known_filter_has_no_usable_point() -> None:
    with pytest.raises(LightCurveError, match=r"\(u, g, r, i, z, Y\); not used, .*: c \(1\), o \(1\)") as caught:
        featurise(curve(["c", "o"]), Limits(), "nJy", ())
    assert caught.value.reason == "no_usable_points"


def test_exact_repeats_are_collapsed_and_counted() -> None:
    found = LightCurve.from_columns([3.0, 1.0, 3.0, 3.0], [5.0, 1.0, 5.0, 5.0], [1.0] * 4, ["g", "r", "g", "g"])
    assert (found.mjd.tolist(), found.duplicates) == ([3.0, 1.0], 2)
    plain = LightCurve.from_columns([3.0, 1.0], [5.0, 1.0], [1.0, 1.0], ["g", "r"])
    for column in ("mjd", "flux", "flux_err", "band", "detected"):
        np.testing.assert_array_equal(getattr(found, column), getattr(plain, column))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_from_columns_two_rows_of_one_time_and_band_keeps_the_most_precise(order: list[int]) -> None:
    flux, flux_err, detected = [5.0, 6.0, 9.0], [2.0, 1.0, 3.0], [False, True, False]
    found = LightCurve.from_columns(
        [3.0, 3.0, 3.0],
        [flux[row] for row in order],
        [flux_err[row] for row in order],
        ["g", "g", "g"],
        [detected[row] for row in order],
    )
    assert (found.flux.tolist(), found.flux_err.tolist(), found.detected.tolist()) == ([6.0], [1.0], [True])
    assert found.duplicates == 2


def test_total_flux_loses_the_median_of_each_band() -> None:
    flux, levels = without_reference([10.0, 12.0, 17.0, 100.0, 104.0], ["g", "g", "g", "y", "Y"])
    assert flux.tolist() == [-2.0, 0.0, 5.0, -2.0, 2.0]
    assert levels == {"g": 12.0, "Y": 102.0}
    assert without_reference([1.0, 2.0], ["g"])[0].tolist() == [1.0, 2.0]  # whose fault is named elsewhere


def test_a_long_name_takes_no_room_in_every_place() -> None:
    """An array of texts has: one name of a megabyte among 20,000 made 80 GB."""
    bands = [*["r"] * 999, "q" * 1_000_000]
    tracemalloc.start()
    try:
        without_reference([1.0] * 1000, bands)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
