"""Models and their predictions: each (model, objects, view) is computed once and cached.

Notable:

- a bundle answers through onnxruntime, as it is served; a run folder through torch, calibrated on the validation split,
  as its export would have it;
- examples are made once per view for all models that featurise alike;
- embeddings are kept for the views that need them only; for all views of all models they would be gigabytes.

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
from nightjar_alerts.models.networks.network import Output
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.data.augment import View
from nightjar_alerts.training.data.batches import Example, collate, view_examples
from nightjar_alerts.training.data.dataset import Dataset
from nightjar_alerts.training.fit.checkpoints import load_network
from nightjar_alerts.training.recipes.schema import DataConfig
from nightjar_alerts.training.score.calibrate import calibrate, calibrated
from nightjar_alerts.training.score.metrics import Float

BATCH = 32


class ModelAnswers(NamedTuple):
    """Calibrated probabilities (N, C), and embeddings (N, E) of models that have one."""

    probabilities_NC: Float
    embedding_NE: Float | None = None


Predict = Callable[[Sequence[Example]], ModelAnswers]


@dataclass(frozen=True, slots=True)
class ScoredModel:
    """Something that answers examples, and how its examples are to be made; ``path`` is its bundle or run folder."""

    name: str
    seed: int | None
    data: DataConfig
    predict: Predict
    path: Path | None = None


class Predictions(NamedTuple):
    """One model's answers about the objects that show a detection in a view; ``rows_N`` are their dataset rows."""

    rows_N: Int64
    label_N: Int64
    probabilities_NC: Float
    embedding_NE: Float | None

    @property
    def top_N(self) -> Int64:
        """Most probable class of each object."""
        top_N: Int64 = self.probabilities_NC.argmax(1).astype(np.int64)
        return top_N


def open_model(path: Path, dataset: Dataset) -> ScoredModel:
    """Open a bundle or a run folder; ``dataset`` provides the validation split that calibrates a run.

    Raises
    ------
    ValueError
        For a bundle that does not classify, or one of other classes than the dataset's.
    """
    return _open_bundle(path, dataset) if (path / MANIFEST).exists() else _open_run(path, dataset)


def _open_bundle(path: Path, dataset: Dataset) -> ScoredModel:
    bundle = load_bundle(path)
    manifest = bundle.manifest
    if manifest.classes.names != dataset.classes:
        raise ValueError(f"{path} knows {', '.join(manifest.classes.names)}; the data {', '.join(dataset.classes)}")
    session = open_session(bundle.model)
    recipe_data = DataConfig.model_validate(manifest.recipe["data"])
    data = recipe_data.model_copy(update={"limits": manifest.limits, "flux_unit": manifest.flux_unit})

    def answer(examples: Sequence[Example]) -> ModelAnswers:
        outputs = run(session, RaggedBatch.collate([example.tokens for example in examples]).padded())
        return ModelAnswers(outputs["probabilities"], outputs["embedding"])

    return ScoredModel(f"{manifest.name} {manifest.version}", manifest.recipe.get("seed"), data, answer, path)


def _open_run(path: Path, dataset: Dataset) -> ScoredModel:
    network, config = load_network(path)
    if config.recipe.network.n_classes != len(dataset.classes):
        raise ValueError(f"{path} has {config.recipe.network.n_classes} classes, the data {len(dataset.classes)}")
    calibration = calibrate(network, dataset, config.recipe).calibration

    def answer(examples: Sequence[Example]) -> ModelAnswers:
        output = outputs_of(network, examples)
        logits_BC, embedding_BE = (tensor.float().numpy() for tensor in (output.logits_BC, output.embedding_BE))
        length_B = np.array([len(example.tokens) for example in examples])
        return ModelAnswers(calibrated(logits_BC, length_B, calibration), embedding_BE)

    return ScoredModel(path.name, config.recipe.seed, config.recipe.data, answer, path)


@torch.inference_mode()
def outputs_of(network: nn.Module, examples: Sequence[Example]) -> Output:
    """Return the predictions of a classifier for one batch of examples."""
    output: Output = network(*collate(examples).inputs_of(network))
    return output


def predict_in_order(predict: Predict, examples: Sequence[Example]) -> ModelAnswers:
    """Answers about all examples, in their order, computed in batches of similar length.

    Raises
    ------
    ValueError
        Without examples, or when an answer holds a number that is not finite.
    """
    if not examples:
        raise ValueError("there are no examples to predict")
    order = np.argsort([len(example.tokens) for example in examples], kind="stable")
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    answers = [predict([examples[index] for index in part]) for part in parts]
    back = np.argsort(order)
    probabilities_NC = np.concatenate([answer.probabilities_NC for answer in answers])[back]
    embeddings = [answer.embedding_NE for answer in answers if answer.embedding_NE is not None]
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("a model answered with probabilities that are not finite")
    return ModelAnswers(probabilities_NC, np.concatenate(embeddings)[back] if embeddings else None)


def labels(examples: Sequence[Example]) -> Int64:
    """Class indices of examples."""
    return np.array([example.label for example in examples], dtype=np.int64)


@dataclass(slots=True)
class ModelPanel:
    """Several models on one dataset, with each prediction computed once."""

    dataset: Dataset
    models: Sequence[ScoredModel]
    _answers: dict[tuple[int, View, bytes], Predictions] = field(default_factory=dict)
    _examples: tuple[tuple[str, View, bytes], tuple[Int64, list[Example]]] | None = None

    def ask(self, rows_N: Int64, view: View, *, embeddings: bool = False) -> list[Predictions]:
        """Every model's predictions about the objects of ``rows_N`` that show a detection in a view."""
        return [self._ask(number, rows_N, view, embeddings) for number in range(len(self.models))]

    def first(self, rows_N: Int64, view: View, *, embeddings: bool = False) -> Predictions:
        """Predictions of the first model alone."""
        return self._ask(0, rows_N, view, embeddings)

    def _ask(self, number: int, rows_N: Int64, view: View, embeddings: bool) -> Predictions:
        key = (number, view, rows_N.tobytes())
        stored = self._answers.get(key)
        if stored is None or (embeddings and stored.embedding_NE is None):
            stored = self._answers[key] = self._predict(self.models[number], rows_N, view, embeddings)
        return stored

    def _predict(self, model: ScoredModel, rows_N: Int64, view: View, embeddings: bool) -> Predictions:
        usable_N, examples = self._view(model.data, rows_N, view)
        if not examples:
            return Predictions(usable_N, usable_N, np.zeros((0, 1)), None)
        answers = predict_in_order(model.predict, examples)
        embedding_NE = answers.embedding_NE if embeddings else None
        return Predictions(usable_N, labels(examples), answers.probabilities_NC, embedding_NE)

    def _view(self, config: DataConfig, rows_N: Int64, view: View) -> tuple[Int64, list[Example]]:
        """Examples of one view, and their rows; those of the last view are cached for the next model."""
        key = (config.model_dump_json(), view, rows_N.tobytes())
        if self._examples is None or self._examples[0] != key:
            examples_of_rows = [
                (row, view_examples(self.dataset, rows_N[[place]], config, view)) for place, row in enumerate(rows_N)
            ]
            usable_N = np.array([row for row, examples in examples_of_rows if examples], dtype=np.int64)
            self._examples = key, (usable_N, [example for _, examples in examples_of_rows for example in examples])
        return self._examples[1]
