"""Reader of untrusted Avro object container files (OCF): header and blocks, decompressed within limits.

fastavro would decompress a block of any size, so a few kilobytes could exhaust the memory of the machine. This module
parses the framing in Python: deflate stops at the limit, snappy's stated size is checked before memory is allocated,
and counts and sizes are validated.

Layout (Avro 1.11 specification, "Object Container Files"): ``Obj\\x01``, a map of metadata, a 16-byte sync marker, then
blocks of (record count, byte size, bytes, sync marker).
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import cramjam

from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason

MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
MAX_METADATA_ENTRIES: Final = 64
ALWAYS_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """Header: schema (JSON text), codec name, sync marker, and offset of the first block."""

    schema: bytes
    codec: str
    sync: bytes
    end: int


@dataclass(frozen=True, slots=True)
class ContainerBlock:
    """Block: number of records, and their decompressed bytes."""

    count: int
    data: bytes


def read_header(data: bytes) -> Header:
    """Read the header of a container.

    Raises
    ------
    PacketError
        ``truncated_avro``, ``malformed_avro`` or ``unsupported_codec``.
    """
    cursor = _Cursor(data, len(MAGIC))
    metadata: dict[bytes, bytes] = {}
    while count := cursor.long():
        if count < 0:  # a negative count is followed by the size of the block in bytes
            count, _ = -count, cursor.long()
        if len(metadata) + count > MAX_METADATA_ENTRIES:
            raise _malformed("the container's header has too many entries")
        for _ in range(count):
            key = cursor.take(cursor.long())
            metadata[key] = cursor.take(cursor.long())
    sync = cursor.take(SYNC_BYTES)
    if b"avro.schema" not in metadata:
        raise _malformed("the container's header holds no schema")
    codec = metadata.get(b"avro.codec", b"null").decode("ascii", "replace")
    if codec not in ("null", "deflate", "snappy"):
        raise PacketError(RejectReason.UNSUPPORTED_CODEC, f"codec {codec[:20]!r} is not null, deflate or snappy")
    return Header(metadata[b"avro.schema"], codec, sync, cursor.at)


def read_blocks(data: bytes, header: Header, limits: ReadLimits) -> Iterator[ContainerBlock]:
    """Yield the blocks of a container in order.

    Raises
    ------
    PacketError
        During iteration: ``truncated_avro``, ``malformed_avro``, ``record_too_large``, ``decompressed_too_large``.
    """
    cursor = _Cursor(data, header.end)
    budget = min(limits.max_decompressed_bytes, max(ALWAYS_READ_BYTES, limits.max_expansion * len(data)))
    while cursor.at < len(data):
        count, size = cursor.long(), cursor.long()
        packed = cursor.take(size)
        if cursor.take(SYNC_BYTES) != header.sync or count < 0:
            raise _malformed("a block of the container has a negative count or a wrong sync marker")
        block = _unpack(packed, header.codec, min(limits.max_record_bytes, budget))
        budget -= len(block)
        yield ContainerBlock(count, block)


def block_starts(data: bytes, header: Header) -> list[tuple[int, int, int]]:
    """Return the record count, start and end of each block, up to the first damaged one."""
    cursor, blocks = _Cursor(data, header.end), []
    try:
        while (start := cursor.at) < len(data):
            count = cursor.long()
            cursor.take(cursor.long())
            if cursor.take(SYNC_BYTES) != header.sync or count < 0:
                break
            blocks.append((count, start, cursor.at))
    except PacketError:
        pass
    return blocks


def write(header: Header, count: int, data: bytes) -> bytes:
    """Return a container with the schema of another one and one uncompressed block."""
    metadata = _bytes(b"avro.schema") + _bytes(header.schema) + _bytes(b"avro.codec") + _bytes(b"null")
    return b"".join((MAGIC, _long(2), metadata, _long(0), header.sync, _long(count), _bytes(data), header.sync))


def _bytes(data: bytes) -> bytes:
    return _long(len(data)) + data


def _long(value: int) -> bytes:
    """Encode a non-negative Avro long."""
    value, encoded = value << 1, bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _unpack(packed: bytes, codec: str, limit: int) -> bytes:
    if codec == "deflate":
        return _inflate(packed, limit)
    if codec == "snappy":
        return _unsnap(packed, limit)
    if len(packed) > limit:
        raise PacketError(RejectReason.RECORD_TOO_LARGE, f"a block has {len(packed)} bytes, more than {limit}")
    return packed


def _inflate(packed: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        block = inflater.decompress(packed, limit + 1)
    except zlib.error:
        raise _malformed("a deflate block is corrupt") from None
    if len(block) > limit:
        raise _too_large(limit)
    if not inflater.eof:
        raise _malformed("a deflate block ends early")
    return block


def _unsnap(packed: bytes, limit: int) -> bytes:
    """Decompress raw snappy, which is followed by the big-endian CRC-32 of the decompressed bytes."""
    body, checksum = memoryview(packed)[:-4], packed[-4:]
    try:
        if cramjam.snappy.decompress_raw_len(body) > limit:
            raise _too_large(limit)
        block = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise _malformed("a snappy block is corrupt") from None
    if zlib.crc32(block).to_bytes(4, "big") != checksum:
        raise _malformed("a snappy block fails its checksum")
    return block


def _malformed(detail: str) -> PacketError:
    return PacketError(RejectReason.MALFORMED_AVRO, detail)


def _too_large(limit: int) -> PacketError:
    return PacketError(RejectReason.DECOMPRESSED_TOO_LARGE, f"a block decompresses to more than {limit} bytes")


class _Cursor:
    """Reads Avro longs and byte strings; every read is checked against the end of the data."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        if size < 0:
            raise _malformed("the container states a negative size")
        if size > len(self.data) - self.at:
            raise PacketError(RejectReason.TRUNCATED_AVRO, "the container ends early")
        self.at += size
        return self.data[self.at - size : self.at]

    def long(self) -> int:
        """Read a zigzag variable-length integer of at most 10 bytes."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise _malformed("the container holds an integer that does not end")
