"""Compressed files from outside (gzip, bzip2, xz, zstd), decompressed in portions and within a budget of bytes.

A few kilobytes may decompress to gigabytes. Nothing is decompressed beyond the budget, which all compressions inside
one another share, and memory holds a portion.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any, Final, cast

import zstandard

PORTION_BYTES: Final = 1 << 16
MAX_EXPANSION: Final = 100
"""Maximum size of a file once decompressed, as a multiple of its own; tables and alerts of surveys have up to 30."""
ALWAYS_BYTES: Final = 64 << 20
"""Size to which any file may decompress."""
ZSTD_WINDOW_BYTES: Final = 128 << 20
"""Largest window of zstd, that of its command without ``--ultra``."""
_ZSTD_INPUT_BYTES: Final = 256
"""Bytes that are decompressed at once; four of them may become a block of 128 kB."""
DAMAGED: Final = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
"""Errors of damaged files, and of those beyond the budget."""


class ExpansionError(OSError):
    """The content is larger than the budget."""


class Budget:
    """Number of bytes that may still be decompressed."""

    def __init__(self, size: int) -> None:
        self._left = self.size = size

    def spend(self, count: int) -> None:
        """Subtract a number of bytes. Raises ExpansionError where there are not as many left."""
        self._left -= max(0, count)
        if self._left < 0:
            raise ExpansionError(f"more than {self.size} bytes once decompressed")


class _Zstd(io.RawIOBase):
    """Content of the frames of a zstd file. Unlike zstandard's own reader it raises EOFError if the last is cut."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame: Any = None
        self._input = self._output = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read up to ``len(buffer)`` bytes; 0 at the end."""
        while not self._output:
            self._input = self._input or self._file.read(_ZSTD_INPUT_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the zstd data are cut short")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()
            self._output = self._frame.decompress(self._input)
            self._input = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        count = min(len(buffer), len(self._output))
        buffer[:count], self._output = self._output[:count], self._output[count:]
        return count


_OPENERS: Final[Mapping[bytes, tuple[str, Callable[[IO[bytes]], Any]]]] = {
    b"\x1f\x8b": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\x00": ("xz", lzma.LZMAFile),
    b"\x28\xb5\x2f\xfd": ("zstd", _Zstd),
}
"""Name and opener of a compression by the first bytes of a file."""


def compression_of(head: bytes) -> str:
    """Return the compression of a file with these first bytes: gzip, bzip2, xz, zstd, or empty."""
    return next((name for magic, (name, _) in _OPENERS.items() if head.startswith(magic)), "")


def decompressed(file: IO[bytes], compression: str, budget: Budget) -> io.BufferedReader:
    """Open the content of a compressed file, which must be at its beginning and able to seek there.

    Reading raises :class:`ExpansionError` beyond the budget, and other :data:`DAMAGED` errors.
    """
    opener = next(opener for name, opener in _OPENERS.values() if name == compression)
    return io.BufferedReader(_Decompressed(file, opener, budget), PORTION_BYTES)


class _Decompressed(io.RawIOBase):
    """Content of a compressed file; going back starts again from the beginning, at the expense of the budget."""

    def __init__(self, file: IO[bytes], opener: Callable[[IO[bytes]], Any], budget: Budget) -> None:
        self._file, self._opener, self._budget = file, opener, budget
        self._start()

    def _start(self) -> None:
        content = self._opener(self._file)
        # One step at a time, since a longer read of damaged data would lose the part before the damage.
        self._read_into = getattr(content, "readinto1", content.readinto)
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read up to ``len(buffer)`` bytes; 0 at the end."""
        count = cast(int, self._read_into(buffer))
        self._position += count
        self._budget.spend(count)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position from the beginning, or relative to this one, at most to the end."""
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the size of compressed content is not known")
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if target < self._position:
            self._file.seek(0)
            self._start()
        portion = bytearray(PORTION_BYTES)
        while self._position < target:
            if not self.readinto(memoryview(portion)[: target - self._position]):
                break
        return self._position
