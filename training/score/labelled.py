"""Evaluation of bundles, or of stored results, on a labelled table.

Every object of the table is classified as the service would do it (:class:`nightjar_alerts.Classifier`), and compared
with its label. Stored results (JSON Lines of ``nightjar classify`` or of a stream) are compared with labels that came
later. Scores are those of the classified objects; how many were not, and why, stands beside them.

Labels are matched to the classes of a model by their letters and digits, with or without ``SN`` in front (``SN Ia`` is
``Ia``); others are named by the caller. Objects of labels without a class are counted and left out.

Legend: N objects, C classes.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts import Classifier, Result
from nightjar_alerts.models.lightcurve import Int64, LightCurve, LightCurveError
from nightjar_alerts.models.photometry import magnitude_of
from nightjar_alerts.tables import TableOptions, read_table
from nightjar_alerts.tables.columns import Lists, texts
from nightjar_alerts.tables.files import open_source
from nightjar_alerts.tables.vocabulary import RANKS, last_part, plain
from nightjar_alerts.training.importers.tables import (
    LABELS,
    MISSING,
    LabelError,
    find_label,
    objects_with_several_labels,
)
from nightjar_alerts.training.metrics import balanced_accuracy, confusion, f1_per_class, macro_f1, reliability, scores

RESULTS: Final = (".jsonl", ".jsonl.gz", ".ndjson")
"""Endings of files of stored results."""
DETECTIONS: Final = (1, 2, 3, 5, 10, 20, 50)
"""Smallest numbers of detections of the groups."""
MAGNITUDES: Final = (16.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0)
"""Borders of the groups of brightness: AB magnitude of the brightest detection."""
DRAWS: Final = 1_000
WORST: Final = 12
INTERVAL: Final = (2.5, 97.5)
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
SEVERAL: Final = "\0"
COMPARED: Final = ("macro_f1", "balanced_accuracy", "accuracy", "log_loss")


class Labelled(NamedTuple):
    """An object with its label; the light curve is None where the table has only labels."""

    object_id: str
    label: str
    light_curve: LightCurve | None


@dataclass(frozen=True, eq=False)
class Answers:
    """Results of one model for labelled objects, in their order.

    Attributes
    ----------
    classes : classes of the model.
    label_N : class of each object, -1 for a label that the model does not have.
    fields : result of each object as in the service's JSON; empty without a result.
    results : the results with their light curves; none if they were stored.
    repeated, unlabelled : number of stored results that a later one of the object replaces, and of objects with a
        stored result but no label.
    """

    name: str
    classes: tuple[str, ...]
    label_N: Int64
    fields: Sequence[Mapping[str, Any]]
    results: Sequence[Result] = ()
    repeated: int = 0
    unlabelled: int = 0

    @property
    def classified_N(self) -> NDArray[np.bool_]:
        """Whether the object has a class and a label of the model."""
        has_class = np.array([one.get("status") == "classified" for one in self.fields], dtype=np.bool_)
        flags: NDArray[np.bool_] = has_class & (self.label_N >= 0)
        return flags

    def probabilities(self, rows: Int64) -> NDArray[np.float64]:
        """Return the probabilities of some objects, [N, C]."""
        return np.array(
            [[self.fields[row]["probabilities"].get(name, 0.0) for name in self.classes] for row in rows],
            dtype=np.float64,
        ).reshape(len(rows), len(self.classes))


class LabelledTable(NamedTuple):
    """Labelled objects of a table, the number of others by reason, and what was guessed about its columns."""

    objects: list[Labelled]
    left_out: dict[str, int]
    guesses: list[str]


def read_labels(data: Any, label: str = "", options: TableOptions | None = None) -> LabelledTable:
    """Return the labelled objects of a table of light curves.

    Raises
    ------
    LabelError
        If no column, or more than one, may be the label.
    TableError
        If the table cannot be read.
    """
    options, guesses = options or TableOptions(), list[str]()
    table = read_table(data, options)
    if not (label := label or options.columns.get("label", "")):
        label = find_label(data, table, options)
        guesses.append(f"the label is column {label!r} (--label {label})")
    table = read_table(data, replace(options, columns={**options.columns, "label": label}))
    several = objects_with_several_labels(data, table, options, label)
    objects, left_out = [], Counter[str]()
    for item in table:
        if item.object_id in several:
            left_out["with several labels"] += 1
        elif item.label.strip().lower() in MISSING:
            left_out["without a label"] += 1
        else:
            try:
                objects.append(Labelled(item.object_id, item.label.strip(), item.light_curve()))
            except LightCurveError:
                left_out["without a usable point"] += 1
    return LabelledTable(objects, dict(left_out.most_common()), [*map(str, table.guesses), *guesses])


def read_labels_alone(data: Any, label: str = "", options: TableOptions | None = None) -> LabelledTable:
    """Return the labels of a table with a column of object ids, whether it has light curves or not.

    Raises
    ------
    LabelError
        If there is no column of object ids, or no or more than one column of labels.
    TableError
        If the table cannot be read.
    """
    options = options or TableOptions()
    source = open_source(data, options.format)
    header = list(source.header)
    name = options.columns.get("object_id", "") or _best(header, RANKS["object_id"])
    labels = [label] if label else [one for one in header if one != name and plain(last_part(one)) in LABELS]
    if name not in header or len(labels) != 1 or labels[0] not in header:
        raise LabelError(f"{source.name} needs a column of object ids and one of labels (--label); it has {header}")
    label_of, left_out = dict[str, str](), Counter[str]()
    for batch in source.batches([name, labels[0]]):
        ids, values = batch[name], batch[labels[0]]
        if isinstance(ids, Lists) or isinstance(values, Lists):
            raise LabelError(f"{source.name}: the columns {name!r} and {labels[0]!r} must not hold lists")
        for one, value in zip(map(str, texts(ids)), map(str, texts(values)), strict=True):
            known = label_of.setdefault(one, value.strip())
            if known != value.strip():
                label_of[one] = SEVERAL
    objects = []
    for one, value in label_of.items():
        if value == SEVERAL:
            left_out["with several labels"] += 1
        elif value.lower() in MISSING:
            left_out["without a label"] += 1
        else:
            objects.append(Labelled(one, value, None))
    guesses = [f"the object is column {name!r}"] + [f"the label is column {one!r} (--label {one})" for one in labels]
    return LabelledTable(objects, dict(left_out.most_common()), guesses)


def _best(header: Sequence[str], ranks: Mapping[str, int]) -> str:
    known = [name for name in header if plain(last_part(name)) in ranks]
    return min(known, key=lambda name: ranks[plain(last_part(name))], default="")


def answers_of(model: str, objects: Sequence[Labelled], classes_of: Mapping[str, str] = NOTHING) -> Answers:
    """Classify labelled objects with a bundle, or find them in a file of stored results.

    Parameters
    ----------
    model : name of a shipped bundle, folder of a bundle, or file of results (JSON Lines).
    classes_of : class of the model for labels that are named differently.

    Raises
    ------
    LabelError
        If no label is a class of the model, or a file of results has another form.
    """
    results, repeated, unlabelled = list[Result](), 0, 0
    if model.endswith(RESULTS):
        name, classes, fields, repeated, unlabelled = _stored(Path(model), objects)
    else:
        with Classifier(model) as classifier:
            results, classes = list(classifier.stream(one.light_curve for one in objects)), classifier.classes
        name = f"{results[0].model.name} {results[0].model.version}"
        fields = [result.to_dict() for result in results]
    number = {plain(label): index for index, label in enumerate(classes)}
    if unknown := [one for one in classes_of.values() if plain(one) not in number]:
        raise LabelError(f"{name} has no class {unknown[0]!r}; its classes are {', '.join(classes)}")
    label_N = np.array([_class_of(classes_of.get(one.label, one.label), number) for one in objects], dtype=np.int64)
    if not (label_N >= 0).any():
        found = ", ".join(label for label, _ in Counter(one.label for one in objects).most_common(8))
        raise LabelError(
            f"no label is a class of {name}: the labels are {found}; the classes are {', '.join(classes)}. Name the "
            "class of a label with --classes LABEL=CLASS"
        )
    return Answers(name, classes, label_N, fields, results, repeated, unlabelled)


def _class_of(label: str, number: Mapping[str, int]) -> int:
    key = plain(label)
    return number.get(key, number.get(key.removeprefix("sn"), -1))


def _stored(path: Path, objects: Sequence[Labelled]) -> tuple[str, tuple[str, ...], list[Mapping[str, Any]], int, int]:
    """Read stored results; the last result of an object counts."""
    count = 0
    found, model, classes = dict[str, Mapping[str, Any]](), "", dict[str, None]()
    for number, record in enumerate(_records(path), start=1):
        if not isinstance(record, dict) or "status" not in record:
            raise LabelError(f"{path}: line {number} is not a result; results are JSON Lines of `nightjar classify -o`")
        found[str(record.get("object_id", ""))] = record
        count += 1
        classes |= dict.fromkeys(record.get("probabilities") or {})
        named = record.get("model") or {}
        model = model or " ".join(str(named[key]) for key in ("name", "version") if key in named)
    if not classes:
        raise LabelError(f"{path} has no classified result")
    unlabelled = len(found.keys() - {one.object_id for one in objects})
    fields = [found.get(one.object_id, {}) for one in objects]
    return model or path.name, tuple(classes), fields, count - len(found), unlabelled


def _records(path: Path) -> Iterator[Any]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise LabelError(f"{path}: line {number} is not JSON: {error.msg}") from error


@dataclass(frozen=True, eq=False)
class Report:
    """Scores as plain data (``values``), with the objects and answers that they were made from."""

    values: dict[str, Any]
    objects: Sequence[Labelled]
    answers: Mapping[str, Answers]


def evaluate_table(
    models: Sequence[str],
    data: Any,
    *,
    label: str = "",
    classes_of: Mapping[str, str] = NOTHING,
    options: TableOptions | None = None,
) -> Report:
    """Score bundles or stored results on a labelled table.

    Parameters
    ----------
    models : names or folders of bundles, or files of results (JSON Lines).
    data : path of a table, or a table in memory, as ``nightjar classify`` takes it.
    label : column of labels; empty: found by its name.
    classes_of : class of the models for labels that are named differently, such as ``{"SN Ic": "Ib/c"}``.

    Returns
    -------
    The report as plain data: for every model counts, scores, classes, confusion, reliability, groups by number of
    detections and by brightness, prediction sets, and the worst objects; the differences of the others from the first.

    Raises
    ------
    LabelError, TableError
        As :func:`read_labels` and :func:`answers_of`.
    """
    read = read_labels_alone if all(model.endswith(RESULTS) for model in models) else read_labels
    objects, left_out, guesses = read(data, label, options)
    if not objects:
        listed = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise LabelError(f"the table has no labelled object: {listed or 'it is empty'}")
    answers = [answers_of(model, objects, classes_of) for model in models]
    names = _unique([one.name for one in answers])
    first = answers[0]
    return Report(
        {
            "table": {
                "name": data.name if isinstance(data, Path) else "table",
                "objects": len(objects),
                "left_out": left_out,
                "guesses": guesses,
            },
            "models": {name: _measure(one, objects) for name, one in zip(names, answers, strict=True)},
            "differences": {
                name: _difference(first, other) for name, other in zip(names[1:], answers[1:], strict=True)
            },
        },
        objects,
        dict(zip(names, answers, strict=True)),
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names, with a number for those that occur again."""
    seen = Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _measure(answers: Answers, objects: Sequence[Labelled]) -> dict[str, Any]:
    rows = np.flatnonzero(answers.classified_N)
    p_NC, label_N = answers.probabilities(rows), answers.label_N[rows]
    counts_CC = confusion(label_N, p_NC.argmax(1), len(answers.classes)) if len(rows) else np.zeros((0, 0), np.int64)
    unknown = Counter(one.label for one, label in zip(objects, answers.label_N, strict=True) if label < 0)
    curves = [curve for row in rows.tolist() if (curve := objects[row].light_curve) is not None]
    measured: dict[str, Any] = {
        "objects": int((answers.label_N >= 0).sum()),
        "labels_without_a_class": dict(unknown.most_common()),
        "not_classified": _reasons(answers),
        "replaced_results": answers.repeated,
        "results_without_a_label": answers.unlabelled,
        "scores": {"classified": len(rows), **_finite(scores(p_NC, label_N))},
        "classes": _classes(answers, rows, p_NC, label_N, counts_CC) if len(rows) else [],
        "confusion": {"classes": list(answers.classes), "counts": counts_CC.tolist()},
        "reliability": [_numbers(row) for row in reliability(p_NC, label_N)] if len(rows) else [],
        "detections": [],
        "brightness": [],
        "worst": _worst(answers, objects, rows, p_NC, label_N),
    }
    if curves:  # stored results may come without them
        for key, (group_N, names) in (("detections", _detections(curves)), ("brightness", _brightness(curves))):
            measured[key] = _groups(answers, rows, p_NC, label_N, group_N, names)
    return measured


