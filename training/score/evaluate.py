"""Scores of a bundle, with onnxruntime, on a held-out split in the views of surveys.

Notable:

- the first model is reported in full (confusion matrix, reliability, embedding); further models, other seeds of the
  same recipe, are used for the spread of every score, its sample standard deviation;
- an object without a detection in a view would have no alert, so it is left out of that view, and the number of objects
  is reported;
- the series over detections and days have all objects: one with three detections is complete at "10";
- objects of classes outside the training (``left_out``) are used for novelty only.

Run::

    nightjar-train evaluate build/astro-moe runs/default-1 runs/default-2 --data build/sim.parquet \\
        --report build/report.json --html build/report.html
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.taxonomy import ELASTICC, Taxonomy, taxonomy_of
from nightjar_alerts.training.confidence.novelty import REFERENCE_PER_CLASS
from nightjar_alerts.training.data.augment import LSST, NO_METADATA, ZTF, View
from nightjar_alerts.training.data.dataset import read_dataset, require_labels, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.checkpoints import fingerprint
from nightjar_alerts.training.metrics import all_scores, confusion, f1_per_class, levels, reliability
from nightjar_alerts.training.recipes.schema import DataConfig
from nightjar_alerts.training.score import sections
from nightjar_alerts.training.score.predictions import ModelPanel, open_model

DETECTIONS = (1, 2, 3, 5, 10, 20)
DAYS = tuple(2**power for power in range(12))
VIEWS: dict[str, View] = {
    "everything": View(),
    "no metadata": LSST,
    "g and r, no metadata": View(bands=("g", "r"), missing=NO_METADATA),
    "as ZTF sends": ZTF,
}
AS_OBSERVED = ("everything", "no metadata")
SERIES: dict[str, dict[str, View]] = {
    "views": VIEWS,
    "detections": {str(n): View(detections=n) for n in DETECTIONS},
    "detections_no_metadata": {str(n): View(detections=n, missing=NO_METADATA) for n in DETECTIONS},
    "days": {str(day): View(days_after_trigger=day) for day in DAYS},
    "days_no_metadata": {str(day): View(days_after_trigger=day, missing=NO_METADATA) for day in DAYS},
}


def evaluate(
    paths: Sequence[Path],
    data: Path,
    split: str = "test",
    objects: int | None = None,
    *,
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Score models on one split of a data file and return the report.

    Parameters
    ----------
    objects : score a fixed random sample of the split of this size.
    left_out : names of classes that the models were trained without.

    Raises
    ------
    ValueError
        If the split or a class is unknown, or no object of the split has a detection.
    """
    dataset = read_dataset(data)
    require_labels(dataset, data)
    panel = ModelPanel(dataset, [open_model(path, dataset) for path in paths])
    config, unseen = panel.models[0].data, _classes(dataset, left_out)
    rows, new_rows = _split_left_out(dataset, sample_split(dataset, config, split, objects), unseen)
    if not len(panel.predict(rows, View(), embeddings=True)[0].rows_N):
        raise ValueError(f"no object of a known class in split {split!r} has a detection")
    source = {**fingerprint(data, len(dataset)).model_dump(), "split": split, "split_objects": len(rows)}
    models = [{"name": model.name, "seed": model.seed} for model in panel.models]
    report: dict[str, Any] = {"data": source, "models": models}
    report |= {name: series_scores(panel, rows, views) for name, views in series_of(dataset).items()}
    report |= _detailed_scores(panel, rows) | _more_sections(panel, rows)
    report["conformal"] = None if split == "validation" else _conformal(panel, rows, unseen, objects)
    report["left_out"] = list(left_out)
    train = split_indices(dataset, config.fractions, config.turn)["train"]
    reference = _reference(dataset, _split_left_out(dataset, train, unseen)[0])
    report["novelty"] = sections.novelty_section(panel, rows, new_rows, reference)
    return report


def series_of(dataset: Sample) -> dict[str, dict[str, View]]:
    """Return the views in which objects are scored; views of other surveys only for the ELAsTiCC taxonomy."""
    if dataset.classes == ELASTICC.names:
        return SERIES
    return {**SERIES, "views": {name: VIEWS[name] for name in AS_OBSERVED}}


