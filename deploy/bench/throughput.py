"""The service over HTTP: requests per second, starts, memory, and what becomes of real packets.

**Throughput** stands beside bare onnxruntime on the same curves in the same run. Rounds are interleaved (service, one
caller, all callers, service, ...), so that whatever else the machine does falls on all three, and the ratios are taken
within a round. Every arm of every round handles the same curves once. What the load client can do at most is measured
against a server that does no work: it answers every request with fixed bytes as soon as its last byte is in, and a
figure of the service near that would be a figure of the client.

**Starts** are from starting the process to the first 200 of ``/readyz``, which means loaded, verified and warmed up.
The very first one also finds out what runs cost on this machine; those after it recall that.

**Memory** is resident over 10,000 requests of every kind and must stop growing. The first requests fill caches, the
allocator's pools and onnxruntime's arena; growth is counted from request 2,000 on.

**Packets** are what ``nightjar classify`` finds in a folder, each posted alone as it stands: counts by survey and
outcome, and no server error.
"""

import asyncio
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import uvloop

from deploy.bench.bare import Bare, BarePace
from deploy.bench.http_load import HOST, request, run_in_process, write_plan
from deploy.bench.report import Numbers, spread
from deploy.bench.service_process import ServiceProcess, running, start
from deploy.bench.workload import OCTETS, Columns, columns, requests
from nightjar_alerts.models.alerts.files import read_path
from nightjar_alerts.service.engine.machine import usable_cores

_BODY = b"{}" + b" " * 1022  # about as long as a real answer
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            writer.write(_REPLY)
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def _serve(tell: Connection) -> None:
    server = await asyncio.start_server(_answer, HOST, 0)
    tell.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _main(tell: Connection) -> None:
    uvloop.run(_serve(tell))


def client_ceiling(plan: Path, clients: int) -> float:
    """Return requests per second of the load client against a server that only counts bytes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    server = context.Process(target=_main, args=(there,), daemon=True)
    server.start()
    try:
        return float(run_in_process(here.recv(), plan, clients)["per_second"])
    finally:
        server.terminate()
        server.join()


CLIENTS = 32
SEED = 20260101


class WrongAnswer(RuntimeError):
    """The service answered something else than the network alone does; its speed is then of no interest."""


class ThroughputRound(NamedTuple):
    """One turn of every arm."""

    http: dict[str, Any]
    http_cpu_ms: float
    one: BarePace
    every: BarePace


def measure(bundle: Path, curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``http.*`` and ``bare.*``; `curves` light curves a round and arm."""
    cores = usable_cores()
    drawn = columns(curves, SEED)
    bare = Bare.of(bundle, drawn)
    chosen = {"NIGHTJAR_WORKERS": str(cores), "NIGHTJAR_CACHE_BYTES": "0"}  # the curves come again and again
    with tempfile.TemporaryDirectory() as folder, running(bundle, chosen) as service:
        plan = Path(folder, "plan")
        write_plan(plan, [request("/v1/classify", orjson.dumps(curve)) for curve in drawn])
        error = check_answers(service, plan, drawn, bare)
        rounds_done = []
        for number in range(rounds):
            rounds_done.append(_round(service, plan, bare, cores))
            say(f"round {number + 1}/{rounds}: {_line(rounds_done[-1])}")
        ceiling = client_ceiling(plan, CLIENTS)
    return {
        "http.clients": CLIENTS,
        "http.curves_per_round": curves,
        "http.rounds": rounds,
        "http.max_abs_difference_to_bare": error,
        "http.client_ceiling_per_s": ceiling,
        "bare.callers_all_cores": cores,
        **_figures(rounds_done),
    }


def _round(service: ServiceProcess, plan: Path, bare: Bare, cores: int) -> ThroughputRound:
    before = service.cpu_seconds()
    http = run_in_process(service.port, plan, CLIENTS)
    cpu = service.cpu_seconds() - before
    if http["statuses"] != {"200": len(bare.inputs)}:
        raise WrongAnswer(f"not every request was answered: {http['statuses']}")
    return ThroughputRound(http, 1e3 * cpu / len(bare.inputs), bare.run(1), bare.run(cores))


