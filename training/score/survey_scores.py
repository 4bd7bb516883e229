"""Predictions of a bundle for real objects, with the preprocessing and prediction sets of the service, and scores.

Fractions are of all objects, including those flagged as unusual, except coverage and set size, which are over objects
with a prediction set. "Sure and wrong" is a wrong most probable class with a probability of at least `SURE`.

Legend: N objects, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
from nightjar_alerts.training.metrics import area_under_roc, confusion, ece, f1_per_class, log_loss

BATCH: Final = 32
COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class SurveyPredictions:
    """Predictions for the objects ``rows_N`` of a sample.

    ``probabilities_NC`` sum to 1; ``inside_NC`` are the classes of the 0.9 set; ``novelty_N`` is larger for unusual
    objects, NaN without a novelty score; ``unusual_N`` are objects without a set.
    """

    rows_N: NDArray[np.intp]
    probabilities_NC: NDArray[np.float64]
    inside_NC: NDArray[np.bool_]
    novelty_N: NDArray[np.float64]
    unusual_N: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows_N)

    def take(self, chosen: NDArray[np.bool_]) -> "SurveyPredictions":
        """Return the chosen predictions."""
        return SurveyPredictions(*(getattr(self, part.name)[chosen] for part in fields(self)))


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


def predict(model: OpenBundle, sample: Sample, context: ContextPolicy, prior: str | None = None) -> SurveyPredictions:
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
    return SurveyPredictions(
        np.array([row for row, _ in inputs], dtype=np.intp), probabilities, inside, novelty, unusual
    )


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


SURE: Final = 0.8
DETECTIONS: Final = ((0, 4), (5, 9), (10, 19), (20, 10**9))
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


def summary(predictions: SurveyPredictions, label_N: Int) -> dict[str, Any]:
    """Return every score of one set of labelled objects; only ``objects`` if there are none."""
    if not len(predictions):
        return {"objects": 0}
    top_N = predictions.probabilities_NC.argmax(axis=1)
    counts = confusion(label_N, top_N.astype(np.int64), predictions.probabilities_NC.shape[1])
    present = counts.sum(axis=1) > 0
    broad_N = broad_of_class()[label_N]
    usual_N = ~predictions.unusual_N
    covered_N = predictions.inside_NC[np.arange(len(label_N)), label_N]
    wrong_N = top_N != label_N
    return {
        "objects": len(label_N),
        "top_1": float((~wrong_N).mean()),
        "balanced": float((np.diag(counts)[present] / counts.sum(axis=1)[present]).mean()),
        "macro_f1": float(np.nanmean(f1_per_class(counts)[present])),
        "recurring": float((_recurs(predictions.probabilities_NC) == recurring_of_class()[label_N]).mean()),
        "broad": float((to_broad(predictions.probabilities_NC).argmax(axis=1) == broad_N).mean()),
        "recall": {ELASTICC.names[c]: float(counts[c, c] / counts[c].sum()) for c in np.flatnonzero(present)},
        "ece": ece(predictions.probabilities_NC, label_N),
        "log_loss": log_loss(predictions.probabilities_NC, label_N),
        "coverage": float(covered_N[usual_N].mean()) if usual_N.any() else float("nan"),
        "size": float(predictions.inside_NC[usual_N].sum(axis=1).mean()) if usual_N.any() else float("nan"),
        "withheld": float(predictions.unusual_N.mean()),
        "sure_and_wrong": float((wrong_N & (predictions.probabilities_NC.max(axis=1) >= SURE)).mean()),
        "single_and_missing": float((usual_N & (predictions.inside_NC.sum(axis=1) == 1) & ~covered_N).mean()),
    }


def _recurs(probabilities_NC: NDArray[np.float64]) -> Bool:
    """Return whether recurring classes are more probable than the others, (N,)."""
    return np.asarray(probabilities_NC[:, recurring_of_class()].sum(axis=1) > 0.5)


def restricted(predictions: SurveyPredictions, label_N: Int, among: Sequence[int] = THREE) -> dict[str, float]:
    """Return accuracy and balanced recall of objects of some classes, with predictions restricted to these classes."""
    matches = np.isin(label_N, among)
    if not matches.any():
        return {"top_1": float("nan"), "balanced": float("nan")}
    chosen_N = np.asarray(among)[predictions.probabilities_NC[matches][:, list(among)].argmax(axis=1)]
    right_N, truth_N = chosen_N == label_N[matches], label_N[matches]
    recalls = [right_N[truth_N == label].mean() for label in np.unique(truth_N)]
    return {"top_1": float(right_N.mean()), "balanced": float(np.mean(recalls))}


def balanced_of(predictions: SurveyPredictions, label_N: Int, among: Sequence[int] = THREE) -> float:
    """Return the mean recall of the classes ``among`` that occur, with predictions among all classes."""
    top_N = predictions.probabilities_NC.argmax(axis=1)
    recalls = [float((top_N[label_N == label] == label).mean()) for label in among if (label_N == label).any()]
    return float(np.mean(recalls)) if recalls else float("nan")


def recall_of(predictions: SurveyPredictions, label_N: Int, label: int) -> float:
    """Return the recall of a class; NaN without an object of it."""
    of_class = label_N == label
    if not of_class.any():
        return float("nan")
    return float((predictions.probabilities_NC[of_class].argmax(axis=1) == label).mean())


def broad_scores(predictions: SurveyPredictions, label_N: Int, magnitude_N: NDArray[np.float64]) -> dict[str, Any]:
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


def by_detections(predictions: SurveyPredictions, label_N: Int, detections_N: Int) -> list[dict[str, Any]]:
    """Return `summary` without the recall of every class, by number of detections."""
    rows = []
    for low, high in DETECTIONS:
        in_range = (detections_N >= low) & (detections_N <= high)
        scores = summary(predictions.take(in_range), label_N[in_range])
        scores.pop("recall", None)
        rows.append({"from": low, **scores})
    return rows


def novelty_auroc(known: SurveyPredictions, outliers: SurveyPredictions) -> float:
    """Return the AUROC of novelty for objects of no known class; NaN without novelty."""
    score = np.concatenate([known.novelty_N, outliers.novelty_N])
    if not np.isfinite(score).all():
        return float("nan")
    return area_under_roc(score, np.arange(len(score)) >= len(known))


def rounded(value: Any, digits: int = 4) -> Any:
    """Round the numbers of a report and replace NaN by None, for a small JSON file."""
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    if isinstance(value, float | np.floating):
        return round(float(value), digits) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
