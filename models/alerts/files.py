"""Alert packets in files, recognised by content: folders, gzip, bzip2, xz, zstd, tar archives, Avro containers, JSON.

Whatever is damaged, too large or no alert is an item of its own, so that it hides nothing else and can be counted.
"""

import bz2
import gzip
import json
import lzma
import tarfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Final, Literal, NamedTuple

import cramjam
import orjson

from nightjar_alerts.models.alerts import containers
from nightjar_alerts.models.alerts.documents import is_alert
from nightjar_alerts.models.alerts.packet import PacketError

MAX_ITEM_BYTES: Final = 64 << 20
MAX_RECORDS: Final = 256
"""Records of a container that are handed on together; containers with more are split between their blocks."""
MAX_SPLIT_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 512
TAR_END_BYTES: Final = 1024
_TAR_MAGIC: Final = (257, b"ustar")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_OPENERS: Final[dict[bytes, Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_DAMAGED: Final = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, cramjam.DecompressionError)
_SUFFIXES: Final = (".avro", ".json", ".jsonl", ".ndjson")

Kind = Literal["packet", "unreadable", "other"]


class FileItem(NamedTuple):
    """One packet of a file, or the reason why there is none.

    Attributes
    ----------
    name : path of the file, with that of an archive's member and the number of a part behind it.
    kind : ``packet``; ``unreadable`` for a file that is damaged or too large; ``other`` for one that is no alert.
    detail : for people, unless the kind is ``packet``.
    """

    name: str
    data: bytes
    kind: Kind = "packet"
    detail: str = ""


def read_path(path: Path) -> Iterator[FileItem]:
    """Yield the packets of a file, or of every file in a folder and its subfolders, in order of their names.

    A file that is named is taken for alerts unless it is damaged. In folders and archives, a file counts as ``other``
    unless its content or its name says that it holds alerts.

    Raises
    ------
    FileNotFoundError
        When there is no such path.
    """
    if path.is_dir():
        for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
            yield from _read_file(file, str(file.relative_to(path)), named=False)
    else:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        yield from _read_file(path, path.name, named=True)


def _read_file(path: Path, name: str, named: bool) -> Iterator[FileItem]:
    try:
        with path.open("rb") as raw:
            if _peek(raw).startswith(_ZSTD_MAGIC):
                yield from _read_zstd(raw.read(), name, named)
                return
            with _decompressed(raw) as file:
                if _is_tar(_peek(file)):
                    yield from _members(file, name)
                    if file is raw and not _has_tar_end(raw):  # compression has an end of its own
                        yield FileItem(name, b"", "unreadable", "the archive has no end: it is cut short")
                    return
                data = file.read(MAX_ITEM_BYTES + 1)
    except _DAMAGED as error:
        yield FileItem(name, b"", "unreadable", _reason(error))
        return
    yield from _items(name, data, named)


def _read_zstd(packed: bytes, name: str, named: bool) -> Iterator[FileItem]:
    """Yield the packets of a zstd file, those before the damage in a damaged archive.

    An archive may be larger than memory, and what was decompressed before an error is only known from a file.
    """
    with NamedTemporaryFile() as file:
        damage = None
        try:
            cramjam.zstd.decompress_into(packed, cramjam.File(file.name))
        except _DAMAGED as error:
            damage = error
        if _is_tar(_peek(file)):
            yield from _members(file, name)
        elif damage is None:
            yield from _items(name, file.read(MAX_ITEM_BYTES + 1), named)
        if damage is not None:
            raise damage


def _decompressed(file: IO[bytes]) -> Any:
    head = _peek(file)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    return file if opener is None else opener(file)


def _unzstd(packed: bytes) -> bytes:
    room = bytearray(MAX_ITEM_BYTES + 1)
    size = cramjam.zstd.decompress_into(packed, room)
    return bytes(memoryview(room)[:size])


def _peek(file: IO[bytes]) -> bytes:
    head = file.read(HEAD_BYTES)
    file.seek(0)
    return head


def _is_tar(head: bytes) -> bool:
    return head[_TAR_MAGIC[0] :].startswith(_TAR_MAGIC[1])


def _members(file: IO[bytes], name: str, nested: bool = False) -> Iterator[FileItem]:
    """Yield the packets of a tar archive, and those of archives in it."""
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            inner = f"{name}/{member.name}"
            if not member.isfile():
                continue
            if member.size > MAX_ITEM_BYTES:
                yield FileItem(inner, b"", "unreadable", f"more than {MAX_ITEM_BYTES} bytes")
                continue
            content = archive.extractfile(member)
            data = content.read() if content else b""
            if len(data) < member.size:
                raise EOFError("the archive is cut short")
            try:
                data = _unpack(data)
                if _is_tar(data[:HEAD_BYTES]) and len(data) <= MAX_ITEM_BYTES and not nested:
                    yield from _members(BytesIO(data), inner, nested=True)
                    continue
            except _DAMAGED as error:
                yield FileItem(inner, b"", "unreadable", _reason(error))
                continue
            yield from _items(inner, data, named=False)


def _has_tar_end(file: IO[bytes]) -> bool:
    file.seek(0, SEEK_END)
    file.seek(-min(TAR_END_BYTES, file.tell()), SEEK_END)
    return file.read() == bytes(TAR_END_BYTES)


def _unpack(data: bytes) -> bytes:
    """Return a member of an archive, decompressed if it is compressed."""
    if data.startswith(_ZSTD_MAGIC):
        return _unzstd(data)
    for magic, opener in _OPENERS.items():
        if data.startswith(magic):
            with opener(BytesIO(data)) as file:
                return bytes(file.read(MAX_ITEM_BYTES + 1))
    return data


def _items(name: str, data: bytes, named: bool) -> Iterator[FileItem]:
    if len(data) > MAX_ITEM_BYTES:
        yield FileItem(name, b"", "unreadable", f"more than {MAX_ITEM_BYTES} bytes once decompressed")
    elif data.startswith(containers.MAGIC):
        yield from _parts(name, _split_container(data))
    elif data[:HEAD_BYTES].removeprefix(BOM_UTF8).lstrip()[:1] in (b"{", b"["):
        yield from _documents(name, data, named or name.lower().endswith(".avro"))
    elif named or data[:1] == b"\0" or name.lower().removesuffix(".gz").endswith(_SUFFIXES):
        yield FileItem(name, data)
    else:
        yield FileItem(name, b"", "other", "no alerts: neither Avro nor JSON")


def _parts(name: str, parts: list[bytes]) -> Iterator[FileItem]:
    for number, part in enumerate(parts):
        yield FileItem(name if len(parts) == 1 else f"{name}[{number}]", part)


def _split_container(data: bytes) -> list[bytes]:
    """Return containers of at most some hundred records each, cut between blocks; a damaged one is returned whole."""
    try:
        header = containers.read_header(data)
        cuts = containers.block_starts(data, header)
    except PacketError:
        return [data]
    parts, records, start = [], 0, header.end
    for count, at, end in cuts:
        if at > start and (records + count > MAX_RECORDS or end - start > MAX_SPLIT_BYTES):
            parts.append(data[: header.end] + data[start:at])
            records, start = 0, at
        records += count
    return [*parts, data[: header.end] + data[start:]] if parts else [data]


def _documents(name: str, data: bytes, named: bool) -> Iterator[FileItem]:
    """Yield the alerts of a JSON file: one object, a list of objects, or one object a line."""
    text = data.removeprefix(BOM_UTF8).strip()
    document = _loads(text)
    lines = text.splitlines() if document is None and text[:1] == b"{" else []
    if isinstance(document, list) and (named or any(map(is_alert, document))):
        # json, unlike orjson, writes whatever it has read: integers of any size, and text that is no UTF-8
        yield from _parts(name, [json.dumps(each).encode() for each in document])
    elif len(lines) > 1 and isinstance(_loads(lines[0]), dict):
        yield from _parts(name, [line for line in lines if line.strip()])
    elif document is None or named or is_alert(document):
        yield FileItem(name, data)
    else:
        yield FileItem(name, b"", "other", "JSON that is no alert of a known survey")


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
