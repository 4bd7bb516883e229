"""Reader of alert packets in files: folders, gzip, bzip2, xz, zstd, tar archives, Avro containers and JSON.

The format is detected from the content. Damaged or too large parts, and files that are not alerts, are yielded as items
of their own, so that they can be counted and do not affect other items.

Memory holds an item. Nothing is written to disk. What a file decompresses to, its members included, is bounded by its
size (:class:`decompression.Budget`), and so is the time.
"""

import json
import os
import tarfile
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tarfile import (  # type: ignore[attr-defined]  # typeshed lacks some
    EmptyHeaderError,
    EOFHeaderError,
    HeaderError,
    InvalidHeaderError,
)
from typing import IO, Any, Final, Literal, NamedTuple, Self

import orjson

from nightjar_alerts.alerts import containers, plans
from nightjar_alerts.alerts.documents import is_alert, looks_like_json
from nightjar_alerts.alerts.packet import PacketError, ReadLimits
from nightjar_alerts.models import decompression
from nightjar_alerts.models.decompression import ALWAYS_BYTES, MAX_EXPANSION, Budget

MAX_ITEM_BYTES: Final = 64 << 20
MAX_RECORDS: Final = 256
"""Maximum number of records of a container in one item; larger containers are split between blocks."""
MAX_SPLIT_BYTES: Final = 1 << 20
MAX_BLOCK_BYTES: Final = 128 << 10
"""Compressed size above which a block of several records is split, because its records may have too many bytes."""
READ_BYTES: Final = 4 << 20
MAX_BAD_LINES: Final = 10
"""Maximum number of damaged lines at the beginning of a JSON Lines file."""
MAX_DEPTH: Final = 8
"""Maximum nesting of archives and compressions."""
HEAD_BYTES: Final = 512
TAR_END_BLOCKS: Final = 2
"""Number of zero blocks at the end of a tar archive."""
MAX_ZERO_BLOCKS: Final = 1 << 15
"""Maximum number of zero blocks (16 MiB) between members; writers pad an archive to a few kilobytes."""
MAX_NAME_BYTES: Final = 1 << 16
"""Maximum size of a member that holds the long name and other attributes of the next one."""
_ATTRIBUTE_TYPES: Final = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_TAR_MAGIC: Final = (257, b"ustar")
_ZIP_MAGIC: Final = b"PK\x03\x04"
_APPLE_DOUBLE: Final = b"\x00\x05\x16\x07"
"""First bytes of the files in which macOS stores attributes of other files, such as ``._alert.avro``."""
_DAMAGED: Final = (tarfile.TarError, *decompression.DAMAGED)
_LINES: Final = (".jsonl", ".ndjson")
_SUFFIXES: Final = (".avro", ".json", *_LINES)
_BLOCK_LIMITS: Final = ReadLimits(
    max_record_bytes=MAX_ITEM_BYTES, max_decompressed_bytes=MAX_ITEM_BYTES, max_expansion=MAX_ITEM_BYTES
)

Kind = Literal["packet", "unreadable", "other"]


class FileItem(NamedTuple):
    """Packet in a file, or the reason why there is none.

    Attributes
    ----------
    name : path of the file, followed by the path of an archive member and the number of a part.
    data : bytes of the packet or of a file that is not an alert; empty for an unreadable one.
    kind : ``packet``; ``unreadable`` for a file that is damaged or too large; ``other`` for one that is not an alert.
    detail : reason for people; empty if the kind is ``packet``.
    """

    name: str
    data: bytes
    kind: Kind = "packet"
    detail: str = ""


def exit_status(read: int, unread: int, skipped: int) -> int:
    """Return the exit status of a command that reads alerts from files or a range of a topic.

    0: everything that looks like an alert was read (including abstained alerts), or the source was empty. 3: something
    could not be read or was rejected. 1: nothing was read from a non-empty source.
    """
    if not read and (unread or skipped):
        return 1
    return 3 if unread else 0


def read_path(path: Path) -> Iterator[FileItem]:
    """Yield the packets of a file, or of all files in a folder and its subfolders, sorted by name.

    A file given by name is assumed to have alerts. In folders and archives, a file is ``other`` unless its content or
    its name indicates alerts. :func:`read_file` describes the bound on decompression.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    """
    if path.is_dir():
        yield from _read_folder(path)
    elif path.exists():
        yield from read_file(path, path.name, named=True)
    else:
        raise FileNotFoundError(f"{path} does not exist")


def _read_folder(root: Path) -> Iterator[FileItem]:
    errors: list[OSError] = []
    paths: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=errors.append):
        paths += [Path(folder, name) for name in files]
        paths += [
            path for name in folders if (path := Path(folder, name)).is_symlink()
        ]  # not followed, because of possible loops
    for error in errors:
        yield FileItem(str(Path(error.filename).relative_to(root)), b"", "unreadable", _reason(error))
    for path in sorted(paths):
        name = str(path.relative_to(root))
        if path.is_file() or not path.exists():  # broken links are unreadable
            yield from read_file(path, name, named=False)
        else:
            yield FileItem(name, b"", "other", "a link to a folder, or no ordinary file")


