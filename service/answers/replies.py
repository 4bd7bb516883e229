"""Pydantic models of results: HTTP responses and records of a stream. :mod:`core.serializer` builds them.

Every response names its model, and every item has its own status. The OpenAPI document and the JSON Schemas in
``service/answers/schemas`` are generated from these models.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nightjar_alerts.core import errors as core_errors
from nightjar_alerts.core.errors import pointer

# Reason code by error type of pydantic, and a text to use instead of pydantic's; empty to keep pydantic's.
_REASONS: dict[str, tuple[str, str]] = {
    "missing": ("missing", "this field is required"),
    "extra_forbidden": ("unknown_field", "unknown field"),
    "float_type": ("not_a_number", "must be a number"),
    "int_type": ("not_an_integer", "must be an integer"),
    "bool_type": ("not_a_boolean", "must be true or false"),
    "string_type": ("not_a_string", "must be a string"),
    "list_type": ("not_a_list", "must be a list"),
    "dict_type": ("not_an_object", "must be an object"),
    "model_type": ("not_an_object", "must be an object"),
    "model_attributes_type": ("not_an_object", "must be an object"),
    "finite_number": ("not_finite", "must be finite"),
    "too_short": ("empty", "must not be empty"),
    "int_parsing": ("not_an_integer", "must be an integer"),
    "bool_parsing": ("not_a_boolean", "must be true or false"),
    "literal_error": ("not_one_of", ""),
    "string_too_long": ("too_long", ""),
    "greater_than_equal": ("too_small", ""),
}


def field_errors(errors: Iterable[Mapping[str, Any]]) -> list[core_errors.FieldError]:
    """Convert errors of pydantic (``ValidationError.errors()``)."""
    return [field_error(pointer(error["loc"]), error["type"], error["msg"]) for error in errors]


def field_error(pointer: str, kind: str, message: str = "") -> core_errors.FieldError:
    """Return the field error for an error type of pydantic."""
    reason, detail = _REASONS.get(kind, (kind, ""))
    return core_errors.FieldError(pointer=pointer, reason=reason, detail=detail or message)


class FieldError(BaseModel):
    """An invalid value of a request."""

    pointer: str = Field(description="JSON pointer into the body, such as /light_curves/3/flux/17, or /query/NAME")
    reason: str = Field(description="machine-readable code, such as not_finite")
    detail: str = Field(description="description of the error")


class Reply(BaseModel):
    """Base of JSON responses; undeclared fields are not allowed."""

    model_config = ConfigDict(extra="forbid")


class Provenance(Reply):
    """The model that produced the results."""

    name: str
    version: str
    sha256: str = Field(description="SHA-256 of the bundle's manifest, which has the hash of every other file")
    role: Literal["canary"] | None = Field(
        None, description="canary: a version on trial that gets a percentage of the requests; absent otherwise"
    )


class ClassifierProvenance(Provenance):
    """The classifier that produced the results."""

    taxonomy: str = Field(description="name and version of the set of classes")
    calibration: str = Field(description="calibration method of the probabilities")
    prior: str | None = Field(
        None,
        description="name of the class shares that the probabilities assume: those of the model, or the prior of the "
        "request; `given`: weights in the request",
    )
    coverage_measured_on: str | None = Field(
        None, description="light curves on which the coverage of prediction sets was measured, if known"
    )


class _NetworkInput(Reply):
    points_per_band: dict[str, int] = Field(description="number of observations used, by band")
    duplicates: int | None = Field(
        None,
        ge=1,
        description="observations ignored because a more precise one has the same time and band; absent if none",
    )
    other_filters: dict[str, int] | None = Field(
        None,
        description="observations ignored because the model has no band for their filter, or enough in the filter of "
        "that band, by filter; absent if none",
    )
    dropped_points: dict[str, int] | None = Field(
        None,
        description="observations ignored because of their values, by reason: `upper_limit`, and of a packet "
        "`no_time`, `no_flux`, `no_error`, `bad_sign`, `flagged`, `withdrawn`; absent if none",
    )
    truncated: bool = Field(description="whether observations were removed to fit the limits of the model")
    metadata_missing: int = Field(description="number of the model's metadata columns without a value")


class Subtype(Reply):
    """Type of a supernova, from a model that only classifies supernovae."""

    class_: str = Field(alias="class", description="the most probable type")
    class_id: int = Field(description="id of that type in the taxonomy")
    confidence: float = Field(description="probability of that type, given that it is a supernova")
    probabilities: dict[str, float] = Field(description="probability of every type; they sum to 1")
    unusual: bool | None = Field(None, description="whether the light curve is out of distribution for this model")
    prediction_set: list[str] | None = Field(
        None, description="types of the prediction set, the most probable first; absent if unusual"
    )
    coverage: float | None = Field(None, description="probability that the prediction set contains the true type")
    model: ClassifierProvenance


class _Classification(_NetworkInput):
    status: Literal["classified"]
    object_id: str
    class_: str = Field(alias="class", description="the most probable class")
    class_id: int = Field(description="id of that class in the taxonomy")
    confidence: float = Field(description="probability of that class")
    probabilities: dict[str, float] = Field(description="probability of every class; they sum to 1")
    hierarchy: dict[str, float] = Field(description="probability of every group of classes")
    novelty: float | None = Field(
        None,
        ge=0,
        le=1,
        description="out-of-distribution score: the share of known objects with a lower score; absent if the model has "
        "no score",
    )
    unusual: bool | None = Field(
        None,
        description="whether the novelty exceeds the model's threshold. An unusual light curve is out of distribution: "
        "its probabilities are unreliable, and it has no prediction set. Absent if the model has no score",
    )
    prediction_set: list[str] | None = Field(
        None,
        description="classes of the prediction set, the most probable first; absent if the model has no calibrated "
        "coverage or the light curve is unusual",
    )
    coverage: float | None = Field(None, description="probability that the prediction set contains the true class")
    subtype: Subtype | None = Field(
        None,
        description="type of a supernova, if its survey has a model of supernova types (ZTF with the default "
        "settings); absent for other classes, or if that model cannot classify the light curve",
    )
    evidence: list[str] | None = Field(
        None,
        description="additional evidence that the probabilities include, in words: redshift, parallax, catalogued "
        "star; absent if none",
    )
    embedding: list[float] | str | None = Field(
        None, description="present if requested; a string if base64 was requested"
    )


class _Unclassified(Reply):
    object_id: str
    reason: str = Field(description="machine-readable code")
    detail: str = Field(description="description of the reason")


_OTHER_MODEL = "model of this result, if it is not the model of the response"


class ExpertLayer(Reply):
    """One expert layer of the network."""

    router_entropy: float = Field(
        ge=0,
        description="mean entropy of the router's softmax over all experts, in nats: 0 if it is certain of one expert, "
        "the logarithm of the number of experts if it prefers none",
    )
    bands: dict[str, list[int]] = Field(
        description="for each band with observations: how often its observations chose each expert. Every observation "
        "chooses the same number of experts"
    )


class Experts(Reply):
    """Experts that the observations of a light curve chose."""

    layers: list[ExpertLayer] = Field(
        description="expert layers whose router sees the observations, in the order of the network"
    )


class PhotometryWarning(Reply):
    """Something that is probably wrong with the values of a light curve."""

    reason: str = Field(
        description="machine-readable code: `conflicting_metadata`, `constant_flux`, `implausible_depth`, "
        "`implausible_metadata`, `magnitudes_as_flux`, `parallax_without_error`, `times_look_like_jd`, `total_flux`, "
        "`unknown_survey` or `unused_filter`"
    )
    detail: str = Field(description="description, and what to do")


_EXPERTS = "experts that the observations chose; present if requested and if the model has them"
_WARNINGS = "what is probably wrong with the values of the light curve; absent if nothing"
_FILTERS = "band used for each filter that the request described; absent if it described none"


class CurveResult(_Classification):
    """A light curve that was classified."""

    experts: Experts | None = Field(None, description=_EXPERTS)
    filters: dict[str, str] | None = Field(None, description=_FILTERS)
    warnings: list[PhotometryWarning] | None = Field(None, description=_WARNINGS)
    model: ClassifierProvenance | None = Field(None, description=_OTHER_MODEL)


class CurveFailure(_Unclassified):
    """A light curve that was not classified.

    `abstained`: valid, but outside what the model classifies; `rejected`: invalid; `failed`: no result in time.
    """

    status: Literal["abstained", "rejected", "failed"]
    filters: dict[str, str] | None = Field(None, description=_FILTERS)
    warnings: list[PhotometryWarning] | None = Field(None, description=_WARNINGS)
    model: ClassifierProvenance | None = Field(None, description=_OTHER_MODEL)
    errors: list[FieldError] = Field(description="invalid values, with pointers into the light curve or the body")


class LightCurveOut(Reply):
    """A light curve in the form that ``/v1/classify`` takes."""

    object_id: str
    survey: str
    mjd: list[float] = Field(description="days, MJD (TAI)")
    flux: list[float] = Field(description="difference fluxes, nJy")
    flux_err: list[float] = Field(description="standard errors of flux, nJy")
    band: list[str]
    detected: list[bool]
    metadata: dict[str, float]
    ra: float | None = Field(None, description="right ascension of the object, degrees, ICRS")
    dec: float | None = Field(None, description="declination of the object, degrees, ICRS")


class _PacketIdentity(Reply):
    survey: str = Field(description="lsst, elasticc, ztf, or unknown")
    schema_version: str
    alert_id: str
    model: ClassifierProvenance | None = Field(None, description=_OTHER_MODEL)


_LIGHT_CURVE = "light curve of the packet; only when asked for, and absent if it has no usable point"


class PacketResult(_PacketIdentity, _Classification):
    """An alert that was classified."""

    experts: Experts | None = Field(None, description=_EXPERTS)
    light_curve: LightCurveOut | None = Field(None, description=_LIGHT_CURVE)


class PacketFailure(_PacketIdentity, _Unclassified):
    """An alert that was not classified.

    `abstained`: valid, but outside what the model classifies; `rejected`: unreadable; `failed`: no result in time.
    """

    status: Literal["abstained", "rejected", "failed"]
    light_curve: LightCurveOut | None = Field(None, description=_LIGHT_CURVE)


class _StreamRecord(Reply):
    key: str = Field(description="topic, alert id, and model name and version: the same for every delivery of an alert")
    topic: str = Field(description="topic, stream or file that the alert came from")
    mjd: float | None = Field(
        description="MJD (TAI) of the detection that triggered the alert; null if the packet has none"
    )


class EvolutionPoint(Reply):
    """Most probable class of the observations up to one detection."""

    mjd: float = Field(description="time of the detection, MJD (TAI)")
    detections: int = Field(description="detections up to that time")
    class_: str = Field(alias="class", description="the most probable class")
    confidence: float = Field(description="probability of that class")


_CHANGES = "steps whose most probable class differs from that of the step before"
_VARIATION = (
    "mean total-variation distance between the successive probabilities of the last five steps, from 0 (equal) to 1; "
    "null for fewer than two classified steps"
)


class EvolutionSummary(Reply):
    """How the classification of an alert's object developed."""

    sampled: bool = Field(description="whether the steps are a sample of the detections")
    class_changes: int = Field(description=_CHANGES)
    last_change_mjd: float | None = Field(description="time of the last of these; null without any")
    recent_variation: float | None = Field(description=_VARIATION)
    steps: list[EvolutionPoint] = Field(description="in order of time")


