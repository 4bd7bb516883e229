"""Hostile messages among valid alerts in one topic of a real Kafka, and the latency of the valid ones.

    python -m deploy.bench --parts '["hostile_stream"]'
    python -m deploy.bench.hostile_stream SECONDS      duration of each attack; prints the table

One worker consumes everything. For each kind of message: bytes sent, the longest time from the broker's timestamp of a
valid alert to that of its result, its 99th percentile with and without the attack, valid alerts without a result, and
memory gained at the peak and after the end. All attacks are bounded in bytes and time and go to loopback only.
"""

import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from deploy.bench.brokers import brokers, home
from deploy.bench.hostile import container, deflate_bomb, schema_bomb, survey_fields, wide_json
from deploy.bench.kafka_trial import PARTITIONS, AnswerTopic, Trial, assigned, metric, until
from deploy.bench.report import Numbers
from deploy.bench.service_process import ServiceProcess
from deploy.bench.workload import packet, visit
from nightjar_alerts.models.common import markdown_table

GOOD_PER_SECOND: Final = 50
QUIET_SECONDS: Final = 4.0
REST_SECONDS: Final = 2.5  # after each attack, before memory is read again
SAMPLE_SECONDS: Final = 0.05
MB: Final = 1e6
CLOCKLESS: Final[Mapping[str, str]] = {
    "message.timestamp.type": "CreateTime",  # the worker gets the timestamps of the producer
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
}
STRANGE_IDS: Final = 10**6  # numbers of hostile alerts that can be read: beyond all good ones


