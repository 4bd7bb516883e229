"""Files as source and sinks of a worker.

- A source is a packet, an archive or a folder, in any format that :mod:`alerts.files` reads, or a folder of dead
  letters.
- A sink is a file with one JSON document per line (``file:///results.jsonl``), or, where the path ends with a slash, a
  folder with one file per key. Dead letters go to folders.

A file in a folder sink is the record as JSON, with its value in base64. It is written under a temporary name, flushed
to disk and renamed, so that it never exists in part.
"""

import base64
import errno
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import orjson
import structlog

from nightjar_alerts.alerts.files import read_path
from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.dead_letters import is_dead_letter
from nightjar_alerts.service.stream.messages import DeliveryReport, FiniteSource, Message, Record, TransientError

log = structlog.get_logger(__name__)

RECORD_SUFFIX = ".record.json"
LONGEST_NAME = 1000
"""Maximum length of the name of an item, including enclosing archives, in bytes."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, after which writing is retried."""


class FileSource(FiniteSource):
    """Finite source of packets and dead letters on disk: a file, an archive or a folder.

    Attributes
    ----------
    unreadable : why files could not be read, by name.
    skipped : names of files without alerts.
    """

    def __init__(self, path: Path) -> None:
        self.unreadable: dict[str, str] = {}
        self.skipped: list[str] = []
        self._messages = self._read(path)

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next messages; none at the end. Files that cannot be read are recorded and skipped."""
        return list(islice(self._messages, limit))

    def _read(self, path: Path) -> Iterator[Message]:
        if path.is_dir():
            for file in sorted(path.glob(f"*{RECORD_SUFFIX}")):
                try:
                    yield read_record(file)
                except RecordError as error:
                    self._record_unreadable(file.name, str(error))
        for number, item in enumerate(read_path(path)):
            if item.name.endswith(RECORD_SUFFIX):
                continue
            if item.kind == "packet":
                yield Message(_valid_name(path.name), f"{_valid_name(item.name)}#{number}", item.data)
            elif item.kind == "unreadable":
                self._record_unreadable(item.name, item.detail)
            else:
                self.skipped.append(item.name)

    def _record_unreadable(self, name: str, detail: str) -> None:
        log.warning("file cannot be read", file=name, reason=detail)
        self.unreadable[name] = detail

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Remove processed dead letters, except those that were written again. Packets are not removed."""
        for message in messages:
            if isinstance(message.token, tuple):
                path, inode = message.token
                try:
                    # A dead letter that was written again has the same name but another inode.
                    if path.exists() and path.stat().st_ino == inode:
                        path.unlink()
                except OSError as error:
                    raise TransientError(f"{path} cannot be removed: {error.strerror}") from error


def _valid_name(name: str) -> str:
    """Return a name as UTF-8 of limited length, for headers of dead letters and results."""
    text = name.encode(errors="backslashreplace").decode()  # file names need not be UTF-8
    return text if len(text.encode()) <= LONGEST_NAME else f"...{text[-LONGEST_NAME // 8 :]}"


class RecordError(ValueError):
    """The file is not a valid dead letter."""


def read_record(path: Path) -> Message:
    """Read a dead letter from its file. Raises RecordError."""
    try:
        with path.open("rb") as file:
            document, inode = orjson.loads(file.read()), os.fstat(file.fileno()).st_ino
        headers = tuple((name, base64.b64decode(value)) for name, value in document["headers"])
        value = base64.b64decode(document["value"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"not a dead letter that can be read ({type(error).__name__})") from error
    return Message(path.parent.name, path.name, value, headers=headers, token=(path, inode))


class _FileSink:
    """Base of the sinks on disk, which need no connection."""

    error = ""

    def check_access(self) -> str:
        """Return an empty string: a path that is not writable raises AddressError when the sink is opened."""
        return ""

    def close(self) -> None:
        """Do nothing: no file is open."""


class FolderSink(_FileSink):
    """Folder with one file per key, which has the last record of that key. Raises AddressError if not writable.

    The file name of a dead letter also depends on its value, since different messages can have the same key: files of
    two nights may have the same name, and the offsets of a recreated topic start again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        probe = folder / f".writable-{os.getpid()}"
        try:
            write_atomic(probe, b"")
            probe.unlink()
        except OSError as error:
            if error.errno not in FULL:
                raise AddressError(f"the folder {folder} cannot be written: {error.strerror}") from None

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Write all records; they are flushed to disk when this returns."""
        return [self._write(record) for record in records]

    def _write(self, record: Record) -> TransientError | None:
        digest = hashlib.sha256(record.key)
        if is_dead_letter(record):
            digest.update(record.value)
        name = digest.hexdigest()[:32]
        document = {
            "key": record.key.decode(errors="replace"),
            "headers": [(header, base64.b64encode(value).decode()) for header, value in record.headers],
            "value": base64.b64encode(record.value).decode(),
        }
        try:
            write_atomic(self._folder / f"{name}{RECORD_SUFFIX}", orjson.dumps(document), shared=True)
        except OSError as error:
            return TransientError(f"{self._folder}: {error.strerror}")
        return None


class LinesSink(_FileSink):
    """File with one line per record, in a text format. Raises AddressError if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise AddressError(f"the file {path} cannot be written: {error.strerror}") from None

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Append all records; they are flushed to disk when this returns."""
        lines = b"".join(record.value + b"\n" for record in records)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self._path.open("ab+") as file:
                # Remove an incomplete line left by a crash, which would corrupt the next line.
                end = _complete_length(self._path)
                file.truncate(end)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return [TransientError(f"{self._path}: {error.strerror}") for _ in records]
        return [None for _ in records]


def _complete_length(path: Path) -> int:
    """Return the length of a file without an incomplete last line, left by a crash or a full disk."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0
