"""Curves of the report: scores over time, abstention, settling. Each function returns a figure.

Colours are those of Okabe & Ito (2008), which people with any common colour blindness can tell apart; lines differ in
dash and marker too, for paper without colour. Shades are plus and minus one sample standard deviation over runs.

Pictures of whether to believe an answer: reliability, prediction sets, strangeness. Each returns a figure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

matplotlib.use("Agg")

BLUE, ORANGE, GREEN, PINK, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
STYLES = (
    *((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "^", "-."), (PINK, "D", ":")),
    *((RED, "v", (0, (5, 1))), (SKY, "X", (0, (1, 1)))),
)
PANELS = {
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "top_2": "true class in top 2",
    "hierarchical_f1": "hierarchical F1",
    "log_loss": "log loss, nats (lower is better)",
    "brier": "Brier (lower is better)",
    "ece": "ECE (lower is better)",
}
LOWER_IS_BETTER = ("log_loss", "brier", "ece")
AXES = {"days": "days since the first detection", "detections": "number of detections"}
WIDTH = 11.0
STYLE = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.4",
    "axes.grid": True,
    "grid.color": "0.92",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}

Values = NDArray[np.float64]
Series = Mapping[str, Mapping[str, Mapping[str, Any]]]
LineStyle = tuple[str, str, Any]


def canvas(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels in the house style, as wide as the page."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flatten())


def series_figure(axis: str, lines: Mapping[str, Series]) -> Figure:
    """Every score against days or detections; ``lines`` are series of reports by label."""
    figure, panels = canvas(2, 4, 5.4)
    for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
        for (label, series), style in zip(lines.items(), STYLES, strict=False):
            line(axes, [float(step) for step in series], *scores_of(series, key), label=label, style=style)
        axes.set_title(title, loc="left")
        step_axis(axes, next(iter(lines.values())), axis)
        if axes in panels[:4]:
            axes.set_xlabel("")  # the row below has it
        if key in LOWER_IS_BETTER:
            axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    legend_below(figure, panels[0])
    return figure


def hierarchy_figure(report: Mapping[str, Any]) -> Figure:
    """F1 at every level of the taxonomy against days and against detections."""
    figure, panels = canvas(1, 2, 3.6)
    keys = {"macro_f1": f"{len(report['classes'])} classes (macro-F1)"}
    keys |= {key: f"{len(groups)} groups (macro-F1)" for key, groups in reversed(report["levels"].items())}
    keys["hierarchical_f1"] = "hierarchical F1"
    for axes, axis in zip(panels, ("days", "detections"), strict=True):
        for (key, label), style in zip(keys.items(), STYLES, strict=False):
            line(axes, [float(step) for step in report[axis]], *scores_of(report[axis], key), label=label, style=style)
        step_axis(axes, report[axis], axis)
        axes.set_ylim(0, 1.03)
    panels[0].set_ylabel("F1")
    legend_below(figure, panels[0])
    return figure


def abstention_figure(section: Mapping[str, Any]) -> Figure:
    """Accuracy and macro-F1 against the share of objects that are answered."""
    figure, panels = canvas(1, 2, 3.6)
    for axes, (key, title) in zip(panels, (("accuracy", "accuracy"), ("macro_f1", "macro-F1")), strict=True):
        for (name, view), style in zip(section["views"].items(), STYLES, strict=False):
            line(axes, section["coverage"], *curve_of(view[key]), label=name, style=style)
        axes.set_title(f"{title} of the answered objects", loc="left")
        axes.set_xlabel("share of objects answered, the most confident first")
        axes.set(xlim=(0, 1.02), ylim=(0, 1.03))
    legend_below(figure, panels[0])
    return figure


def stability_figure(section: Mapping[str, Any]) -> Figure:
    """Share of objects whose class is settled, and settled and right, over both series."""
    figure, panels = canvas(1, 2, 3.6)
    lines = {"stable": "class never changes again", "stable_and_right": "... and is the true one"}
    for axes, axis in zip(panels, ("days", "detections"), strict=True):
        found = section[axis]
        if found is None:
            axes.set_axis_off()
            continue
        for (key, label), style in zip(lines.items(), STYLES, strict=False):
            line(axes, found["steps"], *curve_of(found[key]), label=label, style=style)
        step_axis(axes, found["steps"], axis)
        axes.set_ylim(0, 1.03)
        axes.set_ylabel("share of objects")
    legend_below(figure, panels[0] if section["days"] is not None else panels[1])
    return figure


def scores_of(series: Series, key: str) -> tuple[Values, Values]:
    """Means and spreads of a score along a series; NaN where there is none."""
    found = [step.get(key, {"mean": None, "spread": None}) for step in series.values()]
    mean, spread = (np.array([one[part] for one in found], dtype=np.float64) for part in ("mean", "spread"))
    return mean, spread


def curve_of(values: Mapping[str, Any]) -> tuple[Values, Values]:
    """Means and spreads of a curve; NaN where there is no spread."""
    mean = np.array(values["mean"], dtype=np.float64)
    spread = np.full(len(mean), np.nan) if values["spread"] is None else np.array(values["spread"], dtype=np.float64)
    return mean, spread


def line(axes: Axes, x: Sequence[float], mean: Values, spread: Values, *, label: str, style: LineStyle) -> None:
    """Draw a line, with its shade where there is a spread."""
    colour, marker, dash = style
    axes.plot(x, mean, color=colour, marker=marker, linestyle=dash, label=label)
    if np.isfinite(spread).any():
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)


def step_axis(axes: Axes, steps: Mapping[str, Any] | Sequence[float], axis: str) -> None:
    """Set a logarithmic axis with the steps themselves as ticks, every second one where all would not fit."""
    values = [float(step) for step in steps]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(values[::2] if len(values) > 8 else values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(AXES[axis])


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """One legend for all panels; none for a single line, which the caption explains."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = min(columns, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


