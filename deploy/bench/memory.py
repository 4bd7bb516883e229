"""Start, memory and real packets: cold starts, resident memory under load, outcomes of a folder of alerts.

Cold start: from starting the process to the first 200 of ``/readyz``, which means loaded, verified and warmed up.

The very first start also finds out what runs cost on this machine; those after it recall that.

Resident memory of the service over 10,000 requests of every kind: it must stop growing.

The first requests fill caches, the allocator's pools and onnxruntime's arena; growth is counted from request 2,000 on.

What becomes of every alert packet in a folder: counts by survey and outcome, and no server error.

Packets are what ``nightjar classify`` finds in a folder, each posted alone as it stands.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from deploy.bench.load import request, run_in_process, write_plan
from deploy.bench.process import running, start
from deploy.bench.report import Numbers, spread
from deploy.bench.workload import OCTETS, requests
from service.client import packets_in


def measure_starts(bundle: Path, repeats: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``coldstart.*``. File caches are warm: the first start after an install or a boot takes longer."""
    seconds, memory = [], []
    with tempfile.TemporaryDirectory() as folder:
        first, _ = _start(Path(folder), bundle)
        say(f"first start: {first:.2f} s to ready")
        for number in range(repeats):
            taken, held = _start(Path(folder), bundle)
            seconds.append(taken)
            memory.append(held / 1e6)
            say(f"start {number + 1}/{repeats}: {taken:.2f} s to ready")
    return {
        "coldstart.first_s": first,
        "coldstart.ready_s": spread(seconds),
        "coldstart.rss_mb": spread(memory),
    }


def _start(folder: Path, bundle: Path) -> tuple[float, int]:
    """Seconds to ready, and bytes resident then; ``folder`` holds what starts remember."""
    began = time.perf_counter()
    service = start(folder, bundle, {"NIGHTJAR_MEASUREMENTS_FOLDER": str(folder / "measurements")})
    service.wait_ready()
    ready = time.perf_counter() - began
    held = service.memory()
    service.stop()
    return ready, held


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


PACKET_CLIENTS = 4


def measure_packets(bundle: Path, folder: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``packets.SURVEY.OUTCOME[.REASON]``, ``packets.total`` and ``packets.server_errors``."""
    found = list(packets_in([folder]))
    with tempfile.TemporaryDirectory() as scratch, running(bundle) as service:
        plan, replies = Path(scratch, "plan"), Path(scratch, "replies")
        write_plan(plan, [request("/v1/alerts", data, OCTETS) for _, data in found])
        run_in_process(service.port, plan, PACKET_CLIENTS, replies)
        answers = json.loads(replies.read_text())
    counts: Counter[str] = Counter()
    for (name, _), (status, body) in zip(found, answers, strict=True):
        counts.update(_keys(status, body))
        if status != 200:
            say(f"{name}: {status} {body[:300]}")
    errors = sum(status == 0 or status >= 500 for status, _ in answers)
    return {"packets.total": len(found), "packets.server_errors": errors, **counts}


def _keys(status: int, body: str) -> list[str]:
    if status != 200:
        return [f"packets.status_{status}"]
    return [
        ".".join(filter(None, ("packets", result.get("survey") or "unknown", result["status"], result.get("reason"))))
        for result in json.loads(body)["results"]
    ]
