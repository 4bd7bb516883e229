"""Clients that mean harm against a real service, and what a well-behaved one notices meanwhile.

    python -m deploy.bench --parts '["hostile"]'
    python -m deploy.bench.hostile ADDRESS PORT      the well-behaved client alone

For every attack: bytes sent, the longest that a good client waited, its 99th percentile beside that without an attack,
replies that were no answer, memory gained at the peak and a while after the end, and how much of the time the service's
event loop computed: the one figure that other work on the machine does not change. The good client is a process of its
own, opens a new connection for each light curve and comes from another loopback address. All attacks are bounded in
connections, bytes and time, and go to loopback only.

Attackers use the same cores as the service. What they cost the good client by that alone is measured right afterwards:
the same attack, with as many new connections a second, is aimed at a server that drops everything
(:mod:`deploy.bench.idle_server`), while the good client goes on asking the service. That is the *floor* of its latency:
no repair of the service gets below it.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from deploy.bench.attacks import HEAD, PATIENCE_SECONDS, Attack, AttackPace, Target, attacks, lawful, light_curve
from deploy.bench.http_load import quantile
from deploy.bench.report import Numbers
from deploy.bench.service_process import HOST, ServiceDied, ServiceProcess, running
from nightjar_alerts.models.common import markdown_table

GOOD_ADDRESS: Final = "127.0.0.2"
PAUSE_SECONDS: Final = 0.02  # between two requests of the good client
QUIET_SECONDS: Final = 1.5  # without an attack, at first and in the end
REST_SECONDS: Final = 2.5  # after each attack, before memory is read again
SETTLE_SECONDS: Final = 0.5
START_SECONDS: Final = 300.0
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class AttackRow:
    """Harm done by one attack, in milliseconds and megabytes (10**6 bytes); ``loop_busy`` is a share of the time."""

    attack: str
    sent_mb: float
    worst_stall_ms: float
    p99_ms: float
    floor_p99_ms: float
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


def measure(
    bundle: Path, seconds: float, scale: float, only: Sequence[str], say: Callable[[str], None]
) -> Sequence[AttackRow]:
    """Measure every attack in turn, on a service of its own.

    Parameters
    ----------
    seconds : that each attack lasts.
    scale : share of the full force, for a trial.
    only : names of the attacks to measure; all of them where none is named.

    Raises
    ------
    ValueError
        For a name that no attack has.
    """
    every, rows = [*attacks(), lawful()], list[AttackRow]()
    names = [attack.name for attack in every]
    if unknown := [name for name in only if name not in names]:
        raise ValueError(f"no attack is named {', '.join(unknown)}; there are {', '.join(names)}")
    _allow_many_files()
    settings = {"NIGHTJAR_LOG_LEVEL": "error", "NIGHTJAR_CACHE_BYTES": "0"}
    for group in (every[:-1], every[-1:]):
        chosen = [attack for attack in group if not only or attack.name in only]
        if not chosen:
            continue
        with running(bundle, settings, START_SECONDS) as service:
            for attack in chosen:
                rows.append(row := _attacked(service, attack, seconds, scale))
                say(
                    f"{attack.name}: {row.sent_mb:.1f} MB, worst {row.worst_stall_ms:.0f} ms, p99 {row.p99_ms:.0f} "
                    f"(floor {row.floor_p99_ms:.0f}, quiet {row.quiet_p99_ms:.0f}), "
                    f"{row.failures} of {row.answers + row.failures} failed, "
                    f"memory +{row.memory_mb:.0f} MB, after {row.memory_after_mb:+.0f}, loop busy {row.loop_busy:.0%}"
                )
    return rows


OWN_FIGURES: Final = (
    "sent_mb", "worst_stall_ms", "p99_ms", "floor_p99_ms", "quiet_p99_ms", "failures", "memory_mb", "memory_after_mb",
    "loop_busy",
)  # fmt: skip


def numbers(rows: Sequence[AttackRow]) -> Numbers:
    """Keys ``hostile.*``: the worst of all attacks but the flood of lawful bodies, then each attack's own figures."""
    own: Numbers = {
        f"hostile.attack.{row.key}.{name}": float(getattr(row, name)) for row in rows for name in OWN_FIGURES
    }
    unlawful = [row for row in rows if row.attack != "lawful bodies"] or rows
    return {
        "hostile.worst_stall_ms": max(row.worst_stall_ms for row in unlawful),
        "hostile.worst_memory_mb": max(row.memory_mb for row in unlawful),
        "hostile.worst_p99_ratio": max(row.p99_ms / row.quiet_p99_ms for row in unlawful),
        "hostile.worst_p99_over_floor": max(row.p99_ms / row.floor_p99_ms for row in unlawful),
        "hostile.worst_floor_ratio": max(row.floor_p99_ms / row.quiet_p99_ms for row in unlawful),
        "hostile.failures": float(sum(row.failures for row in unlawful)),
        **own,
    }


