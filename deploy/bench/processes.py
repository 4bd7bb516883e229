"""One and two processes behind nginx on the same cores: light curves per second, and memory of each process.

- ``processes.N.lone_per_s``, ``processes.N.json_64_per_s``: N processes, which have all cores together;
- ``processes.2_vs_1.*``: their ratio within a round;
- ``processes.N.mb``, ``processes.N.shared_mb``: memory of a process, and what of it other processes also have.

nginx passes plain HTTP here, so that the load client spends no time on TLS.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import orjson

from deploy.bench.http_load import request, run_in_process, write_plan
from deploy.bench.nginx import running_nginx
from deploy.bench.report import Numbers, spread
from deploy.bench.throughput import answered
from deploy.bench.workload import BATCH, alert_mix
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.service.local import HOST, ServiceProcess, running

SEED: Final = 11
COUNTS: Final = (1, 2)
CLIENTS: Final = {"lone": 16, "json_64": 8}


def measure(bundle: Path, curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``processes.*``; each arm sees ``curves`` light curves a round."""
    drawn = alert_mix(curves, SEED)
    groups = [drawn[first : first + BATCH] for first in range(0, curves, BATCH)]
    plans = {
        "lone": [request("/v1/classify", orjson.dumps(curve)) for curve in drawn],
        "json_64": [request("/v1/classify", orjson.dumps({"light_curves": group})) for group in groups],
    }
    rates: dict[tuple[int, str], list[float]] = {(count, arm): [] for count in COUNTS for arm in plans}
    numbers: Numbers = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for arm, plan in plans.items():
            write_plan(folder / arm, plan)
        groups_of_processes = {count: [_process(stack, bundle, count) for _ in range(count)] for count in COUNTS}
        ports = {count: _proxy(stack, folder, groups_of_processes[count]) for count in COUNTS}
        for number in range(rounds + 1):  # the first one warms up
            for (count, arm), found in rates.items():
                seconds = answered(run_in_process(ports[count], folder / arm, CLIENTS[arm]))["seconds"]
                found.append(curves / seconds)
            say(f"round {number}: " + ", ".join(f"{count} {arm} {r[-1]:.0f}/s" for (count, arm), r in rates.items()))
        for count, processes in groups_of_processes.items():
            numbers[f"processes.{count}.mb"] = processes[0].memory() / 1e6
            numbers[f"processes.{count}.shared_mb"] = _shared(processes[0]) / 1e6
    for (count, arm), found in rates.items():
        numbers[f"processes.{count}.{arm}_per_s"] = spread(found[1:])
    for arm in plans:
        pairs = zip(rates[2, arm][1:], rates[1, arm][1:], strict=True)
        numbers[f"processes.2_vs_1.{arm}"] = spread([two / one for two, one in pairs])
    return numbers


def _process(stack: ExitStack, bundle: Path, count: int) -> ServiceProcess:
    workers = str(max(1, usable_cores() // count))
    settings = {"NIGHTJAR_WORKERS": workers, "NIGHTJAR_CACHE_BYTES": "0", "NIGHTJAR_MAX_QUEUED_SECONDS": "600"}
    return stack.enter_context(running(bundle, settings | {"NIGHTJAR_DEFAULT_DEADLINE_MS": "300000"}))


def _proxy(stack: ExitStack, folder: Path, processes: list[ServiceProcess]) -> int:
    first, *rest = (f"{HOST}:{one.port} max_fails=0;" for one in processes)
    changes = {
        first: " server ".join([first, *rest]),
        " ssl;": ";",
        "rate=100r/s": "rate=100000r/s",
    }
    return stack.enter_context(running_nginx(folder / f"nginx-{len(processes)}", processes[0].port, changes)).port


def _shared(process: ServiceProcess) -> int:
    """Return the bytes that other processes have mapped as well: resident minus private memory."""
    lines = Path(f"/proc/{process.process.pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return sizes["Rss"] - sizes["Private_Clean"] - sizes["Private_Dirty"]