def read_file(path: Path, name: str, named: bool, always_bytes: int = ALWAYS_BYTES) -> Iterator[FileItem]:
    """Yield the packets of a file under ``name``; :func:`read_path` describes files that are ``named``.

    The content of all compressions and archives in the file, one inside another, may have ``always_bytes`` bytes, or
    :data:`MAX_EXPANSION` times as many as the file. What is beyond is unreadable.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield from _read(file, name, named, Budget(max(always_bytes, MAX_EXPANSION * size)))
    except _DAMAGED as error:
        yield FileItem(name, b"", "unreadable", _reason(error))


def _read(file: IO[bytes], name: str, named: bool, budget: Budget, depth: int = 0) -> Iterator[FileItem]:
    """Yield the packets of a file or archive member; at damage, raise its error after the packets before it.

    ``depth`` is the number of enclosing archives and compressions.
    """
    head = _peek(file)
    compression = decompression.compression_of(head)
    is_tar = _is_tar(head)
    if depth > MAX_DEPTH and (compression or is_tar):
        yield FileItem(name, b"", "unreadable", f"more than {MAX_DEPTH} archives or compressions inside one another")
    elif compression:
        with decompression.decompressed(file, compression, budget) as unpacked:
            yield from _read(unpacked, name, named, budget, depth + 1)
    elif is_tar:
        yield from _members(file, name, budget, depth)
    elif head.startswith(containers.MAGIC):
        yield from _parts(name, _container_parts(file))
    else:
        yield from _items(name, file.read(MAX_ITEM_BYTES + 1), named)


def _is_tar(head: bytes) -> bool:
    return head[_TAR_MAGIC[0] :].startswith(_TAR_MAGIC[1])


def _peek(file: IO[bytes]) -> bytes:
    head = file.read(HEAD_BYTES)
    file.seek(0)
    return head


class _Archive(tarfile.TarFile):
    """Tar archive that is read to the end of the file, past damaged headers and end-of-archive blocks.

    ``tarfile`` itself stops at the first of either.
    """

    zeros = 0
    """Number of zero blocks since the last member."""
    damaged = False
    too_many_zeros = False


class _Member(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, tarfile: _Archive) -> Self:  # type: ignore[override]  # called only with our subclass
        """Read the next header. Raises HeaderError, which an archive opened with ``ignore_zeros`` skips."""
        try:
            member = super().fromtarfile(tarfile)
        except EOFHeaderError:
            tarfile.zeros += 1
            if tarfile.zeros > MAX_ZERO_BLOCKS:
                tarfile.too_many_zeros = True
                raise EmptyHeaderError("too many zeros") from None  # the end of the file
            raise
        except EmptyHeaderError:
            raise
        except HeaderError:
            tarfile.damaged = True
            raise
        tarfile.zeros = 0
        return member

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """Decode a header. Raises HeaderError for attributes above :data:`MAX_NAME_BYTES`, which are read whole."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _ATTRIBUTE_TYPES and member.size > MAX_NAME_BYTES:
            raise InvalidHeaderError("attributes are too large")
        return member


def _members(file: IO[bytes], name: str, budget: Budget, depth: int) -> Iterator[FileItem]:
    """Yield the packets of all tar archives in a file, including nested ones."""
    with _Archive.open(fileobj=file, mode="r:", tarinfo=_Member, ignore_zeros=True) as archive:
        for member in archive:
            inner = f"{name}/{member.name}"
            try:
                if member.issparse():  # its holes take no space in the archive
                    yield FileItem(inner, b"", "unreadable", "a sparse file is not read")
                elif content := archive.extractfile(member) if member.isfile() else None:
                    yield from _read(content, inner, False, budget, depth + 1)
                elif not member.isdir():
                    yield FileItem(inner, b"", "other", "a link, or no ordinary file")
            except _DAMAGED as error:
                yield FileItem(inner, b"", "unreadable", _reason(error))
        if archive.damaged:
            yield FileItem(name, b"", "unreadable", "the archive is damaged: members are missing")
        elif archive.too_many_zeros:
            zeros = f"more than {MAX_ZERO_BLOCKS * tarfile.BLOCKSIZE} zeros follow one another"
            yield FileItem(name, b"", "unreadable", f"{zeros}: the rest of the archive is not read")
        elif archive.zeros < TAR_END_BLOCKS:
            yield FileItem(name, b"", "unreadable", "the archive has no end: it is cut short")


