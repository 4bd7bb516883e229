"""Origins: what an object was, as far as its points tell: a flux at any time and wavelength, to be observed again.

- `Event`: a transient. A Gaussian process where there are points; before the first, back to zero as a fireball that
  begins (or as the points say, where they reach down to zero); after the last, an exponential tail at its last slope.
  An active nucleus (``steady``) is a process around a mean; nothing is known outside its points.
- `training.reobserve.pulses` does the same for periodic variables and flares.

Beyond the observed wavelengths `training.reobserve.colours` tells the colours. Poorly sampled objects are refused: the
process would smooth them, and smooth curves would then be a mark of their class.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.taxonomy import ELASTICC
from training.reobserve.gp import MAX_POINTS, Process, fit_process
from training.simulate.photometry import distance_modulus
from training.sky.record import Sky

Float = NDArray[np.float64]

CLASS: Final = {name: number for number, name in enumerate(ELASTICC.names)}
ACHROMATIC: Final = frozenset(CLASS[name] for name in ("uLens", "Dwarf Novae", "M-dwarf Flare"))
"""Classes of which one band is enough: their colours are drawn."""
FEWEST: Final = {CLASS["KN"]: 4, CLASS["Ia"]: 10, CLASS["II"]: 8}
"""Nightly detections that an origin needs; six in classes that are not told."""
SHORT: Final = frozenset({CLASS["KN"]})
"""Classes of which an origin may begin at its peak."""
PEAK_MAGNITUDE: Final = {
    CLASS["Ia"]: -19.1, CLASS["91bg"]: -17.5, CLASS["Iax"]: -17.3, CLASS["Ib/c"]: -17.6, CLASS["II"]: -17.2,
    CLASS["SN-like/Other"]: -17.6, CLASS["SLSN"]: -21.0, CLASS["TDE"]: -19.5, CLASS["ILOT"]: -13.5,
}  # fmt: skip
"""Absolute magnitudes of maximum light that stand in for a distance where no redshift is known (Richardson+ 2014;
van Velzen+ 2021; Gomez+ 2024)."""
LARGEST_PEAK_SPREAD: Final = 0.06
REACH: Final = 0.14
"""Of ln(wavelength), beyond the observed filters, where the process itself is believed."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A transient or a nucleus; times are days from its peak, wavelengths ln(nm), both as observed at redshift ``z``.

    Where the redshift is not known (``z_known``) it is one at which its class would be so bright; NaN for a nucleus.

    ``first`` and ``last`` are its first and last point, ``edges`` the range of ln(wavelength) that the process knows,
    ``rises`` whether it was caught with nothing before, so that flux must be brought to zero; ``steady`` a nucleus.
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
    """Points of one filter and night averaged by their errors: time, wavelength, flux, error."""
    key = np.stack([np.floor(mjd * 2.0), wavelength], axis=1)
    _, place = np.unique(key, axis=0, return_inverse=True)
    place = place.ravel()
    weight = 1.0 / error**2
    total = np.bincount(place, weight)

    def mean(values: Float) -> Float:
        return np.asarray(np.bincount(place, weight * values) / total)

    return mean(mjd), mean(wavelength), mean(flux), np.sqrt(1.0 / total)


def event_of(sky: Sky, row: int) -> Event | None:
    """Return the transient or nucleus that object ``row`` shows; None where its points do not tell enough."""
    label = int(sky.label[row])
    steady = label == CLASS["AGN"]
    at = sky.points(row)
    flux, error = sky.flux[at].astype(np.float64), sky.flux_err[at].astype(np.float64)
    limit = sky.limit_at(at)
    error = np.where(limit, error * 5.0 / 3.0, error)  # a limit says "below", not "zero with so small an error"
    mjd, wavelength, flux, error = nightly(sky.mjd[at], sky.wavelength[at].astype(np.float64), flux, error)
    seen = flux >= 5.0 * error
    if seen.sum() < FEWEST.get(label, 6) or _bands_seen(wavelength, seen | steady) < (1 if label in ACHROMATIC else 2):
        return None
    peak_mjd = float(mjd[np.argmax(np.where(seen, flux - error, -np.inf))])
    chosen = _thin(mjd, flux, error, peak_mjd, steady)
    if len(chosen) < 6:
        return None
    days, wave = mjd[chosen] - peak_mjd, np.log(wavelength[chosen])
    mean = float(np.average(flux[chosen])) if steady else 0.0
    process = fit_process(days, wave, flux[chosen], error[chosen], mean)
    return _placed(sky, row, process, days[seen[chosen]], steady)


def _assumed(modulus: float) -> float:
    """Return the redshift of a distance modulus, within 0.004 and 1.5."""
    z = np.exp(np.linspace(np.log(0.004), np.log(1.5), 300))
    return float(np.interp(modulus, distance_modulus(z), z))


def _bands_seen(wavelength: Float, seen: NDArray[np.bool_]) -> int:
    """Return filters with two points that count."""
    _, counts = np.unique(wavelength[seen], return_counts=True)
    return int((counts >= 2).sum())


def _thin(mjd: Float, flux: Float, error: Float, peak: float, steady: bool) -> NDArray[np.intp]:
    """Rows to fit: around the event, the surest where there are too many."""
    window = np.abs(mjd - peak) < 400.0 if steady else (mjd > peak - 150.0) & (mjd < peak + 400.0)
    rows = np.flatnonzero(window)
    if len(rows) <= MAX_POINTS:
        return rows
    if steady:
        return rows[np.linspace(0, len(rows) - 1, MAX_POINTS).astype(np.intp)]
    near = np.exp(-np.abs(mjd[rows] - peak) / 60.0) + 0.3 * (flux[rows] > 3 * error[rows])
    return np.sort(rows[np.argsort(-near, kind="stable")[:MAX_POINTS]])


def _placed(sky: Sky, row: int, process: Process, seen: Float, steady: bool) -> Event | None:
    """Return the event with its times counted from the peak of the process; None when the peak is not well known."""
    label = int(sky.label[row])
    waves = np.unique(np.round(process.log_wavelength_N, 3))
    middle = float(waves[np.argmin(np.abs(waves - np.log(640.0)))])
    if steady:
        top, spread = float(np.abs(process.expected(process.time_N, process.log_wavelength_N)).max()), 0.0
        shift = 0.0
    else:
        days = np.linspace(seen.min() - 2.0, seen.max() + 2.0, 160)
        flux = process.expected(days, np.full(len(days), middle))
        shift, top = float(days[flux.argmax()]), float(flux.max())
        spread = float(process.spread(np.array([shift]), np.array([middle]))[0])
        if top <= 0 or spread > LARGEST_PEAK_SPREAD * top:
            return None
        if label not in ACHROMATIC | SHORT and (seen.min() > shift - 1.0 or seen.max() < shift + 6.0):
            return None
    shifted = Process(
        process.time_N - shift, process.log_wavelength_N, process.mean, process.amplitude, process.days, process.width,
        process.factor_NN, process.weight_N,
    )  # fmt: skip
    start = float(shifted.time_N.min())
    at_start = float(shifted.expected(np.array([start]), np.array([middle]))[0])
    z = float(sky.z[row])
    known = np.isfinite(z) and z > 0
    if not known and label in PEAK_MAGNITUDE:
        z = _assumed(31.4 - 2.5 * float(np.log10(top)) - PEAK_MAGNITUDE[label])
    return Event(
        row, label, z, known, shifted, top, start, float(shifted.time_N.max()),
        (float(waves.min()) - REACH, float(waves.max()) + REACH), not steady and at_start > 0.05 * top, steady,
    )  # fmt: skip
