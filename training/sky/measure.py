"""One report about a model on every set of real surveys, and the whole table of several by one command.

Three columns are never mixed: ``seen`` (most of a source was in training, its own test part is scored), ``left out``
(nothing of the survey was), ``adapted`` (its unlabelled curves served as observing patterns). A column is a property of
how a model was trained, so whoever measures says it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from models.bundle import load_bundle
from models.posterior import class_shares
from models.taxonomy import ELASTICC
from training.sky.load import as_sent
from training.sky.record import PARTS, Reveal, Sky
from training.sky.rows import FEWEST_DETECTIONS, ROWS, Asked, Measured, brightest
from training.sky.scores import BRIGHTNESS, Answers, ask_bundle, by_detections, novelty_auroc, rounded, summary
from training.sky.surveys import MEASURE_ONLY

Column = Literal["seen", "left out", "adapted"]
Part = Literal["valid", "test"]
COLUMNS: Final[tuple[Column, ...]] = ("seen", "left out", "adapted")
REVEALS: Final[tuple[Reveal, ...]] = ("nothing", "redshift", "everything")
VIEW_REVEALS: Final[tuple[Reveal, ...]] = ("nothing", "redshift")
Ask = Callable[[Sky, Reveal], Answers]
PRIOR: Final = "as each model was trained (`training`), never reweighted"
SIMULATED: Final = ("simulated", "simulated test set, macro-F1", "0.80", "not below 0.80")


def scored_part(sky: Sky, part: Part = "test") -> tuple[Sky, Sky]:
    """Labelled objects to be scored, and objects of no known class; points as somebody would send them.

    Labels of real Rubin alerts are for measuring only, so all of them are scored with the test part, whichever part
    they are in; in the validation part nothing is scored that serves measuring alone.
    """
    chosen = sky.part == PARTS.index(part)
    if part == "test":
        chosen |= sky.source == "rubin"
    else:
        chosen &= ~np.isin(sky.source, sorted(MEASURE_ONLY | {"rubin"}))
    sent = as_sent(sky.take(chosen))
    return sent.take(sent.label >= 0), sent.take(sent.quality == "other")


def measure(
    name: str,
    ask: Ask,
    sky: Sky,
    views: Sky | None = None,
    reveals: tuple[Reveal, ...] = REVEALS,
    part: Part = "test",
) -> dict[str, Any]:
    """Return the report of one model.

    Parameters
    ----------
    sky : the whole record; ``part`` of it is scored. views : views of that part, where there are some.
    """
    known, strange = scored_part(sky, part)
    real = _asked(ask, known, reveals)
    seen = None if views is None else _asked(ask, as_sent(views), VIEW_REVEALS)
    measured = Measured(real, seen)
    report: dict[str, Any] = {"name": name, "objects": len(known), "views": 0 if views is None else len(views)}
    report["rows"] = {row.key: row.score(measured) for row in ROWS}
    report["sets"] = {source: _of_source(real, source, reveals) for source in sorted(set(real.sky.source.tolist()))}
    if seen is not None:
        report["patterns"] = {s: _briefly(seen, s) for s in sorted(set(seen.sky.source.tolist()))}
    report["detections"] = by_detections(real.answers["nothing"], real.sky.label, real.detections_N)
    report["brightness"] = _by_brightness(real)
    report["novelty"] = _novelty(ask, real, strange)
    found: dict[str, Any] = rounded(report)
    return found


def measure_bundle(path: Path, sky: Sky, views: Sky | None = None, part: Part = "test") -> dict[str, Any]:
    """Return the report of a bundle of the 20 classes.

    Raises
    ------
    ValueError
        For a bundle of other classes.
    """
    bundle = load_bundle(path)
    if bundle.manifest.task != "classification" or bundle.manifest.classes.names != ELASTICC.names:
        raise ValueError(f"{path} does not tell the {len(ELASTICC.names)} classes of the table apart")
    name = f"{bundle.manifest.name} {bundle.manifest.version}"
    report = measure(name, lambda asked, reveal: ask_bundle(path, asked, reveal), sky, views, part=part)
    known, _ = scored_part(sky, part)
    priors = {prior: _under(path, known, prior) for prior in bundle.manifest.priors}
    report["priors"] = rounded({prior: told for prior, told in priors.items() if told["objects"]})
    return report


def _under(path: Path, sky: Sky, prior: str) -> dict[str, Any]:
    """Score sets under other class shares: objects weigh so that classes have those shares among them."""
    shares = class_shares(prior, ELASTICC.names) or {}
    share_C = np.array([shares.get(name, 0.0) for name in ELASTICC.names])
    wanted = sky.take((share_C[sky.label] > 0) & (sky.count(sky.detected) >= FEWEST_DETECTIONS))
    answers = ask_bundle(path, wanted, "nothing", prior)
    label_N, given_N = wanted.label[answers.rows_N], ~answers.unusual_N
    weight_N = (share_C / np.maximum(np.bincount(label_N, minlength=len(share_C)), 1))[label_N]
    held_N, size_N = answers.inside_NC[np.arange(len(label_N)), label_N], answers.inside_NC.sum(axis=1)
    told = weight_N * given_N
    total = max(float(told.sum()), 1e-300)
    return {
        "objects": len(label_N),
        "classes": len(np.unique(label_N)),
        "coverage": float(told @ held_N / total),
        "size": float(told @ size_N / total),
        "withheld": float(weight_N @ ~given_N / max(float(weight_N.sum()), 1e-300)),
    }


def _asked(ask: Ask, sky: Sky, reveals: tuple[Reveal, ...]) -> Asked:
    """Answers to every question about the objects that a model can answer.

    Where a question reveals nothing more than one before, its answer stands: asking costs the most here.
    """
    first = ask(sky, reveals[0])
    kept = sky.take(first.rows_N)
    answers: dict[Reveal, Answers] = {reveals[0]: _renumbered(first)}
    before = [kept.metadata_of(row, reveals[0]) for row in range(len(kept))]
    for reveal in reveals[1:]:
        told = [kept.metadata_of(row, reveal) for row in range(len(kept))]
        news = np.array([new != old for new, old in zip(told, before, strict=True)], dtype=np.bool_)
        known = answers[list(answers)[-1]]
        answers[reveal] = _overlaid(known, ask(kept.take(news), reveal), news) if news.any() else known
        before = told
    return Asked(kept, answers, brightest(kept), kept.count(kept.detected))


def _overlaid(old: Answers, new: Answers, news_N: NDArray[np.bool_]) -> Answers:
    """Return the old answers with the new ones in their places."""
    places = np.flatnonzero(news_N)[new.rows_N]

    def laid(over: NDArray[Any], told: NDArray[Any]) -> NDArray[Any]:
        both = over.copy()
        both[places] = told
        return both

    return Answers(
        old.rows_N,
        laid(old.probabilities_NC, new.probabilities_NC),
        laid(old.inside_NC, new.inside_NC),
        laid(old.novelty_N, new.novelty_N),
        laid(old.unusual_N, new.unusual_N),
    )


def _renumbered(answers: Answers) -> Answers:
    return Answers(
        np.arange(len(answers)), answers.probabilities_NC, answers.inside_NC, answers.novelty_N, answers.unusual_N
    )


def _of_source(asked: Asked, source: str, reveals: tuple[Reveal, ...]) -> dict[str, Any]:
    """Scores of one set by what was revealed."""
    chosen = asked.sky.source == source
    return {reveal: summary(*asked.pick(chosen, reveal)) for reveal in reveals}


def _briefly(asked: Asked, source: str) -> dict[str, Any]:
    """Shorten a report of views, without the recall of every class: classes are made as many as wanted there."""
    found = _of_source(asked, source, VIEW_REVEALS)
    return {
        reveal: {name: value for name, value in scores.items() if name != "recall"} for reveal, scores in found.items()
    }


def _by_brightness(asked: Asked) -> list[dict[str, Any]]:
    """Scores of all objects by the magnitude of the brightest detection, the brightest bin first."""
    place_N: NDArray[np.intp] = np.digitize(asked.magnitude_N, BRIGHTNESS)
    found = []
    for place in range(len(BRIGHTNESS) + 1):
        scores = summary(*asked.pick((place_N == place) & np.isfinite(asked.magnitude_N)))
        scores.pop("recall", None)
        found.append({"fainter than": BRIGHTNESS[place - 1] if place else None, **scores})
    return found


def _novelty(ask: Ask, real: Asked, strange: Sky) -> dict[str, Any]:
    """AUROC of novelty against known classes of the same surveys, and how many oddities are withheld."""
    if not len(strange):
        return {}
    answers = ask(strange, "nothing")
    sources = strange.source[answers.rows_N]
    known = real.answers["nothing"]
    found: dict[str, Any] = {
        "against all known": novelty_auroc(known, answers),
        "oddities": len(answers),
        "withheld oddities": float(answers.unusual_N.mean()),
        "withheld known": float(known.unusual_N.mean()),
    }
    for source in sorted(set(sources.tolist())):
        mine, theirs = real.sky.source == source, sources == source
        if mine.sum() >= 20 and theirs.sum() >= 5:
            found[source] = novelty_auroc(known.take(mine), answers.take(theirs))
    return found


def measure_all(
    sky: Sky,
    bundles: Mapping[str, Sequence[Path]],
    *,
    views: Sky | None,
    told: Sequence[Path] = (),
    simulated: Sequence[Path] = (),
    six: Path | None = None,
    seeds: Sequence[Path] = (),
    looks: str = "once",
    part: Part = "test",
) -> dict[str, Any]:
    """Everything that the page shows.

    Parameters
    ----------
    bundles : bundle folders by column. views : views of ``part``, which is scored. told : reports of
    ``sky trees``, of ``sky fingerprint`` and of an earlier measurement: their models are taken over.
    simulated : reports of ``evaluate``. six : report of ``sky six``. seeds : measurements of the validation part,
    each of one bundle, which differ in seeds alone.
    looks : how often the test part has been looked at, in words.

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
    earlier = [json.loads(path.read_text(encoding="utf-8")) for path in told]
    for one in earlier:
        for name, columns in one.get("reports", {}).items():
            for column, report in columns.items():
                reports.setdefault(name, {})[column] = report
    _add_simulated(reports, [json.loads(path.read_text(encoding="utf-8")) for path in simulated])
    return {
        "prior": PRIOR,
        "looks": looks,
        "fingerprint": [row for one in earlier for row in _listed(one.get("fingerprint"))],
        "six": None if six is None else json.loads(six.read_text(encoding="utf-8")),
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
    found = []
    for places in zip(*(one["table"] for one in measured), strict=True):
        each = [figures["seen"] for place in places for figures in place["figures"].values() if "seen" in figures]
        if len(each) < len(places):
            continue
        values = {name: [figures.get(name) for figures in each] for name in each[0]}
        told = {
            name: [float(np.mean(column)), float(np.std(column, ddof=1))]
            for name, column in values.items()
            if all(isinstance(value, float) for value in column)
        }
        found.append({"key": places[0]["key"], "title": places[0]["title"], "seeds": len(each), "figures": told})
    spreads: list[dict[str, Any]] = rounded(found)
    return spreads


def _listed(found: Any) -> list[Any]:
    """Return a fingerprint, or the list of them that an earlier measurement has."""
    return found if isinstance(found, list) else [found] if found else []


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
    named = [(row.key, row.title, row.before, row.wanted) for row in ROWS]
    return [
        {"key": key, "title": title, "before": before, "wanted": wanted, "figures": _figures(reports, key)}
        for key, title, before, wanted in (*named, SIMULATED)
    ]


def _figures(reports: Mapping[str, Mapping[str, Mapping[str, Any]]], key: str) -> dict[str, dict[str, Any]]:
    return {
        name: {column: report["rows"][key] for column, report in columns.items() if key in report["rows"]}
        for name, columns in reports.items()
    }
