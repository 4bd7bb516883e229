"""Attacks on a service: connections that are idle, slow or many, and bodies that are bombs.

All are bounded in connections, bytes and time, and go to loopback only; what they do to the service is measured by
:mod:`deploy.bench.hostile`.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

import numpy as np

from deploy.bench.service_process import HOST

PATIENCE_SECONDS: Final = 60.0  # of a client, good or not, with one request
HEAD: Final = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
GET: Final = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


class Attack(NamedTuple):
    """One way to do harm, which runs for so many seconds and returns how many bytes it has sent."""

    name: str
    run: Callable[["Target"], Coroutine[Any, Any, int]]


class AttackPace:
    """Count of the peers that came anew, and a bound on them in a second, where one is given."""

    def __init__(self, per_second: float | None = None) -> None:
        self.begun = 0
        self._pause = 0.0 if per_second is None else 1 / max(per_second, 1e-3)
        self._next = time.monotonic()

    async def wait(self) -> None:
        """Return when the next may begin."""
        self.begun += 1
        self._next = max(time.monotonic(), self._next + self._pause)
        if self._pause and (early := self._next - time.monotonic()) > 0:
            await asyncio.sleep(early)


class Target(NamedTuple):
    """Whom to attack, with which share of the full force, until when (``time.monotonic()``), and how quickly anew."""

    port: int
    scale: float
    until: float
    pace: AttackPace

    def many(self, count: int) -> int:
        """So many at full force."""
        return max(2, int(count * self.scale))

    @property
    def going_on(self) -> bool:
        """Return True while there is time left."""
        return time.monotonic() < self.until


class AttackConnection:
    """One connection of an attacker; everything that fails on it is its end, and no news."""

    def __init__(self, target: Target) -> None:
        self.target, self.sent = target, 0
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def __aenter__(self) -> "AttackConnection":
        """Connect."""
        try:
            await asyncio.get_running_loop().sock_connect(self._socket, (HOST, self.target.port))
        except OSError:
            pass
        except asyncio.CancelledError:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        self._socket.close()

    def small_window(self) -> None:
        """Take as little as possible at a time; before connecting."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)

    async def send(self, data: bytes, seconds: float = 10.0) -> bool:
        """Return True when all of it was sent."""
        try:
            async with asyncio.timeout(min(seconds, max(0.0, self.target.until - time.monotonic()))):
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except (OSError, TimeoutError):
            return False
        self.sent += len(data)
        return True

    async def receive(self, seconds: float = 60.0) -> bytes:
        """Something, or nothing at the end."""
        try:
            async with asyncio.timeout(min(seconds, max(0.0, self.target.until - time.monotonic()))):
                return await asyncio.get_running_loop().sock_recv(self._socket, 65536)
        except (OSError, TimeoutError):
            return b""

    async def receive_all(self) -> None:
        """Receive until the other side hangs up."""
        while await self.receive():
            pass

    def half_close(self) -> None:
        """Send no more, but listen."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End with a reset instead of a farewell."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def until_the_end(self) -> None:
        """Do nothing for as long as the attack lasts."""
        await asyncio.sleep(max(0.0, self.target.until - time.monotonic()))


async def crowd(
    target: Target, count: int, behave: Callable[[AttackConnection], Awaitable[None]], again: bool = False
) -> int:
    """So many peers at a time, each anew when it has ended if ``again``, at the target's pace; returns bytes sent."""

    async def one() -> int:
        sent = 0
        while True:
            async with AttackConnection(target) as peer:
                await behave(peer)
                sent += peer.sent
            if not again or not target.going_on:
                return sent
            await asyncio.sleep(0.01)
            await target.pace.wait()
            if not target.going_on:
                return sent

    return sum(await asyncio.gather(*(one() for _ in range(count))))


async def pipelining(target: Target) -> int:
    """Send requests by the thousand behind replies that nobody reads."""

    async def behave(peer: AttackConnection) -> None:
        peer.small_window()
        await peer.send(GET % b"/docs" * 12 + GET % b"/" * 3000)
        await peer.until_the_end()

    return await crowd(target, target.many(300), behave)


async def idle(target: Target) -> int:
    """Open connections that say nothing."""

    async def behave(peer: AttackConnection) -> None:
        await peer.until_the_end()

    return await crowd(target, target.many(10_000), behave)


def dripping(start: bytes, drop: bytes, pause: float = 1.0) -> Callable[[AttackConnection], Awaitable[None]]:
    """Begin at once, and send a drop now and then."""

    async def behave(peer: AttackConnection) -> None:
        if await peer.send(start):
            while peer.target.going_on and await peer.send(drop):
                await asyncio.sleep(pause)

    return behave


