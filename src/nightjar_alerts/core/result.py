"""Results of a classification: the declaration of every field.

A result is :class:`Classified`, :class:`Abstained`, :class:`Rejected` or :class:`Failed`; in JSON and msgpack its
``status`` says which. Fields are written in the order of their declaration, and optional ones are absent where they do
not apply. HTTP responses and records of a stream select from these fields. From the declaration :mod:`core.schemas`
makes their JSON Schemas, OpenAPI components, Avro and Arrow types and the columns of tables;
:class:`nightjar_alerts.Result` has its fields as attributes.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.record import Record

Status = Literal["classified", "abstained", "rejected", "failed"]


class ClassifierProvenance(Record, kw_only=True):
    """The classifier that produced the results."""

    name: Annotated[str, Meta(description="name of the model")]
    version: Annotated[str, Meta(description="version of the model")]
    sha256: Annotated[str, Meta(description="SHA-256 of the bundle's manifest, which has the hash of every other file")]
    role: Annotated[
        Literal["canary"] | None,
        Meta(description="canary: a version on trial that gets a percentage of the requests; absent otherwise"),
    ] = None
    taxonomy: Annotated[str, Meta(description="name and version of the set of classes")]
    calibration: Annotated[str, Meta(description="calibration method of the probabilities")]
    prior: Annotated[
        str | None,
        Meta(
            description="name of the class shares that the probabilities assume: those of the model, or the prior of "
            "the request; `given`: weights in the request"
        ),
    ] = None
    coverage_measured_on: Annotated[
        str | None,
        Meta(description="light curves on which the coverage of prediction sets was measured, if known"),
    ] = None


class PhotometryWarning(Record, kw_only=True):
    """Something that is probably wrong with the values of a light curve."""

    reason: Annotated[
        str,
        Meta(
            description="machine-readable code: `conflicting_metadata`, `constant_flux`, `implausible_depth`, "
            "`implausible_metadata`, `magnitudes_as_flux`, `parallax_without_error`, `times_look_like_jd`, "
            "`total_flux`, `unknown_survey` or `unused_filter`"
        ),
    ]
    detail: Annotated[str, Meta(description="description, and what to do")]


class Subtype(Record, kw_only=True):
    """Type of a supernova, from a model that only classifies supernovae."""

    class_name: Annotated[str, Meta(description="the most probable type")]
    class_id: Annotated[int, Meta(description="id of that type in the taxonomy")]
    confidence: Annotated[float, Meta(description="probability of that type, given that it is a supernova")]
    probabilities: Annotated[dict[str, float], Meta(description="probability of every type; they sum to 1")]
    unusual: Annotated[
        bool | None, Meta(description="whether the light curve is out of distribution for this model")
    ] = None
    prediction_set: Annotated[
        list[str] | None,
        Meta(description="types of the prediction set, the most probable first; absent if unusual"),
    ] = None
    coverage: Annotated[
        float | None, Meta(description="probability that the prediction set contains the true type")
    ] = None
    model: Annotated[ClassifierProvenance, Meta(description="model of supernova types")]


class ExpertLayer(Record, kw_only=True):
    """One expert layer of the network."""

    router_entropy: Annotated[
        float,
        Meta(
            ge=0,
            description="mean entropy of the router's softmax over all experts, in nats: 0 if it is certain of one "
            "expert, the logarithm of the number of experts if it prefers none",
        ),
    ]
    bands: Annotated[
        dict[str, list[int]],
        Meta(
            description="for each band with observations: how often its observations chose each expert. Every "
            "observation chooses the same number of experts"
        ),
    ]


class Experts(Record, kw_only=True):
    """Experts that the observations of a light curve chose."""

    layers: Annotated[
        list[ExpertLayer],
        Meta(description="expert layers whose router sees the observations, in the order of the network"),
    ]


Column = list[float]
"""Values of an array. Until it is encoded, it may be the numpy array itself."""


class LightCurveOut(Record, kw_only=True):
    """A light curve in the form that ``/v1/classify`` takes."""

    object_id: str
    survey: str
    mjd: Annotated[Column, Meta(description="days, MJD (TAI)")]
    flux: Annotated[Column, Meta(description="fluxes, nJy; difference fluxes if `flux_kind` is absent")]
    flux_err: Annotated[Column, Meta(description="standard errors of flux, nJy")]
    band: list[str]
    detected: Annotated[list[bool] | None, Meta(description="absent for total flux")] = None
    metadata: dict[str, float]
    flux_kind: Annotated[Literal["total"] | None, Meta(description="total if `flux` is that of the whole source")] = (
        None
    )
    reference_flux: Annotated[
        dict[str, float] | None, Meta(description="flux of each filter that is subtracted from total flux, nJy")
    ] = None
    ra: Annotated[float | None, Meta(description="right ascension of the object, degrees, ICRS")] = None
    dec: Annotated[float | None, Meta(description="declination of the object, degrees, ICRS")] = None


OtherModel = Annotated[
    ClassifierProvenance | None, Meta(description="model of this result, if it is not the model of the response")
]
SentLightCurve = Annotated[
    LightCurveOut | None,
    Meta(description="light curve of the packet; only when asked for, and absent if it has no usable point"),
]


class _Result(Record, tag_field="status", kw_only=True):
    """Fields of every result. Those of alerts are absent in results of light curves, and the other way round."""

    survey: Annotated[str | None, Meta(description="survey of an alert: lsst, elasticc, ztf, or unknown")] = None
    schema_version: Annotated[str | None, Meta(description="version of the schema of an alert")] = None
    alert_id: Annotated[str | None, Meta(description="id of an alert")] = None
    object_id: Annotated[str, Meta(description="name of the object; empty if none was given")]
    filters: Annotated[
        dict[str, str] | None,
        Meta(description="band used for each filter that the request described; absent if it described none"),
    ] = None
    warnings: Annotated[
        list[PhotometryWarning] | None,
        Meta(description="what is probably wrong with the values of the light curve; absent if nothing"),
    ] = None


class Classified(_Result, tag="classified", kw_only=True):
    """A light curve or alert that was classified."""

    status: ClassVar[Status] = "classified"
    class_name: Annotated[str, Meta(description="the most probable class")]
    class_id: Annotated[int, Meta(description="id of that class in the taxonomy")]
    confidence: Annotated[float, Meta(description="probability of that class")]
    probabilities: Annotated[dict[str, float], Meta(description="probability of every class; they sum to 1")]
    hierarchy: Annotated[dict[str, float], Meta(description="probability of every group of classes")]
    novelty: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(
            description="out-of-distribution score: the share of known objects with a lower score; absent if the model "
            "has no score"
        ),
    ] = None
    unusual: Annotated[
        bool | None,
        Meta(
            description="whether the novelty exceeds the model's threshold. An unusual light curve is out of "
            "distribution: its probabilities are unreliable, and it has no prediction set. Absent if the model has no "
            "score"
        ),
    ] = None
    prediction_set: Annotated[
        list[str] | None,
        Meta(
            description="classes of the prediction set, the most probable first; absent if the model has no calibrated "
            "coverage or the light curve is unusual"
        ),
    ] = None
    coverage: Annotated[
        float | None, Meta(description="probability that the prediction set contains the true class")
    ] = None
    evidence: Annotated[
        list[str] | None,
        Meta(
            description="additional evidence that the probabilities include, in words: redshift, parallax, catalogued "
            "star; absent if none"
        ),
    ] = None
    points_per_band: Annotated[dict[str, int], Meta(description="number of observations used, by band")]
    truncated: Annotated[bool, Meta(description="whether observations were removed to fit the limits of the model")]
    metadata_missing: Annotated[int, Meta(description="number of the model's metadata columns without a value")]
    duplicates: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="observations ignored because a more precise one has the same time and band; absent if none"),
    ] = None
    other_filters: Annotated[
        dict[str, int] | None,
        Meta(
            description="observations ignored because the model has no band for their filter, or enough in the filter "
            "of that band, by filter; absent if none"
        ),
    ] = None
    dropped_points: Annotated[
        dict[str, int] | None,
        Meta(
            description="observations ignored because of their values, by reason: `upper_limit`, and of a packet "
            "`no_time`, `no_flux`, `no_error`, `bad_sign`, `flagged`, `withdrawn`; absent if none"
        ),
    ] = None
    subtype: Annotated[
        Subtype | None,
        Meta(
            description="type of a supernova, if its survey has a model of supernova types (ZTF with the default "
            "settings); absent for other classes, or if that model cannot classify the light curve"
        ),
    ] = None
    embedding: Annotated[
        Column | str | None,
        Meta(description="present if requested; a string if base64 was requested"),
    ] = None
    experts: Annotated[
        Experts | None,
        Meta(description="experts that the observations chose; present if requested and if the model has them"),
    ] = None
    model: OtherModel = None
    light_curve: SentLightCurve = None


class _Unclassified(_Result, kw_only=True):
    reason: Annotated[str, Meta(description="machine-readable code")]
    detail: Annotated[str, Meta(description="description of the reason")]
    errors: Annotated[
        list[FieldError] | None,
        Meta(description="invalid values, with pointers into the light curve or the body"),
    ] = None
    model: OtherModel = None
    light_curve: SentLightCurve = None


class Abstained(_Unclassified, tag="abstained", kw_only=True):
    """A valid light curve or alert outside what the model classifies."""

    status: ClassVar[Status] = "abstained"


class Rejected(_Unclassified, tag="rejected", kw_only=True):
    """An invalid light curve, or an unreadable alert."""

    status: ClassVar[Status] = "rejected"


class Failed(_Unclassified, tag="failed", kw_only=True):
    """A light curve or alert without a result in time."""

    status: ClassVar[Status] = "failed"


ResultFields = Classified | Abstained | Rejected | Failed
"""Fields of a result."""
UNCLASSIFIED: Final[Mapping[Status, type[Abstained] | type[Rejected] | type[Failed]]] = {
    "abstained": Abstained,
    "rejected": Rejected,
    "failed": Failed,
}

_CHANGES = "steps whose most probable class differs from that of the step before"
_VARIATION = (
    "mean total-variation distance between the successive probabilities of the last five steps, from 0 (equal) to 1; "
    "null for fewer than two classified steps"
)
_SAMPLED = "whether the steps are a sample of the detections"
_LAST_CHANGE = "time of the last of these; null without any"
_MJD = "time of the detection, MJD (TAI)"
_DETECTIONS = "detections up to that time"
_SAME = "as in a classification"


class EvolutionPoint(Record, kw_only=True):
    """Most probable class of the observations up to one detection."""

    mjd: Annotated[float, Meta(description=_MJD)]
    detections: Annotated[int, Meta(description=_DETECTIONS)]
    class_name: Annotated[str, Meta(description="the most probable class")]
    confidence: Annotated[float, Meta(description="probability of that class")]


class EvolutionSummary(Record, kw_only=True):
    """How the classification of an alert's object developed."""

    sampled: Annotated[bool, Meta(description=_SAMPLED)]
    class_changes: Annotated[int, Meta(description=_CHANGES)]
    last_change_mjd: Annotated[float | None, Meta(description=_LAST_CHANGE)]
    recent_variation: Annotated[float | None, Meta(description=_VARIATION)]
    steps: Annotated[list[EvolutionPoint], Meta(description="in order of time")]


