"""Report of served predictions: models on the same labelled objects, as plain data.

It is the same for a table of labelled objects (`labelled`) and for real surveys (`surveys`); `report_page` writes it as
a page. Shares are of the classified objects, including those without a prediction set; coverage and set size are over
objects with a set. "Sure and wrong" is a wrong most probable class with a probability of at least `SURE`.

Legend: O labelled objects, N classified objects, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts import Result
from nightjar_alerts.models.lightcurve import Bool, Float64, Int64
from nightjar_alerts.training.metrics import (
    SURE,
    balanced_accuracy,
    confusion,
    f1_per_class,
    log_loss,
    macro_f1,
    reliability,
    scores,
)

DETECTIONS: Final = (1, 2, 3, 5, 10, 20, 50)
"""Smallest numbers of detections of the groups."""
MAGNITUDES: Final = (16.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0)
"""Borders of the groups of brightness: AB magnitude of the brightest detection."""
DRAWS: Final = 1_000
WORST: Final = 12
INTERVAL: Final = (2.5, 97.5)
COMPARED: Final = ("macro_f1", "balanced_accuracy", "accuracy", "log_loss")


@dataclass(frozen=True, slots=True, eq=False)
class ServedPredictions:
    """Predictions as the service sends them, for the objects ``rows_N`` of a sample or a table.

    ``probabilities_NC`` sum to 1; ``inside_NC`` are the classes of the 0.9 set; ``novelty_N`` is larger for unusual
    objects, NaN without a novelty score; ``unusual_N`` are objects flagged as out of distribution; ``withheld_N`` are
    objects without a prediction set.
    """

    rows_N: NDArray[np.intp]
    probabilities_NC: Float64
    inside_NC: Bool
    novelty_N: Float64
    unusual_N: Bool
    withheld_N: Bool

    def __len__(self) -> int:
        return len(self.rows_N)

    def take(self, chosen: Bool) -> "ServedPredictions":
        """Return the chosen predictions."""
        return ServedPredictions(*(getattr(self, part.name)[chosen] for part in fields(self)))


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of one model for labelled objects.

    Attributes
    ----------
    label_O : class of each object, -1 for a label that the model does not have.
    predictions : of the classified objects with a label of the model.
    counts : numbers of other objects and results, as the report has them.
    results : result of every object, for pictures of light curves; none if there are no light curves.
    """

    name: str
    classes: tuple[str, ...]
    label_O: Int64
    predictions: ServedPredictions
    counts: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[Result] = ()


@dataclass(frozen=True, eq=False)
class Report:
    """Scores as plain data (``values``), and the results of each model's worst objects."""

    values: dict[str, Any]
    worst: Mapping[str, Sequence[Result]]


def report_of(
    table: Mapping[str, Any],
    answers: Sequence[Answers],
    ids: Sequence[str],
    detections_O: Int64 | None = None,
    magnitude_O: Float64 | None = None,
) -> Report:
    """Return the report of models on the same objects; the others are compared with the first.

    Parameters
    ----------
    table : ``name`` of the data, number of ``objects``, ``left_out`` by reason, and ``guesses`` about its columns.
    detections_O, magnitude_O : number of detections, and AB magnitude of the brightest one (NaN if unknown).
    """
    named: dict[str, Answers] = {}
    for one in answers:
        again = sum(other.name == one.name for other in named.values())
        named[f"{one.name} ({again + 1})" if again else one.name] = one
    models = {name: _measure(one, ids, detections_O, magnitude_O) for name, one in named.items()}
    row_of = {one: row for row, one in enumerate(ids)}
    return Report(
        {
            "table": dict(table),
            "models": models,
            "differences": {name: _difference(answers[0], one) for name, one in list(named.items())[1:]},
        },
        {
            name: [one.results[row_of[worst["object_id"]]] for worst in models[name]["worst"]] if one.results else []
            for name, one in named.items()
        },
    )