def _reasons(answers: Answers) -> dict[str, int]:
    reasons = Counter[str]()
    for one, label in zip(answers.fields, answers.label_N, strict=True):
        if label >= 0 and one.get("status") != "classified":
            reasons[f"{one['status']}: {one.get('reason', '')}" if one else "no stored result"] += 1
    return dict(reasons.most_common())


def _classes(
    answers: Answers, rows: Int64, p_NC: NDArray[np.float64], label_N: Int64, counts_CC: Int64
) -> list[dict[str, Any]]:
    """Return recall, precision, F1, prediction sets and alarms of every class that occurs."""
    found, f1_C, top_N = [], f1_per_class(counts_CC), p_NC.argmax(1)
    for index, name in enumerate(answers.classes):
        own, named = label_N == index, top_N == index
        if not own.any() and not named.any():
            continue
        found.append(
            {
                "class": name,
                "objects": int((answers.label_N == index).sum()),
                "classified": int(own.sum()),
                "recall": _share(own & named, own),
                "precision": _share(own & named, named),
                "f1": _finite({"": float(f1_C[index])})[""],
                **_sets(answers, rows[own], index),
                "unusual": _share(np.array([answers.fields[row].get("unusual") is True for row in rows[own]]), None),
            }
        )
    return found


def _sets(answers: Answers, rows: Int64, index: int | None = None) -> dict[str, float | None]:
    """Return coverage and mean size of the prediction sets of some objects, and the share without one."""
    sets = [answers.fields[row].get("prediction_set") for row in rows]
    given = [(row, one) for row, one in zip(rows, sets, strict=True) if one is not None]
    if not given:
        return {"set_coverage": None, "set_size": None, "set_withheld": None if not sets else 1.0}
    hits = [answers.classes[index if index is not None else int(answers.label_N[row])] in one for row, one in given]
    return {
        "set_coverage": float(np.mean(hits)),
        "set_size": float(np.mean([len(one) for _, one in given])),
        "set_withheld": 1 - len(given) / len(sets),
    }


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_] | None) -> float | None:
    number = len(part) if whole is None else int(whole.sum())
    return float(part.sum() / number) if number else None


