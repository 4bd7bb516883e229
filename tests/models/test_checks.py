"""Warnings about units and total flux, on made-up light curves and, where they are present, on real ones."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.checks import kind_of_source, looks_like_total_flux, photometry_warnings
from nightjar_alerts.tables import TableOptions, read_table
from support.shared import needs_shared, shared

DAYS: Any = 60_000.0 + 4.0 * np.arange(40)


def supernova(scale: float = 1.0) -> tuple[Any, Any, Any]:
    """Forced photometry of a supernova with a peak of 20 mag, at a depth of 22."""
    phase = DAYS - DAYS[10]
    flux = 36_000.0 * np.exp(-0.5 * (phase / np.where(phase < 0, 8.0, 25.0)) ** 2)
    noise = np.random.default_rng(1).normal(0.0, 1150.0, len(DAYS))
    return DAYS, (flux + noise) * scale, np.full(len(DAYS), 1150.0 * scale)


def reasons(mjd: Any, flux: Any, flux_err: Any, survey: str = "", **options: Any) -> list[str]:
    return [warning.reason for warning in photometry_warnings(mjd, flux, flux_err, survey, **options)]


def test_difference_flux_of_a_supernova_has_no_warning() -> None:
    assert reasons(*supernova()) == []
    for survey in ("lsst", "ztf", "swift"):
        assert reasons(*supernova(), survey) == []


@pytest.mark.parametrize(
    ("scale", "survey", "expected"),
    [
        (1e-3, "", ["implausible_depth"]),
        (1e3, "", []),  # as that of a small telescope
        (1e3, "ztf", ["implausible_depth"]),
        (1e3, "lsst", ["implausible_depth"]),
        (1 / 36.3, "", []),
        (1 / 36.3, "ztf", ["implausible_depth"]),
        (1 / 36.3, "lsst", ["implausible_depth"]),
        (1e-9, "", ["implausible_depth"]),
        (1e9, "", ["implausible_depth"]),
    ],
)
def test_fluxes_in_another_unit_are_noticed(scale: float, survey: str, expected: list[str]) -> None:
    assert reasons(*supernova(scale), survey) == expected


def test_magnitudes_sent_as_flux_are_noticed() -> None:
    mag = 20.0 + 0.01 * np.arange(len(DAYS))
    warnings = photometry_warnings(DAYS, mag, np.full(len(DAYS), 0.1))
    assert warnings[0].reason == "magnitudes_as_flux"
    assert "mag_err" in warnings[0].detail


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"parallax": 2.0}, ["parallax_without_error"]),
        ({"parallax": 2.0, "parallax_err": 0.0}, ["parallax_without_error"]),
        ({"parallax": 2.0, "parallax_err": 0.1}, []),
        ({"parallax_err": 0.1, "zspec": 0.1}, []),
    ],
)
def test_parallax_without_an_error_is_noticed(metadata: dict[str, float], expected: list[str]) -> None:
    assert reasons(*supernova(), metadata=metadata) == expected


@pytest.mark.parametrize(("survey", "meant"), [("ztff", "ztf"), ("pan-starrs", "panstarrs"), ("asassn", "asas-sn")])
def test_survey_with_a_name_close_to_a_known_one_is_noticed(survey: str, meant: str) -> None:
    (warning,) = photometry_warnings(*supernova(), survey)
    assert warning.reason == "unknown_survey"
    assert f"{survey} is not known: send {meant} if" in warning.detail


@pytest.mark.parametrize(("survey", "expected"), [("mysurvey", ["unknown_survey"]), ("swift", []), ("", [])])
def test_survey_that_is_not_known_is_noticed(survey: str, expected: list[str]) -> None:
    assert reasons(*supernova(), survey) == expected


def test_times_of_ogle_and_asas_are_noticed() -> None:
    days, flux, flux_err = supernova()
    assert reasons(days - 49_999.5, flux, flux_err) == ["times_look_like_jd"]
    assert reasons(days - days[0], flux, flux_err) == []


def test_total_flux_of_a_variable_is_noticed() -> None:
    flux = 1e5 * (1.0 + 0.3 * np.sin(DAYS))
    assert looks_like_total_flux(DAYS, flux, 0.02 * flux)
    assert reasons(DAYS, flux, 0.02 * flux) == ["total_flux"]
    assert reasons(DAYS, flux, 0.02 * flux, check_total=False) == []
    for few in (slice(0, 19), slice(0, 40)):
        days = DAYS[0] + 0.5 * (DAYS - DAYS[0]) if few.stop == 40 else DAYS
        assert not looks_like_total_flux(days[few], flux[few], 0.02 * flux[few])


def test_flux_that_falls_to_the_detection_limit_is_a_difference() -> None:
    flux = 1e5 * np.exp(-(DAYS - DAYS[0]) / 60.0)
    assert not looks_like_total_flux(DAYS, flux, np.full(len(DAYS), 1500.0))


@pytest.mark.parametrize(
    ("flux", "flux_err", "expected"),
    [
        (1e5 * (1.0 + 0.3 * np.sin(2.0 * np.arange(20))), 2e3, "total"),
        (1e5 * np.exp(-0.5 * ((np.arange(20) - 6) / 4.0) ** 2) + 2e3, 400.0, "difference"),
        (1e5 * np.exp(-0.5 * ((np.arange(20) - 10) / 2.0) ** 2), 1e3, "difference"),
        (1e5 * np.exp(-np.arange(20) / 40.0), 2e3, ""),
        (1e5 * (1.0 + 0.1 * np.sin(2.0 * np.arange(20))), 5e3, ""),
    ],
    ids=["pulsation", "one maximum", "absent at times", "slow decline", "noise"],
)
def test_kind_of_source_of_a_short_light_curve(flux: Any, flux_err: float, expected: str) -> None:
    errors = np.full(20, flux_err)
    assert kind_of_source(DAYS[:20], flux, errors, np.full(20, "g")) == expected
    order = np.random.default_rng(1).permutation(20)
    assert kind_of_source(DAYS[:20][order], flux[order], errors, np.full(20, "g")) == expected


def test_kind_of_source_of_a_constant_star_is_total() -> None:
    flux = np.full(40, 1e5) + np.random.default_rng(1).normal(0.0, 2e3, 40)
    assert kind_of_source(DAYS, flux, np.full(40, 2e3), np.full(40, "g")) == "total"
    assert kind_of_source(DAYS[:10], flux[:10], np.full(10, 2e3), np.full(10, "g")) == ""


@needs_shared
def test_total_flux_of_real_variables_is_noticed_and_of_supernovae_is_not() -> None:
    """The page docs/tables.md has the figures of all sets."""
    sets = {
        "difference": shared("data", "ztf_sn", "photometry.csv.gz"),
        "total": shared("data", "ztf_dr_periodic", "photometry.csv.gz"),
    }
    found = {}
    for kind, path in sets.items():
        objects = islice(read_table(path, TableOptions(flux_kind="difference")), 0, None, 10)
        found[kind] = [
            looks_like_total_flux(item.mjd[keep], item.flux[keep], item.flux_err[keep])
            for item in objects
            if (keep := item.usable()).any()
        ]
    assert np.mean(found["total"]) >= 0.95
    assert np.mean(found["difference"]) <= 0.03


@pytest.mark.parametrize("level", [0.0, 300.0])
def test_constant_sources_are_noticed_and_variable_ones_are_not(level: float) -> None:
    rng = np.random.default_rng(3)
    band = np.arange(40) % 3
    flux_err = rng.uniform(50.0, 200.0, 40)
    constant = level * (1 + band) + rng.normal(0.0, flux_err)
    assert "constant_flux" in reasons(DAYS, constant, flux_err, band=band)
    assert "constant_flux" not in reasons(DAYS, constant + 4 * flux_err * np.sin(DAYS), flux_err, band=band)
    assert "constant_flux" not in reasons(DAYS[:12], constant[:12], flux_err[:12], band=band[:12])


def test_constancy_is_judged_by_chi_squared_about_the_mean_of_each_filter() -> None:
    band = np.repeat([1, 4], 10)
    flux_err = np.full(20, 100.0)
    flux = np.where(np.arange(20) % 2 == 0, 200.0, 0.0) + 300.0 * (band == 4)  # chi squared 20
    warnings = photometry_warnings(DAYS[:20], flux, flux_err, band=band)
    assert [warning.detail for warning in warnings] == [
        "the flux does not vary within its errors (chi squared 20 for 18 degrees of freedom)"
    ]
    assert reasons(DAYS[:20], 1.2 * flux, flux_err, band=band) == ["constant_flux"]  # chi squared 28.8
    assert reasons(DAYS[:20], 1.25 * flux, flux_err, band=band) == []  # 31, above 18 + 2 sqrt(36) = 30
