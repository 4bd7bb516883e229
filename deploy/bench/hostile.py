"""Clients that mean harm against a real service, and what a well-behaved one notices meanwhile.

    python -m deploy.bench --parts '["hostile"]'
    python -m deploy.bench.hostile ADDRESS PORT SECONDS      the well-behaved client alone

For every attack: bytes sent, the longest that a good client waited, its 99th percentile beside that without an attack,
replies that were no answer, memory gained at the peak and a while after the end, and how much of the time the service's
event loop computed: the one figure that other work on the machine does not change. The good client is a process of its
own, opens a new connection for each light curve and comes from another loopback address. All attacks are bounded in
connections, bytes and time, and go to loopback only.

A service of another commit is measured with ``--hostile-root folder/of/its/checkout``, as ``hostile.before.*``: a
process of its own for each attack, which may not outgrow :data:`MOST_BEFORE_BYTES` and is killed afterwards, since some
attacks would occupy the service before the repairs for hours.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from deploy.bench.load import quantile
from deploy.bench.process import HOST, Service, ServiceDied, running, start
from deploy.bench.report import Numbers

GOOD_ADDRESS: Final = "127.0.0.2"
PAUSE_SECONDS: Final = 0.05  # between two requests of the good client
QUIET_SECONDS: Final = 3.0  # without an attack, at first
REST_SECONDS: Final = 2.5  # after each attack, before memory is read again
SETTLE_SECONDS: Final = 0.5
START_SECONDS: Final = 300.0
PATIENCE_SECONDS: Final = 60.0  # of the good client with one request
MOST_BEFORE_BYTES: Final = 8 << 30  # of address space
MB: Final = 1e6

HEAD: Final = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
GET: Final = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


class Attack(NamedTuple):
    """One way to do harm, which runs for so many seconds and returns how many bytes it has sent."""

    name: str
    run: Callable[["Target"], Awaitable[int]]


class Target(NamedTuple):
    """Whom to attack, with which share of the full force, and until when (``time.monotonic()``)."""

    port: int
    scale: float
    until: float

    def many(self, count: int) -> int:
        """So many at full force."""
        return max(2, int(count * self.scale))

    @property
    def going_on(self) -> bool:
        """Return True while there is time left."""
        return time.monotonic() < self.until


@dataclass(frozen=True, slots=True)
class Row:
    """Harm done by one attack, in milliseconds and megabytes (10**6 bytes); ``loop_busy`` is a share of the time."""

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
        """The attack as a part of a key."""
        return self.attack.lower().replace(" ", "_")


class Peer:
    """One connection of an attacker; everything that fails on it is its end, and no news."""

    def __init__(self, target: Target) -> None:
        self.target, self.sent = target, 0
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def __aenter__(self) -> "Peer":
        """Connect."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_connect(self._socket, (HOST, self.target.port))
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
        """Until the other side hangs up."""
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


async def crowd(target: Target, count: int, behave: Callable[[Peer], Awaitable[None]], again: bool = False) -> int:
    """So many peers at a time, each anew when it has ended if ``again``; returns bytes sent."""

    async def one() -> int:
        sent = 0
        while True:
            async with Peer(target) as peer:
                await behave(peer)
                sent += peer.sent
            if not again or not target.going_on:
                return sent
            await asyncio.sleep(0.01)

    return sum(await asyncio.gather(*(one() for _ in range(count))))


async def pipelining(target: Target) -> int:
    """Send requests by the thousand behind replies that nobody reads."""

    async def behave(peer: Peer) -> None:
        peer.small_window()
        await peer.send(GET % b"/docs" * 12 + GET % b"/" * 3000)
        await peer.until_the_end()

    return await crowd(target, target.many(300), behave)


async def idle(target: Target) -> int:
    """Open connections that say nothing."""

    async def behave(peer: Peer) -> None:
        await peer.until_the_end()

    return await crowd(target, target.many(10_000), behave)


def dripping(start: bytes, drop: bytes, pause: float = 1.0) -> Callable[[Peer], Awaitable[None]]:
    """Begin at once, and send a drop now and then."""

    async def behave(peer: Peer) -> None:
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

    async def behave(peer: Peer) -> None:
        peer.small_window()
        if await peer.send(GET % b"/openapi.json" * 8):
            while peer.target.going_on and await peer.receive(1.0):
                await asyncio.sleep(1.0)
            await peer.until_the_end()

    return await crowd(target, target.many(500), behave)