async def slow_headers(target: Target) -> int:
    """Send a byte of a header a second."""
    return await crowd(target, target.many(1000), dripping(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"x"), again=True)


async def slow_bodies(target: Target) -> int:
    """Send a byte of a body a second."""
    start = HEAD % b"application/json" + CHUNKED + b"1\r\n{\r\n"
    return await crowd(target, target.many(1000), dripping(start, b"1\r\n \r\n"), again=True)


async def slow_streams(target: Target) -> int:
    """Send a byte of a stream a second."""
    start = HEAD % b"application/x-ndjson" + CHUNKED
    return await crowd(target, target.many(1000), dripping(start, b"2\r\n1\n\r\n"), again=True)


async def slow_readers(target: Target) -> int:
    """Long replies, a few bytes of which are read in a second."""

    async def behave(peer: AttackConnection) -> None:
        peer.small_window()
        if await peer.send(GET % b"/openapi.json" * 8):
            while peer.target.going_on and await peer.receive(1.0):
                await asyncio.sleep(1.0)
            await peer.until_the_end()

    return await crowd(target, target.many(500), behave)


async def resets(target: Target) -> int:
    """Half a request, and a reset."""
    whole = HEAD % b"application/json" + b"Content-Length: 500\r\n\r\n" + b" " * 200

    async def behave(peer: AttackConnection) -> None:
        await peer.send(whole)
        peer.reset()

    return await crowd(target, target.many(200), behave, again=True)


async def half_closed(target: Target) -> int:
    """Half a request, and nothing more while the reply is waited for."""
    whole = HEAD % b"application/json" + b"Content-Length: 500\r\n\r\n{"

    async def behave(peer: AttackConnection) -> None:
        await peer.send(whole)
        peer.half_close()
        await peer.receive_all()

    return await crowd(target, target.many(200), behave, again=True)


