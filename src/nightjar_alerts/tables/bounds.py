"""STUB, replaced by the version of the tables branch."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from nightjar_alerts.tables.options import TableError

TEXT_FORMATS: Final = frozenset({"csv", "jsonl", "json"})


@dataclass(frozen=True)
class Bounds:
    """Bounds of a table."""

    formats: Collection[str] = TEXT_FORMATS
    max_bytes: int = 1 << 62


class UnsupportedFormat(TableError):
    """A format that is not read here."""

    def __init__(self, message: str, form: str = "") -> None:
        super().__init__(message)
        self.format = form


class TableTooLarge(TableError):
    """A table beyond a bound."""
