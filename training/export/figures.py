"""The picture of the model card: a confusion matrix that can be read."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from models.lightcurve import Int64

matplotlib.use("Agg")


def draw_confusion(path: Path, confusion_CC: Int64, classes: Sequence[str], title: str) -> None:
    """Write the confusion matrix as a PNG, rows normalised to percent of the true class."""
    figure = Figure(figsize=(11, 10), dpi=90, layout="constrained")
    axes = figure.add_subplot()
    support = confusion_CC.sum(1, keepdims=True)
    percent_CC = 100 * confusion_CC / np.maximum(support, 1)
    axes.imshow(percent_CC, cmap="Blues", vmin=0, vmax=100)
    for edge in np.arange(len(classes) + 1) - 0.5:
        axes.axhline(edge, color="0.9", linewidth=0.5)
        axes.axvline(edge, color="0.9", linewidth=0.5)
    _write_numbers(axes, percent_CC)
    ticks = range(len(classes))
    names = [f"{name} ({count})" for name, count in zip(classes, support[:, 0], strict=True)]
    axes.set_xticks(ticks, classes, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(ticks, names)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class (objects)")
    axes.set_title(title)
    figure.savefig(path)


def _write_numbers(axes: Axes, percent_CC: NDArray[np.float64]) -> None:
    """Percentages in the cells; zeros stay blank so that the structure shows."""
    for (row, column), value in np.ndenumerate(percent_CC):
        if value >= 0.5:
            colour = "white" if value > 55 else "black"
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
