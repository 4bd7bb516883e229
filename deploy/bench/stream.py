"""The stream worker: visits drained end to end, beside bare onnxruntime, and the decoder beside fastavro.

A real Redis server carries the alerts in and the answers out; worker processes are those that a user starts. An alert
is drained when its answer is acknowledged. The server's own clock stamps both, so ages need no other: an alert's is
counted from its arrival, as if that were the middle of its exposure. All worker processes are on this machine, of one
consumer group; more of them than cores share what there is.
"""

import io
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import fastavro
import numpy as np

from deploy.bench import backlog, engine, shares
from deploy.bench.alerts import LONGEST, SCHEMA, columns_of, packet, visit
from deploy.bench.bare import Bare
from deploy.bench.broker import feed, milliseconds, redis_server, wait, worker
from deploy.bench.engine import Aim
from deploy.bench.report import Numbers
from service.alerts import plans
from service.alerts.packet import Packet
from service.alerts.reader import CONFLUENT_HEADER_BYTES, read_packet

VISITS: Final = (10_000, 40_000)
ARRIVAL_SECONDS: Final = 5.0
STEADY_PER_SECOND, STEADY_SECONDS = 270, 30
WORKERS: Final = (1, 2, 4)
SHARE_CURVES: Final = 1000


AIMS: Final[dict[str, Aim]] = {
    "stream.visit_10k_s": Aim("10,000 alerts in 5 s, all answered after, s", "at most", 15),
    "stream.visit_40k_s": Aim("40,000 alerts in 5 s, all answered after, s", "at most", 60),
    "stream.vs_bare": Aim("alerts per second / light curves per second of bare onnxruntime", "at least", 0.6),
    "stream.decode_vs_fastavro": Aim("decoding 60 + 300 points / fastavro", "at most", 0.34),
    "stream.backlog.late_vs_early": Aim("memory late / early while a backlog waits", "at most", 1.1),
}


def measure(bundle: Path, scale: float, waiting: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``stream.*``.

    Parameters
    ----------
    scale : share of the alerts and of the time at a steady rate, for a trial.
    waiting : alerts of the backlog.
    """
    numbers: Numbers = {"stream.scale": scale, "stream.decode_vs_fastavro": decode_ratio()}
    numbers |= shares.measure(bundle, visit(int(SHARE_CURVES * max(scale, 0.1)), seed=3))
    if shutil.which("redis-server") is None or find_spec("redis") is None:
        say("redis-server or the `stream` extra is not installed: only the decoder was measured")
        return numbers
    numbers |= _beside_bare(bundle, visit(int(VISITS[0] * scale)), say)
    for size in VISITS:
        name = f"stream.visit_{size // 1000}k_s"
        drained = _drain(bundle, visit(int(size * scale)), 1, ARRIVAL_SECONDS)
        numbers |= {name: drained.seconds, f"stream.visit_{size // 1000}k_peak_mb": drained.peak_mb}
        say(f"{name}: {drained.seconds:.1f}, {drained.peak_mb:.0f} MB at most")
    numbers |= _steady(bundle, max(1.0, STEADY_SECONDS * scale), say)
    return numbers | backlog.measure(bundle, int(waiting * scale), say)


def table(numbers: Numbers) -> str:
    """Markdown: what has an aim, then everything else."""
    reached = {name: aim for name, aim in AIMS.items() if name in numbers}
    rest = {name: value for name, value in numbers.items() if name.startswith("stream.") and name not in AIMS}
    figures = {name: value for name, value in sorted(rest.items()) if isinstance(value, float)}
    lines = [
        f"| `{name}` | {value:,.0f} |" if value >= 100 else f"| `{name}` | {value:.3g} |"
        for name, value in figures.items()
    ]
    return engine.table(numbers, reached) + "\n".join(["", "| figure | measured |", "|---|---|", *lines, ""])


def _beside_bare(bundle: Path, packets: Sequence[bytes], say: Callable[[str], None]) -> Numbers:
    """Alerts that are all there at once, by several numbers of workers, and the same light curves bare."""
    bare = _bare(bundle, packets)
    rates = {count: len(packets) / _drain(bundle, packets, count).seconds for count in WORKERS}
    for count, rate in rates.items():
        say(f"{count} workers: {rate:.0f} alerts/s, bare onnxruntime {bare:.0f}")
    numbers: Numbers = {f"stream.drain_per_s.workers_{count}": rate for count, rate in rates.items()}
    return numbers | {"stream.bare_per_s": bare, "stream.vs_bare": max(rates.values()) / bare}


def decode_ratio(repeats: int = 40) -> float:
    """Processor time of our decoder over that of fastavro on one packet of 60 + 300 points."""
    data = packet(1, *LONGEST, np.random.default_rng(0))[CONFLUENT_HEADER_BYTES:]
    decoder = plans.for_name(SCHEMA).decoder
    full = _fastest(lambda: fastavro.schemaless_reader(io.BytesIO(data), decoder.schema.parsed, None), repeats)
    return _fastest(lambda: decoder.read(data), repeats) / full


def _fastest(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def _bare(bundle: Path, packets: Sequence[bytes]) -> float:
    """Light curves of the packets per second, bare, on all cores."""
    read = [outcome for data in packets for outcome in read_packet(data)]
    curves = [columns_of(one.curve) for one in read if isinstance(one, Packet) and one.curve is not None]
    return Bare.of(bundle, curves).run(cores()).per_second


class Drained(NamedTuple):
    """How long it took, and the most memory that one worker held."""

    seconds: float
    peak_mb: float


def _drain(bundle: Path, packets: Sequence[bytes], workers: int, arrival: float = 0.0) -> Drained:
    """Seconds from the first alert's arrival to the last answer; without `arrival` all alerts come at once."""
    with redis_server() as client, ExitStack() as stack:
        runs = cores() // workers or 1
        started = [stack.enter_context(worker(bundle, client, runs)) for _ in range(workers)]
        feed(client, packets, arrival)
        wait(client, len(packets))
        first, last = client.xrange("alerts", count=1)[0][0], client.xrevrange("results", count=1)[0][0]
        peak = max(process.memory("VmHWM") for process in started) / 2**20
        return Drained((milliseconds(last) - milliseconds(first)) / 1000, peak)


def _steady(bundle: Path, seconds: float, say: Callable[[str], None]) -> Numbers:
    """Ages of answers, from the arrival of an alert to its acknowledged answer, at a steady rate."""
    packets = visit(int(STEADY_PER_SECOND * seconds), seed=2)
    with redis_server() as client, worker(bundle, client, cores()) as process:
        before = process.memory()
        feed(client, packets, seconds)
        wait(client, len(packets))
        arrived = [milliseconds(entry) for entry, _ in client.xrange("alerts")]
        ages = [
            milliseconds(entry) - arrived[int(json.loads(fields[b"value"])["alert_id"]) - 10**17]
            for entry, fields in client.xrange("results")
        ]
        grown = process.memory() - before
    p50, p99 = np.percentile(ages, [50, 99]).tolist()
    say(f"{STEADY_PER_SECOND} alerts/s for {seconds:.0f} s: age {p50:.0f} ms, {p99:.0f} ms at the 99th percentile")
    return {
        "stream.age_p50_ms": p50,
        "stream.age_p99_ms": p99,
        "stream.steady_per_s": float(STEADY_PER_SECOND),
        "stream.steady_s": seconds,
        "stream.steady_memory_growth_mb": grown / 2**20,
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
