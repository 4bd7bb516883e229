"""Benchmark of the stream worker: visits end to end and bare onnxruntime, and the decoder compared with fastavro.

Worker processes of one consumer group read from one stream of a real Redis server and write to another. The server
timestamps alerts and results; the age of a result is the time from the arrival of its alert.

Memory with a backlog of small alerts is measured early and late, while much of the backlog is still pending. CPU time
of an alert is measured by step (decode, featurise, run, encode), each alone on one core.
"""

import io
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import fastavro
import numpy as np

from deploy.bench.bare import Bare, Best
from deploy.bench.report import Numbers
from deploy.bench.workload import LONGEST_HISTORY, SCHEMA, columns_of, packet, visit
from nightjar_alerts.alerts import plans
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.alerts.reader import CONFLUENT_HEADER_BYTES
from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.items import Outcome, Prediction
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.core.serializer import ResultSerializer, encode_json
from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.runtime import run
from nightjar_alerts.service.local import HOST, WORKER, ServiceProcess, free_port, running

STEP_SECONDS: Final = 0.05
AT_ONCE: Final = 500  # alerts per round trip to the server
PATIENCE_SECONDS: Final = 600.0
START_SECONDS: Final = 120.0


def feed(client: Any, packets: Sequence[bytes], seconds: float = 0.0) -> None:
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


def wait(client: Any, count: int) -> None:
    """Wait for the results of a number of alerts; raises TimeoutError after ten minutes."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while client.xlen("results") < count:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{client.xlen('results')} of {count} alerts were answered")
        time.sleep(STEP_SECONDS)


def milliseconds(entry: bytes) -> int:
    """Return the time of an entry's id, milliseconds since 1970 by the server's clock."""
    return int(entry.partition(b"-")[0])


class Redis:
    """Redis server on a free port that can be killed and restarted. It stores nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server unless it is running."""
        if self._process is not None:
            return
        command = ["redis-server", "--port", str(self.port), "--bind", HOST, "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill the server if it is running; its data are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def client(self) -> Any:
        """Return a client that waits for the server, with the worker's consumer group on the stream ``alerts``."""
        import redis

        retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), 600)
        client = redis.Redis(HOST, self.port, protocol=2, retry=retry)
        client.xgroup_create("alerts", "nightjar", "0", mkstream=True)
        return client


@contextmanager
def redis_server() -> Iterator[Any]:
    """Run a Redis server; yields a client of it."""
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        server = Redis(Path(folder))
        try:
            with closing(server.client()) as client:
                yield client
        finally:
            server.kill()


@contextmanager
def worker(bundle: Path, client: Any, runs: int, sink: str = "") -> Iterator[ServiceProcess]:
    """Run a worker process; yield it when it is ready. ``sink`` replaces the stream ``results`` of the same server."""
    server = f"redis://{HOST}:{client.get_connection_kwargs()['port']}"
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        settings = {
            "NIGHTJAR_WORKERS": str(runs),
            "NIGHTJAR_CACHE_BYTES": "0",
            "NIGHTJAR_SOURCE": f"{server}/alerts",
            "NIGHTJAR_SINK": sink or f"{server}/results",
            "NIGHTJAR_DEAD_LETTERS": f"file:{folder}/letters/",
        }
        with running(bundle, settings, START_SECONDS, WORKER) as service:
            yield service


DIFFERENT: Final = 1000
EARLY, LATE = 0.05, 0.6  # fractions of the backlog at which memory is measured
SECONDS: Final = 120.0  # maximum time before each measurement


