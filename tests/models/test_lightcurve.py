"""The canonical record: units, time origin, limits, ragged batches, and the invariances of the whole path."""

import re
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models import lightcurve
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError, Limits, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import (
    BANDS,
    BandMap,
    FluxUnit,
    filter_index,
    flux_to_njy,
    magnitude_of,
    njy_of_magnitude,
    njy_to,
)

COLUMNS = ("mwebv", "z_final")
NO_WINDOW = Limits(pre_trigger_days=None)


def curve(n: int = 5, **changes: Any) -> LightCurve:
    columns: dict[str, Any] = {
        "mjd": 60_000.0 + np.arange(n),
        "flux": np.linspace(100.0, 500.0, n),
        "flux_err": np.full(n, 10.0),
        "band": np.arange(n) % 6,
    }
    return LightCurve.from_columns(**(columns | changes))


def tokens(record: LightCurve, limits: Limits = NO_WINDOW, unit: FluxUnit = "nJy") -> Tokens:
    return featurise(record, limits, unit, COLUMNS)


@pytest.mark.parametrize(("name", "index"), [("u", 0), ("g", 1), ("r", 2), ("i", 3), ("z", 4), ("y", 5), ("Y", 5)])
def test_band_names(name: str, index: int) -> None:
    assert filter_index(name) == index
    assert curve(1, band=[name]).band.tolist() == [index]


def test_unknown_band_name() -> None:
    with pytest.raises(ValueError, match="unknown band 'q'"):
        filter_index("q")


def test_ab_magnitudes_and_nanojanskys() -> None:
    np.testing.assert_allclose(njy_of_magnitude(np.array([31.4, 8.9])), [1.0, 1e9])  # 8.9 mag is 1 Jy
    magnitude = np.array([14.0, 24.5])
    np.testing.assert_allclose(magnitude_of(njy_of_magnitude(magnitude)), magnitude)
    assert magnitude_of(0.0) == np.inf
    assert np.isnan(magnitude_of(-1.0))


def test_fluxcal_is_the_27_5_zero_point() -> None:
    magnitude = 22.0
    njy = 10 ** (-0.4 * (magnitude - 31.4))
    assert njy_to(njy, "FLUXCAL") == pytest.approx(10 ** (-0.4 * (magnitude - 27.5)))
    assert njy_to(1.0, "FLUXCAL") == pytest.approx(0.027542, rel=1e-4)
    assert flux_to_njy(1.0, "uJy") == 1000.0


@pytest.mark.parametrize("unit", ["nJy", "uJy", "FLUXCAL"])
def test_units_convert_once_in_and_once_out(unit: FluxUnit) -> None:
    record = curve(flux=[1.0, 2.0, -3.0, 4.0, 5.0], flux_unit=unit)
    np.testing.assert_allclose(record.flux, flux_to_njy([1, 2, -3, 4, 5], unit), rtol=1e-6)
    np.testing.assert_allclose(tokens(record, unit=unit).flux, [1, 2, -3, 4, 5], rtol=1e-6)
    np.testing.assert_allclose(tokens(record, unit=unit).flux_err, 10.0, rtol=1e-6)


def test_time_origin_is_subtracted_in_float64() -> None:
    days = 60_310.0 + np.array([0.0, 1e-4, 2e-4])  # 8.6 s apart: one float32 grain of an MJD is 338 s
    np.testing.assert_allclose(tokens(curve(3, mjd=days)).time, [0.0, 1e-4, 2e-4], atol=1e-7)
    assert np.unique(days.astype(np.float32)).size == 1


def test_time_origin_is_the_first_kept_observation() -> None:
    record = curve(3, mjd=[60_000.0, 60_050.0, 60_051.0], detected=[False, True, True])
    kept = tokens(record, Limits(pre_trigger_days=30.0))
    assert kept.time.tolist() == [0.0, 1.0]
    assert kept.truncated


def test_detection_flags_default_to_five_sigma() -> None:
    record = curve(4, flux=[49.0, 50.0, -51.0, 0.0])
    assert record.detected.tolist() == [False, True, True, False]


def test_missing_metadata_becomes_nan_and_unknown_columns_are_ignored() -> None:
    row = tokens(curve(metadata={"z_final": 0.25, "other": 1.0})).metadata
    assert np.isnan(row[0])
    assert row[1] == np.float32(0.25)


