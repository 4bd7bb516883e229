"""Sections of a report beyond the scores of one view, as JSON, and a map of the embedding.

Each section is a function of a panel of models. Abstention, sets and novelty are measured on the same objects as the
scores; thresholds of conformal sets are fitted to the validation split in the same view. A section that cannot be
measured (no validation objects, no embedding, no mixture) is None.

The use of the experts, their shares of the tokens of every band and class, is counted over the observations of complete
light curves: for a run folder by hooks on the routers of the network, for a bundle by its output ``experts_by_band``,
which has neither the input experts nor the last block. Rows are shares of a group's choices: they sum to 1, and an even
mixture has 1 / experts everywhere.

Legend: N tokens, L mixtures, G groups (bands or classes), X experts, K kept experts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor, nn

from nightjar_alerts.models.bundle import MANIFEST, load_bundle
from nightjar_alerts.models.lightcurve import Int64, RaggedBatch
from nightjar_alerts.models.networks.parts.transformer import Router, Routing
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.confidence.novelty import fit_reference, novelty_scores, ood_scores
from nightjar_alerts.training.confidence.sets import class_coverage, fit_conformal, set_scores, sets_of
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, collate, view_examples
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import load_network
from nightjar_alerts.training.metrics import (
    COVERAGES,
    abstention,
    confusion,
    f1_per_class,
    reliability,
    stability,
)
from nightjar_alerts.training.score.predictions import BATCH, ModelPanel, Predictions, ScoredModel, outputs_of

PER_CLASS = 50
MAPPED = 3000  # objects of the map of the embedding
BY_BAND = "experts_by_band"


class MixtureChoices(NamedTuple):
    """Shares of one mixture's choices by band (bands, X) and by class (classes, X); NaN rows had no tokens."""

    name: str
    by_band: NDArray[np.float64]
    by_class: NDArray[np.float64]


class Specialisation(NamedTuple):
    """Every mixture of one model."""

    model: str
    mixtures: list[MixtureChoices]


def specialisation(models: Sequence[ScoredModel], dataset: Sample, rows: Int64, classes: int) -> Specialisation | None:
    """Return the expert use of the first run folder with mixtures, or else of the first bundle that has it."""
    with_path = [(model, model.path) for model in models if model.path is not None]
    sample = _balanced(dataset, rows, classes)
    for model, path in sorted(with_path, key=lambda pair: (pair[1] / MANIFEST).exists()):  # run folders first
        examples = view_examples(dataset, sample, model.data, View())
        if (path / MANIFEST).exists():
            mixtures = shares_in_bundle(path, examples, classes)
        else:
            mixtures = shares_by_token(load_network(path)[0], examples, classes)
        if mixtures:
            return Specialisation(model.name, mixtures)
    return None


def shares_by_token(network: nn.Module, examples: Sequence[Example], classes: int) -> list[MixtureChoices]:
    """Count the choices of the routers by forward hooks, without [CLS] and padding tokens; empty without mixtures."""
    routers = [(name, part) for name, part in network.named_modules() if isinstance(part, Router)]
    if not routers or not examples:
        return []
    counts = [
        (np.zeros((len(BANDS), router.gate.out_features)), np.zeros((classes, router.gate.out_features)))
        for _, router in routers
    ]
    routings: dict[int, Routing] = {}
    hooks = [
        router.register_forward_hook(lambda _module, _inputs, routing, index=index: routings.update({index: routing}))
        for index, (_, router) in enumerate(routers)
    ]
    try:
        ordered = sorted(examples, key=lambda example: len(example.tokens))
        for start in range(0, len(ordered), BATCH):
            part = ordered[start : start + BATCH]
            outputs_of(network, part)
            for index, routing in routings.items():
                _count(counts[index], routing.expert_NK, part, network)
    finally:
        for hook in hooks:
            hook.remove()
    names = _names(len(routers), routers[0][0].startswith("embed"))
    return [
        MixtureChoices(name, _shares(band), _shares(label)) for name, (band, label) in zip(names, counts, strict=True)
    ]


