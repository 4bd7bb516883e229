"""Throughput of this checkout divided by that of another one, in one run: HTTP requests and stream workers.

    python -m deploy.bench --parts '["before"]' --before OTHER --before-starts 5 --rounds 3

OTHER must be installed in its own environment ``.venv``. Both checkouts serve the same bundle with the same settings;
settings of :data:`OPTIONAL` are omitted if a checkout does not have them.

Two processes of one commit differ by a few per cent, so each checkout is started several times. Each start runs both
checkouts; a round measures each of them once, in alternating order. The ratio of a start is the median over its rounds.
The result is the median over the starts, with their range (``spread``) and the 95 % interval of the median (``low``,
``high``). Throughput depends on other load of the machine, CPU time hardly does.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson

from deploy.bench.http_load import HOST, request, run_in_process, write_plan
from deploy.bench.report import Numbers, interval, spread
from deploy.bench.stream import feed, milliseconds, redis_server, wait
from deploy.bench.throughput import answered
from deploy.bench.workload import alert_mix, packed_request, visit
from nightjar_alerts.service.local import ServiceProcess, running

Arm = Literal["lone", "json_64", "msgpack_64", "stream"]
ARMS: Final[tuple[Arm, ...]] = ("lone", "json_64", "msgpack_64", "stream")
BATCH, BATCHES_IN_FLIGHT, LONE_REQUESTS = 64, 8, 300

SETTINGS: Final = {
    "HOST": HOST, "DRAIN_DELAY": "0", "MAX_QUEUED_SECONDS": "600", "DEFAULT_DEADLINE_MS": "300000", "CACHE_BYTES": "0",
}  # fmt: skip
"""Settings with which no request is rejected and no result is cached."""
OPTIONAL: Final = {"AUTOTUNE": "false"}
"""Settings that not all checkouts have."""


class Usage(NamedTuple):
    """Wall-clock seconds of a measurement, and CPU seconds of the measured process."""

    seconds: float
    cpu: float


Measurement = Callable[[], Usage]


class Ratios(NamedTuple):
    """Throughput and CPU time of this checkout, each divided by that of the other one."""

    throughput: float
    cpu: float


def compare(
    bundle: Path,
    other: Path,
    arms: Sequence[Arm],
    starts: int,
    rounds: int,
    curves: int,
    alerts: int,
    native: str,
    control: bool,
    say: Callable[[str], None],
) -> Numbers:
    """Return ``before.ARM.throughput_ratio`` and ``before.ARM.cpu_ratio``.

    Parameters
    ----------
    other : checkout to compare with.
    starts, rounds : number of starts of both checkouts, and of measurements of each per start.
    curves, alerts : number of light curves in a measurement with batches, and of alerts in one of the stream.
    native : setting ``native`` of both checkouts.
    control : whether to compare the other checkout with itself, which shows the variation of equal code.
    """
    before = other.resolve() / ".venv" / "bin" / "nightjar"
    commands = (before if control else Path(sys.executable).with_name("nightjar"), before)
    environments = [environment(command, SETTINGS | {"NATIVE": native, "BUNDLE": str(bundle)}) for command in commands]
    ratios: dict[Arm, list[Ratios]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        plans = write_plans(Path(folder), curves)
        packets = visit(alerts, seed=6)
        for start in range(starts):
            with ExitStack() as stack:
                # The order of starting alternates, too.
                measured = [
                    (which, _start(stack, commands[which], environments[which], arms, plans, packets))
                    for which in ((0, 1) if start % 2 else (1, 0))
                ]
                new, old = (measurements for _, measurements in sorted(measured, key=lambda pair: pair[0]))
                for arm in arms:
                    ratios[arm].append(_ratios(new[arm], old[arm], rounds))
            shown = ", ".join(
                f"{arm} {ratios[arm][-1].throughput:.3f} (processor time {ratios[arm][-1].cpu:.3f})" for arm in arms
            )
            say(f"start {start + 1}/{starts}: {shown}")
    return summary(ratios)


def environment(nightjar: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a checkout's processes. Raises ValueError for a setting that it does not have."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTJAR_", "PYTHONPATH"))}
    table = subprocess.run([nightjar, "settings"], env=inherited, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^\| `NIGHTJAR_(\w+)`", table, re.M))
    if missing := sorted(settings.keys() - known):
        raise ValueError(f"{nightjar} has no setting {', '.join(missing)}")
    optional = {name: value for name, value in OPTIONAL.items() if name in known}
    return inherited | {f"NIGHTJAR_{name}": value for name, value in {**settings, **optional}.items()}


def write_plans(folder: Path, curves: int) -> dict[Arm, Path]:
    """Write the requests of the HTTP arms to files."""
    drawn = alert_mix(curves, seed=3)
    batches = [drawn[first : first + BATCH] for first in range(0, len(drawn), BATCH)]
    requests = {
        "lone": [request("/v1/classify", orjson.dumps(curve)) for curve in drawn[:LONE_REQUESTS]],
        "json_64": [request("/v1/classify", orjson.dumps({"light_curves": batch})) for batch in batches],
        "msgpack_64": [packed_request(batch) for batch in batches],
    }
    plans: dict[Arm, Path] = {}
    for arm in ARMS:
        if arm in requests:
            plans[arm] = folder / arm
            write_plan(plans[arm], requests[arm])
    return plans


def _start(
    stack: ExitStack,
    nightjar: Path,
    chosen: Mapping[str, str],
    arms: Sequence[Arm],
    plans: Mapping[Arm, Path],
    packets: Sequence[bytes],
) -> dict[Arm, Measurement]:
    """Start the processes that the arms need, and measure each arm once to warm up."""
    measurements: dict[Arm, Measurement] = {}
    cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="nightjar-"))
    start = partial(running, seconds=120, environment={**chosen, "XDG_CACHE_HOME": cache})
    if set(arms) & plans.keys():
        service = stack.enter_context(start(command=(nightjar, "serve")))
        for arm in arms:
            if arm in plans:
                in_flight = 1 if arm == "lone" else BATCHES_IN_FLIGHT
                measurements[arm] = partial(_send, service, plans[arm], in_flight)
    if "stream" in arms:
        client = stack.enter_context(redis_server())
        address = f"redis://{HOST}:{client.get_connection_kwargs()['port']}"
        ends = {"NIGHTJAR_SOURCE": f"{address}/alerts", "NIGHTJAR_SINK": f"{address}/results"}
        worker = stack.enter_context(start(settings=ends, command=(nightjar, "worker")))
        measurements["stream"] = partial(_drain, worker, client, packets)
    for measure in measurements.values():
        measure()
    return measurements


def _send(service: ServiceProcess, plan: Path, in_flight: int) -> Usage:
    before = service.cpu_seconds()
    seconds = answered(run_in_process(service.port, plan, in_flight))["seconds"]
    return Usage(seconds, service.cpu_seconds() - before)


def _drain(worker: ServiceProcess, client: Any, packets: Sequence[bytes]) -> Usage:
    """Measure the time from the first alert to the last result, by the clock of the Redis server."""
    before, (seconds, microseconds) = worker.cpu_seconds(), client.time()
    done = client.xlen("results")
    feed(client, packets)
    wait(client, done + len(packets))
    last = client.xrevrange("results", count=1)[0][0]
    return Usage(milliseconds(last) / 1e3 - seconds - microseconds / 1e6, worker.cpu_seconds() - before)


def _ratios(new: Measurement, old: Measurement, rounds: int) -> Ratios:
    """Return the medians over the rounds."""
    throughput, cpu = [], []
    for number in range(rounds):
        if number % 2:
            here, there = new(), old()
        else:
            there, here = old(), new()
        throughput.append(there.seconds / here.seconds)
        cpu.append(here.cpu / there.cpu)
    return Ratios(statistics.median(throughput), statistics.median(cpu))


def summary(ratios: Mapping[Arm, Sequence[Ratios]]) -> Numbers:
    """Return median, range and interval over the starts."""
    numbers = Numbers()
    for arm, starts in ratios.items():
        for kind in Ratios._fields:
            values = [getattr(ratio, kind) for ratio in starts]
            low, high = interval(values)
            key = f"before.{arm}.{kind}_ratio"
            numbers |= {key: spread(values), f"{key}.low": low, f"{key}.high": high}
    return numbers
