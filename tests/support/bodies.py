"""Bodies of ``/v1/classify`` as a handler reads them."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from nightjar_alerts.service.http.curves import Item, ParsedBody, light_curves_of, parse_json, parse_msgpack
from nightjar_alerts.service.http.forms import Options
from nightjar_alerts.service.settings import Settings


class Read(NamedTuple):
    """Light curves, or the errors of each, and the options."""

    items: Sequence[Item]
    options: Options
    bare: bool


def built(body: ParsedBody, settings: Settings) -> Read:
    """Build the light curves of a decoded body."""
    return Read(light_curves_of(body, settings), body.options, body.bare)


def read_text(text: bytes, settings: Settings) -> Read:
    """Read a JSON text."""
    return built(parse_json(text, settings), settings)


def read_json(document: object, settings: Settings) -> Read:
    """Read a document that is sent as JSON."""
    return read_text(json.dumps(document).encode(), settings)


def read_msgpack(body: bytes, settings: Settings) -> Read:
    """Read a msgpack body."""
    return built(parse_msgpack(body, settings), settings)
