"""Resident memory of the service over 10,000 requests of every kind: it must stop growing.

The first requests fill caches, the allocator's pools and onnxruntime's arena; growth is counted from request 2,000 on.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from deploy.bench.load import run_in_process, write_plan
from deploy.bench.mixed import requests
from deploy.bench.report import Numbers
from service.commands.process import running

CLIENTS = 16
TOTAL = 10_000
SEED = 7


def marks(total: int) -> list[int]:
    """After how many requests memory is read: every fifth of them."""
    return [total * fifth // 5 for fifth in range(1, 6)]


def measure(bundle: Path, packets: Sequence[bytes], total: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``memory.*``, in MB (10**6 bytes): resident after every fifth, the peak, and the growth since the first."""
    statuses: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, running(bundle, {"NIGHTJAR_CACHE_BYTES": "0"}) as service:
        plan = Path(folder, "plan")
        resident = {0: service.memory() / 1e6}
        planned = requests(total, packets, SEED)
        for before, done in pairwise([0, *marks(total)]):
            write_plan(plan, planned[before:done])
            statuses.update(run_in_process(service.port, plan, CLIENTS)["statuses"])
            resident[done] = service.memory() / 1e6
            say(f"{done} requests: {resident[done]:.0f} MB")
        peak = service.memory("VmHWM") / 1e6
    return {
        **{f"memory.rss_mb.at_{done}": size for done, size in resident.items()},
        "memory.rss_mb.peak": peak,
        "memory.growth_mb": resident[total] - resident[marks(total)[0]],
        **{f"memory.replies.{status}": count for status, count in statuses.items()},
        "memory.replies.server_errors": sum(n for status, n in statuses.items() if status.startswith("5")),
    }