def _detections(curves: Sequence[LightCurve]) -> tuple[NDArray[np.intp], list[str]]:
    """Return the group of each light curve by its number of detections, and the names of the groups."""
    count_N = np.array([int(curve.detected.sum()) for curve in curves])
    spans = [f"{low}" if low + 1 == high else f"{low} to {high - 1}" for low, high in pairwise(DETECTIONS)]
    return np.searchsorted(DETECTIONS, count_N, side="right"), ["0", *spans, f"{DETECTIONS[-1]} or more"]


def _brightness(curves: Sequence[LightCurve]) -> tuple[NDArray[np.intp], list[str]]:
    """Return the group of each light curve by its brightest point, and the names of the groups."""
    peak_N = np.array([_peak(curve) for curve in curves])
    spans = [f"{low:g} to {high:g}" for low, high in pairwise(MAGNITUDES)]
    names = [f"brighter than {MAGNITUDES[0]:g}", *spans, f"fainter than {MAGNITUDES[-1]:g}", "no positive flux"]
    group_N = np.where(np.isfinite(peak_N), np.searchsorted(MAGNITUDES, peak_N, side="right"), len(names) - 1)
    return group_N, names


def _peak(curve: LightCurve) -> float:
    """Return the AB magnitude of the brightest detection, or point without one; of total flux where it is known."""
    total = curve.total_flux()
    flux = curve.flux if total is None else total
    largest = float(np.max(flux[curve.detected] if curve.detected.any() else flux, initial=0.0))
    return float(magnitude_of(largest)) if largest > 0 else float("nan")


