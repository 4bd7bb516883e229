"""Runs of ``nightjar catalog``, which can be interrupted at any moment and continued.

``_nightjar.json`` in the folder of the output has the fingerprint of the run: the state of every partition of the
input, the columns, the options and the models. A partition is finished when its file is there, because files appear
when they are complete; the metadata of each names the run that wrote it. A run with another fingerprint is refused.
"""

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq

from nightjar_alerts.catalog.columns import Columns, RowKind, flat, kept_type
from nightjar_alerts.catalog.hats import HatsInput, Pixels, open_hats
from nightjar_alerts.catalog.increments import Earlier
from nightjar_alerts.catalog.partition import (
    RUN,
    Model,
    Notes,
    PartitionError,
    Plan,
    Written,
    add_note,
    check_prior,
    classifier_of,
    models_of,
    threads_for,
    write_partition,
)
from nightjar_alerts.catalog.partitions import Partition, is_remote, opened, partitions_of
from nightjar_alerts.catalog.reading import TableReading, prefixed
from nightjar_alerts.core.request import Options
from nightjar_alerts.models.common import how_to_install
from nightjar_alerts.report import Warnings
from nightjar_alerts.resumable import differences, lock, published, remove_unfinished
from nightjar_alerts.tables import FILE_BOUNDS, Bounds, Guess, Table, TableError, TableOptions, TableQuestion
from nightjar_alerts.tables.files import is_hats
from nightjar_alerts.tables.layout import Layout
from nightjar_alerts.tables.libraries import ParquetSource

STATE: Final = "_nightjar.json"
"""Readers of a folder of Parquet leave out names that begin so."""
FORMAT: Final = 1
PARTS: Final = ("partitions", "reading", "columns", "options", "models")
"""Parts of a fingerprint."""
FLAT: Final = (".parquet", ".csv")
SHOWN: Final = 5
AHEAD: Final = 1024
"""Number of partitions that processes or workers have, or that wait for one."""
CONNECT_SECONDS: Final = 30
MAX_FILES: Final = 5
"""Number of files of which the first one that can be read decides what the columns mean."""


class CatalogError(RuntimeError):
    """A catalogue that cannot be written, or continued; the message says why and what to do."""


@dataclass(frozen=True)
class Request:
    """Arguments of a run; see ``nightjar catalog --help``."""

    input: str
    output: Path
    model: str | None = None
    options: Options = field(default_factory=Options)
    table_options: TableOptions = field(default_factory=TableOptions)
    bounds: Bounds = FILE_BOUNDS
    join_radius: float = 0.0
    since: Path | None = None
    reclassify: bool = False
    flat: Path | None = None
    workers: int = 1
    scheduler: str = ""


class Progress(Protocol):
    """What a run tells its user."""

    def start(self, partitions: int, done: int, size: int, done_size: int) -> None:
        """Begin with a number of partitions, of which some are finished, and of bytes."""

    def rows(self, count: int) -> None:
        """Count rows of a partition that is not finished."""

    def finish(self, partition: Partition, written: Written) -> None:
        """Count a finished partition."""

    def note(self, line: Guess | str) -> None:
        """Show a sentence."""


@dataclass
class Summary:
    """What a run did.

    Attributes
    ----------
    earlier : number of partitions that were finished before.
    unchanged, met, gone : rows that were copied from the catalogue of ``--since``; rows of it whose objects are in the
        input, and whose objects are not. ``gone`` is None if that is not known.
    repeated : number of objects whose observations are in several files.
    failed : errors of the partitions that are not there.
    """

    was_finished: bool = False
    rows: int = 0
    partitions: int = 0
    earlier: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    joined: int = 0
    objects_joined: int = 0
    unchanged: int = 0
    met: int = 0
    gone: int | None = None
    repeated: int = 0
    failed: list[str] = field(default_factory=list)
    warnings: Warnings = field(default_factory=dict)
    notes: Notes = field(default_factory=dict)

    def add(self, written: Written) -> None:
        """Add a partition."""
        self.partitions += 1
        self.rows += written.rows
        self.counts += written.counts
        self.joined += written.joined
        self.objects_joined += written.objects_joined
        self.unchanged += written.unchanged
        self.met += written.met
        for reason, found in written.warnings.items():
            count, detail, name = self.warnings.get(reason, (0, *found[1:]))
            self.warnings[reason] = (count + found[0], detail, name)


