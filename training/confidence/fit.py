"""Everything that is fitted to validation light curves: ensemble, calibration, prediction sets, novelty."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from torch import nn

from nightjar_alerts.models.bundle import (
    Calibration,
    Ensemble,
    InputStatistics,
)
from nightjar_alerts.models.lightcurve import Bool, Float64, Int64, RaggedBatch
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import Forest
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.posterior import PredictionSets
from nightjar_alerts.models.taxonomy import ELASTICC, NAMED, UNIFORM, taxonomy_of
from nightjar_alerts.models.taxonomy import rates as named_rates
from nightjar_alerts.training.confidence.calibration import (
    ServedSample,
    calibrated,
    fit_calibration,
    predict_as_served,
)
from nightjar_alerts.training.confidence.ensemble import combine_with_trees
from nightjar_alerts.training.confidence.novelty import (
    REFERENCE_PER_CLASS,
    THRESHOLD,
    NoveltyFit,
    auroc_by_kind,
    fit_novelty,
    fit_outliers,
)
from nightjar_alerts.training.confidence.sets import (
    BY_STRATUM,
    Strata,
    coverage_and_size,
    fit_sets,
    fit_sets_by_detections,
    reweighted,
)
from nightjar_alerts.training.data.batches import draw_examples, draw_weighted
from nightjar_alerts.training.data.dataset import split_indices, training_shares
from nightjar_alerts.training.data.drawn import classes_of, count_bands, network_inputs
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.data.statistics import input_statistics
from nightjar_alerts.training.fit.heads import HeadInputs, head_outputs, read_part, shares
from nightjar_alerts.training.metrics import main_scores
from nightjar_alerts.training.recipes.schema import Recipe

OUTLIER_SURVEYS: Final = ("css", "eros1", "gaia_alerts", "crts_mantra", "catalina")


REFERENCE, REFERENCE_SAME_SURVEY = 60_000, 20_000  # training light curves that novelty is fitted to
KINDS_JUDGED: Final = 5
STATISTICS_CURVES, STATISTICS_DRAW = 5_000, 2**32 + 7  # light curves of the input statistics, and their random stream
WELL_OBSERVED, GROUP_ALARMS = 20, 0.02  # detections; unusual of any broad class
MEASURED_ON: Final = (
    "light curves of real surveys, of simulations and of real objects seen as other surveys would have, none of them "
    "trained on; half of them whole, of the others half without bands, points, ends or redshift"
)


MEASURED_ON_ZTF: Final = (
    "supernovae of ZTF with a spectroscopic type, none of them trained on; four tenths of them without points, ends or "
    "a band, or of another brightness"
)


class Confidence(NamedTuple):
    """Fits of a classifier to validation light curves, with their scores.

    Attributes
    ----------
    inputs : distribution of the training light curves.
    ensemble : weights of network and boosted trees; None without trees.
    shares : class shares that the probabilities assume; None for equally common classes, or those of the data.
    priors : prediction sets for other class shares, by name.
    """

    calibration: Calibration
    novelty: NoveltyFit
    prediction_sets: PredictionSets
    metrics: dict[str, Any]
    inputs: InputStatistics
    ensemble: Ensemble | None = None
    shares: dict[str, float] | None = None
    priors: Mapping[str, Any] = MappingProxyType({})


def fit_to_dataset(network: nn.Module, dataset: Sample, recipe: Recipe) -> Confidence:
    """Fit to views of the validation split as in the service; novelty without outliers."""
    sample = predict_as_served(network, dataset, recipe, "validation")
    fit = fit_calibration(sample)
    p_NC = calibrated(sample.logits_NC, sample.length_N, fit.calibration)
    sets = fit_sets_by_detections(p_NC, sample.label_N, sample.detections_N, sample.object_N)
    training = predict_as_served(network, dataset, recipe, "train", per_class=REFERENCE_PER_CLASS)
    return Confidence(
        fit.calibration,
        fit_novelty(training, sample),
        sets.sets,
        {"calibration": fit.numbers(), "prediction_sets": {"coverage_of_one_threshold": sets.coverage_of_one}},
        _input_statistics(network, dataset, recipe),
        shares=training_shares(dataset, recipe.data.fractions, recipe.data.turn),
    )


def _input_statistics(network: nn.Module, dataset: Sample, recipe: Recipe) -> InputStatistics:
    """Return the distribution of the training light curves, drawn as in training."""
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # a module's attributes are untyped
    rng = np.random.default_rng((recipe.seed, STATISTICS_DRAW))
    training = split_indices(dataset, recipe.data.fractions, recipe.data.turn)["train"]
    rows = draw_weighted(dataset, training, STATISTICS_CURVES, recipe, rng)
    examples = draw_examples(dataset, rows, recipe.data, recipe.augmentation, rng)
    return input_statistics(
        RaggedBatch.collate([example.tokens for example in examples]),
        np.array([example.label for example in examples]),
        dataset.classes,
        bands=recipe.data.bands,
        flux_unit=recipe.data.flux_unit,
        columns=METADATA_COLUMNS if "metadata" in names else (),
    )


def fit_to_drawn(
    network: AstroMoE | RoMAE, folders: Sequence[Path], recipe: Recipe, forest: Forest | None = None
) -> Confidence:
    """Fit to folders of drawn light curves: weights of the trees, if any, calibration, sets by stratum, and novelty."""
    (inputs, light_curves), training_part = (read_part(folders, part) for part in ("validation", "train"))
    training = training_part[1]
    sample, ensemble, parts = served_sample(network, inputs, light_curves), None, dict[str, Any]()
    if forest is not None:
        sample, ensemble, parts = combine_with_trees(forest, inputs, light_curves, sample, classes_of(folders[0]))
    fit = fit_calibration(sample)
    p_NC = calibrated(sample.logits_NC, sample.length_N, fit.calibration)
    novelty, auroc = _novelty(network, training_part, folders, sample, recipe.seed)
    strata = Strata(
        light_curves.detections, count_bands(light_curves), novelty.novelty(sample.embedding_NE), light_curves.source
    )
    classes = classes_of(folders[0])
    novelty, usual = _with_thresholds(novelty, strata, _groups(sample.label_N, classes))
    measured = _without(p_NC, sample.label_N, strata, usual)
    sets = _fit_sets(*measured, classes)
    share_C = shares(training.label, len(classes))
    metrics = {
        "calibration": fit.numbers(),
        "prediction_sets": dict(coverage_and_size(sets, *measured)) | {"withheld": float(1 - usual.mean())},
        "novelty_auroc_of_kinds_left_out": auroc,
        "validation": main_scores(p_NC, sample.label_N),
        **parts,
        "validation_by_survey": _by_survey(p_NC, sample.label_N, strata, sets, usual),
    }
    return Confidence(
        fit.calibration,
        novelty,
        sets,
        metrics,
        input_statistics(
            network_inputs(training, np.arange(len(training))),
            training.label,
            classes,
            bands=recipe.data.bands,
            flux_unit=recipe.data.flux_unit,
            columns=METADATA_COLUMNS if "metadata" in network.input_names else (),
        ),
        ensemble,
        dict(zip(classes, share_C.tolist(), strict=True)),
        _priors(classes, *measured, share_C),
    )


def _groups(label_N: Int64, classes: Sequence[str]) -> Int64:
    """Index of the broad class of each light curve, ``(N,)``."""
    group_C = np.unique([leaf.path[-1] for leaf in taxonomy_of(classes).classes], return_inverse=True)[1]
    group_N: Int64 = group_C[label_N].astype(np.int64)
    return group_N


def _with_thresholds(novelty: NoveltyFit, strata: Strata, group_N: Int64) -> tuple[NoveltyFit, Bool]:
    """Add a threshold for ``WELL_OBSERVED`` light curves, and return which light curves are usual.

    It calls at most `GROUP_ALARMS` of any broad class unusual. The threshold for all light curves would leave 12 % of
    the fast transients with that many detections without a prediction set.
    """
    many_N = strata.detections >= WELL_OBSERVED
    groups = (strata.novelty[many_N & (group_N == group)] for group in np.unique(group_N[many_N]))
    threshold = max((float(np.quantile(group, 1 - GROUP_ALARMS)) for group in groups), default=THRESHOLD)
    usual_N: Bool = strata.novelty <= np.where(many_N, threshold, THRESHOLD)
    described = novelty.described.model_copy(
        update={
            "thresholds_by_detections": {0: THRESHOLD, WELL_OBSERVED: threshold},
            "false_alarm_rate": float(1 - usual_N.mean()),
        }
    )
    return replace(novelty, described=described), usual_N


def _fit_sets(p_NC: Float64, label_N: Int64, strata: Strata, classes: Sequence[str]) -> PredictionSets:
    """Return thresholds by stratum: the larger of a fit to all light curves and one with equal weight of broad classes.

    Otherwise sets of long-lived transients, which are few, would contain the true class less often than stated.
    """
    group_N = _groups(label_N, classes)
    balance_N = 1.0 / np.bincount(group_N)[group_N]
    fits = [
        fit_sets(p_NC, label_N, strata, BY_STRATUM, ratio_N=ratio_N, measured_on=_measured_on(classes))
        for ratio_N in (None, balance_N)
    ]
    groups = [
        one.model_copy(update={"largest": tuple(map(max, one.largest, other.largest))})
        for one, other in zip(fits[0].groups, fits[1].groups, strict=True)
    ]
    return fits[0].model_copy(update={"groups": tuple(groups)})


def _measured_on(classes: Sequence[str]) -> str:
    return MEASURED_ON if tuple(classes) == ELASTICC.names else MEASURED_ON_ZTF


def served_sample(network: AstroMoE | RoMAE, inputs: HeadInputs, light_curves: Sample) -> ServedSample:
    """Answers of the network about light curves, as `training.score` reads them."""
    logits_NC, embedding_NE = head_outputs(network, inputs)
    return ServedSample(
        logits_NC,
        embedding_NE,
        light_curves.label,
        light_curves.group,
        light_curves.lengths,
        light_curves.detections,
    )


def _novelty(
    network: AstroMoE | RoMAE,
    part: tuple[HeadInputs, Sample],
    folders: Sequence[Path],
    usual: ServedSample,
    seed: int,
) -> tuple[NoveltyFit, dict[str, float]]:
    (inputs, training), (outlier_inputs, outliers) = part, read_part(folders, "outliers")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(inputs.embedding))[:REFERENCE]
    # otherwise the score would detect the surveys of the outliers instead of the outliers
    same_survey = np.flatnonzero(np.isin(training.source, OUTLIER_SURVEYS))
    rows = np.concatenate([rows, rng.choice(same_survey, REFERENCE_SAME_SURVEY)]) if len(same_survey) else rows
    some = HeadInputs(inputs.embedding[rows], inputs.value[rows], inputs.is_known[rows])
    inlier_NE = head_outputs(network, some)[1]
    outlier_NE = head_outputs(network, outlier_inputs)[1]
    label_N = training.label[rows]
    fit = fit_outliers(inlier_NE, label_N, outlier_NE, usual.embedding_NE, seed=seed)
    kinds, count = np.unique(outliers.source, return_counts=True)
    common = kinds[np.argsort(-count, kind="stable")[:KINDS_JUDGED]]
    kind_N = np.where(np.isin(outliers.source, common), outliers.source, "rarer kinds")
    return fit, auroc_by_kind(inlier_NE, label_N, usual.embedding_NE, outlier_NE, kind_N, seed=seed)


def _without(p_NC: Float64, label_N: Any, strata: Strata, rows: Any) -> tuple[Float64, Any, Strata]:
    return p_NC[rows], label_N[rows], strata.take(rows)


def _priors(classes: tuple[str, ...], p_NC: Float64, label_N: Any, strata: Strata, share_C: Float64) -> dict[str, Any]:
    """For every named prior its thresholds and what they cover, were its shares the survey's."""
    reports = {}
    for name in (UNIFORM, *NAMED):
        rates = named_rates(name, classes)
        if rates is None:
            continue
        new_C = np.array([max(rates.shares.get(label, 0.0), 0.0) for label in classes])
        ratio_C = np.maximum(new_C / new_C.sum(), 0.0) / share_C
        new_NC, weight_N = reweighted(p_NC, ratio_C), ratio_C[label_N]
        present = weight_N > 0
        own = new_NC[present], label_N[present], strata.take(present)
        sets = fit_sets(*own, BY_STRATUM, ratio_N=weight_N[present], measured_on=_measured_on(classes))
        measured = coverage_and_size(sets, *own, weight_N[present])
        reports[name] = {
            "shares": None,
            "source": rates.source if name != UNIFORM else "",
            "coverage": {"0.9": measured["coverage"]},
            "mean_size": measured["mean_size"],
            "measured_on": _measured_on(classes),
            "prediction_sets": sets.model_dump(mode="json"),
        }
    return reports


def _by_survey(p_NC: Float64, label_N: Any, strata: Strata, sets: PredictionSets, usual: Any) -> dict[str, Any]:
    reports = {}
    for source in np.unique(strata.source):
        rows = strata.source == source
        coverage = (
            coverage_and_size(sets, *_without(p_NC, label_N, strata, rows & usual)) if (rows & usual).any() else {}
        )
        reports[str(source)] = {
            **main_scores(p_NC[rows], label_N[rows]),
            "withheld": float(1 - usual[rows].mean()),
            **coverage,
        }
    return reports
