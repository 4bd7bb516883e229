"""Evaluation of bundles, or of stored results, on a labelled table.

Every object of the table is classified as the service would do it (:class:`nightjar_alerts.Classifier`), and compared
with its label. Stored results (JSON Lines of ``nightjar classify`` or of a stream) are compared with labels that came
later. `report` has the scores, which are those of the classified objects, and how many were not classified, and why.

Labels are matched to the classes of a model by name, numbers by their value, or else by their letters and digits, with
or without ``SN`` in front (``SN Ia`` is ``Ia``); others are named by the caller. Objects of labels without a class are
counted and left out.

Legend: O labelled objects, N classified objects, C classes.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts import Classifier, Result
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.models.photometry import magnitude_of
from nightjar_alerts.tables import TableOptions, read_table
from nightjar_alerts.tables.columns import Lists, texts
from nightjar_alerts.tables.files import open_source
from nightjar_alerts.tables.vocabulary import RANKS, last_part, plain
from nightjar_alerts.training.importers.tables import (
    LABELS,
    MISSING,
    LabelError,
    check_label,
    class_of_label,
    find_label,
    is_number,
    objects_with_several_labels,
    without_label,
)
from nightjar_alerts.training.score.report import Answers, Report, ServedPredictions, report_of

RESULTS: Final = (".jsonl", ".jsonl.gz", ".ndjson")
"""Endings of files of stored results."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
SEVERAL: Final = "\0"
FINETUNED: Final = "report.json"
"""Report of ``nightjar-train finetune`` in the folder of a bundle."""
LEARNED: Final = "learned_objects"
"""Names of the objects that a bundle learned from, in its report."""


class Labelled(NamedTuple):
    """An object with its label; the light curve is None where the table has only labels."""

    object_id: str
    label: str
    light_curve: LightCurve | None


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
    guesses = list[str]()
    options, label = without_label(options or TableOptions(), label)
    table = read_table(data, options)
    check_label(data, table, options, label)
    if not label:
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
                objects.append(Labelled(item.object_id, class_of_label(item.label), item.light_curve()))
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
    options, label = without_label(options or TableOptions(), label)
    source = open_source(data, options.format)
    header = list(source.header)
    name = options.columns.get("object_id", "") or _best(header, RANKS["object_id"])
    labels = [label] if label else [one for one in header if one != name and plain(last_part(one)) in LABELS]
    if name not in header or len(labels) != 1 or labels[0] not in header:
        raise LabelError(f"{source.name} needs a column of object ids and one of labels (--label); it has {header}")
    if labels[0] == name:
        raise LabelError(f"column {name!r} names the objects, so every object has its own value; name another --label")
    label_of, left_out = dict[str, str](), Counter[str]()
    for batch in source.batches([name, labels[0]]):
        ids, values = batch[name], batch[labels[0]]
        if isinstance(ids, Lists) or isinstance(values, Lists):
            raise LabelError(f"{source.name}: the columns {name!r} and {labels[0]!r} must not hold lists")
        for one, value in zip(map(str, texts(ids)), map(str, texts(values)), strict=True):
            found = class_of_label(value)
            if label_of.setdefault(one, found) != found:
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
    results, repeated, unlabelled, learned = list[Result](), 0, 0, frozenset[str]()
    if model.endswith(RESULTS):
        name, classes, fields, repeated, unlabelled = _stored(Path(model), objects)
    else:
        learned = _learned(Path(model))
        with Classifier(model) as classifier:
            results, classes = list(classifier.stream(one.light_curve for one in objects)), classifier.classes
        name = f"{results[0].model.name} {results[0].model.version}"
        fields = [result.to_dict() for result in results]
    for one in classes_of.values():
        if _class_of(one, classes) < 0:
            raise LabelError(f"{name} has no class {one!r}; its classes are {', '.join(classes)}")
    named = {class_of_label(label): one for label, one in classes_of.items()}
    number = {label: _class_of(named.get(label, label), classes) for label in {one.label for one in objects}}
    label_O = np.array([number[one.label] for one in objects], dtype=np.int64)
    if not (label_O >= 0).any():
        found = ", ".join(label for label, _ in Counter(one.label for one in objects).most_common(8))
        raise LabelError(
            f"no label is a class of {name}: the labels are {found}; the classes are {', '.join(classes)}. Name the "
            "class of a label with --classes LABEL=CLASS"
        )
    has_class_O = np.array([one.get("status") == "classified" for one in fields], dtype=np.bool_)
    unknown_labels = Counter(one.label for one, label in zip(objects, label_O, strict=True) if label < 0)
    counts = {
        "labels_without_a_class": dict(unknown_labels.most_common()),
        "not_classified": _reasons([one for one, label in zip(fields, label_O, strict=True) if label >= 0]),
        "replaced_results": repeated,
        "results_without_a_label": unlabelled,
        "objects_learned_from": len(
            learned & {one.object_id for one, label in zip(objects, label_O, strict=True) if label >= 0}
        ),
    }
    predictions = _served(fields, np.flatnonzero(has_class_O & (label_O >= 0)), classes)
    return Answers(name, classes, label_O, predictions, counts, results)