def _items(name: str, data: bytes, named: bool) -> Iterator[FileItem]:
    lower = name.lower().removesuffix(".gz")
    if len(data) > MAX_ITEM_BYTES:
        yield FileItem(name, b"", "unreadable", f"more than {MAX_ITEM_BYTES} bytes once decompressed")
    elif looks_like_json(data) or lower.endswith(_LINES):
        yield from _documents(name, data, named)
    elif named or (not data.startswith(_APPLE_DOUBLE) and (data[:1] == b"\0" or lower.endswith(_SUFFIXES))):
        yield FileItem(name, data)
    else:
        archive = ": a zip archive is not read" if data.startswith(_ZIP_MAGIC) else ""
        yield FileItem(name, data, "other", f"no alerts: neither Avro nor JSON{archive}")


def _parts(name: str, parts: Iterator[bytes]) -> Iterator[FileItem]:
    """Yield parts of a file under its name, numbered if there are several."""
    first, second = next(parts, b""), next(parts, None)
    if second is None:
        yield FileItem(name, first)
        return
    for number, part in enumerate(chain([first, second], parts)):
        yield FileItem(f"{name}[{number}]", part)


def _container_parts(file: IO[bytes]) -> Iterator[bytes]:
    """Split a container into containers of at most :data:`MAX_RECORDS` records each.

    The file is read in pieces, because it may be larger than memory. The rest of a damaged container is the last part,
    so that decoding it reports the damage. Raises OSError if a block is too large.
    """
    pending = file.read(READ_BYTES)
    try:
        header = containers.read_header(pending)
    except PacketError:
        yield pending
        return
    head, pending = pending[: header.end], pending[header.end :]
    while True:
        chunk = file.read(READ_BYTES)
        pending += chunk
        starts = _part_starts(containers.block_starts(head + pending, header), header.end)
        ends = [*starts[1:], header.end + len(pending)]
        complete = list(zip(starts, ends, strict=True))[: -1 if chunk else None]
        for start, end in complete:
            yield from _split_blocks(head + pending[start - header.end : end - header.end], header)
        if not chunk:
            return
        pending = pending[starts[-1] - header.end :]
        if len(pending) > MAX_ITEM_BYTES:
            raise OSError(f"a block is damaged, or has more than {MAX_ITEM_BYTES} bytes")


def _part_starts(blocks: list[tuple[int, int, int]], first: int) -> list[int]:
    starts, records = [first], 0
    for count, start, end in blocks:
        if start > starts[-1] and (records + count > MAX_RECORDS or end - starts[-1] > MAX_SPLIT_BYTES):
            starts.append(start)
            records = 0
        records += count
    return starts


def _split_blocks(part: bytes, header: containers.Header) -> Iterator[bytes]:
    """Yield a container unchanged, or split if a block has too many records."""
    blocks = containers.block_starts(part, header)
    if all(count <= MAX_RECORDS and (count < 2 or end - at <= MAX_BLOCK_BYTES) for count, at, end in blocks):
        yield part
        return
    head, end = part[: header.end], header.end
    for _, start, end in blocks:
        yield from _split_block(head + part[start:end], header)
    if end < len(part):
        yield head + part[end:]


def _split_block(container: bytes, header: containers.Header) -> Iterator[bytes]:
    """Split a container with one block; if a record is damaged, the rest is the last container."""
    try:
        decoder = plans.for_text(header.schema).decoder
        (block,) = containers.read_blocks(container, header, _BLOCK_LIMITS)
    except PacketError:
        yield container
        return
    first = start = end = 0
    for number in range(1, block.count + 1):
        try:
            _, end = decoder.read(block.data, end)
        except PacketError:
            break
        if number - first == MAX_RECORDS or end - start > MAX_SPLIT_BYTES:
            yield containers.write(header, number - first, block.data[start:end])
            first, start = number, end
    if first < block.count or start < len(block.data):
        yield containers.write(header, block.count - first, block.data[start:])


def _documents(name: str, data: bytes, named: bool) -> Iterator[FileItem]:
    """Yield the alerts of a JSON file: one object, a list of objects, or one object per line."""
    text = data.removeprefix(BOM_UTF8).strip()
    document = _loads(text)
    lines = [line for line in text.splitlines() if line.strip()] if document is None else []
    if isinstance(document, list) and (named or any(map(is_alert, document))):
        # unlike orjson, json can write everything that it can read: large integers and invalid UTF-8
        yield from _parts(name, (json.dumps(each).encode() for each in document))
    elif len(lines) > 1 and (name.lower().endswith(_LINES) or any(_loads(line) for line in lines[:MAX_BAD_LINES])):
        yield from _parts(name, iter(lines))
    elif document is None or named or is_alert(document) or name.lower().endswith(".avro"):
        yield FileItem(name, data)
    else:
        yield FileItem(name, data, "other", "JSON that is no alert of a known survey")


def _loads(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return None


def _reason(error: Exception) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error or type(error).__name__)
