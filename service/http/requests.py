"""From a JSON body to light curves: nothing is coerced, every fault is pointed at, a bad curve fails alone.

Two forms of body: one bare curve, or ``{"light_curves": [...]}``; either may carry ``options``. A boolean, a string,
NaN or 1e999 where a number belongs is refused, and so is a name that is not in :mod:`service.http.forms`. The envelope
is checked first and each curve apart from the others.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

import orjson
from pydantic import ValidationError

from models.forecast import check_queries
from models.lightcurve import LightCurve, LightCurveError
from models.metadata import METADATA_COLUMNS, clean_metadata
from service.http.errors import INVALID, MALFORMED, TOO_LARGE, ProblemError
from service.http.fields import MAX_FIELD_ERRORS, FieldError, field_error, field_errors, pointer
from service.http.forms import MAX_ID_LENGTH, ForecastCurveIn, ForecastIn, ForecastOptions, LightCurveIn, Options
from service.inference.programs import ForecastItem
from service.settings import Settings

_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}|[0-9]{309}")

_KNOWN_METADATA = frozenset(METADATA_COLUMNS)
_ENVELOPE = frozenset({"light_curves", "options"})

FormT = TypeVar("FormT", bound=LightCurveIn)
ItemT = TypeVar("ItemT")
OptionsT = TypeVar("OptionsT", bound=ForecastOptions)


class InvalidCurve(LightCurveError):
    """A curve that breaks one or more rules of the request; the first stands for it where one is asked for."""

    def __init__(self, errors: Iterable[FieldError], object_id: str = "") -> None:
        self.errors = tuple(errors)
        self.object_id = object_id
        super().__init__(self.errors[0].pointer, self.errors[0].reason, self.errors[0].detail)


@dataclass(frozen=True, slots=True)
class Asked(Generic[ItemT, OptionsT]):
    """A parsed request: one entry per curve sent, in order, a good one or the reason why it is not."""

    items: tuple[ItemT | InvalidCurve, ...]
    options: OptionsT
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


def read_classify(document: object, settings: Settings) -> Asked[LightCurve, Options]:
    """Check a parsed body and build its light curves.

    Raises
    ------
    ProblemError
        422 for a fault of the envelope, or of the curve when it is the bare form; 413 for too many curves.
    """
    return _read(document, settings, Options, partial(_read_item, LightCurveIn, _build_curve, settings))


def read_forecast(document: object, settings: Settings, bands: Sequence[str]) -> Asked[ForecastItem, ForecastOptions]:
    """Check a parsed body and build its light curves and queries, the latter in ``bands`` only; raises likewise."""

    def build(form: ForecastCurveIn) -> ForecastItem:
        return _build_forecast(form, bands, settings.max_queries)

    return _read(document, settings, ForecastOptions, partial(_read_item, ForecastCurveIn, build, settings))


ReadItem = Callable[[object, str], ItemT | InvalidCurve]


def _read(
    document: object, settings: Settings, options: type[OptionsT], read_item: ReadItem[ItemT]
) -> Asked[ItemT, OptionsT]:
    if not isinstance(document, dict):
        raise ProblemError(INVALID, errors=[field_error("", "model_type")])
    if "light_curves" in document:
        return _read_many(document, settings, options, read_item)
    columns = {name: value for name, value in document.items() if name != "options"}
    wanted = _read_options(document.get("options", {}), settings, options)
    item = read_item(columns, "")
    if isinstance(item, InvalidCurve):
        raise ProblemError(INVALID, errors=item.errors)
    return Asked((item,), wanted, bare=True)


def _read_many(
    document: dict[str, object], settings: Settings, options: type[OptionsT], read_item: ReadItem[ItemT]
) -> Asked[ItemT, OptionsT]:
    curves = document["light_curves"]
    if unknown := _unknown_names(document, _ENVELOPE):
        raise ProblemError(INVALID, errors=unknown)
    if not isinstance(curves, list):
        raise ProblemError(INVALID, errors=[field_error("/light_curves", "list_type")])
    if not curves:
        raise ProblemError(INVALID, errors=[field_error("/light_curves", "too_short")])
    if len(curves) > settings.max_curves:
        limit = settings.max_curves
        raise ProblemError(TOO_LARGE, f"{len(curves)} light curves, at most {limit} in one request", limit=limit)
    wanted = _read_options(document.get("options", {}), settings, options)
    return Asked(tuple(read_item(curve, f"/light_curves/{i}") for i, curve in enumerate(curves)), wanted)


def _read_options(value: object, settings: Settings, model: type[OptionsT]) -> OptionsT:
    if isinstance(value, dict) and (unknown := _unknown_names(value, model.model_fields, "/options")):
        raise ProblemError(INVALID, errors=unknown)
    try:
        options = model.model_validate(value)
    except ValidationError as error:
        raise ProblemError(INVALID, errors=field_errors(error.errors(), "/options")) from None
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    return options


def check_deadline(deadline_ms: int | None, pointer: str, settings: Settings) -> None:
    """Refuse a deadline beyond the longest one allowed. Raises ProblemError (422)."""
    if deadline_ms is not None and deadline_ms > settings.max_deadline_ms:
        detail = f"must be at most {settings.max_deadline_ms} milliseconds"
        raise ProblemError(INVALID, errors=[FieldError(pointer=pointer, reason="deadline_too_long", detail=detail)])


def _read_item(
    form: type[FormT], build: Callable[[FormT], ItemT], settings: Settings, value: object, parent: str
) -> ItemT | InvalidCurve:
    """Build an item, or say what is wrong with it; ``parent`` is where it stands in the body."""
    errors = _cheap_faults(value, form, settings, parent)
    if not errors:
        try:
            return build(form.model_validate(value))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            errors = field_errors(found, parent)
        except LightCurveError as error:
            errors = [FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error))]
    return InvalidCurve(errors, _echoed_id(value))


def _build_curve(curve: LightCurveIn) -> LightCurve:
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


def _build_forecast(form: ForecastCurveIn, bands: Sequence[str], limit: int) -> ForecastItem:
    curve = _build_curve(form)
    try:
        mjd, band = check_queries(form.forecast.mjd, form.forecast.band, bands, limit)
    except LightCurveError as error:
        raise LightCurveError(f"/forecast{error.pointer}", error.reason, str(error)) from None
    return ForecastItem(curve, mjd, band, form.flux_unit)


def _cheap_faults(value: object, form: type[LightCurveIn], settings: Settings, parent: str) -> list[FieldError]:
    """Faults looked for before validation, whose cost would grow with what a hostile client sends."""
    if not isinstance(value, dict):
        return [field_error(parent, "model_type")]
    if unknown := _unknown_names(value, form.model_fields, parent):
        return unknown
    for name, known in (("metadata", _KNOWN_METADATA), ("forecast", ForecastIn.model_fields)):
        inner = value.get(name)
        if isinstance(inner, dict) and (unknown := _unknown_names(inner, known, f"{parent}/{name}")):
            return unknown
    faults = _long_columns(value, settings.max_points, parent, "too_many_points", "observations in a light curve")
    if isinstance(queries := value.get("forecast"), dict):
        parent = f"{parent}/forecast"
        faults += _long_columns(queries, settings.max_queries, parent, "too_many_queries", "times in one forecast")
    return faults


def _long_columns(
    columns: Mapping[str, object], limit: int, parent: str, reason: str, counted: str
) -> list[FieldError]:
    return [
        FieldError(pointer=f"{parent}/{name}", reason=reason, detail=f"at most {limit} {counted} are accepted")
        for name, column in columns.items()
        if isinstance(column, list) and len(column) > limit
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
