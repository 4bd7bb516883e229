"""Pictures of whether to believe an answer: reliability, prediction sets, strangeness. Each returns a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.score.drawings import (
    BLUE,
    SKY,
    STYLE,
    STYLES,
    WIDTH,
    Values,
    canvas,
    legend_below,
    line,
    scores_of,
    step_axis,
)

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