async def resets(target: Target) -> int:
    """Half a request, and a reset."""
    whole = HEAD % b"application/json" + b"Content-Length: 500\r\n\r\n" + b" " * 200

    async def behave(peer: Peer) -> None:
        await peer.send(whole)
        peer.reset()

    return await crowd(target, target.many(200), behave, again=True)


async def half_closed(target: Target) -> int:
    """Half a request, and nothing more while the reply is waited for."""
    whole = HEAD % b"application/json" + b"Content-Length: 500\r\n\r\n{"

    async def behave(peer: Peer) -> None:
        await peer.send(whole)
        peer.half_close()
        await peer.receive_all()

    return await crowd(target, target.many(200), behave, again=True)


async def giant_headers(target: Target) -> int:
    """Headers without end, few and long, or many and short."""

    async def behave(peer: Peer) -> None:
        line = b"a:\r\n" if id(peer) % 32 else b"X-Filler: " + b"x" * 8000 + b"\r\n"
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + line * (200_000 // len(line)))
        await peer.receive_all()

    return await crowd(target, target.many(100), behave, again=True)


async def garbage(target: Target) -> int:
    """Send a request, and bytes that are none behind it."""

    async def behave(peer: Peer) -> None:
        await peer.send(GET % b"/healthz" + b"\0\xff" * 500)
        await peer.receive_all()

    return await crowd(target, target.many(100), behave, again=True)


def posting(path: bytes, kind: bytes, body: bytes, count: int) -> Callable[[Target], Awaitable[int]]:
    """Send one body again and again, from so many clients."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    request = head % (path, kind, len(body)) + body

    async def behave(peer: Peer) -> None:
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


def measure(
    bundle: Path, seconds: float, scale: float, root: Path | None, only: Sequence[str], say: Callable[[str], None]
) -> Sequence[Row]:
    """Measure every attack in turn, on a service of its own.

    Parameters
    ----------
    seconds : that each attack lasts.
    scale : share of the full force, for a trial.
    root : checkout of another commit whose service is attacked instead, anew for each attack.
    only : names of the attacks to measure; all of them where none is named.
    """
    _allow_many_files()
    settings = {"NIGHTJAR_LOG_LEVEL": "error", "NIGHTJAR_CACHE_BYTES": "0", "NIGHTJAR_AUTOTUNE": "false"}
    if root is not None:
        settings |= {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    every, rows = [*attacks(), lawful()], list[Row]()
    groups = [[each] for each in every] if root is not None else [every[:-1], every[-1:]]
    for group in groups:
        chosen = [attack for attack in group if not only or attack.name in only]
        if not chosen:
            continue
        with (running if root is None else _doomed)(bundle, settings, START_SECONDS) as service:
            for attack in chosen:
                rows.append(row := _attacked(service, attack, seconds, scale))
                say(
                    f"{attack.name}: {row.sent_mb:.1f} MB, worst {row.worst_stall_ms:.0f} ms, p99 {row.p99_ms:.0f} "
                    f"(quiet {row.quiet_p99_ms:.0f}), {row.failures} of {row.answers + row.failures} failed, "
                    f"memory +{row.memory_mb:.0f} MB, after {row.memory_after_mb:+.0f}, loop busy {row.loop_busy:.0%}"
                )
    return rows


@contextlib.contextmanager
def _doomed(bundle: Path, settings: Mapping[str, str], seconds: float) -> Iterator[Service]:
    """Run a ready service of limited size that is killed in the end, whatever it is doing then."""
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        service = start(Path(folder), bundle, settings)
        try:
            service.wait_ready(seconds)
            resource.prlimit(service.process.pid, resource.RLIMIT_AS, (MOST_BEFORE_BYTES, MOST_BEFORE_BYTES))
            yield service
        finally:
            service.process.kill()
            service.process.wait()


OWN_FIGURES: Final = (
    "sent_mb", "worst_stall_ms", "p99_ms", "quiet_p99_ms", "failures", "memory_mb", "memory_after_mb", "loop_busy"
)  # fmt: skip


def numbers(rows: Sequence[Row], before: bool = False) -> Numbers:
    """Keys ``hostile.*``: the worst of all attacks but the flood of lawful bodies, then each attack's own figures.

    Of another commit (``before``) the latter alone, as ``hostile.before.*``.
    """
    group = "before" if before else "attack"
    own: Numbers = {
        f"hostile.{group}.{row.key}.{name}": float(getattr(row, name)) for row in rows for name in OWN_FIGURES
    }
    if before:
        return own
    unlawful = [row for row in rows if row.attack != "lawful bodies"] or rows
    return {
        "hostile.worst_stall_ms": max(row.worst_stall_ms for row in unlawful),
        "hostile.worst_memory_mb": max(row.memory_mb for row in unlawful),
        "hostile.worst_p99_ratio": max(row.p99_ms / row.quiet_p99_ms for row in unlawful),
        "hostile.failures": float(sum(row.failures for row in unlawful)),
        **own,
    }


def table(rows: Sequence[Row]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| attack | sent MB | longest wait ms | p99 ms (quiet) | not answered | memory MB | after MB | loop busy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        p99 = f"{row.p99_ms:.0f} ({row.quiet_p99_ms:.0f})"
        failed = f"{row.failures} of {row.answers + row.failures}"
        lines.append(
            f"| {row.attack} | {row.sent_mb:.1f} | {row.worst_stall_ms:.0f} | {p99} | {failed} "
            f"| {row.memory_mb:+.0f} | {row.memory_after_mb:+.0f} | {row.loop_busy:.0%} |"
        )
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows, ready to be written."""
    return [asdict(row) for row in rows]


def _memory(service: Service) -> int:
    """Resident bytes; 0 once the service has died, whose clients notice by themselves."""
    try:
        return service.memory()
    except (OSError, ServiceDied):
        return 0


def _loop_seconds(service: Service) -> float:
    try:
        return service.loop_seconds()
    except OSError:
        return 0.0


def _attacked(service: Service, attack: Attack, seconds: float, scale: float) -> Row:
    calm = sorted(latency for latency, status in _good_client(service.port, QUIET_SECONDS).wait() if status == 200)
    before, computed, started = _memory(service), _loop_seconds(service), time.monotonic()
    good = _good_client(service.port, seconds + SETTLE_SECONDS)
    target = Target(service.port, scale, time.monotonic() + seconds)
    sent, peak = asyncio.run(_watched(service, attack, target))
    replies = good.wait()
    peak = max(peak, _memory(service))
    busy = max(0.0, _loop_seconds(service) - computed) / (time.monotonic() - started)
    time.sleep(REST_SECONDS)
    latencies, good_ones = [latency for latency, _ in replies], sum(status == 200 for _, status in replies)
    answered = sorted(latency for latency, status in replies if status == 200) or latencies or [PATIENCE_SECONDS]
    return Row(
        attack.name, sent / MB, 1e3 * max(latencies, default=PATIENCE_SECONDS), 1e3 * quantile(answered, 0.99),
        1e3 * quantile(calm, 0.99), good_ones, len(replies) - good_ones,
        (peak - before) / MB, (_memory(service) - before) / MB, busy,
    )  # fmt: skip


async def _watched(service: Service, attack: Attack, target: Target) -> tuple[int, int]:
    """Bytes sent and the most memory meanwhile."""
    peak = _memory(service)
    task = asyncio.ensure_future(attack.run(target))
    while not task.done():
        peak = max(peak, _memory(service))
        await asyncio.wait({task}, timeout=0.1)
    return task.result(), peak


class _Good:
    """The well-behaved client, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def wait(self) -> list[tuple[float, int]]:
        """Seconds and status (0 for none) of each of its requests."""
        out, _ = self._process.communicate()
        return [(latency, status) for latency, status in json.loads(out)]


def _good_client(port: int, seconds: float) -> _Good:
    command = [sys.executable, "-m", "deploy.bench.hostile", GOOD_ADDRESS, str(port), str(seconds)]
    root = Path(__file__).resolve().parents[2]
    return _Good(subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE))


def _allow_many_files() -> None:
    """Allow as many connections as attacks need, where the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def ask(address: str, port: int, request: bytes) -> tuple[float, int]:
    """Seconds and status of one request on a connection of its own, from an address; status 0 where none came."""
    started, status = time.perf_counter(), 0
    try:
        with socket.create_connection((HOST, port), PATIENCE_SECONDS, (address, 0)) as connection:
            connection.sendall(request)
            reply = b""
            while piece := connection.recv(65536):
                reply += piece
            status = int(reply[9:12] or 0)
    except OSError:
        pass
    return time.perf_counter() - started, status


def good_requests(address: str, port: int, seconds: float) -> Iterator[tuple[float, int]]:
    """Ask about one light curve after another, with a pause between them."""
    body = json.dumps(light_curve(30)).encode()
    head = HEAD % b"application/json" + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield ask(address, port, head + body)
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Be the well-behaved client, and print what it met."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.hostile", description="the well-behaved client")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    print(json.dumps(list(good_requests(options.address, options.port, options.seconds))))


if __name__ == "__main__":
    main()
