"""Columns in one piece: little-endian values without a list around them.

JSON has no such thing. A msgpack body carries a column as ``bin``, an Arrow body gives an array; both pass the models
of :mod:`service.http.body.forms` as arrays, and whatever is wrong with them gets the words that a list would get.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

from models.metadata import METADATA_COLUMNS

DTYPES: Final[Mapping[str, str]] = {
    "mjd": "<f8",
    "flux": "<f4",
    "flux_err": "<f4",
    "band": "u1",
    "detected": "u1",
    "metadata": "<f4",
}
"""What the bytes of a column are: ``band`` an index into u, g, r, i, z, Y; ``detected`` 0 or 1; ``metadata`` one value
for each of METADATA_COLUMNS in their order, NaN where it is missing."""


def count(name: str, column: object) -> int:
    """Number of values of a column of any form; 0 for what is none."""
    if isinstance(column, bytes):
        return len(column) // np.dtype(DTYPES.get(name, "u1")).itemsize
    return len(column) if isinstance(column, list | np.ndarray) else 0


def column(name: str) -> WrapValidator:
    """Let a field that validates a list take ``bytes`` or an array as well; it becomes an array."""
    dtype = np.dtype(DTYPES[name])

    def read(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        array = _unpack(value, dtype)
        return handler(value) if array is None else _not_empty(array)

    return WrapValidator(read)


def _flags(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    array = _unpack(value, np.dtype(DTYPES["detected"]))
    if array is None:
        return handler(value)
    if _not_empty(array).dtype != np.bool_ and (array > 1).any():
        at = int(np.argmax(array > 1))
        return handler([*([True] * at), int(array[at])])  # which says what it says of a list
    return array.astype(np.bool_)


def _metadata(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    array = _unpack(value, np.dtype(DTYPES["metadata"]))
    if array is None:
        return handler(value)
    if len(array) != len(METADATA_COLUMNS):
        message = "must hold {wanted} float32 values, NaN where one is missing, not {found}"
        raise PydanticCustomError("wrong_length", message, {"wanted": len(METADATA_COLUMNS), "found": len(array)})
    present = ~np.isnan(array)
    named = zip(METADATA_COLUMNS, array.tolist(), present.tolist(), strict=True)
    return handler({name: number for name, number, there in named if there})


FLAGS = WrapValidator(_flags)
METADATA = WrapValidator(_metadata)


def _unpack(value: object, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The array that ``value`` is or holds, None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, bytes):
        return None
    if len(value) % dtype.itemsize:
        message = "{size} bytes are no whole number of {dtype} values"
        raise PydanticCustomError("partial_value", message, {"size": len(value), "dtype": dtype.name})
    return np.frombuffer(value, dtype)


def _not_empty(array: NDArray[Any]) -> NDArray[Any]:
    if not array.size:
        raise PydanticKnownError("too_short", {"field_type": "List", "min_length": 1, "actual_length": 0})
    return array
