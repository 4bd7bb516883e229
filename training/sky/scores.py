"""Predictions of a bundle for real objects, with the preprocessing and prediction sets of the service, and scores.

Legend: N objects, C classes.

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
from nightjar_alerts.training.score.metrics import area_under_roc, confusion, ece, f1_per_class, log_loss
from nightjar_alerts.training.sky.readers import FOREIGN
from nightjar_alerts.training.sky.record import ContextPolicy, SurveySample

BATCH: Final = 32
COVERAGE: Final = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class SkyAnswers:
    """Answers about the objects ``rows_N`` of a record.

    ``probabilities_NC`` sum to 1; ``inside_NC`` which classes the 0.9 set holds; ``novelty_N`` is larger for unusual
    objects, NaN without a novelty score; ``unusual_N`` whether no set is returned.
    """

    rows_N: NDArray[np.intp]
    probabilities_NC: NDArray[np.float64]
    inside_NC: NDArray[np.bool_]
    novelty_N: NDArray[np.float64]
    unusual_N: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows_N)

    def take(self, chosen: NDArray[np.bool_]) -> "SkyAnswers":
        """Return the chosen answers."""
        return SkyAnswers(*(getattr(self, part.name)[chosen] for part in fields(self)))


def ask_bundle(path: Path, sky: SurveySample, reveal: ContextPolicy, prior: str | None = None) -> SkyAnswers:
    """Return a bundle's answers about the objects of ``sky`` that it can take; those without a usable point have none.

    They are those of the service: class shares, facts about the object, and whether it is unusual, are included.

    Parameters
    ----------
    prior : name of the class shares; default those of the bundle.

    Raises
    ------
    BundleError
        When the bundle is damaged.
    PriorError
        For class shares that the bundle does not have.
    """
    bundle = load_bundle(path)
    session, posterior = open_session(bundle.model), Posterior(bundle.manifest)
    shares = posterior.prior(prior)
    inputs = _inputs_of(bundle.manifest, _regrouped(sky, bundle.manifest), reveal)
    order = sorted(range(len(inputs)), key=lambda place: len(inputs[place][1]))
    classes = len(bundle.manifest.classes.classes)
    probabilities, inside = np.zeros((len(inputs), classes)), np.zeros((len(inputs), classes), dtype=np.bool_)
    novelty, unusual = np.full(len(inputs), np.nan), np.zeros(len(inputs), dtype=np.bool_)
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        outputs = run(session, RaggedBatch.collate([inputs[place][1] for place in places]).padded())
        for number, place in enumerate(places):
            row, tokens = inputs[place]
            score = float(outputs["novelty"][number]) if "novelty" in outputs else None
            result = posterior.apply_prior(
                outputs["probabilities"][number],
                detections=int(np.count_nonzero(tokens.detected)),
                bands=int(np.count_nonzero(tokens.points_per_band)),
                novelty=score,
                metadata=sky.metadata_of(row, reveal),
                prior=shares,
                coverage=COVERAGE,
            )
            probabilities[place], unusual[place] = result.probabilities, bool(result.unusual)
            novelty[place] = np.nan if score is None else score
            inside[place, list(result.classes or [int(result.probabilities.argmax())])] = True
    return SkyAnswers(np.array([row for row, _ in inputs], dtype=np.intp), probabilities, inside, novelty, unusual)


def _regrouped(sky: SurveySample, manifest: Manifest) -> SurveySample:
    """Map points of other filters to the bands of a bundle; the record has the newest mapping."""
    band_P = sky.band.copy()
    for letter, nanometres in ((letter, nm) for stand_ins in FOREIGN.values() for letter, nm in stand_ins):
        if letter in manifest.band_groups:
            mine = sky.foreign & (sky.wavelength == np.float32(nanometres))
            band_P[mine] = BANDS.index(manifest.band_groups[letter])
    return replace(sky, band=band_P)


def _inputs_of(manifest: Manifest, sky: SurveySample, reveal: ContextPolicy) -> list[tuple[int, Tokens]]:
    """Return the tokens of every object that has a point for the network."""
    inputs: list[tuple[int, Tokens]] = []
    for row in range(len(sky)):
        try:
            curve = sky.curve(row, reveal)
            tokens = featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.bands)
        except LightCurveError:
            continue
        inputs.append((row, tokens))
    return inputs


SURE: Final = 0.8
DETECTIONS: Final = ((0, 4), (5, 9), (10, 19), (20, 10**9))
BRIGHTNESS: Final = (16.4, 18.9, 20.2, 21.4, 22.7)
"""Edges, magnitudes of the brightest detection."""
THREE: Final = tuple(ELASTICC.names.index(name) for name in ("Ia", "II", "Ib/c"))
BROAD: Final = ("SN-like", "Fast", "Long", "Periodic", "Non-Periodic")

Bool = NDArray[np.bool_]
Int = NDArray[np.int64]


def broad_of_class() -> Int:
    """Index into `BROAD` of every class, (C,)."""
    return np.array([BROAD.index(leaf.path[-1]) for leaf in ELASTICC.classes], dtype=np.int64)


def recurring_of_class() -> Bool:
    """Return whether each class is recurring, (C,): the level of the taxonomy above the broad classes."""
    return np.array(["Recurring" in leaf.path for leaf in ELASTICC.classes])


def to_broad(probabilities_NC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities summed into the broad classes, (N, 5)."""
    return np.asarray(probabilities_NC @ np.eye(len(BROAD))[broad_of_class()])


