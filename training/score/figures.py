"""Figures of the report.

Colours are those of Okabe & Ito (2008), distinguishable with any common colour blindness; lines also differ in dash and
marker, for print without colour. Shaded ranges are plus and minus one sample standard deviation over runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.photometry import BANDS

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
    """Return a figure with a grid of panels, as wide as the page."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flatten())


def series_figure(axis: str, lines: Mapping[str, Series]) -> Figure:
    """Plot every score against days or detections; ``lines`` are series of reports by label."""
    figure, panels = canvas(2, 4, 5.4)
    for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
        for (label, series), style in zip(lines.items(), STYLES, strict=False):
            line(axes, [float(step) for step in series], *scores_of(series, key), label=label, style=style)
        axes.set_title(title, loc="left")
        step_axis(axes, next(iter(lines.values())), axis)
        if axes in panels[:4]:
            axes.set_xlabel("")  # shown below the second row only
        if key in LOWER_IS_BETTER:
            axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    legend_below(figure, panels[0])
    return figure


def hierarchy_figure(report: Mapping[str, Any]) -> Figure:
    """Plot the F1 at every level of the taxonomy against days and against detections."""
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
    """Plot accuracy and macro-F1 against the share of classified objects."""
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
    """Plot the share of objects with a stable class, and with a stable and correct one, over both series."""
    figure, panels = canvas(1, 2, 3.6)
    lines = {"stable": "class never changes again", "stable_and_right": "... and is the true one"}
    for axes, axis in zip(panels, ("days", "detections"), strict=True):
        part = section[axis]
        if part is None:
            axes.set_axis_off()
            continue
        for (key, label), style in zip(lines.items(), STYLES, strict=False):
            line(axes, part["steps"], *curve_of(part[key]), label=label, style=style)
        step_axis(axes, part["steps"], axis)
        axes.set_ylim(0, 1.03)
        axes.set_ylabel("share of objects")
    legend_below(figure, panels[0] if section["days"] is not None else panels[1])
    return figure


def scores_of(series: Series, key: str) -> tuple[Values, Values]:
    """Return means and spreads of a score along a series; NaN if missing."""
    steps = [step.get(key, {"mean": None, "spread": None}) for step in series.values()]
    mean, spread = (np.array([one[part] for one in steps], dtype=np.float64) for part in ("mean", "spread"))
    return mean, spread


def curve_of(values: Mapping[str, Any]) -> tuple[Values, Values]:
    """Return mean and spread of a curve; the spread is NaN if missing."""
    mean = np.array(values["mean"], dtype=np.float64)
    spread = np.full(len(mean), np.nan) if values["spread"] is None else np.array(values["spread"], dtype=np.float64)
    return mean, spread


def line(axes: Axes, x: Sequence[float], mean: Values, spread: Values, *, label: str, style: LineStyle) -> None:
    """Draw a line, with a shaded range if there is a spread."""
    colour, marker, dash = style
    axes.plot(x, mean, color=colour, marker=marker, linestyle=dash, label=label)
    if np.isfinite(spread).any():
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)


