"""Models and their predictions, which are computed once for each (model, objects, view) and cached.

Notable:

- bundles run in onnxruntime, as in the service; run folders run in torch, calibrated on the validation split as in an
  export;
- examples are made once per view for all models with the same featurisation;
- embeddings are cached only for the views that need them, since those of all views and models take gigabytes.

Legend: N objects, C classes, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from nightjar_alerts.models.bundle import MANIFEST, load_bundle
from nightjar_alerts.models.lightcurve import Int64, RaggedBatch
from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.confidence.calibration import calibrate, calibrated
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, collate, view_examples
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import load_network
from nightjar_alerts.training.metrics import Float
from nightjar_alerts.training.recipes.schema import DataConfig

BATCH = 32


class ModelOutputs(NamedTuple):
    """Calibrated probabilities (N, C), and embeddings (N, E) of models that have one."""

    probabilities_NC: Float
    embedding_NE: Float | None = None


Predict = Callable[[Sequence[Example]], ModelOutputs]


@dataclass(frozen=True, slots=True)
class ScoredModel:
    """A model, and the data configuration of its examples; ``path`` is its bundle or run folder."""

    name: str
    seed: int | None
    data: DataConfig
    predict: Predict
    path: Path | None = None


class Predictions(NamedTuple):
    """Predictions of one model for the objects with a detection in a view; ``rows_N`` are their dataset rows."""

    rows_N: Int64
    label_N: Int64
    probabilities_NC: Float
    embedding_NE: Float | None

    @property
    def top_N(self) -> Int64:
        """Most probable class of each object."""
        top_N: Int64 = self.probabilities_NC.argmax(1).astype(np.int64)
        return top_N


def open_model(path: Path, dataset: Sample) -> ScoredModel:
    """Open a bundle or a run folder; the validation split of ``dataset`` is used for calibrating a run.

    Raises
    ------
    ValueError
        If a bundle is not a classifier, or a model does not have the classes of the dataset.
    """
    return _open_bundle(path, dataset) if (path / MANIFEST).exists() else _open_run(path, dataset)


def _open_bundle(path: Path, dataset: Sample) -> ScoredModel:
    bundle = load_bundle(path)
    manifest = bundle.manifest
    if manifest.classes.names != dataset.classes:
        raise ValueError(
            f"{path} has the classes {', '.join(manifest.classes.names)}; the data have {', '.join(dataset.classes)}"
        )
    session = open_session(bundle.model)
    recipe_data = DataConfig.model_validate(manifest.recipe["data"])
    data = recipe_data.model_copy(update={"limits": manifest.limits, "flux_unit": manifest.flux_unit})

    def predict(examples: Sequence[Example]) -> ModelOutputs:
        outputs = run(session, RaggedBatch.collate([example.tokens for example in examples]).padded())
        return ModelOutputs(outputs["probabilities"], outputs["embedding"])

    return ScoredModel(f"{manifest.name} {manifest.version}", manifest.recipe.get("seed"), data, predict, path)


def _open_run(path: Path, dataset: Sample) -> ScoredModel:
    network, config = load_network(path)
    if config.recipe.network.n_classes != len(dataset.classes):
        raise ValueError(f"{path} has {config.recipe.network.n_classes} classes, the data {len(dataset.classes)}")
    calibration = calibrate(network, dataset, config.recipe).calibration

    def predict(examples: Sequence[Example]) -> ModelOutputs:
        output = outputs_of(network, examples)
        logits_BC, embedding_BE = (tensor.float().numpy() for tensor in (output.logits_BC, output.embedding_BE))
        length_B = np.array([len(example.tokens) for example in examples])
        return ModelOutputs(calibrated(logits_BC, length_B, calibration), embedding_BE)

    return ScoredModel(path.name, config.recipe.seed, config.recipe.data, predict, path)


@torch.inference_mode()
def outputs_of(network: nn.Module, examples: Sequence[Example]) -> NetworkOutput:
    """Return the predictions of a classifier for one batch of examples."""
    output: NetworkOutput = network(*collate(examples).inputs_of(network))
    return output


def predict_in_order(predict: Predict, examples: Sequence[Example]) -> ModelOutputs:
    """Return the predictions for all examples, in their order, computed in batches of similar length.

    Raises
    ------
    ValueError
        If there are no examples, or a probability is not finite.
    """
    if not examples:
        raise ValueError("there are no examples to predict")
    order = np.argsort([len(example.tokens) for example in examples], kind="stable")
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    outputs = [predict([examples[index] for index in part]) for part in parts]
    inverse = np.argsort(order)
    probabilities_NC = np.concatenate([output.probabilities_NC for output in outputs])[inverse]
    embeddings = [output.embedding_NE for output in outputs if output.embedding_NE is not None]
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("a model returned probabilities that are not finite")
    return ModelOutputs(probabilities_NC, np.concatenate(embeddings)[inverse] if embeddings else None)


def labels(examples: Sequence[Example]) -> Int64:
    """Return the class indices of examples."""
    return np.array([example.label for example in examples], dtype=np.int64)


@dataclass(slots=True)
class ModelPanel:
    """Several models on one dataset, with each prediction computed once."""

    dataset: Sample
    models: Sequence[ScoredModel]
    _predictions: dict[tuple[int, View, bytes], Predictions] = field(default_factory=dict)
    _examples: tuple[tuple[str, View, bytes], tuple[Int64, list[Example]]] | None = None

    def predict(self, rows_N: Int64, view: View, *, embeddings: bool = False) -> list[Predictions]:
        """Return every model's predictions for the objects of ``rows_N`` with a detection in a view."""
        return [self._cached(number, rows_N, view, embeddings) for number in range(len(self.models))]

    def first(self, rows_N: Int64, view: View, *, embeddings: bool = False) -> Predictions:
        """Return the predictions of the first model only."""
        return self._cached(0, rows_N, view, embeddings)

    def _cached(self, number: int, rows_N: Int64, view: View, embeddings: bool) -> Predictions:
        key = (number, view, rows_N.tobytes())
        stored = self._predictions.get(key)
        if stored is None or (embeddings and stored.embedding_NE is None):
            stored = self._predictions[key] = self._predict(self.models[number], rows_N, view, embeddings)
        return stored

    def _predict(self, model: ScoredModel, rows_N: Int64, view: View, embeddings: bool) -> Predictions:
        usable_N, examples = self._view(model.data, rows_N, view)
        if not examples:
            return Predictions(usable_N, usable_N, np.zeros((0, 1)), None)
        outputs = predict_in_order(model.predict, examples)
        embedding_NE = outputs.embedding_NE if embeddings else None
        return Predictions(usable_N, labels(examples), outputs.probabilities_NC, embedding_NE)

    def _view(self, config: DataConfig, rows_N: Int64, view: View) -> tuple[Int64, list[Example]]:
        """Return rows and examples of one view; those of the last view are cached for the next model."""
        key = (config.model_dump_json(), view, rows_N.tobytes())
        if self._examples is None or self._examples[0] != key:
            examples_of_rows = [
                (row, view_examples(self.dataset, rows_N[[index]], config, view)) for index, row in enumerate(rows_N)
            ]
            usable_N = np.array([row for row, examples in examples_of_rows if examples], dtype=np.int64)
            self._examples = key, (usable_N, [example for _, examples in examples_of_rows for example in examples])
        return self._examples[1]
