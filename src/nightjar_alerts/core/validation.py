"""Validation of decoded light curves: from :class:`LightCurveIn` to :class:`models.lightcurve.LightCurve`.

It checks constraints that the schema cannot express (equal lengths, finite values, known bands, described filters) and
converts columns to arrays. An invalid light curve becomes an :class:`InvalidLightCurve` and does not affect others.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from nightjar_alerts.core.brightness import check_errors, to_fluxes
from nightjar_alerts.core.decoding import NEVER_EMPTY, find_column_error, short_id
from nightjar_alerts.core.errors import (
    INTERNAL_ERROR,
    NOT_UNICODE,
    NOT_UNICODE_TEXT,
    FieldError,
    InvalidLightCurve,
    pointer,
)
from nightjar_alerts.core.request import (
    DTYPES,
    MAX_FILTER_NAME,
    MAX_ID_LENGTH,
    MAX_SAFE_INTEGER,
    FilterIn,
    LightCurveIn,
    missing_columns,
)
from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.checks import PhotometryWarning
from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError
from nightjar_alerts.models.metadata import LARGEST, METADATA_COLUMNS, clean_metadata, implausible_metadata
from nightjar_alerts.models.photometry import FILTERS, NAMES, NJY_PER_UNIT, FluxUnit, nearest_band
from nightjar_alerts.tables import TableObject

log = logging.getLogger(__name__)

_DTYPES: Final = {name: np.dtype(kind) for name, kind in DTYPES.items()}
_NUMERIC: Final = ("mjd", "flux", "flux_err", "mag", "mag_err")
_FLAGS: Final = ("detected", "upper_limit")
_COLUMNS: Final = (*_NUMERIC, "band", *_FLAGS)
_TYPED: Final = [name for name in LightCurveIn.__struct_fields__ if name in DTYPES]


def validate_light_curves(
    decoded: Sequence[LightCurveIn | InvalidLightCurve],
    max_points: int,
    *,
    binary_columns: bool = True,
    parents: Sequence[str] | None = None,
) -> list[LightCurve | InvalidLightCurve]:
    """Convert each light curve, or return its errors, in order.

    Parameters
    ----------
    max_points : maximum number of observations in a light curve.
    binary_columns : whether a column may be bytes; False for decoded JSON.
    parents : JSON pointer of each light curve in its document; default: errors point into the light curve.
    """
    parents = [""] * len(decoded) if parents is None else parents
    columns = [
        sent if isinstance(sent, InvalidLightCurve) else _to_columns(sent, max_points, binary_columns, parent)
        for sent, parent in zip(decoded, parents, strict=True)
    ]
    built = iter(_build([valid for valid in columns if isinstance(valid, Columns)]))
    curves: list[LightCurve | InvalidLightCurve] = []
    for sent, converted, parent in zip(decoded, columns, parents, strict=True):
        if isinstance(converted, InvalidLightCurve):
            curves.append(converted)
            continue
        curve = next(built)
        if isinstance(curve, LightCurveError):
            curves.append(InvalidLightCurve([_to_field_error(curve, parent)], converted.object_id))
        else:
            curves.append(_annotate(curve, sent) if isinstance(sent, LightCurveIn) else curve)
    return curves


def _annotate(curve: LightCurve, sent: LightCurveIn) -> LightCurve:
    """Add described filters, the number of upper limits and warnings to a light curve."""
    changes: dict[str, Any] = {}
    if sent.filters is not UNSET:
        changes["described_filters"] = _choose_bands(sent.filters)
        named = sent.band if isinstance(sent.band, list) else ()
        if unused := [name for name in sent.filters if name not in named]:
            detail = f"no observation is in {', '.join(unused)}, which filters describes: check the names in band"
            changes["warnings"] = (PhotometryWarning("unused_filter", detail),)
    if sent.upper_limit is not None and (limits := _count_limits(sent.upper_limit)):
        changes["dropped"] = {"upper_limit": limits}
    return (replace(curve, **changes) if changes else curve).with_warnings(check_total=sent.flux_kind is UNSET)


def _count_limits(column: Any) -> int:
    return int(np.count_nonzero(np.frombuffer(column, np.uint8) if isinstance(column, bytes) else column))


def _build(columns: Sequence[Columns]) -> Sequence[LightCurve | LightCurveError]:
    if len(columns) != 1:
        return light_curves(columns) if columns else []
    try:
        return [columns[0].light_curve()]
    except LightCurveError as error:
        return [error]


def table_light_curve(item: TableObject, max_points: int | None = None) -> LightCurve | InvalidLightCurve:
    """Return the light curve of an object of a table, or its error; an error that is not expected is logged.

    Parameters
    ----------
    max_points : maximum number of observations; None for any number.
    """
    try:
        _to_object_id(item.object_id)
        if max_points is not None and len(item.mjd) > max_points:
            message = f"a light curve may have at most {max_points} observations; this one has {len(item.mjd)}"
            raise LightCurveError("", "too_many_points", message)
        return item.light_curve()
    except LightCurveError as error:
        return InvalidLightCurve([_to_field_error(error)], short_id(item.object_id))
    except Exception as error:  # one bad object must not end the reading of a table
        log.error("an object of a table could not be converted", exc_info=error)
        failed = FieldError(
            pointer="", reason=INTERNAL_ERROR, detail="this object could not be converted; the log has the reason"
        )
        return InvalidLightCurve([failed], short_id(item.object_id))


def table_light_curves(items: Sequence[TableObject]) -> list[LightCurve | InvalidLightCurve]:
    """Return the light curve of each object, or its error, as :func:`table_light_curve` does.

    Objects of which every observation is usable are built together, which takes a third of the time.
    """
    plain = [item for item in items if not item.rejected and item.object_id.isascii()]
    plain = [item for item in plain if len(item.mjd) > 0 and len(item.object_id) <= MAX_ID_LENGTH]
    built: dict[int, LightCurve] = {}
    try:
        curves = light_curves([item.columns() for item in plain])
        for item, curve in zip(plain, curves, strict=True):
            if isinstance(curve, LightCurve):
                built[id(item)] = item.completed(curve)
    except Exception as error:  # of one object, which is found when each is built alone
        log.warning("objects of a table could not be converted together", exc_info=error)
    return [built[id(item)] if id(item) in built else table_light_curve(item) for item in items]


def _to_field_error(error: LightCurveError, parent: str = "") -> FieldError:
    return FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error))


def _to_columns(sent: LightCurveIn, max_points: int, binary_columns: bool, parent: str) -> Columns | InvalidLightCurve:
    """Convert the columns of a light curve, or return all errors found."""
    columns: dict[str, Any] = {name: None if (column := getattr(sent, name)) is UNSET else column for name in _COLUMNS}
    errors = _find_type_errors(sent, columns, binary_columns, parent) or [
        FieldError(
            pointer=f"{parent}/{name}",
            reason="too_many_points",
            detail=f"a light curve may have at most {max_points} observations",
        )
        for name, column in columns.items()
        if column is not None and _length(name, column) > max_points
    ]
    if errors:
        return InvalidLightCurve(errors, short_id(sent.object_id))

    def convert(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except LightCurveError as error:
            errors.append(_to_field_error(error, parent))

    has_magnitudes = columns["mag"] is not None
    columns = {name: convert(_to_column, name, column) for name, column in columns.items()}
    if not has_magnitudes:
        for name in ("flux", "flux_err"):
            convert(_reject_nulls, name, getattr(sent, name), columns["upper_limit"])
    metadata = convert(_to_metadata, sent.metadata)
    object_id = convert(_to_object_id, sent.object_id)
    described = convert(_choose_bands, sent.filters)
    convert(_check_survey, sent.survey)
    convert(_check_position, sent.ra, sent.dec)
    if errors:
        return InvalidLightCurve(errors, short_id(sent.object_id))
    try:
        used = None if columns["upper_limit"] is None else _measured_rows(columns)
        # Medians are per filter, so they are subtracted before filters are mapped to bands.
        flux, flux_err, levels = to_fluxes(sent, columns)
    except LightCurveError as error:
        return InvalidLightCurve([_to_field_error(error, parent)], short_id(sent.object_id))
    mjd, band, detected = columns["mjd"], columns["band"], columns["detected"]
    if described and isinstance(band, list):
        band = [described.get(name, name) for name in band]
    if used is not None:
        mjd, flux, flux_err = mjd[used], flux[used], flux_err[used]
        band = [band[row] for row in used.tolist()] if isinstance(band, list) else band[used]
        detected = None if detected is None else np.asarray(detected, np.bool_)[used]
    survey, reference = sent.survey.lower(), _reference_of_filters(levels, described, sent.flux_unit)
    return Columns(
        mjd, flux, flux_err, band, detected, metadata, object_id, sent.flux_unit, survey, sent.ra, sent.dec, reference
    )


def _reference_of_filters(
    levels: Mapping[str, float], described: Mapping[str, str], flux_unit: FluxUnit
) -> dict[str, float]:
    """Return the reference flux in nJy by known filter; empty if two filters that stand for one have different ones."""
    found: dict[str, float] = {}
    for name, level in levels.items():
        band = described.get(name, name)
        if band not in NAMES:
            return {}  # the light curve is invalid
        known = FILTERS[NAMES[band]]
        if found.setdefault(known, level) != level:
            return {}
    return {name: level * NJY_PER_UNIT[flux_unit] for name, level in found.items()}


def _find_type_errors(
    sent: LightCurveIn, columns: Mapping[str, Any], binary_columns: bool, parent: str
) -> list[FieldError]:
    """Return the errors that decoding finds in other formats: missing or empty columns, and text instead of values."""
    given = {name: column for name, column in columns.items() if column is not None}
    missing = missing_columns(given)
    has_text = not binary_columns and bytes in map(type, (*given.values(), sent.metadata))
    if not missing and not has_text and all(len(given[name]) for name in NEVER_EMPTY if name in given):
        return []
    errors: list[FieldError] = []
    for name in _TYPED:
        if name in missing:
            errors.append(FieldError(pointer=f"{parent}/{name}", reason="missing", detail="required field"))
        elif error := find_column_error(name, getattr(sent, name), binary_columns, parent):
            errors.append(error)
    return errors


def _measured_rows(columns: Mapping[str, Any]) -> NDArray[np.intp] | None:
    """Return the rows that are not upper limits; None for all rows. Raises LightCurveError."""
    limits = columns["upper_limit"]
    for name in ("upper_limit", *_COLUMNS):
        column = columns[name]
        if column is not None and len(column) != len(columns["mjd"]):
            message = f"{name} has {len(column)} values where mjd has {len(columns['mjd'])}"
            raise LightCurveError(f"/{name}", "length_mismatch", message)
    if limits.all():
        raise LightCurveError("/upper_limit", "empty", "at least one observation that is no upper limit is needed")
    for name in ("flux_err", "mag_err"):
        check_errors(name, columns[name])
    return np.flatnonzero(~limits) if limits.any() else None


def _reject_nulls(name: str, column: Any, limits: NDArray[np.bool_] | None) -> None:
    """Reject null, except for upper limits, in a column of fluxes without magnitudes. Raises LightCurveError."""
    if not isinstance(column, list) or None not in column:
        return
    limit_rows = set() if limits is None else set(np.flatnonzero(limits).tolist())
    for index, value in enumerate(column):
        if value is None and index not in limit_rows:
            detail = "must be a number; only a point whose upper_limit is true may have null"
            raise LightCurveError(f"/{name}/{index}", "not_a_number", detail)


def _length(name: str, column: Any) -> int:
    return len(column) // _DTYPES[name].itemsize if isinstance(column, bytes) else len(column)


def _to_column(name: str, column: Any) -> Any:
    """Convert numbers and flags to arrays; band names stay a list. Raises LightCurveError."""
    if isinstance(column, bytes):
        column = _to_array(name, column)
    if isinstance(column, np.ndarray):
        return _to_flags(name, column) if name in _FLAGS else column
    if column is None or name in ("band", "detected"):
        return column
    if name == "upper_limit":
        return np.array(column, np.bool_)
    try:
        return np.array(column, np.float64)
    except OverflowError:  # an integer too large for a float
        index = next(index for index, value in enumerate(column) if value and abs(value) > 1e308)
        raise LightCurveError(f"/{name}/{index}", "not_finite", "must be finite") from None


def _to_array(name: str, column: bytes) -> NDArray[Any]:
    dtype = _DTYPES[name]
    if len(column) % dtype.itemsize:
        message = f"{len(column)} bytes are not a whole number of {dtype.name} values"
        raise LightCurveError(f"/{name}", "partial_value", message)
    return np.frombuffer(column, dtype)


def _to_flags(name: str, column: NDArray[Any]) -> NDArray[np.bool_]:
    if column.dtype != np.bool_ and (column > 1).any():
        index = int(np.argmax(column > 1))
        raise LightCurveError(f"/{name}/{index}", "not_a_boolean", "must be true or false")
    return column.astype(np.bool_)


def _to_metadata(metadata: Any) -> dict[str, float]:
    """Return the metadata values by name, without missing ones. Raises LightCurveError."""
    if metadata is UNSET:
        return {}
    if isinstance(metadata, bytes | np.ndarray):
        row = _to_array("metadata", metadata) if isinstance(metadata, bytes) else metadata
        if len(row) != len(METADATA_COLUMNS):
            message = f"must have {len(METADATA_COLUMNS)} float32 values, NaN where one is missing, not {len(row)}"
            raise LightCurveError("/metadata", "wrong_length", message)
        present = {name: value for name, value in zip(METADATA_COLUMNS, row.tolist(), strict=True) if value == value}
    elif isinstance(metadata, dict):  # values by name, NaN for missing ones
        present = {name: value for name, value in metadata.items() if value == value}
    else:
        named = zip(type(metadata).__struct_fields__, msgspec.structs.astuple(metadata), strict=True)
        present = {name: value for name, value in named if value is not UNSET and value is not None}
    for name, value in present.items():
        if not abs(value) <= LARGEST:
            raise LightCurveError(f"/metadata/{name}", "not_finite", "must be finite in single precision")
    for name, detail in implausible_metadata(present).items():
        raise LightCurveError(f"/metadata/{name}", "implausible_metadata", detail)
    return clean_metadata(present)


def _to_object_id(object_id: str | int) -> str:
    if isinstance(object_id, int):
        if abs(object_id) > MAX_SAFE_INTEGER:
            message = "integers beyond 2**53 - 1 lose digits in JSON: send a string"
            raise LightCurveError("/object_id", "inexact_integer", message)
        return str(object_id)
    if len(object_id) > MAX_ID_LENGTH:
        raise LightCurveError("/object_id", "too_long", f"must have at most {MAX_ID_LENGTH} characters")
    if without_surrogates(object_id) != object_id:
        raise LightCurveError("/object_id", NOT_UNICODE, NOT_UNICODE_TEXT)
    return object_id


def _check_survey(survey: str) -> None:
    if survey.endswith("\n"):  # accepted by the pattern of the schema
        detail = "may contain letters, digits and hyphens only"
        raise LightCurveError("/survey", "string_pattern_mismatch", detail)


def _check_position(ra: float | None, dec: float | None) -> None:
    if (ra is None) != (dec is None):
        raise LightCurveError("/ra" if ra is None else "/dec", "missing", "ra and dec are given together")


def _choose_bands(filters: Mapping[str, FilterIn] | UnsetType) -> dict[str, str]:
    """Return the band that is used for each described filter. Raises LightCurveError."""
    if filters is UNSET:
        return {}
    bands = {}
    for name, described in filters.items():
        where = "/filters" + pointer([name])
        if not 0 < len(name) <= MAX_FILTER_NAME:
            raise LightCurveError(where, "wrong_length", f"a filter name must have 1 to {MAX_FILTER_NAME} characters")
        if name in NAMES:
            raise LightCurveError(
                where, "known_band", "this band is known: omit it, or use another name for the filter"
            )
        try:
            bands[name] = nearest_band(described.wavelength_nm)
        except ValueError as error:
            raise LightCurveError(f"{where}/wavelength_nm", "no_band", str(error)) from None
    return bands
