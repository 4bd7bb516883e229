"""Request bodies of ``/v1/classify`` as msgspec structs.

The structs decode JSON, msgpack, NDJSON and Arrow rows, and define the schema in the OpenAPI document. Values are not
coerced, and unknown fields are errors. A column is a list or, in msgpack, the bytes of its values (:data:`DTYPES`);
Arrow rows have arrays. If a JSON object repeats a name, the last value is used.
"""

from collections.abc import Container, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from nightjar_alerts.models.metadata import KNOWN_COLUMNS
from nightjar_alerts.models.photometry import FILTER_WIDTHS_NM, NAMES, WAVELENGTH_TOLERANCE_NM, FluxUnit, MagSystem

DTYPES: Final[Mapping[str, str]] = {
    "mjd": "<f8",
    "flux": "<f4",
    "flux_err": "<f4",
    "mag": "<f4",
    "mag_err": "<f4",
    "band": "u1",
    "detected": "u1",
    "upper_limit": "u1",
    "metadata": "<f4",
}
"""Data types of columns of bytes. ``band`` is an index into u, g, r, i, z, Y; ``detected`` and ``upper_limit`` are 0 or
1; ``metadata`` has one value for each of METADATA_COLUMNS in order. NaN is a missing value in ``metadata``, and in a
flux or magnitude column where the point has the other."""

MAX_SAFE_INTEGER = 2**53 - 1
MAX_ID_LENGTH = 200
MAX_FILTERS, MAX_FILTER_NAME = 32, 32
MAX_PRIOR_NAME, MAX_PRIOR_CLASSES = 64, 1000

# Integers stay integers: decoding eight million digits as a float would take 250 MB.
Number = int | float
Numbers = Annotated[list[Number], Meta(min_length=1)]
Measurements = Annotated[list[Number | None], Meta(min_length=1)]
BandNames = Annotated[list[str], Meta(min_length=1)]
Metadata: Any = msgspec.defstruct(
    "Metadata",
    [(name, Number | None | UnsetType, UNSET) for name in KNOWN_COLUMNS],
    forbid_unknown_fields=True,
    kw_only=True,
    namespace={
        "__doc__": "ELAsTiCC `diaObject` columns, and the redshift, parallax or catalogued star of the object. Omit "
        "unknown values, or set them to null."
    },
    module=__name__,
)


