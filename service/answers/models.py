"""Descriptions of the served models (``GET /v1/models``)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue

from nightjar_alerts.core.serializer import classifier_provenance
from nightjar_alerts.models.bundle import Bundle, Calibration
from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.models.posterior import Domain, Novelty, Posterior, PredictionSets
from nightjar_alerts.service.answers.replies import ClassifierProvenance, Provenance, Reply


class ClassName(Reply):
    """A class of the taxonomy."""

    name: str
    id: int
    path: list[str] = Field(description="groups that the class belongs to, from the root down")


class _Description(Provenance):
    aliases: list[str] = Field(description="other names of this version")
    architecture: str
    provider: str
    bands: list[str] = Field(description="bands of the model; observations in others are ignored")
    flux_unit: FluxUnit = Field(description="unit of the network; fluxes in requests are converted")
    limits: Limits
    metadata_columns: list[str]
    parameters: dict[str, int]
    metrics: dict[str, JsonValue]
    data: dict[str, JsonValue]
    created: str


class ClassifierDescription(_Description, ClassifierProvenance):
    """Name and version, inputs and outputs of a classifier."""

    task: Literal["classification"]
    classes: list[ClassName]
    embedding_dim: int
    calibration_details: Calibration
    novelty: Novelty | None = Field(description="thresholds of the novelty; null if the model has none")
    prediction_sets: PredictionSets | None = Field(
        description="thresholds of prediction sets; null if the model has none"
    )
    priors: list[str] = Field(description="names of the class shares that requests can select")
    domain: Domain | None = Field(description="light curves on which the model was evaluated; null if not stated")


class ModelsReply(Reply):
    """All served models."""

    models: list[ClassifierDescription]


def describe(bundle: Bundle, provider: str, aliases: Sequence[str] = ()) -> ClassifierDescription:
    """Describe a bundle to clients."""
    manifest = bundle.manifest
    return ClassifierDescription(
        task="classification",
        **classifier_provenance(bundle),
        aliases=list(aliases),
        architecture=manifest.architecture,
        provider=provider,
        bands=list(manifest.bands),
        flux_unit=manifest.flux_unit,
        limits=manifest.limits,
        metadata_columns=list(manifest.metadata_columns),
        parameters=manifest.parameters.model_dump(),
        metrics=manifest.metrics,
        data=manifest.data,
        created=manifest.created,
        classes=[ClassName(name=leaf.name, id=leaf.id, path=list(leaf.path)) for leaf in manifest.classes.classes],
        embedding_dim=manifest.embedding_dim,
        calibration_details=manifest.calibration,
        novelty=manifest.novelty,
        prediction_sets=manifest.prediction_sets,
        priors=list(Posterior(manifest).names),
        domain=manifest.domain,
    )
