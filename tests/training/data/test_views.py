"""Re-observation: views keep the properties of origin and cadence."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.training.data.reobserve.origins import (
    Colours,
    SpectralSeries,
    event_of,
    fit_process,
    nightly,
    no_templates,
    read_colours,
)
from nightjar_alerts.training.data.reobserve.patterns import build_library
from nightjar_alerts.training.data.reobserve.pulses import pulse_of
from nightjar_alerts.training.data.reobserve.views import (
    ViewRules,
    find_origins,
    make_views,
    survey_weights,
    view,
    view_of_event,
)
from nightjar_alerts.training.data.sample import LABELS, Sample, collect
from support.surveys import bump, pulsator

EXACT_ERRORS = ViewRules(log_error_ratio=(0.0, 1e-9), of_flux=0.0, outlier_fraction=0.0)


def many(number: int = 30) -> Sample:
    deep = [bump(f"D{i}", source="deep", seed=i, bands="griz", peak=3_000.0, noise=60.0, z=0.4) for i in range(number)]
    wide = [bump(f"W{i}", source="wide", seed=99 + i, bands="gr", points=60, z=0.05) for i in range(number)]
    stars = [pulsator(f"P{i}", seed=i) for i in range(number)]
    rows = [*deep, *wide, *stars]
    return collect(rows, [row.object_id for row in rows], [0] * len(rows))


def test_process_fits_its_points_and_is_uncertain_between_them() -> None:
    days = np.array([0.0, 2.0, 4.0, 6.0, 30.0, 32.0])
    wave = np.full(6, np.log(622.0))
    flux = 100.0 * np.sin(days / 9.0)
    process = fit_process(days, wave, flux, np.full(6, 0.5))
    np.testing.assert_allclose(process.expected(days, wave), flux, atol=4.0)
    assert process.spread(np.array([18.0]), wave[:1])[0] > 3 * process.spread(np.array([3.0]), wave[:1])[0]


def test_process_draw_scatter_is_the_posterior_or_its_limit() -> None:
    days, wave = np.array([0.0, 40.0]), np.full(2, 6.4)
    process = fit_process(days, wave, np.array([10.0, 20.0]), np.full(2, 0.1))
    rng = np.random.default_rng(0)
    at, there = np.array([20.0]), np.array([6.4])
    free = np.array([process.draw(at, there, rng, np.array([1e9]))[0][0] for _ in range(400)])
    bounded = np.array([process.draw(at, there, rng, np.array([0.2]))[0][0] for _ in range(400)])
    assert free.std() == pytest.approx(process.spread(at, there)[0], rel=0.15)
    assert bounded.std() == pytest.approx(0.2, rel=0.15)


def test_fit_process_with_non_finite_points_raises() -> None:
    with pytest.raises(ValueError, match="finite"):
        fit_process(np.zeros(2), np.zeros(2), np.array([1.0, np.nan]), np.ones(2))


def test_points_of_a_night_and_filter_are_averaged_by_their_errors() -> None:
    mjd = np.array([1.01, 1.02, 1.03])
    _, wave, flux, error = nightly(mjd, np.array([622.0, 622.0, 480.0]), np.array([1.0, 3.0, 9.0]), np.ones(3))
    order = np.argsort(wave)
    np.testing.assert_allclose(flux[order], [9.0, 2.0])
    np.testing.assert_allclose(error[order], [1.0, np.sqrt(0.5)])


def test_event_of_a_poorly_sampled_object_is_none() -> None:
    sky = collect([bump("A", points=6), bump("B", points=60, bands="r"), bump("C", points=60)])
    assert event_of(sky, 0) is None
    assert event_of(sky, 1) is None  # one band tells no colour
    assert event_of(sky, 2) is not None


def test_view_of_event_scales_flux_and_time_with_redshift() -> None:
    sky = many()
    library = build_library(sky)
    event = event_of(sky, 0)
    assert event is not None
    rng = np.random.default_rng(3)
    drawn = [view_of_event(event, library.draw("wide", rng), no_templates(), rng) for _ in range(60)]
    views = [noiseless for noiseless in drawn if noiseless is not None and np.isfinite(noiseless.z)]
    assert views
    for noiseless in views:
        assert 0.3 < (1 + noiseless.z) / (1 + event.z) < 1.46
        nearer = noiseless.z < event.z
        assert (noiseless.flux_K.max() > 0.8 * event.peak_flux) == nearer or abs(noiseless.z - event.z) < 0.1


def test_flux_is_zero_long_before_and_fades_long_after() -> None:
    sky = many()
    event = event_of(sky, 0)
    assert event is not None
    library = build_library(sky)
    rng = np.random.default_rng(5)
    cadence = library.draw("deep", rng)
    noiseless = None
    while noiseless is None:
        noiseless = view_of_event(event, cadence, no_templates(), rng)
    assert (noiseless.flux_K >= 0).all()


def test_view_has_bands_errors_and_times_of_its_cadence() -> None:
    sky = many()
    library = build_library(sky)
    event = event_of(sky, 0)
    assert event is not None
    rng = np.random.default_rng(1)
    sky_object = None
    while sky_object is None:
        cadence = library.draw("wide", rng)
        sky_object = view(event, cadence, library, no_templates(), EXACT_ERRORS, rng)
    assert set(sky_object.band.tolist()) <= {1, 2}
    assert np.isin(sky_object.mjd, cadence.mjd).all()
    assert np.median(sky_object.flux_err) == pytest.approx(150.0, rel=0.05)  # more only where brighter than any there
    assert sky_object.source == "wide"


def test_pulse_of_recovers_the_shape() -> None:
    sky = collect([pulsator("P", points=200)])
    pulse = pulse_of(sky, 0, np.random.default_rng(0))
    assert pulse is not None
    phase = np.linspace(0, 1, 50, endpoint=False)
    true = 30_000.0 + 8_000.0 * np.where(phase < 0.2, phase / 0.2, (1 - phase) / 0.8)
    folded = 10 ** (-0.4 * (pulse.magnitude(phase, np.full(50, 1, dtype=np.int8)) - 31.4))
    np.testing.assert_allclose(folded, true, rtol=0.06)


def test_pulse_of_a_wrong_period_is_none() -> None:
    row = pulsator("P", points=200)
    row.period = 0.731
    assert pulse_of(collect([row]), 0, np.random.default_rng(0)) is None


def test_make_views_keeps_class_group_and_part_and_is_reproducible() -> None:
    sky = many()
    origins, library = find_origins(sky, 0), build_library(sky)
    one = make_views(origins, library, 60, seed=4)
    again = make_views(origins, library, 60, seed=4)
    np.testing.assert_array_equal(one.flux, again.flux)
    assert set(one.label.tolist()) == {LABELS["Ia"], LABELS["RR Lyrae"]}
    assert set(one.group.tolist()) <= set(sky.group.tolist())
    assert (one.quality == "view").all()
    assert set(one.raw_label[one.label == LABELS["RR Lyrae"]].tolist()) == {"var"}
    assert len(set(one.source.tolist())) > 1


def test_survey_weights_of_single_band_surveys_are_smaller() -> None:
    sky = collect([bump("A", source="gaia_alerts", points=20), bump("B", source="spcc", points=20)])
    weights = survey_weights(build_library(sky))
    assert weights["gaia_alerts"] < weights["spcc"]


def test_cadence_is_tiled_only_for_surveys_with_detections_only() -> None:
    bright = bump("A", source="alerts", points=60)
    keep = bright.detected
    for name in ("mjd", "flux", "flux_err", "band", "detected", "foreign", "wavelength"):
        setattr(bright, name, getattr(bright, name)[keep])
    library = build_library(collect([bright, bump("B", source="forced", points=60)]))
    assert library.only_detections == {"alerts": True, "forced": False}
    rng = np.random.default_rng(0)
    assert np.ptp(library.draw("alerts", rng).mjd) > 600
    assert np.ptp(library.draw("forced", rng).mjd) < 110


def test_colours_with_a_template_extrapolate_to_other_wavelengths(tmp_path: Path) -> None:
    assert read_colours(tmp_path).series == {}
    days, wave = np.array([-10.0, 50.0]), np.log(np.array([300.0, 600.0, 1000.0]))
    red = SpectralSeries(days, wave, np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]]))
    colour = Colours({LABELS["Ia"]: (red,)}).draw(LABELS["Ia"], np.random.default_rng(0))
    ratio = colour.log_ratio(np.array([50.0]), np.log(np.array([600.0])), np.log(np.array([1000.0])))
    assert ratio[0] == pytest.approx(2.0)
    slope = no_templates().draw(LABELS["uLens"], np.random.default_rng(0))
    assert np.isfinite(slope.log_ratio(np.zeros(1), wave[:1], wave[1:2])).all()


def test_view_of_a_nucleus_is_nearly_constant_of_either_sign() -> None:
    rng = np.random.default_rng(2)
    mjd = np.sort(rng.uniform(59_000.0, 60_000.0, 110))
    slow = 3_000.0 * np.sin(mjd / 150.0)
    nuclei = [
        replace(
            bump(f"N{i}", source="years", label=LABELS["AGN"], points=110, bands="gri"),
            mjd=mjd,
            flux=slow * (1 + 0.1 * i) + rng.normal(0.0, 40.0, 110),
            flux_err=np.full(110, 40.0),
            detected=np.ones(110, np.bool_),
        )
        for i in range(4)
    ]
    weeks = [bump(f"W{i}", source="weeks", seed=i, bands="gri", points=60, noise=40.0) for i in range(10)]
    for row in weeks:
        row.mjd = 60_000.0 + (row.mjd - 60_000.0) / 8.0
        row.total_flux = row.flux + 50_000.0
    rows = [*nuclei, *weeks]
    sky = collect(rows, [row.object_id for row in rows], [0] * len(rows))
    event, library = event_of(sky, 0), build_library(sky)
    assert event is not None
    assert event.steady
    drawn = [view_of_event(event, library.draw("weeks", rng), no_templates(), rng) for _ in range(60)]
    views = [one for one in drawn if one is not None]
    assert len(views) > 20
    one_sided = [bool((one.flux_K > 0).all() or (one.flux_K < 0).all()) for one in views]
    assert np.mean(one_sided) > 0.5
    assert {bool(one.flux_K.mean() > 0) for one in views} == {False, True}
    assert all((one.light_K >= np.abs(one.flux_K)).all() for one in views)
    assert all(one.total_K is one.light_K for one in views)  # this survey's errors grow with all light
