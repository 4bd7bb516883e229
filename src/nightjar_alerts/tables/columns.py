"""Columns of a table: conversion of text and of library types to numpy arrays.

A batch maps names to columns of equal length: arrays, or :class:`Lists` where each row holds several values. Fields of
nested columns have dotted names (``lightcurve.mjd``).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import Float64, Int64, mjd_tai_of_mjd

Bool = NDArray[np.bool_]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Column whose rows hold lists: row k has ``values[offsets[k]:offsets[k + 1]]``."""

    offsets: Int64
    values: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> "Lists":
        offsets = self.offsets[rows.start : rows.stop + 1]
        return Lists(offsets - offsets[0], self.values[offsets[0] : offsets[-1]])


Column = Array | Lists
TableColumns = dict[str, Column]

MISSING_TEXTS: Final = frozenset(
    {"", "-", "--", "nan", "null", "none", "na", "n/a", "masked", "inf", "-inf", "infinity", "-infinity", "...", "\\n"}
)
_TRUE: Final = frozenset({"1", "1.0", "t", "true", "y", "yes"})


def is_text(column: Array) -> bool:
    """Return True for a column of strings."""
    return column.dtype.kind in "OUST"


def numbers(column: Array) -> tuple[Float64, Bool]:
    """Convert a column to float64; missing values and text that is no number are NaN.

    Returns
    -------
    Numbers and a mask of the values that are neither numbers nor missing, both of shape (n,).
    """
    none = np.zeros(len(column), np.bool_)
    if not is_text(column):
        if column.dtype.kind == "M":
            return _mjd_of(column.astype("datetime64[ns]")), none
        return column.astype(np.float64), none
    try:
        return np.fromiter(map(float, column), np.float64, len(column)), none
    except (TypeError, ValueError, OverflowError):
        pass
    values = np.full(len(column), np.nan)
    for index, value in enumerate(column):
        if value is None:
            continue
        try:
            values[index] = float(value)
        except (TypeError, ValueError, OverflowError):  # of an integer of more than 308 digits
            text = _text(value).lower()
            none[index] = text not in MISSING_TEXTS
    return values, none


def mjd_of_times(times: Any) -> Float64 | None:
    """Return times as MJD (TAI), shape (n,), missing ones as NaN; None if the column does not contain times.

    They are those of astropy in any scale, and dates (datetime, numpy, pandas, ISO text), UTC unless they have a zone.
    """
    if hasattr(times, "mjd") and hasattr(times, "scale"):  # astropy.time.Time
        mjd = (times if times.scale in ("local", "ut1") else times.tai).mjd
        return np.asarray(mjd.filled(np.nan) if hasattr(mjd, "filled") else mjd, np.float64)
    values = times if isinstance(times, list | tuple) or getattr(times, "ndim", 0) == 1 else ()
    if not len(values):
        return None
    first = next(iter(values))
    if hasattr(first, "mjd"):
        return np.array([mjd_of_times(each) for each in values], np.float64)
    if not isinstance(first, str | date | np.datetime64):
        return None
    column = column_of(values)
    assert isinstance(column, np.ndarray)
    mjd, bad = numbers(column) if column.dtype.kind == "M" else iso_times(column)
    return None if bad.any() else mjd_tai_of_mjd(mjd)


def _mjd_of(days: Array) -> Float64:
    """Return the MJD of datetime64[ns] values, NaT as NaN."""
    since = days - np.datetime64("1858-11-17T00:00:00", "ns")
    mjd = since.astype(np.int64) / 86_400e9
    mjd[np.isnat(days)] = np.nan
    return np.asarray(mjd, np.float64)


_DATE: Final = re.compile(r"(\d{4})([-/]?)(\d{1,2})\2(\d{1,2})(\.\d+)?")
_ZONE: Final = re.compile(r"\s*UTC?$|\s+(?=[+-]\d\d:?\d\d$)", re.IGNORECASE)
"""``UT`` or ``UTC``, or the space in front of an offset."""
MAX_DATE: Final = 64
"""Characters of a date; the expressions above need time that grows with the square of its blanks."""
_MJD_ZERO: Final = datetime(1858, 11, 17)