class _Source:
    """Input of a run: its partitions, and how they are read."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self.hats: HatsInput | None = None
        self.kind: RowKind = "objects"
        if is_remote(request.input) or is_hats(Path(request.input)):
            self.hats = open_hats(request.input)
            self.partitions = self.hats.partitions(request.join_radius)
        elif not Path(request.input).exists():
            raise TableError(f"{request.input} does not exist")
        else:
            self.partitions, self.kind = partitions_of(Path(request.input))
        names = Counter(partition.name for partition in self.partitions)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise TableError(f"two files of {request.input} would both be written as {repeated[0]}: rename one")
        self.reading: TableReading | None = None
        self.kept: dict[str, Any] = {}
        self.has_position = False
        self.decisions: list[str] = []
        if self.kind == "objects":
            self._read_layout(request, progress)
        elif request.join_radius:
            raise TableError("--join-bands joins rows of Parquet and HATS, not packets")

    def _read_layout(self, request: Request, progress: Progress) -> None:
        """Decide what the columns mean, for all partitions, from the first rows."""
        file, table = self._sample(request)
        self.decisions = _decisions(table.layout)
        for guess in table.guesses:
            progress.note(guess)
        position = table.layout.position if self.hats is None else self.hats.columns()[:2]
        self.reading = TableReading(
            table.layout, request.table_options, (), position, request.join_radius, request.bounds
        )
        if not self.reading.is_nested:
            if request.join_radius or self.hats is not None:
                raise TableError(f"{request.input} has a row for each observation; it needs light curves in lists")
            return
        self.kind = "rows"
        with pq.ParquetFile(opened(file)) as sample:
            self.kept = self._kept(sample.schema_arrow)
            names = {each.name for each in sample.schema_arrow if not each.type.num_fields}
        self.has_position = bool(position) and set(position) <= set(self.kept)
        if request.join_radius and not (self.has_position and self.reading.id_column):
            raise TableError("--join-bands needs a column of names and two of positions in every row")
        if request.join_radius and table.layout.roles.columns.get("band") not in names:
            raise TableError("--join-bands joins rows that have one filter each, in a column; here a row has several")
        self.reading = replace(self.reading, kept=tuple(self.kept))

    def _sample(self, request: Request) -> tuple[str, Table]:
        """Return the first file that can be read, as a table. Raises TableError if the first ones cannot be read."""
        first: TableError | None = None
        for file in islice((file for each in self.partitions for file in each.sources), MAX_FILES):
            try:
                return file, Table(ParquetSource([opened(file)], file, "", request.bounds), request.table_options)
            except TableQuestion:
                raise
            except TableError as error:
                first = first or error
        raise first or TableError(f"{request.input} has no files")

    def _kept(self, schema: Any) -> dict[str, Any]:
        """Return the Arrow types of names, positions and HEALPix indices, which the output has, too."""
        assert self.reading is not None
        names = [self.reading.id_column, *self.reading.position]
        needed = () if self.hats is None else self.hats.columns()
        if missing := sorted(set(needed) - set(schema.names)):
            raise TableError(f"the catalogue has no column {missing[0]!r}, which its properties name")
        flat_types = {each.name: kept_type(each.type) for each in schema if not each.type.num_fields}
        return {name: flat_types[name] for name in dict.fromkeys([*names, *needed]) if name in flat_types}


def _decisions(layout: Layout) -> list[str]:
    """Return what was decided of the columns, without what only the first rows show, such as the filters in them."""
    found = {f"{guess.option}={guess.value}" for guess in layout.guesses if guess.value and guess.option != "filters"}
    found |= {f"{name}: {scale}" for part in layout.parts for name, scale in part.errors.items()}
    return sorted(found)


def run(request: Request, progress: Progress) -> Summary:
    """Classify the input, or what is missing of it.

    Raises
    ------
    CatalogError, TableError
        If it cannot be started or continued. Errors of single partitions are in the summary.
    """
    if request.flat is not None:
        _check_flat(request.flat, request)
    source = _Source(request, progress)
    if request.output.resolve().is_relative_to(Path(request.input).resolve()):
        raise CatalogError(f"{request.output} is in the input, of which it would be a part: name another folder")
    classifier = classifier_of(Model(request.model, threads_for(request.workers)))
    check_prior(classifier, request.options.prior)
    classes, bands, models = models_of(classifier)
    columns = Columns(
        source.kind, classes, bands, source.kept, bool(request.options.embedding), bool(request.join_radius),
        source.has_position,
    )  # fmt: skip
    fingerprint = _fingerprint(request, source, columns, models)
    request.output.mkdir(parents=True, exist_ok=True)
    with locked(request.output):
        state = _State(request.output, fingerprint)
        if state.is_finished and _has_rows(request.output, source.partitions, state.rows):
            summary = Summary(True, state.rows)
        else:
            plan = Plan(
                state.run, Model(request.model, threads_for(request.workers)), request.options, columns, source.reading,
                request.output, request.table_options, request.bounds,
            )  # fmt: skip
            summary = _Run(request, plan, source, fingerprint, progress).run()
            if summary.failed:
                return summary
            remove_unfinished(request.output)  # of workers that were killed
            if source.hats is not None:
                progress.note("writing the metadata of the catalogue")
                source.hats.finish(request.output, source.reading.id_column if source.reading else "")
            if source.kind == "objects":
                summary.repeated = _repeated(request.output, source.partitions)
            state.finish(summary.rows)
        if request.flat is not None:
            _write_flat(request.output, source.partitions, columns, request.flat)
    return summary


def _has_rows(output: Path, partitions: Sequence[Partition], rows: int) -> bool:
    """Return whether the files of a finished catalogue still have all its rows."""
    paths = [path for partition in partitions if (path := output / partition.name).exists()]
    try:
        found: int = sum(pq.read_metadata(path).num_rows for path in paths)
    except (OSError, ValueError):  # a damaged file, which the run names
        return False
    return found == rows


def _fingerprint(request: Request, source: _Source, columns: Columns, models: Mapping[str, str]) -> dict[str, Any]:
    options = msgspec.structs.asdict(request.options)
    tables = {name: value for name, value in asdict(request.table_options).items() if value not in (None, "", {})}
    text = {
        "format": FORMAT,
        "version": _version(),
        "partitions": {partition.name: partition.digest for partition in source.partitions},
        "reading": source.decisions,
        "columns": [f"{name} {kind}" for name, kind in zip(columns.schema.names, columns.schema.types, strict=True)],
        "options": {**options, **tables, "join_bands": request.join_radius},
        "models": dict(models),
    }
    found: dict[str, Any] = json.loads(json.dumps(text, default=str))
    return found


def _version() -> str:
    try:
        return version("nightjar-alerts")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


class _State:
    """``_nightjar.json`` of an output.

    Raises
    ------
    CatalogError
        If it is of another run, or if it is not there but other files are.
    """

    def __init__(self, output: Path, fingerprint: Mapping[str, Any]) -> None:
        self._path, self._fingerprint = output / STATE, fingerprint
        same = {name: value for name, value in fingerprint.items() if name != "partitions"}
        self.run = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]
        found = _read_state(output)
        self.is_finished, self.rows = False, 0
        if found is None:
            names = (path.name for path in output.iterdir())
            if any(name != LOCK and not name.startswith(f".{STATE}.") for name in names):  # left by a killed run
                raise CatalogError(f"{output} has files, but none of nightjar catalog: name another folder")
            self._write(None)
            return
        self.is_finished = found["rows"] is not None
        self.rows = found["rows"] or 0
        changed = _changes(found["fingerprint"], fingerprint)
        old, new = found["fingerprint"]["partitions"], fingerprint["partitions"]
        if self.is_finished:  # else each file says what it was made of, and a damaged one may have been replaced
            changed += _named("there are changed", {name for name in old.keys() & new.keys() if old[name] != new[name]})
        if changed:
            raise CatalogError(f"{output} is of another run: {'; '.join(changed)}. Name another folder, or remove it")
        if not self.is_finished:
            remove_unfinished(output)
            self._write(None)

    def finish(self, rows: int) -> None:
        """Mark the output as finished."""
        self._write(rows)

    def _write(self, rows: int | None) -> None:
        with published(self._path) as temporary:
            temporary.write_text(json.dumps({"rows": rows, "fingerprint": self._fingerprint}, indent=1))


def _read_state(output: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((output / STATE).read_text())
        _ = found["rows"], [found["fingerprint"][part] for part in PARTS]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise CatalogError(f"{output / STATE} is damaged, or of another program: {error}") from None
    return found


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two fingerprints, a sentence each."""
    changed = []
    for part in ("format", "version", "models", "options"):
        one, other = before.get(part), now.get(part)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            changed += differences(one, other)
        elif one != other:
            changed.append(f"{part} was {one} and is now {other}")
    old, new = before["partitions"].keys(), now["partitions"].keys()
    changed += _named("there are no more", old - new) + _named("there are new", new - old)
    return changed or _different(before, now)


