"""From fitted heads, with or without boosted trees, to a bundle: calibration, prediction sets by stratum, novelty.

Everything is fitted on the validation light curves of some folders (`training.sky.tables`), with the class shares of
their training light curves.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn

from nightjar_alerts.models.bundle import (
    Bundle,
    Calibration,
    Ensemble,
    InputStatistics,
    Manifest,
    load_bundle,
    write_manifest,
)
from nightjar_alerts.models.lightcurve import Bool, Float64, Int64, RaggedBatch, Tokens
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import BoostedTrees, Forest
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.posterior import PredictionSets
from nightjar_alerts.models.taxonomy import ELASTICC, NAMED, UNIFORM, taxonomy_of
from nightjar_alerts.models.taxonomy import rates as named_rates
from nightjar_alerts.training.data.batches import usable_tokens
from nightjar_alerts.training.export.bundle import PARITY_NOISE, Release, export_bundle, noise
from nightjar_alerts.training.export.served import Ensembled
from nightjar_alerts.training.export.statistics import input_statistics
from nightjar_alerts.training.fit.boosting import equal_weights, fit_ensemble, pooled, read_forest, tree_logits
from nightjar_alerts.training.fit.checkpoints import RunConfig, RunError, load_network
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.calibrate import ServedSample, calibrated, fit_calibration, softmax
from nightjar_alerts.training.score.confidence import Strata, coverage_and_size, fit_strata, reweighted
from nightjar_alerts.training.sky.card import write_sky_card
from nightjar_alerts.training.sky.heads import HeadInputs, head_outputs, scores, shares
from nightjar_alerts.training.sky.novelty import (
    THRESHOLD,
    CurveSet,
    OutlierModel,
    auroc_by_kind,
    fit_outliers,
    join_curves,
    read_curve_set,
)
from nightjar_alerts.training.sky.readers import STAND_INS
from nightjar_alerts.training.sky.tables import classes_of, read_part

PARITY_CURVES: Final = 500
DECIDED: Final = 1e-3  # spreads of a statistic
LAST_DIGITS: Final = 3e-7  # relative
JITTERED: Final = 4
SAME_LEAVES: Final = 1e-5  # of a logit: a leaf differs from its neighbour by more
SURVEYS_OF_STRANGERS: Final = ("css", "eros1", "gaia_alerts", "crts_mantra", "catalina")
REFERENCE, REFERENCE_ALIKE = 60_000, 20_000  # training light curves that novelty is fitted to
KINDS_JUDGED: Final = 5
WELL_OBSERVED, GROUP_ALARMS = 20, 0.02  # detections; unusual of any broad class
SMALLEST_SHARE: Final = 1e-4
MEASURED_ON: Final = (
    "light curves of real surveys, of simulations and of real objects seen as other surveys would have, none of them "
    "trained on; half of them whole, of the others half without bands, points, ends or redshift"
)
MEASURED_ON_ZTF: Final = (
    "supernovae of ZTF with a spectroscopic type, none of them trained on; four tenths of them without points, ends or "
    "a band, or of another brightness"
)
FAINTEST_NJY, BRIGHTEST_NJY = 100.0, 5e7  # 26.4 and 12.2 mag


class FittedBundle(NamedTuple):
    """Fits and scores on validation light curves."""

    calibration: Calibration
    novelty: OutlierModel
    sets: PredictionSets
    priors: dict[str, Any]
    shares: dict[str, float]
    metrics: dict[str, Any]
    inputs: InputStatistics
    ensemble: Ensemble | None = None


def ship(
    run: Path,
    folder: Path,
    out: Path,
    *,
    name: str,
    version: str,
    about: dict[str, Any],
    trees: Path | None = None,
    more: Sequence[Path] = (),
) -> Bundle:
    """Write a bundle of a run of ``train``: of an Astro-MoE, or of ``romae-sky``, which has no metadata and no trees.

    Parameters
    ----------
    folder : light curves and features that calibration, sets and novelty are fitted to.
    about : further provenance for the manifest: sources and their shares.
    trees : file of ``sky boost``, trees for the ensemble.
    more : further such folders.

    Raises
    ------
    RunError
        When ``out`` is not empty.
    ExportError
        When the exported graph is not the network.
    """
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; remove it or name another folder")
    network, config = load_network(run)
    assert isinstance(network, AstroMoE | RoMAE)
    folders = (folder, *more)
    curve_set = join_curves([read_curve_set(each / "validation.npz") for each in folders])
    forest = None if trees is None else read_forest(trees)
    fitted = fit_all(network, folders, config.recipe, forest)
    ensemble = Ensembled(BoostedTrees(forest), fitted.ensemble) if forest and fitted.ensemble else None
    release = Release(
        name=name,
        version=version,
        calibration=fitted.calibration,
        data={"source": "nightjar_alerts.training.sky", "classes": counts(folders), **about},
        metrics=fitted.metrics,
        taxonomy=taxonomy_of(classes_of(folder)),
        novelty=fitted.novelty,
        prediction_sets=fitted.sets,
        ensemble=ensemble,
        input_statistics=fitted.inputs,
    )
    export_bundle(network, config, parity_tokens(network, curve_set, config, ensemble), out, release)
    return _complete(out, fitted)


def fit_all(
    network: AstroMoE | RoMAE, folders: Sequence[Path], recipe: Recipe, forest: Forest | None = None
) -> FittedBundle:
    """Fit ensemble weights (if there are trees), calibration, novelty and prediction sets, and measure them."""
    (inputs, curve_set), training_part = (read_part(folders, part) for part in ("validation", "train"))
    training = training_part[1]
    sample, ensemble, parts = served_sample(network, inputs, curve_set), None, dict[str, Any]()
    if forest is not None:
        sample, ensemble, parts = beside(forest, inputs, curve_set, sample, classes_of(folders[0]))
    fit = fit_calibration(sample)
    p_NC = calibrated(sample.logits_NC, sample.length_N, fit.calibration)
    novelty, auroc = _novelty(network, training_part, folders, sample, recipe.seed)
    strata = Strata(curve_set.detections, curve_set.bands, novelty.novelty(sample.embedding_NE), curve_set.source)
    classes = classes_of(folders[0])
    novelty, usual = _with_thresholds(novelty, strata, _groups(sample.label_N, classes))
    measured = _without(p_NC, sample.label_N, strata, usual)
    sets = _fit_sets(*measured, classes)
    share_C = shares(training.label, len(classes))
    metrics = {
        "calibration": fit.numbers(),
        "prediction_sets": dict(coverage_and_size(sets, *measured)) | {"withheld": float(1 - usual.mean())},
        "novelty_auroc_of_kinds_left_out": auroc,
        "validation": scores(p_NC, sample.label_N),
        **parts,
        "validation_by_survey": _by_survey(p_NC, sample.label_N, strata, sets, usual),
    }
    return FittedBundle(
        fit.calibration,
        novelty,
        sets,
        _priors(classes, *measured, share_C),
        dict(zip(classes, share_C.tolist(), strict=True)),
        metrics,
        input_statistics(
            training.curves,
            training.label,
            classes,
            bands=recipe.data.bands,
            flux_unit=recipe.data.flux_unit,
            columns=METADATA_COLUMNS if "metadata" in network.input_names else (),
        ),
        ensemble,
    )


def _groups(label_N: Int64, classes: Sequence[str]) -> Int64:
    """Index of the broad class of each light curve, ``(N,)``."""
    group_C = np.unique([leaf.path[-1] for leaf in taxonomy_of(classes).classes], return_inverse=True)[1]
    group_N: Int64 = group_C[label_N].astype(np.int64)
    return group_N


def _with_thresholds(novelty: OutlierModel, strata: Strata, group_N: Int64) -> tuple[OutlierModel, Bool]:
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
    """Thresholds by stratum: the larger of a fit to all light curves, and of one in which broad classes count alike.

    Otherwise sets of long-lived transients, which are few, would contain the true class less often than stated.
    """
    group_N = _groups(label_N, classes)
    alike_N = 1.0 / np.bincount(group_N)[group_N]
    fits = [fit_strata(p_NC, label_N, strata, _measured_on(classes), ratio_N) for ratio_N in (None, alike_N)]
    groups = [
        one.model_copy(update={"largest": tuple(map(max, one.largest, other.largest))})
        for one, other in zip(fits[0].groups, fits[1].groups, strict=True)
    ]
    return fits[0].model_copy(update={"groups": tuple(groups)})


def beside(
    forest: Forest, inputs: HeadInputs, curve_set: CurveSet, sample: ServedSample, classes: Sequence[str]
) -> tuple[ServedSample, Ensemble, dict[str, Any]]:
    """Return the sample as trees and network answer together, their weights, and the scores of each and of both.

    Scores are cross-fitted: each half uses the weights fitted to the other half. For other classes than the 20 the
    weights are equal: no weights fitted to a few hundred supernovae scored better.
    """
    redshift_N, trees_NC = curve_set.has_redshift, tree_logits(forest, inputs.columns)
    columns = trees_NC, sample.logits_NC, sample.length_N, redshift_N
    half_N = np.random.default_rng(0).permutation(int(sample.object_N.max()) + 1)[sample.object_N] % 2
    crossed_NC = np.zeros_like(trees_NC)

    def weights(rows_N: Any) -> Ensemble:
        if tuple(classes) != ELASTICC.names:
            return equal_weights(forest, sample.length_N)
        trees, network, length, has_redshift = (column[rows_N] for column in columns)
        return fit_ensemble(forest, trees, network, sample.label_N[rows_N], length, has_redshift)

    for half in (0, 1):
        mine = half_N == half
        crossed_NC[mine] = pooled(weights(~mine), *(column[mine] for column in columns))
    ensemble = weights(np.ones(len(half_N), np.bool_))
    each = {"network": sample.logits_NC, "trees": trees_NC, "both": crossed_NC}
    scores_by_model = {name: scores(softmax(logits_NC), sample.label_N) for name, logits_NC in each.items()}
    return sample._replace(logits_NC=pooled(ensemble, *columns)), ensemble, {"network_and_trees": scores_by_model}


def _measured_on(classes: Sequence[str]) -> str:
    return MEASURED_ON if tuple(classes) == ELASTICC.names else MEASURED_ON_ZTF


def served_sample(network: AstroMoE | RoMAE, inputs: HeadInputs, curve_set: CurveSet) -> ServedSample:
    """Answers of the network about light curves, as `training.score` reads them."""
    logits_NC, embedding_NE = head_outputs(network, inputs)
    return ServedSample(
        logits_NC,
        embedding_NE,
        curve_set.label,
        curve_set.object_index,
        curve_set.length.astype(np.int64),
        curve_set.detections,
    )


def _novelty(
    network: AstroMoE | RoMAE,
    part: tuple[HeadInputs, CurveSet],
    folders: Sequence[Path],
    usual: ServedSample,
    seed: int,
) -> tuple[OutlierModel, dict[str, float]]:
    (inputs, training), (outlier_inputs, outliers) = part, read_part(folders, "outliers")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(inputs.embedding))[:REFERENCE]
    # otherwise the score would detect the surveys of the outliers instead of the outliers
    alike = np.flatnonzero(np.isin(training.source, SURVEYS_OF_STRANGERS))
    rows = np.concatenate([rows, rng.choice(alike, REFERENCE_ALIKE)]) if len(alike) else rows
    some = HeadInputs(inputs.embedding[rows], inputs.value[rows], inputs.is_known[rows])
    inlier_NE = head_outputs(network, some)[1]
    strange_NE = head_outputs(network, outlier_inputs)[1]
    label_N = training.label[rows]
    fit = fit_outliers(inlier_NE, label_N, strange_NE, usual.embedding_NE, seed=seed)
    kinds, count = np.unique(outliers.source, return_counts=True)
    common = kinds[np.argsort(-count, kind="stable")[:KINDS_JUDGED]]
    kind_N = np.where(np.isin(outliers.source, common), outliers.source, "rarer kinds")
    return fit, auroc_by_kind(inlier_NE, label_N, usual.embedding_NE, strange_NE, kind_N, seed=seed)


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
        sets = fit_strata(*own, _measured_on(classes), weight_N[present])
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
            **scores(p_NC[rows], label_N[rows]),
            "withheld": float(1 - usual[rows].mean()),
            **coverage,
        }
    return reports


def counts(folders: Sequence[Path]) -> dict[str, int]:
    """Count the training light curves of each class in some folders of the same classes."""
    classes = classes_of(folders[0])
    label_N = np.concatenate([read_curve_set(folder / "train.npz").label for folder in folders])
    return dict(zip(classes, np.bincount(label_N, minlength=len(classes)).tolist(), strict=True))


def parity_tokens(
    network: AstroMoE | RoMAE, curve_set: CurveSet, config: RunConfig, ensemble: Ensembled | None = None
) -> list[Tokens]:
    """Light curves of every length, and noise of every brightness that reaches the rarer experts.

    About one in a hundred has two periods that fit equally well, and some have a number at a threshold of the trees, so
    that rounding chooses: what it chooses proves nothing of the graph, and such light curves are left out.
    """
    rng = np.random.default_rng(config.recipe.seed)
    rows = rng.permutation(len(curve_set))[:PARITY_CURVES]
    drawn = (usable_tokens(noise(rng), config.recipe.data) for _ in range(PARITY_NOISE))
    candidates = [_tokens(curve_set, int(row)) for row in rows] + [tokens for tokens in drawn if tokens is not None]
    if isinstance(network, RoMAE):
        return candidates
    decided = [tokens for tokens in candidates if _is_decided(network, tokens)]
    if ensemble is None:
        return decided
    exact = deepcopy(network).double()
    return [tokens for tokens in decided if _keeps_its_leaves(network, exact, ensemble, tokens)]


@torch.inference_mode()
def _is_decided(network: AstroMoE, tokens: Tokens) -> bool:
    """Check that statistics in single precision are those in double, also where last digits of the points differ.

    Of shapes, which only trees use, it is enough that the same ones are defined.
    """
    assert network.statistics is not None
    inputs = RaggedBatch.collate([tokens]).padded()
    single = [torch.from_numpy(inputs[name]) for name in network.input_names]
    exact = network.statistics_of(*(part.double() if part.is_floating_point() else part for part in single))
    for points in (single, *(_jittered(single, seed) for seed in range(JITTERED))):
        statistics = network.statistics_of(*points)
        own = len(network.statistics.spread_K)
        away_BK = ((statistics.value_BK - exact.value_BK)[:, :own] / network.statistics.spread_K).abs()
        if not (statistics.mask_BK == exact.mask_BK).all() or away_BK[statistics.mask_BK[:, :own]].max() > DECIDED:
            return False
    return True


@torch.inference_mode()
def _keeps_its_leaves(network: AstroMoE, exact: nn.Module, ensemble: Ensembled, tokens: Tokens) -> bool:
    """Check that the trees are stable against rounding of the last digits, with metadata or without.

    With tens of thousands of thresholds some number of every light curve is near one; what counts is that rounding,
    and ten times as much, leads to the same leaves.
    """
    inputs = RaggedBatch.collate([tokens, tokens]).padded()
    inputs["metadata"][1] = np.nan
    single = [torch.from_numpy(inputs[name]) for name in network.input_names]
    doubled = [part.double() if part.is_floating_point() else part for part in single]
    leaves_BC = ensemble.trees(ensemble.numbers(network(*single)))
    others = [ensemble.trees(ensemble.numbers(exact(*doubled)).float())]
    for seed in range(JITTERED):
        for digits in (LAST_DIGITS, 10 * LAST_DIGITS):
            others.append(ensemble.trees(ensemble.numbers(network(*_jittered(single, seed, digits)))))
    return all(bool(((other - leaves_BC).abs() < SAME_LEAVES).all()) for other in others)


def _jittered(inputs: Sequence[torch.Tensor], seed: int, digits: float = LAST_DIGITS) -> list[torch.Tensor]:
    """Return inputs whose last digits differ."""
    rng = torch.Generator().manual_seed(seed)
    return [
        part * (1 + digits * torch.randn(part.shape, generator=rng)) if part.is_floating_point() else part
        for part in inputs
    ]


def _tokens(curve_set: CurveSet, row: int) -> Tokens:
    curves = curve_set.curves
    at = slice(int(curves.offsets[row]), int(curves.offsets[row + 1]))
    return Tokens(
        time=curves.time[at],
        flux=curves.flux[at],
        flux_err=curves.flux_err[at],
        band=curves.band[at],
        detected=curves.detected[at],
        metadata=curves.metadata[row],
        truncated=False,
        points_per_band=tuple(np.bincount(curves.band[at], minlength=len(BANDS)).tolist()),
        origin_mjd=0.0,
    )


def _complete(out: Path, fitted: FittedBundle) -> Bundle:
    """Add to the manifest what only bundles of the second format have, then write the card."""
    contents = load_bundle(out).manifest.model_dump(mode="json")
    contents["recipe"]["data"].pop("fractions", None)  # parts came with the data
    everything = tuple(fitted.shares) == ELASTICC.names
    contents |= {
        "format_version": 2,
        "band_groups": STAND_INS if everything else {},
        "prior": {
            "name": "training",
            "shares": {name: max(share, SMALLEST_SHARE) for name, share in fitted.shares.items()},
            "source": "class shares of the light curves that heads, calibration and sets were fitted to",
        },
        "priors": fitted.priors,
        "domain": _domain(contents["bands"]) if everything else None,
        "context": {"learned": ["redshift"] if contents["metadata_columns"] else []},
    }
    write_manifest(out, Manifest.model_validate_json(json.dumps(contents)))
    return write_sky_card(out)


def _domain(bands: Sequence[str]) -> dict[str, Any]:
    """Return the domain of bundles of 20 classes; those of six types have none, so they are never substitutes."""
    return {
        "bands": bands,
        "fewest_bands": 1,
        "fewest_points": 1,
        "faintest_njy": FAINTEST_NJY,
        "brightest_njy": BRIGHTEST_NJY,
        "surveys": [],
        "measured_on": MEASURED_ON,
    }
