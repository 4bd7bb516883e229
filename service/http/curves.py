"""Parsed bodies to light curves, and outcomes to results, for every format and endpoint.

Nothing is coerced, every fault is pointed at, a bad curve fails alone. Two forms of body: one bare curve, or
``{"light_curves": [...]}``; either may carry ``options``. A boolean, a string, NaN or 1e999 where a number belongs is
refused, and so is a name that is not in :mod:`service.http.forms`. The envelope is checked first and each curve
apart from the others. What format a body came in is of no concern here.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError, without_median
from nightjar_alerts.models.metadata import KNOWN_COLUMNS, LARGEST, METADATA_COLUMNS, SENTINELS, clean_metadata
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.service.answers.replies import MAX_FIELD_ERRORS, FieldError, field_error, field_errors, pointer
from nightjar_alerts.service.answers.writers import AskedPrior, ClassWriter, class_writer, each_written, usual_writer
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.http import forms
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import INVALID, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.endpoint import INLINE_BYTES, INLINE_ITEMS, LARGE_BYTES, Call, check_deadline
from nightjar_alerts.service.http.formats import JSON, Format
from nightjar_alerts.service.http.forms import (
    DTYPES,
    MAX_ID_LENGTH,
    Answers,
    LightCurveIn,
    Options,
)
from nightjar_alerts.service.registry.serving import ModelHandle
from nightjar_alerts.service.settings import Settings

_KNOWN_METADATA = frozenset(KNOWN_COLUMNS)
_ENVELOPE = frozenset({"light_curves", "options"})
_PACKED = {name: np.dtype(kind) for name, kind in DTYPES.items()}
_NO_OPTIONS: dict[str, object] = {}
_FIELDS = frozenset(LightCurveIn.model_fields)
_NUMBERS, _FLOATS, _TEXTS, _FLAGS = ({int, float}, {float}, {str}, {bool})
_NUMBERS_OR_NONE = {int, float, type(None)}
_OBJECT_ID = re.compile(
    rf"[\x00-\x7f]{{0,{MAX_ID_LENGTH}}}"
)  # others are looked at more closely: half a surrogate is none
_FLUX_UNIT = re.compile("|".join(get_args(FluxUnit)))
_SURVEY = re.compile(r"[a-z0-9-]{0,32}")

FormT = TypeVar("FormT", bound=LightCurveIn)
ItemT = TypeVar("ItemT", bound=Sized)
OptionsT = TypeVar("OptionsT", bound=Options)


class InvalidCurve(LightCurveError):
    """A curve that breaks one or more rules of the request; the first stands for it where one is asked for."""

    def __init__(self, errors: Iterable[FieldError], object_id: str = "") -> None:
        self.errors = tuple(errors)
        self.object_id = object_id
        super().__init__(self.errors[0].pointer, self.errors[0].reason, self.errors[0].detail)


@dataclass(frozen=True, slots=True)
class ParsedBody(Generic[ItemT, OptionsT]):
    """A parsed request: one entry per curve sent, in order, a good one or the reason why it is not."""

    items: tuple[ItemT | InvalidCurve, ...]
    options: OptionsT
    bare: bool = False


def read_classify(
    document: object, settings: Settings, defaults: Mapping[str, object] | None = None
) -> ParsedBody[LightCurve, Options]:
    """Check a parsed body and build its light curves.

    Parameters
    ----------
    defaults : options that hold where the body does not say otherwise.

    Raises
    ------
    ProblemError
        422 for a fault of the envelope, or of the curve when it is the bare form; 413 for too many curves.
    """
    read_items = partial(read_curves, settings=settings)
    return _read(document, settings, partial(_read_options, Options, settings, defaults or {}), read_items)


def read_curves(
    values: Sequence[object], parents: Sequence[str], settings: Settings
) -> list[LightCurve | InvalidCurve]:
    """Check parsed light curves and build them; ``parents`` are the pointers to where they stand in the body.

    Most are sound, which a look at whole columns tells. Only the others are validated against their form, which points
    at each fault and costs many times as much.
    """
    items: list[LightCurve | InvalidCurve | None] = [*_sound(values, settings.max_points)]
    doubtful = [place for place, item in enumerate(items) if item is None]
    if doubtful:
        doubtful_values, where = [values[place] for place in doubtful], [parents[place] for place in doubtful]
        judgements = _read_items(LightCurveIn, _build_curves, settings, doubtful_values, where)
        for place, judgement in zip(doubtful, judgements, strict=True):
            items[place] = judgement
    return [item for item in items if item is not None]


class _InDoubt(Exception):
    """Raised at a light curve that has to be validated against its form."""


def _sound(values: Sequence[object], most: int) -> list[LightCurve | None]:
    """Build the light curves that are sound beyond doubt; None in the place of every other."""
    candidates = [_glance(value, most) for value in values]
    columns = [candidate for candidate in candidates if candidate is not None]
    built = iter(_build([*columns]))
    curves = [None if candidate is None else next(built) for candidate in candidates]
    return [curve if isinstance(curve, LightCurve) else None for curve in curves]


def _glance(value: object, most: int) -> Columns | None:
    """Return the columns of a light curve whose every value is of its type and within limits; None where in doubt.

    Nothing is accepted here that :class:`service.http.forms.LightCurveIn` would refuse; the rules of a record are
    looked at when it is built.
    """
    if type(value) is not dict or not value.keys() <= _FIELDS or value.get("flux_kind", "difference") != "difference":
        return None
    try:
        return Columns(
            _numbers("mjd", value, most),
            _numbers("flux", value, most),
            _numbers("flux_err", value, most),
            _bands(value.get("band"), most),
            _detections(value.get("detected"), most),
            _metadata(value["metadata"]) if "metadata" in value else {},
            _text(value.get("object_id", ""), _OBJECT_ID),
            _text(value.get("flux_unit", "nJy"), _FLUX_UNIT),  # type: ignore[arg-type]  # one of them, as it matches
            _text(value.get("survey", ""), _SURVEY),
        )
    except (_InDoubt, OverflowError):  # of an integer too large for a float
        return None


def _numbers(name: str, columns: Mapping[str, object], most: int) -> list[float] | NDArray[Any]:
    column = columns.get(name)
    if type(column) is list and 0 < len(column) <= most and (kinds := set(map(type, column))) <= _NUMBERS:
        return column if kinds == _FLOATS else np.array(column, np.float64)
    return _array(name, column, most)


def _array(name: str, column: object, most: int) -> NDArray[Any]:
    """Return a column that came as bytes or as an array. Raises _InDoubt."""
    if type(column) is bytes:
        dtype = _PACKED[name]
        column = np.frombuffer(column, dtype) if len(column) % dtype.itemsize == 0 else None
    if isinstance(column, np.ndarray) and 0 < len(column) <= most:
        return column
    raise _InDoubt


def _bands(column: object, most: int) -> list[str] | NDArray[Any]:
    if type(column) is list and 0 < len(column) <= most and set(map(type, column)) == _TEXTS:
        return column
    return _array("band", column, most)


def _detections(column: object, most: int) -> list[bool] | NDArray[Any] | None:
    if column is None or (type(column) is list and len(column) <= most and set(map(type, column)) <= _FLAGS):
        return column
    flags = _array("detected", column, most)
    if flags.dtype != np.bool_ and (flags > 1).any():
        raise _InDoubt
    return flags.astype(np.bool_)


def _metadata(metadata: object) -> dict[str, float]:
    """Return metadata without what is missing."""
    if type(metadata) is not dict:
        row = _array("metadata", metadata, len(METADATA_COLUMNS)).tolist()
        named = zip(METADATA_COLUMNS, row, strict=False)
        metadata = {name: number for name, number in named if number == number}  # all but NaN
        if len(row) != len(METADATA_COLUMNS):
            raise _InDoubt
    if not metadata:
        return {}
    kinds = set(map(type, metadata.values()))
    if not metadata.keys() <= _KNOWN_METADATA or not kinds <= _NUMBERS_OR_NONE:
        raise _InDoubt
    if not all(abs(value) <= LARGEST for value in metadata.values() if value):  # neither null nor zero needs a look
        raise _InDoubt
    if kinds == _FLOATS and SENTINELS.isdisjoint(metadata.values()):
        return metadata  # as most are: clean already
    return clean_metadata(metadata)


def _text(value: object, allowed: re.Pattern[str]) -> str:
    if type(value) is str and allowed.fullmatch(value) is not None:
        return value
    raise _InDoubt


def _read(
    document: object,
    settings: Settings,
    read_options: Callable[[object], OptionsT],
    read_items: Callable[[Sequence[object], Sequence[str]], list[ItemT | InvalidCurve]],
) -> ParsedBody[ItemT, OptionsT]:
    if not isinstance(document, dict):
        raise ProblemError(INVALID, errors=[field_error("", "model_type")])
    if "light_curves" in document:
        curves = _check_envelope(document, settings)
        options = read_options(document.get("options", {}))
        return ParsedBody(tuple(read_items(curves, [f"/light_curves/{i}" for i in range(len(curves))])), options)
    columns = {name: value for name, value in document.items() if name != "options"}
    options = read_options(document.get("options", {}))
    (item,) = read_items([columns], [""])
    if isinstance(item, InvalidCurve):
        raise ProblemError(INVALID, errors=item.errors)
    return ParsedBody((item,), options, bare=True)


def _check_envelope(document: dict[str, object], settings: Settings) -> list[object]:
    """Return the light curves of a body that holds many."""
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
    return curves


def _read_options(model: type[OptionsT], settings: Settings, defaults: Mapping[str, object], value: object) -> OptionsT:
    if value == _NO_OPTIONS and not defaults:
        usual: OptionsT = _USUAL[model]
        return usual
    if isinstance(value, dict) and (unknown := _unknown_names(value, model.model_fields, "/options")):
        raise ProblemError(INVALID, errors=unknown)
    try:
        options = model.model_validate({**defaults, **value} if isinstance(value, dict) else value)
    except ValidationError as error:
        raise ProblemError(INVALID, errors=field_errors(error.errors(), "/options")) from None
    check_deadline(options.deadline_ms, "/options/deadline_ms", settings)
    return options


_USUAL: dict[type[Options], Any] = {Options: Options()}


def _read_items(
    form: type[FormT],
    build: Callable[[Sequence[FormT]], Sequence[ItemT | LightCurveError]],
    settings: Settings,
    values: Sequence[object],
    parents: Sequence[str],
) -> list[ItemT | InvalidCurve]:
    """Build items, or say what is wrong with each; ``parents`` are where they stand in the body."""
    checked = [_check(form, settings, value, parent) for value, parent in zip(values, parents, strict=True)]
    built = iter(build([each for each in checked if not isinstance(each, list)]))
    items: list[ItemT | InvalidCurve] = []
    for value, parent, form_or_errors in zip(values, parents, checked, strict=True):
        item = InvalidCurve(form_or_errors, _echoed_id(value)) if isinstance(form_or_errors, list) else next(built)
        if isinstance(item, LightCurveError) and not isinstance(item, InvalidCurve):
            fault = FieldError(pointer=parent + item.pointer, reason=item.reason, detail=str(item))
            item = InvalidCurve([fault], _echoed_id(value))
        items.append(item)
    return items


def _check(form: type[FormT], settings: Settings, value: object, parent: str) -> FormT | list[FieldError]:
    """Validate a value; returns the form of it, or its faults."""
    if errors := _cheap_faults(value, form, settings, parent):
        return errors
    try:
        return form.model_validate(value)
    except ValidationError as error:
        return field_errors(error.errors(include_url=False, include_context=False, include_input=False), parent)


def _build_curves(forms: Sequence[LightCurveIn]) -> list[LightCurve | LightCurveError]:
    return _build([_columns(form) for form in forms])


def _build(many: Sequence[Columns]) -> list[LightCurve | LightCurveError]:
    if len(many) != 1:
        return light_curves(many) if many else []
    try:
        return [many[0].light_curve()]
    except LightCurveError as error:
        return [error]


def _columns(form: LightCurveIn) -> Columns:
    return Columns(
        form.mjd,
        form.flux if form.flux_kind == "difference" else without_median(form.flux, form.band),
        form.flux_err,
        form.band,
        form.detected,
        clean_metadata(form.metadata) if form.metadata else {},
        form.object_id,
        form.flux_unit,
        form.survey,
    )


def _cheap_faults(value: object, form: type[LightCurveIn], settings: Settings, parent: str) -> list[FieldError]:
    """Faults looked for before validation, whose cost would grow with what a hostile client sends."""
    if not isinstance(value, dict):
        return [field_error(parent, "model_type")]
    if unknown := _unknown_names(value, form.model_fields, parent):
        return unknown
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and (unknown := _unknown_names(metadata, _KNOWN_METADATA, f"{parent}/metadata")):
        return unknown
    return _long_columns(value, settings.max_points, parent, "too_many_points", "observations in a light curve")


def _long_columns(
    columns: Mapping[str, object], limit: int, parent: str, reason: str, counted: str
) -> list[FieldError]:
    return [
        FieldError(pointer=f"{parent}/{name}", reason=reason, detail=f"at most {limit} {counted} are accepted")
        for name, column in columns.items()
        if forms.count(name, column) > limit
    ]


def _unknown_names(value: Mapping[str, object], fields: Container[str], parent: str = "") -> list[FieldError]:
    names = islice((name for name in value if name not in fields), MAX_FIELD_ERRORS)
    return [field_error(parent + pointer([name]), "extra_forbidden") for name in names]


def _echoed_id(value: object) -> str:
    """Return the name of a curve that is wrong in some other way, so that its sender can tell which it was."""
    name = value.get("object_id", "") if isinstance(value, dict) else ""
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    return name if isinstance(name, str) and len(name) <= MAX_ID_LENGTH else ""


async def parsed(
    call: Call, data: bytes, read: Callable[[object], ParsedBody[ItemT, OptionsT]], sent: Format = JSON
) -> ParsedBody[ItemT, OptionsT]:
    """Items and options of a body in a format, here or, where it takes long, in a thread."""
    large = len(data) > LARGE_BYTES
    if sent.slow_start or len(data) > INLINE_BYTES:
        return await call.service.run_in_thread(lambda: _timed_check(_parse(data, sent, call), read, call), large)
    document = _parse(data, sent, call)
    # A few kilobytes are parsed in no time, but may hold a thousand light curves to check, and to refuse.
    work = partial(_timed_check, document, read, call)
    return await call.run_maybe_in_thread(work, _count(document) > INLINE_ITEMS, large)


def _parse(data: bytes, sent: Format, call: Call) -> object:
    assert sent.read is not None
    document = sent.read(data, call.settings)
    call.stopwatch.lap("decode")
    return document


def _count(document: object) -> int:
    """Count what a parsed body holds for light curves, good or not."""
    curves = document.get("light_curves") if isinstance(document, dict) else None
    return len(curves) if isinstance(curves, list) else 1


def _timed_check(
    document: object, read: Callable[[object], ParsedBody[ItemT, OptionsT]], call: Call
) -> ParsedBody[ItemT, OptionsT]:
    body = read(document)
    call.stopwatch.lap("validate")
    return body


def check_bare(body: ParsedBody[ItemT, OptionsT], outcomes: Sequence[Outcome]) -> None:
    """Refuse to answer a request that is a single light curve which failed: there is nothing else to tell (500)."""
    if body.bare and outcomes[0].status == "failed":
        raise ProblemError(errors.INTERNAL, outcomes[0].detail)


def classified(
    writers: Sequence[ClassWriter],
    items: Sequence[LightCurve | InvalidCurve],
    outcomes: Sequence[Outcome],
    options: Options,
) -> Answers:
    """Say what became of light curves, ready to be written in any format.

    Parameters
    ----------
    writers : of the model asked about each; the reply is in the name of the first, and results of others name theirs.
    """
    replies = writers[0]
    results = each_written(
        writers,
        outcomes,
        [{"object_id": item.object_id} for item in items],
        [faults(item) for item in items],
        options.embedding,
        options.coverage,
    )
    return Answers(
        replies.provenance, replies.classes, replies.groups, replies.bands, replies.embedding_dim, results, options
    )


def checked_prior(handle: ModelHandle, prior: AskedPrior, usual: str, where: str = "/options/prior") -> ClassWriter:
    """Return the writer of a classifier's results under a prior.

    Parameters
    ----------
    prior : that the request asks for.
    usual : name of the prior where the request asks for none, if the model has it.
    where : pointer to ``prior`` in the request.

    Raises
    ------
    ProblemError
        422 where the model cannot use what the request asks for.
    """
    try:
        return usual_writer(handle, usual) if prior is None else class_writer(handle, prior)
    except PriorError as error:
        fault = FieldError(pointer=where + error.pointer, reason=error.reason, detail=str(error))
        raise ProblemError(errors.INVALID, errors=[fault]) from None


def class_writers(
    handles: Sequence[ModelHandle], prior: AskedPrior, usual: str, where: str = "/options/prior"
) -> list[ClassWriter]:
    """Return the writer for each light curve, one object for all of a model; raises as :func:`checked_prior`."""
    writers = {handle: checked_prior(handle, prior, usual, where) for handle in dict.fromkeys(handles)}
    return [writers[handle] for handle in handles]


def faults(item: object) -> tuple[FieldError, ...]:
    """Values at fault in an item."""
    return item.errors if isinstance(item, InvalidCurve) else ()
