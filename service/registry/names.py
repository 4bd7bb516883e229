"""Names of models.

A model is named as ``name`` (the version that answers for it), ``name@1.2.3`` (exactly that one), or by an alias.
Versions are three numbers, as the manifest has them, and are compared as such: 1.10.0 is newer than 1.9.0.
:class:`service.registry.live.Routes` says which model answers for a name.
"""

import re
from typing import Literal, NamedTuple, Self

from nightjar_alerts.models.alerts.surveys import SURVEY_BY_NAME

MOST_CHARACTERS = 100
_NAME = r"[a-z0-9][a-z0-9-]*"
_VERSION = r"[0-9]+\.[0-9]+\.[0-9]+"  # no other digits, of which Unicode has many
PATTERN, VERSION_PATTERN = rf"^{_NAME}(@{_VERSION})?$", rf"^{_VERSION}$"
_REFERENCE = re.compile(rf"(?P<name>{_NAME})(?:@(?P<version>{_VERSION}))?")


class Reference(NamedTuple):
    """A model; without a version, whichever answers for the name."""

    name: str
    version: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``name`` or ``name@1.2.3``. Raises ValueError."""
        match = _REFERENCE.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
        if match is None:
            raise ValueError("a model is named as name or name@1.2.3")
        return cls(match["name"], match["version"] or "")

    def __str__(self) -> str:
        """Return the name as requests and settings have it."""
        return f"{self.name}@{self.version}" if self.version else self.name


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version."""
    return tuple(map(int, version.split(".")))


DEFAULT = "default"
"""Alias of the classifier for requests that name no model."""

CLASSIFIERS = (DEFAULT, *sorted(SURVEY_BY_NAME))
"""Aliases of classifiers that packets are led to: that of their survey where it exists, else the default."""

Role = Literal["", "canary"]


class UnknownModel(LookupError):
    """Nothing is served under the name asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no model is served as {name[:100]!r}")


class NotReady(Exception):
    """Nothing is served yet."""
