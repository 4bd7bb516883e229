"""Descriptions of the served models (``GET /v1/models``)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue

from nightjar_alerts.core.result import ClassifierProvenance
from nightjar_alerts.core.schemas import descriptions
from nightjar_alerts.core.serializer import classifier_provenance
from nightjar_alerts.models.bundle import Bundle, Calibration
from nightjar_alerts.models.follow_up import FollowUp
from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.models.posterior import Domain, Novelty, Posterior, PredictionSets
from nightjar_alerts.service.answers.replies import Reply


class ClassName(Reply):
    """A class of the taxonomy."""

    name: str
    id: int
    path: list[str] = Field(description="groups that the class belongs to, from the root down")


_PROVENANCE = descriptions(ClassifierProvenance)


class ClassifierDescription(Reply):
    """Name and version, inputs and outputs of a classifier."""

    name: str = Field(description=_PROVENANCE["name"])
    version: str = Field(description=_PROVENANCE["version"])
    sha256: str = Field(description=_PROVENANCE["sha256"])
    role: Literal["canary"] | None = Field(None, description=_PROVENANCE["role"])
    taxonomy: str = Field(description=_PROVENANCE["taxonomy"])
    calibration: str = Field(description=_PROVENANCE["calibration"])
    prior: str | None = Field(None, description=_PROVENANCE["prior"])
    coverage_measured_on: str | None = Field(None, description=_PROVENANCE["coverage_measured_on"])
    aliases: list[str] = Field(description="other names of this version")
    architecture: str
    provider: str
    bands: list[str] = Field(description="bands of the model; observations in others are ignored")
    flux_unit: FluxUnit = Field(
        description="older name of `network_flux_unit`; not that of requests",
        json_schema_extra={"deprecated": True},
    )
    network_flux_unit: FluxUnit = Field(description="unit of the network; fluxes in requests are converted")
    default_flux_unit: FluxUnit = Field(description="unit of fluxes in requests that state no `flux_unit`")
    limits: Limits
    metadata_columns: list[str]
    parameters: dict[str, int]
    metrics: dict[str, JsonValue]
    data: dict[str, JsonValue]
    created: str
    task: Literal["classification"]
    classes: list[ClassName]
    embedding_dim: int
    calibration_details: Calibration
    novelty: Novelty | None = Field(description="thresholds of the novelty; null if the model has none")
    prediction_sets: PredictionSets | None = Field(
        description="thresholds of prediction sets; null if the model has none"
    )
    follow_up: dict[str, FollowUp] = Field(
        description="purity and completeness of lists of each class, by name of the class shares; empty if not measured"
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
        network_flux_unit=manifest.flux_unit,
        default_flux_unit="nJy",
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
        follow_up=manifest.follow_up,
        priors=list(Posterior(manifest).names),
        domain=manifest.domain,
    )
