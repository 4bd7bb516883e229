"""The report as a self-contained HTML file with embedded figures, without scripts, fonts or network access.

The template is ``page.html.j2``. The page is written from the JSON reports only, so that it can be rebuilt later.
"""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from nightjar_alerts.training.score import figures

Report = Mapping[str, Any]
Rows = list[list[str]]

TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # names come from data files
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
COLUMNS: Final = {
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "top_2": "top 2",
    "log_loss": "log loss",
    "brier": "Brier",
    "ece": "ECE",
    "hierarchical_f1": "hierarchical F1",
}
STABILITY: Final = {
    "flip_rate": "flip rate: share of steps that change the class",
    "flips_per_object": "changes per object",
    "never_flipped": "share of objects whose first answer is their last",
}
SETTLED: Final = {"median_step": "half of all objects", "median_step_right": "half of those that end up right"}


def read_baselines(paths: Sequence[Path]) -> list[Report]:
    """Read reports of ``baseline``."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def write_page(path: Path, report: Report, baselines: Sequence[Report] = ()) -> None:
    """Write the page.

    Raises
    ------
    ValueError
        If the report and a baseline were not scored on the same objects.
    """
    if any(report["data"] != baseline["data"] for baseline in baselines):
        raise ValueError("the report and the baseline were not scored on the same objects")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report, baselines), encoding="utf-8")


def page(report: Report, baselines: Sequence[Report] = ()) -> str:
    """Return the HTML document."""
    novelty = report["novelty"]
    return TEMPLATES.get_template("page.html.j2").render(
        report=report,
        score_columns=["objects", *COLUMNS.values()],
        axes=figures.AXES,
        tiles=list(_tiles(report)),
        views=_views(report, baselines),
        steps={axis: _steps(report, axis) for axis in ("days", "detections")},
        class_f1=[[name, "–" if score is None else f"{score:.3f}"] for name, score in report["f1"].items()],
        groups=[f"{len(names)} groups: {', '.join(names)}" for names in report["levels"].values()],
        stability=_stability(report),
        sets=_sets(report),
        novelty=[] if novelty is None else [[name, value(score["all"])] for name, score in novelty["scores"].items()],
        drawn=_drawn(report, baselines),
    )


def value(score: Mapping[str, Any], digits: int = 3) -> str:
    """Format mean ± spread; an en dash if it was not measured."""
    if score["mean"] is None:
        return "–"
    mean = f"{score['mean']:.{digits}f}"
    return mean if score["spread"] is None else f"{mean} ± {score['spread']:.{digits}f}"


def _tiles(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield mean, spread and label of each main score."""
    everything, sets = report["views"]["everything"], report["conformal"]
    first = [(everything["macro_f1"], 3, "macro-F1, complete light curves")]
    first += [(report["detections"][n]["macro_f1"], 3, f"macro-F1 at {n} detections") for n in ("3", "10")]
    first.append((everything["ece"], 3, "calibration error (ECE)"))
    if sets is not None:
        first.append(
            (sets["methods"]["one threshold"]["mean_size"], 2, f"classes in a {sets['stated_coverage']:.0%} set")
        )
    for score, digits, label in first:
        mean, _, spread = value(score, digits).partition(" ± ")
        yield mean, spread, label


def _views(report: Report, baselines: Sequence[Report]) -> Rows:
    """Return the scores of every view, each followed by those of the baselines, indented."""
    rows = []
    for name, scores in report["views"].items():
        rows.append([name, *_cells(scores)])
        comparable = (one for one in baselines if name in one["views"])
        rows += [[f"\N{EM SPACE}{one['models'][0]['name']}", *_cells(one["views"][name])] for one in comparable]
    return rows


def _steps(report: Report, axis: str) -> dict[str, Rows]:
    sources = {"with metadata": report[axis], "without metadata": report[f"{axis}_no_metadata"]}
    return {words: [[step, *_cells(scores)] for step, scores in series.items()] for words, series in sources.items()}


def _cells(scores: Report) -> list[str]:
    """Return number of objects and every score; older reports may lack some."""
    absent = {"mean": None, "spread": None}
    return [f"{scores['objects']['mean']:.0f}", *(value(scores.get(key, absent)) for key in COLUMNS)]


