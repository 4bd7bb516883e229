"""Matrices and maps of the report: confusion over runs, classes over time, experts, the embedding. Each is a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from models.bands import BANDS
from models.lightcurve import Int64
from training.score.figures import AXES, BLUE, STYLE, WIDTH, canvas

FAMILY_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#882255")
FAMILY_MARKERS = "os^DvXP*"
_SHOWN = 0.5  # percent; smaller cells stay blank so that the structure shows

Matrix = NDArray[np.float64]


def family_order(families: Sequence[str]) -> tuple[Int64, list[int]]:
    """Order of classes that puts families together, and after how many classes another family begins."""
    place = {family: index for index, family in enumerate(dict.fromkeys(families))}
    rank_C = np.array([place[family] for family in families], dtype=np.int64)
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
    """Confusion matrix in percent of the true class.

    Parameters
    ----------
    range_CC : lower and upper percentile over runs; cells show how far they lie from the median.
    borders : draw a line after so many classes.
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
    axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(classes)), names)
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
    """F1 of every class against days and against detections, in percent, families together."""
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
    """Share of every expert in each band (above) and each class (below), one column for every mixture."""
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


def embedding_figure(place: Mapping[str, Any], families: Sequence[str], name: str) -> Figure:
    """All mapped objects, coloured by the family of their class."""
    figure, (axes,) = canvas(1, 1, 5.8)
    label, x, y = _places(place)
    for family, colour, marker in zip(dict.fromkeys(families), FAMILY_COLOURS, FAMILY_MARKERS, strict=False):
        mine = np.isin(label, [index for index, other in enumerate(families) if other == family])
        axes.scatter(x[mine], y[mine], s=12, color=colour, marker=marker, alpha=0.75, linewidth=0, label=family)
    shares = place["explained"]
    axes.set_xlabel(
        f"{name}, first axis" if shares is None else f"first principal component ({shares[0]:.0%} of the variance)"
    )
    axes.set_ylabel(f"{name}, second axis" if shares is None else f"second principal component ({shares[1]:.0%})")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=2, frameon=False)
    return figure


def class_map_figure(place: Mapping[str, Any], classes: Sequence[str]) -> Figure:
    """Draw the map once for every class, its objects dark before the others: nobody tells twenty colours apart."""
    columns = 5
    rows = -(-len(classes) // columns)
    figure, panels = canvas(rows, columns, 1.9 * rows)
    label, x, y = _places(place)
    for index, axes in enumerate(panels):
        axes.set_axis_off()
        if index < len(classes):
            mine = label == index
            axes.scatter(x[~mine], y[~mine], s=4, color="0.85", linewidth=0)
            axes.scatter(x[mine], y[mine], s=8, color=BLUE, linewidth=0)
            axes.set_title(f"{classes[index]} ({mine.sum()})", fontsize=9.5)
    return figure


def _places(place: Mapping[str, Any]) -> tuple[NDArray[np.int64], Matrix, Matrix]:
    return np.array(place["label"]), np.array(place["x"], dtype=np.float64), np.array(place["y"], dtype=np.float64)