def _count(
    counts: tuple[NDArray[np.float64], NDArray[np.float64]],
    expert_NK: Tensor,
    examples: Sequence[Example],
    network: nn.Module,
) -> None:
    """Add the choices of one batch; tokens are row-major, after the [CLS] tokens if there are any."""
    batch = collate(examples)
    real_BL = batch.mask_BL.numpy()
    grid = np.ones_like(real_BL) if getattr(network.config, "aux_counts_padding", False) else real_BL
    chosen_NK = expert_NK.numpy()[len(expert_NK) - int(grid.sum()) :][real_BL[grid]]
    label_N = np.broadcast_to(batch.label_B.numpy()[:, None], real_BL.shape)[real_BL]
    for count, group_N in zip(counts, (batch.band_BL.numpy()[real_BL], label_N), strict=True):
        np.add.at(count, (group_N[:, None], chosen_NK), 1)


def shares_in_bundle(path: Path, examples: Sequence[Example], classes: int) -> list[MixtureChoices]:
    """Add up the choices that a bundle returns for each light curve; empty if it returns none."""
    session = open_session(load_bundle(path).model)
    if not examples or BY_BAND not in {output.name for output in session.get_outputs()}:
        return []
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    parts = [[example.tokens for example in ordered[start : start + BATCH]] for start in range(0, len(ordered), BATCH)]
    count_NSGX = np.concatenate([run(session, RaggedBatch.collate(part).padded())[BY_BAND] for part in parts])
    label_N = np.array([example.label for example in ordered])
    by_class = np.stack([count_NSGX[label_N == label].sum((0, 2)) for label in range(classes)], axis=1)
    names = _names(count_NSGX.shape[1], has_input=False)
    return [
        MixtureChoices(name, _shares(band_GX), _shares(class_CX))
        for name, band_GX, class_CX in zip(names, count_NSGX.sum(0), by_class, strict=True)
    ]


def _names(mixtures: int, has_input: bool) -> list[str]:
    """Return the names of the mixtures in the order of the network, the input experts first."""
    first = ["input experts"] if has_input and mixtures else []
    return first + [f"block {number}" for number in range(1, mixtures - len(first) + 1)]


def _shares(count_GX: NDArray[np.float64]) -> NDArray[np.float64]:
    total_G1 = count_GX.sum(1, keepdims=True)
    shares_GX = np.full(count_GX.shape, np.nan)
    np.divide(count_GX, total_G1, out=shares_GX, where=total_G1 > 0)
    return shares_GX


def _balanced(dataset: Sample, rows: Int64, classes: int) -> Int64:
    """Return a fixed sample of at most ``PER_CLASS`` objects of every class."""
    rng = np.random.default_rng(0)
    groups = [rows[dataset.label[rows] == label] for label in range(classes)]
    return np.concatenate([rng.permutation(group)[:PER_CLASS] for group in groups])


Scores = dict[str, float]
ALPHA = 0.1
SET_METHODS = {"one threshold": False, "one threshold per class": True}
LOW, HIGH = 5, 95  # percentiles over runs
EARLY = {"everything": View(), **{f"{n} detection{'s' * (n > 1)}": View(detections=n) for n in (1, 3, 10)}}


