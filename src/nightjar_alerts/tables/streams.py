"""Files that are read several times from their beginning, plain or compressed."""

import bz2
import gzip
import io
import lzma
import shutil
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from nightjar_alerts.tables.options import TableError

SAMPLE_BYTES: Final = 1 << 18
SIGNATURE_BYTES: Final = 16
MOST_EXAMPLES: Final = 5
SPOOLED_BYTES: Final = 64 << 20
_COMPRESSIONS: Final[Mapping[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""Compressed files by their first bytes."""


class Problems:
    """Counts of malformed rows by reason, with the first few places."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []

    def add(self, reason: str, where: str) -> None:
        """Count one row."""
        self.counts[reason] += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{where}: {reason}")


class Stream:
    """A file that is read several times from its beginning.

    Parameters
    ----------
    name : for messages. stem : the name without folder and suffixes.
    content : path of the file, its bytes, or a binary file. One that cannot seek, such as standard input, is copied to
        memory or, where it is large, to disk.
    """

    def __init__(self, name: str, stem: str, content: Path | bytes | IO[bytes]) -> None:
        self.name, self.stem = name, stem
        if not isinstance(content, Path | bytes):
            copy: IO[bytes] = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115  # lives as long as the stream
            shutil.copyfileobj(content, copy)
            weakref.finalize(self, copy.close)
            content = copy
        self.content = content
        if isinstance(content, Path):
            self.size = content.stat().st_size
        else:
            self.size = len(content) if isinstance(content, bytes) else content.tell()
        self._tell: Callable[[], int] = int

    @property
    def progress(self) -> float:
        """Fraction of the bytes that the last pass over the lines has read."""
        return min(1.0, self._tell() / self.size) if self.size else 1.0

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the content, decompressed. Raises TableError."""
        try:
            with ExitStack() as stack:
                if isinstance(self.content, Path):
                    raw: IO[bytes] = stack.enter_context(self.content.open("rb"))
                else:
                    raw = io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content
                raw.seek(0)
                start = raw.read(6)
                raw.seek(0)
                self._tell = raw.tell
                opener = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), None)
                try:
                    yield raw if opener is None else stack.enter_context(opener(raw))
                finally:
                    end = raw.tell()
                    self._tell = lambda: end
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise TableError(f"{self.name} cannot be read: {error}") from error

    def start(self) -> bytes:
        """Return the first bytes as they are stored."""
        if isinstance(self.content, bytes):
            return self.content[:SIGNATURE_BYTES]
        if isinstance(self.content, Path):
            with self.content.open("rb") as file:
                return file.read(SIGNATURE_BYTES)
        self.content.seek(0)
        return self.content.read(SIGNATURE_BYTES)

    def head(self) -> bytes:
        """Return the first bytes."""
        with self.open() as content:
            return content.read(SAMPLE_BYTES)

    def encoding(self) -> str:
        """Return the encoding of text, by its first bytes; Latin-1 for those that are not UTF-8."""
        head = self.head()
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
        try:
            head[: head.rfind(b"\n") + 1].decode()
        except UnicodeDecodeError:
            return "cp1252"
        return "utf-8-sig"

    @contextmanager
    def lines(self) -> Iterator[Iterator[str]]:
        """Open the content as lines of text; bytes that are not of the encoding are replaced."""
        encoding = self.encoding()
        with self.open() as content:
            text = io.TextIOWrapper(content, encoding, "replace", newline="")
            try:
                yield text
            finally:
                text.detach()
