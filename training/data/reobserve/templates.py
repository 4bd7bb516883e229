"""Objects from published fits and templates, for classes with few well-observed real objects.

Each is a noise-free light curve in all six bands at the redshift of the fitted object or close to it, used as an origin
for re-observation:

- superluminous supernovae: the magnetar model with the parameters of Gomez et al. (2024): spin-down (Kasen & Bildsten
  2010) and nickel, diffusion with leakage (Arnett 1982; Wang et al. 2015), a photosphere that recedes at a minimum
  temperature, and a blackbody cut off in the ultraviolet (Nicholl et al. 2017);
- tidal disruption events: rise, decline and colour of events in manyTDE (van Velzen et al. 2021; Mummery et al. 2024):
  a hot blackbody of almost constant temperature that rises as a Gaussian, declines exponentially and then as t^(-5/3)
  to a plateau;
- stripped supernovae: the templates of their types (Khakpash et al. 2024) with colours at maximum of Vincenzi et al.
  (2019).

Classes without a file are skipped. An object from a fit has the group of the fitted object and its part of the split.

Legend: T days, W wavelengths.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import BANDS, NJY_ZERO_POINT, SECONDS_PER_DAY, njy_of_magnitude
from nightjar_alerts.training.data.sample import LABELS, Sample, SurveyObject, collect
from nightjar_alerts.training.data.survey_readers import WAVELENGTH
from nightjar_alerts.training.data.surveys import normalized_name, part_of
from nightjar_alerts.training.simulate.photometry import distance_modulus, host_dust, planck

Float = NDArray[np.float64]
Rng = np.random.Generator
Row = Mapping[str, Any]

SOURCES: Final = {"magnetar": "SLSN", "tidal disruption": "TDE", "stripped": "Ib/c"}
QUALITY: Final = "template"
ANGSTROM: Final = 10.0 * np.array([WAVELENGTH[name] for name in BANDS])
EPOCHS: Final = np.array([-60, -45, -35, -28, -22, -17, -13, -10, -7, -4, -1, 2, 5, 8, 12, 16, 20, 25, 31, 38, 46, 56,
                          70, 90, 120, 160, 210.0])  # fmt: skip
"""Rest-frame days from the maximum in r at which the flux is evaluated."""
ERROR: Final = 0.01
"""Error as a fraction of the largest flux."""
MIN_FRACTION: Final = 0.004
"""Fraction of the largest flux below which points are left out."""
PARAMETER_SCATTER: Final = 0.5
"""Scatter of the parameters in units of their errors. Correlations are not published, so it is less than 1."""

SUN: Final = 1.989e33  # g
LIGHT: Final = 2.998e10  # cm/s
STEFAN: Final = 5.6704e-5  # erg / (cm^2 s K^4)
PARSEC_10: Final = 3.0857e19  # cm
BETA: Final = 13.7  # constant of the diffusion time


def template_objects(folder: Path, part: int, copies: int, *, seed: int = 0) -> Sample:
    """Make ``copies`` of every fitted object of a part, with parameters drawn within their errors.

    Parameters
    ----------
    folder : ``real/templates``. part : index into `PARTS`.
    """
    rng = np.random.default_rng(seed)
    objects_made: list[SurveyObject] = []
    groups: list[str] = []
    for source, objects in _SOURCE_MODELS.items():
        for name, survey_object in objects(folder, copies, rng):
            group = normalized_name(name)
            if part_of(group) == part:
                survey_object.source, survey_object.quality, survey_object.label = (
                    source,
                    QUALITY,
                    LABELS[SOURCES[source]],
                )
                survey_object.object_id = f"{name}^{len(objects_made)}"
                objects_made.append(survey_object)
                groups.append(group)
    return collect(objects_made, groups, [part] * len(objects_made))


def _read(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist() if path.exists() else []


def _light_curve(density_of: Callable[[Float, float], Float], z: float) -> SurveyObject | None:
    """Return the light curve at redshift ``z`` of a flux density at 10 pc, nJy, by rest-frame day and wavelength.

    None if fewer than 12 points are bright enough.
    """
    flux_TB = np.stack([density_of(EPOCHS, float(wave / (1 + z))) for wave in ANGSTROM], axis=1)
    flux_TB *= (1 + z) * 10 ** (-0.4 * float(distance_modulus(np.array([z]))[0]))
    largest = float(np.nanmax(flux_TB, initial=0.0))
    is_bright_TB = np.isfinite(flux_TB) & (flux_TB > MIN_FRACTION * largest)
    if not largest or is_bright_TB.sum() < 12:
        return None
    day, band = np.nonzero(is_bright_TB)
    flux = flux_TB[day, band]
    return SurveyObject(
        source="", object_id="", mjd=59_000.0 + EPOCHS[day] * (1 + z) + 0.01 * band, flux=flux,
        flux_err=np.full(len(flux), ERROR * largest), band=band.astype(np.int8), detected=np.ones(len(flux), np.bool_),
        foreign=np.zeros(len(flux), np.bool_), wavelength=ANGSTROM[band] / 10.0, z=z,
    )  # fmt: skip


def _magnetars(folder: Path, copies: int, rng: Rng) -> Iterator[tuple[str, SurveyObject]]:
    for row in _read(folder / "slsn_magnetar_parameters.parquet"):
        for _ in range(copies):
            survey_object = magnetar({name: _drawn(row, name, rng) for name in _MAGNETAR})
            if survey_object is not None:
                yield str(row["name"]), survey_object


_MAGNETAR: Final = ("redshift", "Pspin", "log(Bfield)", "Mns", "thetaPB", "mejecta", "kappa", "kappagamma", "vejecta",
                    "temperature", "alpha", "cutoff_wavelength", "A_V", "mnickel")  # fmt: skip


def _drawn(row: Row, name: str, rng: Rng) -> float:
    """Draw a parameter from its asymmetric errors; positive parameters stay within a factor of three."""
    step = PARAMETER_SCATTER * rng.standard_normal()
    middle = float(row[f"{name}_med"])
    value = middle + step * float(row[f"{name}_up" if step > 0 else f"{name}_lo"])
    return value if name == "log(Bfield)" else float(np.clip(value, middle / 3, 3 * middle))


def magnetar(fit: Mapping[str, float]) -> SurveyObject | None:
    """Return the light curve of a magnetar-powered supernova with the parameters of `slsn_magnetar_parameters`."""
    age = np.geomspace(0.3, 500.0, 400)  # rest-frame days since the explosion
    power = _spin_down(fit, age) + _nickel(fit["mnickel"], age)
    luminosity = _diffused(fit, age, power)
    temperature, radius = _photosphere(fit, age, luminosity)
    dense = np.geomspace(900.0, 25_000.0, 160)
    cut = np.minimum(1.0, dense / fit["cutoff_wavelength"]) ** fit["alpha"]
    shape_TW = planck(dense[None, :], temperature[:, None])
    whole, uncut = (np.trapezoid(each / dense**2, dense, axis=1) for each in (shape_TW, shape_TW * cut))
    rescale = whole / uncut  # keeps the luminosity of the blackbody

    def flux(day: Float, wave: float) -> Float:
        factor = min(1.0, wave / fit["cutoff_wavelength"]) ** fit["alpha"]
        density = _blackbody(wave, temperature, radius) * factor * rescale
        observed: Float = np.interp(day + top, age, density, left=0.0)
        return observed * 10 ** (-0.4 * _dust(wave, fit["A_V"]))

    top = 0.0
    top = float(age[np.argmax(flux(age, 6200.0 / 1.2))])
    return _light_curve(flux, fit["redshift"])


def _spin_down(fit: Mapping[str, float], age: Float) -> Float:
    """Return the power of the magnetar, erg/s (Nicholl et al. 2017, equations 2 and 3)."""
    mass = (fit["Mns"] / 1.4) ** 1.5
    energy = 2.6e52 * mass * fit["Pspin"] ** -2
    field = 10 ** (fit["log(Bfield)"] - 14) * np.sin(fit["thetaPB"])
    braking = 1.3e5 * mass * fit["Pspin"] ** 2 / field**2
    power: Float = energy / braking / (1 + age * SECONDS_PER_DAY / braking) ** 2
    return power


def _nickel(mass: float, age: Float) -> Float:
    """Return the power of nickel and cobalt decay, erg/s (Nadyozhin 1994)."""
    power: Float = mass * (6.45e43 * np.exp(-age / 8.8) + 1.45e43 * np.exp(-age / 111.3))
    return power


def _diffused(fit: Mapping[str, float], age: Float, power: Float) -> Float:
    """Return the luminosity of the ejecta, erg/s: Arnett's integral with leakage of gamma rays."""
    mass, speed = fit["mejecta"] * SUN, fit["vejecta"] * 1e5
    diffusion = np.sqrt(2 * fit["kappa"] * mass / (BETA * LIGHT * speed)) / SECONDS_PER_DAY
    leakage = 3 * fit["kappagamma"] * mass / (4 * np.pi * speed**2) / SECONDS_PER_DAY**2
    trapped = -np.expm1(-leakage / age**2)
    fed = power * age * np.exp(np.minimum((age / diffusion) ** 2, 500.0))
    stored = np.concatenate(([0.0], np.cumsum(0.5 * (fed[1:] + fed[:-1]) * np.diff(age))))
    out: Float = 2 / diffusion**2 * np.exp(-np.minimum((age / diffusion) ** 2, 500.0)) * trapped * stored
    return np.where((age / diffusion) ** 2 < 500.0, out, power * trapped)