@pytest.mark.parametrize(
    ("changes", "pointer", "reason"),
    [
        ({"flux": [1.0, np.nan, 1.0, 1.0, 1.0]}, "/flux/1", "not_finite"),
        ({"flux": [1.0, 1.0, 1e300, 1.0, 1.0]}, "/flux/2", "not_finite"),
        ({"flux_err": [1.0, 1.0, 1.0, np.inf, 1.0]}, "/flux_err/3", "not_finite"),
        ({"flux_err": [1.0, 0.0, 1.0, 1.0, 1.0]}, "/flux_err/1", "not_positive"),
        ({"flux_err": [1.0, 1.0, 1.0, 1.0, -2.0]}, "/flux_err/4", "not_positive"),
        ({"flux_err": [1.0, 1.0, 1e-60, 1.0, 1.0]}, "/flux_err/2", "not_positive"),
        ({"mjd": [1.0, 2.0, np.nan, 4.0, 5.0]}, "/mjd/2", "not_finite"),
        ({"mjd": 2_460_000.5 + np.arange(5)}, "/mjd/0", "time_out_of_range"),
        ({"band": ["u", "g", "q", "i", "z"]}, "/band/2", "unknown_band"),
        ({"band": np.array([0, 1, 6, 2, 3])}, "/band/2", "unknown_band"),
        ({"band": np.array([0, -1, 5, 2, 3])}, "/band/1", "unknown_band"),
        ({"flux": [1.0]}, "/flux", "length_mismatch"),
        ({"flux_err": np.ones(6)}, "/flux_err", "length_mismatch"),
        ({"band": ["u"]}, "/band", "length_mismatch"),
        ({"detected": [True]}, "/detected", "length_mismatch"),
    ],
)
def test_every_rule_points_at_the_field(changes: dict[str, Any], pointer: str, reason: str) -> None:
    with pytest.raises(LightCurveError) as error:
        curve(**changes)
    assert (error.value.pointer, error.value.reason) == (pointer, reason)


def test_empty_curve() -> None:
    with pytest.raises(LightCurveError, match="at least one observation") as error:
        LightCurve.from_columns([], [], [], [])
    assert error.value.reason == "empty"


def test_same_time_in_two_bands_is_fine() -> None:
    assert len(curve(2, mjd=[60_000.0, 60_000.0], band=["g", "r"])) == 2


def test_each_band_keeps_its_newest_points() -> None:
    n = 200
    record = curve(n, band=np.r_[np.zeros(150, int), np.ones(50, int)], detected=[False] * n)
    kept = tokens(record, Limits(max_points_per_band=65, pre_trigger_days=None))
    assert kept.points_per_band == (65, 50, 0, 0, 0, 0)
    assert kept.truncated
    np.testing.assert_array_equal(kept.time, np.arange(85, 200) - 85)


def test_the_trigger_survives_the_cut() -> None:
    n = 200
    detected = np.zeros(n, bool)
    detected[[3, 150]] = True
    kept = tokens(curve(n, band=np.full(n, 2), detected=detected), Limits(max_points_per_band=65))
    assert len(kept) == 65
    assert kept.time[0] == 0.0
    assert kept.detected[0]
    assert kept.time[1] == n - 64 - 3  # the newest 64 follow the trigger


def test_each_band_keeps_the_points_around_the_brightest_detection() -> None:
    """A long forced history whose event is over: the newest points would be noise alone."""
    n = 600
    band, day = np.arange(n) % 2, np.arange(n, dtype=np.float64)
    flux = np.where((day > 200) & (day < 260), 1_000.0 - 10.0 * np.abs(day - 230), 1.0)
    record = curve(n, mjd=60_000.0 + day, flux=flux, band=band, detected=flux > 50.0)
    kept = tokens(record, Limits(kept="around_maximum", pre_trigger_days=None))
    assert kept.points_per_band == (65, 65, 0, 0, 0, 0)
    assert kept.detected.sum() == (flux > 50.0).sum()
    assert kept.origin_mjd == 60_230.0 - 64  # of points equally near the newer
    assert tokens(record).detected.sum() < 3  # the trigger alone


def test_the_trigger_survives_the_cut_around_the_maximum() -> None:
    n = 300
    detected = np.zeros(n, bool)
    detected[[3, 200]] = True
    record = curve(n, flux=np.where(np.arange(n) == 200, 9e3, 1.0), band=np.full(n, 2), detected=detected)
    kept = tokens(record, Limits(kept="around_maximum"))
    assert len(kept) == 65
    assert kept.detected.sum() == 2
    assert kept.detected[0]


def test_the_window_opens_thirty_days_before_the_trigger() -> None:
    detected = np.arange(100) >= 60
    kept = tokens(curve(100, detected=detected), Limits(pre_trigger_days=30.0))
    assert len(kept) == 70
    assert tokens(curve(100, detected=detected)).truncated is False


def test_without_a_detection_nothing_is_windowed() -> None:
    assert len(tokens(curve(100, detected=[False] * 100), Limits())) == 100


