import contextlib
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.alerts import containers
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from support import alerts

KIND = {"type": "record", "name": "top", "fields": [{"name": "x", "type": "string"}]}
SYNC = b"S" * 16
MIB = 1 << 20


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def snap(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big")


PACK: dict[str, Callable[[bytes], bytes]] = {"null": bytes, "deflate": deflate, "snappy": snap}


def unpack(data: bytes, limits: ReadLimits | None = None) -> list[containers.ContainerBlock]:
    return list(containers.read_blocks(data, containers.read_header(data), limits or ReadLimits()))


def reason(data: bytes, limits: ReadLimits | None = None) -> RejectReason:
    with pytest.raises(PacketError) as caught:
        unpack(data, limits)
    return caught.value.reason


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_blocks_come_out_in_order(codec: str) -> None:
    data = alerts.header(KIND, codec) + b"".join(alerts.block(i, PACK[codec](b"%d" % i * 300)) for i in range(4))
    assert unpack(data) == [containers.ContainerBlock(i, b"%d" % i * 300) for i in range(4)]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_containers_of_fastavro_are_read(codec: str) -> None:
    data = alerts.container(KIND, [{"x": "a" * 50}] * 9, codec, sync_interval=100)
    blocks = unpack(data)
    assert sum(block.count for block in blocks) == 9
    assert b"".join(block.data for block in blocks) == (alerts.long(50) + b"a" * 50) * 9


def test_header_metadata_may_come_in_sized_pieces() -> None:
    entry = alerts.long(11) + b"avro.schema" + alerts.long(2) + b"{}"
    data = b"Obj\x01" + alerts.long(-1) + alerts.long(len(entry)) + entry + alerts.long(0) + SYNC
    assert containers.read_header(data) == containers.Header(b"{}", "null", SYNC, len(data))


@pytest.mark.parametrize("codec", ["zstandard", "bzip2", "xz", "no such codec" * 100])
def test_other_codecs_are_named(codec: str) -> None:
    assert reason(alerts.header(KIND, codec)) is RejectReason.UNSUPPORTED_CODEC


def test_a_header_without_a_schema_is_malformed() -> None:
    assert reason(b"Obj\x01" + alerts.long(0) + SYNC) is RejectReason.MALFORMED_AVRO


def test_a_header_with_endless_entries_is_malformed() -> None:
    assert reason(b"Obj\x01" + alerts.long(2**62) + b"\0" * 100) is RejectReason.MALFORMED_AVRO
    assert reason(b"Obj\x01" + (alerts.long(30) + b"\0\0" * 30) * 3) is not None


@pytest.mark.parametrize("codec", ["deflate", "snappy"])
@pytest.mark.parametrize("size", [3 * MIB, 24 * MIB])
def test_a_bomb_is_refused_before_it_unfolds(codec: str, size: int) -> None:
    data = alerts.header(KIND, codec) + alerts.block(1, PACK[codec](b"\0" * size))
    tracemalloc.start()
    try:
        assert reason(data) is RejectReason.DECOMPRESSED_TOO_LARGE
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB + len(data)


def test_a_snappy_block_that_lies_about_its_size_is_refused() -> None:
    packed = snap(b"a" * 100)
    assert reason(alerts.header(KIND, "snappy") + alerts.block(1, b"\xff\xff\xff\xff\x0f" + packed[1:])) is (
        RejectReason.DECOMPRESSED_TOO_LARGE
    )
    assert reason(alerts.header(KIND, "snappy") + alerts.block(1, b"\x20" + packed[1:])) is RejectReason.MALFORMED_AVRO


def test_many_small_bombs_share_one_budget() -> None:
    data = alerts.header(KIND, "deflate") + alerts.block(1, deflate(b"\0" * 400_000)) * 5
    blocks = containers.read_blocks(data, containers.read_header(data), ReadLimits())
    assert [len(next(blocks).data) for _ in range(2)] == [400_000, 400_000]
    with pytest.raises(PacketError) as caught:
        next(blocks)
    assert caught.value.reason is RejectReason.DECOMPRESSED_TOO_LARGE


def test_an_oversized_plain_block_is_refused() -> None:
    data = alerts.header(KIND) + alerts.block(1, b"a" * 1001)
    assert reason(data, ReadLimits(max_record_bytes=1000)) is RejectReason.RECORD_TOO_LARGE


DAMAGED = {
    "wrong sync marker": alerts.block(1, b"\2a", sync=b"T" * 16),
    "negative count": alerts.block(-1, b"\2a"),
    "negative size": alerts.long(1) + alerts.long(-2) + b"\2a" + SYNC,
    "endless integer": b"\xff" * 40,
}


@pytest.mark.parametrize("tail", DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_ends_the_reading_after_the_good_blocks(tail: bytes) -> None:
    data = alerts.header(KIND) + alerts.block(1, b"\2a") + tail
    blocks = containers.read_blocks(data, containers.read_header(data), ReadLimits())
    assert next(blocks) == containers.ContainerBlock(1, b"\2a")
    with pytest.raises(PacketError) as caught:
        next(blocks)
    assert caught.value.reason is RejectReason.MALFORMED_AVRO


@pytest.mark.parametrize("codec", ["deflate", "snappy"])
def test_corrupt_compression_is_malformed(codec: str) -> None:
    packed = PACK[codec](bytes(range(256)) * 4)
    for body in (packed[:-6], b"", b"\xff" * 30, packed[:-1] + bytes([packed[-1] ^ 1])):
        if codec == "deflate" and body[:-1] == packed[:-1]:
            continue  # deflate has no checksum
        assert reason(alerts.header(KIND, codec) + alerts.block(1, body)) is RejectReason.MALFORMED_AVRO


def test_every_truncation_is_named() -> None:
    data = alerts.header(KIND) + alerts.block(1, b"\2a")
    start = len(alerts.header(KIND))
    for end in range(4, len(data)):
        if end != start:
            assert reason(data[:end]) is RejectReason.TRUNCATED_AVRO
    assert unpack(data[:start]) == []


@given(st.binary(max_size=200), st.sampled_from(["null", "deflate", "snappy"]))
def test_any_bytes_after_a_header_are_read_or_refused(tail: bytes, codec: str) -> None:
    with contextlib.suppress(PacketError):
        unpack(alerts.header(KIND, codec) + tail)


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_read_or_refused(tail: bytes) -> None:
    with contextlib.suppress(PacketError):
        containers.read_header(b"Obj\x01" + tail)
