"""Increments: rows of an earlier catalogue that are copied, because their light curves have not changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nightjar_alerts.catalog.columns import Columns, Row
from nightjar_alerts.catalog.partitions import Partition
from nightjar_alerts.catalog.reading import Item


@dataclass(frozen=True)
class Earlier:
    """What an earlier catalogue has of a partition.

    Attributes
    ----------
    files : of the partition in the earlier catalogue, or of the pixels that overlap it.
    digest : of the partition in the earlier catalogue, empty if it had none of this name.
    """

    folder: Path
    files: tuple[str, ...]
    digest: str

    def is_same(self, partition: Partition) -> bool:
        """Return whether the files of the partition have not changed."""
        return partition.digest == self.digest

    def tables(self, name: str, schema: Any) -> Iterator[Any]:
        """Yield the row groups of a partition that has not changed."""
        with pq.ParquetFile(self.folder / name) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).cast(schema)

    def index(self, partition: Partition) -> "Index | None":
        """Return the rows by the names of their objects; None if there are none, or if they are packets."""
        if not self.files:
            return None
        return Index(pa.concat_tables([pq.ParquetFile(self.folder / name).read() for name in self.files]))


class Index:
    """Rows of an earlier catalogue by the names of their objects.

    Rows of a name that is there twice, and rows whose classification failed, are not copied.

    Memory holds the rows of the earlier partition.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self._seen: set[str] = set()
        times = table["last_mjd"].to_numpy(zero_copy_only=False).tolist()
        counts = table["observations"].to_pylist()
        self._rows: dict[str, tuple[int, float | None, int | None]] = {}
        repeated = set[str]()
        failed = [status == "failed" for status in table["status"].to_pylist()]
        self._names = ["" if name is None else str(name) for name in table["object_id"].to_pylist()]
        for number, name in enumerate(self._names):
            if name in self._rows:
                repeated.add(name)
            self._rows[name] = number, None if times[number] != times[number] else times[number], counts[number]
        for name in repeated | {""} | {name for name, is_failed in zip(self._names, failed, strict=True) if is_failed}:
            self._rows.pop(name, None)

    @property
    def met(self) -> int:
        """Number of rows of the earlier catalogue whose objects were met, or which have no name."""
        return sum(not name or name in self._seen for name in self._names)

    def marked(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield rows; one whose last time and number of observations are as before is not classified again."""
        for row, each in items:
            found = self._rows.get(row.object_id)
            self._seen.add(row.object_id)
            if each is not None and found is not None and found[1:] == (row.last_mjd, row.observations):
                row.unchanged = found[0]
                each = None
            yield row, each

    def copied(self, table: Any, rows: Sequence[Row], columns: Columns) -> Any:
        """Return a table of rows in which the classification of those that have not changed is that of before."""
        places = [index for index, row in enumerate(rows) if row.unchanged is not None]
        if not places:
            return table
        before = self._table.take([rows[index].unchanged for index in places])
        order = np.arange(len(rows))
        order[places] = len(rows) + np.arange(len(places))
        for name, kind in columns.results().items():
            both = pa.chunked_array([*table[name].chunks, *before[name].cast(kind).chunks], kind)
            table = table.set_column(table.schema.get_field_index(name), name, both.take(pa.array(order)))
        return table
