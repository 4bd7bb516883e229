"""Columns of a table: conversion of text and of library types to numpy arrays.

A batch maps names to columns of equal length: arrays, or :class:`Lists` where each row holds several values. Fields of
nested columns have dotted names (``lightcurve.mjd``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import Float64, Int64

Bool = NDArray[np.bool_]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Column whose rows hold lists: row k has ``values[offsets[k]:offsets[k + 1]]``."""

    offsets: Int64
    values: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


Column = Array | Lists
Batch = dict[str, Column]

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
    except (TypeError, ValueError):
        pass
    values = np.full(len(column), np.nan)
    for index, value in enumerate(column):
        if value is None:
            continue
        try:
            values[index] = float(value)
        except (TypeError, ValueError):
            text = str(value).strip().lower()
            none[index] = text not in MISSING_TEXTS
    return values, none


def _mjd_of(days: Array) -> Float64:
    """Return the MJD of datetime64[ns] values, NaT as NaN."""
    since = days - np.datetime64("1858-11-17T00:00:00", "ns")
    mjd = since.astype(np.int64) / 86_400e9
    mjd[np.isnat(days)] = np.nan
    return np.asarray(mjd, np.float64)


_FRACTION_OF_DAY: Final = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(\.\d+)?")
_DATE_AND_TIME: Final = re.compile(
    r"(?P<moment>\d{4}-\d\d-\d\d(?:[T ]\d\d(?::\d\d(?::\d\d(?:\.\d*)?)?)?)?)"
    r"(?:\s*(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d))?"
)
_ZONE: Final = re.compile(r"(?:Z|\s*UTC?|[+-]00:?00)$", re.IGNORECASE)


def iso_times(column: Array) -> tuple[Float64, Bool]:
    """Convert ISO dates, also ``2024-05-01.25`` and ``2024/05/01 06:00``, to MJD; as :func:`numbers` otherwise."""
    values, bad = np.full(len(column), np.nan), np.zeros(len(column), np.bool_)
    for index, value in enumerate(column):
        text = _ZONE.sub("", str(value).strip()) if value is not None else ""
        if text.lower() in MISSING_TEXTS or text == "NaT":
            continue
        try:
            values[index] = iso_time(text)
        except ValueError:
            bad[index] = True
    return values, bad


def iso_time(text: str) -> float:
    """Return the MJD of an ISO date. Raises ValueError."""
    if match := _FRACTION_OF_DAY.fullmatch(text):
        year, month, day, fraction = match.groups()
        date = np.datetime64(f"{year}-{int(month):02}-{int(day):02}", "D")
        return float((date - np.datetime64("1858-11-17", "D")).astype(int)) + float(fraction or 0.0)
    if not (match := _DATE_AND_TIME.fullmatch(text.replace("/", "-"))):
        raise ValueError(f"{text!r} is not an ISO date")
    days = (np.datetime64(match["moment"], "us") - np.datetime64("1858-11-17", "us")).astype(np.int64) / 86_400e6
    if match["sign"] is None:
        return float(days)
    offset = (int(match["hours"]) * 60 + int(match["minutes"])) / 1440.0
    return float(days - offset if match["sign"] == "+" else days + offset)


def texts(column: Array) -> NDArray[np.object_]:
    """Convert a column to text, missing values as empty; whole numbers have no decimal point."""
    if column.dtype.kind == "f":
        return np.array(["" if v != v else str(int(v)) if v == int(v) else repr(float(v)) for v in column], np.object_)
    if column.dtype.kind in "iub":
        return column.astype("U").astype(np.object_)
    try:
        return object_column(list(map(str.strip, column)))
    except TypeError:  # values that are no text
        return object_column([_text(value) for value in column])


def _text(value: object) -> str:
    if value is None or value != value:
        return ""
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
