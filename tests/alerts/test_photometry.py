import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.alerts import photometry
from nightjar_alerts.alerts.photometry import Photometry
from nightjar_alerts.alerts.surveys import lsst, ztf
from nightjar_alerts.models.photometry import SECONDS_PER_DAY, tai_minus_utc

DAY = SECONDS_PER_DAY


def merge(parts: list[photometry.Photometry]) -> photometry.Photometry:
    return photometry.merge(photometry.concatenate(parts))


def rubin(*rows: tuple[Any, ...], detection: bool = False) -> Photometry:
    """Rows of (mjd, band, flux, error, visit, withdrawn)."""
    roles = ("time", "band", "flux", "flux_err", "visit", "withdrawn")
    columns = {role: [row[i] for row in rows] for i, role in enumerate(roles)}
    return lsst.rubin(columns, detection, lsst.SURVEY.filters)


def candidates(*rows: tuple[Any, ...]) -> Photometry:
    """Rows of (jd, fid, magpsf, sigmapsf, isdiffpos)."""
    roles = ("time", "band", "flux", "flux_err", "sign")
    columns = {role: [row[i] for row in rows] for i, role in enumerate(roles)}
    return ztf.magnitudes(columns, True, ztf.SURVEY.filters)


def forced(*rows: tuple[Any, ...]) -> Photometry:
    """Rows of (jd, fid, forcediffimflux, forcediffimfluxunc, magzpsci, procstatus, exptime)."""
    roles = ("time", "band", "flux", "flux_err", "zero_point", "status", "exposure")
    columns = {role: [row[i] for row in rows] for i, role in enumerate(roles)}
    return ztf.forced(columns, False, ztf.SURVEY.filters)


def test_zero_magnitude_is_3631_jansky() -> None:
    flux = candidates((2460000.5, 1, 2.5, 0.1, "t")).flux[0]
    assert flux == pytest.approx(363.1e9, rel=1e-3)


def test_magnitudes_become_signed_flux() -> None:
    rows = candidates(
        (2460000.5, 1, 18.9, 0.1, "t"),
        (2460001.5, 2, 18.9, 0.1, "1"),
        (2460002.5, 3, 18.9, 0.1, "f"),
        (2460003.5, 1, 18.9, 0.1, "0"),
    )
    np.testing.assert_allclose(rows.flux, np.array([1, 1, -1, -1]) * 1e5)
    np.testing.assert_allclose(rows.flux_err, 1e5 * 0.1 * 0.4 * math.log(10))
    assert rows.band.tolist() == [1, 2, 3, 1]
    assert rows.detected.all()


@pytest.mark.parametrize(
    "row", [(2460000.5, 1, None, None, None), (2460000.5, 1, 18.0, 0.1, None), (2460000.5, 1, 18.0, 0.1, "x")]
)
def test_upper_limits_are_neither_points_nor_detections(row: tuple[Any, ...]) -> None:
    rows = candidates(row)
    assert not photometry.usable(rows).any()
    assert not rows.detected.any()


def test_counts_become_flux_by_their_zero_point() -> None:
    rows = forced((2460000.5, 1, 100.0, 10.0, 26.4, "0", 30.0), (2460001.5, 1, -50.0, 10.0, 26.4, "0", None))
    np.testing.assert_allclose(rows.flux, [1e4, -5e3])
    np.testing.assert_allclose(rows.flux_err, 1e3)
    assert not rows.detected.any()


BAD_FORCED = [
    (-99999.0, -99999.0, 26.4, "0"),
    (0.0, 10.0, 26.4, "0"),
    (100.0, 10.0, None, "0"),
    (100.0, 0.0, 26.4, "0"),
    (100.0, None, 26.4, "0"),
    (None, 10.0, 26.4, "0"),
    (100.0, 10.0, 26.4, "56"),
    (100.0, 10.0, 26.4, None),
    (100.0, 10.0, -1e6, "0"),
    (math.inf, 10.0, 26.4, "0"),
]


@pytest.mark.parametrize("row", BAD_FORCED)
def test_bad_forced_photometry_is_dropped(row: tuple[Any, ...]) -> None:
    assert not photometry.usable(forced((2460000.5, 1, *row, 30.0))).any()


def test_ztf_time_is_moved_to_mid_exposure_in_tai() -> None:
    start = 2460000.5 - 2400000.5
    mjd = forced((2460000.5, 1, 1.0, 1.0, 26.0, "0", 30.0), (2460000.5, 2, 1.0, 1.0, 26.0, "0", 300.0)).mjd
    np.testing.assert_allclose((mjd - start) * DAY, [37 + 15, 37 + 150], atol=1e-5)
    np.testing.assert_allclose((candidates((2460000.5, 1, 18.0, 0.1, "t")).mjd - start) * DAY, 37 + 15, atol=1e-5)


def test_is_mjd_other_times_are_none() -> None:
    times = np.array([15_019.9, 15_020.0, 60_000.0, 2_460_000.5, np.nan])
    assert photometry.is_mjd(times).tolist() == [False, True, True, False, False]


def test_leap_seconds() -> None:
    days = np.array([50000.0, 56108.9, 56109.0, 57203.9, 57204.0, 57753.9, 57754.0, 61000.0])
    assert tai_minus_utc(days).tolist() == [34, 34, 35, 35, 36, 36, 37, 37]


def test_withdrawn_rows_are_no_points_and_no_detections() -> None:
    rows = rubin((61000.0, "g", 10.0, 1.0, 5, None), (61001.0, "g", 10.0, 1.0, 6, 61002.0), detection=True)
    assert photometry.usable(rows).tolist() == [True, False]
    assert rows.detected.tolist() == [True, False]