def _learned(bundle: Path) -> frozenset[str]:
    """Return the names of the objects that a fine-tuned bundle learned from; empty for bundles without its report."""
    try:
        report = json.loads((bundle / FINETUNED).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: another file of this name
        return frozenset()
    return frozenset(report.get(LEARNED, ()) if isinstance(report, dict) else ())


def _served(fields: Sequence[Mapping[str, Any]], rows_N: NDArray[np.intp], classes: Sequence[str]) -> ServedPredictions:
    """Return the predictions of some results, whose fields are those of the service's JSON."""
    chosen = [fields[row] for row in rows_N]
    sets = [one.get("prediction_set") for one in chosen]
    inside = [[name in (one or ()) for name in classes] for one in sets]
    probabilities = [[one["probabilities"].get(name, 0.0) for name in classes] for one in chosen]
    novelty = [np.nan if (score := one.get("novelty")) is None else score for one in chosen]
    return ServedPredictions(
        rows_N,
        np.array(probabilities, dtype=np.float64).reshape(-1, len(classes)),
        np.array(inside, dtype=np.bool_).reshape(-1, len(classes)),
        np.array(novelty, dtype=np.float64),
        np.array([one.get("unusual") is True for one in chosen], dtype=np.bool_),
        np.array([one is None for one in sets], dtype=np.bool_),
    )


def _reasons(fields: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count the results without a class by reason."""
    reasons = Counter[str]()
    for one in fields:
        if one.get("status") != "classified":
            reasons[f"{one['status']}: {one.get('reason', '')}" if one else "no stored result"] += 1
    return dict(reasons.most_common())


def _class_of(label: str, classes: Sequence[str]) -> int:
    """Return the index of the class of this name, or else of the only one with these letters and digits, or -1.

    Numbers are compared as numbers, whose signs and points count.
    """
    if label in classes:
        return classes.index(label)
    if is_number(label):
        same = [index for index, one in enumerate(classes) if class_of_label(one) == class_of_label(label)]
        return same[0] if len(same) == 1 else -1
    if not any(map(str.isalpha, label)):
        return -1  # no letters: only the digits of -1-2 would count
    known, key = [_letters(one) for one in classes], _letters(label)
    for name in (key, key.removeprefix("sn")):
        if name and known.count(name) == 1:
            return known.index(name)
    return -1


def _letters(name: str) -> str:
    """Return the letters, of any alphabet, and digits of a name, without case."""
    return "".join(char for char in normalize("NFKC", name).casefold() if char.isalnum())


def _stored(path: Path, objects: Sequence[Labelled]) -> tuple[str, tuple[str, ...], list[Mapping[str, Any]], int, int]:
    """Read stored results; the last result of an object counts."""
    count = 0
    found, model, classes = dict[str, Mapping[str, Any]](), "", dict[str, None]()
    for number, record in enumerate(_records(path), start=1):
        if not isinstance(record, dict) or "status" not in record:
            raise LabelError(f"{path}: line {number} is not a result; results are JSON Lines of `nightjar classify -o`")
        if record["status"] == "classified" and not isinstance(record.get("probabilities"), dict):
            raise LabelError(f"{path}: line {number} is a classified result without probabilities")
        found[str(record.get("object_id", ""))] = record
        count += 1
        classes |= dict.fromkeys([*(record.get("probabilities") or ()), *(record.get("prediction_set") or ())])
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
    if unused := sorted(set(map(class_of_label, classes_of)) - {one.label for one in objects}):
        raise LabelError(f"no object has the label {unused[0]!r}, for which a class is given (--classes)")
    answers = [answers_of(model, objects, classes_of) for model in models]
    curves = [one.light_curve for one in objects if one.light_curve is not None]
    return report_of(
        {
            "name": data.name if isinstance(data, Path) else "table",
            "objects": len(objects),
            "left_out": left_out,
            "guesses": guesses,
        },
        answers,
        [one.object_id for one in objects],
        np.array([int(curve.detected.sum()) for curve in curves]) if curves else None,  # labels alone have none
        np.array([_peak(curve) for curve in curves]) if curves else None,
    )


def _peak(curve: LightCurve) -> float:
    """Return the AB magnitude of the brightest detection, or point without one; of total flux where it is known."""
    total = curve.total_flux()
    flux = curve.flux if total is None else total
    largest = float(np.max(flux[curve.detected] if curve.detected.any() else flux, initial=0.0))
    return float(magnitude_of(largest)) if largest > 0 else float("nan")
