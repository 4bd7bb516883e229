"""The manifest of a bundle, complete before it is written: network, fits, class shares and provenance."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nightjar_alerts.models.bundle import AssumedPrior, Calibration, InputStatistics, Manifest, Parameters, TensorSpec
from nightjar_alerts.models.metadata import METADATA_COLUMNS, Context
from nightjar_alerts.models.networks.zoo import count_parameters
from nightjar_alerts.models.posterior import Domain, PredictionSets
from nightjar_alerts.models.taxonomy import ELASTICC, Taxonomy
from nightjar_alerts.training.confidence.fit import MEASURED_ON, Confidence
from nightjar_alerts.training.confidence.novelty import NoveltyFit
from nightjar_alerts.training.data.dataset import read_notes, split_indices
from nightjar_alerts.training.data.drawn import classes_of, read_drawn
from nightjar_alerts.training.data.mixture import is_mixture, read_shares
from nightjar_alerts.training.data.sample import UNLABELLED, Sample
from nightjar_alerts.training.data.survey_readers import BAND_SUBSTITUTES
from nightjar_alerts.training.export.graph import OPSET
from nightjar_alerts.training.export.served import AXES, LOADS, Ensembled, ServedNetwork
from nightjar_alerts.training.fit.checkpoints import RunConfig

DTYPES: Final = {"band": "int64", "mask": "bool"}
MIXTURE: Final = "nightjar_alerts.training.data.mixture"
SMALLEST_SHARE: Final = 1e-4
FAINTEST_NJY, BRIGHTEST_NJY = 100.0, 5e7  # 26.4 and 12.2 mag


@dataclass(frozen=True, slots=True)
class Release:
    """Contents of a bundle's manifest besides the network.

    Attributes
    ----------
    shares : class shares that the probabilities assume; None if they are not stated.
    priors : prediction sets for other class shares, by name.
    domain : light curves that the model is for; None: by the taxonomy if ``shares`` are stated, see `_shares`.
    band_groups : filters that stand for bands, if the domain is given.
    """

    name: str
    version: str
    calibration: Calibration
    data: dict[str, Any]
    metrics: dict[str, Any]
    taxonomy: Taxonomy = ELASTICC
    novelty: NoveltyFit | None = None
    prediction_sets: PredictionSets | None = None
    ensemble: Ensembled | None = None
    input_statistics: InputStatistics | None = None
    shares: dict[str, float] | None = None
    priors: Mapping[str, Any] = field(default_factory=dict)
    domain: Domain | None = None
    band_groups: Mapping[str, str] = field(default_factory=dict)


def release_of(
    confidence: Confidence,
    ensemble: Ensembled | None,
    taxonomy: Taxonomy,
    *,
    name: str,
    version: str,
    data: dict[str, Any],
    metrics: dict[str, Any],
) -> Release:
    """Return the contents of a manifest for the fits of a network."""
    return Release(
        name=name,
        version=version,
        calibration=confidence.calibration,
        data=data,
        metrics=metrics | confidence.metrics,
        taxonomy=taxonomy,
        novelty=confidence.novelty,
        prediction_sets=confidence.prediction_sets,
        ensemble=ensemble,
        input_statistics=confidence.inputs,
        shares=confidence.shares,
        priors=confidence.priors,
    )


def describe(served: ServedNetwork, example: dict[str, Tensor], config: RunConfig, release: Release) -> Manifest:
    """Return the manifest of a network, without the hashes of files.

    Parameters
    ----------
    example : outputs of the served network, for their shapes.
    """
    names, recipe = served.input_names, config.recipe.model_dump(mode="json")
    counts = count_parameters(served.network)
    contents: dict[str, Any] = {
        "name": release.name,
        "version": release.version,
        "architecture": config.recipe.network.architecture,
        "taxonomy": release.taxonomy,
        "bands": config.recipe.data.bands,
        "flux_unit": config.recipe.data.flux_unit,
        "limits": config.recipe.data.limits,
        "metadata_columns": METADATA_COLUMNS if "metadata" in names else (),
        "inputs": tuple(_input_spec(name) for name in names),
        "outputs": tuple(output_spec(name, value.numpy()) for name, value in example.items()),
        "embedding_dim": example["embedding"].shape[1],
        "parameters": Parameters(total=counts.total, active=counts.active),
        "ensemble": None if release.ensemble is None else release.ensemble.described,
        "calibration": release.calibration,
        "novelty": None if release.novelty is None else release.novelty.described,
        "prediction_sets": release.prediction_sets,
        "recipe": recipe,
        "data": release.data,
        "input_statistics": release.input_statistics,
        "metrics": release.metrics,
        "domain": release.domain,
        "opset": OPSET,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {},
    }
    if release.shares is not None:
        recipe["data"].pop("fractions", None)  # parts came with the data
        contents |= _shares(release.shares, release, config.recipe.data.bands, "metadata" in names)
    return Manifest(**contents)


def _shares(shares: dict[str, float], release: Release, bands: Sequence[str], has_metadata: bool) -> dict[str, Any]:
    """Return what a manifest of the second format adds: class shares, and what follows from many surveys."""
    of_surveys = release.taxonomy.names == ELASTICC.names  # others have no domain, so they are never substitutes
    domain = Domain(
        bands=tuple(bands),
        fewest_bands=1,
        fewest_points=1,
        faintest_njy=FAINTEST_NJY,
        brightest_njy=BRIGHTEST_NJY,
        surveys=(),
        measured_on=MEASURED_ON,
    )
    return {
        "format_version": 2,
        "band_groups": dict(release.band_groups) if release.domain else BAND_SUBSTITUTES if of_surveys else {},
        "prior": AssumedPrior(
            name="training",
            shares={name: max(share, SMALLEST_SHARE) for name, share in shares.items()},
            source="class shares of the light curves that heads, calibration and sets were fitted to",
        ),
        "priors": dict(release.priors),
        "domain": release.domain or (domain if of_surveys else None),
        "context": Context(learned=("redshift",) if has_metadata else ()),
    }


def _input_spec(name: str) -> TensorSpec:
    shape = ("batch", len(METADATA_COLUMNS)) if name == "metadata" else AXES[name]
    return TensorSpec(name=name, dtype=DTYPES.get(name, "float32"), shape=shape)


def output_spec(name: str, value: NDArray[Any]) -> TensorSpec:
    """Return the manifest entry of an output. The first axis is the batch, except for expert loads."""
    shape: tuple[int | str, ...] = ("batch", *value.shape[1:])
    if name in LOADS:
        shape = tuple(value.shape)
    return TensorSpec(name=name, dtype="int64" if name in LOADS else "float32", shape=shape)


def provenance(dataset: Sample, config: RunConfig) -> dict[str, Any]:
    """Return the training data of the network for the manifest."""
    parts = split_indices(dataset, config.recipe.data.fractions, config.recipe.data.turn)
    labelled = dataset.label[dataset.label != UNLABELLED]
    counts = np.bincount(labelled, minlength=len(dataset.classes))
    return {
        **config.data.model_dump(),
        # without the path, which only matters on the training machine
        "pretrained": None if config.pretrained is None else Path(config.pretrained).name,
        "pretrained_sha256": config.pretrained_sha256,
        "splits": {part: len(indices) for part, indices in parts.items()},
        "classes": dict(zip(dataset.classes, counts.tolist(), strict=True)),
    }


def origin_of(data: Path) -> dict[str, Any]:
    """Return the origin of a data file: a mixture, or by its notes an import or a simulation."""
    if is_mixture(data):
        return {"source": MIXTURE, "mixture": read_shares(data)}
    notes = read_notes(data)
    if "import" in notes:
        record = json.loads(notes["import"])
        entries = {name: record[name] for name in ("format", "licence", "rules", "report")}
        return {"source": record["survey"], "import": entries}
    record = json.loads(notes.get("simulation", "{}"))
    names = {"version": "simulator_version", "seed": "simulator_seed", "options": "simulator_options"}
    return {"source": "nightjar_alerts.training.simulate"} | {
        name: record[key] for key, name in names.items() if key in record
    }


def drawn_provenance(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the number of training light curves of each class in folders of drawn light curves."""
    classes = classes_of(folders[0])
    label_N = np.concatenate([read_drawn(folder / "train.npz").label for folder in folders])
    count_C = np.bincount(label_N, minlength=len(classes))
    return {"source": MIXTURE, "classes": dict(zip(classes, count_C.tolist(), strict=True))}
