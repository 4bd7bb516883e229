"""Partitions of the input of a catalogue: what is read, classified and written at once."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from nightjar_alerts.catalog.columns import RowKind
from nightjar_alerts.inputs import files_in
from nightjar_alerts.tables import TableError
from nightjar_alerts.tables.files import head_of
from nightjar_alerts.tables.sniff import format_of, stem_of

PACKETS: Final = 1000
"""Maximum number of files of one folder in a partition, if they are not Parquet."""
ARCHIVE_BYTES: Final = 8 << 20
"""Size of a file that is a partition of its own, such as an archive of packets."""
MARKS: Final = (".parquet", ".pq", ".parq")


@dataclass(frozen=True)
class Partition:
    """Part of the input, and of the output.

    Attributes
    ----------
    name : path of the output below that of the catalogue.
    sources : files that are read; addresses of remote ones.
    bytes : sum of their sizes.
    digest : of the names, sizes and modification times (ETags of remote files) of the sources, and of ``margin``.
    margin : files of the rows around the partition.
    """

    name: str
    sources: tuple[str, ...]
    bytes: int
    digest: str
    margin: tuple[str, ...] = ()


def is_remote(path: str) -> bool:
    """Return True for an address such as ``s3://bucket/key``."""
    return "://" in path


def opened(path: str) -> Any:
    """Return what the reader of tables reads: the path of a local file, or an open remote file."""
    if not is_remote(path):
        return Path(path)
    import fsspec

    return fsspec.open(path, "rb").open()


def state(path: str) -> tuple[int, str]:
    """Return the size of a file, and what changes with its content: its modification time or ETag."""
    if not is_remote(path):
        found = Path(path).stat()
        return found.st_size, str(found.st_mtime_ns)
    import fsspec

    filesystem, inner = fsspec.core.url_to_fs(path)
    about = filesystem.info(inner)
    mark = next((about[key] for key in ("ETag", "etag", "LastModified", "mtime") if about.get(key)), "")
    return int(about.get("size") or 0), str(mark)


def digest_of(sources: Iterable[str]) -> tuple[int, str]:
    """Return the size of files, and a hash of their names, sizes and modification times."""
    total, digest = 0, hashlib.sha256()
    for source in sources:
        size, mark = state(source)
        total += size
        digest.update(f"{source.rpartition('/')[2]}\0{size}\0{mark}\n".encode("utf-8", "surrogateescape"))
    return total, digest.hexdigest()[:16]


def is_parquet(path: Path) -> bool:
    """Return True for a Parquet file, by its name or content."""
    return path.suffix.lower() in MARKS or format_of(path.name, head_of(path)) == "parquet"


def partitions_of(path: Path) -> tuple[list[Partition], RowKind]:
    """Return the partitions of a file or folder, and ``packets`` or, for Parquet, ``objects``.

    Each Parquet file is a partition. Other files are packets, archives or tables of other formats: a large one is a
    partition, and small ones of a folder share some.

    Raises
    ------
    TableError
        If there are no files, both Parquet files and others, or links that would be left out.
    """
    files = [file.path for file in files_in(path) if not file.path.name.startswith((".", "_"))]
    links = (each for each in path.rglob("[!._]*") if each.is_symlink() and not each.is_file())
    if (link := next(links, None)) is not None:
        raise TableError(f"{link} is a link to a folder or to nothing, and is not followed: replace or remove it")
    if not files:
        raise TableError(f"{path} has no files")
    root = path if path.is_dir() else path.parent
    is_table = is_parquet(next((file for file in files if file.suffix.lower() in MARKS), files[0]))
    if not is_table:
        return list(_of_packets(files, root)), "packets"
    if others := [file for file in files if not is_parquet(file)]:
        raise TableError(f"{path} has Parquet files and others, such as {others[0].relative_to(root)}: separate them")
    return [_partition(file.relative_to(root).with_suffix(".parquet"), [file]) for file in files], "objects"


def _partition(name: Path, files: Sequence[Path]) -> Partition:
    sources = tuple(map(str, files))
    return Partition(name.as_posix(), sources, *digest_of(sources))


def _of_packets(files: Sequence[Path], root: Path) -> Iterator[Partition]:
    taken: set[str] = set()
    for folder, found in groupby(files, lambda file: file.parent):
        small: list[Path] = []
        number = 0
        here = folder.relative_to(root)
        for file in found:
            if file.stat().st_size >= ARCHIVE_BYTES:
                stem = stem_of(file.name) or file.name
                name = here / (f"{file.name}.parquet" if str(here / stem) in taken else f"{stem}.parquet")
                taken.add(str(here / stem))
                yield _partition(name, [file])
                continue
            small.append(file)
            if len(small) == PACKETS:
                yield _partition(here / f"part-{number:06d}.parquet", small)
                small, number = [], number + 1
        if small:
            yield _partition(here / f"part-{number:06d}.parquet", small)
