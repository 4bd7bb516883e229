"""Bodies of ``/v1/classify`` as a handler reads them."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from nightjar_alerts.core.decoding import JSON_READER, MSGPACK_READER, decode_lines
from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.validation import validate_light_curves
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.http.bodies import RequestBody, decode, validate_body
from nightjar_alerts.service.settings import Settings

Curve = LightCurve | InvalidLightCurve


class Read(NamedTuple):
    """Light curves, or the errors of each, and the options."""

    items: Sequence[Curve]
    options: Options
    single: bool


def built(body: RequestBody, settings: Settings) -> Read:
    """Build the light curves of a decoded body."""
    return Read(validate_body(body, settings), body.options, body.single)


def read_text(text: bytes, settings: Settings) -> Read:
    """Read a JSON text."""
    return built(decode(text, settings, JSON_READER), settings)


def read_json(document: object, settings: Settings) -> Read:
    """Read a document that is sent as JSON."""
    return read_text(json.dumps(document).encode(), settings)


def read_msgpack(body: bytes, settings: Settings) -> Read:
    """Read a msgpack body."""
    return built(decode(body, settings, MSGPACK_READER), settings)


def read_lines(lines: Sequence[bytes], settings: Settings) -> list[Curve]:
    """Read lines of a stream."""
    return validate_light_curves(decode_lines(lines), settings.max_points, binary_columns=False)
