"""Request bodies and query parameters of ``/v1`` as msgspec structs.

One declaration decodes JSON, msgpack, NDJSON and, column by column, Arrow, and is the schema in the OpenAPI document.
Nothing is coerced and a name that is not declared is an error. A column is a list of numbers or, in msgpack, the
little-endian values in one piece (:data:`DTYPES`); Arrow gives arrays. Where a JSON object repeats a name, the last
value counts. :mod:`service.http.curves` turns decoded bodies into light curves.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from nightjar_alerts.models.alerts.avro import schema_names
from nightjar_alerts.models.alerts.surveys import SURVEY_BY_NAME
from nightjar_alerts.models.metadata import KNOWN_COLUMNS
from nightjar_alerts.models.photometry import NAMES, WAVELENGTH_TOLERANCE_NM, FluxUnit
from nightjar_alerts.service.registry.names import MOST_CHARACTERS

DTYPES: Final[Mapping[str, str]] = {
    "mjd": "<f8",
    "flux": "<f4",
    "flux_err": "<f4",
    "band": "u1",
    "detected": "u1",
    "metadata": "<f4",
}
"""Types of the values in a column's bytes: ``band`` an index into u, g, r, i, z, Y; ``detected`` 0 or 1; ``metadata``
one value for each of METADATA_COLUMNS in their order, NaN where it is missing."""

MAX_SAFE_INTEGER = 2**53 - 1
MAX_ID_LENGTH = 200
MAX_FILTERS, MAX_FILTER_NAME = 32, 32
MAX_PRIOR_NAME, MAX_PRIOR_CLASSES = 64, 1000

# Integers stay integers here: as floats, eight million of one digit would take 250 MB.
Number = int | float
Numbers = Annotated[list[Number], Meta(min_length=1)]
BandNames = Annotated[list[str], Meta(min_length=1)]
Metadata: Any = msgspec.defstruct(
    "Metadata",
    [(name, Number | None | UnsetType, UNSET) for name in KNOWN_COLUMNS],
    forbid_unknown_fields=True,
    kw_only=True,
    namespace={
        "__doc__": "ELAsTiCC diaObject columns, and redshift, parallax or a catalogue's star at this place; leave out, "
        "or send null, what is unknown."
    },
    module=__name__,
)


class FilterIn(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Broadband filter that has no name in this interface."""

    wavelength_nm: Annotated[
        float,
        Meta(
            gt=0,
            description="effective wavelength, nm; the nearest of u, g, r, i, z and Y stands for the filter, if it is "
            f"within {WAVELENGTH_TOLERANCE_NM:.0f} nm",
        ),
    ]
    width_nm: Annotated[
        Annotated[float, Meta(ge=20, le=500)] | UnsetType,
        Meta(description="effective width, nm; narrower and wider filters do not measure what a band does"),
    ] = UNSET


class LightCurveIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """One object's observations, as columns of equal length, in any order."""

    object_id: Annotated[
        str | int,
        Meta(
            description="your name for the object, echoed in the reply, at most 200 characters; integers beyond 2**53 "
            "as strings",
        ),
    ] = ""
    mjd: Annotated[Numbers | bytes, Meta(description="mid-exposure times, MJD (TAI), days")]
    flux: Annotated[Numbers | bytes, Meta(description="difference fluxes, in flux_unit; may be negative")]
    flux_err: Annotated[Numbers | bytes, Meta(description="standard errors of flux, in flux_unit; greater than zero")]
    # No enumeration in the schema: clients are generated with names such as C and c for the same constant.
    band: Annotated[BandNames | bytes, Meta(description=f"filters by name: {', '.join(sorted(NAMES, key=str.lower))}")]
    detected: Annotated[
        list[bool] | bytes | None,
        Meta(description="detection flags; without them, |flux| >= 5 flux_err counts as detected"),
    ] = None
    metadata: Metadata | bytes | UnsetType = UNSET
    filters: Annotated[
        Annotated[dict[str, FilterIn], Meta(max_length=MAX_FILTERS)] | UnsetType,
        Meta(
            description="filters whose names `band` holds beside the known ones, by name, at most "
            f"{MAX_FILTER_NAME} characters each; the result says which band stands for each"
        ),
    ] = UNSET
    flux_unit: Annotated[FluxUnit, Meta(description="nJy has AB zero point 31.4, FLUXCAL 27.5")] = "nJy"
    flux_kind: Annotated[
        Literal["difference", "total"],
        Meta(
            description="what flux is: a difference from a template image, or all of the source's light, from which "
            "the median of each band is then taken away"
        ),
    ] = "difference"
    survey: Annotated[
        str,
        Meta(
            max_length=32,
            pattern="^[a-z0-9-]*$",
            description="survey of the photometry, such as `lsst`, `ztf`, `atlas`: decides which filters stand for the "
            "model's bands, and which model answers where none is named",
        ),
    ] = ""


