"""Items to classify, and their outcomes.

A light curve, an alert packet, or the error of either is an item, and each item gets exactly one outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from nightjar_alerts.alerts.packet import Packet, PacketError
from nightjar_alerts.core.adapter import ModelInput, Row
from nightjar_alerts.core.errors import INTERNAL_ERROR, FieldError, InvalidLightCurve
from nightjar_alerts.core.failures import RunError
from nightjar_alerts.core.result import PhotometryWarning, Status
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError


@dataclass(frozen=True, slots=True)
class Skipped:
    """An item that is not classified: ``abstained`` (valid, but not classifiable) or ``rejected`` (unreadable).

    ``curve`` is its light curve if it lies outside the domain of the model.
    """

    status: Literal["abstained", "rejected"]
    reason: str
    detail: str = ""
    curve: LightCurve | None = field(default=None, compare=False, repr=False)


Item = LightCurve | LightCurveError | Skipped

OUTSIDE_DOMAIN: Final = "outside_domain"
"""Reason of a light curve that :func:`routing.route` finds outside every domain."""


Read = LightCurve | InvalidLightCurve | Packet | PacketError
"""A light curve or its errors, an alert or its error."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Outputs of the network for one light curve, with timings.

    Attributes
    ----------
    outputs : the row of :meth:`core.adapter.Adapter.split`.
    batch_size : light curves in the run; 0 for a cached result.
    queue_seconds, assemble_seconds, run_seconds : time in the queue, of padding the batch, and of running it; measured
        by the engine of the service only.
    run_started : start of the run, ``time.monotonic()`` seconds.
    run_span : tracing span of the batch, None where it is not traced.
    """

    outputs: Row
    batch_size: int
    queue_seconds: float = 0.0
    assemble_seconds: float = 0.0
    run_seconds: float = 0.0
    run_started: float = 0.0
    run_span: object = None


RunResult = Prediction | RunError


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Result of one item: classified, abstained, rejected or failed.

    Attributes
    ----------
    reason, detail : machine-readable code, and its description; empty if ``classified``.
    pointer : JSON pointer to the invalid value of a rejected light curve.
    prediction : None unless ``classified``.
    truncated : True if points were left out to fit the limits of the network.
    points_per_band : points used, in the order of the network's bands.
    missing_metadata : metadata columns of the network without a value.
    detections : points that are marked as detected.
    other_filters : points left out because of their filter, by filter (:class:`models.lightcurve.Tokens`).
    duplicates : points left out because a more precise one has the same time and band.
    dropped_points : points of a packet without a usable value, by reason.
    metadata : metadata of the light curve.
    featurise_seconds : duration of featurising.
    subtype : outcome of the supernova type model; None unless the light curve may be a supernova.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    pointer: str = ""
    prediction: Prediction | None = None
    truncated: bool = False
    points_per_band: tuple[int, ...] = ()
    missing_metadata: int = 0
    detections: int = 0
    other_filters: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    dropped_points: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, float] = field(default_factory=dict)
    featurise_seconds: float = 0.0
    subtype: "Outcome | None" = None


def outcome_of(
    model_input: ModelInput, curve: LightCurve, result: RunResult, featurise_seconds: float = 0.0
) -> Outcome:
    """Return the outcome of a light curve from the result of its run."""
    tokens, prediction = model_input.tokens, result if isinstance(result, Prediction) else None
    return Outcome(
        status="failed" if prediction is None else "classified",
        reason="" if isinstance(result, Prediction) else result.reason,
        detail="" if isinstance(result, Prediction) else str(result),
        prediction=prediction,
        truncated=tokens.truncated,
        points_per_band=tokens.points_per_band,
        missing_metadata=int(np.count_nonzero(np.isnan(tokens.metadata))),
        detections=int(np.count_nonzero(tokens.detected)),
        other_filters=tokens.other_filters,
        duplicates=curve.duplicates,
        dropped_points=curve.dropped,
        metadata=curve.metadata,
        featurise_seconds=featurise_seconds,
    )


def skipped_outcome(item: LightCurveError | Skipped) -> Outcome:
    """Return the outcome of an item that is not classified."""
    if isinstance(item, Skipped):
        return Outcome(item.status, reason=item.reason, detail=item.detail)
    status: Status = "failed" if item.reason == INTERNAL_ERROR else "rejected"
    return Outcome(status, reason=item.reason, detail=str(item), pointer=item.pointer)


def item_of(read: Read) -> tuple[Item, str]:
    """Return the item for a model, or why it is skipped, and the survey for routing."""
    if isinstance(read, PacketError):
        return Skipped("rejected", read.reason, read.detail), read.survey or "unknown"
    if isinstance(read, Packet):
        return read.curve or Skipped("abstained", read.reason or "", read.detail), read.survey or "unknown"
    return read, ""


def curve_of(read: Read) -> LightCurve | None:
    """Return the light curve of an input, None if there is none."""
    return read.curve if isinstance(read, Packet) else read if isinstance(read, LightCurve) else None


def identity_of(read: Read) -> dict[str, Any]:
    """Return the fields of a result that identify its light curve or alert, as in the service's responses."""
    if isinstance(read, PacketError):
        return {"survey": read.survey or "unknown", "schema_version": "unknown", "alert_id": "", "object_id": ""}
    if isinstance(read, Packet):
        return dict(packet_identity(read))
    return curve_identity(read)


def errors_of(read: Read) -> Sequence[FieldError] | None:
    """Return the errors of an invalid light curve; None for an alert, whose result has no such list."""
    return None if isinstance(read, Packet | PacketError) else getattr(read, "errors", ())


def curve_identity(curve: LightCurve | InvalidLightCurve) -> dict[str, object]:
    """Return the members of a result that come from its light curve: object id, filters and warnings."""
    members: dict[str, object] = {"object_id": curve.object_id}
    if isinstance(curve, LightCurve) and curve.described_filters:
        members["filters"] = dict(curve.described_filters)
    if isinstance(curve, LightCurve) and curve.warnings:
        members["warnings"] = [PhotometryWarning(**warning._asdict()) for warning in curve.warnings]
    return members


def packet_identity(packet: Packet) -> dict[str, str]:
    """Return the members of a result that identify its alert."""
    return {
        "survey": packet.survey,
        "schema_version": packet.schema_version,
        "alert_id": packet.alert_id,
        "object_id": packet.object_id,
    }