def _photosphere(fit: Mapping[str, float], age: Float, luminosity: Float) -> tuple[Float, Float]:
    """Return temperature (K) and radius (cm): ejecta expand freely until they reach the minimum temperature."""
    luminosity = np.maximum(luminosity, 1e35)
    expanding = fit["vejecta"] * 1e5 * age * SECONDS_PER_DAY
    receding = np.sqrt(luminosity / (4 * np.pi * STEFAN * fit["temperature"] ** 4))
    radius = np.minimum(expanding, receding)
    return (luminosity / (4 * np.pi * STEFAN * radius**2)) ** 0.25, radius


def _blackbody(wave: float, temperature: Float, radius: Float) -> Float:
    """Return the flux density of a blackbody sphere at 10 pc, nJy."""
    hertz = 2.998e18 / wave
    per_hertz = 2 * 6.626e-27 * hertz**3 / LIGHT**2 / np.expm1(np.minimum(1.4388e8 / (wave * temperature), 200.0))
    density: Float = np.pi * per_hertz * (radius / PARSEC_10) ** 2 * 1e32
    return density


def _dust(wave: float, a_v: float) -> float:
    """Return the attenuation by host dust, magnitudes."""
    return float(host_dust(np.array(wave), np.array(a_v)))


TEMPERATURE: Final = (np.log(20_000.0), 0.30)
"""Centre and scatter of ln(K) of tidal disruption events (van Velzen et al. 2021)."""


