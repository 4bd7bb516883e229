"""The page of a report of served predictions: one HTML file without scripts, fonts or network access."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from nightjar_alerts import Result, pictures
from nightjar_alerts.training.metrics import SURE
from nightjar_alerts.training.score import figures
from nightjar_alerts.training.score.page import COLUMNS, TEMPLATES, source
from nightjar_alerts.training.score.report import COMPARED, Report

SCORES = {name: title for name, title in COLUMNS.items() if name != "hierarchical_f1"}
SERVED = {
    "set_coverage": "coverage",
    "set_size": "classes per set",
    "set_withheld": "withheld",
    "sure_and_wrong": "sure and wrong",
}


def write_page(path: Path, report: Report) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return the HTML document."""
    values = report.values
    return TEMPLATES.get_template("report.html.j2").render(
        report=values,
        score_columns=list(SCORES.values()),
        served_columns=list(SERVED.values()),
        sure=SURE,
        scores=[_whole(name, model) for name, model in values["models"].items()],
        differences=[[name, *_difference(one)] for name, one in values["differences"].items()],
        models=[_model(name, model, report.worst[name]) for name, model in values["models"].items()],
    )


def _whole(name: str, model: Mapping[str, Any]) -> list[str]:
    """Return the scores of all objects."""
    scores = model["scores"]
    sets = (_number(scores[key]) for key in SERVED)
    return [name, str(model["objects"]), str(scores["classified"]), *_scores(scores), *sets]


def _model(name: str, model: Mapping[str, Any], worst: Sequence[Result]) -> dict[str, Any]:
    """Return the tables, figures and pictures of one model."""
    parts: dict[str, Any] = {
        "name": name,
        "unknown": _counts(model["labels_without_a_class"]),
        "not_classified": _counts(model["not_classified"]),
        "stored": _stored(model),
        "learned": model["objects_learned_from"],
        "drawn": None,
    }
    if not model["classes"]:
        return parts
    keys = ("recall", "precision", "f1", "set_coverage", "set_size", "set_withheld", "unusual")
    return parts | {
        "drawn": {
            "confusion": source(_confusion(model), "png"),
            "reliability": source(figures.reliability_figure({name: model["reliability"]})),
        },
        "classes": [
            [one["class"], str(one["objects"]), str(one["classified"]), *(_number(one[key]) for key in keys)]
            for one in model["classes"]
        ],
        "detections": [_group(one) for one in model["detections"]],
        "brightness": [_group(one) for one in model["brightness"]],
        "worst": [
            [one["object_id"], one["label"], one["class"], *(
                _number(one[key]) for key in ("probability_of_label", "confidence")
            )]
            for one in model["worst"]
        ],
        "pictures": [Markup(pictures.svg(result)) for result in worst],  # a picture escapes its texts
    }  # fmt: skip


def _stored(model: Mapping[str, Any]) -> str:
    """Return a sentence on stored results that are not used, empty without one."""
    replaced, unlabelled = model["replaced_results"], model["results_without_a_label"]
    if not replaced and not unlabelled:
        return ""
    return f"Not used: {replaced} earlier results of an object, and {unlabelled} objects without a label."


def _confusion(model: Mapping[str, Any]) -> Any:
    counts_CC = np.array(model["confusion"]["counts"], dtype=np.float64)
    shown = np.flatnonzero(counts_CC.sum(0) + counts_CC.sum(1))
    counts_CC, classes = counts_CC[shown][:, shown], [model["confusion"]["classes"][index] for index in shown]
    support_C = counts_CC.sum(1)
    percent_CC = 100 * counts_CC / np.where(support_C > 0, support_C, np.nan)[:, None]
    return figures.confusion_figure(percent_CC, classes, support_C.astype(int).tolist(), "percent of each true class")


def _group(one: Mapping[str, Any]) -> list[str]:
    sets = (_number(one["set_coverage"]), _number(one["set_size"]))
    return [one["group"], str(one["objects"]), *_scores(one), *sets]


def _scores(values: Mapping[str, Any]) -> list[str]:
    return [_number(values[name]) for name in SCORES]


def _difference(one: Mapping[str, Any]) -> list[str]:
    if not one["objects"]:
        return ["0", *["–"] * len(COMPARED)]
    parts = (one[name] for name in COMPARED)
    return [str(one["objects"]), *(f"{v['difference']:+.3f} [{v['low']:+.3f}, {v['high']:+.3f}]" for v in parts)]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
