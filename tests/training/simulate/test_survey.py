"""Cadence, noise, detection rules, distances and units of the simulator."""

import numpy as np
import pytest

from nightjar_alerts.models.photometry import njy_of_magnitude
from nightjar_alerts.training.simulate import cadence, photometry
from nightjar_alerts.training.simulate.cadence import Visits


@pytest.fixture(scope="module")
def visits() -> Visits:
    return cadence.visits(np.random.default_rng(1), 200)


def flat_visits(mjd: list[float], object_index: list[int] | None = None) -> Visits:
    n = len(mjd)
    object_indices = np.array(object_index or [0] * n)
    return Visits(int(object_indices.max()) + 1, object_indices, np.array(mjd), np.full(n, 2), np.full(n, 24.0))


def test_a_hot_body_is_blue_and_a_cool_one_red() -> None:
    colours = photometry.colours_of_temperature(np.array([20_000.0, 3_500.0]))
    assert colours[0, 1] < 0 < colours[1, 1]
    assert colours[0, 4] > 0 > colours[1, 4]
    np.testing.assert_array_equal(colours[:, 2], 0.0)


def test_distances_agree_with_the_closed_form() -> None:
    """Luminosity distances for H0 70, Omega_m 0.3: 460.3, 2832.9 and 6607.7 Mpc at z 0.1, 0.5 and 1."""
    modulus = photometry.distance_modulus(np.array([0.1, 0.5, 1.0]))
    np.testing.assert_allclose(10.0 ** (modulus / 5.0 - 5.0), [460.3, 2832.9, 6607.7], rtol=1e-3)


def test_the_volume_is_the_integral_of_its_element() -> None:
    grid = np.linspace(0.0, 1.0, 2001)
    element = photometry.volume_element(grid)
    integral = np.sum(0.5 * (element[1:] + element[:-1]) * np.diff(grid))
    sphere = 4.0 / 3.0 * np.pi * photometry.comoving_distance(np.array([1.0]))[0] ** 3
    assert integral == pytest.approx(sphere, rel=1e-4)


def test_nearby_redshifts_fill_the_volume() -> None:
    """At low redshift the number inside z grows as z cubed."""
    z = photometry.redshifts(np.random.default_rng(0), 40_000, 0.0, 0.05, 1.0)
    assert z.min() >= 0.0
    assert z.max() <= 0.05
    assert (z < 0.025).mean() == pytest.approx(0.125, abs=0.01)


def test_a_rate_that_rises_pushes_events_away() -> None:
    means = [photometry.redshifts(np.random.default_rng(0), 5_000, 0.01, 2.0, index).mean() for index in (0.0, 3.0)]
    assert means[0] < means[1]


def test_dust_is_thicker_inside_the_galaxy() -> None:
    outside, inside = (photometry.milky_way_dust(np.random.default_rng(0), 5_000, g) for g in (False, True))
    assert 0.01 < np.median(outside) < 0.03 < np.median(inside) < 0.1
    assert min(outside.min(), inside.min()) > 0.0


def test_visits_are_sorted_and_distinct(visits: Visits) -> None:
    assert (np.diff(visits.object_index) >= 0).all()
    assert (np.diff(visits.mjd)[np.diff(visits.object_index) == 0] >= 0).all()
    keys = np.stack([visits.object_index.astype(float), visits.mjd, visits.band.astype(float)])
    assert np.unique(keys, axis=1).shape[1] == len(visits.mjd)


def test_the_wide_survey_visits_a_field_about_80_times_a_year(visits: Visits) -> None:
    per_year = np.bincount(visits.object_index, minlength=200) / (cadence.SURVEY_NIGHTS / 365.25)
    assert 60 < np.median(per_year) < 100
    assert (per_year > 250).mean() == pytest.approx(cadence.DEEP_FRACTION, abs=0.06)


def test_bands_share_the_visits_as_stated(visits: Visits) -> None:
    share = np.bincount(visits.band, minlength=6) / len(visits.band)
    assert cadence.BAND_SHARE.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(share, cadence.BAND_SHARE, atol=0.05)
    assert share[0] < share[1] < share[2:].min()


