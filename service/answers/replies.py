"""Base of the pydantic models of responses that are not results, and conversion of pydantic's errors.

:mod:`core.result` declares results.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nightjar_alerts.core import errors as core_errors
from nightjar_alerts.core.errors import pointer

# Reason code by error type of pydantic, and a text to use instead of pydantic's; empty to keep pydantic's.
_REASONS: dict[str, tuple[str, str]] = {
    "missing": ("missing", "this field is required"),
    "extra_forbidden": ("unknown_field", "unknown field"),
    "float_type": ("not_a_number", "must be a number"),
    "int_type": ("not_an_integer", "must be an integer"),
    "bool_type": ("not_a_boolean", "must be true or false"),
    "string_type": ("not_a_string", "must be a string"),
    "list_type": ("not_a_list", "must be a list"),
    "dict_type": ("not_an_object", "must be an object"),
    "model_type": ("not_an_object", "must be an object"),
    "model_attributes_type": ("not_an_object", "must be an object"),
    "finite_number": ("not_finite", "must be finite"),
    "too_short": ("empty", "must not be empty"),
    "int_parsing": ("not_an_integer", "must be an integer"),
    "bool_parsing": ("not_a_boolean", "must be true or false"),
    "literal_error": ("not_one_of", ""),
    "string_too_long": ("too_long", ""),
    "greater_than_equal": ("too_small", ""),
}


def field_errors(errors: Iterable[Mapping[str, Any]]) -> list[core_errors.FieldError]:
    """Convert errors of pydantic (``ValidationError.errors()``)."""
    return [field_error(pointer(error["loc"]), error["type"], error["msg"]) for error in errors]


def field_error(pointer: str, kind: str, message: str = "") -> core_errors.FieldError:
    """Return the field error for an error type of pydantic."""
    reason, detail = _REASONS.get(kind, (kind, ""))
    return core_errors.FieldError(pointer=pointer, reason=reason, detail=detail or message)


class FieldError(BaseModel):
    """An invalid value of a request."""

    pointer: str = Field(description="JSON pointer into the body, such as /light_curves/3/flux/17, or /query/NAME")
    reason: str = Field(description="machine-readable code, such as not_finite")
    detail: str = Field(description="description of the error")


class Reply(BaseModel):
    """Base of JSON responses; undeclared fields are not allowed."""

    model_config = ConfigDict(extra="forbid")
