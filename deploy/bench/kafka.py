"""Benchmark of the worker with a real Kafka: visits, cost of exactly once, rebalances and killed workers.

    python -m deploy.bench --parts '["kafka"]' --output build/kafka.json
    python -m deploy.bench --parts '["kafka"]' --kafka-parts '["kills"]' --stream-scale 0.1

Uses a local broker (:mod:`deploy.bench.brokers`) and real worker processes. Results are counted in the topics. Each
figure is stored as soon as it is measured, so that an interrupted run keeps its results.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

import numpy as np

from deploy.bench.brokers import Brokers, home, running_brokers
from deploy.bench.kafka_trial import PARTITIONS, Trial, answered, assigned, until
from deploy.bench.report import Numbers, interval
from deploy.bench.workload import visit
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.service.local import ServiceProcess

Part = Literal["visits", "rebalance", "kills", "kills_loaded", "price", "steady", "drain"]
VISITS: Final = (10_000, 40_000)
ARRIVAL_SECONDS: Final = 5.0
WAITING: Final = 20_000
LEAST_WAITING: Final = 10_000  # enough to keep the first worker busy until the second has joined
STAY_SECONDS: Final = 6.0
REBALANCES: Final = 3  # number of times that a second worker joins and leaves
KILLS: Final = 20
RATE: Final = 270
KILLED_SECONDS: Final = 2.5
"""Seconds at that rate per kill, which happens in the last of them."""
KILLED_SESSION_MS: Final = 3000
LOADED: Final = 50_000  # pending alerts when workers are killed at full load
WORK_ALERTS: Final = 500  # minimum number of results of a worker before it is killed
SUCCESSOR_ALERTS: Final = 100  # minimum number of results of its successor before it stops
LEAST_LEFT: Final = 2_000  # minimum number of pending alerts for a kill at full load
ROUND_ALERTS: Final = 8_000
PRICE_ROUNDS: Final = 4
STEADY_SECONDS: Final = 20.0
WORKERS: Final = (1, 2, 4)
WARM: Final = 100

Say = Callable[[str], None]
Keep = Callable[[Numbers], None]


def measure(bundle: Path, scale: float, say: Say, keep: Keep, parts: Sequence[Part]) -> Numbers:
    """Return the keys ``kafka.*``.

    Parameters
    ----------
    scale : fraction of alerts, rounds and kills, for a trial.
    keep : called with each figure when it is measured, and again when it is updated.
    parts : parts to measure, in this order; all if empty.
    """
    if home() is None:
        say("no unpacked Kafka (NIGHTJAR_KAFKA_HOME) or no Java: nothing was measured between topics")
        return {}
    numbers: Numbers = {}

    def note(figures: Numbers) -> None:
        numbers.update(figures)
        keep(figures)

    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder, running_brokers(Path(folder)) as cluster:
        bench = KafkaBench(cluster, bundle, scale, say, note)
        note({"kafka.scale": scale})
        for name in parts or PARTS:
            say(f"- {name}")
            PARTS[name](bench)
    return numbers


@dataclass(frozen=True, slots=True)
class KafkaBench:
    """Cluster, bundle and scale of the measurement, and the callbacks."""

    cluster: Brokers
    bundle: Path
    scale: float
    say: Say
    note: Keep

    def trial(self) -> Trial:
        """Create new topics."""
        return Trial(self.cluster, self.bundle)

    def times(self, count: int) -> range:
        """Return the range of the scaled number of rounds or kills, at least two."""
        return range(max(2, round(count * self.scale)))

    def alerts(self, count: int) -> int:
        """Scale a number of alerts."""
        return int(count * self.scale)


def visits(bench: KafkaBench) -> None:
    """Measure the seconds from the first alert to the last result of visits that arrive within a few seconds."""
    for size in VISITS:
        took = _visit(bench, bench.alerts(size), ARRIVAL_SECONDS)
        bench.note({f"kafka.visit_{size // 1000}k_s": took})


def drain(bench: KafkaBench) -> None:
    """Measure the alerts per second of a backlog, by number of workers."""
    count = bench.alerts(VISITS[0])
    for workers in WORKERS:
        rate = count / _visit(bench, count, 0, workers, WARM)
        bench.note({f"kafka.drain_per_s.workers_{workers}": rate})


def _visit(bench: KafkaBench, count: int, seconds: float, workers: int = 1, warm: int = 0) -> float:
    """Return seconds from the first alert to the last result, after a warm-up."""
    trial, cores = bench.trial(), usable_cores()
    with ExitStack() as stack:
        started = [stack.enter_context(trial.worker(runs=cores // workers or 1)) for _ in range(workers)]
        until(lambda: sum(map(assigned, started)) == PARTITIONS and all(map(assigned, started)))
        answers = stack.enter_context(trial.answers())
        trial.feed(visit(warm, seed=5, first=count), 0)
        answers.wait(warm)
        stamps = trial.feed(packets(0, count), seconds)
        answers.wait(count + warm)
        took = (answers.last_ms - min(stamps.values())) / 1000
    bench.say(f"{count} alerts, {workers} workers: {took:.1f} s")
    return took


class WorkerArm:
    """One of two workers that are compared, warmed up and with its own topics."""

    def __init__(self, bench: KafkaBench, stack: ExitStack, once: bool) -> None:
        self._trial = bench.trial()
        worker = stack.enter_context(self._trial.worker(once=once))
        until(lambda: assigned(worker) == PARTITIONS)
        self._answers, self._fed = stack.enter_context(self._trial.answers()), 0
        self.rate(WARM)

    def rate(self, count: int) -> float:
        """Return the alerts per second of a burst, which is the same each time."""
        stamps = self._trial.feed(packets(0, count), 0)
        self._fed += count
        self._answers.wait_total(self._fed)
        return 1000 * count / (self._answers.last_ms - min(stamps.values()))


def price(bench: KafkaBench) -> None:
    """Measure the fraction of throughput that transactions cost: medians of alternating rounds of both workers."""
    least, exactly = list[float](), list[float]()
    with ExitStack() as stack:
        arms = {once: WorkerArm(bench, stack, once) for once in (False, True)}
        for number in bench.times(PRICE_ROUNDS):
            # The order alternates from round to round.
            rates = {
                once: arms[once].rate(bench.alerts(ROUND_ALERTS)) for once in sorted(arms, reverse=number % 2 == 1)
            }
            bench.say(f"round {number + 1}: {rates[False]:.0f} and, exactly once, {rates[True]:.0f} alerts/s")
            least.append(rates[False])
            exactly.append(rates[True])
            plain, whole = statistics.median(least), statistics.median(exactly)
            low, high = interval([1 - b / a for a, b in zip(least, exactly, strict=True)])
            name = "kafka.exactly_once_price"
            bench.note({name: 1 - whole / plain, f"{name}.low": low, f"{name}.high": high})
            bench.note({"kafka.at_least_once_per_s": plain, "kafka.exactly_once_per_s": whole})
            bench.note({"kafka.price_rounds": float(len(least))})


def steady(bench: KafkaBench) -> None:
    """Measure the latency at a steady rate, from the broker's timestamp of an alert to that of its result."""
    seconds = max(3.0, STEADY_SECONDS * bench.scale)
    for name, once in (("at_least_once", False), ("exactly_once", True)):
        p50, p99 = np.percentile(_ages(bench, seconds, once), [50, 99]).tolist()
        bench.say(f"{RATE} alerts/s for {seconds:.0f} s, {name}: age {p50:.0f} ms, p99 {p99:.0f} ms")
        bench.note({f"kafka.age_p50_ms.{name}": p50, f"kafka.age_p99_ms.{name}": p99})