def measure_backlog(bundle: Path, waiting: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``stream.backlog.*``; the worker is stopped before it has processed the whole backlog."""
    rng = np.random.default_rng(4)
    packets = [packet(number, 0, 0, rng) for number in range(DIFFERENT)]
    with redis_server() as client:
        for start in range(0, waiting, DIFFERENT):
            feed(client, list(islice(cycle(packets), min(DIFFERENT, waiting - start))))
        with worker(bundle, client, usable_cores()) as process:
            early, _ = _memory_at(client, process, int(EARLY * waiting))
            late, answered = _memory_at(client, process, int(LATE * waiting))
            peak = process.memory("VmHWM")
    say(f"{waiting} alerts wait: {early / 2**20:.0f} MB early, {late / 2**20:.0f} MB after {answered} answers")
    return {
        "stream.backlog.alerts": float(waiting),
        "stream.backlog.answered": float(answered),
        "stream.backlog.early_mb": early / 2**20,
        "stream.backlog.late_mb": late / 2**20,
        "stream.backlog.peak_mb": peak / 2**20,
        "stream.backlog.late_vs_early": late / early,
    }


def _memory_at(client: Any, process: ServiceProcess, count: int) -> tuple[int, int]:
    """Return resident bytes after a number of results or a timeout, and the number of results."""
    give_up = time.monotonic() + SECONDS
    while (answered := int(client.xlen("results"))) < count and time.monotonic() < give_up:
        time.sleep(STEP_SECONDS)
    return process.memory(), answered


ItemT = TypeVar("ItemT")


def measure_shares(folder: Path, packets: Sequence[bytes]) -> Numbers:
    """Return the keys ``stream.cpu_us.STAGE`` and ``stream.cpu_share.STAGE``, without batching."""
    bundle = load_bundle(folder)
    read_packet(packets[0])  # the first packet of a schema creates its plan
    read, decode = _timed(lambda: [outcome for data in packets for outcome in read_packet(data)])
    curves = [one.curve for one in read if isinstance(one, Packet) and one.curve is not None]
    program = Adapter(bundle.manifest)
    _, featurise = _timed(lambda: [program.prepare(curve) for curve in curves])
    bare = Bare.of(folder, [columns_of(curve) for curve in curves])
    runs = bare.run(callers=1).cpu_ms / 1000 * len(curves)
    outcomes, serializer = _outcomes(bare), ResultSerializer(bundle)
    identity = {"object_id": ""}
    _, encode = _timed(lambda: [encode_json(serializer.result(one, identity, embedding=True)) for one in outcomes])
    seconds = {"decode": decode, "featurise": featurise, "run": runs, "encode": encode}
    each: Numbers = {f"stream.cpu_us.{stage}": 1e6 * spent / len(curves) for stage, spent in seconds.items()}
    return each | {f"stream.cpu_share.{stage}": spent / sum(seconds.values()) for stage, spent in seconds.items()}


def _outcomes(bare: Bare) -> list[Outcome]:
    """Run the network on each light curve."""
    outcomes = []
    for inputs in bare.inputs:
        row = {name: output[0] for name, output in run(bare.session, inputs).items() if len(output) == 1}
        outcomes.append(Outcome("classified", prediction=Prediction(row, 1, 0.0, 0.0, 0.0), points_per_band=(0,) * 6))
    return outcomes


def _timed(work: Callable[[], list[ItemT]]) -> tuple[list[ItemT], float]:
    started = time.process_time()
    return work(), time.process_time() - started


VISITS: Final = (10_000, 40_000)
ARRIVAL_SECONDS: Final = 5.0
STEADY_PER_SECOND, STEADY_SECONDS = 270, 30
WORKERS: Final = (1, 2, 4)
SHARE_CURVES: Final = 1000


def measure(bundle: Path, scale: float, waiting: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``stream.*``.

    Parameters
    ----------
    scale : fraction of the alerts and of the time at a steady rate, for a trial.
    waiting : number of alerts in the backlog.
    """
    numbers: Numbers = {"stream.scale": scale, "stream.decode_vs_fastavro": decode_ratio()}
    numbers |= measure_shares(bundle, visit(int(SHARE_CURVES * max(scale, 0.1)), seed=3))
    if shutil.which("redis-server") is None or find_spec("redis") is None:
        say("redis-server or the `stream` extra is not installed: only the decoder was measured")
        return numbers
    numbers |= _backlog_rates(bundle, visit(int(VISITS[0] * scale)), say)
    for size in VISITS:
        name = f"stream.visit_{size // 1000}k_s"
        drained = _drain(bundle, visit(int(size * scale)), 1, ARRIVAL_SECONDS)
        numbers |= {name: drained.seconds, f"stream.visit_{size // 1000}k_peak_mb": drained.peak_mb}
        say(f"{name}: {drained.seconds:.1f}, {drained.peak_mb:.0f} MB at most")
    numbers |= _steady(bundle, max(1.0, STEADY_SECONDS * scale), say)
    return numbers | measure_backlog(bundle, int(waiting * scale), say)


def _backlog_rates(bundle: Path, packets: Sequence[bytes], say: Callable[[str], None]) -> Numbers:
    """Measure the throughput of a backlog with different numbers of workers, and that of bare onnxruntime.

    ``stream.vs_bare`` is relative to the best schedule of bare onnxruntime, because workers batch, too.
    """
    best, alone = _bare(bundle, packets)
    rates = {count: len(packets) / _drain(bundle, packets, count).seconds for count in WORKERS}
    for count, rate in rates.items():
        say(f"{count} workers: {rate:.0f} alerts/s, bare onnxruntime {best:.0f}, one by one {alone:.0f}")
    numbers: Numbers = {f"stream.drain_per_s.workers_{count}": rate for count, rate in rates.items()}
    numbers |= {"stream.bare_per_s": best, "stream.vs_bare": max(rates.values()) / best}
    return numbers | {
        "stream.bare_one_by_one_per_s": alone,
        "stream.vs_bare_one_by_one": max(rates.values()) / alone,
    }


def decode_ratio() -> float:
    """Return the CPU time of Nightjar's decoder divided by that of fastavro for a packet of 60 + 300 points."""
    data = packet(1, *LONGEST_HISTORY, np.random.default_rng(0))[CONFLUENT_HEADER_BYTES:]
    decoder = plans.for_name(SCHEMA).decoder
    full = _fastest(lambda: fastavro.schemaless_reader(io.BytesIO(data), decoder.schema.parsed, None))
    return _fastest(lambda: decoder.read(data)) / full


def _fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(40):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def _bare(bundle: Path, packets: Sequence[bytes]) -> tuple[float, float]:
    """Return the light curves per second of bare onnxruntime on all cores: with the best schedule, and one by one."""
    read = [outcome for data in packets for outcome in read_packet(data)]
    curves = [columns_of(one.curve) for one in read if isinstance(one, Packet) and one.curve is not None]
    best = Best.of(bundle, curves, usable_cores()).run(usable_cores()).per_second
    return best, Bare.of(bundle, curves).run(usable_cores()).per_second


class Drained(NamedTuple):
    """Seconds until the last result, and peak memory of a worker."""

    seconds: float
    peak_mb: float


def _drain(bundle: Path, packets: Sequence[bytes], workers: int, arrival: float = 0.0) -> Drained:
    """Measure the time from the first alert to the last result; without `arrival` all alerts arrive at once."""
    with redis_server() as client, ExitStack() as stack:
        runs = usable_cores() // workers or 1
        started = [stack.enter_context(worker(bundle, client, runs)) for _ in range(workers)]
        feed(client, packets, arrival)
        wait(client, len(packets))
        first, last = client.xrange("alerts", count=1)[0][0], client.xrevrange("results", count=1)[0][0]
        peak = max(process.memory("VmHWM") for process in started) / 2**20
        return Drained((milliseconds(last) - milliseconds(first)) / 1000, peak)


def _steady(bundle: Path, seconds: float, say: Callable[[str], None]) -> Numbers:
    """Measure the age of results at a steady rate, from the arrival of an alert to its result."""
    packets = visit(int(STEADY_PER_SECOND * seconds), seed=2)
    with redis_server() as client, worker(bundle, client, usable_cores()) as process:
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
