"""Purity and completeness of lists for follow-up (`models.follow_up`), measured on labelled objects.

Objects are weighted so that every class has its share of the mix. The number of objects of class c above a threshold,
k of n, gives its rate a Jeffreys posterior, Beta(k + 1/2, n - k + 1/2); purity and completeness are medians and 95 %
intervals over draws of all rates (Brown, Cai & DasGupta 2001, Statistical Science 16, 101). A class without a false
alarm among 200 objects so still contributes what 200 objects cannot exclude.

Legend: N objects, C classes, T thresholds, D draws.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from nightjar_alerts.models.bundle import Bundle, Manifest, write_manifest
from nightjar_alerts.models.follow_up import FEWEST, Estimate, FollowUp, Horizon, first_step
from nightjar_alerts.models.lightcurve import Bool, Float64, Int64
from nightjar_alerts.models.posterior import Posterior
from nightjar_alerts.models.taxonomy import ELASTICC, NAMED, ZTF_SUPERNOVAE, rates
from nightjar_alerts.training.data.sample import PARTS, Sample
from nightjar_alerts.training.data.survey_readers import EVALUATION_LABELS, read_real
from nightjar_alerts.training.data.surveys import as_observed, assemble
from nightjar_alerts.training.fit.ztf_types import held_out_types
from nightjar_alerts.training.score.incomplete import drawn_objects, until
from nightjar_alerts.training.score.report import ServedPredictions
from nightjar_alerts.training.score.survey_scores import open_bundle, predict

DAYS: Final = (3.0, 10.0, 30.0, None)
THRESHOLDS: Final = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97)
PER_CLASS_AND_SOURCE: Final = 100
MEASURED_ON: Final = (
    "{objects:,} labelled objects of {surveys} surveys that neither network nor trees were fitted to, at most "
    f"{PER_CLASS_AND_SOURCE} of each class and survey, without redshift and host; light curves that end 3, 10 and 30 "
    "days after the first detection, and complete ones"
)
MEASURED_ON_ZTF: Final = (
    "{objects:,} supernovae of ZTF with a spectroscopic type that neither network nor trees were fitted to, but the "
    "calibration was; light curves that end 3, 10 and 30 days after the first detection, and complete ones"
)
DRAWS: Final = 2_000
INTERVAL: Final = (50.0, 2.5, 97.5)
DIGITS: Final = 3

Predict = Callable[[Sample, str | None], ServedPredictions]
"""Predictions of objects under class shares of a name, None for those of the bundle."""


def passing(predictions: ServedPredictions, label_N: Int64) -> tuple[Int64, Int64]:
    """Return objects of each true class [C], and how many of them pass each threshold for each class [C, T, C].

    The first axis of the second is the class of the list, the last the true class. Unusual objects never pass.
    """
    classes = predictions.probabilities_NC.shape[1]
    total_C = np.bincount(label_N, minlength=classes)
    passed_CTC = np.zeros((classes, len(THRESHOLDS), classes), np.int64)
    p_NC = np.where(predictions.unusual_N[:, None], -1.0, predictions.probabilities_NC)
    for step, threshold in enumerate(THRESHOLDS):
        above_NC: Bool = p_NC >= threshold
        for true in np.unique(label_N):
            passed_CTC[:, step, true] = above_NC[label_N == true].sum(0)
    return total_C, passed_CTC


def rated(
    passed_TC: Int64, total_C: Int64, share_C: Float64, own: int, rng: np.random.Generator
) -> tuple[tuple[Estimate, ...], tuple[Estimate, ...]]:
    """Return purity and completeness at each threshold for the class ``own``.

    Parameters
    ----------
    share_C : mix of classes. A class without an object has no rate and is left out of it.
    """
    known_C = (total_C > 0) & (share_C > 0)
    weight_C = np.where(known_C, share_C, 0.0)
    rate_DTC = rng.beta(passed_TC + 0.5, np.maximum(total_C - passed_TC, 0) + 0.5, (DRAWS, *passed_TC.shape))
    true_DT = weight_C[own] * rate_DTC[:, :, own]
    purity_DT = true_DT / np.maximum(rate_DTC @ weight_C, 1e-300)
    return _estimates(purity_DT), _estimates(rate_DTC[:, :, own])


def _estimates(value_DT: Float64) -> tuple[Estimate, ...]:
    middle_T, low_T, high_T = np.percentile(value_DT, INTERVAL, axis=0).round(DIGITS)
    return tuple(zip(middle_T.tolist(), low_T.tolist(), high_T.tolist(), strict=True))


def add_follow_up(path: Path, sample: Sample) -> Bundle:
    """Measure the lists of a bundle on held-out objects, and write them into its manifest.

    Raises
    ------
    ValueError
        If the bundle has neither the 20 classes nor the six types of ZTF's supernovae.
    """
    model = open_bundle(path)
    if model.manifest.classes.names == ELASTICC.names:
        objects, text = held_out(sample), MEASURED_ON
    elif model.manifest.classes.names == ZTF_SUPERNOVAE.names:
        objects, text = held_out_types(sample), MEASURED_ON_ZTF
    else:
        raise ValueError(f"{path} has neither the classes of the surveys' labels nor ZTF's six types of supernovae")
    text = text.format(objects=len(objects), surveys=len(np.unique(objects.source)))

    def shown(objects: Sample, prior: str | None) -> ServedPredictions:
        return predict(model, objects, "nothing", prior)

    measured = measure_follow_up(model.manifest, shown, objects, text)
    return write_manifest(path, model.manifest.model_copy(update={"follow_up": measured}))


def held_out(sample: Sample, seed: int = 0) -> Sample:
    """Return labelled objects of the test part, and all whose labels are for evaluation only."""
    chosen = (sample.part == PARTS.index("test")) | np.isin(sample.source, sorted(EVALUATION_LABELS))
    return drawn_objects(as_observed(sample.take(chosen & (sample.label >= 0))), PER_CLASS_AND_SOURCE, seed)


def compare_purity(path: Path, sample: Sample, surveys: Path, purity: float) -> list[dict[str, Any]]:
    """Compare the purity of lists stated by held-out objects with that on surveys that were left out of training.

    Classes with `FEWEST` objects in both count, with equal shares, as left-out surveys have a mix of their own.

    Parameters
    ----------
    surveys : folder of sets that were not used in training.
    purity : stated purity that determines the threshold.
    """
    model = open_bundle(path)
    others = as_observed(assemble(list(read_real(surveys))))
    samples = held_out(sample), others.take(others.label >= 0)
    rows = []
    for days in DAYS:
        parts = []
        for objects in (until(one, np.inf if days is None else days) for one in samples):
            predictions = predict(model, objects, "nothing")
            parts.append(passing(predictions, objects.label[predictions.rows_N]))
        (total_C, passed_CTC), (new_total_C, new_passed_CTC) = parts
        both_C = (total_C >= FEWEST) & (new_total_C >= FEWEST)
        rng = np.random.default_rng(0)
        for own in np.flatnonzero(both_C).tolist():
            stated, complete = rated(passed_CTC[own], total_C, both_C / both_C.sum(), own, rng)
            achieved, found = rated(new_passed_CTC[own], new_total_C, both_C / both_C.sum(), own, rng)
            horizon = Horizon(days=days, objects=int(total_C[own]), purity=stated, completeness=complete)
            step = first_step(horizon, purity)
            row: dict[str, Any] = {"class": ELASTICC.names[own], "days": days, "objects": int(new_total_C[own])}
            if step is not None:
                row |= {"threshold": THRESHOLDS[step], "stated": stated[step], "achieved": achieved[step]}
                row |= {"completeness": found[step]}
            rows.append(row)
    return rows


def measure_follow_up(manifest: Manifest, predict: Predict, sample: Sample, measured_on: str) -> dict[str, FollowUp]:
    """Return the lists of every class under the bundle's own class shares and every named mix that it has."""
    classes = manifest.classes.names
    posterior = Posterior(manifest)
    mixes = [name for name in NAMED if rates(name, classes) is not None]
    samples = {days: until(sample, np.inf if days is None else days) for days in DAYS}
    measured = {}
    for name in (None, *mixes):
        prior = posterior.prior(name)
        tables: dict[str, list[Horizon]] = {one: [] for one in classes}
        for days, objects in samples.items():
            predictions = predict(objects, name)
            total_C, passed_CTC = passing(predictions, objects.label[predictions.rows_N])
            rng = np.random.default_rng(0)
            for own, one in enumerate(classes):
                if total_C[own] < FEWEST or not prior.share_C[own]:
                    tables[one].append(Horizon(days=days, objects=int(total_C[own])))
                    continue
                purity, completeness = rated(passed_CTC[own], total_C, prior.share_C, own, rng)
                tables[one].append(
                    Horizon(days=days, objects=int(total_C[own]), purity=purity, completeness=completeness)
                )
        measured[prior.name] = FollowUp(
            thresholds=THRESHOLDS,
            classes={one: tuple(horizons) for one, horizons in tables.items()},
            measured_on=measured_on,
        )
    return measured