def _groups(
    answers: Answers,
    rows: Int64,
    p_NC: NDArray[np.float64],
    label_N: Int64,
    group_N: NDArray[np.intp],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    return [
        {
            "group": name,
            "objects": int(own.sum()),
            **_finite(scores(p_NC[own], label_N[own])),
            **_sets(answers, rows[own]),
        }
        for number, name in enumerate(names)
        if (own := group_N == number).any()
    ]


def _worst(
    answers: Answers, objects: Sequence[Labelled], rows: Int64, p_NC: NDArray[np.float64], label_N: Int64
) -> list[dict[str, Any]]:
    """Return the wrongly classified objects with the least probable labels."""
    true_N = p_NC[np.arange(len(rows)), label_N]
    wrong = np.flatnonzero(p_NC.argmax(1) != label_N)
    order = wrong[np.argsort(true_N[wrong], kind="stable")][:WORST]
    return [
        {
            "object_id": objects[rows[row]].object_id,
            "label": answers.classes[label_N[row]],
            "class": answers.classes[int(p_NC[row].argmax())],
            "probability_of_label": float(true_N[row]),
            "confidence": float(p_NC[row].max()),
        }
        for row in order
    ]


def _difference(first: Answers, other: Answers, seed: int = 0) -> dict[str, Any]:
    """Return scores of another model less those of the first on the objects that both classified, by bootstrap."""
    rows = np.flatnonzero(first.classified_N & other.classified_N)
    if not len(rows):
        return {"objects": 0}
    pairs = [(one.probabilities(rows), one.label_N[rows]) for one in (first, other)]
    rng = np.random.default_rng(seed)
    draws = [np.arange(len(rows)), *(rng.integers(0, len(rows), len(rows)) for _ in range(DRAWS))]
    values = np.array([[_compared(*pair, draw) for pair in pairs] for draw in draws])
    difference = values[:, 1] - values[:, 0]
    low, high = np.percentile(difference[1:], INTERVAL, axis=0)
    return {"objects": len(rows)} | {
        name: {"difference": float(difference[0, index]), "low": float(low[index]), "high": float(high[index])}
        for index, name in enumerate(COMPARED)
    }


def _compared(p_NC: NDArray[np.float64], label_N: Int64, rows: NDArray[np.intp]) -> tuple[float, ...]:
    p_NC, label_N = p_NC[rows], label_N[rows]
    counts_CC = confusion(label_N, p_NC.argmax(1), p_NC.shape[1])
    true_N = np.clip(p_NC[np.arange(len(rows)), label_N], 1e-7, 1.0)
    accuracy = float(np.diag(counts_CC).sum() / len(rows))
    return macro_f1(counts_CC), balanced_accuracy(counts_CC), accuracy, float(-np.log(true_N).mean())


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


def _numbers(row: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in row]