Prior = (
    Annotated[str, Meta(max_length=MAX_PRIOR_NAME)]
    | Annotated[dict[str, int | float | str | bool | None], Meta(max_length=MAX_PRIOR_CLASSES)]
    | None
)
PRIOR_TEXT = (
    "class shares that the answer assumes: `uniform`, `lsst-alerts`, `ztf-bright`, another name that the model has, or "
    "weights by class, where a class that is left out has none; default: those of the model's calibration"
)
Deadline = Annotated[int, Meta(ge=1)] | None
DEADLINE_TEXT = "answer within this many milliseconds or not at all (504)"
EMBEDDING_TEXT = "return the network's embedding of each light curve"


class Options(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of a classification."""

    deadline_ms: Annotated[Deadline, Meta(description=DEADLINE_TEXT)] = None
    prior: Annotated[Prior, Meta(description=PRIOR_TEXT)] = None
    coverage: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(
            description="how often the prediction set holds the true class: the model's next larger stated coverage is "
            "taken, every class beyond the largest; default: the model's own (0.9 as exported)"
        ),
    ] = None
    embedding: Annotated[bool, Meta(description=EMBEDDING_TEXT)] = False
    embedding_dtype: Annotated[
        Literal["float32", "float16"],
        Meta(description="precision of the embedding; float16 keeps three digits in half the bytes"),
    ] = "float32"
    embedding_encoding: Annotated[
        Literal["list", "base64"],
        Meta(
            description="how JSON and NDJSON hold the embedding: numbers, or base64 of its little-endian bytes; in "
            "msgpack it is those bytes, in Arrow a list of that type"
        ),
    ] = "list"


DEFAULT_OPTIONS: Final = Options()


class ClassifyRequest(LightCurveIn):
    """The bare form: a light curve, with options beside its columns."""

    options: Options = DEFAULT_OPTIONS


class BatchClassifyRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The batch form. A light curve that breaks a rule is answered ``rejected``, the others are classified."""

    light_curves: Annotated[list[LightCurveIn], Meta(min_length=1)]
    options: Options = DEFAULT_OPTIONS


class ClassifyQuery(Options, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options as query parameters; they hold where a body has no ``options``, or leaves one out."""

    model: Annotated[
        str,
        Meta(
            max_length=MOST_CHARACTERS,
            description="model to ask: `name`, `name@1.2.3` or an alias; `default` where none is named",
        ),
    ] = ""


class AlertQuery(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Query parameters of a request for packets."""

    schema: Annotated[
        Annotated[str, Meta(max_length=40)] | None,
        Meta(description=f"schema of every packet, when they are bare records: {', '.join(schema_names())}"),
    ] = None
    model: Annotated[
        str,
        Meta(
            max_length=MOST_CHARACTERS,
            description="model to ask: `name`, `name@1.2.3` or an alias; where none is named, the alias of a packet's "
            f"survey ({', '.join(f'`{name}`' for name in sorted(SURVEY_BY_NAME))}) if there is one, else `default`; a "
            "light curve that it was not measured on goes to a model that was, or to none",
        ),
    ] = ""
    prior: Annotated[Prior, Meta(description=PRIOR_TEXT)] = None
    embedding: Annotated[bool, Meta(description=EMBEDDING_TEXT)] = False
    deadline_ms: Annotated[Deadline, Meta(description=DEADLINE_TEXT)] = None


class ClassifyResults(NamedTuple):
    """Results of a request, before they are encoded in a format.

    Attributes
    ----------
    model : which network answered, as :class:`service.answers.replies.ClassifierProvenance`.
    classes, groups, bands : keys of the probabilities, of the hierarchy and of the points in every result.
    embedding_dim : length of the embeddings.
    results : one for each light curve, as :class:`replies.CurveResult` or ``CurveFailure``; an embedding
        is an array.
    options : of the request.
    """

    model: Mapping[str, str]
    classes: Sequence[str]
    groups: Sequence[str]
    bands: Sequence[str]
    embedding_dim: int
    results: Sequence[Mapping[str, Any]]
    options: Options


def embedding_bytes(embedding: NDArray[np.float32], options: Options) -> bytes:
    """Little-endian values of the type in the options."""
    return _embedding(embedding, options).tobytes()


def embedding_text(embedding: NDArray[np.float32], options: Options) -> NDArray[Any] | str:
    """Return an embedding as a text format has it: numbers or base64."""
    if options.embedding_encoding == "base64":
        return b64encode(embedding_bytes(embedding, options)).decode()
    return _embedding(embedding, options)


def _embedding(embedding: NDArray[np.float32], options: Options) -> NDArray[Any]:
    if options.embedding_dtype == "float32":
        return np.ascontiguousarray(embedding, "<f4")
    most = np.finfo(np.float16).max  # what is beyond would become infinite
    return np.clip(embedding, -most, most).astype("<f2")
