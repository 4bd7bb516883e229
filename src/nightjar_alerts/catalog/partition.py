"""Classification of one partition: the task of a process or of a worker of Dask."""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nightjar_alerts.catalog.columns import Columns, Row
from nightjar_alerts.catalog.increments import Earlier
from nightjar_alerts.catalog.partitions import Partition, digest_of
from nightjar_alerts.catalog.reading import Item, OnNote, TableReading, packets_of
from nightjar_alerts.classifier import Classifier
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.serializer import serializer_of
from nightjar_alerts.inputs import Input
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.report import Warnings, add_warnings
from nightjar_alerts.results import Result
from nightjar_alerts.resumable import published
from nightjar_alerts.tables import FILE_BOUNDS, Bounds, Guess, TableError, TableOptions
from nightjar_alerts.tables.reader import TableReport

if TYPE_CHECKING:
    from nightjar_alerts.models.lightcurve import LightCurve

ROW_GROUP: Final = 16_384
"""Rows that are written at once."""
CHUNK: Final = 1024
"""Rows that are held with their results, which take a hundred times the memory of their columns."""
RUN: Final = b"nightjar_run"
"""Key of the metadata of a Parquet file that names the run that wrote it."""


class PartitionError(RuntimeError):
    """A partition that could not be classified; the message names it, and the object where it ended."""

    def __init__(self, partition: str, where: str, detail: str) -> None:
        super().__init__(partition, where, detail)  # so that it can be unpickled
        self.partition, self.where, self.detail = partition, where, detail

    def __str__(self) -> str:
        """Return the message."""
        at = f", after object {self.where}" if self.where else ""
        return f"partition {self.partition}{at}: {self.detail}"


@dataclass(frozen=True)
class Model:
    """Arguments of a :class:`Classifier`."""

    name: str | None = None
    threads: int | None = None


_LOCK: Final = threading.Lock()


def classifier_of(model: Model) -> Classifier:
    """Return the classifier of this process: one for each model, however many threads ask for it."""
    with _LOCK:
        return _classifier(model)


@cache
def _classifier(model: Model) -> Classifier:
    return Classifier(model.name, threads=model.threads)


@dataclass(frozen=True)
class Plan:
    """How partitions are classified; sent to every process.

    Attributes
    ----------
    run : name of the run, in the metadata of each file.
    reading : of tables in Parquet; None for packets, and tables of other formats, which ``table_options`` describe.
    output : folder of the partitions.
    """

    run: str
    model: Model
    options: Options
    columns: Columns
    reading: TableReading | None
    output: Path
    table_options: TableOptions = field(default_factory=TableOptions)
    bounds: Bounds = FILE_BOUNDS

    def mark(self, partition: Partition) -> str:
        """Return what the metadata of a partition's file say: the run, and the state of the input."""
        return f"{self.run} {partition.digest}"

    def items(self, partition: Partition, on_note: OnNote) -> Iterator[Item]:
        """Yield the rows of a partition."""
        if self.reading is not None:
            return self.reading.items(partition, on_note)
        return packets_of(partition, self.table_options, on_note, self.bounds)


Notes = dict[str, tuple[int, str, Guess | str]]
"""Number of files with a note, and the name and the sentence of the first one, by its kind."""
MAX_NOTES: Final = 50
"""Largest number of kinds that are kept."""
MORE: Final = "... and notes of other kinds"


def add_note(notes: Notes, name: str, line: Guess | str, files: int = 1) -> bool:
    """Count a sentence on how a file was read or on what was left out; return whether it is the first of its kind."""
    kind = f"{line.option}={line.value}" if isinstance(line, Guess) else line.partition(":")[0]
    if kind not in notes and len(notes) >= MAX_NOTES:
        kind, line = MORE, MORE
    count, first_name, first = notes.get(kind, (0, name, line))
    notes[kind] = (count + files, first_name, first)
    return not count


@dataclass
class Written:
    """What was written of a partition.

    Attributes
    ----------
    counts : number of rows by status and reason.
    joined : number of rows that were joined with another one.
    unchanged : number of rows that were copied from an earlier catalogue.
    met : number of rows of the earlier catalogue whose objects are in this partition.
    """

    name: str
    rows: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    joined: int = 0
    objects_joined: int = 0
    unchanged: int = 0
    met: int = 0
    notes: Notes = field(default_factory=dict)
    warnings: Warnings = field(default_factory=dict)

    def add(self, table: Any, rows: Sequence[Row]) -> None:
        """Count rows."""
        self.rows += len(rows)
        reasons = [reason or "" for reason in table["reason"].to_pylist()]
        self.counts.update(zip(table["status"].to_pylist(), reasons, strict=True))
        self.joined += sum(len(row.joined) for row in rows if len(row.joined) > 1)
        self.objects_joined += sum(len(row.joined) > 1 for row in rows)
        self.unchanged += sum(row.unchanged is not None for row in rows)


