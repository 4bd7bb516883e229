"""What the header, the units and the first rows of a table show: facts about single columns, without decisions."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.photometry import Float64, SourceUnit
from nightjar_alerts.tables.columns import (
    MISSING_TEXTS,
    Array,
    Lists,
    TableColumns,
    is_text,
    iso_times,
    numbers,
    object_column,
    texts,
)
from nightjar_alerts.tables.vocabulary import (
    METADATA,
    last_part,
    names_magnitudes,
    plain,
    unit_in_name,
    unit_of,
    zero_point_of,
)

SAMPLE_POINTS: Final = 65_536
SHOWN_COLUMNS: Final = 40
MAX_FILTER_NAMES: Final = 200
"""Maximum number of distinct values in a column of filters."""
POSITIONAL_NAME: Final = re.compile(r"(?i)(column|col|field|var)[ _]?\d+")
ZERO_IN_NAME: Final = re.compile(
    r"(jd(?:_?(?:tdb|tcb|utc)|\s?\((?:tdb|tcb|utc|tt|tai)\))?)[\s_+-]*(\d{4,}(?:\.\d+)?)\s*$", re.IGNORECASE
)
"""Date from which times count, in a name such as ``MJD-60000``."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Columns of a table and their first rows.

    Attributes
    ----------
    header : names of the columns. units : those that the table states, by column.
    sample : all columns of the first rows.
    keys : plain names of each column, by which a vocabulary finds it.
    is_positional : whether the columns have no names but their numbers.
    filters : names in a column of filters that the options describe.
    checkpoint : called before each look at a column; may raise.
    """

    header: tuple[str, ...]
    units: Mapping[str, str]
    sample: TableColumns
    keys: Mapping[str, set[str]]
    is_positional: bool
    filters: frozenset[str] = frozenset()
    checkpoint: Callable[[], None] = lambda: None
    _numeric: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        header: Sequence[str],
        units: Mapping[str, str],
        sample: TableColumns,
        filters: Iterable[str] = (),
        checkpoint: Callable[[], None] = lambda: None,
    ) -> "Evidence":
        """Return the evidence of the columns that the sample has."""
        present = tuple(name for name in header if name in sample)
        keys = {
            name: {plain(part) for part in (name, last_part(name), ZERO_IN_NAME.sub(r"\1", name))} for name in present
        }
        positional = all(map(POSITIONAL_NAME.fullmatch, present))
        return cls(present, units, sample, keys, positional, frozenset(filters), checkpoint)

    def of_columns(self, names: Sequence[str]) -> "Evidence":
        """Return the evidence of some columns, in the order of the header."""
        kept = set(names)
        return replace(self, header=tuple(name for name in self.header if name in kept))

    @property
    def scalars(self) -> list[str]:
        """Columns with one value in each row."""
        return [name for name in self.header if not isinstance(self.sample[name], Lists)]

    @property
    def lists_of_metadata(self) -> list[str]:
        """Columns of lists that hold metadata of an object, such as ``redshift.value``."""
        return [name for name in self.header if self.is_list(name) and name.lower() in METADATA]

    @property
    def all_keys(self) -> set[str]:
        """Plain names of all columns."""
        return {key for name in self.header for key in self.keys[name]}

    def listed(self) -> str:
        """Return the names of the columns for a message."""
        return ", ".join(self.header[:SHOWN_COLUMNS]) + (" ..." if len(self.header) > SHOWN_COLUMNS else "")

    def is_list(self, name: str) -> bool:
        """Return whether a row of a column holds a list."""
        return isinstance(self.sample[name], Lists)

    # Values

    def values(self, name: str) -> Array:
        """Return the first values of a column, of its lists one after the other; shape (n,)."""
        self.checkpoint()
        column = self.sample[name]
        return (column.values if isinstance(column, Lists) else column)[:SAMPLE_POINTS]

    def numbers(self, name: str) -> Float64:
        """Return the first values of a column as numbers, NaN where they are none; shape (n,)."""
        return numbers(self.values(name))[0]

    def finite(self, name: str) -> Float64:
        """Return the finite numbers among the first values of a column."""
        values = self.numbers(name)
        return values[np.isfinite(values)]

    def distinct(self, name: str) -> list[str]:
        """Return the different texts of a column, sorted, without missing ones."""
        return sorted({text for text in texts(self.values(name)) if text})

    def distinct_of_key(self, key: str) -> list[str]:
        """Return the different texts of the columns with a plain name."""
        return sorted({text for name in self.header if key in self.keys[name] for text in self.distinct(name)})

    def are_same(self, name: str, other: str) -> bool:
        """Return whether two columns hold the same values."""
        return list(texts(self.values(name))) == list(texts(self.values(other)))

    def not_read(self, names: Iterable[str], remedy: str) -> str:
        """Return a sentence on the first of some columns, whose values cannot be read."""
        for name in names:
            values = [text for text in texts(self.values(name)) if text.lower() not in MISSING_TEXTS]
            bad = numbers(object_column(values))[1]
            if bad.any():
                return f" Values of {name!r}, such as {values[int(np.argmax(bad))]!r}, cannot be read: {remedy}."
            return f" Values of {name!r} are not plausible." if values else f" Column {name!r} has no values."
        return ""

    # Kinds of values

    def is_numeric(self, name: str) -> bool:
        """Return whether a column holds numbers; up to a fifth of the texts may be something else."""
        if name not in self._numeric:
            self._numeric[name] = self._is_numeric(self.values(name))
        return self._numeric[name]

    def _is_numeric(self, values: Array) -> bool:
        if not is_text(values):
            return values.dtype.kind in "fiu"
        found, bad = numbers(values)
        present = np.isfinite(found)
        return bool(present.any() and bad.sum() <= 0.2 * present.sum())

    def is_whole(self, name: str, limit: float = np.inf) -> bool:
        """Return whether all numbers of a column are integers below a limit."""
        values = self.finite(name)
        return bool(np.all((values % 1 == 0) & (np.abs(values) < limit)))

    def holds_times(self, name: str) -> bool:
        """Return whether a column holds numbers or dates."""
        values = self.values(name)
        if values.dtype.kind == "M":
            return True
        if self.is_numeric(name):
            return bool(self.finite(name).size)
        found, bad = iso_times(values[:256])
        return bool(np.isfinite(found).any() and bad.sum() < np.isfinite(found).sum())

    def looks_like_dates(self, name: str) -> bool:
        """Return whether the numbers of a column are Julian dates of a few decades, by their size."""
        values = self.finite(name)
        inside = ((values > 15_000) & (values < 100_000)) | ((values > 2.4e6) & (values < 2.6e6))
        return bool(values.size and inside.mean() > 0.95 and np.ptp(values) < 60_000)

    def looks_like_magnitudes(self, name: str) -> bool:
        """Return whether the numbers of a column have the size of magnitudes; 99 and -99 are missing values."""
        values = self.finite(name) if self.is_numeric(name) else np.zeros(0)
        values = values[(values < 90) & (values > -90)]
        return bool(values.size and (values > 3).all() and (values < 32).all() and np.ptp(values) < 16)

    def looks_like_zero_point(self, name: str) -> bool:
        """Return whether the numbers of a column have the size of zero points."""
        values = self.finite(name) if self.is_numeric(name) else np.zeros(0)
        return bool(values.size and (values > 0).all() and (values < 50).all())

    def looks_like_errors(self, name: str) -> bool:
        """Return whether a column holds small positive numbers of several values, as errors of magnitudes are."""
        values = self.finite(name) if self.is_numeric(name) else np.zeros(0)
        values = values[values < 9]
        return bool(len(values) > 2 and (values > 0).all() and np.median(values) < 0.7 and len(np.unique(values)) > 2)

    def may_hold_magnitudes(self, name: str) -> bool:
        """Return whether a column holds numbers, or text with limits such as ``>20.5``."""
        return self.is_numeric(name) or any(text.startswith(("<", ">")) for text in texts(self.values(name)))

    def names_systems(self, name: str) -> bool:
        """Return whether a column names magnitude systems."""
        return any("ab" in text.lower() or "vega" in text.lower() for text in self.distinct(name))

    def is_filter(self, text: str) -> bool:
        """Return whether a text is a known filter, or one that the options describe."""
        return text in self.filters or bool(known_filter(text))

    def holds_filters(self, name: str) -> bool:
        """Return whether a column may hold filters: at least one known name, or small integers."""
        if self.values(name).dtype.kind == "f" and not self.is_whole(name):
            return False
        found = self.distinct(name)
        return len(found) <= MAX_FILTER_NAMES and any(
            self.is_filter(text) or re.fullmatch(r"[0-9]{1,2}", text) for text in found
        )

    def is_all_filters(self, name: str) -> bool:
        """Return whether every value of a column of text is a known filter."""
        found = self.distinct(name) if is_text(self.values(name)) else []
        return 0 < len(found) < 60 and all(map(self.is_filter, found))

    # Units

    def has_unit_magnitude(self, name: str) -> bool:
        """Return whether the table states magnitudes as the unit of a column."""
        return names_magnitudes(self.units.get(name, ""))

    def unit(self, name: str) -> SourceUnit | None:
        """Return the unit of a flux or its error that the table or the name of the column states."""
        return unit_of(self.units.get(name, "")) or unit_in_name(name)

    def zero_point(self, name: str) -> float | None:
        """Return the AB zero point of the unit of a flux, if this is a unit of maggies."""
        return zero_point_of(last_part(name), self.units.get(name, ""))