def series_scores(panel: ModelPanel, rows: Int64, views: Mapping[str, View]) -> dict[str, Any]:
    """Return mean and spread over models of every score in every view, and the number of objects with a detection."""
    taxonomy = taxonomy_of(panel.dataset.classes)
    return {
        name: sections.spread(
            [
                {
                    "objects": float(len(predictions.rows_N)),
                    **all_scores(predictions.probabilities_NC, predictions.label_N, taxonomy),
                }
                for predictions in panel.predict(rows, view)
            ]
        )
        for name, view in tqdm(views.items(), desc="views", leave=False, disable=None)  # silent without a terminal
    }


def sample_split(dataset: Sample, config: DataConfig, split: str, objects: int | None) -> Int64:
    """Return the row numbers of a split, or of a fixed sample of it."""
    parts = split_indices(dataset, config.fractions, config.turn)
    if split not in parts or not len(parts[split]):
        raise ValueError(f"there is no object in split {split!r}; splits are {', '.join(parts)}")
    if objects is None or objects >= len(parts[split]):
        return parts[split]
    return np.sort(np.random.default_rng(0).choice(parts[split], objects, replace=False))


def _classes(dataset: Sample, names: Sequence[str]) -> Int64:
    if unknown := [name for name in names if name not in dataset.classes]:
        raise ValueError(f"no class is called {', '.join(unknown)}; classes are {', '.join(dataset.classes)}")
    return np.array([dataset.classes.index(name) for name in names], dtype=np.int64)


def _split_left_out(dataset: Sample, rows: Int64, unseen: Int64) -> tuple[Int64, Int64]:
    """Return the rows of known classes, and those of left-out classes."""
    new = np.isin(dataset.label[rows], unseen)
    return rows[~new], rows[new]


def _reference(dataset: Sample, rows: Int64) -> Int64:
    """Return a fixed sample of training objects, at most `REFERENCE_PER_CLASS` of every class."""
    rng = np.random.default_rng(0)
    classes = [rows[dataset.label[rows] == label] for label in np.unique(dataset.label[rows])]
    return np.sort(np.concatenate([rng.permutation(part)[:REFERENCE_PER_CLASS] for part in classes] or [rows]))


def _detailed_scores(panel: ModelPanel, rows: Int64) -> dict[str, Any]:
    """Return confusion matrix, F1 per class and reliability table of the first model on complete light curves."""
    taxonomy, predictions = taxonomy_of(panel.dataset.classes), panel.first(rows, View())
    counts = confusion(predictions.label_N, predictions.top_N, len(taxonomy.names))
    f1 = f1_per_class(counts)
    return {
        **_classes_of(taxonomy),
        "confusion": counts.tolist(),
        "f1": {name: sections.number(score) for name, score in zip(taxonomy.names, f1, strict=True)},
        "reliability": sections.numbers(reliability(predictions.probabilities_NC, predictions.label_N)),
    }


def _classes_of(taxonomy: Taxonomy) -> dict[str, Any]:
    """Return the class names, the family of each, and the groups of every higher level."""
    return {
        "classes": list(taxonomy.names),
        "families": [(*leaf.path, leaf.name)[-2:][0] for leaf in taxonomy.classes],
        "levels": {level.key: list(level.groups) for level in levels(taxonomy)},
    }


def _more_sections(panel: ModelPanel, rows: Int64) -> dict[str, Any]:
    """Return the sections that need only the scored objects."""
    classes = len(panel.dataset.classes)
    growing = {name: SERIES[name] for name in ("days", "detections")}
    return {
        "f1_growing": {name: sections.class_f1_section(panel, rows, views) for name, views in growing.items()},
        "confusion_runs": sections.confusion_section(panel, rows, classes),
        "reliability_early": sections.reliability_section(panel, rows),
        "abstention": sections.abstention_section(panel, rows),
        "stability": {name: sections.stability_section(panel, rows, views) for name, views in growing.items()},
        "experts": sections.experts_section(panel, rows, classes),
        "embedding": sections.embedding_section(panel, rows),
    }


def _conformal(panel: ModelPanel, rows: Int64, unseen: Int64, objects: int | None) -> dict[str, Any] | None:
    try:
        validation = sample_split(panel.dataset, panel.models[0].data, "validation", objects)
    except ValueError:
        return None
    of_known = _split_left_out(panel.dataset, validation, unseen)[0]
    return sections.conformal_section(panel, rows, of_known, SERIES["detections"])
