"""From a training run to a bundle: fit what makes it believable, export, prove parity, record where it came from.

Calibration, prediction sets and novelty come from the validation split in views as served. A bundle is complete when it
leaves here: it has a card, which ``python -m training card`` rewrites once there are scores.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from models.bands import BANDS
from models.bundle import Bundle
from models.confidence import Calibration, PredictionSets
from models.lightcurve import LightCurve, Tokens
from models.taxonomy import taxonomy_of
from training.data.batches import draw_examples, draw_indices, usable_tokens
from training.data.dataset import UNLABELLED, Dataset, read_dataset, read_notes, split_indices
from training.export.bundle import Release, export_bundle
from training.export.card import write_card
from training.export.served import UNCALIBRATED
from training.fit.checkpoints import RunConfig, RunError, fingerprint, load_network, read_log
from training.recipes.schema import Recipe
from training.score.calibrate import ask_as_served, calibrated, fit_calibration
from training.score.conformal import fit_sets
from training.score.novelty import REFERENCE_PER_CLASS, NoveltyFit, fit_novelty

PARITY_CURVES = 200
PARITY_NOISE = 400


class Confidence(NamedTuple):
    """Confidence of a classifier as its validation split tells it; ``metrics`` are the numbers behind it."""

    calibration: Calibration
    novelty: NoveltyFit
    prediction_sets: PredictionSets
    metrics: dict[str, Any]


def release(run: Path, data: Path, out: Path, *, name: str, version: str) -> Bundle:
    """Export the best weights of a run as a bundle with a card; a classifier is calibrated.

    Parameters
    ----------
    data : the data file the run was trained on; its validation split calibrates.

    Raises
    ------
    RunError
        When the run was trained on other data, or ``out`` is not empty: a bundle holds nothing left over.
    ExportError
        When the exported graph is not the network.
    """
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; remove it or name another folder")
    network, config = load_network(run)
    dataset = read_dataset(data)
    if fingerprint(data, len(dataset)).sha256 != config.data.sha256:
        raise RunError(f"{run} was trained on other data than {data}")
    fit = fit_confidence(network, dataset, config.recipe) if config.recipe.task == "classify" else None
    described = Release(
        name=name,
        version=version,
        calibration=fit.calibration if fit else UNCALIBRATED,
        data=_provenance(dataset, config) | origin_of(data),
        metrics={"validation": _validation(run)} | (fit.metrics if fit else {}),
        taxonomy=taxonomy_of(dataset.classes) if fit else None,
        novelty=fit.novelty if fit else None,
        prediction_sets=fit.prediction_sets if fit else None,
    )
    export_bundle(network, config, _parity_tokens(dataset, config), out, described)
    return write_card(out)


def fit_confidence(network: nn.Module, dataset: Dataset, recipe: Recipe) -> Confidence:
    """Calibrate a classifier; fit prediction sets to its calibrated probabilities, and novelty to its embeddings."""
    sample = ask_as_served(network, dataset, recipe, "validation")
    fit = fit_calibration(sample)
    p_NC = calibrated(sample.logits_NC, sample.length_N, fit.calibration)
    sets = fit_sets(p_NC, sample.label_N, sample.detections_N, sample.object_N)
    training = ask_as_served(network, dataset, recipe, "train", per_class=REFERENCE_PER_CLASS)
    metrics = {"calibration": fit.numbers(), "prediction_sets": {"coverage_of_one_threshold": sets.coverage_of_one}}
    return Confidence(fit.calibration, fit_novelty(training, sample), sets.sets, metrics)


def _provenance(dataset: Dataset, config: RunConfig) -> dict[str, Any]:
    """Return what the network was trained on."""
    parts = split_indices(dataset, config.recipe.data.fractions, config.recipe.data.turn)
    labelled = dataset.label[dataset.label != UNLABELLED]
    counts = np.bincount(labelled, minlength=len(dataset.classes))
    return {
        **config.data.model_dump(),
        # where it lay is the business of the run folder alone
        "pretrained": None if config.pretrained is None else Path(config.pretrained).name,
        "pretrained_sha256": config.pretrained_sha256,
        "splits": {part: len(indices) for part, indices in parts.items()},
        "classes": dict(zip(dataset.classes, counts.tolist(), strict=True)),
    }


def origin_of(data: Path) -> dict[str, Any]:
    """Return the origin of a data file, as it says itself: an import or a simulation."""
    notes = read_notes(data)
    if "import" in notes:
        told = json.loads(notes["import"])
        kept = {name: told[name] for name in ("format", "licence", "rules", "report")}
        return {"source": told["survey"], "import": kept}
    told = json.loads(notes.get("simulation", "{}"))
    names = {"version": "simulator_version", "seed": "simulator_seed", "options": "simulator_options"}
    return {"source": "training.simulate"} | {name: told[key] for key, name in names.items() if key in told}


def _validation(run: Path) -> dict[str, Any]:
    """Return the log line of the exported weights: the best validation."""
    lines = [line for line in read_log(run) if "validation_score" in line]
    best: dict[str, Any] = max(lines, key=lambda line: line["validation_score"])
    return best


def _parity_tokens(dataset: Dataset, config: RunConfig) -> list[Tokens]:
    """Random views of validation objects, all classes, and noise of every brightness that reaches the rarer experts."""
    recipe = config.recipe
    rng = np.random.default_rng(recipe.seed)
    validation = split_indices(dataset, recipe.data.fractions, recipe.data.turn)["validation"]
    drawn = draw_indices(dataset.label, validation, PARITY_CURVES, balance=1.0, rng=rng)
    examples = draw_examples(dataset, drawn, recipe.data, recipe.augmentation, rng)
    strange = (usable_tokens(noise(rng), recipe.data) for _ in range(PARITY_NOISE))
    return [example.tokens for example in examples] + [tokens for tokens in strange if tokens is not None]


def noise(rng: np.random.Generator, points: int = 60) -> LightCurve:
    """Flux of either sign and errors, both log-uniform from 0.01 nJy to 0.1 Jy over eight years: far wider than any
    survey's, since a network trained on one survey's narrow range may keep experts that nothing in it reaches.
    """
    flux, flux_err = 10 ** rng.uniform(-2, 8, (2, points))
    return LightCurve.from_columns(
        mjd=60_000 + np.sort(rng.uniform(0, 3_000, points)),
        flux=flux * rng.choice((-1, 1), points),
        flux_err=flux_err,
        band=rng.integers(0, len(BANDS), points),
    )
