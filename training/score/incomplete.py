"""Scores of a bundle by bands, detections and metadata, and on surveys outside its training.

Tables, most of them by broad class:

- ``bands``: every single band, every pair, and some larger subsets, for objects that keep enough points;
- ``early``: the first detections of an object, and the first days after its first detection;
- ``rare``: how well the probability of a rare class ranks the objects, with and without redshift and host;
- ``metadata``: changes of the predictions if only dust or the error of a redshift changes;
- ``flat``: sources of constant flux with the times, bands and errors of real objects;
- ``surveys``: complete objects and first detections of surveys that were not used in training.

`pattern_score` measures how well the pattern of observations alone predicts the classes of a training mixture.

Legend: N objects, P points, C classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, precision_recall_curve

from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.sample import PARTS, ContextPolicy, Sample
from nightjar_alerts.training.data.survey_readers import EVALUATION_LABELS, read_real
from nightjar_alerts.training.data.surveys import as_observed, assemble
from nightjar_alerts.training.fit.trees.forest import boost
from nightjar_alerts.training.fit.trees.parameters import PATTERN
from nightjar_alerts.training.metrics import SURE, log_loss
from nightjar_alerts.training.score.report import ServedPredictions, rounded
from nightjar_alerts.training.score.survey_scores import OpenBundle, open_bundle, predict, summary

SUBSETS: Final = (*BANDS, *("".join(pair) for pair in combinations(BANDS, 2)), "ugr", "gri", "riz", "izY", "griz")
COUNTS: Final = (1, 2, 3, 5, 10, 20)
DAYS: Final = (1.0, 3.0, 7.0, 30.0)
RARE: Final = ("TDE", "SLSN", "Ib/c", "KN", "ILOT")
RARE_DAYS: Final = (3.0, 10.0, 30.0)
PURITIES: Final = (0.5, 0.8)
CONTEXTS: Final[tuple[ContextPolicy, ...]] = ("nothing", "redshift", "everything")
MIN_POINTS: Final = 8
PER_CLASS_AND_SOURCE: Final = 60
"""Maximum number of objects of one class and source, so that a large simulation does not dominate a table."""
SUPERNOVA_LIKE: Final = ("SN-like", "Long")
SCORES: Final = ("objects", "top_1", "broad", "sure_and_wrong", "coverage", "size", "withheld")

Predict = Callable[[Sample], ServedPredictions]


def measure_incomplete(
    path: Path, sample: Sample, surveys: Path | None = None, part: str = "test"
) -> tuple[str, dict[str, Any]]:
    """Return name and version of a bundle, and every table.

    Parameters
    ----------
    sample : the whole sample, of which some objects of ``part`` are scored.
    surveys : folder of sets not used in training.
    """
    scored, model = _sample(sample, part), open_bundle(path)

    def shown(objects: Sample, context: ContextPolicy = "nothing") -> ServedPredictions:
        return predict(model, objects, context)

    report = {
        "objects": len(scored),
        "bands": band_table(shown, scored),
        "early": early_table(shown, scored),
        "early, detections alone": early_table(shown, scored.keep_points(scored.detected)),
        "rare": {context: rare_table(partial(shown, context=context), scored) for context in CONTEXTS},
        "metadata": metadata_changes(model, scored),
        "flat": flat_table(shown, scored),
    }
    if surveys is not None:
        objects = as_observed(assemble(list(read_real(surveys))))
        report["surveys"] = survey_table(shown, objects.take(objects.label >= 0))
    return model.name, rounded(report)


def _sample(sample: Sample, part: str, seed: int = 0) -> Sample:
    """Draw at most `PER_CLASS_AND_SOURCE` labelled objects of each class and source of a part."""
    chosen = (
        (sample.part == PARTS.index(part)) & (sample.label >= 0) & ~np.isin(sample.source, sorted(EVALUATION_LABELS))
    )
    return drawn_objects(as_observed(sample.take(chosen)), PER_CLASS_AND_SOURCE, seed)


def drawn_objects(sample: Sample, most: int, seed: int) -> Sample:
    """Draw at most ``most`` objects of each class and source."""
    order = np.random.default_rng(seed).permutation(len(sample))
    kind = np.char.add(sample.source[order], sample.label[order].astype(np.str_))
    _, kind_N = np.unique(kind, return_inverse=True)
    rank_N = np.zeros(len(order), dtype=np.int64)
    for number in range(kind_N.max(initial=-1) + 1):
        same_kind = kind_N == number
        rank_N[same_kind] = np.arange(same_kind.sum())
    return sample.take(np.sort(order[rank_N < most]))


def band_table(predict: Predict, sample: Sample) -> dict[str, Any]:
    """Return scores of objects with ``MIN_POINTS`` points and two detections in each subset of bands."""
    return {subset: _by_group(predict, _in_bands(sample, subset)) for subset in ("all", *SUBSETS)}


def _in_bands(sample: Sample, subset: str) -> Sample:
    numbers = range(len(BANDS)) if subset == "all" else [BANDS.index(name) for name in subset]
    seen = sample.keep_points(np.isin(sample.band, list(numbers)))
    enough = (seen.lengths >= MIN_POINTS) & (seen.count(seen.detected) >= 2)
    if len(numbers) > 1 and subset != "all":  # every band of a subset needs points
        for number in numbers:
            enough &= seen.count(seen.band == number) >= 2
    return seen.take(enough)


def early_table(predict: Predict, sample: Sample) -> dict[str, Any]:
    """Return scores of objects truncated after each of `COUNTS` detections, or `DAYS` after the first detection."""
    table = {}
    for count in COUNTS:
        objects = sample.take(sample.count(sample.detected) >= count)
        early = objects.keep_points(objects.mjd <= detection_time(objects, count))
        table[f"{count} detections"] = _by_group(predict, early)
    for days in DAYS:
        table[f"{days:.0f} days"] = _by_group(predict, until(sample, days))
    return table


def until(sample: Sample, days: float) -> Sample:
    """Return the detected objects as observed until some days after the first detection."""
    objects = sample.take(sample.count(sample.detected) >= 1)
    return objects.keep_points(objects.mjd <= detection_time(objects, 1) + days)


def rare_table(predict: Predict, sample: Sample) -> dict[str, Any]:
    """Return how well its probability ranks objects of each rare class above all others, by days observed.

    The columns are average precision, its value for a random order (the share of the class), and, for each purity, the
    largest completeness of a list of the first objects that reaches it (0 if none does). Classes without an object are
    left out.
    """
    table: dict[str, Any] = {}
    for days in (*RARE_DAYS, np.inf):
        objects = until(sample, days)
        if not len(objects):
            continue
        predictions = predict(objects)
        label_N = objects.label[predictions.rows_N]
        for name in RARE:
            is_class_N = label_N == ELASTICC.names.index(name)
            if not is_class_N.any():
                continue
            p_N = predictions.probabilities_NC[:, ELASTICC.names.index(name)]
            purity, completeness, _ = precision_recall_curve(is_class_N, p_N)
            table.setdefault(name, {})["complete" if days == np.inf else f"{days:.0f} days"] = {
                "objects": int(is_class_N.sum()),
                "average_precision": float(average_precision_score(is_class_N, p_N)),
                "share": float(is_class_N.mean()),
                "completeness": {str(least): float(completeness[purity >= least].max()) for least in PURITIES},
            }
    return table


def detection_time(sample: Sample, count: int) -> NDArray[np.float64]:
    """Return the time of detection number ``count`` of each point's object, (P,)."""
    ends = np.array(
        [np.sort(sample.mjd[at][sample.detected[at]])[count - 1] for at in map(sample.points, range(len(sample)))]
    )
    return np.repeat(ends, sample.lengths)