def write_partition(
    plan: Plan, partition: Partition, earlier: Earlier | None = None, on_rows: Callable[[int], None] = lambda _: None
) -> Written:
    """Classify a partition and write its file, which appears when it is complete.

    Raises
    ------
    PartitionError
        Naming the partition and the object, for whatever goes wrong.
    """
    written = Written(partition.name)
    path = plan.output / partition.name
    last: list[str] = [""]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = plan.columns.schema.with_metadata({RUN: plan.mark(partition).encode()})
        with published(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            if earlier is not None and earlier.is_same(partition):
                for table in earlier.tables(partition.name, schema):
                    writer.write_table(table)
                    written.add(table, [Row("", unchanged=0)] * len(table))
                written.met = written.rows
                return written
            index = None if earlier is None else earlier.index(partition)
            items = plan.items(partition, partial(add_note, written.notes))
            if index is not None:
                items = index.marked(items)
            waiting: list[Any] = []
            for rows in _chunks(classified(classifier_of(plan.model), plan.options, items, last), CHUNK):
                table = plan.columns.table(rows)
                if index is not None:
                    table = index.copied(table, [row for row, _ in rows], plan.columns)
                waiting.append(table.cast(schema))
                written.add(table, [row for row, _ in rows])
                for row, result in rows:
                    if result is not None:
                        add_warnings(written.warnings, row.source or partition.name, result)
                on_rows(len(rows))
                if len(waiting) * CHUNK >= ROW_GROUP:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
            written.met = 0 if index is None else index.met
            if digest_of([*partition.sources, *partition.margin]) != (partition.bytes, partition.digest):
                raise TableError("the input changed while it was read: run the same command again")
    except PartitionError:
        raise
    except Exception as error:
        detail = str(error) if isinstance(error, TableError | OSError) else f"{type(error).__name__}: {error}"
        raise PartitionError(partition.name, last[0], detail) from error
    return written


def _chunks(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(islice(items, size)):
        yield chunk


def classified(
    classifier: Classifier, options: Options, items: Iterator[Item], last: list[str]
) -> Iterator[tuple[Row, Result | None]]:
    """Yield the rows with their results, in order; a container of several alerts has a row for each.

    Parameters
    ----------
    last : its only element is set to the name of the object that was read last.
    """
    waiting: deque[tuple[Row, bool]] = deque()

    def inputs() -> Iterator[Input]:
        for row, each in items:
            last[0] = row.object_id or row.source
            waiting.append((row, each is not None))
            if each is not None:
                yield each

    for results in classifier.classify_each(inputs(), options):
        yield from _unclassified(waiting)
        row, _ = waiting.popleft()
        if row.source:
            yield from ((_row_of(result, row), result) for result in results)
        else:
            yield row, results[0]
    yield from _unclassified(waiting)


def _unclassified(waiting: deque[tuple[Row, bool]]) -> Iterator[tuple[Row, None]]:
    while waiting and not waiting[0][1]:
        yield waiting.popleft()[0], None


def _row_of(result: Result, row: Row) -> Row:
    """Return the row of a packet, from its result."""
    curve: LightCurve | None = result.light_curve
    if curve is None:
        return Row(result.object_id, source=row.source)
    observations = len(curve) + sum(curve.dropped.values())
    last = float(np.max(curve.mjd)) if len(curve) else None
    return Row(result.object_id, observations, last, curve.ra, curve.dec, source=row.source)


def frame_of(plan: Plan, source: Any, name: str) -> Any:
    """Return the Arrow table of the rows of a nested table in memory. Raises PartitionError."""
    assert plan.reading is not None
    last = [""]
    try:
        items = plan.reading.of_source(source, TableReport())
        rows = list(classified(classifier_of(plan.model), plan.options, items, last))
        return plan.columns.table(rows)
    except Exception as error:
        raise PartitionError(name, last[0], f"{type(error).__name__}: {error}") from error


def models_of(classifier: Classifier) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[str, str]]:
    """Return the classes, the bands, and the name and hash of each model that a classifier may use."""
    bundles = classifier.bundles
    whole = [each for each in bundles.values() if not each.manifest.classes.only_supernovae] or [*bundles.values()]
    classes = dict.fromkeys(name for bundle in whole for name in bundle.manifest.classes.names)
    bands = dict.fromkeys(name for bundle in whole for name in bundle.manifest.bands)
    models = {alias: f"{b.manifest.name} {b.manifest.version} ({b.sha256[:12]})" for alias, b in bundles.items()}
    return tuple(classes), tuple(bands), models


def check_prior(classifier: Classifier, prior: str | Mapping[str, Any] | None) -> None:
    """Raise PriorError if no model can use these class shares."""
    errors = []
    for bundle in classifier.bundles.values():
        try:
            serializer_of(bundle, prior)
        except PriorError as error:
            errors.append(error)
    if len(errors) == len(classifier.bundles):
        raise errors[0]


def threads_for(workers: int) -> int | None:
    """Return the threads of each process; None for all cores."""
    return None if workers <= 1 else max(1, (os.cpu_count() or 1) // workers)
