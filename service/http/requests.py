"""What a JSON request may hold, and its translation into light curves.

Two forms of body: one bare curve, or ``{"light_curves": [...]}``; either may carry ``options``. Nothing is coerced:
a boolean, a string, NaN or 1e999 where a number belongs is refused, and so is a name that is not in the models below.
The envelope is checked first and each curve apart from the others, so that a bad curve fails alone.
"""

import json
import re
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from models.lightcurve import FluxUnit, LightCurve, LightCurveError
from models.metadata import METADATA_COLUMNS, clean_metadata
from service.http.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from service.http.fields import MAX_FIELD_ERRORS, FieldError, field_error, field_errors, pointer
from service.settings import Settings

MAX_SAFE_INTEGER = 2**53 - 1
MAX_ID_LENGTH = 200


def _id_text(value: object) -> object:
    """Identifiers are text; a JSON number is exact only below 2**53."""
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > MAX_SAFE_INTEGER:
            raise PydanticCustomError("inexact_integer", "integers beyond 2**53 - 1 lose digits in JSON: send a string")
        return str(value)
    return value


_ID_SCHEMA = {
    "anyOf": [
        {"type": "string", "maxLength": MAX_ID_LENGTH},
        {"type": "integer", "minimum": -MAX_SAFE_INTEGER, "maximum": MAX_SAFE_INTEGER},
    ],
    "description": "your name for the object, echoed in the reply; 64-bit identifiers as strings",
    "default": "",
}
_BAND_NAMES = {"type": "string", "enum": ["u", "g", "r", "i", "z", "y", "Y"]}
_METADATA_SCHEMA = {
    "type": "object",
    "properties": {column: {"type": ["number", "null"]} for column in METADATA_COLUMNS},
    "additionalProperties": False,
    "description": "ELAsTiCC diaObject columns; leave out, or send null, what is unknown",
    "default": {},
}

_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}|[0-9]{309}")

_KNOWN_METADATA = frozenset(METADATA_COLUMNS)

