"""Trial of silent brokers on a real Kafka: three brokers, each of which in turn answers nothing for a while.

    python -m support.kafka_silence --trials 3                exactly once, 6,000 alerts, ten seconds each
    python -m support.kafka_silence --trials 3 --busy         both cores busy
    python -m support.kafka_silence --at-least-once --session-ms 45000

A broker is made silent with SIGSTOP: its connections stay open, and nothing is answered. Do the workers live, are all
alerts answered within a minute after the last fault, none twice, and is none called suspect?
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from support.kafka_brokers import Brokers, brokers
from support.kafka_kills import BRIGHT, PARTITIONS, Feed, Results, Slot, busy_cores
from support.kafka_trial import Trial, trial
from support.stream import eventually

ANSWER_SECONDS = 300.0
WITHIN_SECONDS = 60.0
"""How soon after the last fault everything is to be answered."""


@dataclass(frozen=True, slots=True)
class SilenceReport:
    """Result of one trial.

    Attributes
    ----------
    answered, twice : alerts with a result, and with more than one.
    answered_after_s : time from the end of the last fault, or from the last alert if that was written later, until all
        were answered; None if they never were.
    suspects : messages that were isolated as suspected poison messages.
    lost_partitions : times that a worker lost its partitions.
    statuses : exit statuses of workers that ended by themselves and were started again.
    load : load average of the machine, over a minute, at the end of the faults.
    """

    exactly_once: bool
    busy: bool
    workers: int
    session_ms: int
    silent_s: float
    alerts: int
    answered: int
    twice: int
    answered_after_s: float | None
    suspects: int
    lost_partitions: int
    statuses: list[int]
    longest_wait_s: float
    load: float

    @property
    def passed(self) -> bool:
        """Whether the trial ended as it should."""
        after = self.answered_after_s
        in_time = after is not None and after <= WITHIN_SECONDS
        return in_time and not self.statuses and not self.suspects and not (self.exactly_once and self.twice)


def run_silence(
    one: Trial,
    cluster: Brokers,
    alerts: int = 6000,
    rate: float = 120.0,
    silent: float = 10.0,
    pause: float = 5.0,
    busy: bool = False,
    session_ms: int = 6000,
    workers: int = 1,
) -> SilenceReport:
    """Silence the brokers in turn while alerts flow, and count.

    Parameters
    ----------
    rate : alerts written in a second.
    silent, pause : seconds for which a broker is silent, and between two of them.
    """
    with ExitStack() as stack:
        if busy:
            stack.enter_context(busy_cores(os.cpu_count() or 2))
        slots = [Slot(one, number, real=False, static=False, session_ms=session_ms) for number in range(workers)]
        for slot in slots:
            stack.callback(slot.end)
            slot.wait_ready()
        results, feed = Results(one), Feed(one, rate)
        feed.allow(alerts)
        for node in cluster.nodes:
            _supervised_sleep(slots, pause)
            cluster.hang(node)
            try:
                _supervised_sleep(slots, silent)
            finally:
                cluster.wake(node)
        mended, load = time.monotonic(), os.getloadavg()[0]
        after = None
        while after is None and time.monotonic() < mended + ANSWER_SECONDS:
            _supervised_sleep(slots, 0.2)
            if len(results.counts) == alerts:
                after = round(max(results.read_at.values()) - max(mended, *feed.written_at.values()), 1)
        feed.close()
        for slot in slots:
            slot.wait_ready()
            if after is not None:
                with suppress(AssertionError):
                    eventually(lambda: slot.process.ask("/readyz")[0] == 200)  # noqa: B023 - asked within this turn
                assert slot.process.ask("/readyz") == slot.process.ask("/healthz") == (200, "ok\n")
        statuses = [status for slot in slots for status in (*slot.statuses, slot.stop()) if status]
        results.close()
    events = [event for slot in slots for event in slot.events()]
    waits = [results.read_at[number] - at for number, at in feed.written_at.items() if number in results.read_at]
    return SilenceReport(
        exactly_once=one.exactly_once,
        busy=busy,
        workers=workers,
        session_ms=session_ms,
        silent_s=silent,
        alerts=alerts,
        answered=len(results.counts),
        twice=sum(count > 1 for count in results.counts.values()),
        answered_after_s=after,
        suspects=sum(event["event"].startswith("processing suspected poison message") for event in events),
        lost_partitions=sum(event["event"] == "partitions lost" for event in events),
        statuses=statuses,
        longest_wait_s=round(max(waits, default=0.0), 1),
        load=round(load, 1),
    )


def _supervised_sleep(slots: Sequence[Slot], seconds: float) -> None:
    """Sleep, and start each worker again that ends."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        for slot in slots:
            slot.supervise()
        time.sleep(min(0.2, remaining))


def main() -> int:
    """Run trials and print one JSON line for each; the status is 1 if one did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--alerts", type=int, default=6000)
    parser.add_argument("--rate", type=float, default=120.0, help="alerts written in a second")
    parser.add_argument("--silent", type=float, default=10.0, help="seconds for which each broker is silent")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two silent brokers")
    parser.add_argument("--session-ms", type=int, default=6000, help="session timeout of the worker")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="keep all cores busy")
    parser.add_argument("--at-least-once", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the logs of workers and brokers")
    arguments = parser.parse_args()
    passed = True
    for number in range(arguments.trials):
        with ExitStack() as stack:
            folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="silence-")))
            folder = folder / f"trial-{number}"
            folder.mkdir(parents=True)
            cluster = stack.enter_context(brokers(folder, 3))
            once = not arguments.at_least_once
            options = {"exactly_once": once, "partitions": PARTITIONS, "replicas": 3, "transaction_ms": None}
            one = stack.enter_context(trial(cluster.hosts(), folder, flux=BRIGHT, **options))
            report = run_silence(
                one, cluster, arguments.alerts, arguments.rate, arguments.silent, arguments.pause, arguments.busy,
                arguments.session_ms, arguments.workers,
            )  # fmt: skip
        sys.stdout.write(json.dumps(asdict(report) | {"passed": report.passed}) + "\n")
        sys.stdout.flush()
        passed = passed and report.passed
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