UNUSABLE = {
    "no flux": (61000.0, "g", None, 1.0, 1, None),
    "flux not a number": (61000.0, "g", math.nan, 1.0, 1, None),
    "flux beyond single precision": (61000.0, "g", 1e39, 1.0, 1, None),
    "no error": (61000.0, "g", 1.0, None, 1, None),
    "zero error": (61000.0, "g", 1.0, 0.0, 1, None),
    "negative error": (61000.0, "g", 1.0, -1.0, 1, None),
    "error below single precision": (61000.0, "g", 1.0, 1e-60, 1, None),
    "no time": (None, "g", 1.0, 1.0, 1, None),
    "Julian date": (2461000.5, "g", 1.0, 1.0, 1, None),
    "seconds": (1480360995.0, "g", 1.0, 1.0, 1, None),
    "no band": (61000.0, None, 1.0, 1.0, 1, None),
    "unknown band": (61000.0, "white", 1.0, 1.0, 1, None),
}


@pytest.mark.parametrize("row", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_rows_are_dropped(row: tuple[Any, ...]) -> None:
    good = (61001.0, "r", 2.0, 1.0, 2, None)
    assert merge([rubin(row, good)]).mjd.tolist() == [61001.0]
    assert len(merge([rubin(row)])) == 0


def test_forced_flux_is_preferred_and_keeps_the_detection() -> None:
    point = (61000.0, "y", 100.0, 5.0, 77, None)
    merged = merge([rubin((61000.0, "Y", 90.0, 2.0, 77, None)), rubin(point, detection=True)])
    assert (merged.flux.tolist(), merged.flux_err.tolist(), merged.detected.tolist()) == ([90.0], [2.0], [True])
    assert merged.band.tolist() == [5]


def test_a_detection_stands_in_for_forced_photometry_without_flux() -> None:
    merged = merge(
        [rubin((61000.0, "g", None, 2.0, 77, None)), rubin((61000.0, "g", 100.0, 5.0, 77, None), detection=True)]
    )
    assert (merged.flux.tolist(), merged.detected.tolist()) == ([100.0], [True])


def test_a_detection_without_flux_still_marks_the_visit() -> None:
    merged = merge(
        [rubin((61000.0, "g", 90.0, 2.0, 77, None)), rubin((61000.0, "g", None, None, 77, None), detection=True)]
    )
    assert (merged.flux.tolist(), merged.detected.tolist()) == ([90.0], [True])


def test_a_withdrawn_detection_does_not_mark_the_visit() -> None:
    merged = merge(
        [rubin((61000.0, "g", 90.0, 2.0, 77, None)), rubin((61000.0, "g", 99.0, 1.0, 77, 61001.0), detection=True)]
    )
    assert merged.detected.tolist() == [False]


def test_the_alerts_own_detection_comes_before_its_history() -> None:
    own, old = (61000.0, "g", 100.0, 5.0, 77, None), (61000.0, "g", 50.0, 5.0, 77, None)
    assert merge([rubin(own, detection=True), rubin(old, detection=True)]).flux.tolist() == [100.0]


SAME = {
    "same time, no visit": (0.0, None, None, 1),
    "same time, one visit unknown": (0.0, 7, 0, 1),
    "times that differ in rounding": (1e-7, None, None, 1),
    "a minute apart in one visit": (60 / DAY, 7, 7, 1),
    "a minute apart in two visits": (60 / DAY, 7, 8, 2),
    "a minute apart, no visits": (60 / DAY, 0, 0, 2),
    "a minute apart, -1 for no visit": (60 / DAY, -1, -1, 2),
    "a day apart under one visit number": (1.0, 7, 7, 2),
}


@pytest.mark.parametrize(("gap", "first", "second", "points"), SAME.values(), ids=SAME.keys())
def test_rows_of_one_exposure_are_merged(gap: float, first: int | None, second: int | None, points: int) -> None:
    rows = rubin((61000.0, "g", 1.0, 1.0, first, None), (61000.0 + gap, "g", 2.0, 1.0, second, None))
    assert len(merge([rows])) == points


def test_bands_are_never_merged() -> None:
    rows = rubin((61000.0, "g", 1.0, 1.0, 7, None), (61000.0, "r", 2.0, 1.0, 7, None))
    assert len(merge([rows])) == 2


def test_nothing_merges_to_nothing() -> None:
    assert len(merge([rubin(), rubin(detection=True)])) == 0


numbers = st.none() | st.floats() | st.floats(60000, 60003) | st.integers(-(2**63), 2**63 - 1)
rows_of_anything = st.lists(
    st.tuples(
        numbers, st.sampled_from(["g", "r", "y", "?", "", None]), numbers, numbers,
        st.sampled_from([None, 0, 5, -(2**63)]), st.none() | st.floats(),
    ),
    max_size=8,
)  # fmt: skip


@given(rows_of_anything, rows_of_anything)
def test_merged_rows_are_usable_and_distinct(first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]) -> None:
    merged = merge([rubin(*first), rubin(*second, detection=True)])
    assert photometry.usable(merged).all()
    assert len(set(zip(merged.mjd.tolist(), merged.band.tolist(), strict=True))) == len(merged)


@given(
    st.lists(
        st.tuples(numbers, st.integers(-1, 5), numbers, numbers, st.sampled_from(["t", "0", None, "z"])), max_size=6
    )
)
def test_any_ztf_row_is_converted_without_complaint(rows: list[tuple[Any, ...]]) -> None:
    merged = merge([candidates(*rows), forced(*((*row[:4], 26.0, row[4], None) for row in rows))])
    assert photometry.usable(merged).all()