def test_the_u_filter_is_seen_about_new_moon_only(visits: Visits) -> None:
    """Within a wide field, the phases of the moon at its u visits crowd into half the month, those in z do not."""

    def crowding(band: int) -> float:
        lengths = []
        for object_index in range(visits.n):
            phase = visits.mjd[(visits.object_index == object_index) & (visits.band == band)] / cadence.MOON_PERIOD
            if len(phase) > 5:
                lengths.append(abs(np.exp(2j * np.pi * phase).mean()))
        return float(np.median(lengths))

    assert crowding(0) > 0.6 > 0.4 > crowding(4)


@pytest.mark.parametrize("deep", [0.0, 1.0])
def test_a_survey_may_be_all_wide_or_all_deep(deep: float) -> None:
    visits = cadence.visits(np.random.default_rng(2), 30, deep_fraction=deep)
    per_year = np.bincount(visits.object_index, minlength=30) / (cadence.SURVEY_NIGHTS / 365.25)
    assert ((per_year > 200) == (deep == 1.0)).all()


def test_fields_are_busy_and_at_rest_in_turn() -> None:
    visits = cadence.visits(np.random.default_rng(4), 100, deep_fraction=0.0)
    year = ((visits.mjd - cadence.SURVEY_START) // 183).astype(int)
    count = np.zeros((100, year.max() + 1))
    np.add.at(count, (visits.object_index, year), 1)
    assert np.median(count.max(axis=1)) > 2.0 * np.median(count.mean(axis=1))


def test_fields_are_seen_in_seasons_and_nights_in_pairs(visits: Visits) -> None:
    for object_index in range(20):
        mjd = visits.mjd[visits.object_index == object_index]
        assert 120.0 < np.diff(mjd).max() < 360.0  # the months behind the Sun, longer in a year of rest
        gaps = np.diff(mjd)
        assert (gaps < 0.1).mean() > 0.3


def test_a_window_is_kept_to_the_night() -> None:
    start = np.array([61_000.0, 61_100.0])
    visits = cadence.visits(np.random.default_rng(3), 2, start, start + 300.0)
    assert (visits.mjd >= start[visits.object_index]).all()
    assert (visits.mjd <= start[visits.object_index] + 301.0).all()


def test_a_source_at_the_depth_has_signal_to_noise_five() -> None:
    n = 20_000
    visits = Visits(1, np.zeros(n, np.int64), np.arange(n, dtype=float), np.full(n, 2), np.full(n, 24.5))
    true = njy_of_magnitude(visits.depth)
    flux, error = cadence.observe(np.random.default_rng(0), visits, true, np.zeros(n))
    assert np.median(true / error) == pytest.approx(5.0, rel=0.05)
    assert np.std((flux - true) / error) == pytest.approx(1.0, abs=0.05)


def test_light_that_a_difference_hides_still_makes_noise() -> None:
    visits = flat_visits([60_000.0] * 4)
    steady = np.array([0.0, 1e4, 1e5, 1e6])
    _, error = cadence.observe(np.random.default_rng(0), visits, np.zeros(4), steady)
    assert (np.diff(error) > 0).all()
    assert error[3] > 0.005 * steady[3]


def test_detection_follows_signal_to_noise_of_either_sign() -> None:
    rng, n = np.random.default_rng(0), 4_000
    chance = [cadence.detect(rng, np.full(n, snr), np.ones(n)).mean() for snr in (0.0, 2.9, 4.0, 5.0, 7.0, 20.0)]
    assert chance[0] == chance[1] == 0.0
    assert 0.2 < chance[2] < chance[3] < chance[4]
    assert chance[3] == pytest.approx(0.5, abs=0.03)
    assert chance[5] == 1.0
    assert cadence.detect(rng, np.full(n, -20.0), np.ones(n)).all()


def test_history_runs_from_30_days_before_the_first_detection_to_the_last() -> None:
    visits = flat_visits([0.0, 19.9, 20.1, 50.0, 60.0, 70.0, 80.0])
    inside, trigger = cadence.history(visits, np.array([False, False, False, True, False, True, False]))
    assert inside.tolist() == [False, False, True, True, True, True, False]
    assert trigger.tolist() == [50.0]


def test_one_detection_is_not_an_object() -> None:
    visits = flat_visits([0.0, 1.0, 0.0, 1.0, 0.0], object_index=[0, 0, 1, 1, 2])
    inside, trigger = cadence.history(visits, np.array([True, False, True, True, False]))
    assert inside.tolist() == [False, False, True, True, False]
    assert trigger.tolist() == [0.0, 0.0, np.inf]