class Harm(NamedTuple):
    """One message; ``timestamp_ms`` 0 is the producer's clock."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


class Flood(NamedTuple):
    """Messages of one kind at a rate; ``make`` gets the number of each."""

    name: str
    per_second: float
    make: Callable[[int], Harm]


class FloodRow(NamedTuple):
    """Harm done by one kind of message, in milliseconds and megabytes (10**6 bytes); ages are those of good alerts."""

    flood: str
    sent_mb: float
    oldest_ms: float
    p99_ms: float
    quiet_p99_ms: float
    good: int
    memory_mb: float
    memory_after_mb: float


def floods() -> list[Flood]:
    """Every kind: what breaks the reader, what cannot be classified or written, and what lies about itself."""
    bomb, bloated, json_bomb = deflate_bomb(), schema_bomb(), wide_json()
    noise = np.random.default_rng(0).bytes(4_000_000)
    good = packet(STRANGE_IDS, 0, 12, np.random.default_rng(1))
    dead = tuple((f"nightjar-dead-{name}", b"9" * 400) for name in ("topic", "place", "timestamp", "key", "length"))
    headers = (*dead, *((("x" * 999, b"y"),) * 200))
    return [
        Flood("truncated", 200, lambda n: Harm(good[: 5 + n % (len(good) - 5)])),
        Flood("flipped bits", 200, lambda n: Harm(flipped(good, n))),
        Flood("empty", 400, lambda n: Harm(b"")),
        Flood("giant", 5, lambda n: Harm(noise[n:])),
        Flood("deep JSON", 20, lambda n: Harm(b'{"diaSource":' + b"[" * (100_000 + n))),
        Flood("wide JSON", 4, lambda n: Harm(json_bomb)),
        Flood("unknown schemas", 200, lambda n: Harm(b"\0" + (10**6 + n).to_bytes(4, "big") + good[5:])),
        Flood("schemas of their own", 50, lambda n: Harm(own_schema(n))),
        Flood("schema bomb", 4, lambda n: Harm(bloated)),
        Flood("deflate bomb", 8, lambda n: Harm(bomb)),
        Flood("wrong compression", 100, lambda n: Harm(wrongly_packed(n))),
        Flood("numbers beyond sense", 100, lambda n: Harm(senseless(n))),
        Flood("clock nonsense", 100, lambda n: Harm(good, timestamp_ms=(1, 2**62, 253402300800000)[n % 3])),
        Flood("keys and headers", 50, lambda n: Harm(good, bytes([n % 256]) * 20_000, headers)),
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
    packed = container({"type": "record", "name": "top", "fields": survey_fields()}, os.urandom(2000))
    named = b"\x04\x14avro.codec" + bytes([2 * len(codec)]) + codec + b"\x16avro.schema"
    return packed.replace(b"\x02\x16avro.schema", named)


def senseless(number: int) -> bytes:
    """Make a packet that can be read and whose numbers mean nothing: not finite, beyond all bounds, before all time."""
    wrong = struct.pack("<d", (float("nan"), float("inf"), 1e308, -1e308)[number % 4])
    data, rng = (
        bytearray(packet(STRANGE_IDS + number, 0, 12, np.random.default_rng(number))),
        np.random.default_rng(number),
    )
    for place in rng.integers(40, len(data) - 8, 12).tolist():
        data[place : place + 8] = wrong
    return bytes(data)


def measure(bundle: Path, seconds: float, say: Callable[[str], None], chosen: Sequence[Flood] = ()) -> list[FloodRow]:
    """Measure each kind in turn, among valid alerts, on one worker.

    Parameters
    ----------
    seconds : that each kind lasts.
    chosen : kinds; all of :func:`floods` when empty.

    Raises
    ------
    TimeoutError
        When a good alert is never answered, or a hostile message never settled.
    """
    if home() is None:
        say("no unpacked Kafka (NIGHTJAR_KAFKA_HOME) or no Java: nothing was sent to a worker")
        return []
    rows = []
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder, brokers(Path(folder)) as cluster:
        trial = Trial(cluster, bundle, CLOCKLESS)
        with trial.worker() as worker, trial.answers() as answers:
            until(lambda: assigned(worker) == PARTITIONS)
            attacked = _Attacked(trial, worker, answers)
            for flood in chosen or floods():
                rows.append(row := attacked.run(flood, seconds))
                say(
                    f"{row.flood}: {row.sent_mb:.1f} MB, oldest {row.oldest_ms:.0f} ms, p99 {row.p99_ms:.0f} "
                    f"(quiet {row.quiet_p99_ms:.0f}), memory +{row.memory_mb:.0f} MB, after {row.memory_after_mb:+.0f}"
                )
            if (status := worker.stop(60)) != 0:
                raise RuntimeError(f"the worker ended with {status}\n{worker.log.read_text()[-3000:]}")
    return rows


def numbers(rows: Sequence[FloodRow]) -> Numbers:
    """Keys ``hostile.worker.*``: the worst of all kinds."""
    if not rows:
        return {}
    return {
        "hostile.worker.worst_age_ms": max(row.oldest_ms for row in rows),
        "hostile.worker.worst_p99_ratio": max(row.p99_ms / row.quiet_p99_ms for row in rows),
        "hostile.worker.worst_memory_mb": max(row.memory_mb for row in rows),
        "hostile.worker.good_answered": float(sum(row.good for row in rows)),
    }


def table(rows: Sequence[FloodRow]) -> str:
    """Format the rows as Markdown."""
    head = ("messages", "sent MB", "oldest ms", "p99 ms (quiet)", "memory MB", "after MB")
    cells = [
        (
            row.flood,
            f"{row.sent_mb:.1f}",
            f"{row.oldest_ms:.0f}",
            f"{row.p99_ms:.0f} ({row.quiet_p99_ms:.0f})",
            f"{row.memory_mb:+.0f}",
            f"{row.memory_after_mb:+.0f}",
        )
        for row in rows
    ]
    return markdown_table(head, cells) + "\n"


class _Attacked:
    """Worker that gets numbered valid alerts and floods."""

    def __init__(self, trial: Trial, worker: ServiceProcess, answers: AnswerTopic) -> None:
        self._trial, self._worker, self._answers = trial, worker, answers
        self._good = self._harm = 0

    def run(self, flood: Flood, seconds: float) -> FloodRow:
        quiet = self._ages(QUIET_SECONDS)
        before = self._worker.memory()
        sent: list[int] = []
        with _sampled(self._worker) as peaks:
            flooding = threading.Thread(target=lambda: sent.extend(self._send(flood, seconds)))
            flooding.start()
            ages = self._ages(seconds + 1)
            flooding.join()
            self._harm += len(sent)
            until(lambda: metric(self._worker, "nightjar_stream_in_total") >= self._good + self._harm)
            until(lambda: metric(self._worker, "nightjar_stream_inflight_messages") == 0)
        time.sleep(REST_SECONDS)
        return FloodRow(
            flood=flood.name,
            sent_mb=sum(sent) / MB,
            oldest_ms=max(ages),
            p99_ms=float(np.percentile(ages, 99)),
            quiet_p99_ms=float(np.percentile(quiet, 99)),
            good=len(ages),
            memory_mb=(max(peaks) - before) / MB,
            memory_after_mb=(self._worker.memory() - before) / MB,
        )

    def _ages(self, seconds: float) -> list[int]:
        """Send good alerts, wait for their answers; milliseconds between the two of each."""
        count, first = int(GOOD_PER_SECOND * seconds), self._good
        stamps = self._trial.feed(visit(count, seed=first + 1, first=first), seconds)
        self._good += count
        self._answers.wait_for(range(first, first + count))
        return [self._answers.stamps[first + number] - sent_at for number, sent_at in stamps.items()]

    def _send(self, flood: Flood, seconds: float) -> list[int]:
        """Send a flood; sizes of the messages that the broker took."""
        from confluent_kafka import Producer

        config: dict[str, Any] = {"bootstrap.servers": self._trial.hosts, "message.max.bytes": 4_100_000}
        producer: Any = Producer({**config, "linger.ms": 5, "log_level": 0})
        started, sizes = time.monotonic(), list[int]()

        def note(error: object, message: Any) -> None:
            if error is None:
                sizes.append(len(message.value() or b"") + len(message.key() or b""))

        for number in range(max(1, int(flood.per_second * seconds))):
            while number / flood.per_second > time.monotonic() - started:
                producer.poll(0.005)
            harm = flood.make(number)
            more = {"timestamp": harm.timestamp_ms} if harm.timestamp_ms else {}
            producer.produce(
                self._trial.source, harm.value, harm.key, headers=list(harm.headers), on_delivery=note, **more
            )
        producer.flush(60)
        return sizes


@contextmanager
def _sampled(worker: ServiceProcess) -> Iterator[list[int]]:
    """Resident memory of a worker, read again and again while a block runs."""
    bytes_used, over = [worker.memory()], threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_SECONDS):
            bytes_used.append(worker.memory())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield bytes_used
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Measure every kind and print it."""
    from nightjar_alerts.models.bundle import DEFAULT_BUNDLE

    print(numbers(measure(DEFAULT_BUNDLE, float(sys.argv[1]), print)))


if __name__ == "__main__":
    main()
