"""Bounds on what one table from outside may cost, and the errors of tables beyond them.

Each reader refuses before it builds. All bounds follow from :attr:`Bounds.max_bytes`, so that one number raises them.
Tables in memory (data frames and the like) are the caller's own and have no bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nightjar_alerts.models.decompression import ALWAYS_BYTES, MAX_EXPANSION
from nightjar_alerts.tables.options import TableError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

TEXT_FORMATS: Final = frozenset({"csv", "json", "jsonl"})
"""Formats that are read without a library made for trusted files."""
COMPRESSIONS: Final = frozenset({"gzip", "bzip2", "xz", "zstd"})
FORMATS: Final = TEXT_FORMATS | COMPRESSIONS | {"ecsv", "fits", "votable", "ipac", "parquet", "hats"}
MAX_NAME: Final = 512
"""Maximum number of characters of a column's name."""
MAX_DEPTH: Final = 16
"""Maximum nesting of JSON objects and XML elements in a table."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one table.

    Attributes
    ----------
    formats : formats that are read, of :data:`FORMATS`; :class:`UnsupportedFormat` is raised for the content of others
        before it is decoded. Compressed content needs the format of the compression as well.
    max_bytes : size in bytes, once decompressed, of a table that is read in portions: text, JSON Lines, and each
        Parquet file. The other bounds are shares of it, at least what the examples of HTTP need.
    """

    formats: frozenset[str] = FORMATS
    max_bytes: int = 64 * GIB

    def _share(self, parts: int, least: int) -> int:
        return max(min(self.max_bytes, least), self.max_bytes // parts)

    @property
    def max_columns(self) -> int:
        """Number of columns, also of the distinct keys of JSON; choosing their roles takes about 1 ms each."""
        return self._share(1 << 25, 1024)

    def check_names(self, names: Sequence[str], where: str) -> None:
        """Check the names of the columns of a table. Raises TableTooLarge, or TableError for a long name."""
        if len(names) > self.max_columns:
            raise TableTooLarge(f"{where} has more than {self.max_columns} columns", self)
        if longest := next((name for name in names if len(name) > MAX_NAME), ""):
            raise TableError(f"{where} has a column name of more than {MAX_NAME} characters: {longest[:40]!r}...")

    @property
    def held_bytes(self) -> int:
        """Size of a document that is held as a whole: JSON, VOTable, ECSV, IPAC. It costs up to 16 times as much."""
        return self._share(256, 64 * MIB)

    @property
    def decoded_bytes(self) -> int:
        """Size of the arrays of a table that is decoded as a whole: FITS, VOTable, a row group of Parquet."""
        return self._share(64, 64 * MIB)

    @property
    def temporary_bytes(self) -> int:
        """Size of temporary files."""
        return self._share(4, 64 * MIB)

    @property
    def header_bytes(self) -> int:
        """Size of a header, which is parsed at about 100 kB/s: YAML of ECSV, cards of FITS, keywords of IPAC."""
        return self._share(1 << 18, 256 * KIB)

    @property
    def max_line(self) -> int:
        """Characters of a line, which may hold a whole light curve; splitting it takes up to 20 times as much."""
        return self._share(1 << 12, 4 * MIB)

    @property
    def max_objects(self) -> int:
        """Number of objects, whose names are held; each takes about 400 bytes."""
        return self._share(1 << 14, self.max_bytes // 64)

    @property
    def max_points(self) -> int:
        """Number of points of one object, which are held together at about 100 bytes each."""
        return self._share(1 << 14, 1 << 18)

    @property
    def always_bytes(self) -> int:
        """Size to which any file may decompress or decode; larger ones only to MAX_EXPANSION times their size."""
        return self._share(1 << 10, ALWAYS_BYTES)

    def expanded(self, size: int) -> int:
        """Return how many bytes a file of ``size`` bytes may become once decompressed or decoded."""
        return min(self.max_bytes, max(self.always_bytes, MAX_EXPANSION * size))


FILE_BOUNDS: Final = Bounds()
"""Bounds of files on the command line and in Python."""
TRUSTED: Final = Bounds(max_bytes=1 << 62)
"""Bounds of tables in memory, which are the caller's own."""


class UnsupportedFormat(TableError):
    """The content has a format that is not read here.

    Attributes
    ----------
    format : name of the format in lower case, such as ``fits``, ``gzip`` or ``zip``; ``binary`` if it is not known.
    """

    def __init__(self, message: str, form: str) -> None:
        super().__init__(message)
        self.format = form


class TableTooLarge(TableError):
    """The table is beyond a bound; the message names the bound, the value and how to raise it.

    Attributes
    ----------
    reason : the message without the way to raise the bound, which differs over HTTP.
    """

    def __init__(self, reason: str, bounds: Bounds) -> None:
        self.reason = reason
        size = -(-4 * bounds.max_bytes // GIB)
        super().__init__(f"{reason}; --max-size {size}GiB or Bounds(max_bytes={size} << 30) raises the bound")