DASHED: dict[str, Any] = {"color": "0.45", "linewidth": 1, "linestyle": "--"}


def reliability_figure(tables: Mapping[str, Sequence[Sequence[float | None]]]) -> Figure:
    """Accuracy against confidence in equal bins, with the number of objects in each below."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        grid = figure.subplots(2, len(tables), squeeze=False, sharex=True, sharey="row", height_ratios=[3.2, 1])
    for (top, bottom), (name, rows) in zip(grid.T, tables.items(), strict=True):
        count, confidence, accuracy = np.array(rows, dtype=np.float64).T
        middle = (np.arange(len(count)) + 0.5) / len(count)
        top.plot([0, 1], [0, 1], **DASHED)
        low, high = wilson(accuracy, count)
        top.errorbar(confidence, accuracy, yerr=(accuracy - low, high - accuracy), color=BLUE, fmt="o", elinewidth=1)
        bottom.bar(middle, count, width=0.85 / len(count), color=SKY)
        gap = np.nansum(count * np.abs(accuracy - confidence)) / max(1.0, count.sum())
        top.set_title(f"{name}: ECE {gap:.3f}", loc="left")
        top.set(xlim=(0, 1.02), ylim=(0, 1.03))
        bottom.set_xlabel("largest probability")
    grid[0, 0].set_ylabel("share that is right")
    grid[1, 0].set_ylabel("objects")
    return figure


def wilson(share_K: Values, count_K: Values) -> tuple[Values, Values]:
    """One-sigma interval of a share of so many objects (Wilson 1927), which has a width even where all are right."""
    count_K = np.where(count_K > 0, count_K, np.nan)
    middle = (share_K + 0.5 / count_K) / (1 + 1 / count_K)
    half = np.sqrt(share_K * (1 - share_K) / count_K + 0.25 / count_K**2) / (1 + 1 / count_K)
    return np.minimum(middle - half, share_K), np.maximum(middle + half, share_K)


def sets_figure(section: Mapping[str, Any], classes: Sequence[str]) -> Figure:
    """Coverage and size of sets by detections, and coverage class by class."""
    figure, panels = canvas(1, 3, 4.4)
    early, stated = section["detections"], section["stated_coverage"]
    steps = [float(step) for step in early]
    fitted_to = {"coverage": "light curves as short", "coverage_with_complete_thresholds": "complete light curves"}
    for (key, label), style in zip(fitted_to.items(), STYLES, strict=False):
        line(panels[0], steps, *scores_of(early, key), label=label, style=style)
    panels[0].axhline(stated, **DASHED)
    panels[0].legend(loc="lower right", fontsize=8.5, title="thresholds fitted to", title_fontsize=8.5, frameon=False)
    line(panels[1], steps, *scores_of(early, "mean_size"), label="", style=STYLES[0])
    for axes, title, top in (
        (panels[0], "share of sets with the true class", 1.03),
        (panels[1], "classes per set", None),
    ):
        step_axis(axes, early, "detections")
        axes.set_title(title, loc="left")
        axes.set_ylim(0, top or 1.06 * axes.get_ylim()[1])
    _class_coverage(panels[2], section["class_coverage"], stated, classes)
    return figure


def _class_coverage(axes: Axes, coverage: Mapping[str, Any], stated: float, classes: Sequence[str]) -> None:
    place = np.arange(len(classes))
    labels = {"lac": "one threshold", "lac, by class": "one per class"}
    for (name, label), (colour, marker, _), shift in zip(labels.items(), STYLES, (-0.16, 0.16), strict=False):
        values = np.array(coverage[name], dtype=np.float64)
        axes.plot(values, place + shift, marker, color=colour, label=label)
    axes.axvline(stated, **DASHED)
    axes.set_yticks(place, classes, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.04)
    axes.set_title("by class, complete light curves", loc="left")
    axes.legend(loc="lower left", fontsize=8.5, frameon=False)


def novelty_figure(section: Mapping[str, Any], classes: Sequence[str]) -> Figure:
    """AUROC of each out-of-distribution score for each left-out class."""
    scores = section["scores"]
    labels = list(next(iter(scores.values()))["by_class"])
    names = [*(classes[int(label)] for label in labels), "all left out"]
    figure, (axes,) = canvas(1, 1, 1.6 + 0.4 * len(names))
    for (name, score), (colour, marker, _) in zip(scores.items(), STYLES, strict=False):
        found = [*(score["by_class"][label]["mean"] for label in labels), score["all"]["mean"]]
        place = np.arange(len(names))
        axes.plot(np.array(found, dtype=np.float64), place, marker, color=colour, label=name, markersize=7)
    axes.axvline(0.5, **DASHED)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, 1.02), ylim=(len(names) - 0.5, -0.5), xlabel="AUROC (0.5, dashed: no better than chance)")
    legend_below(figure, axes)
    return figure
