"""Views: the points they keep, invalid views, and their frequencies in training."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.augment import (
    LSST,
    METADATA_BLOCKS,
    NO_METADATA,
    SATURATION,
    ZTF,
    AugmentationConfig,
    View,
    apply_view,
    draw_view,
)

ALL_METADATA = dict.fromkeys(METADATA_COLUMNS, 1.0)


def ladder(detected: tuple[int, ...] = (3, 5, 6, 9), n: int = 12) -> LightCurve:
    """One point per day from MJD 60,000, bands in turn, detected at the given positions."""
    return LightCurve.from_columns(
        mjd=60_000.0 + np.arange(n),
        flux=np.arange(n, dtype=float),
        flux_err=np.ones(n),
        band=np.arange(n) % 6,
        detected=np.isin(np.arange(n), detected),
        metadata=ALL_METADATA,
    )


def days(curve: LightCurve | None) -> list[int]:
    assert curve is not None
    return [int(day) for day in curve.mjd - 60_000]


def test_default_view_shows_everything() -> None:
    curve = ladder()
    visible = apply_view(curve, View())
    assert days(visible) == list(range(12))
    assert visible is not None
    assert visible.metadata == curve.metadata


def test_mta_keeps_the_past_of_the_trigger_and_the_days_after_it() -> None:
    assert days(apply_view(ladder(), View(days_after_trigger=2.0))) == [0, 1, 2, 3, 4, 5]
    assert days(apply_view(ladder(), View(days_after_trigger=0.0))) == [0, 1, 2, 3]


@pytest.mark.parametrize(("detections", "last"), [(1, 3), (2, 5), (3, 6), (4, 9), (99, 9)])
def test_an_alert_ends_at_its_detection(detections: int, last: int) -> None:
    assert days(apply_view(ladder(), View(detections=detections))) == list(range(last + 1))


def test_points_may_come_in_any_order() -> None:
    curve = ladder()
    order = np.random.default_rng(0).permutation(len(curve))
    mixed = LightCurve.from_columns(
        curve.mjd[order], curve.flux[order], curve.flux_err[order], curve.band[order], curve.detected[order]
    )
    view = View(detections=2, history_days=4.0)
    assert sorted(days(apply_view(mixed, view))) == days(apply_view(curve, view))


def test_the_trigger_is_the_first_detection_in_the_visible_bands() -> None:
    # g, r are indices 1, 2: the detections at 3, 5, 6, 9 are in i, Y, u, i.
    assert apply_view(ladder(), View(bands=("g", "r"))) is None
    assert days(apply_view(ladder((1, 8)), View(bands=("r",), days_after_trigger=0.0))) == [2, 8]


def test_forced_photometry_and_old_history_are_left_out() -> None:
    assert days(apply_view(ladder(), View(detected_only=True))) == [3, 5, 6, 9]
    assert days(apply_view(ladder(), View(history_days=3.0))) == [8, 9, 10, 11]
    assert days(apply_view(ladder(), View(history_days=3.0, detected_only=True))) == [6, 9]
    assert apply_view(ladder((3,)), View(history_days=3.0)) is None


def test_nothing_detected_is_no_alert() -> None:
    assert apply_view(ladder(()), View()) is None


def test_metadata_blocks_cover_every_column_once_they_are_all_missing() -> None:
    assert frozenset().union(*METADATA_BLOCKS.values()) == set(METADATA_COLUMNS)
    visible = apply_view(ladder(), View(missing=NO_METADATA))
    assert visible is not None
    assert visible.metadata == {}
    without_redshift = apply_view(ladder(), View(missing=("redshift",)))
    assert without_redshift is not None
    assert not {"z_final", "z_final_err", "hostgal_zspec", "hostgal2_zspec"} & without_redshift.metadata.keys()
    assert "hostgal_zphot" in without_redshift.metadata


def test_survey_views_lack_what_the_surveys_lack() -> None:
    curve = ladder((1, 2, 3, 8))
    lsst, ztf = apply_view(curve, LSST), apply_view(curve, ZTF)
    assert lsst is not None
    assert ztf is not None
    assert len(lsst) == len(curve)
    assert not lsst.metadata
    assert days(ztf) == [1, 2, 8]
    assert not ztf.metadata


def test_a_shallower_survey_sees_brighter_objects_at_the_same_signal_to_noise() -> None:
    curve = ladder((1, 2, 3, 8))
    visible = apply_view(curve, View(brightness=36.0))
    assert visible is not None
    np.testing.assert_allclose(visible.flux, 36 * curve.flux, rtol=1e-6)
    np.testing.assert_allclose(visible.flux_err, 36 * curve.flux_err, rtol=1e-6)
    assert visible.flux.dtype == np.float32


def test_nothing_is_made_brighter_than_saturation_or_fainter_than_it_was() -> None:
    for peak, expected in ((SATURATION / 2, SATURATION), (2 * SATURATION, 2 * SATURATION)):
        curve = LightCurve.from_columns([60_000.0], [-peak], [1.0], ["r"], [True])
        visible = apply_view(curve, View(brightness=36.0))
        assert visible is not None
        assert -visible.flux[0] == pytest.approx(expected)


def test_ztf_views_cover_their_range_of_brightness() -> None:
    rng, config = np.random.default_rng(0), AugmentationConfig(as_ztf=1.0, ztf_brightness=(15.0, 60.0))
    drawn = [draw_view(ladder(), config, rng).brightness for _ in range(500)]
    assert 15 <= min(drawn) < 16
    assert 57 < max(drawn) <= 60
    assert np.median(drawn) == pytest.approx(30, abs=3)
    assert draw_view(ladder(), AugmentationConfig(as_ztf=1.0), rng).brightness == 1.0


def test_no_augmentation_draws_the_whole_curve() -> None:
    rng = np.random.default_rng(0)
    assert draw_view(ladder(), AugmentationConfig(mta_days=()), rng) == View()


def test_mta_days_are_drawn_evenly() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(draw_view(ladder(), AugmentationConfig(), rng).days_after_trigger for _ in range(3000))
    assert set(drawn) == {8.0, 128.0, 2048.0}
    assert all(900 < count < 1100 for count in drawn.values())


def test_alert_draws_are_log_uniform_and_reach_both_ends() -> None:
    rng, config = np.random.default_rng(0), AugmentationConfig(at_detection=1.0)
    drawn = Counter(draw_view(ladder(), config, rng).detections for _ in range(2000))
    assert set(drawn) == {1, 2, 3, 4}
    assert drawn[1] > drawn[2] > drawn[4]


def test_absences_are_drawn_at_their_rates() -> None:
    config = AugmentationConfig(
        as_ztf=0.1, g_r_only=0.2, detected_only=0.2, short_history=0.3, no_metadata=0.3, no_host=0.1, no_redshift=0.2
    )
    rng, n = np.random.default_rng(0), 4000
    views = [draw_view(ladder(), config, rng) for _ in range(n)]

    def share(count: int) -> float:
        return count / n

    no_metadata = share(sum(view.missing == NO_METADATA for view in views))
    assert no_metadata == pytest.approx(0.1 + 0.9 * 0.3, abs=0.03)
    assert share(sum(view.bands != BANDS for view in views)) == pytest.approx(0.1 + 0.9 * 0.2, abs=0.03)
    assert share(sum(view.missing == ("redshift",) for view in views)) == pytest.approx(0.9 * 0.7 * 0.2, abs=0.03)
    with_i = sum(view.bands == ("g", "r", "i") for view in views) / sum(view.bands != BANDS for view in views)
    assert with_i == pytest.approx(config.ztf_with_i, abs=0.04)


@given(seed=st.integers(0, 2**32), at_detection=st.floats(0, 1), as_ztf=st.floats(0, 1))
def test_whatever_is_drawn_only_removes(seed: int, at_detection: float, as_ztf: float) -> None:
    curve = ladder((2, 3, 5, 9))
    config = AugmentationConfig(at_detection=at_detection, as_ztf=as_ztf, detected_only=0.5, short_history=0.5)
    view = draw_view(curve, config, np.random.default_rng(seed))
    visible = apply_view(curve, view)
    if visible is not None:
        assert visible.detected.any()
        assert set(days(visible)) <= set(days(curve))
        assert visible.metadata.items() <= curve.metadata.items()


def test_a_draw_costs_the_same_random_numbers_whatever_comes_out() -> None:
    ztf, plain = np.random.default_rng(1), np.random.default_rng(1)
    draw_view(ladder(), AugmentationConfig(as_ztf=1.0), ztf)
    draw_view(ladder(), AugmentationConfig(at_detection=1.0), plain)
    assert ztf.random() == plain.random()
