"""Features of light curves for trees: the statistics that the networks work out in their graph, and shapes and colours.

- `models.networks.statistics` (curve, lag and period statistics), NaN where one is not defined;
- shapes: flux in every band relative to the largest flux of all, at days from the maximum, by interpolation between
  points that are close enough; widths at half and a fifth of the maximum; rise and fall;
- colours: ratios of neighbouring bands at those days.

Shapes and colours tell neither brightness nor survey by their values; `FULL` has what does, `SHAPES` has not. Points
are what a bundle of the default limits would see.

Legend: N objects, F features.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from models.bands import BANDS
from models.lightcurve import Limits, RaggedBatch, Tokens, featurise
from models.networks.statistics import curve_statistics, period_statistics
from models.networks.statistics.lag_statistics import lag_statistics
from models.networks.statistics.points import points
from training.sky.record import Reveal, Sky

Float32 = NDArray[np.float32]

LIMITS: Final = Limits()
DAYS: Final = (-40.0, -20.0, -10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 70.0, 110.0)
"""From the maximum, observed; where a redshift is known, in the rest frame."""
LONGEST_GAP: Final = 25.0
"""Days between two points, relative to the distance from the maximum, that interpolation crosses."""
LEVELS: Final = (0.5, 0.2)
BATCH: Final = 64
COLUMNS: Final = ("z_final", "z_final_err")
"""Dust is left out: where it is known at all tells the survey."""


def features_of(sky: Sky, reveal: Reveal = "nothing") -> tuple[Float32, NDArray[np.intp]]:
    """Features (M, F) and the rows of ``sky`` that they belong to: objects without a usable point have none."""
    shown = [(row, tokens) for row in range(len(sky)) if (tokens := tokens_of(sky, row, reveal)) is not None]
    order = sorted(range(len(shown)), key=lambda place: len(shown[place][1]))
    values: list[Float32 | None] = [None] * len(shown)
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        block = _in_graph([shown[place][1] for place in places])
        for place, row in zip(places, block, strict=True):
            values[place] = np.concatenate([row, _shapes(shown[place][1])])
    rows = np.array([row for row, _ in shown], dtype=np.intp)
    found = [value for value in values if value is not None]
    return (np.stack(found) if found else np.zeros((0, 0), np.float32)), rows


def tokens_of(sky: Sky, row: int, reveal: Reveal, limits: Limits = LIMITS) -> Tokens | None:
    """Make an object the tokens of a network; None without a point."""
    curve = sky.curve(row, reveal)
    return featurise(curve, limits, "FLUXCAL", COLUMNS) if len(curve) else None


def _in_graph(tokens: Sequence[Tokens]) -> Float32:
    """Statistics of the networks and the revealed numbers, NaN where unknown."""
    padded = RaggedBatch.collate(tokens).padded()
    flux, flux_err, time = (torch.from_numpy(padded[name]) for name in ("flux", "flux_err", "time"))
    band, mask = torch.from_numpy(padded["band"]), torch.from_numpy(padded["mask"])
    metadata = padded["metadata"]
    redshift = torch.from_numpy(metadata[:, 0].copy())
    with torch.no_grad():
        seen = points(flux, flux_err, time, band, mask, len(BANDS))
        told = [
            curve_statistics.statistics(seen, redshift),
            lag_statistics(seen),
            period_statistics.period_statistics(seen),
        ]
    blocks = [torch.where(part.known_BK, part.value_BK, torch.nan).numpy() for part in told]
    return np.concatenate([*blocks, metadata], axis=1, dtype=np.float32)


def _shapes(tokens: Tokens) -> Float32:
    """Relative fluxes, colours and widths of one object, (F,)."""
    flux, time = tokens.flux.astype(np.float64), tokens.time.astype(np.float64)
    lasting = 1.0 + (float(tokens.metadata[0]) if np.isfinite(tokens.metadata[0]) else 0.0)
    sure = flux - tokens.flux_err
    top = int(np.argmax(sure))
    scale, peak = max(float(flux[top]), 1e-6), float(time[top])
    sampled = np.full((len(BANDS), len(DAYS)), np.nan)
    widths = np.full((len(BANDS), 2 * len(LEVELS) + 2), np.nan)
    for number in range(len(BANDS)):
        here = tokens.band == number
        if here.any():
            days = (time[here] - peak) / lasting
            sampled[number] = _interpolated(days, flux[here] / scale)
            widths[number] = _widths(days, flux[here] / scale, tokens.flux_err[here] / scale)
    known = np.maximum(sampled, 0.02)
    colours = np.array([np.log(known[blue] / known[red]) for blue, red in pairwise(range(len(BANDS)))])
    apart = np.log(known[1] / known[3])  # g over i, where r is missing
    return np.concatenate([sampled.ravel(), colours.ravel(), apart, widths.ravel()]).astype(np.float32)


def _interpolated(days: NDArray[np.float64], flux: NDArray[np.float64]) -> NDArray[np.float64]:
    """Flux at `DAYS`, NaN where the points around are too far apart or all on one side."""
    wanted = np.array(DAYS)
    after = np.searchsorted(days, wanted)
    before = np.clip(after - 1, 0, len(days) - 1)
    after = np.clip(after, 0, len(days) - 1)
    gap = days[after] - days[before]
    inside = (wanted >= days[0] - 2.0) & (wanted <= days[-1] + 2.0) & (gap <= LONGEST_GAP + 0.5 * np.abs(wanted))
    return np.where(inside, np.interp(wanted, days, flux), np.nan)


def _widths(days: NDArray[np.float64], flux: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.float64]:
    """Days above each level before and after the maximum of a band, its height, and when it is."""
    top = int(np.argmax(flux - error))
    height = max(float(flux[top]), 1e-3)
    found = [height, float(days[top])]
    for level in LEVELS:
        below = flux < level * height
        before, after = np.flatnonzero(below[:top]), np.flatnonzero(below[top:])
        found.append(float(days[top] - days[before[-1]]) if len(before) else np.nan)
        found.append(float(days[top + after[0]] - days[top]) if len(after) else np.nan)
    return np.array(found)