class EvolutionStep(Record, kw_only=True):
    """Classification of the observations up to one detection."""

    mjd: Annotated[float, Meta(description=_MJD)]
    detections: Annotated[int, Meta(description=_DETECTIONS)]
    status: Annotated[Status, Meta(description="status of this classification")]
    class_name: Annotated[str | None, Meta(description="the most probable class; absent unless classified")] = None
    confidence: Annotated[float | None, Meta(description="probability of that class; absent unless classified")] = None
    probabilities: Annotated[
        dict[str, float] | None, Meta(description="probability of every class; absent unless classified")
    ] = None
    novelty: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, Meta(description=_SAME)] = None
    unusual: Annotated[bool | None, Meta(description=_SAME)] = None
    prediction_set: Annotated[list[str] | None, Meta(description=_SAME)] = None
    reason: Annotated[str | None, Meta(description="machine-readable code; absent if classified")] = None
    detail: Annotated[str | None, Meta(description="for people; absent if classified")] = None


class EvolutionFields(Record, kw_only=True):
    """How the classification of an object developed."""

    object_id: Annotated[str, Meta(description="name of the object; empty if none was given")]
    detections: Annotated[int, Meta(description="detections of the light curve")]
    sampled: Annotated[bool, Meta(description=_SAMPLED)]
    class_changes: Annotated[int, Meta(description=_CHANGES)]
    last_change_mjd: Annotated[float | None, Meta(description=_LAST_CHANGE)]
    recent_variation: Annotated[float | None, Meta(description=_VARIATION)]
    steps: Annotated[list[EvolutionStep], Meta(description="in order of time")]


class StreamHead(Record, kw_only=True):
    """Fields of a record of a stream in addition to those of its result."""

    key: Annotated[
        str,
        Meta(description="topic, alert id, and model name and version: the same for every delivery of an alert"),
    ]
    topic: Annotated[str, Meta(description="topic, stream or file that the alert came from")]
    mjd: Annotated[
        float | None,
        Meta(description="MJD (TAI) of the detection that triggered the alert; null if the packet has none"),
    ]
    model: Annotated[ClassifierProvenance, Meta(description="model of the alert")]
    evolution: Annotated[
        EvolutionSummary | None,
        Meta(description="classification after each detection; only with NIGHTJAR_SINK_EVOLUTION"),
    ] = None


class ClassifyReply(Record, kw_only=True):
    """One result per light curve, in the order of the request."""

    model: ClassifierProvenance
    results: list[ResultFields]


class AlertsReply(Record, kw_only=True):
    """One result per alert, in the order of the request."""

    model: ClassifierProvenance
    results: list[ResultFields]


class EvolutionReply(EvolutionFields, kw_only=True):
    """Reply of ``/v1/evolution``."""

    model: ClassifierProvenance
