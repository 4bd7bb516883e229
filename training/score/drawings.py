"""Curves of the report: scores over time, abstention, settling. Each function returns a figure.

Colours are those of Okabe & Ito (2008), which people with any common colour blindness can tell apart; lines differ in
dash and marker too, for paper without colour. Shades are plus and minus one sample standard deviation over runs.
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
    """A figure of panels in the house style, as wide as the page."""
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
    """A line with its shade where there is a spread."""
    colour, marker, dash = style
    axes.plot(x, mean, color=colour, marker=marker, linestyle=dash, label=label)
    if np.isfinite(spread).any():
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)


def step_axis(axes: Axes, steps: Mapping[str, Any] | Sequence[float], axis: str) -> None:
    """A logarithmic axis with the steps themselves as ticks, every second one where all would not fit."""
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