def _by_group(predict: Predict, objects: Sample) -> dict[str, Any]:
    """Return scores by broad class, with the recall of each class."""
    if not len(objects):
        return {}
    predictions = predict(objects)
    label_N = objects.label[predictions.rows_N]
    broad_N = np.array([leaf.path[-1] for leaf in ELASTICC.classes])[label_N]
    return {
        str(name): _scores(predictions.take(broad_N == name), label_N[broad_N == name]) for name in np.unique(broad_N)
    }


def _scores(predictions: ServedPredictions, label_N: NDArray[np.int64]) -> dict[str, Any]:
    scores = summary(predictions, label_N)
    top_N = predictions.probabilities_NC.argmax(axis=1)
    kept = {name: scores[name] for name in SCORES}
    names = np.array([leaf.path[-1] for leaf in ELASTICC.classes])[top_N]
    kept["other"] = float(1 - np.isin(names, SUPERNOVA_LIKE).mean())
    kept["recall"] = scores["recall"]
    return kept


def survey_table(predict: Predict, sample: Sample) -> dict[str, Any]:
    """Return scores of every class of every survey, complete and by number of detections."""
    table: dict[str, Any] = {}
    samples = {"whole": sample}
    for count in COUNTS:
        detected = sample.take(sample.count(sample.detected) >= count)
        samples[f"{count} detections"] = detected.keep_points(detected.mjd <= detection_time(detected, count))
    for name, objects in samples.items():
        predictions = predict(objects)
        source_N, label_N = objects.source[predictions.rows_N], objects.label[predictions.rows_N]
        for source in np.unique(source_N):
            for label in np.unique(label_N[source_N == source]):
                mine = (source_N == source) & (label_N == label)
                key = f"{source}: {ELASTICC.names[label]}"
                named = np.bincount(predictions.probabilities_NC[mine].argmax(axis=1), minlength=len(ELASTICC.names))
                most = {ELASTICC.names[c]: int(named[c]) for c in np.argsort(-named)[:3] if named[c]}
                scores = _scores(predictions.take(mine), label_N[mine])
                scores.pop("recall")
                table.setdefault(key, {})[name] = scores | {"named": most}
    return table


