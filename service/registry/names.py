"""Names of models, and the table that says which version of which model answers for each.

A model is named as ``name`` (the version that answers for it), ``name@1.2.3`` (exactly that one), or by an alias.
Versions are three numbers, as the manifest has them, and are compared as such: 1.10.0 is newer than 1.9.0.

A canary is a share of what is asked of a name, answered by another version of the same model. Whose turn that is
depends on the key alone (an object, a client), so the same object always gets the same version, and an object that the
canary answered at 5 % is still answered by it at 20 %.
"""

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple, Self

from models.alerts.surveys import SURVEY_BY_NAME

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
        found = _REFERENCE.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
        if found is None:
            raise ValueError("a model is named as name or name@1.2.3")
        return cls(found["name"], found["version"] or "")

    def __str__(self) -> str:
        """Return the name as requests and settings have it."""
        return f"{self.name}@{self.version}" if self.version else self.name


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version."""
    return tuple(map(int, version.split(".")))


DEFAULT, FORECAST = "default", "forecast"
"""Aliases of the models that answer where a request names none: classifier and forecaster."""

ZTF = "ztf"
CLASSIFIERS = (DEFAULT, *sorted(SURVEY_BY_NAME))
"""Aliases that lead packets to a classifier, by survey where there is one."""

FALLBACK = "fallback"
"""Alias of the classifier that answers when the one asked is full."""

Role = Literal["", "canary", "fallback"]


class UnknownModel(LookupError):
    """Nothing is served under the name asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no model is served as {name[:100]!r}")


class Canary(NamedTuple):
    """A version on trial, and the percentage of requests that it answers."""

    version: str
    percent: float


class Choice(NamedTuple):
    """Exactly one version of a model, and why it is not the one that answers for its name, if it is not."""

    reference: Reference
    role: Role = ""


@dataclass(slots=True)
class Routes:
    """The table.

    Attributes
    ----------
    current : version that answers for each name.
    aliases : other names; one without a version follows ``current``.
    canaries : at most one for each name.
    """

    current: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, Reference] = field(default_factory=dict)
    canaries: dict[str, Canary] = field(default_factory=dict)

    def choose(self, name: str, key: str) -> Choice:
        """Choose the version that answers.

        Parameters
        ----------
        name : an alias, ``name`` or ``name@version``; what is named exactly has no canary.
        key : what a canary's share is divided by; the same key always gets the same answer.

        Raises
        ------
        UnknownModel
            When the name stands for nothing. That a version named exactly is served is not checked here.
        """
        asked = self.named(name)
        if asked.version:
            return Choice(asked)
        if asked.name not in self.current:
            raise UnknownModel(name)
        canary = self.canaries.get(asked.name)
        if canary is not None and fraction(asked.name, key) * 100 < canary.percent:
            return Choice(Reference(asked.name, canary.version), "canary")
        return Choice(Reference(asked.name, self.current[asked.name]))

    def named(self, name: str) -> Reference:
        """Resolve an alias or a name. Raises UnknownModel when it is neither."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return Reference.parse(name)
        except ValueError:
            raise UnknownModel(name) from None

    def for_survey(self, survey: str) -> str:
        """Name of the model for packets of a survey: an alias of that name where there is one."""
        return survey if survey in self.aliases else DEFAULT

    def needed(self) -> set[Reference]:
        """Versions that a request may be led to without naming them exactly."""
        found = {Reference(name, version) for name, version in self.current.items()}
        found |= {reference for reference in self.aliases.values() if reference.version}
        return found | {Reference(name, canary.version) for name, canary in self.canaries.items()}

    def aliases_of(self, reference: Reference) -> list[str]:
        """Aliases that lead to a version."""
        return sorted(
            alias
            for alias, target in self.aliases.items()
            if target.name == reference.name and (target.version or self.current.get(target.name)) == reference.version
        )


def fraction(name: str, key: str) -> float:
    """Hash a key to a number between 0 and 1, evenly, and differently for every name."""
    digest = blake2b(f"{name}\n{key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
