"""Files that are read several times from their beginning, plain or compressed, within the bounds of a table."""

import io
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from nightjar_alerts.models.decompression import DAMAGED, Budget, ExpansionError, compression_of, decompressed
from nightjar_alerts.tables.bounds import FILE_BOUNDS, Bounds, TableTooLarge
from nightjar_alerts.tables.options import TableError

SAMPLE_BYTES: Final = 1 << 18
SIGNATURE_BYTES: Final = 16
COPIED_BYTES: Final = 1 << 20
MOST_EXAMPLES: Final = 5
SPOOLED_BYTES: Final = 64 << 20


class Problems:
    """Counts of malformed rows by reason, with the first few places, and of blocks of rows between empty lines."""

    def __init__(self) -> None:
        self.blocks = 0
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
    bounds : of the file and of what it decompresses to.
    checkpoint : called before each portion of the lines; may raise.

    Raises
    ------
    TableTooLarge
        When a binary file is larger than ``bounds.max_bytes``.
    """

    def __init__(
        self,
        name: str,
        stem: str,
        content: Path | bytes | IO[bytes],
        bounds: Bounds = FILE_BOUNDS,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.stem, self.bounds, self._checkpoint = name, stem, bounds, checkpoint
        if not isinstance(content, Path | bytes):
            copy: IO[bytes] = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115  # lives as long as the stream
            weakref.finalize(self, copy.close)
            while data := content.read(COPIED_BYTES):
                copy.write(data)
                self._check(copy.tell(), bounds.max_bytes)
            content = copy
        self.content = content
        if isinstance(content, Path):
            self.size = content.stat().st_size
        else:
            self.size = len(content) if isinstance(content, bytes) else content.tell()
        self._tell: Callable[[], int] = int
        self._end: Exception | None = None

    def _check(self, size: int, bound: int) -> None:
        if size > bound:
            raise TableTooLarge(f"{self.name} has more than {bound} bytes", self.bounds)

    @property
    def progress(self) -> float:
        """Fraction of the bytes that the last pass over the lines has read."""
        return min(1.0, self._tell() / self.size) if self.size else 1.0

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the content, decompressed.

        Raises
        ------
        TableTooLarge
            Also while it is read, once it is larger than :meth:`Bounds.expanded`.
        TableError
            When it is damaged.
        """
        try:
            with ExitStack() as stack:
                if isinstance(self.content, Path):
                    raw: IO[bytes] = stack.enter_context(self.content.open("rb"))
                else:
                    raw = io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content
                raw.seek(0)
                compression = compression_of(raw.read(SIGNATURE_BYTES))
                raw.seek(0)
                self._tell = raw.tell
                try:
                    if compression:
                        budget = Budget(self.bounds.expanded(self.size))
                        yield stack.enter_context(decompressed(raw, compression, budget))
                    else:
                        yield raw
                finally:
                    end = raw.tell()
                    self._tell = lambda: end
        except ExpansionError as error:
            raise TableTooLarge(f"{self.name} has {error}", self.bounds) from None
        except DAMAGED as error:
            if error is self._end:
                raise
            raise TableError(f"{self.name} cannot be read: {error}") from error

    def pause(self) -> None:
        """Call the checkpoint; its error is not one of damaged content, even if it has the same type."""
        try:
            self._checkpoint()
        except Exception as error:
            self._end = error
            raise

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

    def read(self, bound: int) -> bytes:
        """Return the content, decompressed. Raises TableTooLarge if it has more than ``bound`` bytes."""
        with self.open() as content:
            data = content.read(bound + 1)
        self._check(len(data), bound)
        return data

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
    def lines(self) -> Iterator["Lines"]:
        """Open the content as lines of text; bytes that are not of the encoding are replaced.

        Raises
        ------
        TableTooLarge
            Also while it is read, when a line has more than ``bounds.max_line`` bytes. In UTF-16, where bytes do not
            show the ends of lines, this bounds the whole content.
        """
        encoding = self.encoding()
        with self.open() as content:
            lines = Lines(self)
            text = io.TextIOWrapper(  # type: ignore[type-var]  # it needs no more than read1
                _BytesOfLines(content, lines, encoding != "utf-16"), encoding, "replace", newline=""
            )
            try:
                yield lines.of(text)
            finally:
                text.detach()


class Lines:
    """Lines of a stream's text. ``taken`` counts the bytes that they, and up to 8 kB behind them, have in the file."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.taken = 0
        self.limit = stream.bounds.max_bytes
        self._text: Iterable[str] = ()

    def of(self, text: Iterable[str]) -> "Lines":
        """Return the lines of a text."""
        self._text = text
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(self._text)

    def allow(self, count: int) -> None:
        """Raise TableTooLarge while the next lines are read, once they take more than ``count`` bytes."""
        self.limit = self.taken + count


class _BytesOfLines(io.BufferedIOBase):
    """Content of a stream whose lines are bounded, for ``TextIOWrapper``, which itself reads lines of any length."""

    def __init__(self, content: Any, lines: Lines, has_lines: bool) -> None:
        self._content, self._lines, self._has_lines = content, lines, has_lines
        self._line = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, at most ``size``."""
        lines, stream = self._lines, self._lines.stream
        stream.pause()
        data: bytes = self._content.read(size)
        lines.taken += len(data)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) if self._has_lines else -1
        self._line = len(data) - end - 1 if end >= 0 else self._line + len(data)
        bounds = stream.bounds
        if self._line > bounds.max_line:
            raise TableTooLarge(f"{stream.name} has a line of more than {bounds.max_line} bytes", bounds)
        if lines.taken > bounds.max_bytes:
            raise TableTooLarge(f"{stream.name} has more than {bounds.max_bytes} bytes", bounds)
        if lines.taken > lines.limit:
            raise TableTooLarge(f"{stream.name} has a row of many lines, in quotes that have no end", bounds)
        return data
