"""Rows of a partition, with their light curves or packets, through the one reader of tables and packets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.alerts.packet import AbstainReason
from nightjar_alerts.catalog.bands import Joined, joined_rows
from nightjar_alerts.catalog.columns import UNREADABLE, Row
from nightjar_alerts.catalog.partitions import Partition, opened
from nightjar_alerts.core.validation import table_light_curve, table_light_curves
from nightjar_alerts.inputs import File, Input, NamedInput, inputs_of_file
from nightjar_alerts.tables import FILE_BOUNDS, Bounds, Guess, Table, TableError, TableObject, TableOptions
from nightjar_alerts.tables.columns import Array, Lists, TableColumns, object_column, texts
from nightjar_alerts.tables.files import TableSource
from nightjar_alerts.tables.layout import Layout
from nightjar_alerts.tables.libraries import MemorySource, ParquetSource
from nightjar_alerts.tables.reader import TableReport, is_object_id
from nightjar_alerts.tables.vocabulary import NO_OBJECT, last_part, plain

ROW: Final = "nightjar row"
"""Column with the name or number of each row, under which the reader groups the observations of nested tables."""
WITHDRAWN: Final = "withdrawn"
NO_OBJECT_ID: Final = "no_object_id"
_MOVING: Final = "Solar System object"
_FLAGGED: Final = "flagged by the survey"
_NO_NAME: Final = "without the name of an object"
Item = tuple[Row, Input | None]
"""A row, and what is classified; None if it is not to be."""
OnNote = Callable[[str, Guess | str], object]
"""Receives the name of a file, and a sentence on how it was read or on what was left out."""


@dataclass(frozen=True)
class TableReading:
    """How every partition of a table is read: what its columns mean was decided once, for all of them.

    Attributes
    ----------
    kept : columns of a table with nested light curves that the output has, too.
    position : columns of right ascension and declination.
    join_radius : distance within which rows are joined, arcseconds; 0 for none.
    """

    layout: Layout
    options: TableOptions
    kept: tuple[str, ...] = ()
    position: tuple[str, ...] = ()
    join_radius: float = 0.0
    bounds: Bounds = FILE_BOUNDS

    @property
    def is_nested(self) -> bool:
        """Whether a row holds the light curve of an object, or of an object in one band."""
        return self.layout.roles.nested

    @property
    def id_column(self) -> str:
        """Column of the names of objects, empty if there is none."""
        return self.layout.roles.columns.get("object_id", "")

    def by_row(self) -> Layout:
        """Return the layout in which the objects are the rows."""
        roles = self.layout.roles
        return replace(self.layout, roles=replace(roles, columns={**roles.columns, "object_id": ROW}))

    def items(self, partition: Partition, on_note: OnNote) -> Iterator[Item]:
        """Yield the rows of a partition, and report what was left out when it has been read.

        Raises
        ------
        TableError
            If a file is damaged, or lacks a column of the layout.
        """
        report = TableReport()
        if not self.is_nested:
            yield from self._of_observations(partition, report)
        elif self.join_radius:
            yield from self._of_joined(partition, report)
        else:
            yield from self.of_source(self._source(partition.sources, partition.name), report)
        for line in report.lines():
            on_note(partition.name, line)

    def _source(self, files: Sequence[str], name: str) -> ParquetSource:
        return ParquetSource([opened(file) for file in files], name, "", self.bounds)

    # A row for each object

    def of_source(self, source: TableSource, report: TableReport) -> Iterator[Item]:
        """Yield the rows of a nested table, some hundred at a time, and add what was left out to a report."""
        for batch in source.batches(self.names(source)):
            yield from self._of_batch(batch, source.name, report)

    def names(self, source: TableSource) -> list[str]:
        """Return the columns of a source that are read. Raises TableError if one is missing."""
        read = Table(source, self.options, layout=self.layout).stored()
        names = [*dict.fromkeys([*read, *self.kept])]
        if missing := [name for name in names if name not in source.header]:
            raise TableError(f"{source.name} has no column {missing[0]!r}")
        return names

    def _of_batch(self, batch: TableColumns, where: str, report: TableReport) -> Iterator[Item]:
        count = len(next(iter(batch.values())))
        ids = self._ids(batch, count)
        moving = self._moving(batch, ids)
        kept = self._kept(batch)
        options, keys = self.options, ids.copy()
        if not self.id_column or len(set(ids)) < count:  # each row is an object of its own
            keys = object_column([str(row) for row in range(count)])
            metadata = {str(row): options.object_metadata.get(name) for row, name in enumerate(ids)}
            options = replace(options, object_metadata={key: found for key, found in metadata.items() if found})
        keys[moving | ((ids == "") & bool(self.id_column))] = ""
        table = Table(MemorySource({**batch, ROW: keys}, where), options, layout=self.by_row())
        found = {item.object_id: item for item in table}
        report.add(table.report, dict(zip(keys.tolist(), ids.tolist(), strict=True)).__getitem__)
        rows = [
            self._row(name, found.get(key), kept[row], bool(moving[row]))
            for row, (key, name) in enumerate(zip(keys.tolist(), ids.tolist(), strict=True))
        ]
        curves = iter(table_light_curves([item for _, item in rows if item is not None]))
        yield from ((row, None if item is None else next(curves)) for row, item in rows)

    def _ids(self, batch: TableColumns, count: int) -> Array:
        if not self.id_column:
            return object_column([""] * count)
        column = batch[self.id_column]
        if isinstance(column, Lists):
            raise TableError(f"the column of object names, {self.id_column!r}, holds lists")
        ids = texts(column)
        if plain(last_part(self.id_column)) in NO_OBJECT:
            ids[ids == "0"] = ""
        return ids

    def _moving(self, batch: TableColumns, ids: Array) -> NDArray[np.bool_]:
        """Return which rows without an object of their own are of Solar System objects."""
        found = np.zeros(len(ids), np.bool_)
        for name, rule in self.layout.moving.items():
            column = batch[name]
            if rule == "nonzero" and not isinstance(column, Lists):
                found |= is_object_id(column) & (ids == "")
        return found

    def _kept(self, batch: TableColumns) -> Sequence[tuple[Any, ...]]:
        columns = [batch[name] for name in self.kept]
        if not columns:
            return [()] * len(next(iter(batch.values())))
        return list(zip(*(column.tolist() for column in columns if not isinstance(column, Lists)), strict=True))

    def _row(
        self, name: str, item: TableObject | None, kept: tuple[Any, ...], is_moving: bool
    ) -> tuple[Row, TableObject | None]:
        """Return a row, and its object unless it is not to be classified."""
        if item is None:
            reason = AbstainReason.SOLAR_SYSTEM_OBJECT.value if is_moving else NO_OBJECT_ID
            return Row(name, 0, kept=kept, reason=reason, detail=_DETAILS[reason]), None
        return self._of_object(item if item.object_id == name else replace(item, object_id=name), kept)

    def _of_object(self, item: TableObject, kept: tuple[Any, ...] = ()) -> tuple[Row, TableObject | None]:
        usable = item.mjd[item.usable()] if item.rejected else item.mjd
        last = float(usable.max()) if len(usable) else None
        row = Row(item.object_id, len(item.mjd), last, item.ra, item.dec, kept)
        if last is None and (reason := self._reason(item)):
            row.reason, row.detail = reason, _DETAILS[reason]
            return row, None
        return row, item

    def _reason(self, item: TableObject) -> str:
        """Return the reason of an object without a usable observation if it is the survey's, else an empty text."""
        if _MOVING in item.rejected:
            return AbstainReason.SOLAR_SYSTEM_OBJECT.value
        flagged = item.rejected.get(_FLAGGED)
        dates = "date" in (rule for layout in self.layout.parts for rule in layout.flags.values())
        return WITHDRAWN if dates and flagged is not None and bool(flagged.all()) else ""

    # A row for each object, in a band each

    def _of_joined(self, partition: Partition, report: TableReport) -> Iterator[Item]:
        """Yield the objects of which this partition has the first row, with the rows that are joined with it."""
        files = [*partition.sources, *partition.margin]
        joined = self._joins(partition)
        numbered = _Numbered(self._source(files, partition.name), joined.anchors)
        done = np.zeros(joined.own, np.bool_)
        table = Table(numbered, self.options, layout=self.by_row())
        for item in table:
            anchor = int(item.object_id)
            done[anchor] = True
            yield self._joined(joined, anchor, item)
        del table.report.unused[_NO_NAME]  # of rows of the margin, which are joined in another partition
        report.add(table.report, lambda anchor: joined.ids[int(anchor)])
        is_anchor = joined.anchors[: joined.own] == np.arange(joined.own)
        for anchor in np.flatnonzero(~done & is_anchor).tolist():
            yield self._joined(joined, anchor, None)

    def _joins(self, partition: Partition) -> Joined:
        return joined_rows(self._positions(partition.sources), self._positions(partition.margin), self.join_radius)

    def _joined(self, joined: Joined, anchor: int, item: TableObject | None) -> Item:
        row, one = self._row(joined.ids[anchor], item, joined.kept[anchor], is_moving=False)
        row.joined = joined.members(anchor)
        return row, None if one is None else table_light_curve(one)

    def _positions(self, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the ids, positions, filters and kept columns of the rows of files."""
        band = self.layout.roles.columns.get("band", "")
        names = [*dict.fromkeys([self.id_column, *self.position, band, *self.kept])]
        for file in files:
            for batch in self._source([file], file).batches(names):
                if isinstance(batch[band], Lists):
                    raise TableError("--join-bands joins tables whose rows have one filter; here a row has several")
                ra, dec = (batch[name] for name in self.position)
                ids = self._ids(batch, len(ra))
                yield {"ids": ids, "ra": ra, "dec": dec, "band": batch[band], "kept": self._kept(batch)}

    # A row for each observation

    def _of_observations(self, partition: Partition, report: TableReport) -> Iterator[Item]:
        """Yield the objects of a table, and how many observations have no object."""
        table = Table(opened(partition.sources[0]), self.options, partition.name, self.bounds, layout=self.layout)
        moving = 0
        for item in table:
            moving += int(item.rejected[_MOVING].sum()) if _MOVING in item.rejected else 0
            row, one = self._of_object(item)
            yield row, None if one is None else table_light_curve(one)
        unnamed = {
            AbstainReason.SOLAR_SYSTEM_OBJECT.value: table.report.unused[_MOVING] - moving,
            NO_OBJECT_ID: table.report.unused[_NO_NAME],
        }
        report.add(table.report)
        for reason, count in unnamed.items():
            if count > 0:
                yield Row("", count, reason=reason, detail=_DETAILS[reason]), None


_DETAILS: Final[Mapping[str, str]] = {
    AbstainReason.SOLAR_SYSTEM_OBJECT.value: "the observations are of Solar System objects",
    NO_OBJECT_ID: "the observations have no name of an object",
    WITHDRAWN: "the survey has withdrawn every observation",
}


class _Numbered:
    """A table with the number of each row's object as one more column."""

    def __init__(self, source: TableSource, numbers: NDArray[np.int64]) -> None:
        self.name, self.stem, self.units, self.problems = source.name, source.stem, source.units, source.problems
        self.header = (*source.header, ROW)
        self._source, self._numbers = source, numbers

    @property
    def progress(self) -> float:
        return self._source.progress

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all."""
        wanted = None if names is None else [name for name in names if name != ROW] or [self.header[0]]
        start = 0
        for batch in self._source.batches(wanted):
            end = start + len(next(iter(batch.values())))
            numbers = [str(number) if number >= 0 else "" for number in self._numbers[start:end].tolist()]
            yield {**batch, ROW: object_column(numbers)}
            start = end


def prefixed(prefix: str, line: Guess | str) -> Guess | str:
    """Return a sentence that names what it is of."""
    return replace(line, text=prefix + line.text) if isinstance(line, Guess) else prefix + line


def packets_of(partition: Partition, options: TableOptions, on_note: OnNote, bounds: Bounds) -> Iterator[Item]:
    """Yield the packets, and objects of tables, in files; a file that cannot be read is a row with the reason."""

    def on_notes(name: str, lines: Sequence[Guess | str], are_guesses: bool) -> None:
        for line in lines:
            on_note(f"{partition.name}: {name}", line)

    for source in partition.sources:
        path = opened(source)
        for item in inputs_of_file(File(path, path.name, named=False), options, on_notes, bounds):
            if isinstance(item, NamedInput):
                yield Row("", source=item.name), item.input
            elif item.is_other:
                on_note(f"{partition.name}: {item.name}", f"left out: {item.detail}")
            else:
                yield Row("", source=item.name, reason=UNREADABLE, detail=item.detail), None