def iso_times(column: Array) -> tuple[Float64, Bool]:
    """Convert ISO dates, also ``2024-05-01.25`` and ``2024/05/01 06:00``, to MJD; as :func:`numbers` otherwise."""
    values, bad = np.full(len(column), np.nan), np.zeros(len(column), np.bool_)
    for index, value in enumerate(column):
        text = _text(value)
        if text.lower() in MISSING_TEXTS or text == "NaT":
            continue
        try:
            values[index] = _iso_time(text)
        except (ValueError, OverflowError):  # of a time zone at the edge of the calendar
            bad[index] = True
    return values, bad


def _iso_time(text: str) -> float:
    """Return the MJD of an ISO date. Raises ValueError."""
    if len(text) > MAX_DATE:
        raise ValueError
    fraction = 0.0
    if match := _DATE.fullmatch(text):
        year, _, month, day, fraction_text = match.groups()
        text, fraction = f"{year}-{int(month):02}-{int(day):02}", float(fraction_text or 0.0)
    time = datetime.fromisoformat(_ZONE.sub("", text).replace("/", "-").rstrip("."))
    if time.tzinfo:
        time = time.astimezone(UTC).replace(tzinfo=None)
    return (time - _MJD_ZERO) / timedelta(days=1) + fraction


def texts(column: Array) -> NDArray[np.object_]:
    """Convert a column to text, missing values as empty; whole numbers have no decimal point."""
    if column.dtype.kind == "f":
        values = map(float, column)
        return object_column(["" if v != v else str(int(v)) if v.is_integer() else repr(v) for v in values])
    if column.dtype.kind in "iub":
        return column.astype("U").astype(np.object_)
    try:
        return object_column(list(map(str.strip, column)))
    except TypeError:  # values that are no text
        return object_column([_text(value) for value in column])


def _text(value: object) -> str:
    if value is None or isinstance(value, dict | list | tuple) or value != value:
        return ""  # also for objects and lists of JSON, which may be nested
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    return str(value).strip()


def flags(column: Array) -> Bool:
    """Convert booleans, numbers (not zero) or text (1, t, true, y, yes) to flags; missing values are False."""
    if column.dtype.kind == "b":
        return column.astype(np.bool_)
    if not is_text(column):
        return np.asarray(np.nan_to_num(column.astype(np.float64)) != 0, np.bool_)
    return np.array([_text(value).lower() in _TRUE for value in column], np.bool_)


def object_column(values: Sequence[object]) -> NDArray[np.object_]:
    """Return an array of objects, shape (n,), of values of any type."""
    column = np.empty(len(values), np.object_)
    column[:] = values
    return column


def lists_of(rows: Sequence[Any]) -> Lists:
    """Return rows of lists as one column; None is an empty list."""
    present = [row for row in rows if row is not None and len(row)]
    offsets = np.cumsum([0, *(0 if row is None else len(row) for row in rows)], dtype=np.int64)
    if present and all(isinstance(row, np.ndarray) and row.dtype.kind in "fiub" for row in present):
        return Lists(offsets, np.concatenate(present))
    flat = [value for row in present for value in row]
    if any(isinstance(value, list | tuple | np.ndarray) for value in flat):  # lists in lists, which hold no light curve
        return Lists(offsets, object_column([None] * len(flat)))
    values = column_of(flat)
    assert isinstance(values, np.ndarray)
    return Lists(offsets, values)


def column_of(values: Any) -> Column:
    """Return an array, masked or not, or a sequence of numbers, flags, text or lists as a column."""
    if not isinstance(values, np.ndarray):
        values = list(values)
        kinds = set(map(type, values))
        if kinds & {list, tuple, np.ndarray}:
            return lists_of([value if isinstance(value, list | tuple | np.ndarray) else None for value in values])
        are_numbers = all(issubclass(kind, float | int) and kind is not bool for kind in kinds)
        if not kinds or not (are_numbers or kinds <= {bool, np.bool_}):
            return object_column(values)
        values = np.array(values)
        if values.dtype.kind == "O" or (values.dtype.kind == "f" and float not in kinds):  # integers of 64 bits or more
            return object_column(values)
    mask = np.ma.getmaskarray(values)
    array: Array = np.ma.getdata(values)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "f" and mask.any():
        array = np.where(mask, np.nan, array)
    elif array.dtype.kind in "OU" or mask.any():
        array = array.astype(np.object_)
        array[mask] = None
    if array.ndim > 1:
        array = array.reshape(len(array), math.prod(array.shape[1:]))
        return Lists(np.arange(len(array) + 1, dtype=np.int64) * array.shape[1], array.reshape(-1))
    if array.dtype.kind == "O":
        return column_of(list(array))
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
