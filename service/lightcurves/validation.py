"""Validation of decoded light curves: from :class:`LightCurveIn` to :class:`models.lightcurve.LightCurve`.

Checks what the types of the schema cannot express (lengths, finite values, known bands, described filters) and converts
columns to arrays. An invalid light curve becomes an :class:`InvalidLightCurve`; the others are not affected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError, without_median
from nightjar_alerts.models.metadata import LARGEST, METADATA_COLUMNS, clean_metadata
from nightjar_alerts.models.photometry import NAMES, nearest_band
from nightjar_alerts.service.answers.replies import FieldError, pointer
from nightjar_alerts.service.lightcurves.decoding import short_id
from nightjar_alerts.service.lightcurves.errors import InvalidLightCurve
from nightjar_alerts.service.lightcurves.schemas import (
    DTYPES,
    MAX_FILTER_NAME,
    MAX_ID_LENGTH,
    MAX_SAFE_INTEGER,
    FilterIn,
    LightCurveIn,
)

_DTYPES: Final = {name: np.dtype(kind) for name, kind in DTYPES.items()}
_NUMERIC: Final = ("mjd", "flux", "flux_err")


def validate_light_curves(
    decoded: Sequence[LightCurveIn | InvalidLightCurve],
    max_points: int,
    *,
    binary_columns: bool = True,
    parents: Sequence[str] | None = None,
) -> list[LightCurve | InvalidLightCurve]:
    """Build the record of each light curve, or its errors, in order.

    Parameters
    ----------
    max_points : maximum number of observations in a light curve.
    binary_columns : whether a column may be bytes; those of decoded JSON may not.
    parents : JSON pointer of each light curve in its document; default: errors point into the light curve.
    """
    parents = [""] * len(decoded) if parents is None else parents
    columns = [
        each if isinstance(each, InvalidLightCurve) else _to_columns(each, max_points, binary_columns, parent)
        for each, parent in zip(decoded, parents, strict=True)
    ]
    built = iter(_build([each for each in columns if isinstance(each, Columns)]))
    curves: list[LightCurve | InvalidLightCurve] = []
    for sent, each, parent in zip(decoded, columns, parents, strict=True):
        if isinstance(each, InvalidLightCurve):
            curves.append(each)
            continue
        curve = next(built)
        if isinstance(curve, LightCurveError):
            curves.append(InvalidLightCurve([_to_field_error(curve, parent)], each.object_id))
        elif isinstance(sent, LightCurveIn) and sent.filters is not UNSET:
            curves.append(replace(curve, described_filters=_choose_bands(sent.filters)))
        else:
            curves.append(curve)
    return curves


def _build(columns: Sequence[Columns]) -> Sequence[LightCurve | LightCurveError]:
    if len(columns) != 1:
        return light_curves(columns) if columns else []
    try:
        return [columns[0].light_curve()]
    except LightCurveError as error:
        return [error]


def _to_field_error(error: LightCurveError, parent: str) -> FieldError:
    return FieldError(pointer=parent + error.pointer, reason=error.reason, detail=str(error))


def _to_columns(sent: LightCurveIn, max_points: int, binary_columns: bool, parent: str) -> Columns | InvalidLightCurve:
    """Convert the columns of a light curve, or return every error that is found in doing so."""
    columns = {name: getattr(sent, name) for name in (*_NUMERIC, "band", "detected")}
    errors = [
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

    columns = {name: convert(_to_column, name, column, binary_columns) for name, column in columns.items()}
    metadata = convert(_to_metadata, sent.metadata, binary_columns)
    object_id = convert(_to_object_id, sent.object_id)
    described = convert(_choose_bands, sent.filters)
    convert(_check_survey, sent.survey)
    if errors:
        return InvalidLightCurve(errors, short_id(sent.object_id))
    # Medians are those of a filter, so they are subtracted before two filters become one band.
    flux = columns["flux"] if sent.flux_kind == "difference" else without_median(columns["flux"], columns["band"])
    band = columns["band"]
    if described and isinstance(band, list):
        band = [described.get(name, name) for name in band]
    return Columns(
        columns["mjd"],
        flux,
        columns["flux_err"],
        band,
        columns["detected"],
        metadata,
        object_id,
        sent.flux_unit,
        sent.survey,
    )


def _length(name: str, column: Any) -> int:
    return len(column) // _DTYPES[name].itemsize if isinstance(column, bytes) else len(column)


def _to_column(name: str, column: Any, binary_columns: bool) -> Any:
    """Convert a column: numbers and flags to arrays, names of bands stay a list. Raises LightCurveError."""
    if isinstance(column, bytes):
        column = _to_array(name, column, binary_columns)
        if name == "detected":
            return _to_flags(column)
    if isinstance(column, np.ndarray):
        if not column.size and name != "detected":
            raise LightCurveError(f"/{name}", "empty", "must not be empty")
        return _to_flags(column) if name == "detected" else column
    if name not in _NUMERIC:
        return column
    try:
        return np.array(column, np.float64)
    except OverflowError:  # an integer beyond every float
        index = next(index for index, value in enumerate(column) if abs(value) > 1e308)
        raise LightCurveError(f"/{name}/{index}", "not_finite", "must be finite") from None


def _to_array(name: str, column: bytes, binary_columns: bool) -> NDArray[Any]:
    dtype = _DTYPES[name]
    if not binary_columns:
        expected = ("not_an_object", "must be an object") if name == "metadata" else ("not_a_list", "must be a list")
        raise LightCurveError(f"/{name}", *expected)
    if len(column) % dtype.itemsize:
        message = f"{len(column)} bytes are not a whole number of {dtype.name} values"
        raise LightCurveError(f"/{name}", "partial_value", message)
    return np.frombuffer(column, dtype)


def _to_flags(column: NDArray[Any]) -> NDArray[np.bool_]:
    if column.dtype != np.bool_ and (column > 1).any():
        index = int(np.argmax(column > 1))
        raise LightCurveError(f"/detected/{index}", "not_a_boolean", "must be true or false")
    return column.astype(np.bool_)


def _to_metadata(metadata: Any, binary_columns: bool) -> dict[str, float]:
    """Return the metadata that have a value, by name. Raises LightCurveError."""
    if metadata is UNSET:
        return {}
    if isinstance(metadata, bytes | np.ndarray):
        row = _to_array("metadata", metadata, binary_columns) if isinstance(metadata, bytes) else metadata
        if len(row) != len(METADATA_COLUMNS):
            message = f"must have {len(METADATA_COLUMNS)} float32 values, NaN where one is missing, not {len(row)}"
            raise LightCurveError("/metadata", "wrong_length", message)
        present = {name: value for name, value in zip(METADATA_COLUMNS, row.tolist(), strict=True) if value == value}
    elif isinstance(metadata, dict):  # numbers by name, NaN where one is missing
        present = {name: value for name, value in metadata.items() if value == value}
    else:
        named = zip(type(metadata).__struct_fields__, msgspec.structs.astuple(metadata), strict=True)
        present = {name: value for name, value in named if value is not UNSET and value is not None}
    for name, value in present.items():
        if not abs(value) <= LARGEST:
            raise LightCurveError(f"/metadata/{name}", "not_finite", "must be finite in single precision")
    return clean_metadata(present)


def _to_object_id(object_id: str | int) -> str:
    if isinstance(object_id, int):
        if abs(object_id) > MAX_SAFE_INTEGER:
            message = "integers beyond 2**53 - 1 lose digits in JSON: send a string"
            raise LightCurveError("/object_id", "inexact_integer", message)
        return str(object_id)
    if len(object_id) > MAX_ID_LENGTH:
        raise LightCurveError("/object_id", "too_long", f"must have at most {MAX_ID_LENGTH} characters")
    return object_id


def _check_survey(survey: str) -> None:
    if survey.endswith("\n"):  # which the schema's pattern accepts
        detail = "may contain lowercase letters, digits and hyphens only"
        raise LightCurveError("/survey", "string_pattern_mismatch", detail)


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