def _stability(report: Report) -> dict[str, Any] | None:
    """Return the two tables of the section; None if nothing was measured."""
    section = {name: part for name, part in report["stability"].items() if part is not None}
    if not section:
        return None
    rows = [[label, *(value(part[key], 2) for part in section.values())] for key, label in STABILITY.items()]
    for key, label in SETTLED.items():
        steps = (_step(part[key]["mean"], axis) for axis, part in section.items())
        rows.append([f"{label} have settled at", *steps])
    class_rows = []
    for index, name in enumerate(report["classes"]):
        settled = [(axis, part["by_class"].get(str(index), [None, None])) for axis, part in section.items()]
        cells = [("–" if one[0] is None else f"{one[0]:.2f}", _step(one[1], axis)) for axis, one in settled]
        class_rows.append([name, *(cell for pair in cells for cell in pair)])
    header = ["", *(f"over {name}" for name in section)]
    class_header = ["class", *(f"{what} over {axis}" for axis in section for what in ("flip rate", "half settled,"))]
    return {"header": header, "rows": rows, "class_header": class_header, "class_rows": class_rows}


def _step(step: float | None, axis: str) -> str:
    """Format days or detections with their unit; a mean over runs may lie between two steps."""
    return "–" if step is None else f"{step:.3g} {axis if step != 1 else axis.removesuffix('s')}"


def _sets(report: Report) -> Rows:
    keys = ("coverage", "worst_class_coverage", "mean_size", "empty", "single")
    methods = (report["conformal"] or {"methods": {}})["methods"]
    return [
        [name, *(value(method[key], 2 if key == "mean_size" else 3) for key in keys)]
        for name, method in methods.items()
    ]


def _drawn(report: Report, baselines: Sequence[Report]) -> dict[str, Any]:
    """Return the figures of all measured sections as data URLs."""
    classes, families = report["classes"], report["families"]
    drawn: dict[str, Any] = {axis: source(_against(report, baselines, axis)) for axis in ("days", "detections")}
    drawn |= {
        "classes": source(figures.class_f1_figure(report["f1_growing"], classes, families)),
        "hierarchy": source(figures.hierarchy_figure(report)),
        "confusion": source(_confusion(report), "png"),
        "calibration": source(figures.reliability_figure(report["reliability_early"])),
        "abstention": source(figures.abstention_figure(report["abstention"])),
    }
    if any(report["stability"].values()):
        drawn["stability"] = source(figures.stability_figure(report["stability"]))
    if report["conformal"] is not None:
        drawn["sets"] = source(figures.sets_figure(report["conformal"], classes))
    if report["novelty"] is not None:
        drawn["novelty"] = source(figures.novelty_figure(report["novelty"], classes))
    if report["experts"] is not None:
        drawn["experts"] = source(figures.experts_figure(report["experts"], classes, families))
    if report["embedding"] is not None:
        drawn["embedding"] = source(figures.embedding_figure(report["embedding"], families), "png")
    return drawn


def _against(report: Report, baselines: Sequence[Report], axis: str) -> Figure:
    """Plot the scores, and those of the baselines, against days or detections."""
    lines = {"with metadata": report[axis], "without metadata": report[f"{axis}_no_metadata"]}
    lines |= {f"{one['models'][0]['name']}, with metadata": one[axis] for one in baselines if axis in one}
    return figures.series_figure(axis, lines)


def _confusion(report: Report) -> Figure:
    section, support_C = report["confusion_runs"], np.array(report["confusion"]).sum(1)
    order_C, borders = figures.family_order(report["families"])
    median, low, high = (np.array(section[k], dtype=np.float64)[order_C][:, order_C] for k in ("median", "low", "high"))
    return figures.confusion_figure(
        median,
        [report["classes"][index] for index in order_C],
        support_C[order_C].tolist(),
        "percent of each true class",
        (low, high) if section["runs"] > 1 else None,
        borders,
    )


def source(drawn: Figure, kind: str = "svg") -> str:
    """Return a figure as a data URL; figures with many points are smaller as PNG."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "nightjar"}):  # the same report gives the same bytes
        drawn.savefig(stream, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    return f"data:{mime};base64,{base64.b64encode(stream.getvalue()).decode()}"
