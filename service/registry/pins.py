"""Pinned versions, stored in a file of the model repository so that a rollback survives a restart.

The file is a JSON object of names and versions, such as ``{"astro-moe": "1.0.0"}``. Replicas that share the repository
share the pins.
"""

import json
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints, TypeAdapter

from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.service.registry.names import NAME_PATTERN, VERSION_PATTERN

FILE_NAME = "pins.json"

Pins = dict[str, str]
"""Pinned versions by model name."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Version = Annotated[str, StringConstraints(pattern=VERSION_PATTERN)]
_PINS = TypeAdapter(dict[Name, Version])


def read_pins(repository: Path | None) -> Pins:
    """Read the pins; empty without a repository or a file. Raises OSError, ValueError."""
    if repository is None:
        return {}
    try:
        text = (repository / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return {}
    return _PINS.validate_json(text)


def write_pins(repository: Path | None, pins: Pins) -> None:
    """Replace the file atomically. Raises OSError."""
    if repository is None:
        raise OSError("there is no model repository to keep pins in: set NIGHTJAR_REPOSITORY")
    write_atomic(repository / FILE_NAME, json.dumps(pins, indent=1, sort_keys=True).encode(), shared=True)
