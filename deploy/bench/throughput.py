"""Throughput and latency of the service over HTTP, its startup time and its memory.

**Throughput** of four arms: one client with one light curve per request (``lone``), 32 such clients (``json_1``), and 8
clients with batches of 64 in JSON (``json_64``) and MessagePack (``msgpack_64``). Each is divided by that of bare
onnxruntime with the best schedule (:mod:`deploy.bench.bare`) for the same light curves in the same round. The load
comes from another process on the same cores. All probabilities are compared with those of the network alone.

**Startup** is the time from the start of the process to the first status 200 of ``/readyz``, when the model has been
loaded, verified and warmed up.

**Memory** is the resident memory over 10,000 requests of all kinds. The first requests fill caches and allocator pools,
so growth is measured from request 2,000.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from deploy.bench.bare import Bare, Best
from deploy.bench.http_load import HOST, HttpRequest, request, run_in_process, write_plan
from deploy.bench.report import Numbers, spread
from deploy.bench.workload import BATCH, MSGPACK, alert_mix, packed_request, requests
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.service.local import ServiceProcess, running, start

SEED: Final = 20260101
LONE_REQUESTS: Final = 200
TOLERANCE: Final = 1e-4
"""Maximum difference of a probability due to batching with other light curves."""
PATIENT: Final = {"MAX_QUEUED_SECONDS": "600", "DEFAULT_DEADLINE_MS": "300000", "CACHE_BYTES": "0"}


class WrongAnswer(RuntimeError):
    """A response differs from the result of the network alone, so that its speed is meaningless."""


class Arm(NamedTuple):
    """File of requests, number of clients that send them, and number of light curves in them."""

    plan: Path
    clients: int
    curves: int


@contextmanager
def patient(bundle: Path) -> Iterator[ServiceProcess]:
    """Run a service that rejects no burst and caches nothing."""
    with running(bundle, {f"NIGHTJAR_{name}": value for name, value in PATIENT.items()}) as service:
        yield service


def answered(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a plan. Raises WrongAnswer unless every status is 200."""
    if set(outcome["statuses"]) != {"200"}:
        raise WrongAnswer(f"not every request was answered: {outcome['statuses']}")
    return outcome