class FilterIn(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Broadband filter that is not among the known names of `band`."""

    wavelength_nm: Annotated[
        float,
        Meta(
            gt=0,
            description="effective wavelength in nm; the nearest of the bands u, g, r, i, z and Y is used, within "
            f"{WAVELENGTH_TOLERANCE_NM:.0f} nm",
        ),
    ]
    width_nm: Annotated[
        Annotated[float, Meta(ge=FILTER_WIDTHS_NM[0], le=FILTER_WIDTHS_NM[1])] | UnsetType,
        Meta(description="effective width in nm; narrowband and very broad filters are rejected"),
    ] = UNSET
    vega_zero_point_jy: Annotated[
        Annotated[float, Meta(gt=0)] | UnsetType,
        Meta(description="flux density of magnitude 0 in the Vega system, in Jy; needed for Vega magnitudes"),
    ] = UNSET


class LightCurveIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """Observations of one object as columns of equal length, in any order."""

    object_id: Annotated[
        str | int,
        Meta(
            description="name of the object, repeated in the result; at most 200 characters; send integers beyond "
            "2**53 as strings",
        ),
    ] = ""
    mjd: Annotated[Numbers | bytes, Meta(description="mid-exposure times, MJD (TAI), days")]
    flux: Annotated[
        Measurements | bytes | UnsetType,
        Meta(
            description="fluxes in flux_unit; may be negative. Each point has either a flux or a magnitude; null "
            "stands for the other one"
        ),
    ] = UNSET
    flux_err: Annotated[
        Measurements | bytes | UnsetType,
        Meta(description="standard errors of flux in flux_unit; greater than zero; null for upper limits"),
    ] = UNSET
    mag: Annotated[
        Measurements | bytes | UnsetType,
        Meta(description="magnitudes in mag_system, instead of fluxes; of an upper limit the limiting magnitude"),
    ] = UNSET
    mag_err: Annotated[
        Measurements | bytes | UnsetType,
        Meta(description="standard errors of mag; greater than zero; null for upper limits"),
    ] = UNSET
    mag_system: Annotated[
        MagSystem,
        Meta(description="photometric system of mag; Vega has the published zero point of each filter"),
    ] = "AB"
    upper_limit: Annotated[
        list[bool] | bytes | None,
        Meta(description="true for points that are upper limits; they are ignored, and counted in dropped_points"),
    ] = None
    # No enumeration in the schema: generated clients could not distinguish constants such as C and c.
    band: Annotated[BandNames | bytes, Meta(description=f"filter names: {', '.join(sorted(NAMES, key=str.lower))}")]
    detected: Annotated[
        list[bool] | bytes | None,
        Meta(description="detection flags; default: |flux| >= 5 flux_err"),
    ] = None
    metadata: Metadata | bytes | UnsetType = UNSET
    filters: Annotated[
        Annotated[dict[str, FilterIn], Meta(max_length=MAX_FILTERS)] | UnsetType,
        Meta(
            description="additional filters by the name that `band` uses, at most "
            f"{MAX_FILTER_NAME} characters each; the result lists the band used for each"
        ),
    ] = UNSET
    flux_unit: Annotated[FluxUnit, Meta(description="nJy has AB zero point 31.4, FLUXCAL 27.5")] = "nJy"
    flux_kind: Annotated[
        Literal["difference", "total"] | UnsetType,
        Meta(
            description="difference (default): flux or magnitude relative to a template image; total: all flux of the "
            "source, from which reference_flux, or else the median of each filter, is subtracted"
        ),
    ] = UNSET
    reference_flux: Annotated[
        Annotated[dict[str, Number], Meta(max_length=MAX_FILTERS)] | UnsetType,
        Meta(description="flux of the source in the template image by filter, in flux_unit; for flux_kind total"),
    ] = UNSET
    survey: Annotated[
        str,
        Meta(
            max_length=32,
            pattern="^[A-Za-z0-9-]*$",
            description="survey of the photometry, such as `lsst`, `ztf` or `atlas`, in any case; selects the mapping "
            "of filters to bands and, if the request names no model, the model",
        ),
    ] = ""
    ra: Annotated[
        Annotated[float, Meta(ge=0, le=360)] | None,
        Meta(description="right ascension of the object, degrees, ICRS; does not affect the result"),
    ] = None
    dec: Annotated[
        Annotated[float, Meta(ge=-90, le=90)] | None,
        Meta(description="declination of the object, degrees, ICRS; given together with ra"),
    ] = None


def missing_columns(present: Container[str]) -> list[str]:
    """Return the flux or magnitude columns that a light curve needs but does not have."""
    uses_magnitudes = "mag" in present or "mag_err" in present
    needed = ["mag"] if uses_magnitudes else []
    if not uses_magnitudes or "flux" in present or "flux_err" in present:
        needed = ["flux", "flux_err", *needed]
    return [name for name in needed if name not in present]


PRIOR_TEXT: Final = (
    "class shares to assume: `uniform`, `lsst-alerts`, `ztf-alerts`, `ztf-bright`, another name that the model "
    "defines, or weights by class (0 for omitted classes); default: the shares of the model's calibration"
)
Prior = Annotated[
    Annotated[str, Meta(max_length=MAX_PRIOR_NAME)]
    | Annotated[dict[str, int | float | str | bool | None], Meta(max_length=MAX_PRIOR_CLASSES)]
    | None,
    Meta(description=PRIOR_TEXT),
]
Coverage = Annotated[
    Annotated[float, Meta(gt=0, lt=1)] | None,
    Meta(
        description="probability that the prediction set contains the true class; rounded up to the next coverage "
        "that the model was calibrated for, or to all classes; default: that of the model (0.9 as exported)"
    ),
]
Deadline = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(description="deadline in milliseconds, after which the request fails with 504"),
]
Embedding = Annotated[bool, Meta(description="if true, results include the network's embedding of the light curve")]
Experts = Annotated[
    bool,
    Meta(
        description="if true, results include the experts of the network that the observations chose, by layer and band"
    ),
]


class Options(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of a classification."""

    deadline_ms: Deadline = None
    prior: Prior = None
    coverage: Coverage = None
    embedding: Embedding = False
    embedding_dtype: Annotated[
        Literal["float32", "float16"],
        Meta(description="precision of the embedding; float16 has three significant digits and half the size"),
    ] = "float32"
    embedding_encoding: Annotated[
        Literal["list", "base64"],
        Meta(
            description="encoding of the embedding in JSON and NDJSON: list of numbers, or base64 of the little-endian "
            "values; msgpack always has the bytes, Arrow a list column"
        ),
    ] = "list"
    experts: Experts = False


CALL_OPTIONS: Final = ("embedding", "prior", "coverage", "experts")
"""Options of a call in Python; the others concern HTTP."""
DEFAULT_OPTIONS: Final = Options()


class ClassifyRequest(LightCurveIn):
    """A single light curve, with optional `options`."""

    options: Options = DEFAULT_OPTIONS


class BatchClassifyRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Several light curves. An invalid one gets the status `rejected`; the others are classified."""

    light_curves: Annotated[list[LightCurveIn], Meta(min_length=1)]
    options: Options = DEFAULT_OPTIONS