def table(rows: Sequence[AttackRow]) -> str:
    """Format the rows as Markdown."""
    waits = ("longest wait ms", "p99 ms (floor, quiet)", "not answered")
    head = ("attack", "sent MB", *waits, "memory MB", "after", "loop busy")
    cells = [
        (
            row.attack,
            f"{row.sent_mb:.1f}",
            f"{row.worst_stall_ms:.0f}",
            f"{row.p99_ms:.0f} ({row.floor_p99_ms:.0f}, {row.quiet_p99_ms:.0f})",
            f"{row.failures} of {row.answers + row.failures}",
            f"{row.memory_mb:+.0f}",
            f"{row.memory_after_mb:+.0f}",
            f"{row.loop_busy:.0%}",
        )
        for row in rows
    ]
    return markdown_table(head, cells) + "\n"


def _memory(service: ServiceProcess) -> int:
    """Resident bytes; 0 once the service has died, whose clients notice by themselves."""
    try:
        return service.memory()
    except (OSError, ServiceDied):
        return 0


def _loop_seconds(service: ServiceProcess) -> float:
    try:
        return service.loop_seconds()
    except OSError:
        return 0.0


def _attacked(service: ServiceProcess, attack: Attack, seconds: float, scale: float) -> AttackRow:
    """Attack the service, then the sink, while a good client asks the service from before until after."""
    with _sink() as sink, _good_client(service.port) as good:
        quiet = [_passing(QUIET_SECONDS)]
        before, computed, started = _memory(service), _loop_seconds(service), time.monotonic()
        target = Target(service.port, scale, started + seconds, AttackPace())
        sent, peak = asyncio.run(_watched(service, attack, target))
        peak = max(peak, _memory(service))
        lasted = time.monotonic() - started
        busy = max(0.0, _loop_seconds(service) - computed) / lasted
        attacked = (started, time.monotonic() + SETTLE_SECONDS)
        time.sleep(REST_SECONDS)
        after = _memory(service)
        begun = time.monotonic()
        asyncio.run(attack.run(Target(sink, scale, begun + lasted, AttackPace(target.pace.begun / lasted))))
        floor = (begun, time.monotonic())
        time.sleep(SETTLE_SECONDS)
        quiet.append(_passing(QUIET_SECONDS))
        replies = good.stop()
    hit = _between(replies, attacked)
    return AttackRow(
        attack.name, sent / MB, 1e3 * max((reply.seconds for reply in hit), default=PATIENCE_SECONDS),
        _p99_ms(hit), _p99_ms(_between(replies, floor)), _p99_ms(_between(replies, *quiet)),
        sum(reply.status == 200 for reply in hit), sum(reply.status != 200 for reply in hit),
        (peak - before) / MB, (after - before) / MB, busy,
    )  # fmt: skip


class TimedReply(NamedTuple):
    """One request of the good client: when it began (``time.monotonic()``), how long it took, status (0 for none)."""

    began: float
    seconds: float
    status: int


def _passing(seconds: float) -> tuple[float, float]:
    """Wait, and return the times at which the wait began and ended."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _between(replies: Sequence[TimedReply], *spans: tuple[float, float]) -> list[TimedReply]:
    return [reply for reply in replies if any(start <= reply.began < end for start, end in spans)]


def _p99_ms(replies: Sequence[TimedReply]) -> float:
    """Return the 99th percentile of those that were answered, of all where none was."""
    answered = [reply.seconds for reply in replies if reply.status == 200] or [reply.seconds for reply in replies]
    return 1e3 * quantile(sorted(answered) or [PATIENCE_SECONDS], 0.99)


async def _watched(service: ServiceProcess, attack: Attack, target: Target) -> tuple[int, int]:
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

    def stop(self) -> list[TimedReply]:
        """Return its requests, in order."""
        out, _ = self._process.communicate()
        return [TimedReply(*one) for one in json.loads(out)]


@contextlib.contextmanager
def _good_client(port: int) -> Iterator[_Good]:
    with _started("deploy.bench.hostile", GOOD_ADDRESS, str(port)) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield _Good(process)


@contextlib.contextmanager
def _sink() -> Iterator[int]:
    """Run a server that drops everything; its port."""
    with _started("deploy.bench.idle_server") as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextlib.contextmanager
def _started(module: str, *arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a module of ours that ends when its input does."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


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


def good_requests(address: str, port: int, enough: Callable[[], bool]) -> Iterator[TimedReply]:
    """Ask about one light curve after another, with a pause between them."""
    body = json.dumps(light_curve(30)).encode()
    head = HEAD % b"application/json" + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    while not enough():
        began = time.monotonic()
        yield TimedReply(began, *ask(address, port, head + body))
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Be the well-behaved client until the input ends, and print what it met."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.hostile", description="the well-behaved client")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    print("begun", flush=True)
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print(json.dumps(list(good_requests(options.address, options.port, ended.is_set))))


if __name__ == "__main__":
    main()
