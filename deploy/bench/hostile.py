"""Attacks on the HTTP port of a real service, and latency of a well-behaved client during each attack.

    python -m deploy.bench --parts '["hostile"]'
    python -m deploy.bench.hostile PORT [--tables] [--grpc GRPC_PORT] [CERTIFICATE]      the well-behaved client alone

Attacks are idle, slow or many connections, and bodies, also tables, that are expensive for their size; those on the
gRPC port are in :mod:`deploy.bench.grpc_attacks`. Floods of connections go through nginx with the shipped
configuration, all others to the port itself. Each attack is measured for a few seconds: bytes sent, longest latency of
the well-behaved client, its 99th percentile during the attack and without one, failed requests, memory of the service
and nginx at the peak and after the attack, and the fraction of time in which the service's event loop was busy, which
does not depend on other load of the machine. The client is a separate process, opens a connection for each request and
uses another loopback address. Attackers use the same cores as the service, so the latency includes their cost.

All attacks are limited in connections, bytes and time, and target loopback only.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import resource
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from deploy.bench.http_load import quantile
from deploy.bench.nginx import NginxProcess, client_context, is_installed, running_nginx
from deploy.bench.report import ROOT, Numbers
from deploy.bench.table_bombs import BOMBS, Bomb
from deploy.bench.table_bombs import HEAD as TABLE_HEAD
from nightjar_alerts.alerts import containers
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.service.local import HOST, ServiceDied, ServiceProcess, free_port, running

GOOD_ADDRESS: Final = "127.0.0.2"
PATIENCE_SECONDS: Final = 60.0  # client timeout of a request
PAUSE_SECONDS: Final = 0.02  # between two requests of the well-behaved client
QUIET_SECONDS: Final = 1.5  # without an attack, before and after it
REST_SECONDS: Final = 2.5  # after an attack, before memory is read again
SETTLE_SECONDS: Final = 0.5
START_SECONDS: Final = 300.0
MB: Final = 1e6
READ_BYTES: Final = 2048
LAWFUL: Final = "lawful bodies"
HEAD: Final = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"
TABLES: Final = "--tables"
GRPC: Final = "--grpc"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
GET: Final = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Target(NamedTuple):
    """Port to attack, fraction of full strength, end of the attack (``time.monotonic()``), and TLS context or None."""

    port: int
    scale: float
    until: float
    tls: ssl.SSLContext | None = None

    def many(self, count: int) -> int:
        """Scale a number of connections."""
        return max(2, int(count * self.scale))

    @property
    def active(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.until


class Attack(NamedTuple):
    """Named attack; ``run`` returns the number of bytes sent, and ``prepare`` makes what it sends.

    Floods of connections go through nginx. During an attack with tables, every second request of the well-behaved
    client is a small table; during one on the gRPC port, every second one is a call over gRPC.
    """

    name: str
    run: Callable[[Target], Coroutine[Any, Any, int]]
    is_flood: bool = False
    is_table: bool = False
    is_grpc: bool = False
    prepare: Callable[[], object] = lambda: None


class AttackConnection:
    """Connection of an attacker; errors close it and are not reported. TLS starts with the first byte sent."""

    def __init__(self, target: Target) -> None:
        self.target, self.sent = target, 0
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._has_transport = False
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

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
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        if not self._has_transport:  # otherwise the transport closes the socket
            self._socket.close()

    def small_window(self) -> None:
        """Shrink the receive buffer."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)

    def _time(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(min(seconds, max(0.0, self.target.until - time.monotonic())))

    async def send(self, data: bytes, seconds: float = 10.0) -> bool:
        """Send data; return whether all of it was sent."""
        try:
            async with self._time(seconds):
                if self._streams is None:
                    self._has_transport = True
                    self._streams = await asyncio.open_connection(sock=self._socket, limit=READ_BYTES)
                    if self.target.tls is not None:  # later, so that aborting leaves a transport
                        await self._streams[1].start_tls(self.target.tls, server_hostname=HOST)
                    self._streams[1].transport.set_write_buffer_limits(0)  # drain() waits until all is sent
                self._streams[1].write(data)
                await self._streams[1].drain()
        except (OSError, TimeoutError):
            return False
        self.sent += len(data)
        return True

    async def receive(self, seconds: float = 60.0) -> bytes:
        """Receive some bytes; empty at the end of the stream, on errors and on timeouts."""
        if self._streams is None:
            return b""
        try:
            async with self._time(seconds):
                return await self._streams[0].read(READ_BYTES)
        except (OSError, TimeoutError):
            return b""

    async def receive_all(self) -> None:
        """Receive until the peer closes the connection."""
        while await self.receive():
            pass

    def half_close(self) -> None:
        """Close the sending side only; TLS cannot."""
        with contextlib.suppress(OSError):
            if self._streams is not None and self._streams[1].can_write_eof():
                self._streams[1].write_eof()

    def reset(self) -> None:
        """Send RST instead of FIN on close."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def until_the_end(self) -> None:
        """Sleep until the attack ends."""
        await asyncio.sleep(max(0.0, self.target.until - time.monotonic()))


async def crowd(
    target: Target, count: int, behave: Callable[[AttackConnection], Awaitable[None]], again: bool = False
) -> int:
    """Run ``count`` concurrent connections, each repeatedly if ``again``; return the number of bytes sent."""

    async def one() -> int:
        sent = 0
        while True:
            async with AttackConnection(target) as peer:
                await behave(peer)
                sent += peer.sent
            if not again or not target.active:
                return sent
            await asyncio.sleep(0.01)

    return sum(await asyncio.gather(*(one() for _ in range(count))))


async def pipelining(target: Target) -> int:
    """Pipeline thousands of requests and read no reply."""

    async def behave(peer: AttackConnection) -> None:
        peer.small_window()
        await peer.send(GET % b"/docs" * 12 + GET % b"/" * 3000)
        await peer.until_the_end()

    return await crowd(target, target.many(300), behave)


async def idle(target: Target) -> int:
    """Open connections and send nothing."""

    async def behave(peer: AttackConnection) -> None:
        await peer.until_the_end()

    return await crowd(target, target.many(10_000), behave)


def dripping(start: bytes, drop: bytes) -> Callable[[AttackConnection], Awaitable[None]]:
    """Return a behaviour that sends ``start`` immediately and ``drop`` every second."""

    async def behave(peer: AttackConnection) -> None:
        if await peer.send(start):
            while peer.target.active and await peer.send(drop):
                await asyncio.sleep(1.0)

    return behave


async def slow_headers(target: Target) -> int:
    """Send one header byte per second."""
    return await crowd(
        target, target.many(1000), dripping(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"x"), again=True
    )


async def slow_bodies(target: Target) -> int:
    """Send one body byte per second."""
    start = HEAD % b"application/json" + CHUNKED + b"1\r\n{\r\n"
    return await crowd(target, target.many(1000), dripping(start, b"1\r\n \r\n"), again=True)


async def slow_streams(target: Target) -> int:
    """Send one NDJSON byte per second."""
    start = HEAD % b"application/x-ndjson" + CHUNKED
    return await crowd(target, target.many(1000), dripping(start, b"2\r\n1\n\r\n"), again=True)


async def slow_readers(target: Target) -> int:
    """Request long replies and read a few bytes per second."""

    async def behave(peer: AttackConnection) -> None:
        peer.small_window()
        if await peer.send(GET % b"/openapi.json" * 8):
            while peer.target.active and await peer.receive(1.0):
                await asyncio.sleep(1.0)
            await peer.until_the_end()

    return await crowd(target, target.many(500), behave)


async def resets(target: Target) -> int:
    """Send half a request, then reset the connection."""
    whole = HEAD % b"application/json" + b"Content-Length: 500\r\n\r\n" + b" " * 200

    async def behave(peer: AttackConnection) -> None:
        await peer.send(whole)
        peer.reset()

    return await crowd(target, target.many(200), behave, again=True)


async def half_closed(target: Target) -> int:
    """Send half a request, close the sending side and wait for the reply."""
    whole = HEAD % b"application/json" + b"Content-Length: 500\r\n\r\n{"

    async def behave(peer: AttackConnection) -> None:
        await peer.send(whole)
        peer.half_close()
        await peer.receive_all()

    return await crowd(target, target.many(200), behave, again=True)


async def giant_headers(target: Target) -> int:
    """Send endless headers: few long ones, or many short ones."""

    async def behave(peer: AttackConnection) -> None:
        line = b"a:\r\n" if id(peer) % 32 else b"X-Filler: " + b"x" * 8000 + b"\r\n"
        await peer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + line * (200_000 // len(line)))
        await peer.receive_all()

    return await crowd(target, target.many(100), behave, again=True)


async def garbage(target: Target) -> int:
    """Send a request followed by bytes that are not HTTP."""

    async def behave(peer: AttackConnection) -> None:
        await peer.send(GET % b"/healthz" + b"\0\xff" * 500)
        await peer.receive_all()

    return await crowd(target, target.many(100), behave, again=True)


async def many_requests(target: Target) -> int:
    """Send requests without a pause, each on a new connection."""

    async def behave(peer: AttackConnection) -> None:
        await peer.send(GET % b"/v1/models")
        await peer.receive()

    return await crowd(target, target.many(200), behave, again=True)


def posting(path: bytes, kind: bytes, body: bytes, count: int) -> Callable[[Target], Coroutine[Any, Any, int]]:
    """Send one body repeatedly from ``count`` clients."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    request = head % (path, kind, len(body)) + body

    async def behave(peer: AttackConnection) -> None:
        await peer.send(request, PATIENCE_SECONDS)
        await peer.receive_all()

    return lambda target: crowd(target, max(1, int(count * target.scale) or 1), behave, again=True)


def table_attack(name: str, bomb: Bomb) -> Attack:
    """Return the attack with a bomb, whose body is made once."""
    make = functools.cache(bomb.make)

    async def run(target: Target) -> int:
        return await posting(b"/v1/tables", b"text/plain", make(), bomb.senders)(target)

    return Attack(name, run, is_table=True, prepare=make)


def faulty_number() -> bytes:
    """Make a JSON text of long numbers that ends in a syntax error."""
    return b"[" + (b"1" * 308 + b",") * ((8 << 20) // 309) + b"x"


def not_finite() -> bytes:
    """Make light curves with NaN, which strict JSON parsers reject."""
    return b'{"light_curves":[{"flux":[NaN' + b",1.5" * ((2 << 20) - 100) + b"]}]}"


def schema_bomb() -> bytes:
    """Make a packet whose schema expands to a million types (15 kB)."""
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
    """Make the minimum set of fields of a recognised packet."""
    names = ("midpointMjdTai", "psfFlux", "psfFluxErr")
    row = [{"name": "band", "type": "string"}, *({"name": name, "type": "double"} for name in names)]
    return [{"name": "diaSource", "type": {"type": "record", "name": "diaSource", "fields": row}}]


def container(schema: Any, body: bytes = b"\2" * 64, codec: bytes = b"null") -> bytes:
    """Make an Avro object container with one block of arbitrary bytes and the given codec name."""
    header = containers.Header(json.dumps(schema).encode(), "null", b"S" * containers.SYNC_BYTES, 0)
    return containers.write(header, 1, body).replace(b"\x08null", bytes([2 * len(codec)]) + codec, 1)


def many_schemas() -> bytes:
    """Make a multipart body of a thousand packets with different schemas."""
    parts = []
    for number in range(1000):
        texts = [{"name": f"t{number}_{i}", "type": "string"} for i in range(45)]
        schema = {"type": "record", "name": "top", "fields": [*survey_fields(), *texts]}
        parts.append(b"--b\r\nContent-Disposition: form-data; name=p\r\n\r\n" + container(schema) + b"\r\n")
    return b"".join(parts) + b"--b--\r\n"


def wide_json() -> bytes:
    """Make a JSON alert with one row of many fields and many empty rows (246 kB)."""
    first = ",".join(f'"n{i}":1' for i in range(12_000))
    return f'{{"diaSource":[{{{first}}}{",{}" * 40_000}]}}'.encode()


def deflate_bomb() -> bytes:
    """Make a container whose blocks inflate a thousandfold."""
    squeeze = zlib.compressobj(9, wbits=-15)
    data = squeeze.compress(b"\0" * (256 << 20)) + squeeze.flush()
    return container({"type": "record", "name": "top", "fields": survey_fields()}, data, b"deflate")


def arrow_texts() -> bytes:
    """Make a thousand Arrow rows that share a string of 1 MB; a dash if pyarrow is not installed."""
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
    """Make a valid body near the size limit: light curves of many observations."""
    return json.dumps({"light_curves": [light_curve(2000) for _ in range(85)]}).encode()


def light_curve(points: int) -> dict[str, object]:
    """Make a valid light curve."""
    rng = np.random.default_rng(points)
    return {
        "mjd": (60_000 + np.sort(rng.uniform(0, 300, points))).round(5).tolist(),
        "flux": (5000 + rng.normal(0, 300, points)).round(2).tolist(),
        "flux_err": [300.0] * points,
        "band": ["ugrizY"[place % 6] for place in range(points)],
    }


def attacks() -> list[Attack]:
    """Return all attacks except the flood of valid bodies."""
    octets, parts = b"application/octet-stream", b"multipart/form-data; boundary=b"
    text, arrow = b"application/json", b"application/vnd.apache.arrow.stream"
    return [
        Attack("pipelining", pipelining),
        Attack("idle", idle, is_flood=True),
        Attack("slow headers", slow_headers, is_flood=True),
        Attack("slow bodies", slow_bodies, is_flood=True),
        Attack("slow streams", slow_streams, is_flood=True),
        Attack("slow readers", slow_readers, is_flood=True),
        Attack("resets", resets, is_flood=True),
        Attack("half closed", half_closed, is_flood=True),
        Attack("giant headers", giant_headers),
        Attack("garbage", garbage),
        Attack("many requests", many_requests, is_flood=True),
        Attack("faulty number", posting(b"/v1/classify", text, faulty_number(), 2)),
        Attack("not finite", posting(b"/v1/classify", text, not_finite(), 2)),
        Attack("schema bomb", posting(b"/v1/alerts", octets, schema_bomb(), 4)),
        Attack("many schemas", posting(b"/v1/alerts", parts, many_schemas(), 2)),
        Attack("wide JSON", posting(b"/v1/alerts", octets, wide_json(), 4)),
        Attack("deflate bomb", posting(b"/v1/alerts", octets, deflate_bomb(), 8)),
        Attack("Arrow texts", posting(b"/v1/classify", arrow, arrow_texts(), 2)),
        *(table_attack(name, bomb) for name, bomb in BOMBS.items()),
    ]


def valid_bodies() -> Attack:
    """Return the flood of large valid bodies, whose memory ``max_held_bytes`` limits."""
    return Attack(LAWFUL, posting(b"/v1/classify", b"application/json", large_curves(), 32))


@dataclass(frozen=True, slots=True)
class AttackRow:
    """Effect of one attack, in milliseconds and megabytes (10**6 bytes); ``loop_busy`` is a fraction of the time."""

    attack: str
    sent_mb: float
    worst_stall_ms: float
    p99_ms: float
    quiet_p99_ms: float
    answers: int
    failures: int
    memory_mb: float
    memory_after_mb: float
    loop_busy: float

    @property
    def key(self) -> str:
        """Name of the attack in keys."""
        return self.attack.lower().replace(" ", "_")


def measure(
    bundle: Path, seconds: float, scale: float, only: Sequence[str], say: Callable[[str], None]
) -> Sequence[AttackRow]:
    """Measure the attacks in turn, on one service, and the flood of valid bodies on another.

    Parameters
    ----------
    seconds : duration of each attack.
    scale : fraction of full strength, for a trial.
    only : names of the attacks to measure; all if empty.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    from deploy.bench.grpc_attacks import grpc_attacks  # which are made with the classes of this module

    every = [*attacks(), *grpc_attacks(), valid_bodies()]
    names = [attack.name for attack in every]
    if unknown := [name for name in only if name not in names]:
        raise ValueError(f"no attack is named {', '.join(unknown)}; there are {', '.join(names)}")
    _allow_many_files()
    chosen = [attack for attack in every if not only or attack.name in only]
    rows: list[AttackRow] = []
    for group in (
        [attack for attack in chosen if not attack.is_flood and not attack.is_grpc and attack.name != LAWFUL],
        [attack for attack in chosen if attack.is_flood],
        [attack for attack in chosen if attack.is_grpc],
        [attack for attack in chosen if attack.name == LAWFUL],
    ):
        if not group:
            continue
        if group[0].is_flood and not is_installed():
            say("floods of connections: skipped, as nginx is not installed (apt-get install nginx openssl)")
            continue
        if group[0].is_grpc and find_spec("grpc_health") is None:
            say("attacks on the gRPC port: skipped, as the extra grpc is not installed (pip install '.[grpc]')")
            continue
        with _target(bundle, behind_nginx=group[0].is_flood, grpc=group[0].is_grpc) as service:
            for attack in group:
                rows.append(row := _attacked(service, attack, seconds, scale))
                say(
                    f"{attack.name}: {row.sent_mb:.1f} MB, worst {row.worst_stall_ms:.0f} ms, p99 {row.p99_ms:.0f} "
                    f"(quiet {row.quiet_p99_ms:.0f}), "
                    f"{row.failures} of {row.answers + row.failures} failed, "
                    f"memory +{row.memory_mb:.0f} MB, after {row.memory_after_mb:+.0f}, loop busy {row.loop_busy:.0%}"
                )
    return rows


class _Attacked(NamedTuple):
    """Service under attack, the nginx in front of it or None, and the gRPC port if that is attacked."""

    service: ServiceProcess
    nginx: NginxProcess | None = None
    grpc_port: int | None = None

    @property
    def port(self) -> int:
        return self.service.port if self.nginx is None else self.nginx.port

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.nginx is None else client_context(self.nginx.certificate)

    def memory(self) -> int:
        """Return the resident bytes; 0 if a process has died, which the client's failures show."""
        try:
            return self.service.memory() + (0 if self.nginx is None else self.nginx.memory())
        except (OSError, ServiceDied):
            return 0

    def loop_seconds(self) -> float:
        try:
            return self.service.loop_seconds()
        except OSError:
            return 0.0


@contextlib.contextmanager
def _target(bundle: Path, behind_nginx: bool, grpc: bool) -> Iterator[_Attacked]:
    settings = {"NIGHTJAR_LOG_LEVEL": "error", "NIGHTJAR_CACHE_BYTES": "0"}
    grpc_port = free_port() if grpc else None
    if grpc_port is not None:
        settings["NIGHTJAR_GRPC_PORT"] = str(grpc_port)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running(bundle, settings, START_SECONDS))
        if not behind_nginx:
            yield _Attacked(service, grpc_port=grpc_port)
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nightjar-nginx-"))
        yield _Attacked(service, stack.enter_context(running_nginx(Path(folder) / "nginx", service.port)))


OWN_FIGURES: Final = (
    "sent_mb", "worst_stall_ms", "p99_ms", "quiet_p99_ms", "failures", "memory_mb", "memory_after_mb",
    "loop_busy",
)  # fmt: skip


def numbers(rows: Sequence[AttackRow]) -> Numbers:
    """Return keys ``hostile.*``: the worst of all attacks except the flood of valid bodies, then those of each."""
    own: Numbers = {
        f"hostile.attack.{row.key}.{name}": float(getattr(row, name)) for row in rows for name in OWN_FIGURES
    }
    unlawful = [row for row in rows if row.attack != LAWFUL] or rows
    return {
        "hostile.worst_stall_ms": max(row.worst_stall_ms for row in unlawful),
        "hostile.worst_memory_mb": max(row.memory_mb for row in unlawful),
        "hostile.worst_p99_ratio": max(row.p99_ms / row.quiet_p99_ms for row in unlawful),
        "hostile.failures": float(sum(row.failures for row in unlawful)),
        **own,
    }


def table(rows: Sequence[AttackRow]) -> str:
    """Format the rows as Markdown."""
    waits = ("longest wait ms", "p99 ms (quiet)", "not answered")
    head = ("attack", "sent MB", *waits, "memory MB", "after", "loop busy")
    cells = [
        (
            row.attack,
            f"{row.sent_mb:.1f}",
            f"{row.worst_stall_ms:.0f}",
            f"{row.p99_ms:.0f} ({row.quiet_p99_ms:.0f})",
            f"{row.failures} of {row.answers + row.failures}",
            f"{row.memory_mb:+.0f}",
            f"{row.memory_after_mb:+.0f}",
            f"{row.loop_busy:.0%}",
        )
        for row in rows
    ]
    return markdown_table(head, cells) + "\n"


def _attacked(service: _Attacked, attack: Attack, seconds: float, scale: float) -> AttackRow:
    """Attack the service while a well-behaved client uses it, from before the attack until after it."""
    attack.prepare()
    certificate = None if service.nginx is None else service.nginx.certificate
    with _good_client(service.port, certificate, attack.is_table, service.grpc_port) as stop:
        quiet = [_passing(QUIET_SECONDS)]
        before, computed, started = service.memory(), service.loop_seconds(), time.monotonic()
        target = Target(service.grpc_port or service.port, scale, started + seconds, service.tls)
        sent, peak = asyncio.run(_watched(service, attack, target))
        peak = max(peak, service.memory())
        lasted = time.monotonic() - started
        busy = max(0.0, service.loop_seconds() - computed) / lasted
        attacked = (started, time.monotonic() + SETTLE_SECONDS)
        time.sleep(REST_SECONDS)
        after = service.memory()
        quiet.append(_passing(QUIET_SECONDS))
        replies = stop()
    hit = _between(replies, attacked)
    return AttackRow(
        attack.name, sent / MB, 1e3 * max((reply.seconds for reply in hit), default=PATIENCE_SECONDS),
        _p99_ms(hit), _p99_ms(_between(replies, *quiet)),
        sum(reply.status == 200 for reply in hit), sum(reply.status != 200 for reply in hit),
        (peak - before) / MB, (after - before) / MB, busy,
    )  # fmt: skip


class TimedReply(NamedTuple):
    """Request of the well-behaved client: start (``time.monotonic()``), duration and status (0 for none)."""

    began: float
    seconds: float
    status: int


def _passing(seconds: float) -> tuple[float, float]:
    """Wait, and return the start and end of the wait."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _between(replies: Sequence[TimedReply], *spans: tuple[float, float]) -> list[TimedReply]:
    return [reply for reply in replies if any(start <= reply.began < end for start, end in spans)]


def _p99_ms(replies: Sequence[TimedReply]) -> float:
    """Return the 99th percentile of answered requests, or of all if none was answered."""
    answered = [reply.seconds for reply in replies if reply.status == 200] or [reply.seconds for reply in replies]
    return 1e3 * quantile(sorted(answered) or [PATIENCE_SECONDS], 0.99)


async def _watched(service: _Attacked, attack: Attack, target: Target) -> tuple[int, int]:
    """Run an attack; return the number of bytes sent and the peak memory."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # connections that the peer resets
    peak = service.memory()
    task = asyncio.ensure_future(attack.run(target))
    while not task.done():
        peak = max(peak, service.memory())
        await asyncio.wait({task}, timeout=0.1)
    return task.result(), peak


@contextlib.contextmanager
def _good_client(
    port: int, certificate: Path | None = None, tables: bool = False, grpc_port: int | None = None
) -> Iterator[Callable[[], list[TimedReply]]]:
    """Run the well-behaved client in a separate process; yield a function that stops it and returns its requests."""
    kind = [*([TABLES] if tables else []), *([GRPC, str(grpc_port)] if grpc_port is not None else [])]
    command = [sys.executable, "-m", "deploy.bench.hostile", str(port), *kind]
    command += [str(certificate)] if certificate else []
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def stop() -> list[TimedReply]:
            out, _ = process.communicate()
            return [TimedReply(*one) for one in json.loads(out)]

        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has started
            yield stop
        finally:
            process.kill()


def _allow_many_files() -> None:
    """Raise the limit of open files to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def good_requests(
    port: int,
    tls: ssl.SSLContext | None,
    stopped: Callable[[], bool],
    tables: bool = False,
    grpc_port: int | None = None,
) -> Iterator[TimedReply]:
    """Classify one light curve after another, each on a new connection, with a pause between them.

    Parameters
    ----------
    tables : whether every second one is sent as a table.
    grpc_port : port to which every second one is sent over gRPC; None for HTTP only.
    """
    calls = None if grpc_port is None else good_calls(grpc_port)
    requests = [("/v1/classify", json.dumps(light_curve(30)).encode(), "application/json")]
    if tables:
        rows = b"".join(b"a,%d,%c,20,0.1\n" % (60_000 + day, b"gr"[day % 2]) for day in range(30))
        requests.append(("/v1/tables", TABLE_HEAD + rows, "text/csv"))
    source = (GOOD_ADDRESS, 0)
    for path, body, kind in itertools.cycle(requests):
        if stopped():
            return
        if tls is None:
            connection = HTTPConnection(HOST, port, PATIENCE_SECONDS, source)
        else:
            connection = HTTPSConnection(HOST, port, timeout=PATIENCE_SECONDS, source_address=source, context=tls)
        began, status = time.monotonic(), 0
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("POST", path, body, {"Content-Type": kind})
            reply = connection.getresponse()
            reply.read()
            status = reply.status
        yield TimedReply(began, time.monotonic() - began, status)
        time.sleep(PAUSE_SECONDS)
        if calls is not None:
            yield next(calls)
            time.sleep(PAUSE_SECONDS)


def good_calls(port: int) -> Iterator[TimedReply]:
    """Classify one light curve after another over gRPC, each on a new connection; 200 stands for OK."""
    import grpc

    from nightjar_alerts.service.grpc import SERVICE
    from nightjar_alerts.service.grpc.messages import ModelInferRequest

    curve = light_curve(30)
    request = ModelInferRequest()
    for name, datatype, field in (
        ("mjd", "FP64", "fp64_contents"),
        ("flux", "FP32", "fp32_contents"),
        ("flux_err", "FP32", "fp32_contents"),
        ("band", "BYTES", "bytes_contents"),
    ):
        values: Any = curve[name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[30])
        getattr(tensor.contents, field).extend(value.encode() if name == "band" else value for value in values)
    message = request.SerializeToString()
    while True:
        began, status = time.monotonic(), 0
        # The service sees this address, as loopback is a trusted proxy: a client cannot choose that of its socket.
        metadata = [("x-forwarded-for", GOOD_ADDRESS)]
        with grpc.insecure_channel(f"{HOST}:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            try:
                call(message, timeout=PATIENCE_SECONDS, metadata=metadata)
                status = 200
            except grpc.RpcError as e:
                print(e.code(), e.details(), file=sys.stderr)
        yield TimedReply(began, time.monotonic() - began, status)


def main() -> None:
    """Run the well-behaved client until standard input ends, and print its requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument(TABLES, action="store_true")
    parser.add_argument(GRPC, type=int)
    parser.add_argument("certificate", type=Path, nargs="?")
    options = parser.parse_args()
    tls = client_context(options.certificate) if options.certificate else None
    print("started", flush=True)
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print(json.dumps(list(good_requests(options.port, tls, ended.is_set, options.tables, options.grpc))))


if __name__ == "__main__":
    main()
