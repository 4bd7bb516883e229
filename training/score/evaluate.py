"""Scores on an untouched split, of what is shipped: the bundle, through onnxruntime, on the views that surveys send.

Notable:

- the first model given is the one reported in full (confusion matrix, reliability); further ones, other seeds of the
  same recipe, give the spread of every score: its sample standard deviation;
- run folders are scored through torch with a temperature fitted on the validation split, as their export would be;
- an object that shows no detection in a view (never bright in g or r, say) would not have been alerted on: it is left
  out of that view, and the number of objects says so;
- in the series over detections and days every object stays in: one with three detections is shown in full at "10".

Run::

    python -m training evaluate build/astro-moe runs/default-1 runs/default-2 --data build/sim.parquet
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.bundle import MANIFEST, load_bundle
from models.lightcurve import Int64, RaggedBatch
from models.runtime import open_session, run
from models.taxonomy import ELASTICC
from training.data.augment import LSST, NO_METADATA, ZTF, View
from training.data.batches import Example, view_examples
from training.data.dataset import Dataset, read_dataset, split_indices
from training.fit.checkpoints import fingerprint, load_network
from training.fit.classify import predict
from training.recipes.schema import DataConfig
from training.score.calibrate import calibrate, softmax
from training.score.metrics import confusion, f1_per_class, reliability, scores

Scores = dict[str, float]
Predict = Callable[[Sequence[Example]], NDArray[np.floating]]

VIEWS: dict[str, View] = {
    "everything": View(),
    "no metadata": LSST,
    "g and r, no metadata": View(bands=("g", "r"), missing=NO_METADATA),
    "as ZTF sends": ZTF,
}
DETECTIONS = (1, 2, 3, 5, 10, 20)
DAYS = (1, 8, 32, 128, 512, 2048)
BATCH = 32


@dataclass(frozen=True, slots=True)
class Model:
    """Something that turns examples into probabilities, and how its examples are to be made."""

    name: str
    seed: int | None
    data: DataConfig
    predict: Predict


def open_model(path: Path, dataset: Dataset) -> Model:
    """Open a bundle or a run folder; ``dataset`` provides the validation split that calibrates a run."""
    return _open_bundle(path) if (path / MANIFEST).exists() else _open_run(path, dataset)


def _open_bundle(path: Path) -> Model:
    bundle = load_bundle(path)
    session, manifest = open_session(bundle.model), bundle.manifest
    recipe_data = DataConfig.model_validate(manifest.recipe["data"])
    data = recipe_data.model_copy(update={"limits": manifest.limits, "flux_unit": manifest.flux_unit})

    def probabilities(examples: Sequence[Example]) -> NDArray[np.floating]:
        padded = RaggedBatch.collate([example.tokens for example in examples]).padded()
        return run(session, padded)["probabilities"]

    return Model(f"{manifest.name} {manifest.version}", manifest.recipe.get("seed"), data, probabilities)


def _open_run(path: Path, dataset: Dataset) -> Model:
    network, config = load_network(path)
    temperature = calibrate(network, dataset, config.recipe).temperature

    def probabilities(examples: Sequence[Example]) -> NDArray[np.floating]:
        return softmax(predict(network, list(examples)), temperature)

    return Model(path.name, config.recipe.seed, config.recipe.data, probabilities)


def predict_in_order(predict_batch: Predict, examples: Sequence[Example]) -> NDArray[np.floating]:
    """Probabilities of all examples, shape (N, C), computed in batches of similar length."""
    order = np.argsort([len(example.tokens) for example in examples], kind="stable")
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    predicted_NC = np.concatenate([predict_batch([examples[index] for index in part]) for part in parts])
    return predicted_NC[np.argsort(order)]


def score_view(model: Model, dataset: Dataset, indices: Int64, view: View) -> Scores:
    """Scores of one model in one view, with the number of objects that show a detection in it."""
    examples = view_examples(dataset, indices, model.data, view)
    probabilities_BC = predict_in_order(model.predict, examples)
    return {"objects": len(examples), **scores(probabilities_BC, labels(examples))}


def labels(examples: Sequence[Example]) -> Int64:
    """Class indices of examples."""
    return np.array([example.label for example in examples], dtype=np.int64)


def spread(values: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """Mean, sample standard deviation (None for one model) and single values of each score over models."""
    return {
        name: {
            "mean": float(np.mean([value[name] for value in values])),
            "spread": float(np.std([value[name] for value in values], ddof=1)) if len(values) > 1 else None,
            "values": [float(value[name]) for value in values],
        }
        for name in values[0]
    }


def evaluate(paths: Sequence[Path], data: Path, split: str = "test", objects: int | None = None) -> dict[str, Any]:
    """Score models on one split of a data file; see the module docstring for what the report holds.

    Parameters
    ----------
    objects : score a fixed random sample of the split of this size.

    Raises
    ------
    ValueError
        For an unknown split, or when no object of it shows a detection.
    """
    dataset = read_dataset(data)
    models = [open_model(path, dataset) for path in paths]
    indices = sample_split(dataset, models[0].data, split, objects)

    def over_models(views: Mapping[str, View]) -> dict[str, Any]:
        return {
            name: spread([score_view(model, dataset, indices, view) for model in models])
            for name, view in views.items()
        }

    return {
        "data": {**fingerprint(data, len(dataset)).model_dump(), "split": split, "split_objects": len(indices)},
        "models": [{"name": model.name, "seed": model.seed} for model in models],
        "views": over_models(VIEWS),
        "detections": over_models({str(n): View(detections=n) for n in DETECTIONS}),
        "detections_no_metadata": over_models({str(n): View(detections=n, missing=NO_METADATA) for n in DETECTIONS}),
        "days": over_models({str(day): View(days_after_trigger=day) for day in DAYS}),
        **_in_full(models[0], dataset, indices),
    }


def sample_split(dataset: Dataset, config: DataConfig, split: str, objects: int | None) -> Int64:
    """Row numbers of a split, or of a sample of it that depends on nothing but its size."""
    parts = split_indices(dataset, config.fractions)
    if split not in parts or not len(parts[split]):
        raise ValueError(f"there is no object in split {split!r}; splits are {', '.join(parts)}")
    if objects is None or objects >= len(parts[split]):
        return parts[split]
    return np.sort(np.random.default_rng(0).choice(parts[split], objects, replace=False))


def _in_full(model: Model, dataset: Dataset, indices: Int64) -> dict[str, Any]:
    """Confusion matrix, F1 per class and reliability table of one model that is shown everything."""
    examples = view_examples(dataset, indices, model.data, View())
    probabilities_BC, label_B = predict_in_order(model.predict, examples), labels(examples)
    counts = confusion(label_B, probabilities_BC.argmax(1), len(ELASTICC.names))
    f1 = f1_per_class(counts)
    table = reliability(probabilities_BC, label_B)
    return {
        "classes": list(ELASTICC.names),
        "confusion": counts.tolist(),
        "f1": {name: None if np.isnan(score) else float(score) for name, score in zip(ELASTICC.names, f1, strict=True)},
        "reliability": [[None if np.isnan(value) else float(value) for value in row] for row in table],
    }