def _disruptions(folder: Path, copies: int, rng: Rng) -> Iterator[tuple[str, SurveyObject]]:
    rows = _read(folder / "tde_parameters.parquet")
    values_by_name = {
        name: [float(row[name]) for row in rows if row[name]] for name in ("efold_rest_d_g", "half_rise_rest_d_g")
    }
    for row in rows:
        for _ in range(copies):
            survey_object = _disruption(row, values_by_name, rng)
            if survey_object is not None:
                yield str(row["name"]), survey_object


def _disruption(row: Row, values_by_name: Mapping[str, list[float]], rng: Rng) -> SurveyObject | None:
    fade, half_rise = (float(row[name] or rng.choice(values)) for name, values in values_by_name.items())
    width = max(half_rise, 4.0) / np.sqrt(2 * np.log(2)) * np.exp(0.2 * rng.standard_normal())
    fade *= np.exp(0.2 * rng.standard_normal())
    z = float(row["z"])
    magnitude = row["peak_mag_g"] or row["peak_mag_r"] or 18.8
    absolute = float(magnitude) - float(distance_modulus(np.array([z]))[0]) + 0.2 * rng.standard_normal()
    hot = np.exp(rng.normal(*TEMPERATURE))
    heating = rng.normal(0.1, 0.15)  # of ln(K) in 100 days
    plateau, a_v = rng.uniform(0.0, 0.08), rng.exponential(0.08)
    knots = np.arange(-80.0, 240.0, 12.0)
    uneven = 0.08 * rng.standard_normal(len(knots))
    reference = planck(np.array(4_700.0), np.array(hot)) * 10 ** (-0.4 * _dust(4_700.0, a_v))

    def flux(day: Float, wave: float) -> Float:
        after = np.maximum(day, 0.0)
        joint = 1.5 * fade  # where the exponential meets the power law
        slow = np.exp(-joint / fade) * ((np.maximum(after, joint) + joint) / (2 * joint)) ** (-5 / 3)
        light = np.where(
            day < 0, np.exp(-0.5 * (day / width) ** 2), np.where(after < joint, np.exp(-after / fade), slow)
        )
        light = (light + plateau * (day > 0)) * np.exp(np.interp(day, knots, uneven))
        warm = hot * np.exp(heating * after / 100.0)
        spectrum = planck(np.array(wave), warm) / warm**4 * hot**4
        dust = 10 ** (-0.4 * _dust(wave, a_v))
        density: Float = 10 ** (-0.4 * (absolute - NJY_ZERO_POINT)) * light * spectrum * dust / reference
        return density

    return _light_curve(flux, z)


