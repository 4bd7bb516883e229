"""The picture of the population check: one row per class, one column per measure, simulation and real set overlaid.

Histograms are shares of the objects, lines are medians; bars are the median number of points in a band with quartiles.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from models.lightcurve import BANDS
from training.simulate.photometry import Floats
from training.simulate.population_measures import Sample, measure
from training.simulate.population_report import common_classes

matplotlib.use("Agg")

SIMULATED, REAL = "#2b6ca3", "#d1741f"
COLUMNS = {
    "peak": "brightest detection (AB mag)",
    "duration": "first to last detection (days)",
    "colour_gr": "g - r, same night (mag)",
    "colour_ri": "r - i, same night (mag)",
    "points": "points",
}
LOGARITHMIC = ("duration", "points")
SHORTEST = 0.02  # days; two visits of one night
MANY_DECADES = 50.0  # an axis of a larger ratio is labelled at powers of ten only


def draw_populations(path: Path, simulated: Sample, reference: Sample, reference_name: str) -> None:
    """Write the comparison of every class that both sets have as a PNG."""
    names = common_classes(simulated, reference)
    sides = [(sample, measure(sample)) for sample in (simulated, reference)]
    figure = Figure(figsize=(17, 0.9 + 2.3 * len(names)), dpi=90, layout="constrained")
    grid = figure.subplots(len(names), len(COLUMNS) + 1, squeeze=False)
    for row, name in zip(grid, names, strict=True):
        of_class = [
            {key: values[sample.class_name == name] for key, values in found.items()} for sample, found in sides
        ]
        for axes, (key, label) in zip(row[:-1], COLUMNS.items(), strict=True):
            _histograms(axes, of_class[0][key], of_class[1][key], logarithmic=key in LOGARITHMIC)
            axes.set_xlabel(label)
        _points_per_band(row[-1], of_class)
        row[0].set_ylabel(f"{name}\n{len(of_class[0]['peak'])} / {len(of_class[1]['peak'])} objects", fontsize=11)
    handles = [Patch(color=colour, alpha=0.6) for colour in (SIMULATED, REAL)]
    figure.legend(handles, ["simulation", reference_name], loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path)


def _histograms(axes: Axes, simulated: Floats, real: Floats, *, logarithmic: bool) -> None:
    """Shares of the objects per bin; bins span the central 98 % of both sides together."""
    pair = [values[np.isfinite(values)] for values in (simulated, real)]
    together = np.concatenate(pair)
    if not len(together):
        axes.text(0.5, 0.5, "no object has one", ha="center", va="center", transform=axes.transAxes, color="0.4")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    if logarithmic:
        pair, together = [np.maximum(values, SHORTEST) for values in pair], np.maximum(together, SHORTEST)
    low, high = np.percentile(together, [1, 99])
    high = max(high, 1.05 * low if logarithmic else low + 0.1)
    bins = np.geomspace(low, high, 26) if logarithmic else np.linspace(low, high, 26)
    for values, colour in zip(pair, (SIMULATED, REAL), strict=True):
        if len(values):
            weights = np.full(len(values), 1.0 / len(values))
            axes.hist(values, bins.tolist(), weights=weights, color=colour, alpha=0.5)
            axes.axvline(float(np.median(values)), color=colour, linewidth=1.5)
    if logarithmic:
        axes.set_xscale("log")
        few = high < MANY_DECADES * low
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([])


def _points_per_band(axes: Axes, sides: list[dict[str, Floats]]) -> None:
    """Median number of points in each band with its quartiles."""
    place = np.arange(len(BANDS))
    for side, colour, shift in zip(sides, (SIMULATED, REAL), (-0.2, 0.2), strict=True):
        counts = np.stack([side[f"points_{band}"] for band in BANDS])
        low, middle, high = np.percentile(counts, [25, 50, 75], axis=1)
        axes.bar(place + shift, middle, 0.38, color=colour, alpha=0.6)
        axes.errorbar(place + shift, middle, [middle - low, high - middle], fmt="none", ecolor="0.25", linewidth=1)
    axes.set_xticks(place, BANDS)
    axes.set_xlabel("points per band")
