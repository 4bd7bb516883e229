"""Errors of the values of a request: JSON pointer, reason code and description."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Final

from msgspec import Meta

from nightjar_alerts.core.record import Record
from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.lightcurve import LightCurveError
from nightjar_alerts.models.metadata import KNOWN_COLUMNS

MAX_FIELD_ERRORS = 20
_MAX_NAME_LENGTH = 60


class FieldError(Record, kw_only=True):
    """An invalid value of a request. Unpaired surrogates in its texts, which may quote the request, are escaped."""

    pointer: Annotated[
        str, Meta(description="JSON pointer into the body, such as /light_curves/3/flux/17, or /query/NAME")
    ]
    reason: Annotated[str, Meta(description="machine-readable code, such as not_finite")]
    detail: Annotated[str, Meta(description="description of the error")]

    def __post_init__(self) -> None:
        """Escape unpaired surrogates, which UTF-8 cannot encode."""
        self.pointer, self.detail = without_surrogates(self.pointer), without_surrogates(self.detail)


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


def light_curve_error(errors: Sequence[FieldError]) -> LightCurveError:
    """Return the exception for the first error of a light curve, with the others as notes."""
    first, *others = errors
    error = LightCurveError(first.pointer, first.reason, located(first))
    for other in others:
        error.add_note(located(other))
    return error


def located(error: FieldError) -> str:
    """Return the description of an error, after the field that it is about."""
    name = error.pointer.lstrip("/")
    return f"{name}: {error.detail}" if name else error.detail


_COMMON_NAMES: Final[Mapping[str, str]] = {
    "time": "mjd",
    "jd": "mjd, which is a Julian date minus 2400000.5",
    "magnitude": "mag",
    "filter": "band",
    "id": "object_id",
    "name": "object_id",
    "decl": "dec",
}
"""Fields for common names that are not similar to them."""
_METADATA_NAMES: Final[Mapping[str, str]] = {
    "redshift": "zspec (of the object) or hostgal_zspec (of its host)",
    "z": "zspec (of the object) or hostgal_zspec (of its host)",
    "zphot": "hostgal_zphot, with hostgal_zphot_err",
    "ebv": "mwebv",
}
"""Fields for common names of metadata."""


def similar_names(name: str, known: Iterable[str], several: bool = False) -> str:
    """Return the most similar known name, or two if ``several``; empty if none is similar."""
    return " or ".join(get_close_matches(name[:_MAX_NAME_LENGTH].lower(), known, 2 if several else 1))


def unknown_field(where: str, name: str, known: Iterable[str], kind: str = "field") -> FieldError:
    """Return the error of an unknown field of the object at ``where``, with the field that is probably meant."""
    known = list(known)
    is_metadata = KNOWN_COLUMNS[0] in known
    similar = (_METADATA_NAMES if is_metadata else _COMMON_NAMES).get(name.lower(), "")
    if similar.partition(" ")[0].strip(",") not in known:
        similar = similar_names(name, known, several=is_metadata)
    detail = f"unknown {kind}"
    if similar:
        detail += f"; send {similar}"
    elif is_metadata:
        detail += f"; known are {', '.join(known[:6])}, ..."
    return FieldError(pointer=where + pointer([name]), reason="unknown_field", detail=detail)
