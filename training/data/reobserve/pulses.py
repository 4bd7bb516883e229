"""Periodic variables as folded light curves, and flares of M dwarfs from fits to real ones.

A `Pulse` has one shape of magnitude against phase, with an amplitude and a mean for every band. Unobserved bands get
the colours and amplitude ratios of the class (`COLOURS`, `AMPLITUDES`) with scatter, since missing filters would reveal
the survey.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import BANDS, NJY_ZERO_POINT, magnitude_of
from nightjar_alerts.training.data.sample import LABELS, Sample

Float = NDArray[np.float64]

PERIODIC: Final = frozenset(LABELS[name] for name in ("RR Lyrae", "Cepheid", "Delta Scuti", "EB"))
COLOURS: Final = {
    LABELS["RR Lyrae"]: (1.10, 0.20, 0.07, 0.02, 0.01),
    LABELS["Cepheid"]: (1.40, 0.50, 0.18, 0.10, 0.06),
    LABELS["Delta Scuti"]: (1.10, 0.15, 0.00, -0.03, -0.02),
    LABELS["EB"]: (1.60, 0.50, 0.20, 0.11, 0.07),
}
"""u-g, g-r, r-i, i-z, z-Y of the class: Ivezic+ 2005 and Sesar+ 2010 for RR Lyrae, Vivas+ 2020 for Cepheids and Delta
Scuti, main-sequence stars of spectral type G for eclipsing binaries."""
COLOUR_SCATTER: Final = {
    LABELS["RR Lyrae"]: 0.06,
    LABELS["Cepheid"]: 0.12,
    LABELS["Delta Scuti"]: 0.08,
    LABELS["EB"]: 0.30,
}
AMPLITUDES: Final = np.array([0.95, 1.00, 0.72, 0.58, 0.53, 0.52])
"""Amplitudes of pulsating stars relative to g (Sesar+ 2010; Y as z)."""
PERIODS: Final = {LABELS["RR Lyrae"]: (0.27, 0.85), LABELS["Cepheid"]: (1.0, 40.0), LABELS["Delta Scuti"]: (0.04, 0.25),
                  LABELS["EB"]: (0.25, 8.0)}  # fmt: skip
SWINGS: Final = {LABELS["RR Lyrae"]: (0.4, 1.3), LABELS["Cepheid"]: (0.3, 1.2), LABELS["Delta Scuti"]: (0.05, 0.6),
                 LABELS["EB"]: (0.1, 1.2)}  # fmt: skip
"""Period range in days, and amplitude range in g, of synthetic variables (Catelan and Smith 2015, Pulsating Stars;
Prsa+ 2011)."""
MIN_POINTS: Final = 20
EXPLAINED: Final = 0.5
"""Minimum fraction of the scatter that the folded light curve explains; otherwise the period is taken to be wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Pulse:
    """A periodic variable: magnitude of band b at phase p = mean[b] + amplitude[b] * shape(p).

    ``shape_K`` holds cosine and sine coefficients in turn, of harmonics 1, 2 ...; the shape has a range of 1.
    """

    row: int
    label: int
    period: float
    mean_B: Float
    amplitude_B: Float
    shape_K: Float

    def magnitude(self, phase_Q: Float, band_Q: NDArray[np.int8]) -> Float:
        """Return the AB magnitude, (Q,)."""
        shape_Q = fourier_basis(phase_Q, len(self.shape_K) // 2) @ self.shape_K
        return np.asarray(self.mean_B[band_Q] + self.amplitude_B[band_Q] * shape_Q)


@dataclass(frozen=True, slots=True, eq=False)
class Flare:
    """A flare: flux above the quiescent star, nJy, at days ``days_K`` in every band (B, K); zero outside these days.

    ``bright`` is the range of days with at least half of the largest flux.
    """

    row: int
    label: int
    days_K: Float
    flux_BK: Float
    quiescent_B: Float
    bright: tuple[float, float]

    def flux(self, days_Q: Float, band_Q: NDArray[np.int8]) -> Float:
        """Return the flux above the quiescent star, nJy (Q,)."""
        flux_Q = np.zeros(len(days_Q))
        for number in np.unique(band_Q):
            in_band = band_Q == number
            flux_Q[in_band] = np.interp(days_Q[in_band], self.days_K, self.flux_BK[number], left=0.0, right=0.0)
        return flux_Q


def fourier_basis(phase_Q: Float, order: int) -> Float:
    """Return cosine and sine of the harmonics 1 to ``order``, (Q, 2 order)."""
    angle = 2.0 * np.pi * phase_Q[:, None] * np.arange(1, order + 1)
    return np.asarray(np.stack([np.cos(angle), np.sin(angle)], axis=2).reshape(len(phase_Q), 2 * order))


def pulse_of(sample: Sample, row: int, rng: np.random.Generator) -> Pulse | None:
    """Return the folded light curve of object ``row``; None without period or total flux, or if the fit is poor."""
    at, period = sample.points(row), float(sample.period[row])
    total, error = sample.total_flux[at].astype(np.float64), sample.flux_err[at].astype(np.float64)
    ok = np.isfinite(total) & (total > 3.0 * error)
    if not np.isfinite(period) or period <= 0 or ok.sum() < MIN_POINTS:
        return None
    magnitude, sigma = magnitude_of(total[ok]), 1.0857 * error[ok] / total[ok]
    band, phase = sample.band[at][ok], sample.mjd[at][ok] / period % 1.0
    best = int(np.argmax([((1 / (sigma[band == b] + 0.02)) ** 2).sum() if (band == b).sum() >= MIN_POINTS else -1
                          for b in range(len(BANDS))]))  # fmt: skip
    here = band == best
    if here.sum() < MIN_POINTS:
        return None
    shape = _shape(phase[here], magnitude[here], sigma[here])
    if shape is None:
        return None
    coefficients, amplitude = shape
    mean_B, amplitude_B = np.full(len(BANDS), np.nan), np.full(len(BANDS), np.nan)
    for number in range(len(BANDS)):
        in_band = band == number
        if in_band.sum() >= 6:
            curve = fourier_basis(phase[in_band], len(coefficients) // 2) @ coefficients
            mean_B[number], amplitude_B[number] = _band_fit(curve, magnitude[in_band], sigma[in_band], amplitude)
    label = int(sample.label[row])
    return Pulse(row, label, period, *_fill_bands(mean_B, amplitude_B, label, rng), coefficients)


def _shape(phase: Float, magnitude: Float, sigma: Float) -> tuple[Float, float] | None:
    """Fit the harmonics of the best band, scaled to a range of 1, and the amplitude; None if the fit is poor."""
    order = int(np.clip(len(phase) // 10, 2, 10))
    weight = 1.0 / (sigma + 0.02)
    centre = float(np.average(magnitude, weights=weight**2))
    basis = fourier_basis(phase, order) * weight[:, None]
    damping = np.diag(np.repeat(0.02 * np.arange(1, order + 1) ** 2, 2) * float((weight**2).mean()))
    coefficients = np.linalg.solve(basis.T @ basis + damping, basis.T @ ((magnitude - centre) * weight))
    residual = (magnitude - centre) - fourier_basis(phase, order) @ coefficients
    noise = float(np.median(sigma**2))
    explained = 1.0 - max(float(np.median(np.abs(residual)) / 0.6745) ** 2 - noise, 0.0) / max(
        float(np.median(np.abs(magnitude - centre)) / 0.6745) ** 2 - noise, 1e-6
    )
    grid = fourier_basis(np.linspace(0, 1, 200), order) @ coefficients
    amplitude = float(grid.max() - grid.min())
    if explained < EXPLAINED or amplitude < 3.0 * np.sqrt(noise / len(phase)):
        return None
    return np.asarray(coefficients / amplitude, dtype=np.float64), amplitude


def _band_fit(curve: Float, magnitude: Float, sigma: Float, amplitude: float) -> tuple[float, float]:
    """Fit mean and amplitude of one band; the amplitude is regularised towards 0.8 times that of the best band."""
    weight = 1.0 / (sigma + 0.02) ** 2
    middle = float(np.average(curve, weights=weight))
    pull = 0.02 * float(weight.sum())
    top = float((weight * (curve - middle) * magnitude).sum()) + pull * 0.8 * amplitude
    fitted = max(top / (float((weight * (curve - middle) ** 2).sum()) + pull), 0.05 * amplitude)
    return float(np.average(magnitude, weights=weight)) - fitted * middle, fitted


def _fill_bands(mean_B: Float, amplitude_B: Float, label: int, rng: np.random.Generator) -> tuple[Float, Float]:
    """Fill mean and amplitude of unobserved bands by the colours and amplitude ratios of the class."""
    steps = np.array(COLOURS[label]) + COLOUR_SCATTER[label] * rng.standard_normal(5)
    offset_B = -np.concatenate(([0.0], np.cumsum(steps)))
    ratio_B = np.ones(len(BANDS)) if label == LABELS["EB"] else AMPLITUDES
    observed_B = np.flatnonzero(np.isfinite(mean_B))
    nearest_B = observed_B[np.abs(np.arange(len(BANDS))[:, None] - observed_B[None, :]).argmin(axis=1)]
    mean = np.where(np.isfinite(mean_B), mean_B, mean_B[nearest_B] + offset_B - offset_B[nearest_B])
    guessed = amplitude_B[nearest_B] * ratio_B / ratio_B[nearest_B] * np.exp(0.05 * rng.standard_normal(len(BANDS)))
    return mean, np.where(np.isfinite(amplitude_B), amplitude_B, guessed)


def synthetic_pulses(label: int, number: int, rng: np.random.Generator) -> list[Pulse]:
    """Return synthetic periodic variables with typical shapes and periods of a class."""
    phase = np.linspace(0.0, 1.0, 128, endpoint=False)
    pulses = []
    for _ in range(number):
        low, high = PERIODS[label]
        period = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        if label == LABELS["EB"]:
            width, second = rng.uniform(0.03, 0.12), rng.uniform(0.2, 1.0)
            shape = _eclipse(phase, 0.0, width) + second * _eclipse(phase, 0.5, width)
        elif label == LABELS["Delta Scuti"] or (label == LABELS["RR Lyrae"] and period < 0.45):
            shape = np.cos(2 * np.pi * phase) + 0.1 * np.cos(4 * np.pi * phase + rng.uniform(0, 6.3))
        else:
            rise = rng.uniform(0.12, 0.35)
            shape = np.where(phase < rise, 1.0 - phase / rise, (phase - rise) / (1.0 - rise))
        coefficients = np.linalg.lstsq(fourier_basis(phase, 8), shape - shape.mean(), rcond=None)[0]
        coefficients /= np.ptp(fourier_basis(phase, 8) @ coefficients)
        swing = float(np.exp(rng.uniform(*np.log(SWINGS[label]))))
        mean, amplitude = np.full(len(BANDS), np.nan), np.full(len(BANDS), np.nan)
        mean[1], amplitude[1] = 19.0, swing
        pulses.append(Pulse(-1, label, period, *_fill_bands(mean, amplitude, label, rng), coefficients))
    return pulses


def _eclipse(phase: Float, middle: float, width: float) -> Float:
    distance = np.abs((phase - middle + 0.5) % 1.0 - 0.5)
    return np.asarray(np.exp(-0.5 * (distance / width) ** 4))


def read_flares(path: Path) -> list[tuple[str, Flare]]:
    """Read the flares of a library of M-dwarf models with the name of each star; empty if the file does not exist."""
    if not path.exists():
        return []
    flares = []
    for number, row in enumerate(pq.read_table(path).to_pylist()):
        days = np.asarray(row["t_d"], dtype=np.float64)
        quiescent = np.array([10.0 ** (-0.4 * (row[f"quiescent_{band}"] - NJY_ZERO_POINT)) for band in BANDS])
        change = np.stack([np.asarray(row[f"dmag_{band}"], dtype=np.float64) for band in BANDS])
        flux = np.maximum(quiescent[:, None] * (10.0 ** (-0.4 * change) - 1.0), 0.0)
        strong = np.flatnonzero(flux[0] >= 0.5 * flux[0].max())
        if len(days) >= 3 and flux[0].max() > 0:
            bright = (float(days[strong[0]]), float(days[strong[-1]]) + 0.005)
            flares.append(
                (f"KIC-{row['kic_id']}", Flare(-1 - number, LABELS["M-dwarf Flare"], days, flux, quiescent, bright))
            )
    return flares