Identifier = Annotated[str, Field(max_length=MAX_ID_LENGTH), BeforeValidator(_id_text), WithJsonSchema(_ID_SCHEMA)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
BandName = Annotated[str, WithJsonSchema(_BAND_NAMES)]  # LightCurve looks the name up; checking twice would cost


def _column(description: str) -> Any:
    return Field(min_length=1, fail_fast=True, description=description)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LightCurveIn(_Strict):
    """One object's observations, as columns of equal length, in any order."""

    object_id: Identifier = ""
    mjd: list[Number] = _column("mid-exposure times, MJD (TAI), days")
    flux: list[Number] = _column("difference fluxes, in flux_unit; may be negative")
    flux_err: list[Number] = _column("standard errors of flux, in flux_unit; greater than zero")
    band: list[BandName] = _column("LSST band names; y and Y are the same")
    detected: list[bool] | None = Field(
        None, fail_fast=True, description="detection flags; without them, |flux| >= 5 flux_err counts as detected"
    )
    metadata: Annotated[dict[str, Number | None], WithJsonSchema(_METADATA_SCHEMA)] = {}
    flux_unit: FluxUnit = Field("nJy", description="nJy has AB zero point 31.4, FLUXCAL 27.5")


class Options(_Strict):
    """What the caller wants besides the classification."""

    embedding: bool = Field(False, description="return the network's embedding of each light curve")
    deadline_ms: int | None = Field(None, ge=1, description="answer within this many milliseconds or not at all (504)")


class OneCurve(LightCurveIn):
    """The bare form: a light curve, with options beside its columns."""

    options: Options = Options()


class ManyCurves(_Strict):
    """The batch form. Each curve is checked alone: one that breaks a rule is answered ``rejected``, the rest go on."""

    light_curves: list[
        Annotated[Any, WithJsonSchema({"anyOf": [{"$ref": "#/components/schemas/LightCurveIn"}, {}]})]
    ] = Field(min_length=1, description="light curves, each of the form LightCurveIn")
    options: Options = Options()


class InvalidCurve(LightCurveError):
    """A curve that breaks one or more rules of the request; the first stands for it where one is asked for."""

    def __init__(self, errors: Iterable[FieldError], object_id: str = "") -> None:
        self.errors = tuple(errors)
        self.object_id = object_id
        super().__init__(self.errors[0].pointer, self.errors[0].reason, self.errors[0].detail)


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """A parsed request: one entry per curve sent, in order, a good one or the reason why it is not."""

    items: tuple[LightCurve | InvalidCurve, ...]
    options: Options
    bare: bool = False


def parse_json(body: bytes) -> object:
    """Parse one JSON document. Raises ProblemError (400) with the place of the first fault.

    Numbers that JSON cannot hold come through as NaN or infinity: Python writes them unasked, and the field that holds
    one is better named by the check of the light curve, which fails alone, than by a column of the text.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if _NOT_FINITE.search(body):
            with suppress(ValueError, RecursionError):
                return json.loads(body.decode())
        where = f"line {error.lineno}, column {error.colno}"
        raise ProblemError(MALFORMED, f"the body is not one valid UTF-8 JSON document: {where}") from None


def read_classify(document: object, settings: Settings) -> ClassifyRequest:
    """Check a parsed body and build its light curves.

    Raises
    ------
    ProblemError
        422 for a fault of the envelope, or of the curve when it is the bare form; 413 for too many curves.
    """
    if not isinstance(document, dict):
        raise ProblemError(INVALID, errors=[field_error("", "model_type")])
    if "light_curves" in document:
        return _read_many(document, settings)
    columns = {name: value for name, value in document.items() if name != "options"}
    options = _read_options(document.get("options", {}), settings)
    curve = _read_curve(columns, settings.max_points)
    if isinstance(curve, InvalidCurve):
        raise ProblemError(INVALID, errors=curve.errors)
    return ClassifyRequest((curve,), options, bare=True)


def _read_many(document: dict[str, object], settings: Settings) -> ClassifyRequest:
    curves = document["light_curves"]
    if unknown := _unknown_names(document, ManyCurves.model_fields):
        raise ProblemError(INVALID, errors=unknown)
    if not isinstance(curves, list):
        raise ProblemError(INVALID, errors=[field_error("/light_curves", "list_type")])
    if not curves:
        raise ProblemError(INVALID, errors=[field_error("/light_curves", "too_short")])
    if len(curves) > settings.max_curves:
        limit = settings.max_curves
        raise ProblemError(TOO_LARGE, f"{len(curves)} light curves, at most {limit} in one request", limit=limit)
    options = _read_options(document.get("options", {}), settings)
    items = (_read_curve(curve, settings.max_points, f"/light_curves/{i}") for i, curve in enumerate(curves))
    return ClassifyRequest(tuple(items), options)


def _read_options(value: object, settings: Settings) -> Options:
    if isinstance(value, dict) and (unknown := _unknown_names(value, Options.model_fields, "/options")):
        raise ProblemError(INVALID, errors=unknown)
    try:
        options = Options.model_validate(value)
    except ValidationError as error:
        raise ProblemError(INVALID, errors=field_errors(error.errors(), "/options")) from None
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    return options


def check_deadline(deadline_ms: int | None, pointer: str, settings: Settings) -> None:
    """Refuse a deadline beyond the longest one allowed. Raises ProblemError (422)."""
    if deadline_ms is not None and deadline_ms > settings.max_deadline_ms:
        detail = f"must be at most {settings.max_deadline_ms} milliseconds"
        raise ProblemError(INVALID, errors=[FieldError(pointer=pointer, reason="deadline_too_long", detail=detail)])


def _read_curve(value: object, max_points: int, parent: str = "") -> LightCurve | InvalidCurve:
    """Build a light curve, or say what is wrong with it; ``parent`` is where it stands in the body."""
    errors = _cheap_faults(value, max_points, parent)
    if not errors:
        try:
            return _build(LightCurveIn.model_validate(value))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            errors = field_errors(found, parent)
        except LightCurveError as error:
            errors = [FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error))]
    return InvalidCurve(errors, _echoed_id(value))


def _build(curve: LightCurveIn) -> LightCurve:
    return LightCurve.from_columns(
        curve.mjd,
        curve.flux,
        curve.flux_err,
        curve.band,
        curve.detected,
        clean_metadata(curve.metadata),
        curve.object_id,
        curve.flux_unit,
    )


def _cheap_faults(value: object, max_points: int, parent: str) -> list[FieldError]:
    """Faults looked for before validation, whose cost would grow with what a hostile client sends."""
    if not isinstance(value, dict):
        return [field_error(parent, "model_type")]
    if unknown := _unknown_names(value, LightCurveIn.model_fields, parent):
        return unknown
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and (unknown := _unknown_names(metadata, _KNOWN_METADATA, f"{parent}/metadata")):
        return unknown
    detail = f"a light curve may have at most {max_points} observations"
    return [
        FieldError(pointer=f"{parent}/{name}", reason="too_many_points", detail=detail)
        for name, column in value.items()
        if isinstance(column, list) and len(column) > max_points
    ]


def _unknown_names(value: Mapping[str, object], known: Container[str], parent: str = "") -> list[FieldError]:
    names = islice((name for name in value if name not in known), MAX_FIELD_ERRORS)
    return [field_error(parent + pointer([name]), "extra_forbidden") for name in names]


def _echoed_id(value: object) -> str:
    """The name of a curve that is wrong in some other way, so that its sender can tell which it was."""
    name = value.get("object_id", "") if isinstance(value, dict) else ""
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    return name if isinstance(name, str) and len(name) <= MAX_ID_LENGTH else ""
