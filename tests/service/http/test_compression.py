"""Compressed bodies without a socket: decompressed, or rejected before they exhaust the memory."""

import gzip
import os
import zlib
from collections.abc import Callable

import pytest
import zstandard

from nightjar_alerts.service.http.edge.decompression import CODINGS, inflate
from nightjar_alerts.service.http.edge.errors import OVERLOADED, ProblemError

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
MIB = 1024 * 1024


class Inflater:
    """Records charged bytes; runs functions directly instead of in a thread."""

    def __init__(self, budget: int = 1 << 40) -> None:
        self.budget = budget
        self.pieces: list[int] = []

    def charge(self, size: int) -> None:
        self.pieces.append(size)
        if sum(self.pieces) > self.budget:
            raise ProblemError(OVERLOADED)

    async def __call__(self, data: bytes, coding: str, limit: int = 16 * MIB) -> bytes:
        return await inflate(data, coding, limit, self.charge, self._here)

    async def _here(self, work: Callable[[], bytes | None]) -> bytes | None:
        return work()


def test_inflate_every_coding_is_tested() -> None:
    assert {*PACK, "zstd"} == set(CODINGS)


async def test_inflate_zstd_reads_within_the_limit() -> None:
    body = b"light curve " * 100_000
    packed = zstandard.compress(body)
    assert await Inflater()(packed, "zstd") == body
    with pytest.raises(ProblemError) as caught:
        await Inflater()(packed, "zstd", MIB)
    assert (caught.value.kind.status, caught.value.limit) == (413, MIB)
    with pytest.raises(ProblemError) as caught:
        await Inflater()(packed[:-1], "zstd")
    assert caught.value.kind.status == 400


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize(
    "body",
    [b"x", bytes(5 * MIB), os.urandom(MIB // 2), b"light curve " * 100_000],
    ids=["a byte", "zeros", "noise", "text"],
)
async def test_inflate_compressed_body_returns_it_and_charges_its_size(coding: str, body: bytes) -> None:
    inflater = Inflater()
    assert await inflater(PACK[coding](body), coding) == body
    assert sum(inflater.pieces) == len(body)
    assert max(inflater.pieces, default=0) <= MIB


@pytest.mark.parametrize("coding", PACK)
async def test_inflate_body_at_the_limit_is_accepted_and_beyond_rejected(coding: str) -> None:
    packed = PACK[coding](bytes(3 * MIB))
    assert len(await Inflater()(packed, coding, 3 * MIB)) == 3 * MIB
    inflater = Inflater()
    with pytest.raises(ProblemError) as caught:
        await inflater(packed, coding, MIB + 1)
    assert (caught.value.kind.status, caught.value.limit) == (413, MIB + 1)
    assert sum(inflater.pieces) == MIB


async def test_inflate_without_memory_stops() -> None:
    inflater = Inflater(budget=2 * MIB)
    with pytest.raises(ProblemError) as caught:
        await inflater(gzip.compress(bytes(8 * MIB)), "gzip", 1 << 40)
    assert (caught.value.kind, len(inflater.pieces)) == (OVERLOADED, 3)


@pytest.mark.parametrize("coding", PACK)
async def test_inflate_invalid_data_is_malformed(coding: str) -> None:
    packed = PACK[coding](os.urandom(1000))
    corrupt = packed[:500] + bytes([packed[500] ^ 255]) + packed[501:]
    spoiled = [packed[:-1], packed[:3], packed + b"x", packed + packed, packed + bytes(100_000), b"x", corrupt]
    for data in spoiled:
        with pytest.raises(ProblemError) as caught:
            await Inflater()(data, coding)
        assert caught.value.kind.status == 400
