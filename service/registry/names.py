"""Names of models.

A model is named as ``name`` (its current version), ``name@1.2.3`` (exactly that version), or by an alias. Versions are
three numbers, as in the manifest, and are compared as such: 1.10.0 is newer than 1.9.0.
:class:`service.registry.router.ModelRouter` resolves names.
"""

import re
from typing import NamedTuple, Self

MAX_NAME_LENGTH = 100
_NAME = r"[a-z0-9][a-z0-9-]*"
_VERSION = r"[0-9]+\.[0-9]+\.[0-9]+"  # ASCII digits only
PATTERN, NAME_PATTERN, VERSION_PATTERN = rf"^{_NAME}(@{_VERSION})?$", rf"^{_NAME}$", rf"^{_VERSION}$"
_REFERENCE = re.compile(rf"(?P<name>{_NAME})(?:@(?P<version>{_VERSION}))?")


class Reference(NamedTuple):
    """Name and version of a model; an empty version means the current one."""

    name: str
    version: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``name`` or ``name@1.2.3``. Raises ValueError."""
        match = _REFERENCE.fullmatch(text) if len(text) <= MAX_NAME_LENGTH else None
        if match is None:
            raise ValueError("a model is named as name or name@1.2.3")
        return cls(match["name"], match["version"] or "")

    def __str__(self) -> str:
        """Return the form used in requests and settings."""
        return f"{self.name}@{self.version}" if self.version else self.name


class UnknownModel(LookupError):
    """No model is served under the requested name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no model is served as {name[:100]!r}")


class NotReady(Exception):
    """No model is served yet."""
