"""Comparison of a simulated population with a real one, class by class: pictures, numbers, and what disagrees.

The picture of the population check: one row per class, one column per measure, simulation and real set overlaid.

Histograms are shares of the objects, lines are medians; bars are the median number of points in a band with quartiles.

Run::

    python -m training simulate --out build/sim.parquet --per-class 1000
    python -m training.simulate.population_report build/sim.parquet --against build/elasticc.parquet --alerts

writes ``build/population.png`` and ``build/population.json``. Both files are light-curve files of this project; make
one of a survey's own format with ``python -m training import``. Classes are compared where both files have them.

Notable: a set collected from an alert stream holds each object as one of its alerts saw it, and objects with many
alerts more often; ``--alerts`` shows the simulation the same way, else whole histories are compared. A survey of other
depth sees other distances: ``--equal-redshift`` gives each class of the simulation the redshifts of the real set. For a
few classes of the wide survey alone, simulate with ``--classes`` and ``--deep-fraction 0``. An entry of
``disagreements`` is a median that is off by more than `TOLERANCE`, which small samples and selection can cause too.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, SettingsConfigDict

from models.bands import BANDS
from training.data.dataset import read_notes
from training.simulate.photometry import Floats
from training.simulate.population_measures import (
    Sample,
    at_redshifts_of,
    common_classes,
    cut_at_alerts,
    measure,
    read_sample,
)

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


PERCENTILES = (5, 25, 50, 75, 95)
FEWEST = 20  # objects with a value on both sides; below that a median says little
COLOURS = tuple("colour_" + left + right for left, right in pairwise(BANDS))
COUNTS = ("points", "detections", *(f"points_{band}" for band in BANDS))
TOLERANCE = {"peak": 0.3, **dict.fromkeys(COLOURS, 0.15)}  # mag
RATIO_TOLERANCE = {"duration": 1.4, "redshift": 1.25, **dict.fromkeys(COUNTS, 1.4)}

Measures = dict[str, Floats]


class PopulationReport(BaseSettings):
    """Compare a simulated population with a real one: PNG and JSON."""

    model_config = SettingsConfigDict(
        cli_prog_name="python -m training.simulate.population_report", cli_kebab_case=True, cli_implicit_flags=True
    )

    simulated: CliPositionalArg[Path] = Field(description="Parquet file of `simulate`")
    against: Path = Field(description="Parquet file of the real set")
    out: Path = Field(default=Path("build/population"), description="path of the two files, without suffix")
    rename: dict[str, str] = Field(default={}, description="class of the real set = class of the simulation")
    equal_redshift: bool = Field(default=False, description="give the simulation the redshifts of the real set")
    alerts: bool = Field(default=False, description="cut the simulated histories at random alerts")
    seed: int = Field(default=0, ge=0, description="of the draw of alerts")

    def cli_cmd(self) -> None:
        """Compare, write both files, and print the disagreements."""
        from training.simulate.population_report import draw_populations

        simulated = read_sample(self.simulated)
        if self.alerts:
            simulated = cut_at_alerts(simulated, np.random.default_rng(self.seed))
        reference = read_sample(self.against, self.rename)
        if self.equal_redshift:
            simulated = at_redshifts_of(simulated, reference)
        report = compare(simulated, reference, self.against.stem)
        report["simulation"] = json.loads(read_notes(self.simulated).get("simulation", "null"))
        report["selection"] = self.model_dump(include={"alerts", "seed", "equal_redshift"})
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        draw_populations(self.out.with_suffix(".png"), simulated, reference, self.against.stem)
        compared = sum(map(len, report["classes"].values()))
        summary = f"{compared} medians compared, {len(report['disagreements'])} disagree"
        sys.stdout.write("\n".join([*report["disagreements"], summary]) + "\n")


def compare(simulated: Sample, reference: Sample, reference_name: str) -> dict[str, Any]:
    """Percentiles of every measure on both sides, Kolmogorov-Smirnov distances, and the disagreements in words.

    Raises ValueError when the two sets have no class in common.
    """
    names = common_classes(simulated, reference)
    left, right = measure(simulated), measure(reference)
    classes = {
        name: _compare_class(_of_class(left, simulated, name), _of_class(right, reference, name)) for name in names
    }
    found = [
        f"{name}: median {key.replace('_', ' ')} {entry['simulated'][2]:.3g} simulated, "
        f"{entry['reference'][2]:.3g} in {reference_name}"
        for name, measures in classes.items()
        for key, entry in measures.items()
        if not entry["agrees"]
    ]
    return {
        "reference": reference_name,
        "percentiles": PERCENTILES,
        "tolerance_mag": TOLERANCE,
        "tolerance_ratio": RATIO_TOLERANCE,
        "classes": classes,
        "disagreements": found,
    }


def _of_class(measures: Measures, sample: Sample, name: str) -> Measures:
    return {key: values[sample.class_name == name] for key, values in measures.items()}


def _compare_class(simulated: Measures, reference: Measures) -> dict[str, dict[str, Any]]:
    """Entries of the measures that enough objects have on both sides."""
    entries = {}
    for key in (*TOLERANCE, *RATIO_TOLERANCE):
        left, right = (values[key][np.isfinite(values[key])] for values in (simulated, reference))
        if min(len(left), len(right)) >= FEWEST:
            entries[key] = _entry(key, left, right)
    return entries


def _entry(key: str, left: Floats, right: Floats) -> dict[str, Any]:
    medians = float(np.median(left)), float(np.median(right))
    if key in TOLERANCE:
        agrees = abs(medians[0] - medians[1]) <= TOLERANCE[key]
    else:  # counts may be zero: one point more or less is no disagreement
        low, high = sorted(medians)
        agrees = high <= RATIO_TOLERANCE[key] * low or (key in COUNTS and high - low <= 1.0)
    return {
        "objects": [len(left), len(right)],
        "simulated": np.percentile(left, PERCENTILES).round(3).tolist(),
        "reference": np.percentile(right, PERCENTILES).round(3).tolist(),
        "distance": round(_distance(left, right), 3),
        "agrees": bool(agrees),
    }


def _distance(left: Floats, right: Floats) -> float:
    """Largest difference of the two cumulative distributions."""
    left, right = np.sort(left), np.sort(right)
    grid = np.concatenate([left, right])
    parts = (np.searchsorted(values, grid, side="right") / len(values) for values in (left, right))
    first, second = parts
    return float(np.abs(first - second).max())


if __name__ == "__main__":
    try:
        CliApp.run(PopulationReport)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
