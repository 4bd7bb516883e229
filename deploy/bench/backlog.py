"""Memory of a worker behind a backlog: resident early, and late, while most of it still waits at the broker.

The alerts are small, detections of new objects alone, and a thousand different ones come again and again: what matters
is their number.
"""

import os
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bench.alerts import packet
from deploy.bench.broker import STEP_SECONDS, feed, redis_server, worker
from deploy.bench.report import Numbers
from service.commands.process import Service

DIFFERENT: Final = 1000
EARLY, LATE = 0.05, 0.6  # shares answered at which memory is read
SECONDS: Final = 120.0  # after which it is late in any case


def measure(bundle: Path, waiting: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``stream.backlog.*``; the worker is stopped with the rest of the backlog still there."""
    rng = np.random.default_rng(4)
    packets = [packet(number, 0, 0, rng) for number in range(DIFFERENT)]
    with redis_server() as client:
        for start in range(0, waiting, DIFFERENT):
            feed(client, list(islice(cycle(packets), min(DIFFERENT, waiting - start))))
        with worker(bundle, client, len(os.sched_getaffinity(0))) as process:
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


def _memory_at(client: Any, process: Service, count: int) -> tuple[int, int]:
    """Resident bytes when so many alerts are answered, or the time is over; and how many are then."""
    give_up = time.monotonic() + SECONDS
    while (answered := int(client.xlen("results"))) < count and time.monotonic() < give_up:
        time.sleep(STEP_SECONDS)
    return process.memory(), answered
