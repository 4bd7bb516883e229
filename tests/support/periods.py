"""Light curves that repeat, and the share of their frequencies that sums, fits and astropy's periodograms find.

The table of a page is made by::

    PYTHONPATH=tests python -m support.periods docs/training.md

Astropy's periodogram is Lomb and Scargle's with a floating mean, of several bands with one for every band
(``nterms_band=0``), on a grid of a fifth of a peak's width, up to ten cycles a day. All three get the same points.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from astropy.timeseries import LombScargle, LombScargleMultiband
from numpy.typing import NDArray

from nightjar_alerts.models.networks.statistics.period_statistics import (
    Peaks,
    Scores,
    peaks,
    periodogram,
    scores,
    search,
)
from nightjar_alerts.models.networks.statistics.points import SOFT, points

Floats = NDArray[np.float64]
Shape = Callable[[Floats], Floats]
G = 6


class Curve(NamedTuple):
    """One light curve that repeats ``cycles`` times a day."""

    flux: Floats
    flux_err: Floats
    time: Floats
    band: NDArray[np.int64]
    cycles: float


def eclipses(turns: Floats) -> Floats:
    """A detached binary: two unlike minima, each a sixth of a turn wide."""
    first, second = np.abs((turns + 0.5) % 1.0 - 0.5), np.abs(turns % 1.0 - 0.5)
    return -np.exp(-np.minimum((first / 0.1) ** 4, 100)) - 0.6 * np.exp(-np.minimum((second / 0.1) ** 4, 100))


def sampled(rng: np.random.Generator, number: int, days: float) -> Floats:
    """Times of night, in seasons of eight months."""
    day = rng.permutation(np.flatnonzero(np.arange(int(days)) % 365 < 240))[:number]
    return np.sort(day + rng.uniform(0.1, 0.45, number))


def drawn(count: int, number: int, bands: int, days: float, shape: Shape, noise: float, seed: int = 0) -> list[Curve]:
    """Light curves of half a magnitude; ``noise`` is the error over the flux."""
    rng, curves = np.random.default_rng(seed), []
    for _ in range(count):
        time, cycles = sampled(rng, number, days), float(np.exp(rng.uniform(np.log(0.1), np.log(6.0))))
        band = rng.integers(0, bands, number)
        level = 1000 * np.exp(rng.normal(0, 0.5, bands))[band]
        flux = level * 10 ** (0.1 * shape(cycles * time + rng.uniform())) + level * noise * rng.normal(size=number)
        curves.append(Curve(flux, level * noise, time - time[0], band, cycles))
    return curves


def weighed(curves: list[Curve]) -> Scores:
    flux, flux_err, time, band = (torch.from_numpy(np.stack(column)) for column in list(zip(*curves, strict=True))[:4])
    return scores(points(flux, flux_err, time, band, torch.ones_like(band, dtype=torch.bool), G))


def fitted(curves: list[Curve]) -> Peaks:
    return search(weighed(curves))


def share_found(curves: list[Curve], cycles: Floats, multiples: tuple[float, ...] = (1.0,)) -> float:
    """Share of the frequencies that are right, or a multiple of the right one, within the width of a peak."""
    true = np.array([curve.cycles for curve in curves])
    wide = np.array([1.0 / curve.time[-1] for curve in curves])
    return float(np.mean(np.any([np.abs(cycles - times * true) < times * wide for times in multiples], axis=0)))


def astropys(curve: Curve) -> float:
    """Frequency at which astropy's periodogram is highest; of several bands where the curve has them."""
    soft, error = np.arcsinh(curve.flux / SOFT), curve.flux_err / np.hypot(curve.flux, SOFT)
    grid = np.arange(2e-3, 10, 0.2 / curve.time[-1])
    if not curve.band.any():
        power = LombScargle(curve.time, soft, error).power(grid, method="fast")
    else:
        bands = LombScargleMultiband(curve.time, soft, curve.band, error, nterms_band=0)
        power = bands.power(grid, method="flexible", sb_method="fast")
    return float(grid[np.argmax(power)])


SWEPT: Final = (
    *((30, 1, 1000.0), (60, 1, 1000.0), (120, 1, 1000.0), (30, 1, 3650.0), (120, 1, 3650.0)),
    *((30, 6, 300.0), (60, 6, 1000.0), (120, 6, 1000.0), (120, 6, 3650.0), (300, 6, 3650.0)),
)
"""Points, bands and days."""
NOISE: Final = 0.03
COUNT: Final = 50
SLOT: Final = re.compile(r"(<!-- table: periods -->\n).*?(<!-- end of table -->)", re.DOTALL)


def waves_of(turns: Floats) -> Floats:
    """A sine."""
    wave: Floats = np.sin(2 * np.pi * turns)
    return wave


def table(count: int = COUNT) -> str:
    """Markdown table of the shares found, a row for every kind of light curve."""
    lines = ["| points | bands | days | by sums | by fits | astropy |", "|---|---|---|---|---|---|"]
    for number, bands, days in SWEPT:
        curves = drawn(count, number, bands, days, waves_of, NOISE, seed=1)
        weights = weighed(curves)
        found = [
            best.first[:, 0].numpy() for best in (peaks(periodogram(weights.score, weights.time)), search(weights))
        ]
        found.append(np.array([astropys(curve) for curve in curves]))
        shares = " | ".join(f"{share_found(curves, cycles):.2f}" for cycles in found)
        lines.append(f"| {number} | {bands} | {days:,.0f} | {shares} |")
        sys.stderr.write(f"{lines[-1]}\n")  # it takes half an hour
    return "\n".join(lines)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(SLOT.sub(lambda slot: f"{slot[1]}\n{table()}\n\n{slot[2]}", page.read_text()))