def step_axis(axes: Axes, steps: Mapping[str, Any] | Sequence[float], axis: str) -> None:
    """Set a logarithmic axis with ticks at the steps, or at every second one if there are many."""
    values = [float(step) for step in steps]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(values[::2] if len(values) > 8 else values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(AXES[axis])


def legend_below(figure: Figure, axes: Axes, columns: int = 5) -> None:
    """Draw one legend for all panels; none for a single line, which the caption explains."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = min(columns, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


DASHED: dict[str, Any] = {"color": "0.45", "linewidth": 1, "linestyle": "--"}


def reliability_figure(tables: Mapping[str, Sequence[Sequence[float | None]]]) -> Figure:
    """Plot accuracy against confidence in equal bins, and the number of objects in each bin below."""
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
    """Return the one-sigma interval of a fraction (Wilson 1927), whose width is not zero at 0 and 1."""
    count_K = np.where(count_K > 0, count_K, np.nan)
    middle = (share_K + 0.5 / count_K) / (1 + 1 / count_K)
    half = np.sqrt(share_K * (1 - share_K) / count_K + 0.25 / count_K**2) / (1 + 1 / count_K)
    return np.minimum(middle - half, share_K), np.maximum(middle + half, share_K)


def sets_figure(section: Mapping[str, Any], classes: Sequence[str]) -> Figure:
    """Plot coverage and size of sets by detections, and coverage by class."""
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
    position = np.arange(len(classes))
    labels = {"one threshold": "one threshold", "one threshold per class": "one per class"}
    for (name, label), (colour, marker, _), shift in zip(labels.items(), STYLES, (-0.16, 0.16), strict=False):
        values = np.array(coverage[name], dtype=np.float64)
        axes.plot(values, position + shift, marker, color=colour, label=label)
    axes.axvline(stated, **DASHED)
    axes.set_yticks(position, classes, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.04)
    axes.set_title("by class, complete light curves", loc="left")
    axes.legend(loc="lower left", fontsize=8.5, frameon=False)


def novelty_figure(section: Mapping[str, Any], classes: Sequence[str]) -> Figure:
    """Plot the AUROC of each out-of-distribution score for each left-out class."""
    scores = section["scores"]
    labels = list(next(iter(scores.values()))["by_class"])
    names = [*(classes[int(label)] for label in labels), "all left out"]
    figure, (axes,) = canvas(1, 1, 1.6 + 0.4 * len(names))
    for (name, score), (colour, marker, _) in zip(scores.items(), STYLES, strict=False):
        areas = [*(score["by_class"][label]["mean"] for label in labels), score["all"]["mean"]]
        position = np.arange(len(names))
        axes.plot(np.array(areas, dtype=np.float64), position, marker, color=colour, label=name, markersize=7)
    axes.axvline(0.5, **DASHED)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, 1.02), ylim=(len(names) - 0.5, -0.5), xlabel="AUROC (0.5, dashed: no better than chance)")
    legend_below(figure, axes)
    return figure


FAMILY_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#882255")
FAMILY_MARKERS = "os^DvXP*"
_SHOWN = 0.5  # percent; smaller cells are blank

Matrix = NDArray[np.float64]


def family_order(families: Sequence[str]) -> tuple[Int64, list[int]]:
    """Return an order of classes by family, and the positions at which another family begins."""
    rank = {family: index for index, family in enumerate(dict.fromkeys(families))}
    rank_C = np.array([rank[family] for family in families], dtype=np.int64)
    order_C = np.argsort(rank_C, kind="stable")
    return order_C, (np.flatnonzero(np.diff(rank_C[order_C])) + 1).tolist()


def confusion_figure(
    percent_CC: Matrix,
    classes: Sequence[str],
    support_C: Sequence[int],
    title: str,
    range_CC: tuple[Matrix, Matrix] | None = None,
    borders: Sequence[int] = (),
) -> Figure:
    """Plot a confusion matrix in percent of the true class.

    Parameters
    ----------
    range_CC : lower and upper percentile over runs; cells show their distances from the median.
    borders : numbers of classes after which a line is drawn.
    """
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(11, 10), dpi=90, layout="constrained")
        axes = figure.add_subplot()
    axes.imshow(np.nan_to_num(percent_CC), cmap="Blues", vmin=0, vmax=100)
    for edge in range(len(classes) + 1):
        style: dict[str, Any] = {"color": "0.35" if edge in borders else "0.9", "linewidth": 0.8}
        axes.axhline(edge - 0.5, **style)
        axes.axvline(edge - 0.5, **style)
    _write_numbers(axes, percent_CC, range_CC)
    names = [f"{name} ({count})" for name, count in zip(classes, support_C, strict=True)]
    text: dict[str, Any] = {"parse_math": False}  # a label may have dollar signs
    axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", rotation_mode="anchor", **text)
    axes.set_yticks(range(len(classes)), names, **text)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class (number of objects)")
    axes.set_title(title)
    return figure


def _write_numbers(axes: Axes, percent_CC: Matrix, range_CC: tuple[Matrix, Matrix] | None) -> None:
    """Write the median into a cell, and around it the distances to the upper and lower percentile, if any."""
    for (row, column), value in np.ndenumerate(percent_CC):
        if not value >= _SHOWN:
            continue
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": "white" if value > 55 else "black"}
        low, high = (value, value) if range_CC is None else (float(part[row, column]) for part in range_CC)
        if round(high - value) == round(value - low) == 0:
            axes.text(column, row, f"{value:.0f}", fontsize=8.5, **style)
            continue
        axes.text(column - 0.18, row, f"{value:.0f}", fontsize=8.5, **style)
        axes.text(column + 0.27, row - 0.22, f"+{high - value:.0f}", fontsize=6.5, **style)
        axes.text(column + 0.27, row + 0.22, f"−{value - low:.0f}", fontsize=6.5, **style)


def class_f1_figure(section: Mapping[str, Any], classes: Sequence[str], families: Sequence[str]) -> Figure:
    """Plot the F1 of every class against days and against detections, in percent, ordered by family."""
    order_C, borders = family_order(families)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(WIDTH, 1.4 + 0.27 * len(classes)), layout="constrained")
        panels = figure.subplots(1, len(section), sharey=True, width_ratios=[len(part) for part in section.values()])
    for axes, (axis, steps) in zip(panels, section.items(), strict=True):
        percent_CK = 100 * np.array(list(steps.values()), dtype=np.float64).T[order_C]
        axes.imshow(np.nan_to_num(percent_CK), aspect="auto", cmap="Blues", vmin=0, vmax=100)
        for (row, column), value in np.ndenumerate(percent_CK):
            text = "–" if np.isnan(value) else f"{value:.0f}"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=8.5, color="white" if value > 55 else "black"
            )
        for edge in borders:
            axes.axhline(edge - 0.5, color="white", linewidth=3)
        axes.set_xticks(range(len(steps)), list(steps))
        axes.set_xlabel(AXES[axis])
    panels[0].set_yticks(range(len(classes)), [classes[index] for index in order_C])
    return figure


def experts_figure(section: Mapping[str, Any], classes: Sequence[str], families: Sequence[str]) -> Figure:
    """Plot the share of every expert in each band (above) and each class (below), in one column per mixture."""
    mixtures, (order_C, borders) = section["mixtures"], family_order(families)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(WIDTH, 7.4), layout="constrained")
        grid = figure.subplots(2, len(mixtures), squeeze=False, height_ratios=[len(BANDS), len(classes)])
    largest = max(np.nanmax(np.array(one[key], dtype=float)) for one in mixtures for key in ("by_band", "by_class"))
    named: tuple[list[str], list[str]] = list(BANDS), [classes[index] for index in order_C]
    for place, (column, mixture) in enumerate(zip(grid.T, mixtures, strict=True)):
        by_class = np.array(mixture["by_class"], dtype=np.float64)[order_C]
        shares = (np.array(mixture["by_band"], dtype=np.float64), by_class)
        for axes, share_GX, names in zip(column, shares, named, strict=True):
            image = axes.imshow(share_GX, aspect="auto", cmap="cividis", vmin=0, vmax=largest)
            axes.set_xticks(range(share_GX.shape[1]), [str(expert + 1) for expert in range(share_GX.shape[1])])
            axes.set_yticks(range(len(names)), [""] * len(names) if place else names)
            axes.tick_params(length=0)
        for edge in borders:
            column[1].axhline(edge - 0.5, color="white", linewidth=0.8)
        column[0].set_title(mixture["name"])
        column[1].set_xlabel("expert")
    figure.colorbar(image, ax=list(grid.flatten()), aspect=40, label="share of the choices of a band or class")
    return figure


def embedding_figure(section: Mapping[str, Any], families: Sequence[str]) -> Figure:
    """Plot the map of the embedding, coloured by the family of the class."""
    figure, (axes,) = canvas(1, 1, 5.8)
    label, x, y = np.array(section["label"]), np.array(section["x"], dtype=float), np.array(section["y"], dtype=float)
    for family, colour, marker in zip(dict.fromkeys(families), FAMILY_COLOURS, FAMILY_MARKERS, strict=False):
        rows = np.isin(label, [index for index, other in enumerate(families) if other == family])
        axes.scatter(x[rows], y[rows], s=12, color=colour, marker=marker, alpha=0.75, linewidth=0, label=family)
    first, second = section["explained"]
    axes.set_xlabel(f"first principal component ({first:.0%} of the variance)")
    axes.set_ylabel(f"second principal component ({second:.0%})")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=2, frameon=False)
    return figure
