"""Predictions of a bundle for real objects, with the preprocessing and prediction sets of the service, and scores.

`report` says what the scores mean.

Legend: N objects, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import Manifest, load_bundle
from nightjar_alerts.models.lightcurve import LightCurveError, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.posterior import Posterior
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.sample import ContextPolicy, Sample
from nightjar_alerts.training.data.survey_readers import FOREIGN
from nightjar_alerts.training.metrics import area_under_roc, confusion, f1_per_class
from nightjar_alerts.training.score.report import ServedPredictions, scores_of

BATCH: Final = 32
COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class OpenBundle:
    """A bundle that is ready to predict."""

    path: Path
    manifest: Manifest
    session: Any
    posterior: Posterior

    @property
    def name(self) -> str:
        """Name and version."""
        return f"{self.manifest.name} {self.manifest.version}"


def open_bundle(path: Path) -> OpenBundle:
    """Load a bundle. Raises BundleError if it is damaged."""
    bundle = load_bundle(path)
    return OpenBundle(path, bundle.manifest, open_session(bundle.model), Posterior(bundle.manifest))


def predict(model: OpenBundle, sample: Sample, context: ContextPolicy, prior: str | None = None) -> ServedPredictions:
    """Return a bundle's predictions for the objects of ``sample`` that have a usable point.

    As in the service, predictions include class shares, the metadata of the object, and whether it is unusual.

    Parameters
    ----------
    prior : name of the class shares; default: those of the bundle.

    Raises
    ------
    PriorError
        If the bundle does not have these class shares.
    """
    shares = model.posterior.prior(prior)
    inputs = _inputs_of(model.manifest, _regrouped(sample, model.manifest), context)
    order = sorted(range(len(inputs)), key=lambda index: len(inputs[index][1]))
    classes = len(model.manifest.classes.classes)
    probabilities, inside = np.zeros((len(inputs), classes)), np.zeros((len(inputs), classes), dtype=np.bool_)
    novelty, unusual = np.full(len(inputs), np.nan), np.zeros(len(inputs), dtype=np.bool_)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        outputs = run(model.session, RaggedBatch.collate([inputs[index][1] for index in batch]).padded())
        for position, index in enumerate(batch):
            row, tokens = inputs[index]
            score = float(outputs["novelty"][position]) if "novelty" in outputs else None
            result = model.posterior.apply_prior(
                outputs["probabilities"][position],
                detections=int(np.count_nonzero(tokens.detected)),
                bands=int(np.count_nonzero(tokens.points_per_band)),
                novelty=score,
                metadata=sample.metadata_of(row, context),
                prior=shares,
                coverage=COVERAGE,
            )
            probabilities[index], unusual[index] = result.probabilities, bool(result.unusual)
            novelty[index] = np.nan if score is None else score
            inside[index, list(result.classes or [int(result.probabilities.argmax())])] = True
    rows = np.array([row for row, _ in inputs], dtype=np.intp)
    return ServedPredictions(rows, probabilities, inside, novelty, unusual, withheld_N=unusual)


def _regrouped(sample: Sample, manifest: Manifest) -> Sample:
    """Map points of other filters to bands by the mapping of a bundle, which may be older than that of the sample."""
    band_P = sample.band.copy()
    for letter, nanometres in ((letter, nm) for stand_ins in FOREIGN.values() for letter, nm in stand_ins):
        if letter in manifest.band_groups:
            in_filter = sample.foreign & (sample.wavelength == np.float32(nanometres))
            band_P[in_filter] = BANDS.index(manifest.band_groups[letter])
    return replace(sample, band=band_P)


def _inputs_of(manifest: Manifest, sample: Sample, context: ContextPolicy) -> list[tuple[int, Tokens]]:
    """Return row and tokens of every object that has a point for the network."""
    inputs: list[tuple[int, Tokens]] = []
    for row in range(len(sample)):
        try:
            curve = sample.curve(row, context)
            tokens = featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.bands)
        except LightCurveError:
            continue
        inputs.append((row, tokens))
    return inputs


BRIGHTNESS: Final = (16.4, 18.9, 20.2, 21.4, 22.7)
"""Bin edges, in magnitudes of the brightest detection."""
THREE: Final = tuple(ELASTICC.names.index(name) for name in ("Ia", "II", "Ib/c"))
BROAD: Final = ("SN-like", "Fast", "Long", "Periodic", "Non-Periodic")

Bool = NDArray[np.bool_]
Int = NDArray[np.int64]


def broad_of_class() -> Int:
    """Return the index into `BROAD` of every class, (C,)."""
    return np.array([BROAD.index(leaf.path[-1]) for leaf in ELASTICC.classes], dtype=np.int64)


def recurring_of_class() -> Bool:
    """Return whether each class is recurring, (C,): the level of the taxonomy above the broad classes."""
    return np.array(["Recurring" in leaf.path for leaf in ELASTICC.classes])


def to_broad(probabilities_NC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum probabilities over the classes of each broad class, (N, 5)."""
    return np.asarray(probabilities_NC @ np.eye(len(BROAD))[broad_of_class()])