def summary(answers: SkyAnswers, label_N: Int) -> dict[str, Any]:
    """Every score of one set of labelled objects; ``objects`` alone where there are none."""
    if not len(answers):
        return {"objects": 0}
    top_N = answers.probabilities_NC.argmax(axis=1)
    counts = confusion(label_N, top_N.astype(np.int64), answers.probabilities_NC.shape[1])
    present = counts.sum(axis=1) > 0
    broad_N = broad_of_class()[label_N]
    usual_N = ~answers.unusual_N
    covered_N = answers.inside_NC[np.arange(len(label_N)), label_N]
    wrong_N = top_N != label_N
    return {
        "objects": len(label_N),
        "top_1": float((~wrong_N).mean()),
        "balanced": float((np.diag(counts)[present] / counts.sum(axis=1)[present]).mean()),
        "macro_f1": float(np.nanmean(f1_per_class(counts)[present])),
        "recurring": float((_recurs(answers.probabilities_NC) == recurring_of_class()[label_N]).mean()),
        "broad": float((to_broad(answers.probabilities_NC).argmax(axis=1) == broad_N).mean()),
        "recall": {ELASTICC.names[c]: float(counts[c, c] / counts[c].sum()) for c in np.flatnonzero(present)},
        "ece": ece(answers.probabilities_NC, label_N),
        "log_loss": log_loss(answers.probabilities_NC, label_N),
        "coverage": float(covered_N[usual_N].mean()) if usual_N.any() else float("nan"),
        "size": float(answers.inside_NC[usual_N].sum(axis=1).mean()) if usual_N.any() else float("nan"),
        "withheld": float(answers.unusual_N.mean()),
        "sure_and_wrong": float((wrong_N & (answers.probabilities_NC.max(axis=1) >= SURE)).mean()),
        "single_and_missing": float((usual_N & (answers.inside_NC.sum(axis=1) == 1) & ~covered_N).mean()),
    }


def _recurs(probabilities_NC: NDArray[np.float64]) -> Bool:
    """Return the more probable of recurring and not."""
    return np.asarray(probabilities_NC[:, recurring_of_class()].sum(axis=1) > 0.5)


def restricted(answers: SkyAnswers, label_N: Int, among: Sequence[int] = THREE) -> dict[str, float]:
    """Accuracy and balanced recall when only some classes may be chosen (objects of other classes left out)."""
    matches = np.isin(label_N, among)
    if not matches.any():
        return {"top_1": float("nan"), "balanced": float("nan")}
    chosen_N = np.asarray(among)[answers.probabilities_NC[matches][:, list(among)].argmax(axis=1)]
    right_N, truth_N = chosen_N == label_N[matches], label_N[matches]
    recalls = [right_N[truth_N == label].mean() for label in np.unique(truth_N)]
    return {"top_1": float(right_N.mean()), "balanced": float(np.mean(recalls))}


def balanced_of(answers: SkyAnswers, label_N: Int, among: Sequence[int] = THREE) -> float:
    """Mean recall of the classes ``among`` that occur, each answer chosen among all classes."""
    top_N = answers.probabilities_NC.argmax(axis=1)
    recalls = [float((top_N[label_N == label] == label).mean()) for label in among if (label_N == label).any()]
    return float(np.mean(recalls)) if recalls else float("nan")


def recall_of(answers: SkyAnswers, label_N: Int, label: int) -> float:
    """Share of a class that is named so; NaN without one."""
    mine = label_N == label
    return float((answers.probabilities_NC[mine].argmax(axis=1) == label).mean()) if mine.any() else float("nan")


def broad_scores(answers: SkyAnswers, label_N: Int, magnitude_N: NDArray[np.float64]) -> dict[str, Any]:
    """Recall of the broad classes, precision of SN-like, and recall of SN-like by brightness."""
    truth_N = broad_of_class()[label_N]
    named_N = to_broad(answers.probabilities_NC).argmax(axis=1)
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
        {"bin": place, "objects": int(here.sum()), "recall": float(called_supernova[here].mean())}
        for place in range(len(BRIGHTNESS) + 1)
        if (here := supernova & (bins == place)).any()
    ]
    return {
        "recall": recall,
        "precision_sn_like": float(supernova[called_supernova].mean()) if called_supernova.any() else float("nan"),
        "sn_like_by_brightness": by_brightness,
        "worst_bin": min((row["recall"] for row in by_brightness if row["objects"] >= 10), default=float("nan")),
    }


def by_detections(answers: SkyAnswers, label_N: Int, detections_N: Int) -> list[dict[str, Any]]:
    """`summary` without its recalls, for objects of few to many detections."""
    rows = []
    for low, high in DETECTIONS:
        here = (detections_N >= low) & (detections_N <= high)
        scores = summary(answers.take(here), label_N[here])
        scores.pop("recall", None)
        rows.append({"from": low, **scores})
    return rows


def novelty_auroc(usual: SkyAnswers, strange: SkyAnswers) -> float:
    """Return the AUROC of novelty for objects of no known class; NaN without novelty."""
    score = np.concatenate([usual.novelty_N, strange.novelty_N])
    if not np.isfinite(score).all():
        return float("nan")
    return area_under_roc(score, np.arange(len(score)) >= len(usual))


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers of a report rounded and NaN as None, for a small JSON file."""
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    if isinstance(value, float | np.floating):
        return round(float(value), digits) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