FLAT_POINTS: Final = (3, 5, 10, 20)
FLAT_RATIOS: Final = (5.0, 20.0)


def flat_table(predict: Predict, sample: Sample, seed: int = 0) -> dict[str, Any]:
    """Return how sources of constant flux are classified, by number of detections and ratio of flux to error.

    Times, bands and errors are those of the first detections of the objects. The flux is the same in every band, with
    noise of the stated errors. Since no class is correct, the columns are the fractions classified as supernova-like,
    as Ia, as any class and as Ia with a probability of at least ``SURE``, and of light curves without a prediction set.
    """
    rng, table = np.random.default_rng(seed), dict[str, Any]()
    broad_C = np.array([leaf.path[-1] for leaf in ELASTICC.classes])
    ia = ELASTICC.names.index("Ia")
    detected = sample.keep_points(sample.detected)
    for count in FLAT_POINTS:
        objects = detected.take(detected.lengths >= count)
        first = objects.keep_points(np.concatenate([np.arange(length) for length in objects.lengths]) < count)
        error = np.array([np.median(first.flux_err[first.points(index)]) for index in range(len(first))])
        for ratio in FLAT_RATIOS:
            flux = np.repeat(ratio * error, first.lengths) + first.flux_err * rng.standard_normal(len(first.flux))
            predictions = predict(replace(first, flux=flux.astype(np.float32)))
            top_N, largest_N = predictions.probabilities_NC.argmax(axis=1), predictions.probabilities_NC.max(axis=1)
            table[f"{count} detections, flux {ratio:.0f} times the error"] = {
                "objects": len(first),
                "supernova": float((broad_C[top_N] == "SN-like").mean()),
                "ia": float((top_N == ia).mean()),
                "sure": float((largest_N >= SURE).mean()),
                "sure_ia": float(((top_N == ia) & (largest_N >= SURE)).mean()),
                "withheld": float(predictions.unusual_N.mean()),
            }
    return table


CHANGES: Final[Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]] = {
    "dust 0 to 0.1": ({"mwebv": 0.0}, {"mwebv": 0.1}),
    "dust missing to 0.03": ({}, {"mwebv": 0.03}),
    "redshift error 0.001 to 0.01": ({"z_final_err": 0.001}, {"z_final_err": 0.01}),
}


def metadata_changes(model: OpenBundle, sample: Sample) -> dict[str, Any]:
    """Return how predictions change if one metadata value changes, for objects with a redshift."""
    known = sample.take(np.isfinite(sample.z))
    table = {}
    for name, (first, second) in CHANGES.items():
        before, after = (predict(model, _with_metadata(known, value), "redshift") for value in (first, second))
        top_N = before.probabilities_NC.argmax(axis=1)
        rows = np.arange(len(top_N))
        moved = np.abs(after.probabilities_NC[rows, top_N] - before.probabilities_NC[rows, top_N])
        table[name] = {
            "objects": len(top_N),
            "median change": float(np.median(moved)),
            "change their class": float((after.probabilities_NC.argmax(axis=1) != top_N).mean()),
        }
    return table


def _with_metadata(sample: Sample, values: Mapping[str, float]) -> Sample:
    nothing = np.full(len(sample), np.nan)
    dust = np.full(len(sample), values.get("mwebv", np.nan))
    error = np.full(len(sample), values.get("z_final_err", 0.001))
    return replace(sample, mwebv=dust, z_err=error, z_phot=nothing, metadata=np.full_like(sample.metadata, np.nan))


def pattern_score(training: Sample, validation: Sample, rounds: int = 60) -> dict[str, float]:
    """Return balanced accuracy and gain in log loss (nats) of boosted trees on the pattern of observations alone.

    The pattern is the number of points and the median error in each band. The gain is relative to predicting the class
    shares of ``training``.
    """
    parameters = {**PATTERN, "num_class": len(ELASTICC.names)}
    booster = boost(_pattern(training), training.label, parameters, seed=0, rounds=rounds)
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


def _pattern(curves: Sample) -> NDArray[np.float32]:
    """Return the log of the number of points and of the median error in every band, NaN without a point, (N, 2 B)."""
    value_NF = np.full((len(curves), 2 * len(BANDS)), np.nan, dtype=np.float32)
    for row in range(len(curves)):
        at = curves.points(row)
        band, error = curves.band[at], curves.flux_err[at]
        for number in np.unique(band):
            here = band == number
            value_NF[row, number] = np.log(here.sum())
            value_NF[row, len(BANDS) + number] = np.log(np.median(error[here]))
    return value_NF
