"""Scores of models on every set of real surveys.

The columns state how a model was trained, so the caller names them, and they are never mixed: ``seen`` (trained on the
training part of the source), ``left out`` (not trained on the survey), ``adapted`` (only the cadences of the survey's
unlabelled light curves were used).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.taxonomy import ELASTICC, class_shares
from nightjar_alerts.training.data.sample import PARTS, ContextPolicy, Sample
from nightjar_alerts.training.data.survey_readers import EVALUATION_LABELS
from nightjar_alerts.training.data.surveys import as_observed
from nightjar_alerts.training.score.report import (
    Answers,
    Report,
    ServedPredictions,
    by_group,
    report_of,
    rounded,
)
from nightjar_alerts.training.score.survey_rows import MIN_DETECTIONS, ROWS, PredictedSample, ScoredParts, brightest
from nightjar_alerts.training.score.survey_scores import (
    BRIGHTNESS,
    OpenBundle,
    novelty_auroc,
    open_bundle,
    predict,
    summary,
    summary_without_recall,
)

Column = Literal["seen", "left out", "adapted"]
Part = Literal["valid", "test"]
COLUMNS: Final[tuple[Column, ...]] = ("seen", "left out", "adapted")
CONTEXTS: Final[tuple[ContextPolicy, ...]] = ("nothing", "redshift", "everything")
VIEW_CONTEXTS: Final[tuple[ContextPolicy, ...]] = ("nothing", "redshift")
DETECTIONS: Final = (0, 5, 10, 20)
"""Smallest numbers of detections of the bins."""
Predict = Callable[[Sample, ContextPolicy], ServedPredictions]
PRIOR: Final = "as each model was trained (`training`), never reweighted"
SIMULATED: Final = ("simulated", "simulated test set, macro-F1", "0.80", "not below 0.80")


def scored_part(sample: Sample, part: Part = "test") -> tuple[Sample, Sample]:
    """Return the labelled objects to score, and the objects of no known class, with points as in a request.

    Labels of real Rubin alerts are for evaluation only, so the test part includes all of them. The validation part has
    no objects whose labels are for evaluation only.
    """
    chosen = sample.part == PARTS.index(part)
    if part == "test":
        chosen |= sample.source == "rubin"
    else:
        chosen &= ~np.isin(sample.source, sorted(EVALUATION_LABELS))
    sent = as_observed(sample.take(chosen))
    return sent.take(sent.label >= 0), sent.take(sent.quality == "other")


def measure(
    name: str,
    predict: Predict,
    sample: Sample,
    views: Sample | None = None,
    contexts: tuple[ContextPolicy, ...] = CONTEXTS,
    part: Part = "test",
) -> dict[str, Any]:
    """Return the report of one model.

    Parameters
    ----------
    sample : the whole sample, of which ``part`` is scored. views : re-observed objects of that part.
    """
    objects, outliers = scored_part(sample, part)
    real = _predict_all(predict, objects, contexts)
    predicted_views = None if views is None else _predict_all(predict, as_observed(views), VIEW_CONTEXTS)
    measured = ScoredParts(real, predicted_views)
    report: dict[str, Any] = {"name": name, "objects": len(objects), "views": 0 if views is None else len(views)}
    report["rows"] = {row.key: row.score(measured) for row in ROWS}
    report["sets"] = {
        source: _score_source(real, source, contexts) for source in sorted(set(real.sample.source.tolist()))
    }
    if predicted_views is not None:
        report["patterns"] = {
            s: _score_views(predicted_views, s) for s in sorted(set(predicted_views.sample.source.tolist()))
        }
    report["detections"] = _by_detections(real)
    report["brightness"] = _by_brightness(real)
    report["novelty"] = _novelty(predict, real, outliers)
    rounded_report: dict[str, Any] = rounded(report)
    return rounded_report


def measure_bundle(path: Path, sample: Sample, views: Sample | None = None, part: Part = "test") -> dict[str, Any]:
    """Return the report of a bundle of the 20 classes.

    Raises
    ------
    ValueError
        If the bundle has other classes.
    """
    model = open_bundle(path)
    if model.manifest.classes.names != ELASTICC.names:
        raise ValueError(f"{path} does not have the {len(ELASTICC.names)} classes of the table")
    report = measure(model.name, partial(predict, model), sample, views, part=part)
    objects, _ = scored_part(sample, part)
    priors = {prior: _score_prior(model, objects, prior) for prior in model.manifest.priors}
    report["priors"] = rounded({prior: scores for prior, scores in priors.items() if scores["objects"]})
    return report


def report_on_surveys(bundles: Sequence[Path], sample: Sample, part: Part = "test") -> Report:
    """Return the report of bundles of the 20 classes on all labelled objects of a part, from their points alone."""
    objects, _ = scored_part(sample, part)
    answers = []
    for path in bundles:
        model = open_bundle(path)
        predictions = predict(model, objects, "nothing")
        lost = len(objects) - len(predictions)
        counts = {"not_classified": {"without a usable point": lost} if lost else {}}
        answers.append(Answers(model.name, model.manifest.classes.names, objects.label, predictions, counts))
    table = {"name": f"real surveys, {part} part", "objects": len(objects), "left_out": {}, "guesses": []}
    ids = [f"{source} {name}" for source, name in zip(objects.source, objects.object_id, strict=True)]
    return report_of(table, answers, ids, objects.detections, brightest(objects))


def _score_prior(model: OpenBundle, sample: Sample, prior: str) -> dict[str, Any]:
    """Return the scores of prediction sets for named class shares, by weighting objects so that they have them."""
    shares = class_shares(prior, ELASTICC.names) or {}
    share_C = np.array([shares.get(name, 0.0) for name in ELASTICC.names])
    objects = sample.take((share_C[sample.label] > 0) & (sample.count(sample.detected) >= MIN_DETECTIONS))
    predictions = predict(model, objects, "nothing", prior)
    label_N, usual_N = objects.label[predictions.rows_N], ~predictions.unusual_N
    weight_N = (share_C / np.maximum(np.bincount(label_N, minlength=len(share_C)), 1))[label_N]
    covered_N, size_N = predictions.inside_NC[np.arange(len(label_N)), label_N], predictions.inside_NC.sum(axis=1)
    usual_weight_N = weight_N * usual_N
    total = max(float(usual_weight_N.sum()), 1e-300)
    return {
        "objects": len(label_N),
        "classes": len(np.unique(label_N)),
        "coverage": float(usual_weight_N @ covered_N / total),
        "size": float(usual_weight_N @ size_N / total),
        "withheld": float(weight_N @ ~usual_N / max(float(weight_N.sum()), 1e-300)),
    }


def _predict_all(predict: Predict, sample: Sample, contexts: tuple[ContextPolicy, ...]) -> PredictedSample:
    """Return the predictions for the objects with each context, without objects that the model cannot classify.

    Predictions are reused for objects whose metadata are the same as in the previous context, since inference dominates
    the run time.
    """
    first = predict(sample, contexts[0])
    usable = sample.take(first.rows_N)
    predictions: dict[ContextPolicy, ServedPredictions] = {contexts[0]: replace(first, rows_N=np.arange(len(first)))}
    before = [usable.metadata_of(row, contexts[0]) for row in range(len(usable))]
    for context in contexts[1:]:
        metadata = [usable.metadata_of(row, context) for row in range(len(usable))]
        changed = np.array([new != old for new, old in zip(metadata, before, strict=True)], dtype=np.bool_)
        previous = predictions[list(predictions)[-1]]
        predictions[context] = (
            _updated(previous, predict(usable.take(changed), context), changed) if changed.any() else previous
        )
        before = metadata
    return PredictedSample(usable, predictions, brightest(usable), usable.count(usable.detected))


def _updated(old: ServedPredictions, new: ServedPredictions, changed_N: NDArray[np.bool_]) -> ServedPredictions:
    """Return ``old`` with the predictions of the changed objects replaced by ``new``."""
    rows = np.flatnonzero(changed_N)[new.rows_N]

    def updated(name: str) -> NDArray[Any]:
        values: NDArray[Any] = getattr(old, name).copy()
        values[rows] = getattr(new, name)
        return values

    changed = {part.name: updated(part.name) for part in fields(old) if part.name != "rows_N"}
    return replace(old, **changed)


def _score_source(part: PredictedSample, source: str, contexts: tuple[ContextPolicy, ...]) -> dict[str, Any]:
    """Return the scores of one set by context."""
    chosen = part.sample.source == source
    return {context: summary(*part.pick(chosen, context)) for context in contexts}


def _score_views(part: PredictedSample, source: str) -> dict[str, Any]:
    """Return the scores of the views of one survey by context, without the recall of every class."""
    chosen = part.sample.source == source
    return {context: summary_without_recall(*part.pick(chosen, context)) for context in VIEW_CONTEXTS}


def _by_detections(part: PredictedSample) -> list[dict[str, Any]]:
    """Return the scores of all objects by number of detections."""
    bin_N = np.searchsorted(DETECTIONS, part.detections_N, side="right") - 1
    bins = [{"from": low} for low in DETECTIONS]
    return by_group(part.predictions["nothing"], part.sample.label, bin_N, bins, summary_without_recall)


def _by_brightness(part: PredictedSample) -> list[dict[str, Any]]:
    """Return the scores of all objects by the magnitude of the brightest detection, the brightest bin first."""
    bin_N = np.where(np.isfinite(part.magnitude_N), np.digitize(part.magnitude_N, BRIGHTNESS), -1)
    bins = [{"fainter than": edge} for edge in (None, *BRIGHTNESS)]
    return by_group(part.predictions["nothing"], part.sample.label, bin_N, bins, summary_without_recall)


def _novelty(predict: Predict, real: PredictedSample, outliers: Sample) -> dict[str, Any]:
    """Return the AUROC of novelty against known classes of the same surveys, and the shares flagged as unusual."""
    if not len(outliers):
        return {}
    predictions = predict(outliers, "nothing")
    sources = outliers.source[predictions.rows_N]
    usual = real.predictions["nothing"]
    figures: dict[str, Any] = {
        "against all known": novelty_auroc(usual, predictions),
        "oddities": len(predictions),
        "withheld oddities": float(predictions.unusual_N.mean()),
        "withheld known": float(usual.unusual_N.mean()),
    }
    for source in sorted(set(sources.tolist())):
        known, unknown = real.sample.source == source, sources == source
        if known.sum() >= 20 and unknown.sum() >= 5:
            figures[source] = novelty_auroc(usual.take(known), predictions.take(unknown))
    return figures


def evaluate_on_surveys(
    sample: Sample,
    bundles: Mapping[str, Sequence[Path]],
    *,
    views: Sample | None,
    report_files: Sequence[Path] = (),
    simulated: Sequence[Path] = (),
    seeds: Sequence[Path] = (),
    test_evaluations: int = 1,
    part: Part = "test",
) -> dict[str, Any]:
    """Return the scores of all models on all sets.

    Parameters
    ----------
    bundles : bundle folders by column.
    views : re-observed objects of ``part``, which are scored too.
    report_files : reports of earlier calls, whose models are added.
    simulated : reports of ``evaluate``.
    seeds : reports of the validation part, each of one bundle, that differ in the seed only.
    test_evaluations : how often the test part has been used.

    Raises
    ------
    ValueError
        If a column does not exist, or a bundle has other classes.
    """
    if unknown := set(bundles) - set(COLUMNS):
        raise ValueError(f"there is no column {sorted(unknown)[0]!r}")
    reports: dict[str, dict[str, Any]] = {}
    for column, paths in bundles.items():
        for path in paths:
            report = measure_bundle(path, sample, views, part)
            reports.setdefault(report["name"], {})[column] = report
    earlier = [json.loads(path.read_text(encoding="utf-8")) for path in report_files]
    for previous in earlier:
        for name, columns in previous.get("reports", {}).items():
            for column, report in columns.items():
                reports.setdefault(name, {})[column] = report
    _add_simulated(reports, [json.loads(path.read_text(encoding="utf-8")) for path in simulated])
    return {
        "prior": PRIOR,
        "test_evaluations": test_evaluations,
        "seeds": spread([json.loads(path.read_text(encoding="utf-8")) for path in seeds]),
        "table": table(reports),
        "reports": reports,
    }


def spread(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard deviation of the figures of several reports, each of one bundle; empty for fewer than 2.

    Numbers of objects and figures that one of the reports lacks are left out.
    """
    if len(measured) < 2:
        return []
    rows = []
    for same_rows in zip(*(report["table"] for report in measured), strict=True):
        seen = [figures["seen"] for row in same_rows for figures in row["figures"].values() if "seen" in figures]
        if len(seen) < len(same_rows):
            continue
        values = {name: [figures.get(name) for figures in seen] for name in seen[0]}
        statistics = {
            name: [float(np.mean(column)), float(np.std(column, ddof=1))]
            for name, column in values.items()
            if all(isinstance(value, float) for value in column)
        }
        first = same_rows[0]
        rows.append({"key": first["key"], "title": first["title"], "seeds": len(seen), "figures": statistics})
    spreads: list[dict[str, Any]] = rounded(rows)
    return spreads


def _add_simulated(reports: Mapping[str, Mapping[str, Any]], evaluated: Sequence[Mapping[str, Any]]) -> None:
    """Add the score on the simulated test set to the column `seen` of each model."""
    for report in evaluated:
        for model in report["models"]:
            columns = reports.get(model["name"], {})
            if "seen" in columns:
                score = report["views"]["everything"]
                row = {"macro-F1": score["macro_f1"]["mean"], "objects": int(score["objects"]["mean"])}
                columns["seen"]["rows"]["simulated"] = rounded(row)


def table(reports: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of the table: the target, and the figures of every model and column."""
    named = [(row.key, row.title, row.before, row.goal) for row in ROWS]
    return [
        {"key": key, "title": title, "before": before, "wanted": goal, "figures": _figures(reports, key)}
        for key, title, before, goal in (*named, SIMULATED)
    ]


def _figures(reports: Mapping[str, Mapping[str, Mapping[str, Any]]], key: str) -> dict[str, dict[str, Any]]:
    return {
        name: {column: report["rows"][key] for column, report in columns.items() if key in report["rows"]}
        for name, columns in reports.items()
    }
