"""Fit what a bundle states besides its classes, and export it.

The learning objects have no validation part: calibration, prediction sets and the quantiles of novelty are fitted to
out-of-fold predictions, so every object is used for them and for the network.

Legend: N light curves, C classes, E embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import MODEL, Bundle, Calibration, Ensemble
from nightjar_alerts.models.lightcurve import Bool, Float32, Float64, Int64
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import BoostedTrees, Forest
from nightjar_alerts.models.posterior import PredictionSets
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.models.taxonomy import TAXONOMIES, Taxonomy, taxonomy_of
from nightjar_alerts.training.confidence.calibration import (
    CalibrationFit,
    fit_temperature,
    scores_by_detections,
)
from nightjar_alerts.training.confidence.ensemble import equal_weights
from nightjar_alerts.training.confidence.novelty import (
    EmbeddingReference,
    NoveltyFit,
    fit_reference,
    mahalanobis_novelty,
)
from nightjar_alerts.training.confidence.sets import fit_sets_by_detections, reweighted
from nightjar_alerts.training.data.drawn import network_inputs, padded_batches
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.data.statistics import input_statistics
from nightjar_alerts.training.export.bundle import export_bundle
from nightjar_alerts.training.export.card import write_card
from nightjar_alerts.training.export.describe import Release
from nightjar_alerts.training.export.domain import domain_of
from nightjar_alerts.training.export.parity import drawn_tokens
from nightjar_alerts.training.export.served import Ensembled
from nightjar_alerts.training.finetuning.draws import Observed
from nightjar_alerts.training.finetuning.methods import AND, TREES, Choice, Fitted, Tuning
from nightjar_alerts.training.fit.checkpoints import DataSource, RunConfig
from nightjar_alerts.training.fit.class_map import with_mapped_heads
from nightjar_alerts.training.metrics import softmax

OUT_OF_FOLD: Final = "out-of-fold"
FEWEST_TO_CALIBRATE: Final = 100
"""Objects below which the temperature is 1."""
TREES_ALONE: Final = 20.0
"""Log odds of the weight of trees that answer alone."""


@dataclass(frozen=True, eq=False)
class FinalModel:
    """The chosen method, fitted to all learning objects: a network, and trees with their weight if it has any."""

    network: AstroMoE
    forest: Forest | None
    weights: Ensemble | None

    @property
    def ensemble(self) -> Ensembled | None:
        """Trees as the graph has them."""
        if self.forest is None or self.weights is None:
            return None
        return Ensembled(BoostedTrees(self.forest), self.weights)


def fit_final(tuning: Tuning, choice: Choice, learns_O: Bool) -> FinalModel:
    """Fit the chosen method to all learning objects."""
    rows, folder = tuning.draws.rows(learns_O), tuning.folder / "final"
    *network_methods, last = choice.method.split(AND)
    if last not in TREES:
        return FinalModel(_network(tuning, last, tuning.fit(last, rows, folder)), None, None)
    alone = not network_methods  # the network only computes the features of the trees
    method = ("map" if tuning.draws.heads_NHC.shape[1] else "heads") if alone else network_methods[0]
    network = _network(tuning, method, tuning.fit(method, rows, folder))
    forest = tuning.fit(last, rows, folder).forest
    assert forest is not None
    weights = equal_weights(forest, tuning.draws.light_curves.lengths[rows])
    if alone:
        weights = weights.model_copy(update={"coefficients": (TREES_ALONE, 0.0, 0.0)})
    return FinalModel(network, forest, weights)


def _network(tuning: Tuning, method: str, fitted: Fitted) -> AstroMoE:
    if fitted.class_map is not None:
        recipe = tuning.backbone.recipe.model_copy(update={"network": tuning.backbone.with_classes(tuning.classes)})
        return with_mapped_heads(tuning.backbone.network, *fitted.class_map, recipe)
    assert fitted.network is not None, method
    return fitted.network


def class_shares(tuning: Tuning, learns_O: Bool) -> tuple[Float64, Float64]:
    """Return the class shares that the fits assume by their weights, and those of the objects, both [C]."""
    rows = tuning.draws.rows(learns_O)
    label_N = tuning.draws.light_curves.label[rows]
    weighted_C = np.bincount(label_N, tuning.draws.weights(rows).astype(np.float64), minlength=tuning.classes)
    count_C = np.bincount(tuning.draws.label_O[learns_O], minlength=tuning.classes).astype(np.float64)
    return weighted_C / weighted_C.sum(), count_C / count_C.sum()


def calibrate(tuning: Tuning, choice: Choice, learns_O: Bool) -> tuple[CalibrationFit, str]:
    """Fit one temperature to out-of-fold predictions; return it and a warning, empty if there is none.

    The loss has the weights of the fits, whose class shares the probabilities assume. The scores are of the shares of
    the objects.
    """
    rows, drawn = choice.rows, tuning.draws.light_curves
    label_N, logits_NC, objects = drawn.label[rows], choice.predicted.logits_NC, int(learns_O.sum())
    warning = ""
    if objects < FEWEST_TO_CALIBRATE:
        warning = (
            f"the temperature is 1, since {objects} objects are too few to fit it: probabilities are not calibrated "
            f"({FEWEST_TO_CALIBRATE} objects are needed)"
        )
        calibration = Calibration(method="none", temperature=1.0)
    else:
        temperature = fit_temperature(logits_NC, label_N, tuning.draws.weights(rows))
        calibration = Calibration(method="temperature", temperature=temperature)
    assumed_C, natural_C = class_shares(tuning, learns_O)
    before, after = (
        scores_by_detections(
            reweighted(softmax(logits_NC, temperature), natural_C / assumed_C), label_N, drawn.detections[rows]
        )
        for temperature in (1.0, calibration.temperature)
    )
    described = calibration.model_copy(update={"ece": after["all"]["ece"], "split": OUT_OF_FOLD})
    return CalibrationFit(described, {}, before, after, objects, len(rows)), warning


def fit_prediction_sets(tuning: Tuning, choice: Choice, calibration: Calibration, measured_on: str) -> PredictionSets:
    """Fit thresholds by number of detections to out-of-fold predictions."""
    drawn, rows = tuning.draws.light_curves, choice.rows
    p_NC = softmax(choice.predicted.logits_NC, calibration.temperature)
    fit = fit_sets_by_detections(p_NC, drawn.label[rows], drawn.detections[rows], drawn.group[rows])
    return fit.sets.model_copy(update={"split": OUT_OF_FOLD, "measured_on": measured_on})


def fit_novelty(tuning: Tuning, choice: Choice, model: FinalModel, final_NE: Float32, learns_O: Bool) -> NoveltyFit:
    """Fit class means of the branches' embedding, and quantiles of out-of-fold distances to those of each fold.

    Parameters
    ----------
    final_NE : embedding of the learning light curves by the final branches.
    """
    drawn, rows = tuning.draws.light_curves, choice.rows
    distance_N = np.zeros(len(rows))
    for fold in np.unique(choice.fold_N):
        out_N = choice.fold_N == fold
        learning_NE, label_N = _embedding_of_fold(tuning, choice, int(fold))
        distance_N[out_N] = fit_reference(learning_NE, label_N).mahalanobis(choice.predicted.embedding_NE[out_N])
    learning = tuning.draws.rows(learns_O)
    reference = _widened(fit_reference(final_NE, drawn.label[learning]), model.network.embedding_dim)
    return mahalanobis_novelty(
        reference, distance_N, drawn.detections[rows],
        split=OUT_OF_FOLD, objects=int(learns_O.sum()), reference_objects=int(learns_O.sum()),
    )  # fmt: skip


def _embedding_of_fold(tuning: Tuning, choice: Choice, fold: int) -> tuple[Float32, Int64]:
    """Return embedding and labels of the light curves that a fold learned from, by its own branches."""
    rows = tuning.draws.rows(choice.learns_FO[fold])
    fitted = tuning.fit("full", rows, tuning.folder / f"fold-{fold}") if choice.method == "full" else None
    return embedding_of(tuning, fitted, rows), tuning.draws.light_curves.label[rows]


def embedding_of(tuning: Tuning, fitted: Fitted | None, rows: NDArray[np.intp]) -> Float32:
    """Return the embedding of light curves by fitted branches, or by the frozen ones without a fit."""
    if fitted is None:
        return tuning.draws.inputs.embedding[rows]
    return tuning.predict("full", fitted, rows).embedding_NE


def _widened(reference: EmbeddingReference, width: int) -> EmbeddingReference:
    """Return the reference for an embedding with further columns, which do not count."""
    mean_KE = np.zeros((len(reference.mean_KE), width))
    whiten_EF = np.zeros((width, reference.whiten_EE.shape[1]))
    own = reference.mean_KE.shape[1]
    mean_KE[:, :own], whiten_EF[:own] = reference.mean_KE, reference.whiten_EE
    return EmbeddingReference(mean_KE, whiten_EF)


def own_taxonomy(classes: tuple[str, ...], name: str) -> Taxonomy:
    """Return the known taxonomy of the classes, or a flat one with a name."""
    known = next((one for one in TAXONOMIES if one.names == classes), None)
    return known or taxonomy_of(classes).model_copy(update={"name": f"{name}-classes"})


def export(
    tuning: Tuning,
    choice: Choice,
    observed: Observed,
    learns_O: Bool,
    classes: tuple[str, ...],
    out: Path,
    *,
    name: str,
    data: dict[str, Any],
    say: Callable[[str], None],
) -> tuple[Bundle, dict[str, float], str]:
    """Fit the final model and export it; return the bundle, the result of the parity test, and a warning."""
    say(f"fitting {choice.method} to all learning objects")
    model = fit_final(tuning, choice, learns_O)
    learning = tuning.draws.rows(learns_O)
    light_curves = tuning.draws.light_curves.take(learning)
    fitted = tuning.fit("full", learning, tuning.folder / "final") if choice.method == "full" else None
    measured_on = f"out-of-fold predictions of {int(learns_O.sum())} labelled objects, complete and as alerts show them"
    calibration, warning = calibrate(tuning, choice, learns_O)
    sets = fit_prediction_sets(tuning, choice, calibration.calibration, measured_on)
    novelty = fit_novelty(tuning, choice, model, embedding_of(tuning, fitted, learning), learns_O)
    network, recipe = model.network, observed.recipe.model_copy(update={"network": model.network.config})
    config = RunConfig(
        recipe=recipe.model_copy(update={"seed": tuning.seed}),
        data=DataSource(name=data["name"], sha256=data["sha256"], objects=int(learns_O.sum())),
        pretrained=tuning.backbone.pretrained.origin,
        pretrained_sha256=tuning.backbone.pretrained.sha256,
    )
    shares, _ = class_shares(tuning, learns_O)
    inputs = network_inputs(light_curves, np.arange(len(light_curves)))
    statistics = input_statistics(
        inputs, light_curves.label, classes, bands=recipe.data.bands, flux_unit=recipe.data.flux_unit
    )
    learning_curves = [curve for curve, learns in zip(observed.curves, learns_O, strict=True) if learns]
    surveys = {curve.survey for curve in learning_curves}
    release = Release(
        name=name,
        version="1.0.0",
        calibration=calibration.calibration,
        data=data,
        metrics={"calibration": calibration.numbers(), "methods": dict(choice.scores)},
        taxonomy=own_taxonomy(classes, name),
        novelty=novelty,
        prediction_sets=sets,
        ensemble=model.ensemble,
        input_statistics=statistics,
        shares=dict(zip(classes, shares.tolist(), strict=True)),
        domain=domain_of(learning_curves, light_curves, recipe.data.bands, surveys, measured_on),
        band_groups=dict(observed.substitutes),
    )
    tokens, left_out = drawn_tokens(network, light_curves, config, model.ensemble)
    bundle, difference = export_bundle(network, config, tokens, out, release, say)
    parity = {"light_curves": len(tokens), "left_out": left_out, "largest_difference": difference}
    say(
        f"the graph differs from the network by at most {difference:.1e} on {len(tokens)} light curves "
        f"({left_out} more are left out, in which rounding decides)"
    )
    return write_card(bundle.path), parity, warning


def served_probabilities(bundle: Bundle, light_curves: Sample) -> Float64:
    """Return the probabilities [N, C] of light curves by the graph of a bundle."""
    session, names = open_session(bundle.path / MODEL), [spec.name for spec in bundle.manifest.inputs]
    p_NC = np.zeros((len(light_curves), len(bundle.manifest.classes.names)))
    for rows, inputs in padded_batches(light_curves):
        p_NC[rows] = run(session, {name: inputs[name].numpy() for name in names})["probabilities"]
    return p_NC
