"""Names of models: ``name`` (the version that answers for it), ``name@1.2.3`` (exactly that one), or an alias.

Versions are three numbers, as the manifest has them, and are compared as such: 1.10.0 is newer than 1.9.0.
"""

import re
from typing import NamedTuple, Self

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
        """The inverse of ``str``. Raises ValueError."""
        found = _REFERENCE.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
        if found is None:
            raise ValueError("a model is named as name or name@1.2.3")
        return cls(found["name"], found["version"] or "")

    def __str__(self) -> str:
        """As requests and settings have it."""
        return f"{self.name}@{self.version}" if self.version else self.name


def version_key(version: str) -> tuple[int, ...]:
    """What versions are compared by."""
    return tuple(map(int, version.split(".")))
