"""Scores of a bundle by bands, detections and metadata, and on surveys outside its training.

Tables, each by class group (`GROUP_OF_CLASS`):

- ``bands``: every single band, every pair, and some larger subsets, of test objects that keep enough points;
- ``early``: the first detections of an object, and the first days after its first detection;
- ``metadata``: changes of the predictions when only dust or the error of a redshift changes;
- ``flat``: sources of constant flux, observed when and as deeply as real objects;
- ``surveys``: whole objects and first detections of surveys in a folder of their own.

`pattern_score` measures how much the pattern of observations reveals of the classes of a training mixture.

Legend: N objects, P points, C classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.fit.boosting import boost
from nightjar_alerts.training.score.metrics import log_loss
from nightjar_alerts.training.sky.load import as_observed, assemble
from nightjar_alerts.training.sky.novelty import CurveSet
from nightjar_alerts.training.sky.readers import LABELS_TO_MEASURE, read_real
from nightjar_alerts.training.sky.record import PARTS, SurveySample
from nightjar_alerts.training.sky.scores import SkyAnswers, ask_bundle, rounded, summary

SUBSETS: Final = (*BANDS, *("".join(pair) for pair in combinations(BANDS, 2)), "ugr", "gri", "riz", "izY", "griz")
COUNTS: Final = (1, 2, 3, 5, 10, 20)
DAYS: Final = (1.0, 3.0, 7.0, 30.0)
FEWEST_POINTS: Final = 8
OF_A_SOURCE: Final = 60
"""Objects of one class and source: a large simulation does not decide a table."""
SUPERNOVA_LIKE: Final = ("SN-like", "Long")
SCORES: Final = ("objects", "top_1", "broad", "sure_and_wrong", "coverage", "size", "withheld")

Ask = Callable[[SurveySample], SkyAnswers]


def measure_partial(
    path: Path, sky: SurveySample, surveys: Path | None = None, part: str = "test"
) -> tuple[str, dict[str, Any]]:
    """Name and version of a bundle, and every table.

    Parameters
    ----------
    sky : the whole record; a sample of ``part`` is scored. surveys : folder of sets that no training saw.
    """
    sample = _sample(sky, part)

    def ask(objects: SurveySample) -> SkyAnswers:
        return ask_bundle(path, objects, "nothing")

    report = {
        "objects": len(sample),
        "bands": band_table(ask, sample),
        "early": early_table(ask, sample),
        "early, detections alone": early_table(ask, sample.keep_points(sample.detected)),
        "metadata": metadata_changes(path, sample),
        "flat": flat_table(ask, sample),
    }
    if surveys is not None:
        objects = as_observed(assemble(list(read_real(surveys))))
        report["surveys"] = survey_table(ask, objects.take(objects.label >= 0))
    manifest = load_bundle(path).manifest
    return f"{manifest.name} {manifest.version}", rounded(report)


def _sample(sky: SurveySample, part: str, seed: int = 0) -> SurveySample:
    """Draw some labelled objects of each class and source of a part."""
    chosen = (sky.part == PARTS.index(part)) & (sky.label >= 0) & ~np.isin(sky.source, sorted(LABELS_TO_MEASURE))
    sent = as_observed(sky.take(chosen))
    order = np.random.default_rng(seed).permutation(len(sent))
    kind = np.char.add(sent.source[order], sent.label[order].astype(np.str_))
    _, place = np.unique(kind, return_inverse=True)
    before = np.zeros(len(order), dtype=np.int64)
    for number in range(place.max(initial=-1) + 1):
        mine = place == number
        before[mine] = np.arange(mine.sum())
    return sent.take(np.sort(order[before < OF_A_SOURCE]))


def band_table(ask: Ask, sky: SurveySample) -> dict[str, Any]:
    """Scores of objects with ``FEWEST_POINTS`` points and two detections in each subset of bands."""
    return {subset: _by_group(ask, _in_bands(sky, subset)) for subset in ("all", *SUBSETS)}


def _in_bands(sky: SurveySample, subset: str) -> SurveySample:
    numbers = range(len(BANDS)) if subset == "all" else [BANDS.index(name) for name in subset]
    seen = sky.keep_points(np.isin(sky.band, list(numbers)))
    enough = (seen.lengths >= FEWEST_POINTS) & (seen.count(seen.detected) >= 2)
    if len(numbers) > 1 and subset != "all":  # a pair is a pair only with points in both
        for number in numbers:
            enough &= seen.count(seen.band == number) >= 2
    return seen.take(enough)


def early_table(ask: Ask, sky: SurveySample) -> dict[str, Any]:
    """Scores of the same objects up to a detection, and up to a day after the first."""
    table = {}
    for count in COUNTS:
        there = sky.take(sky.count(sky.detected) >= count)
        table[f"{count} detections"] = _by_group(ask, there.keep_points(there.mjd <= _until(there, count)))
    for days in DAYS:
        there = sky.take(sky.count(sky.detected) >= 1)
        table[f"{days:.0f} days"] = _by_group(ask, there.keep_points(there.mjd <= _until(there, 1) + days))
    return table


def _until(sky: SurveySample, count: int) -> NDArray[np.float64]:
    """Time of the detection ``count`` of the object of every point, (P,)."""
    ends = np.array([np.sort(sky.mjd[at][sky.detected[at]])[count - 1] for at in map(sky.points, range(len(sky)))])
    return np.repeat(ends, sky.lengths)


def _by_group(ask: Ask, shown: SurveySample) -> dict[str, Any]:
    """Scores by broad class, and of the classes themselves their recall."""
    if not len(shown):
        return {}
    answers = ask(shown)
    label_N = shown.label[answers.rows_N]
    broad_N = np.array([leaf.path[-1] for leaf in ELASTICC.classes])[label_N]
    return {str(name): _scores(answers.take(broad_N == name), label_N[broad_N == name]) for name in np.unique(broad_N)}


def _scores(answers: SkyAnswers, label_N: NDArray[np.int64]) -> dict[str, Any]:
    scores = summary(answers, label_N)
    top_N = answers.probabilities_NC.argmax(axis=1)
    kept = {name: scores[name] for name in SCORES}
    names = np.array([leaf.path[-1] for leaf in ELASTICC.classes])[top_N]
    kept["other"] = float(1 - np.isin(names, SUPERNOVA_LIKE).mean())
    kept["recall"] = scores["recall"]
    return kept


def survey_table(ask: Ask, sky: SurveySample) -> dict[str, Any]:
    """Scores of every class of every survey, whole and by number of detections."""
    table: dict[str, Any] = {}
    shown = {"whole": sky}
    for count in COUNTS:
        there = sky.take(sky.count(sky.detected) >= count)
        shown[f"{count} detections"] = there.keep_points(there.mjd <= _until(there, count))
    for name, objects in shown.items():
        answers = ask(objects)
        source_N, label_N = objects.source[answers.rows_N], objects.label[answers.rows_N]
        for source in np.unique(source_N):
            for label in np.unique(label_N[source_N == source]):
                mine = (source_N == source) & (label_N == label)
                key = f"{source}: {ELASTICC.names[label]}"
                named = np.bincount(answers.probabilities_NC[mine].argmax(axis=1), minlength=len(ELASTICC.names))
                most = {ELASTICC.names[c]: int(named[c]) for c in np.argsort(-named)[:3] if named[c]}
                scores = _scores(answers.take(mine), label_N[mine])
                scores.pop("recall")
                table.setdefault(key, {})[name] = scores | {"named": most}
    return table


FLAT_POINTS: Final = (3, 5, 10, 20)
FLAT_RATIOS: Final = (5.0, 20.0)
SURE: Final = 0.8


def flat_table(ask: Ask, sky: SurveySample, seed: int = 0) -> dict[str, Any]:
    """How sources of constant flux are classified, by number of detections and ratio of flux to error.

    Times, bands and errors are those of the first detections of the objects; the flux is the same in every band, with
    noise of the stated errors. No class is right: the fractions are of supernova-like classes, of Ia, of any class and
    of Ia with a probability of at least ``SURE``, and of light curves without a set.
    """
    rng, table = np.random.default_rng(seed), dict[str, Any]()
    broad_C = np.array([leaf.path[-1] for leaf in ELASTICC.classes])
    ia = ELASTICC.names.index("Ia")
    detected = sky.keep_points(sky.detected)
    for count in FLAT_POINTS:
        there = detected.take(detected.lengths >= count)
        first = there.keep_points(np.concatenate([np.arange(length) for length in there.lengths]) < count)
        error = np.array([np.median(first.flux_err[first.points(index)]) for index in range(len(first))])
        for ratio in FLAT_RATIOS:
            flux = np.repeat(ratio * error, first.lengths) + first.flux_err * rng.standard_normal(len(first.flux))
            answers = ask(replace(first, flux=flux.astype(np.float32)))
            top_N, largest_N = answers.probabilities_NC.argmax(axis=1), answers.probabilities_NC.max(axis=1)
            table[f"{count} detections, flux {ratio:.0f} times the error"] = {
                "objects": len(first),
                "supernova": float((broad_C[top_N] == "SN-like").mean()),
                "ia": float((top_N == ia).mean()),
                "sure": float((largest_N >= SURE).mean()),
                "sure_ia": float(((top_N == ia) & (largest_N >= SURE)).mean()),
                "withheld": float(answers.unusual_N.mean()),
            }
    return table


CHANGES: Final[Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]] = {
    "dust 0 to 0.1": ({"mwebv": 0.0}, {"mwebv": 0.1}),
    "dust missing to 0.03": ({}, {"mwebv": 0.03}),
    "redshift error 0.001 to 0.01": ({"z_final_err": 0.001}, {"z_final_err": 0.01}),
}


def metadata_changes(path: Path, sky: SurveySample) -> dict[str, Any]:
    """How results change with one value; known redshifts stay."""
    known = sky.take(np.isfinite(sky.z))
    table = {}
    for name, (first, second) in CHANGES.items():
        before, after = (ask_bundle(path, _with_metadata(known, value), "redshift") for value in (first, second))
        top_N = before.probabilities_NC.argmax(axis=1)
        rows = np.arange(len(top_N))
        moved = np.abs(after.probabilities_NC[rows, top_N] - before.probabilities_NC[rows, top_N])
        table[name] = {
            "objects": len(top_N),
            "median change": float(np.median(moved)),
            "change their class": float((after.probabilities_NC.argmax(axis=1) != top_N).mean()),
        }
    return table


def _with_metadata(sky: SurveySample, values: Mapping[str, float]) -> SurveySample:
    nothing = np.full(len(sky), np.nan)
    dust = np.full(len(sky), values.get("mwebv", np.nan))
    error = np.full(len(sky), values.get("z_final_err", 0.001))
    return replace(sky, mwebv=dust, z_err=error, z_phot=nothing, metadata=np.full_like(sky.metadata, np.nan))


PATTERN_PARAMETERS: Final[Mapping[str, Any]] = {
    "objective": "multiclass", "num_class": len(ELASTICC.names), "learning_rate": 0.1, "num_leaves": 24,
    "min_data_in_leaf": 30, "lambda_l2": 2.0, "max_bin": 63, "num_threads": 1, "verbosity": -1, "seed": 0,
    "deterministic": True, "force_col_wise": True,
}  # fmt: skip


def pattern_score(training: CurveSet, validation: CurveSet, rounds: int = 60) -> dict[str, float]:
    """Balanced accuracy and gain in log loss (nats) of boosted trees that see the pattern alone.

    The pattern: points in each band, and the median error there. The gain is over the class shares of ``training``.
    """
    booster = boost(_pattern(training), training.label, PATTERN_PARAMETERS, seed=0, rounds=rounds)
    p_NC = np.asarray(booster.predict(_pattern(validation), num_threads=1))
    share_C = np.maximum(np.bincount(training.label, minlength=len(ELASTICC.names)), 0.5)
    prior_NC = np.tile(share_C / share_C.sum(), (len(validation), 1))
    present = np.unique(validation.label)
    right_N = p_NC.argmax(axis=1) == validation.label
    return {
        "light_curves": float(len(validation)),
        "balanced_accuracy": float(np.mean([right_N[validation.label == c].mean() for c in present])),
        "log_loss_gain": log_loss(prior_NC, validation.label) - log_loss(p_NC, validation.label),
    }


def _pattern(curves: CurveSet) -> NDArray[np.float32]:
    """Log of the number of points and of the median error in every band, NaN without a point, (N, 2 B)."""
    value_NF = np.full((len(curves), 2 * len(BANDS)), np.nan, dtype=np.float32)
    for row in range(len(curves)):
        at = slice(int(curves.curves.offsets[row]), int(curves.curves.offsets[row + 1]))
        band, error = curves.curves.band[at], curves.curves.flux_err[at]
        for number in np.unique(band):
            here = band == number
            value_NF[row, number] = np.log(here.sum())
            value_NF[row, len(BANDS) + number] = np.log(np.median(error[here]))
    return value_NF