class StreamResult(_PacketIdentity, _Classification, _StreamRecord):
    """Record of an alert from a stream that was classified."""

    model: ClassifierProvenance = Field(description="model that classified the alert")
    evolution: EvolutionSummary | None = Field(
        None, description="classification after each detection; only with NIGHTJAR_SINK_EVOLUTION"
    )


class StreamFailure(_PacketIdentity, _Unclassified, _StreamRecord):
    """Record of an alert from a stream that the model does not classify."""

    status: Literal["abstained"]
    model: ClassifierProvenance = Field(description="model that did not classify the alert")


class EvolutionStep(Reply):
    """Classification of the observations up to one detection."""

    mjd: float = Field(description="time of the detection, MJD (TAI)")
    detections: int = Field(description="detections up to that time")
    status: Literal["classified", "abstained", "failed"]
    class_: str | None = Field(None, alias="class", description="the most probable class; absent unless classified")
    confidence: float | None = Field(None, description="probability of that class; absent unless classified")
    probabilities: dict[str, float] | None = Field(
        None, description="probability of every class; absent unless classified"
    )
    novelty: float | None = Field(None, ge=0, le=1, description="as in a classification")
    unusual: bool | None = Field(None, description="as in a classification")
    prediction_set: list[str] | None = Field(None, description="as in a classification")
    reason: str | None = Field(None, description="machine-readable code; absent if classified")
    detail: str | None = Field(None, description="for people; absent if classified")


class Evolution(Reply):
    """How the classification of an object developed."""

    object_id: str
    detections: int = Field(description="detections of the light curve")
    sampled: bool = Field(description="whether the steps are a sample of the detections")
    class_changes: int = Field(description=_CHANGES)
    last_change_mjd: float | None = Field(description="time of the last of these; null without any")
    recent_variation: float | None = Field(description=_VARIATION)
    steps: list[EvolutionStep] = Field(description="in order of time")


class EvolutionReply(Evolution):
    """Reply of ``/v1/evolution``."""

    model: ClassifierProvenance


class ClassifyReply(Reply):
    """One result per light curve, in the order of the request."""

    model: ClassifierProvenance
    results: list[CurveResult | CurveFailure]


class AlertsReply(Reply):
    """One result per alert, in the order of the request."""

    model: ClassifierProvenance
    results: list[PacketResult | PacketFailure]