def _figures(rounds: Sequence[ThroughputRound]) -> Numbers:
    return {
        "http.requests_per_s": spread([r.http["per_second"] for r in rounds]),
        "http.p50_ms": spread([r.http["p50_ms"] for r in rounds]),
        "http.p99_ms": spread([r.http["p99_ms"] for r in rounds]),
        "http.cpu_ms_per_request": spread([r.http_cpu_ms for r in rounds]),
        "http.ratio_to_bare_one_caller": spread([r.http["per_second"] / r.one.per_second for r in rounds]),
        "http.ratio_to_bare_all_cores": spread([r.http["per_second"] / r.every.per_second for r in rounds]),
        "bare.one_caller_per_s": spread([r.one.per_second for r in rounds]),
        "bare.all_cores_per_s": spread([r.every.per_second for r in rounds]),
        "bare.cpu_ms_per_curve": spread([r.one.cpu_ms for r in rounds]),
    }


def check_answers(service: ServiceProcess, plan: Path, curves: Sequence[Columns], bare: Bare) -> float:
    """Largest difference between a probability served under load and the same curve's alone.

    It is also the warm-up. Raises WrongAnswer beyond what batch mates may change (1e-4), or when a reply is missing.
    """
    replies = plan.with_name("replies")
    run_in_process(service.port, plan, CLIENTS, replies)
    served = []
    for curve, (status, body) in zip(curves, json.loads(replies.read_text()), strict=True):
        if status != 200:
            raise WrongAnswer(f"{curve['object_id']}: {status} {body[:500]}")
        served.append(list(json.loads(body)["results"][0]["probabilities"].values()))
    error = float(np.abs(np.asarray(served) - bare.probabilities()).max())
    if not error <= 1e-4:
        raise WrongAnswer(f"probabilities differ by {error:.1e} from those of the network alone")
    return error


def _line(r: ThroughputRound) -> str:
    http, one, every = r.http["per_second"], r.one.per_second, r.every.per_second
    return f"{http:.0f} requests/s; bare {one:.0f}/s with one caller, {every:.0f}/s on all cores ({http / every:.2f})"


def measure_starts(bundle: Path, repeats: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``coldstart.*``. File caches are warm: the first start after an install or a boot takes longer."""
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
    """Seconds to ready, and bytes resident then; ``folder`` holds what starts remember."""
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
    """After how many requests memory is read: every fifth of them."""
    return [total * fifth // 5 for fifth in range(1, 6)]


def measure_memory(bundle: Path, packets: Sequence[bytes], total: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``memory.*``, in MB (10**6 bytes): resident after every fifth, the peak, and the growth since the first."""
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


PACKET_CLIENTS = 4


def measure_packets(bundle: Path, folder: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``packets.SURVEY.OUTCOME[.REASON]``, ``packets.total`` and ``packets.server_errors``."""
    packets = [(item.name, item.data) for item in read_path(folder) if item.kind == "packet"]
    with tempfile.TemporaryDirectory() as scratch, running(bundle) as service:
        plan, replies = Path(scratch, "plan"), Path(scratch, "replies")
        write_plan(plan, [request("/v1/alerts", data, OCTETS) for _, data in packets])
        run_in_process(service.port, plan, PACKET_CLIENTS, replies)
        answers = json.loads(replies.read_text())
    counts: Counter[str] = Counter()
    for (name, _), (status, body) in zip(packets, answers, strict=True):
        counts.update(_keys(status, body))
        if status != 200:
            say(f"{name}: {status} {body[:300]}")
    errors = sum(status == 0 or status >= 500 for status, _ in answers)
    return {"packets.total": len(packets), "packets.server_errors": errors, **counts}


def _keys(status: int, body: str) -> list[str]:
    if status != 200:
        return [f"packets.status_{status}"]
    return [
        ".".join(filter(None, ("packets", result.get("survey") or "unknown", result["status"], result.get("reason"))))
        for result in json.loads(body)["results"]
    ]
