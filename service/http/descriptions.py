"""What the service says about its models: ``GET /v1/models``."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, JsonValue

from models.bundle import Bundle
from models.confidence import Calibration, Domain, Novelty, PredictionSets
from models.lightcurve import Limits
from models.posterior import Posterior
from models.units import FluxUnit
from service.answers.replies import ClassifierProvenance, Provenance, Reply
from service.answers.writers import classifier_provenance, provenance


class ClassName(Reply):
    """A class of the taxonomy."""

    name: str
    id: int
    path: list[str] = Field(description="groups it belongs to, from the root down")


class _Description(Provenance):
    aliases: list[str] = Field(description="other names that lead to this version")
    architecture: str
    provider: str
    bands: list[str] = Field(description="that the network knows; observations in others are left out")
    flux_unit: FluxUnit = Field(description="of the network; requests may use any of the units and are converted")
    limits: Limits
    metadata_columns: list[str]
    parameters: dict[str, int]
    metrics: dict[str, JsonValue]
    data: dict[str, JsonValue]
    created: str


class ClassifierDescription(_Description, ClassifierProvenance):
    """What a classifier is, what it wants and what it gives."""

    task: Literal["classification"]
    classes: list[ClassName]
    embedding_dim: int
    calibration_details: Calibration
    novelty: Novelty | None = Field(description="how to read the novelty of a reply; null where it has none")
    prediction_sets: PredictionSets | None = Field(description="thresholds of the sets; null where there are none")
    priors: list[str] = Field(description="names of class shares that requests may ask for")
    domain: Domain | None = Field(description="light curves that it was measured on; null where that is not stated")


class ForecasterDescription(_Description):
    """What a forecaster is and what it wants; it gives a flux and its error wherever it is asked in ``bands``."""

    task: Literal["forecast"]


class ModelsReply(Reply):
    """Every model that is served."""

    models: list[ClassifierDescription | ForecasterDescription]


def describe(
    bundle: Bundle, provider: str, aliases: Sequence[str] = ()
) -> ClassifierDescription | ForecasterDescription:
    """Everything a client may want to know about a bundle."""
    manifest, shared = bundle.manifest, _shared(bundle, provider) | {"aliases": list(aliases)}
    if manifest.taxonomy is None:
        return ForecasterDescription(task="forecast", **provenance(bundle), **shared)
    return ClassifierDescription(
        task="classification",
        **classifier_provenance(bundle),
        **shared,
        classes=[ClassName(name=leaf.name, id=leaf.id, path=list(leaf.path)) for leaf in manifest.taxonomy.classes],
        embedding_dim=manifest.embedding_dim,
        calibration_details=manifest.calibration,
        novelty=manifest.novelty,
        prediction_sets=manifest.prediction_sets,
        priors=list(Posterior(manifest).names),
        domain=manifest.domain,
    )


def _shared(bundle: Bundle, provider: str) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "architecture": manifest.architecture,
        "provider": provider,
        "bands": list(manifest.bands),
        "flux_unit": manifest.flux_unit,
        "limits": manifest.limits,
        "metadata_columns": list(manifest.metadata_columns),
        "parameters": manifest.parameters.model_dump(),
        "metrics": manifest.metrics,
        "data": manifest.data,
        "created": manifest.created,
    }
