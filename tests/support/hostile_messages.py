"""Hostile messages for a stream: what breaks the reader, what cannot be classified, and what lies about itself."""

import os
import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from deploy.bench.hostile import container, deflate_bomb, schema_bomb, survey_fields, wide_json
from deploy.bench.workload import packet

CLOCKLESS: Final[Mapping[str, str]] = {
    "message.timestamp.type": "CreateTime",  # the worker gets the timestamps of the producer
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
}
HOSTILE_IDS: Final = 10**6  # numbers of hostile alerts that can be read: beyond all good ones


class Harm(NamedTuple):
    """One message; ``timestamp_ms`` 0 is the producer's clock."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


class Flood(NamedTuple):
    """Messages of one kind; ``make`` gets the number of each."""

    name: str
    make: Callable[[int], Harm]


def floods() -> list[Flood]:
    """Every kind: what breaks the reader, what cannot be classified or written, and what lies about itself."""
    bomb, bloated, json_bomb = deflate_bomb(), schema_bomb(), wide_json()
    noise = np.random.default_rng(0).bytes(4_000_000)
    good = packet(HOSTILE_IDS, 0, 12, np.random.default_rng(1))
    dead = tuple((f"nightjar-dead-{name}", b"9" * 400) for name in ("topic", "place", "timestamp", "key", "length"))
    headers = (*dead, *((("x" * 999, b"y"),) * 200))
    return [
        Flood("truncated", lambda n: Harm(good[: 5 + n % (len(good) - 5)])),
        Flood("flipped bits", lambda n: Harm(flipped(good, n))),
        Flood("empty", lambda n: Harm(b"")),
        Flood("giant", lambda n: Harm(noise[n:])),
        Flood("deep JSON", lambda n: Harm(b'{"diaSource":' + b"[" * (100_000 + n))),
        Flood("wide JSON", lambda n: Harm(json_bomb)),
        Flood("unknown schemas", lambda n: Harm(b"\0" + (10**6 + n).to_bytes(4, "big") + good[5:])),
        Flood("schemas of their own", lambda n: Harm(own_schema(n))),
        Flood("schema bomb", lambda n: Harm(bloated)),
        Flood("deflate bomb", lambda n: Harm(bomb)),
        Flood("wrong compression", lambda n: Harm(wrongly_packed(n))),
        Flood("numbers beyond sense", lambda n: Harm(senseless(n))),
        Flood("clock nonsense", lambda n: Harm(good, timestamp_ms=(1, 2**62, 253402300800000)[n % 3])),
        Flood("keys and headers", lambda n: Harm(good, bytes([n % 256]) * 20_000, headers)),
    ]  # fmt: skip


def flipped(data: bytes, number: int) -> bytes:
    """Return data with a few bits changed; the frame stays, so that the record is read."""
    changed, rng = bytearray(data), np.random.default_rng(number)
    for place in rng.integers(5, len(data), 4).tolist():
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def own_schema(number: int) -> bytes:
    """Make a container with an unknown schema."""
    fields = [{"name": f"t{number}_{i}", "type": "string"} for i in range(45)]
    return container({"type": "record", "name": "top", "fields": [*survey_fields(), *fields]})


def wrongly_packed(number: int) -> bytes:
    """Make a container that claims a compression that its blocks have not, or that does not exist."""
    codec = (b"deflate", b"snappy", b"zstandard", b"none")[number % 4]
    return container({"type": "record", "name": "top", "fields": survey_fields()}, os.urandom(2000), codec)


def senseless(number: int) -> bytes:
    """Make a packet that can be read and whose numbers mean nothing: not finite, beyond all bounds, before all time."""
    wrong = struct.pack("<d", (float("nan"), float("inf"), 1e308, -1e308)[number % 4])
    data = bytearray(packet(HOSTILE_IDS + number, 0, 12, np.random.default_rng(number)))
    rng = np.random.default_rng(number)
    for place in rng.integers(40, len(data) - 8, 12).tolist():
        data[place : place + 8] = wrong
    return bytes(data)