def summary(predictions: ServedPredictions, label_N: Int) -> dict[str, Any]:
    """Return every score of one set of labelled objects; only ``objects`` if there are none.

    Macro-F1 is the mean over the classes that occur among the labels.
    """
    if not len(predictions):
        return {"objects": 0}
    scores = scores_of(predictions, label_N)
    counts = confusion(label_N, predictions.probabilities_NC.argmax(axis=1), predictions.probabilities_NC.shape[1])
    present = counts.sum(axis=1) > 0
    broad_N = broad_of_class()[label_N]
    return {
        "objects": len(label_N),
        "top_1": scores["accuracy"],
        "balanced": scores["balanced_accuracy"],
        "macro_f1": float(np.nanmean(f1_per_class(counts)[present])),
        "recurring": float((_recurs(predictions.probabilities_NC) == recurring_of_class()[label_N]).mean()),
        "broad": float((to_broad(predictions.probabilities_NC).argmax(axis=1) == broad_N).mean()),
        "recall": {ELASTICC.names[c]: float(counts[c, c] / counts[c].sum()) for c in np.flatnonzero(present)},
        "ece": scores["ece"],
        "log_loss": scores["log_loss"],
        "coverage": scores["set_coverage"],
        "size": scores["set_size"],
        "withheld": scores["set_withheld"],
        "sure_and_wrong": scores["sure_and_wrong"],
        "single_and_missing": scores["single_and_missing"],
    }


def summary_without_recall(predictions: ServedPredictions, label_N: Int) -> dict[str, Any]:
    """Return `summary` without the recall of every class."""
    return {name: value for name, value in summary(predictions, label_N).items() if name != "recall"}


def _recurs(probabilities_NC: NDArray[np.float64]) -> Bool:
    """Return whether recurring classes are more probable than the others, (N,)."""
    return np.asarray(probabilities_NC[:, recurring_of_class()].sum(axis=1) > 0.5)


def restricted(predictions: ServedPredictions, label_N: Int, among: Sequence[int] = THREE) -> dict[str, float]:
    """Return accuracy and balanced recall of objects of some classes, with predictions restricted to these classes."""
    matches = np.isin(label_N, among)
    if not matches.any():
        return {"top_1": float("nan"), "balanced": float("nan")}
    chosen_N = np.asarray(among)[predictions.probabilities_NC[matches][:, list(among)].argmax(axis=1)]
    right_N, truth_N = chosen_N == label_N[matches], label_N[matches]
    recalls = [right_N[truth_N == label].mean() for label in np.unique(truth_N)]
    return {"top_1": float(right_N.mean()), "balanced": float(np.mean(recalls))}


def balanced_of(predictions: ServedPredictions, label_N: Int, among: Sequence[int] = THREE) -> float:
    """Return the mean recall of the classes ``among`` that occur, with predictions among all classes."""
    top_N = predictions.probabilities_NC.argmax(axis=1)
    recalls = [float((top_N[label_N == label] == label).mean()) for label in among if (label_N == label).any()]
    return float(np.mean(recalls)) if recalls else float("nan")


def recall_of(predictions: ServedPredictions, label_N: Int, label: int) -> float:
    """Return the recall of a class; NaN without an object of it."""
    of_class = label_N == label
    if not of_class.any():
        return float("nan")
    return float((predictions.probabilities_NC[of_class].argmax(axis=1) == label).mean())


def broad_scores(predictions: ServedPredictions, label_N: Int, magnitude_N: NDArray[np.float64]) -> dict[str, Any]:
    """Return recall of the broad classes, precision of SN-like, and recall of SN-like by brightness."""
    truth_N = broad_of_class()[label_N]
    named_N = to_broad(predictions.probabilities_NC).argmax(axis=1)
    recall = {
        name: {
            "objects": int((truth_N == number).sum()),
            "recall": float((named_N[truth_N == number] == number).mean()),
        }
        for number, name in enumerate(BROAD)
        if (truth_N == number).any()
    }
    called_supernova, supernova = named_N == 0, truth_N == 0
    bins = np.digitize(magnitude_N, BRIGHTNESS)
    by_brightness = [
        {"bin": index, "objects": int(in_bin.sum()), "recall": float(called_supernova[in_bin].mean())}
        for index in range(len(BRIGHTNESS) + 1)
        if (in_bin := supernova & (bins == index)).any()
    ]
    return {
        "recall": recall,
        "precision_sn_like": float(supernova[called_supernova].mean()) if called_supernova.any() else float("nan"),
        "sn_like_by_brightness": by_brightness,
        "worst_bin": min((row["recall"] for row in by_brightness if row["objects"] >= 10), default=float("nan")),
    }


def novelty_auroc(known: ServedPredictions, outliers: ServedPredictions) -> float:
    """Return the AUROC of novelty for objects of no known class; NaN without novelty."""
    score = np.concatenate([known.novelty_N, outliers.novelty_N])
    if not np.isfinite(score).all():
        return float("nan")
    return area_under_roc(score, np.arange(len(score)) >= len(known))
