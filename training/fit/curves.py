"""Metrics of a run as a table and as a picture, made from its log.

``metrics.csv`` has one row for each logged step, with the training means since the row before and, at a validation, its
scores (``validation_...``). ``learning-curves.png`` shows the loss and the scores by step.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nightjar_alerts.models.common import replacing, write_atomic
from nightjar_alerts.training.fit.checkpoints import read_log

METRICS, PICTURE = "metrics.csv", "learning-curves.png"
VALIDATION = "validation_"
TRAINED, VALIDATED = "#0072B2", "#D55E00"  # Okabe & Ito (2008)
MAX_PANELS = 4

Row = dict[str, float]


def write_metrics(folder: Path) -> list[Row]:
    """Write ``metrics.csv`` of a run folder and return its rows; lists and tables of the log are left out."""
    rows = _rows(read_log(folder))
    if not rows:
        return rows
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomic(folder / METRICS, text.getvalue().encode())
    return rows


def _rows(lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: dict[int, Row] = {}
    for line in lines:
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float)}
        rows.setdefault(line["step"], {}).update(numbers)
    return list(rows.values())


def draw_curves(folder: Path, rows: Sequence[Row]) -> None:
    """Draw the training loss and the validation scores, each beside its value in training if there is one."""
    scores = list(dict.fromkeys(name for row in rows for name in row if name.startswith(VALIDATION)))
    panels = ["loss", *(name.removeprefix(VALIDATION) for name in scores if name != f"{VALIDATION}score")]
    panels = panels[:MAX_PANELS]
    figure = Figure(figsize=(4.2 * len(panels), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, rows, name)
    with replacing(folder / PICTURE) as partial:
        figure.savefig(partial, format="png", dpi=120)


def _draw(axes: Axes, rows: Sequence[Row], name: str) -> None:
    curves = {"training": (name, TRAINED, ""), "validation": (VALIDATION + name, VALIDATED, "o")}
    for label, (column, colour, marker) in curves.items():
        points = [(row["step"], row[column]) for row in rows if column in row]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3, label=label, linewidth=1.4)
    axes.set(title=name.replace("_", " "), xlabel="step")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    if axes.lines:
        axes.legend(frameon=False)