def measure(bundle: Path, curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``http.*`` and ``bare.*``; each arm sees ``curves`` light curves per round."""
    cores, drawn = usable_cores(), alert_mix(curves, SEED)
    best = Best.of(bundle, drawn, cores)
    singles = [request("/v1/classify", orjson.dumps(curve)) for curve in drawn]
    groups = [drawn[first : first + BATCH] for first in range(0, curves, BATCH)]
    batches = [request("/v1/classify", orjson.dumps({"light_curves": group})) for group in groups]
    packed = [packed_request(group) for group in groups]
    lone = singles[:LONE_REQUESTS]
    rates: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, patient(bundle) as service:
        arms = {
            "lone": _arm(Path(folder, "lone"), lone, 1, len(lone)),
            "json_1": _arm(Path(folder, "json_1"), singles, 32, curves),
            "json_64": _arm(Path(folder, "json_64"), batches, 8, curves),
            "msgpack_64": _arm(Path(folder, "msgpack_64"), packed, 8, curves),
        }
        bare = Bare.of(bundle, drawn)
        error = max(largest_difference(service, plan, bare) for plan in (singles, batches, packed))
        for number in range(rounds):
            ideal = best.run(cores).per_second
            for name, arm in arms.items():
                rates.setdefault(name, []).append(_round(service, arm) | {"bare": ideal})
            line = ", ".join(f"{name} {rates[name][-1]['per_s']:.0f}/s" for name in arms)
            say(f"round {number + 1}/{rounds}: bare {ideal:.0f}/s, {line}")
    numbers: Numbers = {
        "http.curves_per_round": curves,
        "http.rounds": rounds,
        "http.max_abs_difference_to_bare": error,
        "bare.best_budget": best.budget,
        "bare.best_per_s": spread([one["bare"] for one in rates["json_1"]]),
    }
    for name, rows in rates.items():
        for key in ("per_s", "p50_ms", "p99_ms", "cpu_ms_per_curve"):
            numbers[f"http.{name}.{key}"] = spread([row[key] for row in rows])
        numbers[f"http.{name}.vs_bare"] = spread([row["per_s"] / row["bare"] for row in rows])
    return numbers


def _arm(path: Path, plan: Sequence[HttpRequest], clients: int, curves: int) -> Arm:
    write_plan(path, plan)
    return Arm(path, clients, curves)


def _round(service: ServiceProcess, arm: Arm) -> dict[str, float]:
    before = service.cpu_seconds()
    outcome = answered(run_in_process(service.port, arm.plan, arm.clients))
    cpu = service.cpu_seconds() - before
    return {
        "per_s": arm.curves / outcome["seconds"],
        "p50_ms": outcome["p50_ms"],
        "p99_ms": outcome["p99_ms"],
        "cpu_ms_per_curve": 1e3 * cpu / arm.curves,
    }


def largest_difference(service: ServiceProcess, plan: Sequence[HttpRequest], bare: Bare) -> float:
    """Return the largest difference between probabilities of the service and of the network alone.

    This also warms the service up. Raises WrongAnswer above :data:`TOLERANCE`, or if a status is not 200.
    """
    connection = HTTPConnection(HOST, service.port, timeout=300)
    served: list[list[float]] = []
    for one in plan:
        head, _, body = one.data.partition(b"\r\n\r\n")
        kind = MSGPACK if MSGPACK.encode() in head else "application/json"
        connection.request("POST", "/v1/classify", body, {"Content-Type": kind, "Accept": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise WrongAnswer(f"{response.status} {text[:500]!r}")
        served += [list(result["probabilities"].values()) for result in orjson.loads(text)["results"]]
    connection.close()
    error = float(np.abs(np.asarray(served) - bare.probabilities()).max())
    if not error <= TOLERANCE:
        raise WrongAnswer(f"probabilities differ by {error:.1e} from those of the network alone")
    return error


def measure_starts(bundle: Path, repeats: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``coldstart.*``. File caches are warm; the first start after an install or boot takes longer."""
    seconds, memory = [], []
    with tempfile.TemporaryDirectory() as folder:
        first, _ = _start(Path(folder), bundle)
        say(f"first start: {first:.2f} s to ready")
        for number in range(repeats):
            ready, resident = _start(Path(folder), bundle)
            seconds.append(ready)
            memory.append(resident / 1e6)
            say(f"start {number + 1}/{repeats}: {ready:.2f} s to ready")
    return {
        "coldstart.first_s": first,
        "coldstart.ready_s": spread(seconds),
        "coldstart.rss_mb": spread(memory),
    }


def _start(folder: Path, bundle: Path) -> tuple[float, int]:
    """Return the seconds until the service is ready, and its resident bytes then."""
    began = time.perf_counter()
    service = start(folder, bundle)
    service.wait_ready()
    ready = time.perf_counter() - began
    resident = service.memory()
    service.stop()
    return ready, resident


MEMORY_CLIENTS = 16
TOTAL = 10_000
MEMORY_SEED = 7


def marks(total: int) -> list[int]:
    """Return the numbers of requests after which memory is measured: each fifth of the total."""
    return [total * fifth // 5 for fifth in range(1, 6)]


def measure_memory(bundle: Path, packets: Sequence[bytes], total: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``memory.*``, in MB (10**6 bytes): at each of :func:`marks`, peak, and growth since the first."""
    statuses: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, running(bundle, {"NIGHTJAR_CACHE_BYTES": "0"}) as service:
        plan = Path(folder, "plan")
        resident = {0: service.memory() / 1e6}
        planned = requests(total, packets, MEMORY_SEED)
        for before, done in pairwise([0, *marks(total)]):
            write_plan(plan, planned[before:done])
            statuses.update(run_in_process(service.port, plan, MEMORY_CLIENTS)["statuses"])
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