def _different(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs in the columns and in what was decided of them."""
    changed = []
    for part, what in (("columns", "the output has other columns"), ("reading", "the columns mean something else")):
        if before[part] != now[part]:
            names = sorted({*before[part]} ^ {*now[part]})
            changed.append(f"{what}: {', '.join(names[:SHOWN])}")
    return changed


def _named(what: str, names: Collection[str]) -> list[str]:
    """Return a sentence on partitions of the input, none if there are none."""
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return [f"{what} partitions of the input: {', '.join(sorted(names)[:SHOWN])}{more}"] if names else []


LOCK: Final = ".nightjar.lock"


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Let no other process of this machine write the same output. Raises CatalogError."""
    with (output / LOCK).open("wb") as file:
        if not lock(file):
            raise CatalogError(f"another process is writing {output}")
        yield


class _Run:
    def __init__(
        self, request: Request, plan: Plan, source: _Source, fingerprint: Mapping[str, Any], progress: Progress
    ) -> None:
        self._request, self._plan, self._source, self._progress = request, plan, source, progress
        self._earlier = self._open_earlier(fingerprint)
        self._pixels = None if source.hats is None or self._earlier is None else Pixels(self._earlier)
        self._summary = Summary()

    def run(self) -> Summary:
        """Write the partitions that are missing."""
        partitions = self._source.partitions
        rows = {partition.name: self._rows_of(partition) for partition in partitions}
        pending = [partition for partition in partitions if rows[partition.name] is None]
        self._summary.rows = sum(filter(None, rows.values()))
        size = sum(partition.bytes for partition in partitions)
        left = sum(partition.bytes for partition in pending)
        self._summary.earlier = len(partitions) - len(pending)
        self._progress.start(len(partitions), self._summary.earlier, size, size - left)
        if self._request.scheduler or self._request.workers > 1:
            self._run_elsewhere(pending)
        else:
            for partition in pending:
                task = partial(write_partition, self._plan, partition, self._earlier_of(partition), self._progress.rows)
                self._collect(partition, task)
        for kind, (count, _, line) in self._summary.notes.items():
            if count > 1:
                more = f"{count - 1:,} more file{'s' * (count > 2)}: "
                self._progress.note(prefixed(more, line if isinstance(line, Guess) else kind))
        if self._earlier is not None and self._request.since is not None and self._source.kind != "packets":
            files = (self._request.since / name for name in self._earlier)
            before = sum(pq.read_metadata(file).num_rows for file in files if file.exists())
            self._summary.gone = max(0, before - self._summary.met)
        if not self._summary.failed and (lost := [each.name for each in partitions if self._rows_of(each) is None]):
            raise CatalogError(f"{lost[0]} was removed from {self._request.output}: run the same command again")
        return self._summary

    def _rows_of(self, partition: Partition) -> int | None:
        """Return the number of rows in the file of a partition, None if there is no file.

        Raises
        ------
        CatalogError
            If another run wrote it.
        """
        path = self._request.output / partition.name
        if not path.exists():
            return None
        try:
            with pq.ParquetFile(path) as file:
                found = (file.schema_arrow.metadata or {}).get(RUN, b"").decode()
                rows: int = file.metadata.num_rows
        except (OSError, ValueError) as error:
            raise CatalogError(f"{path} is damaged, and nightjar did not write it like this: {error}") from error
        if found != (mark := self._plan.mark(partition)):
            of_run = found.partition(" ")[0] == mark.partition(" ")[0]
            detail = (
                f"there are changed partitions of the input: {partition.name}" if of_run else "another model or options"
            )
            raise CatalogError(f"{path} is of another run: {detail}. Name another folder, or remove it")
        return rows

    def _collect(self, partition: Partition, result: Callable[[], Written]) -> None:
        try:
            written = result()
        except PartitionError as error:
            if _is_full(error):
                raise CatalogError(
                    f"{error}. Finished partitions are kept; free some space and run the same command again"
                ) from error
            self._summary.failed.append(str(error))
            return
        self._summary.add(written)
        self._progress.finish(partition, written)
        for files, name, line in written.notes.values():
            if add_note(self._summary.notes, name, line, files):
                self._progress.note(prefixed(f"{name}: ", line))

    def _run_elsewhere(self, pending: Sequence[Partition]) -> None:
        """Write partitions by processes, or the workers of Dask, some ahead of those that are finished."""
        remaining = iter(pending)
        with _executor(self._request) as executor:
            running: dict[Future[Written], Partition] = {}
            try:
                while True:
                    for partition in islice(remaining, AHEAD - len(running)):
                        future = executor.submit(write_partition, self._plan, partition, self._earlier_of(partition))
                        running[future] = partition
                    if not running:
                        return
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        partition = running.pop(done)
                        self._collect(partition, partial(_result, done, partition.name))
            finally:
                for future in running:
                    future.cancel()

    # An earlier catalogue

    def _open_earlier(self, fingerprint: Mapping[str, Any]) -> Mapping[str, str] | None:
        since = self._request.since
        if since is None:
            return None
        found = _read_state(since)
        if found is None or found["rows"] is None:
            raise CatalogError(f"{since} is not a finished catalogue of nightjar catalog")
        before = found["fingerprint"]
        changed = [*differences(before["models"], fingerprint["models"])]
        changed += differences(before["options"], fingerprint["options"])
        changed += _different(before, fingerprint)
        if changed and not self._request.reclassify:
            raise CatalogError(
                f"{since} cannot be continued: {'; '.join(changed)}. --reclassify classifies everything anew"
            )
        if changed:
            self._progress.note(f"everything is classified anew: {'; '.join(changed)}")
            return None
        partitions: dict[str, str] = before["partitions"]
        return partitions

    def _earlier_of(self, partition: Partition) -> Earlier | None:
        if self._earlier is None or self._request.since is None:
            return None
        names: Sequence[str] = [partition.name] if partition.name in self._earlier else []
        if self._pixels is not None:
            names = self._pixels.overlapping(partition.name)
        if self._source.kind == "packets":
            names = []
        names = [name for name in names if (self._request.since / name).exists()]
        digest = self._earlier.get(partition.name, "") if (self._request.since / partition.name).exists() else ""
        return Earlier(self._request.since, tuple(names), digest)


def _result(future: "Future[Written]", partition: str) -> Written:
    """Return the result of a process or worker for a partition. Raises CatalogError if it was lost."""
    try:
        return future.result()
    except (PartitionError, CatalogError):
        raise
    except BrokenProcessPool:
        raise CatalogError(
            f"a process died, perhaps with partition {partition}, most likely for lack of memory: what is finished "
            "stays; run the same command with fewer --workers"
        ) from None
    except Exception as error:  # of Dask: a lost scheduler, or a task that killed several workers
        raise CatalogError(
            f"partition {partition} was lost on the cluster ({type(error).__name__}: {error}): what is finished stays; "
            "run the same command again"
        ) from error


def _is_full(error: BaseException) -> bool:
    """Return whether a partition failed because the disk is full, as every other would."""
    import errno

    return "No space left" in str(error) or getattr(error.__cause__, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def _end_with_parent() -> None:
    """End this process when the one that started it is killed; it would wait for work forever."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _executor(request: Request) -> Iterator[Executor]:
    """Yield what runs tasks: processes of this machine, or a cluster of Dask. Raises CatalogError."""
    if not request.scheduler:
        with ProcessPoolExecutor(request.workers, get_context("spawn"), _end_with_parent) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise CatalogError(f"--scheduler needs dask: {how_to_install('catalog')}") from error
    try:
        client = Client(request.scheduler, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise CatalogError(f"there is no scheduler of Dask at {request.scheduler}: {error}") from error
    with client:
        yield client.get_executor(pure=False)


def _repeated(output: Path, partitions: Sequence[Partition]) -> int:
    """Return the number of objects that are in several files; each has a row for every one of them."""
    hashes = [np.zeros(0, np.int64)]
    for partition in partitions:
        names = pq.ParquetFile(output / partition.name).read(["object_id"])["object_id"].to_pylist()
        hashes.append(np.unique(np.fromiter(map(hash, filter(None, names)), np.int64)))
    return int((np.unique(np.concatenate(hashes), return_counts=True)[1] > 1).sum())


# One flat file


def _check_flat(path: Path, request: Request) -> None:
    if path.suffix.lower() not in FLAT:
        raise CatalogError(f"{path}: --flat writes {' and '.join(FLAT)}, which TOPCAT reads")
    if not path.parent.is_dir():
        raise CatalogError(f"{path}: the directory {path.parent} does not exist")
    for folder in (request.output, Path(request.input)):
        if path.resolve().is_relative_to(folder.resolve()):
            raise CatalogError(f"{path} is in {folder}, of which it would be a part: name another folder")


def _write_flat(output: Path, partitions: Sequence[Partition], columns: Columns, path: Path) -> None:
    """Write all rows to one table without lists."""
    schema = flat(columns.schema.empty_table()).schema
    with published(path) as temporary:
        opened_writer = pyarrow.csv.CSVWriter if path.suffix.lower() == ".csv" else pq.ParquetWriter
        with opened_writer(temporary, schema) as writer:
            for partition in partitions:
                if not (output / partition.name).exists():  # a pixel without rows
                    continue
                with pq.ParquetFile(output / partition.name) as file:
                    for group in range(file.num_row_groups):
                        writer.write_table(flat(file.read_row_group(group)).cast(schema))