def test_a_million_points_are_cut_in_order() -> None:
    n = 1_000_000
    record = curve(n, mjd=np.arange(n) * 0.001, band=np.arange(n) % 6)
    kept = tokens(record, Limits())
    assert len(kept) == 6 * 65
    assert (np.diff(kept.time) >= 0).all()


@pytest.mark.parametrize("how", ["newest", "around_maximum"])
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 80))
def test_order_of_the_points_does_not_matter(
    how: Literal["newest", "around_maximum"], seed: int, n: int, limit: int
) -> None:
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "mjd": 60_000 + np.round(rng.uniform(0, 50, n), 1),
        "flux": rng.normal(0, 100, n),
        "flux_err": rng.uniform(1, 20, n),
        "band": rng.integers(0, 6, n),
    }
    _, first = np.unique(np.stack([columns["mjd"], columns["band"]]), axis=1, return_index=True)
    columns = {name: column[first] for name, column in columns.items()}
    shuffle, limits = rng.permutation(len(first)), Limits(max_points_per_band=limit, kept=how)
    a = tokens(LightCurve.from_columns(**columns), limits)
    b = tokens(LightCurve.from_columns(**{name: column[shuffle] for name, column in columns.items()}), limits)
    for name in ("time", "flux", "flux_err", "band", "detected"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert max(a.points_per_band) <= limit


@given(st.floats(-50_000, 50_000))
def test_a_time_shift_does_not_matter(shift: float) -> None:
    days = 60_000.0 + np.array([0.0, 0.5, 3.25, 100.125, 700.0])
    np.testing.assert_allclose(tokens(curve(mjd=days + shift)).time, tokens(curve(mjd=days)).time, atol=1e-5)


def test_padding_appears_only_in_padded() -> None:
    sequences = [tokens(curve(n, metadata={"mwebv": 0.1 * n})) for n in (3, 1, 5)]
    batch = RaggedBatch.collate(sequences)
    assert batch.offsets.tolist() == [0, 3, 4, 9]
    assert len(batch) == 3
    assert len(batch.flux) == 9
    inputs = batch.padded()
    assert set(inputs) == {"flux", "flux_err", "time", "band", "mask", "metadata"}
    assert inputs["flux"].shape == (3, 5)
    assert inputs["mask"].sum(1).tolist() == [3, 1, 5]
    for row, sequence in enumerate(sequences):
        for name in ("flux", "flux_err", "time", "band"):
            np.testing.assert_array_equal(inputs[name][row, : len(sequence)], getattr(sequence, name))
            assert not inputs[name][row, len(sequence) :].any()
    assert {name: str(value.dtype) for name, value in inputs.items()} == {
        "flux": "float32",
        "flux_err": "float32",
        "time": "float32",
        "band": "int64",
        "mask": "bool",
        "metadata": "float32",
    }


def test_padding_to_a_length() -> None:
    batch = RaggedBatch.collate([tokens(curve(3))])
    assert batch.padded(8)["mask"].sum() == 3
    with pytest.raises(ValueError, match="cannot pad"):
        batch.padded(2)


def test_points_are_counted_in_band_order() -> None:
    kept = tokens(curve(4, band=["r", "u", "r", "y"]))
    assert dict(zip(BANDS, kept.points_per_band, strict=True)) == {"u": 1, "g": 0, "r": 2, "i": 0, "z": 0, "Y": 1}


def test_all_64_columns_in_order() -> None:
    values = {name: float(index) for index, name in enumerate(METADATA_COLUMNS)}
    row = featurise(curve(metadata=values), NO_WINDOW, "nJy", METADATA_COLUMNS).metadata
    np.testing.assert_array_equal(row, np.arange(64, dtype=np.float32))


def test_the_origin_of_time_is_told_in_double_precision() -> None:
    assert tokens(curve(3, mjd=60_310.123456789 + np.arange(3))).origin_mjd == 60_310.123456789


def test_a_band_that_the_network_does_not_know_does_not_exist_for_it() -> None:
    record = curve(8, band=["r", "g", "g", "i", "r", "g", "u", "g"])
    kept = featurise(record, NO_WINDOW, "nJy", COLUMNS, bands=("g", "i"))
    assert kept.band.tolist() == [1, 1, 3, 1, 1]  # indices of BANDS, whatever the network knows
    assert kept.points_per_band == (0, 4, 0, 1, 0, 0)
    assert (kept.origin_mjd, kept.time.tolist()) == (60_001.0, [0.0, 1.0, 2.0, 4.0, 6.0])
    assert not kept.truncated  # nothing was cut to the limits


def test_limits_count_what_the_network_knows() -> None:
    record = curve(8, band=["r", "g", "g", "i", "r", "g", "u", "g"], detected=[True, *[False] * 6, True])
    kept = featurise(record, Limits(max_points_per_band=2, pre_trigger_days=3.0), "nJy", COLUMNS, bands=("g",))
    assert kept.time.tolist() == [0.0, 2.0]  # the trigger is the last point: the detection in r is none
    assert kept.truncated


def test_nothing_in_a_known_band_is_a_reason() -> None:
    with pytest.raises(LightCurveError, match=r"network \(g, Y\); not used") as caught:
        featurise(curve(4, band=["r", "i", "r", "u"]), NO_WINDOW, "nJy", COLUMNS, bands=("g", "Y"))
    assert (caught.value.pointer, caught.value.reason) == ("/band", "no_usable_points")


def test_long_limits_keep_long_histories() -> None:
    record = curve(3_000, band=np.full(3_000, 1))
    kept = featurise(record, Limits(max_points_per_band=1024, pre_trigger_days=None), "nJy", (), bands=("g",))
    assert (len(kept), kept.truncated, kept.metadata.shape) == (1024, True, (0,))
    assert RaggedBatch.collate([kept, kept]).padded()["metadata"].shape == (2, 0)


SEEN = Limits(max_points_per_band=6, pre_trigger_days=10.0)
LIMITS = [
    SEEN,
    SEEN.model_copy(update={"kept": "around_maximum"}),
    Limits(max_points_per_band=65, pre_trigger_days=None),
]
BAND_MAPS = [BandMap(BANDS), BandMap(("g", "r")), BandMap(("g", "r"), (3, 1), {"ztf:i": "r", "c": "g"})]


def drawn_curve(rng: np.random.Generator, survey: str) -> LightCurve:
    length = int(rng.integers(1, 60))
    return LightCurve(
        mjd=60_000.0 + rng.integers(0, 40, length) / rng.choice([1.0, 3.0]),  # some at the same time
        flux=rng.normal(0, 100, length).astype(np.float32),
        flux_err=rng.uniform(1, 50, length).astype(np.float32),
        band=rng.integers(0, rng.choice([2, 3, 8]), length),
        detected=rng.random(length) < rng.choice([0.0, 0.3]),
        metadata={"mwebv": 0.5} if rng.random() < 0.3 else {},
        survey=survey,
        unknown_filters={"W1": 2} if rng.random() < 0.1 else {},
    )


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from(LIMITS), st.sampled_from(BAND_MAPS))
def test_the_rows_kept_at_a_look_are_those_of_the_long_way(
    seed: int, in_order: bool, limits: Limits, bands: BandMap
) -> None:
    rng = np.random.default_rng(seed)
    record = drawn_curve(rng, str(rng.choice(["", "ztf"])))
    if in_order:  # else a time that is there twice leaves nothing to look at
        record = replace(record, mjd=np.sort(record.mjd) + 1e-3 * np.arange(len(record)))
    settings: tuple[Any, ...] = (record, limits, "FLUXCAL", ("mwebv", "z_final"), bands)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightcurve, "_contiguous_rows", lambda *_: None)
        try:
            expected = featurise(*settings)
        except LightCurveError as error:
            with pytest.raises(LightCurveError, match=re.escape(str(error))):
                featurise(*settings)
            return
    found = featurise(*settings)
    for field in fields(Tokens):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        assert getattr(ours, "dtype", type(ours)) == getattr(theirs, "dtype", type(theirs)), field.name
        np.testing.assert_array_equal(ours, theirs, field.name)


def test_a_record_without_points_has_none_that_is_usable() -> None:
    nothing = np.empty(0)
    flux = nothing.astype(np.float32)
    with pytest.raises(LightCurveError, match="no observation"):
        tokens(LightCurve(nothing, flux, flux, nothing.astype(np.int64), nothing.astype(np.bool_)))


def test_tokens_keep_nothing_of_the_points_left_out() -> None:
    long = curve(2_000, mjd=60_000.0 + np.arange(2_000) * 0.1, detected=np.arange(2_000) > 1_990)
    cut = tokens(long, Limits(pre_trigger_days=1.0, max_points_per_band=65))
    assert len(cut) < 30
    for name in ("time", "flux", "flux_err", "band", "detected", "metadata"):
        column = getattr(cut, name)
        assert column.base is None or column.base.size == column.size, name


def test_light_curve_with_an_error_near_the_largest_number_has_no_detection() -> None:
    curve = LightCurve.from_columns(mjd=[60000.0], flux=[1e38], flux_err=[3e38], band=["r"])
    assert not curve.detected.any()