_STRIPPED: Final = {"Ib": (-17.5, 0.8), "Ic": (-17.5, 0.8), "Ic-bl": (-18.3, 0.7), "Ibn": (-19.0, 0.6)}
"""Types of class Ib/c with centre and scatter of the peak magnitude (Richardson et al. 2014; Hosseinzadeh et al.
2017)."""
_TEMPLATE_BANDS: Final = {"B": 4360.0, "g": 4800.0, "V": 5450.0, "rp": 6220.0, "R": 6410.0, "ip": 7540.0, "I": 7980.0}
_COLOURS: Final = (("g_minus_r_of_peaks", 0.39, 0.20), ("r_minus_i_of_peaks", 0.02, 0.13))


def _stripped(folder: Path, copies: int, rng: Rng) -> Iterator[tuple[str, SurveyObject]]:
    path = folder / "sesn_templates_gpsntempl.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as tables:
            for kind in _STRIPPED:
                for number in range(20 * copies):
                    survey_object = _stripped_supernova(tables, kind, rng)
                    if survey_object is not None:
                        yield f"{kind} template {number % 40}", survey_object


def _stripped_supernova(tables: Any, kind: str, rng: Rng) -> SurveyObject | None:
    """Draw a supernova of a type, with the same change of decline rate in all bands, and random colours."""
    z = float(np.exp(rng.uniform(np.log(0.008), np.log(0.15))))
    centre, scatter = _STRIPPED[kind]
    absolute, quick, stretch = rng.normal(centre, scatter), rng.normal(0.0, 0.8), np.exp(0.12 * rng.standard_normal())
    g_r, r_i = (rng.normal(middle, spread) for _, middle, spread in _COLOURS)
    a_v = rng.exponential(0.1)
    slopes = {4360.0: 1.6 * g_r, 4800.0: g_r, 5450.0: 0.45 * g_r, 6220.0: 0.0, 6410.0: -0.1 * r_i, 7540.0: -r_i,
              7980.0: -1.2 * r_i}  # fmt: skip
    waves, bands = [], []
    for letter, wave in _TEMPLATE_BANDS.items():
        at, middle, low, high = (
            tables[f"{letter}|{kind}|{name}"] for name in ("t", "rollingMedian", "rollingPc25", "rollingPc75")
        )
        curve = -(middle + quick * (high - low) / 1.35)
        finite = np.isfinite(curve)
        if finite.sum() > 20:
            dust = a_v * (_dust(wave, 1.0) - _dust(6220.0, 1.0))
            level = absolute + slopes[wave] + 3.1 * dust
            waves.append(wave)
            bands.append(level + np.interp(EPOCHS / stretch, at[finite], curve[finite], left=np.nan, right=np.nan))
    if len(waves) < 3:
        return None
    order, grid_WT = np.argsort(waves), np.array(bands)

    def flux(day: Float, wave: float) -> Float:
        sorted_waves = np.sort(waves)
        if wave < sorted_waves[0] * 0.92 or wave > sorted_waves[-1] * 1.15:
            return np.full(len(day), np.nan)
        magnitude = np.array([np.interp(wave, sorted_waves, grid_WT[order, index]) for index in range(len(day))])
        return njy_of_magnitude(magnitude)

    return _light_curve(flux, z)


_SOURCE_MODELS: Final[dict[str, Callable[[Path, int, Rng], Iterator[tuple[str, SurveyObject]]]]] = {
    "magnetar": _magnetars, "tidal disruption": _disruptions, "stripped": _stripped,
}  # fmt: skip