def _ages(bench: KafkaBench, seconds: float, once: bool) -> list[int]:
    trial, count = bench.trial(), int(RATE * seconds)
    with trial.worker(once) as worker, trial.answers() as answers:
        until(lambda: assigned(worker) == PARTITIONS)
        trial.feed(packets(0, RATE), 1.0)  # warm-up: the first results take longer
        answers.wait(RATE)
        stamps = trial.feed(packets(RATE, count), seconds)
        answers.wait(RATE + count)
        return [answers.stamps[number + RATE] - sent_at for number, sent_at in stamps.items()]


def rebalance(bench: KafkaBench) -> None:
    """Measure the pause and the duplicates when a second worker joins a loaded one and leaves again."""
    stills, repeats = list[float](), list[int]()
    for _ in bench.times(REBALANCES):
        still, repeated = _rebalance(bench)
        stills.append(still)
        repeats.append(repeated)
        bench.say(f"rebalance: pause {still:.1f} s, duplicates {repeated}")
        bench.note({"kafka.standstill_s": statistics.median(stills), "kafka.standstill_s.worst": max(stills)})
        bench.note({"kafka.repeats_per_rebalance": float(max(repeats)), "kafka.rebalances": float(len(stills))})


def _rebalance(bench: KafkaBench) -> tuple[float, int]:
    """Return the longest time without results of the first worker, and the number of duplicates."""
    trial, count = bench.trial(), max(bench.alerts(WAITING), LEAST_WAITING)
    with trial.worker() as first, trial.answers() as answers:
        trial.feed(packets(0, count), 0)
        until(lambda: answered(first) > count // 50)
        with trial.worker() as second:
            still = _standstill(first, STAY_SECONDS, lambda: answers.count() < count)
            second.stop(60)
        still = max(still, _standstill(first, STAY_SECONDS / 2, lambda: answers.count() < count))
        answers.wait(count)
        first.stop(60)
        return still, answers.repeats()


def _standstill(service: ServiceProcess, seconds: float, is_work_left: Callable[[], bool]) -> float:
    """Return the longest time without results of a worker while alerts were pending."""
    longest, last, since = 0.0, answered(service), time.monotonic()
    end = since + seconds
    while (now := time.monotonic()) < end and is_work_left():
        if (current := answered(service)) != last:
            last, since = current, now
        longest = max(longest, now - since)
    return longest


def kills(bench: KafkaBench) -> None:
    """Measure the duplicates per worker that is killed at a steady rate, without a backlog."""
    trial, each, fed = bench.trial(), int(RATE * KILLED_SECONDS), 0
    with trial.answers() as answers, ThreadPoolExecutor(1) as feeder:
        for number in itertools.chain(bench.times(KILLS), [None]):
            with trial.worker(session_ms=KILLED_SESSION_MS) as worker:
                until(lambda: assigned(worker) == PARTITIONS)
                answers.wait(fed)
                _note_kills(bench, "", answers.repeats(), fed // each)
                if number is None:  # the last worker finishes the remaining alerts
                    worker.stop(60)
                    break
                feeding = feeder.submit(trial.feed, packets(fed, each), KILLED_SECONDS)
                time.sleep(KILLED_SECONDS - 1 + number % 10 / 10)
                worker.process.kill()
                feeding.result()
                fed += each


def kills_loaded(bench: KafkaBench) -> None:
    """Measure the duplicates per worker that is killed while it processes a backlog."""
    trial, waiting, killed = bench.trial(), max(bench.alerts(LOADED), 2 * LEAST_LEFT), 0
    with trial.answers() as answers:
        trial.feed(packets(0, waiting), 0)

        def at_work(service: ServiceProcess, least: int = WORK_ALERTS) -> bool:
            return answered(service) > least or answers.count() >= waiting

        for number in bench.times(KILLS):
            if waiting - answers.count() < LEAST_LEFT:
                bench.say(f"{waiting - answers.count()} alerts are left: too few for another kill at full load")
                break
            with trial.worker(session_ms=KILLED_SESSION_MS) as worker:
                until(partial(at_work, worker))
                time.sleep(number % 5 * 0.1)  # anywhere between two commits
            killed += 1
            with trial.worker(session_ms=KILLED_SESSION_MS) as successor:
                until(partial(at_work, successor, SUCCESSOR_ALERTS))
                successor.stop(
                    60
                )  # a clean stop: after two crashes in a row the worker would process suspected alerts in isolation
            _note_kills(bench, "_full_load", answers.repeats(), killed)
        with trial.worker() as worker:
            answers.wait(waiting)
            worker.stop(60)
        _note_kills(bench, "_full_load", answers.repeats(), killed)


def _note_kills(bench: KafkaBench, load: str, repeated: int, killed: int) -> None:
    if killed:
        bench.say(f"{killed} kills: {repeated} duplicates")
        bench.note({f"kafka.repeats_per_kill{load}": repeated / killed, f"kafka.kills{load}": float(killed)})


PARTS: Final[Mapping[Part, Callable[[KafkaBench], None]]] = {
    "visits": visits,
    "rebalance": rebalance,
    "kills": kills,
    "kills_loaded": kills_loaded,
    "price": price,
    "steady": steady,
    "drain": drain,
}


def packets(first: int, count: int) -> list[bytes]:
    """Return packets of a visit by number; cached, because creating them takes as long as classifying."""
    thousands = range(first // 1000, (first + count - 1) // 1000 + 1) if count else range(0)
    made_packets = list(itertools.chain.from_iterable(map(_thousand, thousands)))
    return made_packets[first % 1000 : first % 1000 + count]


@cache
def _thousand(number: int) -> list[bytes]:
    return visit(1000, seed=number, first=1000 * number)
