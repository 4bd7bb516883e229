"""Alerts from files, and records to them.

- A source is a packet, a folder or an archive of packets (``.avro``, ``.tar.gz``), or a folder of dead letters.
- A sink is a file with a JSON document a line (``file:///results.jsonl``), or, where the path ends with a slash, a
  folder with a file for each key, which holds a second record of the same key only once. Dead letters go to folders.

A folder's files are the record as JSON, its value in base64. They are written under another name, flushed to the disk
and renamed, so that a file is there whole or not at all.
"""

import base64
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from service.client import ClientError, packets_in
from service.stream.messages import FiniteSource, Message, PermanentError, Record, TransientError

RECORD_SUFFIX = ".record.json"


class FileSource(FiniteSource):
    """Packets and letters from disk, once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = _messages(path)
        self._broken: Exception | None = None

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next messages. Raises ClientError or OSError at what cannot be read, after all before it."""
        messages: list[Message] = []
        try:
            while not self._broken and len(messages) < limit and (message := next(self._found, None)) is not None:
                messages.append(message)
        except (ClientError, OSError, ValueError) as error:
            self._broken = error
        if self._broken and not messages:
            raise self._broken
        return messages

    def done(self, messages: Sequence[Message]) -> None:
        """Remove letters that have been answered; packets stay. A letter written anew since stays, too."""
        for message in messages:
            if isinstance(message.token, tuple):
                path, inode = message.token
                if path.exists() and path.stat().st_ino == inode:
                    path.unlink()


def _messages(path: Path) -> Iterator[Message]:
    if path.is_dir():
        for file in sorted(path.glob(f"*{RECORD_SUFFIX}")):
            yield _read_record(file)
    for number, (name, data) in enumerate(packets_in([path])):
        yield Message(topic=path.name, place=f"{name}#{number}", value=data)


def _read_record(path: Path) -> Message:
    with path.open("rb") as file:
        document, inode = orjson.loads(file.read()), os.fstat(file.fileno()).st_ino
    headers = tuple((name, base64.b64decode(value)) for name, value in document["headers"])
    value = base64.b64decode(document["value"])
    return Message(path.parent.name, path.name, value, headers=headers, token=(path, inode))


class FolderSink:
    """Folder with a file for each key."""

    trouble = ""

    def refusal(self) -> str:
        """Return nothing: who may not write is told when something is written."""
        return ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        """Write each record; it is on the disk when this returns."""
        return [self._write(record) for record in records]

    def _write(self, record: Record) -> TransientError | None:
        name = hashlib.sha256(record.key).hexdigest()[:32]
        part = self._folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
        document = {
            "key": record.key.decode(errors="replace"),
            "headers": [(header, base64.b64encode(value).decode()) for header, value in record.headers],
            "value": base64.b64encode(record.value).decode(),
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(orjson.dumps(document))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / f"{name}{RECORD_SUFFIX}")
        except OSError as error:
            part.unlink(missing_ok=True)
            return TransientError(f"{self._folder}: {error.strerror}")
        return None

    def close(self) -> None:
        """Do nothing: no file is open."""


class LinesSink:
    """One file, a record's value a line; only formats of text fit."""

    trouble = ""

    def refusal(self) -> str:
        """Return nothing: who may not write is told when something is written."""
        return ""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        """Append all records; they are on the disk when this returns."""
        lines = b"".join(record.value + b"\n" for record in records)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self._path.open("ab+") as file:
                end = _whole_lines(self._path)
                file.truncate(end)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return [TransientError(f"{self._path}: {error.strerror}") for _ in records]
        return [None for _ in records]

    def close(self) -> None:
        """Do nothing: no file is open."""


def _whole_lines(path: Path) -> int:
    """Return the length of the file without a last line that a crash or a full disk cut short."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65_536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
