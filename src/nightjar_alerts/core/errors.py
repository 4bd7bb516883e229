"""Errors of a light curve, and conversion of msgspec errors to :class:`FieldError`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Final

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.lightcurve import LightCurveError
from nightjar_alerts.models.metadata import KNOWN_COLUMNS

MAX_FIELD_ERRORS = 20
_MAX_NAME_LENGTH = 60


_Text = Annotated[str, BeforeValidator(without_surrogates)]  # may quote a value of the request


class FieldError(BaseModel):
    """An invalid value of a request."""

    model_config = ConfigDict(frozen=True)

    pointer: _Text = Field(description="JSON pointer into the body, such as /light_curves/3/flux/17, or /query/NAME")
    reason: str = Field(description="machine-readable code, such as not_finite")
    detail: _Text = Field(description="description of the error")


def pointer(steps: Iterable[object]) -> str:
    """Return a JSON pointer (RFC 6901) with long names truncated."""
    return "".join("/" + str(step)[:_MAX_NAME_LENGTH].replace("~", "~0").replace("/", "~1") for step in steps)


INTERNAL_ERROR: Final = "internal_error"
"""Reason of a light curve whose validation failed; its status is ``failed``."""


NOT_UNICODE: Final = "not_unicode"
NOT_UNICODE_TEXT: Final = "contains half of a UTF-16 surrogate pair"
"""Reason and detail of a text that UTF-8 cannot encode, such as from the escape ``\\ud800`` in JSON."""


class InvalidLightCurve(LightCurveError):
    """A light curve with one or more invalid fields; its attributes as a LightCurveError are those of the first one."""

    def __init__(self, errors: Iterable[FieldError], object_id: str = "") -> None:
        self.errors = tuple(errors)[:MAX_FIELD_ERRORS]
        self.object_id = object_id
        super().__init__(self.errors[0].pointer, self.errors[0].reason, self.errors[0].detail)


_PATH = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_MESSAGE = re.compile(r"^(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
# Prefix of a msgspec message, reason, and detail (empty: the message). The first match counts.
_REASONS: Final[Sequence[tuple[str, str, str]]] = (
    ("Expected `array` of length >=", "empty", "must not be empty"),
    ("Expected `str` of length <=", "too_long", ""),
    ("Expected `object` of length <=", "too_long", ""),
    ("Expected `str` matching", "string_pattern_mismatch", ""),
    ("Expected `int` >=", "too_small", ""),
    ("Expected `float` >", "greater_than", ""),
    ("Expected `float` <", "less_than", ""),
    ("Expected `str | object", "prior_type", "must be a name or an object of weights by class"),
    ("Invalid enum value", "not_one_of", ""),
    ("Number out of range", "not_finite", "must be finite"),
    ("Invalid base64", "not_a_list", "must be a list"),
    ("Unpaired surrogate", NOT_UNICODE, NOT_UNICODE_TEXT),
)
# Expected type in a message, reason and detail. The first match counts.
_TYPES: Final[Sequence[tuple[str, str, str]]] = (
    ("array", "not_a_list", "must be a list"),
    ("object", "not_an_object", "must be an object"),
    ("str", "not_a_string", "must be a string"),
    ("float", "not_a_number", "must be a number"),
    ("int", "not_an_integer", "must be an integer"),
    ("bool", "not_a_boolean", "must be true or false"),
)


_METADATA_NAMES: Final[Mapping[str, str]] = {
    "redshift": "zspec (of the object) or hostgal_zspec (of its host)",
    "z": "zspec (of the object) or hostgal_zspec (of its host)",
    "zphot": "hostgal_zphot, with hostgal_zphot_err",
    "ebv": "mwebv",
}
"""Fields for common names of metadata."""


def _unknown_field(where: str, name: str) -> str:
    """Return the detail of an unknown field, with the most similar known name."""
    if not where.endswith("/metadata"):
        return "unknown field"
    similar = _METADATA_NAMES.get(name.lower())
    if similar is None:
        similar = " or ".join(get_close_matches(name.lower(), KNOWN_COLUMNS, 2))
    return (
        f"unknown field; send {similar}" if similar else f"unknown field; known are {', '.join(KNOWN_COLUMNS[:6])}, ..."
    )


def is_key_error(error: msgspec.ValidationError) -> bool:
    """Return True if the error is an object key that is not a valid string."""
    return "`key`" in str(error)


def to_field_error(error: msgspec.ValidationError, parent: str = "") -> FieldError:
    """Convert a msgspec error; ``parent`` is the JSON pointer of the decoded value."""
    match = _MESSAGE.match(str(error))
    assert match is not None
    text = match["text"]
    where = parent + pointer(name or index for name, index in _PATH.findall(match["path"] or ""))
    if text.startswith("Object missing required field"):
        return FieldError(pointer=where + pointer([text.split("`")[1]]), reason="missing", detail="required field")
    if text.startswith("Object contains unknown field"):
        name = text.partition("`")[2][:-1]
        return FieldError(pointer=where + pointer([name]), reason="unknown_field", detail=_unknown_field(where, name))
    if text.startswith("Invalid base64") and where.endswith("/metadata"):
        return FieldError(pointer=where, reason="not_an_object", detail="must be an object")
    for beginning, reason, detail in _REASONS:
        if text.startswith(beginning):
            return FieldError(pointer=where, reason=reason, detail=detail or text.replace("`", ""))
    expected = text.partition(", got")[0]
    for name, reason, detail in _TYPES:
        if name in expected:
            return FieldError(pointer=where, reason=reason, detail=detail)
    return FieldError(pointer=where, reason="invalid", detail=text.replace("`", ""))
