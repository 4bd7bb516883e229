"""Origins: models of the flux of an object at any time and wavelength, fitted to its points, for re-observation.

- `Event`: a transient. A Gaussian process within the points; before them a fireball from zero flux (or zero flux, if
  the points start near it); after them an exponential tail with the last slope. An active nucleus (``steady``) is a
  process around a mean, without extrapolation.
- Periodic variables and flares are in `training.data.reobserve.pulses`.
- `Colours`: the ratio of flux between two wavelengths, for extrapolation to unobserved wavelengths: the flux at the
  edge times the ratio of a spectral template of the class at that phase; without templates, a power law with an index
  of the class (`SLOPES`, of flux density per hertz, with scatter), drawn once per view. Without it supernovae would
  have no colour, or missing bands would reveal the survey.

Poorly sampled objects are rejected: the process would smooth them, and smoothness would reveal the class.

Legend: N points fitted, Q points evaluated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from nightjar_alerts.models.photometry import magnitude_of
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.sample import LABELS, Sample
from nightjar_alerts.training.simulate.photometry import distance_modulus

Float = NDArray[np.float64]

MAX_POINTS: Final = 120
WAVELENGTH_SCALES: Final = (0.25, 0.5, 1.0)
TIME_SCALES: Final = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
AMPLITUDES: Final = (0.7, 0.35, 1.4)
"""In units of the largest flux; the scales are chosen with the first."""
RELATIVE_ERROR: Final = 0.015
"""Fraction of flux that is added to every error, since zero points and filters differ between telescopes."""
_JITTER: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """Gaussian process fitted to the points of one object, in time and in the logarithm of wavelength.

    The kernel is a product of two Matern-3/2 functions (as in Boone 2019, AJ 158, 257, for PLAsTiCC), one of days and
    one of ln(wavelength); the mean is a constant. The scales are the best of a small grid, the time scale interpolated
    between its points; then the amplitude is chosen. With 100 points a fit takes some milliseconds.

    ``time_N`` days, ``log_wavelength_N`` ln(nm), ``mean`` nJy; ``amplitude`` nJy, ``days`` and ``width`` the scales.
    """

    time_N: Float
    log_wavelength_N: Float
    mean: float
    amplitude: float
    days: float
    width: float
    factor_NN: Float
    weight_N: Float

    def expected(self, time_Q: Float, log_wavelength_Q: Float) -> Float:
        """Posterior mean, nJy (Q,)."""
        return np.asarray(self._cross(time_Q, log_wavelength_Q) @ self.weight_N + self.mean)

    def draw(
        self, time_Q: Float, log_wavelength_Q: Float, rng: np.random.Generator, largest_sd_Q: Float
    ) -> tuple[Float, Float]:
        """Return one draw and the posterior standard deviation, both nJy (Q,).

        The deviation from the mean is scaled so that its standard deviation does not exceed ``largest_sd_Q``. Otherwise
        the uncertainty of a faint object would appear as structure in a view with small errors.
        """
        cross_QN = self._cross(time_Q, log_wavelength_Q)
        mean_Q = cross_QN @ self.weight_N + self.mean
        half_NQ = solve_triangular(self.factor_NN, cross_QN.T, lower=True, check_finite=False)
        covariance_QQ = self._kernel(time_Q, log_wavelength_Q, time_Q, log_wavelength_Q) - half_NQ.T @ half_NQ
        spread_Q = np.sqrt(np.maximum(np.diag(covariance_QQ), 0.0))
        shrink_Q = np.minimum(1.0, largest_sd_Q / np.maximum(spread_Q, 1e-30))
        covariance_QQ[np.diag_indices_from(covariance_QQ)] += 1e-6 * self.amplitude**2
        lower_QQ = cholesky(covariance_QQ, lower=True, check_finite=False)
        return mean_Q + shrink_Q * (lower_QQ @ rng.standard_normal(len(time_Q))), spread_Q

    def spread(self, time_Q: Float, log_wavelength_Q: Float) -> Float:
        """Return the posterior standard deviation, nJy (Q,)."""
        cross_QN = self._cross(time_Q, log_wavelength_Q)
        half_NQ = solve_triangular(self.factor_NN, cross_QN.T, lower=True, check_finite=False)
        return np.asarray(np.sqrt(np.maximum(self.amplitude**2 - (half_NQ**2).sum(0), 0.0)))

    def _cross(self, time_Q: Float, log_wavelength_Q: Float) -> Float:
        return self._kernel(time_Q, log_wavelength_Q, self.time_N, self.log_wavelength_N)

    def _kernel(self, time_A: Float, wave_A: Float, time_B: Float, wave_B: Float) -> Float:
        in_time = _matern(np.abs(time_A[:, None] - time_B[None, :]), self.days)
        in_wavelength = _matern(np.abs(wave_A[:, None] - wave_B[None, :]), self.width)
        return np.asarray(self.amplitude**2 * in_time * in_wavelength)


def fit_process(time_N: Float, log_wavelength_N: Float, flux_N: Float, error_N: Float, mean: float = 0.0) -> Process:
    """Fit amplitude and scales to at most `MAX_POINTS` points, nJy.

    Raises
    ------
    ValueError
        If a flux or an error is not finite.
    """
    if not (np.isfinite(flux_N).all() and np.isfinite(error_N).all()):
        raise ValueError("a process needs finite points")
    scale = float(np.abs(flux_N - mean).max()) or 1.0
    variance_N = error_N**2 + (RELATIVE_ERROR * flux_N) ** 2
    gap_NN = np.abs(time_N[:, None] - time_N[None, :])
    separation_NN = np.abs(log_wavelength_N[:, None] - log_wavelength_N[None, :])
    several = bool((separation_NN > 0).any())
    fits: list[tuple[float, float, float]] = []
    for width in WAVELENGTH_SCALES if several else WAVELENGTH_SCALES[-1:]:
        colour_NN = _matern(separation_NN, width) * (AMPLITUDES[0] * scale) ** 2
        for days in TIME_SCALES:
            fits.append((_log_likelihood(colour_NN * _matern(gap_NN, days), variance_N, flux_N - mean), days, width))
    _, best, width = max(fits)
    days = _parabola_peak([row[0] for row in fits if row[2] == width], TIME_SCALES, best)
    shape_NN = _matern(separation_NN, width) * _matern(gap_NN, days)
    _, amplitude = max(
        (_log_likelihood(shape_NN * (share * scale) ** 2, variance_N, flux_N - mean), share * scale)
        for share in AMPLITUDES
    )
    covariance_NN = amplitude**2 * _matern(separation_NN, width) * _matern(gap_NN, days)
    covariance_NN[np.diag_indices_from(covariance_NN)] += variance_N + _JITTER * amplitude**2
    factor_NN = cholesky(covariance_NN, lower=True, check_finite=False)
    weight_N = cho_solve((factor_NN, True), flux_N - mean, check_finite=False)
    return Process(time_N, log_wavelength_N, mean, amplitude, days, width, factor_NN, weight_N)


def _matern(distance: Float, scale: float) -> Float:
    scaled = np.sqrt(3.0) / scale * distance
    return np.asarray((1.0 + scaled) * np.exp(-scaled))


def _log_likelihood(covariance_NN: Float, variance_N: Float, residual_N: Float) -> float:
    covariance_NN = covariance_NN + np.diag(variance_N)
    try:
        factor_NN = cholesky(covariance_NN, lower=True, check_finite=False, overwrite_a=True)
    except np.linalg.LinAlgError:
        return -np.inf
    white_N = solve_triangular(factor_NN, residual_N, lower=True, check_finite=False)
    return float(-0.5 * white_N @ white_N - np.log(np.diag(factor_NN)).sum())


def _parabola_peak(likelihood: list[float], scales: tuple[float, ...], best: float) -> float:
    """Return the maximum of the parabola through the best scale and its neighbours, in the logarithm of the scale."""
    at = scales.index(best)
    if at in (0, len(scales) - 1):
        return best
    low, top, high = likelihood[at - 1 : at + 2]
    curvature = low - 2.0 * top + high
    if not np.isfinite(curvature) or curvature >= 0:
        return best
    step = float(np.log(scales[1] / scales[0]))
    return float(best * np.exp(np.clip(0.5 * (low - high) / curvature, -0.5, 0.5) * step))


ACHROMATIC: Final = frozenset(LABELS[name] for name in ("uLens", "Dwarf Novae", "M-dwarf Flare"))
"""Classes that need only one band, since their colours are drawn at random."""
MIN_DETECTIONS: Final = {LABELS["KN"]: 4, LABELS["Ia"]: 10, LABELS["II"]: 8}
"""Minimum number of nightly detections of an origin; six in other classes."""
SHORT: Final = frozenset({LABELS["KN"]})
"""Classes whose first detection may be at the peak."""
PEAK_MAGNITUDE: Final = {
    LABELS["Ia"]: -19.1, LABELS["91bg"]: -17.5, LABELS["Iax"]: -17.3, LABELS["Ib/c"]: -17.6, LABELS["II"]: -17.2,
    LABELS["SN-like/Other"]: -17.6, LABELS["SLSN"]: -21.0, LABELS["TDE"]: -19.5, LABELS["ILOT"]: -13.5,
}  # fmt: skip
"""Absolute magnitudes at maximum light, for the distance of objects without a redshift (Richardson+ 2014;
van Velzen+ 2021; Gomez+ 2024)."""
LARGEST_PEAK_SPREAD: Final = 0.06
EDGE_MARGIN: Final = 0.14
"""Distance in ln(wavelength) from the observed filters within which the process is used without `Colours`."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A transient or a nucleus; times are days from its peak, wavelengths ln(nm), both as observed at redshift ``z``.

    If the redshift is not known (``z_known``), ``z`` is estimated from the peak brightness of its class; NaN for a
    nucleus. ``first`` and ``last`` are its first and last point, ``edges`` the range of ln(wavelength) of the process,
    ``rises`` whether the first point has flux, so that an earlier rise from zero must be added; ``steady`` a nucleus.
    """

    row: int
    label: int
    z: float
    z_known: bool
    process: Process
    peak_flux: float
    first: float
    last: float
    edges: tuple[float, float]
    rises: bool
    steady: bool = False


def nightly(mjd: Float, wavelength: Float, flux: Float, error: Float) -> tuple[Float, Float, Float, Float]:
    """Average the points of each filter and night by their errors: time, wavelength, flux, error."""
    key = np.stack([np.floor(mjd * 2.0), wavelength], axis=1)
    _, night = np.unique(key, axis=0, return_inverse=True)
    night = night.ravel()
    weight = 1.0 / error**2
    total = np.bincount(night, weight)

    def mean(values: Float) -> Float:
        return np.asarray(np.bincount(night, weight * values) / total)

    return mean(mjd), mean(wavelength), mean(flux), np.sqrt(1.0 / total)


def event_of(sample: Sample, row: int) -> Event | None:
    """Return the transient or nucleus of object ``row``; None if it has too few points."""
    label = int(sample.label[row])
    steady = label == LABELS["AGN"]
    at = sample.points(row)
    flux, error = sample.flux[at].astype(np.float64), sample.flux_err[at].astype(np.float64)
    limit = sample.limit_at(at)
    error = np.where(limit, error * 5.0 / 3.0, error)  # a limit is a weaker constraint than a measured zero
    mjd = sample.mjd[at].astype(np.float64)
    mjd, wavelength, flux, error = nightly(mjd, sample.wavelength[at].astype(np.float64), flux, error)
    significant = flux >= 5.0 * error
    if significant.sum() < MIN_DETECTIONS.get(label, 6) or _bands_seen(wavelength, significant | steady) < (
        1 if label in ACHROMATIC else 2
    ):
        return None
    peak_mjd = float(mjd[np.argmax(np.where(significant, flux - error, -np.inf))])
    chosen = _thin(mjd, flux, error, peak_mjd, steady)
    if len(chosen) < 6:
        return None
    days, wave = mjd[chosen] - peak_mjd, np.log(wavelength[chosen])
    mean = float(np.average(flux[chosen])) if steady else 0.0
    process = fit_process(days, wave, flux[chosen], error[chosen], mean)
    return _aligned_to_peak(sample, row, process, days[significant[chosen]], steady)


def _redshift_of_modulus(modulus: float) -> float:
    """Return the redshift of a distance modulus, between 0.004 and 1.5."""
    z = np.exp(np.linspace(np.log(0.004), np.log(1.5), 300))
    return float(np.interp(modulus, distance_modulus(z), z))


def _bands_seen(wavelength: Float, counts_N: NDArray[np.bool_]) -> int:
    """Return the number of filters with two of the flagged points."""
    _, counts = np.unique(wavelength[counts_N], return_counts=True)
    return int((counts >= 2).sum())


def _thin(mjd: Float, flux: Float, error: Float, peak: float, steady: bool) -> NDArray[np.intp]:
    """Return the rows to fit: at most `MAX_POINTS`, preferring points close to the peak and significant ones."""
    window = np.abs(mjd - peak) < 400.0 if steady else (mjd > peak - 150.0) & (mjd < peak + 400.0)
    rows = np.flatnonzero(window)
    if len(rows) <= MAX_POINTS:
        return rows
    if steady:
        return rows[np.linspace(0, len(rows) - 1, MAX_POINTS).astype(np.intp)]
    near = np.exp(-np.abs(mjd[rows] - peak) / 60.0) + 0.3 * (flux[rows] > 3 * error[rows])
    return np.sort(rows[np.argsort(-near, kind="stable")[:MAX_POINTS]])


def _aligned_to_peak(sample: Sample, row: int, process: Process, seen_days: Float, steady: bool) -> Event | None:
    """Return the event with times relative to the peak of the process; None if the peak is too uncertain."""
    label = int(sample.label[row])
    waves = np.unique(np.round(process.log_wavelength_N, 3))
    middle = float(waves[np.argmin(np.abs(waves - np.log(640.0)))])
    if steady:
        top, spread = float(np.abs(process.expected(process.time_N, process.log_wavelength_N)).max()), 0.0
        shift = 0.0
    else:
        days = np.linspace(seen_days.min() - 2.0, seen_days.max() + 2.0, 160)
        flux = process.expected(days, np.full(len(days), middle))
        shift, top = float(days[flux.argmax()]), float(flux.max())
        spread = float(process.spread(np.array([shift]), np.array([middle]))[0])
        if top <= 0 or spread > LARGEST_PEAK_SPREAD * top:
            return None
        if label not in ACHROMATIC | SHORT and (seen_days.min() > shift - 1.0 or seen_days.max() < shift + 6.0):
            return None
    shifted = Process(
        process.time_N - shift, process.log_wavelength_N, process.mean, process.amplitude, process.days, process.width,
        process.factor_NN, process.weight_N,
    )  # fmt: skip
    start = float(shifted.time_N.min())
    at_start = float(shifted.expected(np.array([start]), np.array([middle]))[0])
    z = float(sample.z[row])
    z_known = np.isfinite(z) and z > 0
    if not z_known and label in PEAK_MAGNITUDE:
        z = _redshift_of_modulus(float(magnitude_of(top)) - PEAK_MAGNITUDE[label])
    return Event(
        row, label, z, z_known, shifted, top, start, float(shifted.time_N.max()),
        (float(waves.min()) - EDGE_MARGIN, float(waves.max()) + EDGE_MARGIN), not steady and at_start > 0.05 * top,
        steady,
    )  # fmt: skip


SLOPES: Final[dict[str, tuple[float, float]]] = {
    "AGN": (-0.3, 0.5), "Dwarf Novae": (-0.4, 0.4), "uLens": (1.2, 0.9), "M-dwarf Flare": (-1.8, 0.5),
    "TDE": (-1.3, 0.5), "SLSN": (0.0, 0.6), "KN": (2.0, 1.5),
}  # fmt: skip
"""Centre and scatter of d ln(F_nu) / d ln(wavelength): nuclei after Vanden Berk+ 2001, outbursts and flares of hot
discs and plasma (6,000 to 15,000 K), lenses like their mostly late-type sources, TDEs of some 20,000 K (van Velzen+
2021)."""
MAX_EXTRAPOLATION: Final = {True: 0.45, False: 0.30}
"""Largest extrapolation in ln(wavelength), with a template (True) or a slope."""
SLOPE_ONLY: Final = frozenset({"Dwarf Novae", "uLens", "M-dwarf Flare"})
"""Classes mostly observed in one band, whose colours are a slope at all wavelengths."""

_FILES: Final = {
    "Ia": (("sed_ia_91bg.npz", "hsiao_v3", 0.0),),
    "Iax": (("sed_ia_91bg.npz", "hsiao_v3", 0.0),),
    "91bg": (("sed_ia_91bg.npz", "nugent_91bg", 14.0),),
    "Ib/c": tuple(
        ("sed_core_collapse_snsed.npz", name, 0.0)
        for name in ("CSP-2004fe", "CSP-2004gq", "SDSS-004012", "SDSS-013195", "SDSS-017548", "SNLS-04D4jv")
    ),
}
MIN_FRACTION: Final = 3e-3
"""Fraction of the largest flux of a spectrum below which a series is ignored."""
_SMOOTHING: Final = 60
"""Width of a filter in samples of 10 A."""


@dataclass(frozen=True, slots=True, eq=False)
class SpectralSeries:
    """ln(F_nu) of a spectral series on a grid: days from peak in the rest frame, and ln(nm)."""

    days_D: Float
    log_wavelength_W: Float
    log_flux_DW: Float

    def at(self, days_Q: Float, log_wavelength_Q: Float) -> Float:
        """Return ln(F_nu) by bilinear interpolation, constant outside the grid."""
        day = np.interp(days_Q, self.days_D, np.arange(len(self.days_D)))
        wave = np.interp(log_wavelength_Q, self.log_wavelength_W, np.arange(len(self.log_wavelength_W)))
        d, w = np.minimum(day.astype(int), len(self.days_D) - 2), np.minimum(wave.astype(int), self.width - 2)
        a, b = day - d, wave - w
        grid = self.log_flux_DW
        low = (1 - b) * grid[d, w] + b * grid[d, w + 1]
        high = (1 - b) * grid[d + 1, w] + b * grid[d + 1, w + 1]
        return np.asarray((1 - a) * low + a * high)

    @property
    def width(self) -> int:
        """Number of wavelengths."""
        return len(self.log_wavelength_W)


@dataclass(frozen=True, slots=True, eq=False)
class Colours:
    """Spectral series by class index; other classes have a slope, or neither."""

    series: dict[int, tuple[SpectralSeries, ...]]

    def max_extrapolation(self, label: int) -> float:
        """Return the largest extrapolation of a class beyond the observed wavelengths, in ln(wavelength)."""
        return 1.5 if ELASTICC.names[label] in SLOPE_ONLY else MAX_EXTRAPOLATION[label in self.series]

    def draw(self, label: int, rng: np.random.Generator) -> "ColourContinuation":
        """Draw the colour of one view."""
        if label in self.series:
            choices = self.series[label]
            return ColourContinuation(choices[rng.integers(len(choices))], 0.0)
        centre, scatter = SLOPES.get(ELASTICC.names[label], (np.nan, 0.0))
        return ColourContinuation(None, float(rng.normal(centre, scatter)))


@dataclass(frozen=True, slots=True, eq=False)
class ColourContinuation:
    """Extrapolation of one view beyond the edges: by a series, a slope, or (slope NaN) the slope of the process."""

    series: SpectralSeries | None
    slope: float

    def log_ratio(self, rest_days_Q: Float, inside_Q: Float, outside_Q: Float) -> Float:
        """Return ln of the flux ratio of ``outside_Q`` to ``inside_Q``, ln(nm) in the rest frame; NaN if unknown."""
        if self.series is not None:
            return self.series.at(rest_days_Q, outside_Q) - self.series.at(rest_days_Q, inside_Q)
        return self.slope * (outside_Q - inside_Q)


def no_templates() -> Colours:
    """Return colours from the slopes of the classes only."""
    return Colours({})


def read_colours(folder: Path | None) -> Colours:
    """Read the spectral series in ``folder`` (``real/templates``); missing files are skipped."""
    series_by_label: dict[int, tuple[SpectralSeries, ...]] = {}
    if folder is not None:
        for name, files in _FILES.items():
            series = tuple(s for file, key, peak in files if (s := _read(folder / file, key, peak)) is not None)
            if series:
                series_by_label[ELASTICC.names.index(name)] = series
    return Colours(series_by_label)


def _read(path: Path, key: str, peak: float) -> SpectralSeries | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        days = arrays[f"{key}|phase"].astype(np.float64) - peak
        angstrom = arrays[f"{key}|wave"].astype(np.float64)
        flux = arrays[f"{key}|flux"].astype(np.float64)
    box = np.ones(_SMOOTHING) / _SMOOTHING
    smooth = np.apply_along_axis(lambda spectrum: np.convolve(spectrum, box, mode="same"), 1, flux)
    density = smooth * angstrom**2  # per hertz
    lit = density.max(axis=1) > 0.0
    relative = density[lit] / density[lit].max(axis=1, keepdims=True)
    usable = ((relative > MIN_FRACTION).mean(axis=0) > 0.9) & (angstrom >= 2000.0) & (angstrom <= 11_500.0)
    columns = np.flatnonzero(usable)[::10]
    log_flux = np.log(np.maximum(relative[:, columns], MIN_FRACTION))
    return SpectralSeries(days[lit], np.log(angstrom[columns] / 10.0), log_flux)
