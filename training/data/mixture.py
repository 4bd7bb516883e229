"""Mixtures of data files as one training set: simulated, real and re-observed light curves, each with a share.

A mixture is a JSON file::

    {"ingredients": [{"file": "sim.parquet", "share": 0.4}, {"file": "surveys.npz", "share": 0.6, "one_class": 0.35}],
     "classes": {"Ia": 3.0, "II": 2.0}}

Within an ingredient the weight of a class is that in ``classes`` (default 1) times the square root of its number of
objects. Within a class the weight of a survey is the square root of its number of objects, times ``one_class`` for a
survey with a single class, which the network could recognise instead of the class.

Notable: real and re-observed files have their own parts (train, valid, test); simulated ones are split by
:func:`training.data.dataset.split_indices`. Objects without a reliable label are left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightjar_alerts.models.lightcurve import Float64, Int64
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC, ZTF_SUPERNOVAE, Taxonomy
from nightjar_alerts.training.data.dataset import SPLITS, read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample, read_sample, sample_of
from nightjar_alerts.training.data.surveys import as_observed
from nightjar_alerts.training.importers.surveys import ZTF_CLASSES

_COLUMN: Final = {name: index for index, name in enumerate(METADATA_COLUMNS)}
_TRAINED_ON: Final = ("mjd", "flux", "flux_err", "band", "detected", "metadata", "label", "source", "object_id",
                      "group", "part")  # fmt: skip
"""Columns of a mixture. All others, which training does not need, would take half as much memory again."""
EXCLUDED_QUALITIES: Final = ("other", "unlabelled", "conflicting")
ZTF_SOURCE: Final = "ztf_sn"
VIEW: Final = "view"  # quality of re-observed objects, whose raw label is the survey of the original object
MIN_POINTS: Final = 2


class Ingredient(BaseModel):
    """One file of a mixture: ``.parquet`` of the simulator, or ``.npz`` of real light curves or of views of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path
    share: float = Field(gt=0, description="share of the training draws; shares are normalised to a sum of 1")
    one_class: float = Field(default=1.0, gt=0, le=1, description="weight of surveys with a single class")
    without: tuple[str, ...] = Field(default=(), description="surveys whose objects are left out, re-observed ones too")
    not_through: tuple[str, ...] = Field(default=(), description="surveys whose cadences are not used for views")