def scores_of(predictions: ServedPredictions, label_N: Int64) -> dict[str, float]:
    """Return every score of probabilities and prediction sets; NaN for those that are undefined."""
    given = predictions.take(~predictions.withheld_N)
    covered_N = given.inside_NC[np.arange(len(given)), label_N[~predictions.withheld_N]]
    size_N = given.inside_NC.sum(axis=1)
    wrong_N = predictions.probabilities_NC.argmax(axis=1) != label_N
    return {
        **scores(predictions.probabilities_NC, label_N),
        "set_coverage": _mean(covered_N),
        "set_size": _mean(size_N),
        "set_withheld": _mean(predictions.withheld_N),
        "sure_and_wrong": _mean(wrong_N & (predictions.probabilities_NC.max(axis=1) >= SURE)),
        "single_and_missing": _share(int(((size_N == 1) & ~covered_N).sum()), len(predictions)),
    }


def by_group(
    predictions: ServedPredictions,
    label_N: Int64,
    group_N: NDArray[np.intp],
    groups: Sequence[Mapping[str, Any]],
    score: Callable[[ServedPredictions, Int64], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the scores of the objects of each group, after the fields that describe the group."""
    rows = []
    for number, group in enumerate(groups):
        own_N = group_N == number
        rows.append({**group, **score(predictions.take(own_N), label_N[own_N])})
    return rows


def _measure(
    answers: Answers, ids: Sequence[str], detections_O: Int64 | None, magnitude_O: Float64 | None
) -> dict[str, Any]:
    predictions, label_N = answers.predictions, answers.label_O[answers.predictions.rows_N]
    rows, top_N = predictions.rows_N, predictions.probabilities_NC.argmax(axis=1)
    counts_CC = confusion(label_N, top_N, len(answers.classes)) if len(rows) else np.zeros((0, 0), np.int64)
    reliable = reliability(predictions.probabilities_NC, label_N) if len(rows) else np.zeros((0, 3))
    measured: dict[str, Any] = {
        "objects": int((answers.label_O >= 0).sum()),
        "labels_without_a_class": {},
        "not_classified": {},
        "replaced_results": 0,
        "results_without_a_label": 0,
        "objects_learned_from": 0,
        **answers.counts,
        "scores": {"classified": len(rows), **_finite(scores_of(predictions, label_N))},
        "classes": _classes(answers, label_N, top_N, counts_CC) if len(rows) else [],
        "confusion": {"classes": list(answers.classes), "counts": counts_CC.tolist()},
        "reliability": [[float(value) if np.isfinite(value) else None for value in row] for row in reliable],
        "detections": [],
        "brightness": [],
        "worst": _worst(answers, label_N, top_N, ids),
    }
    if detections_O is not None:
        measured["detections"] = _filled(predictions, label_N, *_detections(detections_O[rows]))
    if magnitude_O is not None:
        measured["brightness"] = _filled(predictions, label_N, *_brightness(magnitude_O[rows]))
    return measured


def _classes(answers: Answers, label_N: Int64, top_N: NDArray[np.intp], counts_CC: Int64) -> list[dict[str, Any]]:
    """Return recall, precision, F1, prediction sets and alarms of every class that occurs."""
    rows, f1_C = [], f1_per_class(counts_CC)
    for index, name in enumerate(answers.classes):
        own_N = label_N == index
        if not own_N.any() and not (top_N == index).any():
            continue
        own = answers.predictions.take(own_N)
        given = own.take(~own.withheld_N)
        figures = {
            "recall": _share(counts_CC[index, index], counts_CC[index].sum()),
            "precision": _share(counts_CC[index, index], counts_CC[:, index].sum()),
            "f1": float(f1_C[index]),
            "set_coverage": _mean(given.inside_NC[:, index]),
            "set_size": _mean(given.inside_NC.sum(axis=1)),
            "set_withheld": _mean(own.withheld_N),
            "unusual": _mean(own.unusual_N),
        }
        objects = int((answers.label_O == index).sum())
        rows.append({"class": name, "objects": objects, "classified": int(own_N.sum()), **_finite(figures)})
    return rows


def _filled(
    predictions: ServedPredictions, label_N: Int64, group_N: NDArray[np.intp], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the scores of the groups that have objects."""

    def score(own: ServedPredictions, own_label_N: Int64) -> dict[str, Any]:
        return {"objects": len(own), **_finite(scores_of(own, own_label_N))}

    rows = by_group(predictions, label_N, group_N, [{"group": name} for name in names], score)
    return [row for row in rows if row["objects"]]


def _detections(count_N: Int64) -> tuple[NDArray[np.intp], list[str]]:
    """Return the group of each light curve by its number of detections, and the names of the groups."""
    spans = [f"{low}" if low + 1 == high else f"{low} to {high - 1}" for low, high in pairwise(DETECTIONS)]
    return np.searchsorted(DETECTIONS, count_N, side="right"), ["0", *spans, f"{DETECTIONS[-1]} or more"]


def _brightness(magnitude_N: Float64) -> tuple[NDArray[np.intp], list[str]]:
    """Return the group of each light curve by its brightest detection, and the names of the groups."""
    spans = [f"{low:g} to {high:g}" for low, high in pairwise(MAGNITUDES)]
    names = [f"brighter than {MAGNITUDES[0]:g}", *spans, f"fainter than {MAGNITUDES[-1]:g}", "no positive flux"]
    group_N = np.searchsorted(MAGNITUDES, magnitude_N, side="right")
    return np.where(np.isfinite(magnitude_N), group_N, len(names) - 1), names


def _worst(answers: Answers, label_N: Int64, top_N: NDArray[np.intp], ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the wrongly classified objects with the least probable labels."""
    p_NC = answers.predictions.probabilities_NC
    true_N = p_NC[np.arange(len(label_N)), label_N]
    wrong = np.flatnonzero(top_N != label_N)
    order = wrong[np.argsort(true_N[wrong], kind="stable")][:WORST]
    return [
        {
            "object_id": ids[answers.predictions.rows_N[row]],
            "label": answers.classes[label_N[row]],
            "class": answers.classes[top_N[row]],
            "probability_of_label": float(true_N[row]),
            "confidence": float(p_NC[row].max()),
        }
        for row in order
    ]


def _difference(first: Answers, other: Answers, seed: int = 0) -> dict[str, Any]:
    """Return scores of another model less those of the first on the objects that both classified, by bootstrap."""
    shared = np.intersect1d(first.predictions.rows_N, other.predictions.rows_N, return_indices=True)
    rows, chosen = shared[0], shared[1:]
    if not len(rows):
        return {"objects": 0}
    pairs = [
        (one.predictions.probabilities_NC[own], one.label_O[rows])
        for one, own in zip((first, other), chosen, strict=True)
    ]
    rng = np.random.default_rng(seed)
    draws = [np.arange(len(rows)), *(rng.integers(0, len(rows), len(rows)) for _ in range(DRAWS))]
    values = np.array([[_compared(*pair, draw) for pair in pairs] for draw in draws])
    difference = values[:, 1] - values[:, 0]
    low, high = np.percentile(difference[1:], INTERVAL, axis=0)
    return {"objects": len(rows)} | {
        name: {"difference": float(difference[0, index]), "low": float(low[index]), "high": float(high[index])}
        for index, name in enumerate(COMPARED)
    }


def _compared(p_NC: Float64, label_N: Int64, rows: NDArray[np.intp]) -> tuple[float, ...]:
    p_NC, label_N = p_NC[rows], label_N[rows]
    counts_CC = confusion(label_N, p_NC.argmax(1), p_NC.shape[1])
    accuracy = float(np.diag(counts_CC).sum() / len(rows))
    return macro_f1(counts_CC), balanced_accuracy(counts_CC), accuracy, log_loss(p_NC, label_N)


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else float("nan")


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


def rounded(value: Any, digits: int = 4) -> Any:
    """Round the numbers of a report and replace NaN by None, for a small JSON file."""
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    if isinstance(value, float | np.floating):
        return round(float(value), digits) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