def spread(values: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """Return mean, sample standard deviation (None for one model) and single values of each score; None for NaN."""
    return {
        name: {
            "mean": number(np.mean([value[name] for value in values])),
            "spread": number(np.std([value[name] for value in values], ddof=1)) if len(values) > 1 else None,
            "values": [number(value[name]) for value in values],
        }
        for name in values[0]
    }


def number(value: Any) -> float | None:
    """Return a JSON number; None for NaN and infinity, which JSON does not have."""
    return float(value) if np.isfinite(value) else None


def numbers(values: NDArray[Any]) -> list[Any]:
    """Return a nested list of JSON numbers, rounded to six decimals."""
    return [numbers(value) if np.ndim(value) else number(round(float(value), 6)) for value in values]


def curve(values: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """Return mean and sample standard deviation over models of each point of a curve."""
    curves = np.array([np.asarray(value, dtype=np.float64) for value in values])
    return {"mean": numbers(curves.mean(0)), "spread": numbers(curves.std(0, ddof=1)) if len(curves) > 1 else None}


def abstention_section(panel: ModelPanel, rows: Int64) -> dict[str, Any]:
    """Return accuracy and macro-F1 against coverage, for complete and for short light curves."""
    views = {}
    for name, view in EARLY.items():
        curves = [
            abstention(predictions.probabilities_NC, predictions.label_N)
            for predictions in panel.predict(rows, view)
            if len(predictions.rows_N)
        ]
        if curves:
            keys = ("threshold", "accuracy", "macro_f1", "classes")
            views[name] = {key: curve([getattr(one, key) for one in curves]) for key in keys}
    return {"coverage": list(COVERAGES), "views": views}


def reliability_section(panel: ModelPanel, rows: Int64) -> dict[str, Any]:
    """Return the reliability tables of the first model by number of detections."""
    by_view = {name: panel.first(rows, view) for name, view in EARLY.items()}
    return {
        name: numbers(reliability(one.probabilities_NC, one.label_N)) for name, one in by_view.items() if len(one[0])
    }


def class_f1_section(panel: ModelPanel, rows: Int64, series: Mapping[str, View]) -> dict[str, list[float | None]]:
    """Return the F1 of every class at each step of a series, mean over models; None if it never occurs."""
    classes = len(panel.dataset.classes)
    f1_by_step = {}
    for step, view in series.items():
        matrices = [confusion(one.label_N, one.top_N, classes) for one in panel.predict(rows, view) if len(one.rows_N)]
        if matrices:
            f1_by_step[step] = numbers(np.mean([f1_per_class(counts) for counts in matrices], axis=0))
    return f1_by_step


def confusion_section(panel: ModelPanel, rows: Int64, classes: int) -> dict[str, Any]:
    """Return the confusion matrix in percent of each true class: median and percentiles over runs; None if absent."""
    percents = []
    for predictions in panel.predict(rows, View()):
        counts = confusion(predictions.label_N, predictions.top_N, classes).astype(np.float64)
        support = counts.sum(1, keepdims=True)
        percents.append(np.divide(100 * counts, support, out=np.full_like(counts, np.nan), where=support > 0))
    low, median, high = np.percentile(percents, [LOW, 50, HIGH], axis=0)
    cells = {"median": numbers(median), "low": numbers(low), "high": numbers(high)}
    return {"runs": len(percents), "percentiles": [LOW, HIGH], **cells}


def stability_section(panel: ModelPanel, rows: Int64, series: Mapping[str, View]) -> dict[str, Any] | None:
    """Return the stability over one series, whose keys are the steps, and that of every class for the first model."""
    by_step = [panel.predict(rows, view) for view in series.values()]
    steps = [float(step) for step in series]
    results, by_class = [], {}
    for index in range(len(panel.models)):
        top_NK, label_N = _top_classes([predictions[index] for predictions in by_step])
        if not len(top_NK):
            return None
        results.append(stability(top_NK, label_N, steps))
        if index == 0:
            by_label = {
                label: stability(top_NK[label_N == label], label_N[label_N == label], steps) for label in set(label_N)
            }
            by_class = {str(label): [number(one.flip_rate), number(one.median_step)] for label, one in by_label.items()}
    single = ("flip_rate", "flips_per_object", "never_flipped", "median_step", "median_step_right")
    curves = {"stable": [one.stable_K for one in results], "stable_and_right": [r.stable_and_right_K for r in results]}
    scalars = spread([{name: getattr(one, name) for name in single} for one in results])
    return {"steps": steps, **scalars, **{name: curve(values) for name, values in curves.items()}, "by_class": by_class}


def _top_classes(steps: Sequence[Predictions]) -> tuple[Int64, Int64]:
    """Return top classes (N, K) and labels (N,) of the objects that have predictions at every step."""
    common = steps[0].rows_N
    for step in steps[1:]:
        common = np.intersect1d(common, step.rows_N, assume_unique=True)
    masks = [np.isin(step.rows_N, common) for step in steps]
    tops = [step.top_N[mask] for step, mask in zip(steps, masks, strict=True)]
    return np.stack(tops, axis=1), steps[0].label_N[masks[0]]


def conformal_section(
    panel: ModelPanel, rows: Int64, validation: Int64, detections: Mapping[str, View]
) -> dict[str, Any] | None:
    """Fit sets on validation objects and score them, for complete light curves and by detections."""
    fitted, tested = panel.predict(validation, View()), panel.predict(rows, View())
    if not len(fitted[0].rows_N) or not len(tested[0].rows_N):
        return None
    methods, coverage_C, thresholds = {}, {}, {}
    for name, by_class in SET_METHODS.items():
        limits = [_fit(predictions, by_class=by_class) for predictions in fitted]
        methods[name] = spread([_set_scores(*pair) for pair in zip(limits, tested, strict=True)])
        coverage_C[name] = numbers(class_coverage(sets_of(tested[0].probabilities_NC, limits[0]), tested[0].label_N))
        thresholds[name] = numbers(limits[0])
    early = {step: _early_sets(panel, rows, validation, view) for step, view in detections.items()}
    return {
        "stated_coverage": 1 - ALPHA,
        "validation_objects": len(fitted[0].rows_N),
        "methods": methods,
        "class_coverage": coverage_C,
        "thresholds": thresholds,
        "detections": {step: scores for step, scores in early.items() if scores},
    }


def _fit(predictions: Predictions, *, by_class: bool = False) -> NDArray[np.float64]:
    return fit_conformal(predictions.probabilities_NC, predictions.label_N, alpha=ALPHA, by_class=by_class)


def _set_scores(threshold_C: NDArray[np.float64], predictions: Predictions) -> Scores:
    return set_scores(sets_of(predictions.probabilities_NC, threshold_C), predictions.label_N)


def _early_sets(panel: ModelPanel, rows: Int64, validation: Int64, view: View) -> dict[str, Any] | None:
    """Score the sets of one view, with its own thresholds and with those of complete light curves."""
    fitted, complete = panel.predict(validation, view), panel.predict(validation, View())
    tested = panel.predict(rows, view)
    if not all(len(predictions.rows_N) for predictions in (*fitted, *tested)):
        return None
    values = []
    for own, full, predictions in zip(fitted, complete, tested, strict=True):
        coverage = _set_scores(_fit(full), predictions)["coverage"]
        values.append({**_set_scores(_fit(own), predictions), "coverage_with_complete_thresholds": coverage})
    return spread(values)


def novelty_section(panel: ModelPanel, rows: Int64, new_rows: Int64, reference: Int64) -> dict[str, Any] | None:
    """Return the AUROC of every out-of-distribution score, left-out classes against known ones, mean over models."""
    if not len(new_rows):
        return None
    by_model = []
    for usual, new, trained in zip(*(_embedded(panel, part) for part in (rows, new_rows, reference)), strict=True):
        if any(predictions.embedding_NE is None for predictions in (usual, new, trained)):
            return None
        both = [np.concatenate(pair) for pair in zip(usual[1:], new[1:], strict=True)]
        ood = ood_scores(fit_reference(trained.embedding_NE, trained.label_N), both[2], both[1])
        by_model.append(novelty_scores(ood, both[0], np.unique(new.label_N)))
    scores = {
        name: {
            "all": spread([{"auroc": one[name]["all"]} for one in by_model])["auroc"],
            "by_class": {label: spread([one[name]["by_class"] for one in by_model])[label] for label in by["by_class"]},
        }
        for name, by in by_model[0].items()
    }
    return {"objects": len(new_rows), "scores": scores}


def _embedded(panel: ModelPanel, rows: Int64) -> list[Predictions]:
    return panel.predict(rows, View(), embeddings=True)


def embedding_section(panel: ModelPanel, rows: Int64) -> dict[str, Any] | None:
    """Return principal components of the first model's embedding of complete light curves; None for too few."""
    predictions = panel.first(rows, View(), embeddings=True)
    found = len(predictions.rows_N)
    if predictions.embedding_NE is None or found < 3:
        return None
    chosen_M = np.sort(np.random.default_rng(0).choice(found, min(MAPPED, found), replace=False))
    components = PCA(2, svd_solver="full")  # has deterministic signs
    position_M2 = components.fit_transform(predictions.embedding_NE[chosen_M].astype(np.float64))
    return {
        "label": predictions.label_N[chosen_M].tolist(),
        "x": numbers(position_M2[:, 0]),
        "y": numbers(position_M2[:, 1]),
        "explained": np.nan_to_num(components.explained_variance_ratio_).tolist(),  # NaN if all embeddings are equal
    }


def experts_section(panel: ModelPanel, rows: Int64, classes: int) -> dict[str, Any] | None:
    """Return the expert use by band and class; None without mixtures."""
    specialised = specialisation(panel.models, panel.dataset, rows, classes)
    if specialised is None:
        return None
    mixtures = [
        {"name": mixture.name, "by_band": numbers(mixture.by_band), "by_class": numbers(mixture.by_class)}
        for mixture in specialised.mixtures
    ]
    return {"model": specialised.model, "mixtures": mixtures}
