"""What the service says about light curves and packets: the models below describe it, :class:`ReplyWriter` writes it.

Every reply names the model it comes from; every item has a status of its own. Replies are written straight to bytes:
going through the models would cost several times as much, and tests hold the two to each other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from models.bundle import Bundle, Calibration
from models.lightcurve import BANDS, FluxUnit, Limits
from models.taxonomy import Taxonomy
from service.dataplane import Outcome
from service.http.fields import FieldError


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Provenance(_Reply):
    """Which network answered."""

    name: str
    version: str
    sha256: str = Field(description="of the bundle's manifest, which holds the hash of every other file")
    taxonomy: str = Field(description="name and version of the set of classes")
    calibration: str = Field(description="how the probabilities were calibrated")


class _Classification(_Reply):
    status: Literal["classified"]
    object_id: str
    class_: str = Field(alias="class", description="the most probable class")
    class_id: int = Field(description="its number in the taxonomy")
    confidence: float = Field(description="its probability")
    probabilities: dict[str, float] = Field(description="of every class; they sum to 1")
    hierarchy: dict[str, float] = Field(description="of every group of classes above them")
    points_per_band: dict[str, int] = Field(description="observations that the network saw")
    truncated: bool = Field(description="whether observations were left out to respect the network's limits")
    metadata_missing: int = Field(description="metadata columns without a value")
    embedding: list[float] | None = Field(None, description="only when asked for")


class _Unclassified(_Reply):
    object_id: str
    reason: str = Field(description="machine-readable code")
    detail: str = Field(description="for people")


class CurveResult(_Classification):
    """A light curve that was classified."""


class CurveFailure(_Unclassified):
    """A light curve that breaks a rule (``rejected``) or that got no answer in time or at all (``failed``)."""

    status: Literal["rejected", "failed"]
    errors: list[FieldError] = Field(description="values at fault, with pointers into this light curve")


class _PacketIdentity(_Reply):
    survey: str = Field(description="lsst, elasticc, ztf, or unknown")
    schema_version: str
    alert_id: str


class PacketResult(_PacketIdentity, _Classification):
    """An alert that was classified."""


class PacketFailure(_PacketIdentity, _Unclassified):
    """An alert without an answer: sound but not for us (``abstained``), unreadable (``rejected``) or our ``failed``."""

    status: Literal["abstained", "rejected", "failed"]


class ClassifyReply(_Reply):
    """One result per light curve, in the order they were sent."""

    model: Provenance
    results: list[CurveResult | CurveFailure]


class AlertsReply(_Reply):
    """One result per alert, in the order they were sent."""

    model: Provenance
    results: list[PacketResult | PacketFailure]


class ClassName(_Reply):
    """A class of the taxonomy."""

    name: str
    id: int
    path: list[str] = Field(description="groups it belongs to, from the root down")


class ModelDescription(Provenance):
    """What a network is, what it wants and what it gives."""

    architecture: str
    provider: str
    classes: list[ClassName]
    bands: list[str]
    flux_unit: FluxUnit = Field(description="of the network; requests may use any of the units and are converted")
    limits: Limits
    metadata_columns: list[str]
    embedding_dim: int
    parameters: dict[str, int]
    calibration_details: Calibration
    metrics: dict[str, JsonValue]
    data: dict[str, JsonValue]
    created: str


class ModelsReply(_Reply):
    """Every model that is served."""

    models: list[ModelDescription]


class ReplyWriter:
    """Writes replies in the name of one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self._names, self._ids = manifest.taxonomy.names, manifest.taxonomy.ids
        self._groups, self._membership = _membership(manifest.taxonomy)
        self.provenance = {
            "name": manifest.name,
            "version": manifest.version,
            "sha256": bundle.sha256,
            "taxonomy": f"{manifest.taxonomy.name}/{manifest.taxonomy.version}",
            "calibration": manifest.calibration.method,
        }

    def result(
        self,
        outcome: Outcome,
        identity: Mapping[str, object],
        errors: Sequence[FieldError] | None = None,
        embedding: bool = False,
    ) -> dict[str, Any]:
        """One result.

        Parameters
        ----------
        identity : what names the item: ``object_id`` and, for a packet, where it comes from.
        errors : values at fault in a light curve; None for a packet, whose reply has no such list.
        """
        if outcome.prediction is None:
            failure = {"status": outcome.status, **identity, "reason": outcome.reason, "detail": outcome.detail}
            return failure if errors is None else failure | {"errors": [error.model_dump() for error in errors]}
        # float32 softmax sums to 1 within 1e-7; the doubles of a JSON reply can do better.
        probabilities = outcome.prediction.probabilities.astype(np.float64)
        probabilities /= probabilities.sum()
        top = int(probabilities.argmax())
        values: list[float] = probabilities.tolist()
        result = {
            "status": "classified",
            **identity,
            "class": self._names[top],
            "class_id": self._ids[top],
            "confidence": values[top],
            "probabilities": dict(zip(self._names, values, strict=True)),
            "hierarchy": dict(zip(self._groups, (self._membership @ probabilities).tolist(), strict=True)),
            "points_per_band": dict(zip(BANDS, outcome.points_per_band, strict=True)),
            "truncated": outcome.truncated,
            "metadata_missing": outcome.missing_metadata,
        }
        return result | {"embedding": outcome.prediction.embedding} if embedding else result

    def write(self, results: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode a whole reply."""
        return orjson.dumps({"model": self.provenance, "results": results}, option=orjson.OPT_SERIALIZE_NUMPY)


def _membership(taxonomy: Taxonomy) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names of the groups, and a (groups, classes) matrix that sums classes into them, as ``Taxonomy.rollup`` does."""
    columns = [taxonomy.rollup(row) for row in np.eye(len(taxonomy.classes)).tolist()]
    return tuple(columns[0]), np.array([list(column.values()) for column in columns]).T


def describe(bundle: Bundle, provider: str) -> ModelDescription:
    """Everything a client may want to know about a bundle."""
    manifest = bundle.manifest
    return ModelDescription(
        **ReplyWriter(bundle).provenance,
        architecture=manifest.architecture,
        provider=provider,
        classes=[ClassName(name=leaf.name, id=leaf.id, path=list(leaf.path)) for leaf in manifest.taxonomy.classes],
        bands=list(manifest.bands),
        flux_unit=manifest.flux_unit,
        limits=manifest.limits,
        metadata_columns=list(manifest.metadata_columns),
        embedding_dim=manifest.embedding_dim,
        parameters=manifest.parameters.model_dump(),
        calibration_details=manifest.calibration,
        metrics=manifest.metrics,
        data=manifest.data,
        created=manifest.created,
    )