async def giant_headers(target: Target) -> int:
    """Headers without end, few and long, or many and short."""

    async def behave(peer: AttackConnection) -> None:
        line = b"a:\r\n" if id(peer) % 32 else b"X-Filler: " + b"x" * 8000 + b"\r\n"
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + line * (200_000 // len(line)))
        await peer.receive_all()

    return await crowd(target, target.many(100), behave, again=True)


async def garbage(target: Target) -> int:
    """Send a request, and bytes that are none behind it."""

    async def behave(peer: AttackConnection) -> None:
        await peer.send(GET % b"/healthz" + b"\0\xff" * 500)
        await peer.receive_all()

    return await crowd(target, target.many(100), behave, again=True)


def posting(path: bytes, kind: bytes, body: bytes, count: int) -> Callable[[Target], Coroutine[Any, Any, int]]:
    """Send one body again and again, from so many clients."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    request = head % (path, kind, len(body)) + body

    async def behave(peer: AttackConnection) -> None:
        await peer.send(request, PATIENCE_SECONDS)
        await peer.receive_all()

    return lambda target: crowd(target, max(1, int(count * target.scale) or 1), behave, again=True)


def faulty_number() -> bytes:
    """Text whose search for a number that JSON cannot hold took quadratic time."""
    return b"[" + (b"1" * 308 + b",") * ((8 << 20) // 309) + b"x"


def not_finite() -> bytes:
    """Light curves with a number that only Python's own, slow parser reads."""
    return b'{"light_curves":[{"flux":[NaN' + b",1.5" * (2 << 20) + b"]}]}"


def schema_bomb() -> bytes:
    """Make a packet whose schema stands for a million types (15 kB)."""
    fields: list[dict[str, Any]] = []
    for level in "ABCDE":
        below = [f"{chr(ord(level) - 1)}{i}" for i in range(16)]
        for i in range(16):
            leaf = {"type": "enum", "name": f"Leaf{i}", "symbols": ["x"]}
            kind: Any = leaf if level == "A" else below
            inner = {"type": "record", "name": f"{level}{i}", "fields": [{"name": "f", "type": kind}]}
            fields.append({"name": f"{level.lower()}{i}", "type": inner})
    return container({"type": "record", "name": "top", "fields": [*survey_fields(), *fields]})


def survey_fields() -> list[dict[str, Any]]:
    """Make the least that a packet of a survey has."""
    names = ("midpointMjdTai", "psfFlux", "psfFluxErr")
    row = [{"name": "band", "type": "string"}, *({"name": name, "type": "double"} for name in names)]
    return [{"name": "diaSource", "type": {"type": "record", "name": "diaSource", "fields": row}}]


def container(schema: Any, body: bytes = b"\2" * 64) -> bytes:
    """Make an object container of one record that need not be one."""
    text = json.dumps(schema).encode()

    def long(value: int) -> bytes:
        value, out = value << 1, bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    metadata = long(1) + long(11) + b"avro.schema" + long(len(text)) + text + b"\0"
    sync = b"S" * 16
    return b"Obj\x01" + metadata + sync + long(1) + long(len(body)) + body + sync


def many_schemas() -> bytes:
    """Make a thousand packets, each with a schema of its own, as parts of a body."""
    parts = []
    for number in range(1000):
        texts = [{"name": f"t{number}_{i}", "type": "string"} for i in range(45)]
        schema = {"type": "record", "name": "top", "fields": [*survey_fields(), *texts]}
        parts.append(b"--b\r\nContent-Disposition: form-data; name=p\r\n\r\n" + container(schema) + b"\r\n")
    return b"".join(parts) + b"--b--\r\n"


def wide_json() -> bytes:
    """Make an alert as JSON with one row of many names and many rows of none (246 kB)."""
    first = ",".join(f'"n{i}":1' for i in range(12_000))
    return f'{{"diaSource":[{{{first}}}{",{}" * 40_000}]}}'.encode()


def deflate_bomb() -> bytes:
    """Make a container whose blocks are a thousand times as large as they came."""
    squeeze = zlib.compressobj(9, wbits=-15)
    data = squeeze.compress(b"\0" * (256 << 20)) + squeeze.flush()
    return container({"type": "record", "name": "top", "fields": survey_fields()}, data).replace(
        b"\x02\x16avro.schema", b"\x04\x14avro.codec\x0edeflate\x16avro.schema"
    )


def arrow_texts() -> bytes:
    """Make a thousand rows that share a text of a megabyte; nothing where the format is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        return b"-"
    rows = 1000
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 1_000_000]))
    numbers = pa.array([[60_000.0]] * rows, pa.list_(pa.float64()))
    bands = pa.array([["r"]] * rows, pa.list_(pa.string()))
    batch = pa.record_batch({"object_id": ids, "mjd": numbers, "flux": numbers, "flux_err": numbers, "band": bands})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def large_curves() -> bytes:
    """Make a lawful body near the limit: light curves of many observations."""
    return json.dumps({"light_curves": [light_curve(2000) for _ in range(85)]}).encode()


def light_curve(points: int) -> dict[str, object]:
    """One that is worth an answer."""
    rng = np.random.default_rng(points)
    return {
        "mjd": (60_000 + np.sort(rng.uniform(0, 300, points))).round(5).tolist(),
        "flux": (5000 + rng.normal(0, 300, points)).round(2).tolist(),
        "flux_err": [300.0] * points,
        "band": ["ugrizY"[place % 6] for place in range(points)],
    }


def attacks() -> list[Attack]:
    """Every attack; the flood of lawful bodies is the last, and a row of its own."""
    octets, parts = b"application/octet-stream", b"multipart/form-data; boundary=b"
    text, arrow = b"application/json", b"application/vnd.apache.arrow.stream"
    return [
        Attack("pipelining", pipelining),
        Attack("idle", idle),
        Attack("slow headers", slow_headers),
        Attack("slow bodies", slow_bodies),
        Attack("slow streams", slow_streams),
        Attack("slow readers", slow_readers),
        Attack("resets", resets),
        Attack("half closed", half_closed),
        Attack("giant headers", giant_headers),
        Attack("garbage", garbage),
        Attack("faulty number", posting(b"/v1/classify", text, faulty_number(), 2)),
        Attack("not finite", posting(b"/v1/classify", text, not_finite(), 2)),
        Attack("schema bomb", posting(b"/v1/alerts", octets, schema_bomb(), 4)),
        Attack("many schemas", posting(b"/v1/alerts", parts, many_schemas(), 2)),
        Attack("wide JSON", posting(b"/v1/alerts", octets, wide_json(), 4)),
        Attack("deflate bomb", posting(b"/v1/alerts", octets, deflate_bomb(), 8)),
        Attack("Arrow texts", posting(b"/v1/classify", arrow, arrow_texts(), 2)),
    ]


def lawful() -> Attack:
    """Send the flood of large bodies that are allowed; ``max_held_bytes`` bounds it."""
    return Attack("lawful bodies", posting(b"/v1/classify", b"application/json", large_curves(), 32))
