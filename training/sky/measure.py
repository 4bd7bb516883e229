"""Scores of models on every set of real surveys.

Three columns are never mixed: ``seen`` (most of a source was in training, its own test part is scored), ``left out``
(nothing of the survey was), ``adapted`` (its unlabelled curves served as observing patterns). A column is a property of
how a model was trained, so the caller states it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.taxonomy import ELASTICC, class_shares
from nightjar_alerts.training.sky.load import as_observed
from nightjar_alerts.training.sky.readers import LABELS_TO_MEASURE
from nightjar_alerts.training.sky.record import PARTS, ContextPolicy, SurveySample
from nightjar_alerts.training.sky.rows import FEWEST_DETECTIONS, ROWS, AnsweredSky, ScoredParts, brightest
from nightjar_alerts.training.sky.scores import (
    BRIGHTNESS,
    SkyAnswers,
    ask_bundle,
    by_detections,
    novelty_auroc,
    rounded,
    summary,
)

Column = Literal["seen", "left out", "adapted"]
Part = Literal["valid", "test"]
COLUMNS: Final[tuple[Column, ...]] = ("seen", "left out", "adapted")
REVEALS: Final[tuple[ContextPolicy, ...]] = ("nothing", "redshift", "everything")
VIEW_REVEALS: Final[tuple[ContextPolicy, ...]] = ("nothing", "redshift")
Ask = Callable[[SurveySample, ContextPolicy], SkyAnswers]
PRIOR: Final = "as each model was trained (`training`), never reweighted"
SIMULATED: Final = ("simulated", "simulated test set, macro-F1", "0.80", "not below 0.80")


def scored_part(sky: SurveySample, part: Part = "test") -> tuple[SurveySample, SurveySample]:
    """Return the labelled objects to score, and the objects of no known class; points as in a request.

    Labels of real Rubin alerts are for measuring only, so all of them are scored with the test part, whichever part
    they are in; in the validation part nothing is scored that serves measuring alone.
    """
    chosen = sky.part == PARTS.index(part)
    if part == "test":
        chosen |= sky.source == "rubin"
    else:
        chosen &= ~np.isin(sky.source, sorted(LABELS_TO_MEASURE))
    sent = as_observed(sky.take(chosen))
    return sent.take(sent.label >= 0), sent.take(sent.quality == "other")


def measure(
    name: str,
    ask: Ask,
    sky: SurveySample,
    views: SurveySample | None = None,
    reveals: tuple[ContextPolicy, ...] = REVEALS,
    part: Part = "test",
) -> dict[str, Any]:
    """Return the report of one model.

    Parameters
    ----------
    sky : the whole record; ``part`` of it is scored. views : views of that part, where there are some.
    """
    objects, strange = scored_part(sky, part)
    real = _answer_all(ask, objects, reveals)
    answered_views = None if views is None else _answer_all(ask, as_observed(views), VIEW_REVEALS)
    measured = ScoredParts(real, answered_views)
    report: dict[str, Any] = {"name": name, "objects": len(objects), "views": 0 if views is None else len(views)}
    report["rows"] = {row.key: row.score(measured) for row in ROWS}
    report["sets"] = {source: _of_source(real, source, reveals) for source in sorted(set(real.sky.source.tolist()))}
    if answered_views is not None:
        report["patterns"] = {s: _briefly(answered_views, s) for s in sorted(set(answered_views.sky.source.tolist()))}
    report["detections"] = by_detections(real.answers["nothing"], real.sky.label, real.detections_N)
    report["brightness"] = _by_brightness(real)
    report["novelty"] = _novelty(ask, real, strange)
    rounded_report: dict[str, Any] = rounded(report)
    return rounded_report


def measure_bundle(
    path: Path, sky: SurveySample, views: SurveySample | None = None, part: Part = "test"
) -> dict[str, Any]:
    """Return the report of a bundle of the 20 classes.

    Raises
    ------
    ValueError
        For a bundle of other classes.
    """
    bundle = load_bundle(path)
    if bundle.manifest.classes.names != ELASTICC.names:
        raise ValueError(f"{path} does not have the {len(ELASTICC.names)} classes of the table")
    name = f"{bundle.manifest.name} {bundle.manifest.version}"
    report = measure(name, lambda objects, reveal: ask_bundle(path, objects, reveal), sky, views, part=part)
    objects, _ = scored_part(sky, part)
    priors = {prior: _under(path, objects, prior) for prior in bundle.manifest.priors}
    report["priors"] = rounded({prior: scores for prior, scores in priors.items() if scores["objects"]})
    return report


def _under(path: Path, sky: SurveySample, prior: str) -> dict[str, Any]:
    """Score sets under other class shares: objects weigh so that classes have those shares among them."""
    shares = class_shares(prior, ELASTICC.names) or {}
    share_C = np.array([shares.get(name, 0.0) for name in ELASTICC.names])
    objects = sky.take((share_C[sky.label] > 0) & (sky.count(sky.detected) >= FEWEST_DETECTIONS))
    answers = ask_bundle(path, objects, "nothing", prior)
    label_N, usual_N = objects.label[answers.rows_N], ~answers.unusual_N
    weight_N = (share_C / np.maximum(np.bincount(label_N, minlength=len(share_C)), 1))[label_N]
    covered_N, size_N = answers.inside_NC[np.arange(len(label_N)), label_N], answers.inside_NC.sum(axis=1)
    usual_weight_N = weight_N * usual_N
    total = max(float(usual_weight_N.sum()), 1e-300)
    return {
        "objects": len(label_N),
        "classes": len(np.unique(label_N)),
        "coverage": float(usual_weight_N @ covered_N / total),
        "size": float(usual_weight_N @ size_N / total),
        "withheld": float(weight_N @ ~usual_N / max(float(weight_N.sum()), 1e-300)),
    }


def _answer_all(ask: Ask, sky: SurveySample, reveals: tuple[ContextPolicy, ...]) -> AnsweredSky:
    """Answers to every question about the objects that a model can answer.

    Where a context adds nothing to the previous one, the predictions are reused, since inference dominates the time.
    """
    first = ask(sky, reveals[0])
    answerable = sky.take(first.rows_N)
    answers: dict[ContextPolicy, SkyAnswers] = {reveals[0]: _renumbered(first)}
    before = [answerable.metadata_of(row, reveals[0]) for row in range(len(answerable))]
    for reveal in reveals[1:]:
        metadata = [answerable.metadata_of(row, reveal) for row in range(len(answerable))]
        news = np.array([new != old for new, old in zip(metadata, before, strict=True)], dtype=np.bool_)
        previous = answers[list(answers)[-1]]
        answers[reveal] = _overlaid(previous, ask(answerable.take(news), reveal), news) if news.any() else previous
        before = metadata
    return AnsweredSky(answerable, answers, brightest(answerable), answerable.count(answerable.detected))


def _overlaid(old: SkyAnswers, new: SkyAnswers, news_N: NDArray[np.bool_]) -> SkyAnswers:
    """Return the old answers with the new ones in their places."""
    places = np.flatnonzero(news_N)[new.rows_N]

    def laid(over: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        both = over.copy()
        both[places] = values
        return both

    return SkyAnswers(
        old.rows_N,
        laid(old.probabilities_NC, new.probabilities_NC),
        laid(old.inside_NC, new.inside_NC),
        laid(old.novelty_N, new.novelty_N),
        laid(old.unusual_N, new.unusual_N),
    )


def _renumbered(answers: SkyAnswers) -> SkyAnswers:
    return SkyAnswers(
        np.arange(len(answers)), answers.probabilities_NC, answers.inside_NC, answers.novelty_N, answers.unusual_N
    )


def _of_source(part: AnsweredSky, source: str, reveals: tuple[ContextPolicy, ...]) -> dict[str, Any]:
    """Scores of one set by what was revealed."""
    chosen = part.sky.source == source
    return {reveal: summary(*part.pick(chosen, reveal)) for reveal in reveals}


def _briefly(part: AnsweredSky, source: str) -> dict[str, Any]:
    """Shorten a report of views, without the recall of every class: classes are made as many as wanted there."""
    scores_by_reveal = _of_source(part, source, VIEW_REVEALS)
    return {
        reveal: {name: value for name, value in scores.items() if name != "recall"}
        for reveal, scores in scores_by_reveal.items()
    }


def _by_brightness(part: AnsweredSky) -> list[dict[str, Any]]:
    """Scores of all objects by the magnitude of the brightest detection, the brightest bin first."""
    place_N: NDArray[np.intp] = np.digitize(part.magnitude_N, BRIGHTNESS)
    rows = []
    for place in range(len(BRIGHTNESS) + 1):
        scores = summary(*part.pick((place_N == place) & np.isfinite(part.magnitude_N)))
        scores.pop("recall", None)
        rows.append({"fainter than": BRIGHTNESS[place - 1] if place else None, **scores})
    return rows


def _novelty(ask: Ask, real: AnsweredSky, strange: SurveySample) -> dict[str, Any]:
    """AUROC of novelty against known classes of the same surveys, and how many oddities are withheld."""
    if not len(strange):
        return {}
    answers = ask(strange, "nothing")
    sources = strange.source[answers.rows_N]
    usual = real.answers["nothing"]
    figures: dict[str, Any] = {
        "against all known": novelty_auroc(usual, answers),
        "oddities": len(answers),
        "withheld oddities": float(answers.unusual_N.mean()),
        "withheld known": float(usual.unusual_N.mean()),
    }
    for source in sorted(set(sources.tolist())):
        mine, theirs = real.sky.source == source, sources == source
        if mine.sum() >= 20 and theirs.sum() >= 5:
            figures[source] = novelty_auroc(usual.take(mine), answers.take(theirs))
    return figures


def measure_all(
    sky: SurveySample,
    bundles: Mapping[str, Sequence[Path]],
    *,
    views: SurveySample | None,
    report_files: Sequence[Path] = (),
    simulated: Sequence[Path] = (),
    seeds: Sequence[Path] = (),
    looks: str = "once",
    part: Part = "test",
) -> dict[str, Any]:
    """Return the scores of all models on all sets.

    Parameters
    ----------
    bundles : bundle folders by column.
    views : re-observations of ``part``, which are scored too.
    report_files : reports of earlier measurements, whose models are added.
    simulated : reports of ``evaluate``.
    seeds : measurements of the validation part, each of one bundle, which differ in seeds alone.
    looks : how often the test part has been used, in words.

    Raises
    ------
    ValueError
        For a column that does not exist, or a bundle of other classes.
    """
    if unknown := set(bundles) - set(COLUMNS):
        raise ValueError(f"there is no column {sorted(unknown)[0]!r}")
    reports: dict[str, dict[str, Any]] = {}
    for column, paths in bundles.items():
        for path in paths:
            report = measure_bundle(path, sky, views, part)
            reports.setdefault(report["name"], {})[column] = report
    earlier = [json.loads(path.read_text(encoding="utf-8")) for path in report_files]
    for one in earlier:
        for name, columns in one.get("reports", {}).items():
            for column, report in columns.items():
                reports.setdefault(name, {})[column] = report
    _add_simulated(reports, [json.loads(path.read_text(encoding="utf-8")) for path in simulated])
    return {
        "prior": PRIOR,
        "looks": looks,
        "seeds": spread([json.loads(path.read_text(encoding="utf-8")) for path in seeds]),
        "table": table(reports),
        "reports": reports,
    }


def spread(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation of the figures of several measurements, each of one bundle; no rows of none.

    Figures that count objects, or that one of them lacks, are left out.
    """
    if len(measured) < 2:
        return []
    rows = []
    for places in zip(*(one["table"] for one in measured), strict=True):
        each = [figures["seen"] for place in places for figures in place["figures"].values() if "seen" in figures]
        if len(each) < len(places):
            continue
        values = {name: [figures.get(name) for figures in each] for name in each[0]}
        statistics = {
            name: [float(np.mean(column)), float(np.std(column, ddof=1))]
            for name, column in values.items()
            if all(isinstance(value, float) for value in column)
        }
        rows.append({"key": places[0]["key"], "title": places[0]["title"], "seeds": len(each), "figures": statistics})
    spreads: list[dict[str, Any]] = rounded(rows)
    return spreads


def _add_simulated(reports: Mapping[str, Mapping[str, Any]], evaluated: Sequence[Mapping[str, Any]]) -> None:
    """Put the score of the simulated test set into the column `seen` of the model that it is about."""
    for report in evaluated:
        for model in report["models"]:
            columns = reports.get(model["name"], {})
            if "seen" in columns:
                score = report["views"]["everything"]
                row = {"macro-F1": score["macro_f1"]["mean"], "objects": int(score["objects"]["mean"])}
                columns["seen"]["rows"]["simulated"] = rounded(row)


def table(reports: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of the table: what was wanted, and the figures of every model and column."""
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
