"""The stream worker: visits drained end to end, beside bare onnxruntime, and the decoder beside fastavro.

A real Redis server carries the alerts in and the answers out; worker processes are those that a user starts. An alert
is drained when its answer is acknowledged. The server's own clock stamps both, so ages need no other.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro
import numpy as np

from deploy.bench import shares
from deploy.bench.alerts import LONGEST, SCHEMA, columns_of, packet, visit
from deploy.bench.bare import Bare
from deploy.bench.report import Numbers
from service.alerts import plans
from service.alerts.packet import Packet
from service.alerts.reader import CONFLUENT_HEADER_BYTES, read_packet
from service.commands.process import HOST, Service, free_port

VISITS: Final = (10_000, 40_000)
ARRIVAL_SECONDS: Final = 5.0
STEADY_PER_SECOND, STEADY_SECONDS = 270, 30
WORKERS: Final = (1, 2, 4)
BARE_CURVES: Final = 1000
STEP_SECONDS: Final = 0.05
AT_ONCE: Final = 500  # alerts in a round trip to the server
PATIENCE_SECONDS: Final = 600.0


def measure(bundle: Path, scale: float, say: Callable[[str], None]) -> Numbers:
    """Keys ``stream.*``; `scale` shrinks the numbers of alerts, for a trial."""
    numbers: Numbers = {"stream.decode_vs_fastavro": decode_ratio()}
    numbers |= shares.measure(bundle, visit(int(BARE_CURVES * max(scale, 0.1)), seed=3))
    if shutil.which("redis-server") is None or find_spec("redis") is None:
        say("redis-server or the `stream` extra is not installed: only the decoder was measured")
        return numbers
    packets = visit(int(VISITS[0] * scale))
    numbers["stream.bare_per_s"] = bare = _bare(bundle, packets[: int(BARE_CURVES * max(scale, 0.1))])
    for count in WORKERS:
        numbers[f"stream.drain_per_s.workers_{count}"] = rate = len(packets) / _drain(bundle, packets, count).seconds
        say(f"{count} workers: {rate:.0f} alerts/s, bare onnxruntime {bare:.0f}")
    rates = [numbers[f"stream.drain_per_s.workers_{count}"] for count in WORKERS]
    numbers["stream.vs_bare"] = max(rate for rate in rates if isinstance(rate, float)) / bare
    for size in VISITS:
        name = f"stream.visit_{size // 1000}k_s"
        drained = _drain(bundle, visit(int(size * scale)), 1, ARRIVAL_SECONDS)
        numbers |= {name: drained.seconds, f"stream.visit_{size // 1000}k_peak_mb": drained.peak_mb}
        say(f"{name}: {drained.seconds:.1f}, {drained.peak_mb:.0f} MB at most")
    return numbers | _steady(bundle, max(1.0, STEADY_SECONDS * scale))


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
    return Bare.of(bundle, curves).run(len(os.sched_getaffinity(0))).per_second


class Drained(NamedTuple):
    """How long it took, and the most memory that one worker held."""

    seconds: float
    peak_mb: float


def _drain(bundle: Path, packets: Sequence[bytes], workers: int, arrival: float = 0.0) -> Drained:
    """Seconds from the first alert's arrival to the last answer; without `arrival` all alerts come at once."""
    with _redis() as client, ExitStack() as stack:
        runs = len(os.sched_getaffinity(0)) // workers or 1
        started = [stack.enter_context(_worker(bundle, client, runs)) for _ in range(workers)]
        _feed(client, packets, arrival)
        _wait(client, len(packets))
        first, last = client.xrange("alerts", count=1)[0][0], client.xrevrange("results", count=1)[0][0]
        peak = max(worker.memory("VmHWM") for worker in started) / 2**20
        return Drained((_milliseconds(last) - _milliseconds(first)) / 1000, peak)


def _steady(bundle: Path, seconds: float) -> Numbers:
    """Ages of answers, from the arrival of an alert to its acknowledged answer, at a steady rate."""
    packets = visit(int(STEADY_PER_SECOND * seconds), seed=2)
    with _redis() as client, _worker(bundle, client, len(os.sched_getaffinity(0))) as worker:
        before = worker.memory()
        _feed(client, packets, seconds)
        _wait(client, len(packets))
        arrived = [_milliseconds(entry) for entry, _ in client.xrange("alerts")]
        ages = [
            _milliseconds(entry) - arrived[int(json.loads(fields[b"value"])["alert_id"]) - 10**17]
            for entry, fields in client.xrange("results")
        ]
        grown = worker.memory() - before
    return {
        "stream.age_p50_ms": float(np.percentile(ages, 50)),
        "stream.age_p99_ms": float(np.percentile(ages, 99)),
        "stream.steady_memory_growth_mb": grown / 2**20,
    }


def _feed(client: Any, packets: Sequence[bytes], seconds: float = 0.0) -> None:
    """Append alerts evenly over some seconds, or all at once."""
    started, sent = time.monotonic(), 0
    while sent < len(packets):
        due = sent + AT_ONCE if not seconds else int(len(packets) * min(1.0, (time.monotonic() - started) / seconds))
        pipeline = client.pipeline(transaction=False)
        for data in packets[sent:due]:
            pipeline.xadd("alerts", {"value": data})
        pipeline.execute()
        sent = min(due, len(packets))
        time.sleep(STEP_SECONDS if seconds else 0)


def _wait(client: Any, count: int) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while client.xlen("results") < count:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{client.xlen('results')} of {count} alerts were answered")
        time.sleep(STEP_SECONDS)


def _milliseconds(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


@contextmanager
def _redis() -> Iterator[Any]:
    """A client of a server of one's own, which keeps nothing on disk."""
    import redis

    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", HOST, "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client = redis.Redis(HOST, port, protocol=2, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 100))
        try:
            client.ping()
            client.xgroup_create("alerts", "nightjar", "0", mkstream=True)
            yield client
        finally:
            client.close()
            process.kill()
            process.wait()


@contextmanager
def _worker(bundle: Path, client: Any, runs: int) -> Iterator[Service]:
    """A worker process, ready."""
    port, place = free_port(), f"redis://{HOST}:{client.get_connection_kwargs()['port']}"
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        settings = {
            "HOST": HOST, "WORKER_PORT": port, "BUNDLE": bundle, "WORKERS": runs, "CACHE_BYTES": 0,
            "SOURCE": f"{place}/alerts", "SINK": f"{place}/results", "DEAD_LETTERS": f"file:{folder}/letters/",
        }  # fmt: skip
        environment = {**os.environ, **{f"NIGHTJAR_{name}": str(value) for name, value in settings.items()}}
        log = Path(folder, "log")
        with log.open("wb") as sink:
            process = subprocess.Popen([sys.executable, "-m", "service", "worker"], env=environment, stderr=sink)
        service = Service(process, port, log)
        try:
            service.wait_ready(120)
            yield service
        finally:
            service.stop()
