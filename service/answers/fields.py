"""Faults of values: pydantic's findings, in the words of this interface."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MAX_FIELD_ERRORS = 20
_SHOWN_NAME = 60


class FieldError(BaseModel):
    """One value at fault."""

    model_config = ConfigDict(frozen=True)

    pointer: str = Field(description="JSON pointer into the body, such as /light_curves/3/flux/17, or /query/NAME")
    reason: str = Field(description="machine-readable code, such as not_finite")
    detail: str = Field(description="the rule that is broken, for people")


# pydantic's error types: our reason, and the rule in our words where pydantic's are not plain.
_REASONS: dict[str, tuple[str, str]] = {
    "missing": ("missing", "this field is required"),
    "extra_forbidden": ("unknown_field", "there is no field of this name"),
    "float_type": ("not_a_number", "must be a number"),
    "int_type": ("not_an_integer", "must be an integer"),
    "bool_type": ("not_a_boolean", "must be true or false"),
    "string_type": ("not_a_string", "must be a string"),
    "list_type": ("not_a_list", "must be a list"),
    "dict_type": ("not_an_object", "must be an object"),
    "model_type": ("not_an_object", "must be an object"),
    "finite_number": ("not_finite", "must be finite"),
    "too_short": ("empty", "must not be empty"),
    "int_parsing": ("not_an_integer", "must be an integer"),
    "bool_parsing": ("not_a_boolean", "must be true or false"),
    "literal_error": ("not_one_of", ""),
    "string_too_long": ("too_long", ""),
    "greater_than_equal": ("too_small", ""),
}


def field_errors(errors: Iterable[Mapping[str, Any]], parent: str = "") -> list[FieldError]:
    """Translate pydantic's errors, with JSON pointers that start at ``parent``."""
    return [field_error(parent + pointer(error["loc"]), error["type"], error["msg"]) for error in errors]


def pointer(steps: Iterable[object]) -> str:
    """JSON pointer (RFC 6901); a name too long to repeat is cut short."""
    return "".join("/" + str(step)[:_SHOWN_NAME].replace("~", "~0").replace("/", "~1") for step in steps)


def field_error(pointer: str, kind: str, message: str = "") -> FieldError:
    """Translate an error of one of pydantic's types."""
    reason, detail = _REASONS.get(kind, (kind, ""))
    return FieldError(pointer=pointer, reason=reason, detail=detail or message)