class Mixture(BaseModel):
    """Content of a mixture file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ingredients: tuple[Ingredient, ...] = Field(min_length=1)
    classes: dict[str, float] = Field(default={}, description="weight of each class; default: 1")
    taxonomy: Literal["elasticc", "ztf"] = Field(
        default="elasticc", description="ztf: the six types of supernovae, for files of real light curves only"
    )


def is_mixture(path: Path) -> bool:
    """Return whether a data file is a mixture of others."""
    return path.suffix == ".json"


def read_training_data(path: Path) -> Sample:
    """Read a data file or all files of a mixture."""
    return read_mixture(path) if is_mixture(path) else read_dataset(path)


def read_shares(path: Path) -> dict[str, float]:
    """Return the share of each file of a mixture."""
    ingredients = Mixture.model_validate_json(path.read_bytes()).ingredients
    total = sum(item.share for item in ingredients)
    return {item.file.name: item.share / total for item in ingredients}


def read_mixture(path: Path) -> Sample:
    """Read all files of a mixture into one dataset with sampling weights.

    Raises
    ------
    ValueError
        If an ingredient has no labelled object. An ingredient without objects of a part has no share in that part.
    """
    mixture = Mixture.model_validate_json(path.read_bytes())
    parts = [_ingredient(path.parent / item.file, item, mixture) for item in mixture.ingredients]
    total = sum(item.share for item in mixture.ingredients)
    weights = [
        _scaled(part, item.share / total, item.file) for part, item in zip(parts, mixture.ingredients, strict=True)
    ]
    lengths = np.concatenate([part.lengths for part in parts])
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _TRAINED_ON}
    return sample_of(
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        **columns,
        classes=parts[0].classes,
        weight=np.concatenate(weights),
    )


def _scaled(part: Sample, share: float, file: Path) -> Float64:
    """Return weights that sum to the share in every part that has objects."""
    assert part.weight is not None
    weight = part.weight.copy()
    if not weight.any():
        raise ValueError(f"{file} holds no labelled object")
    for number in range(len(SPLITS)):
        in_part = part.part == number
        total = weight[in_part].sum()
        weight[in_part] *= share / total if total else 0.0
    return weight


def _ingredient(path: Path, item: Ingredient, mixture: Mixture) -> Sample:
    taxonomy = ZTF_SUPERNOVAE if mixture.taxonomy == "ztf" else ELASTICC
    if path.suffix == ".parquet":
        dataset = read_dataset(path)
        part = np.zeros(len(dataset), dtype=np.int8)
        for number, rows in enumerate(split_indices(dataset).values()):
            part[rows] = number
        dataset = replace(dataset, part=part)
    else:
        sample = read_sample(path)
        sample = sample if taxonomy is ELASTICC else _types_of_ztf(sample)
        dataset = with_all_metadata(_usable(sample, item.without, item.not_through))
    weight = weights(dataset.label, dataset.source, dataset.part, mixture.classes, item.one_class, taxonomy)
    return replace(dataset, weight=weight, classes=taxonomy.names)


def _types_of_ztf(sample: Sample) -> Sample:
    """Label supernovae of ZTF by their six types, and remove all other objects."""
    types = {raw: ZTF_SUPERNOVAE.names.index(name) for raw, name in ZTF_CLASSES.items()}
    ztf = sample.take(sample.source == ZTF_SOURCE)
    return replace(ztf, label=np.array([types.get(str(raw), -1) for raw in ztf.raw_label], dtype=np.int64))


def _usable(sample: Sample, without: tuple[str, ...], not_through: tuple[str, ...]) -> Sample:
    is_view = sample.quality == VIEW
    origin = np.where(is_view, sample.raw_label, sample.source)
    is_usable = (sample.label >= 0) & ~np.isin(sample.quality, EXCLUDED_QUALITIES) & ~np.isin(origin, without)
    is_usable &= ~(is_view & np.isin(sample.source, not_through))
    sent = as_observed(sample.take(is_usable))
    return sent.take((sent.lengths >= MIN_POINTS) & (sent.count(sent.detected) > 0))


def with_all_metadata(sample: Sample) -> Sample:
    """Return objects of surveys with all of their metadata in ``metadata``, and ids that name the survey."""
    metadata = np.full_like(sample.metadata, np.nan)
    for index in range(len(sample)):
        for name, value in sample.metadata_of(index, "everything").items():
            metadata[index, _COLUMN[name]] = value
    names = [f"{source}:{name}" for source, name in zip(sample.source, sample.object_id, strict=True)]
    return replace(sample, metadata=metadata, object_id=np.array(names, dtype=np.str_))


def weights(
    label_N: Int64,
    source_N: NDArray[np.str_],
    part_N: NDArray[np.int8],
    classes: Mapping[str, float],
    one_class: float,
    taxonomy: Taxonomy = ELASTICC,
) -> Float64:
    """Return the sampling weights of objects (N,) by the rules of the module docstring, for each part separately."""
    weight_N = np.zeros(len(label_N))
    factor_C = np.array([classes.get(name, 1.0) for name in taxonomy.names])
    for part in np.unique(part_N):
        rows = np.flatnonzero(part_N == part)
        surveys, source_M = np.unique(source_N[rows], return_inverse=True)
        count_SC = np.zeros((len(surveys), len(factor_C)))
        np.add.at(count_SC, (source_M, label_N[rows]), 1)
        share_SC = np.sqrt(count_SC)
        share_SC[(count_SC > 0).sum(1) == 1] *= one_class
        total_C = share_SC.sum(0)
        weight_C = factor_C * np.sqrt(total_C)
        weight_SC = share_SC * np.divide(weight_C, total_C, out=np.zeros_like(weight_C), where=total_C > 0)
        weight_N[rows] = (weight_SC / np.maximum(count_SC, 1))[source_M, label_N[rows]]
    return weight_N
