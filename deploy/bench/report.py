"""Numbers of a run: flat dotted keys, each a number or ``{"median", "spread"}``, with the machine they hold for."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypedDict

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.common import processor_name
from nightjar_alerts.service.engine.machine import usable_cores

ROOT = Path(__file__).resolve().parents[2]


class Spread(TypedDict):
    """Middle and width of repeated measurements. ``spread`` is the largest minus the smallest, not an error bar."""

    median: float
    spread: float


Numbers = dict[str, float | Spread]
Facts = dict[str, str | float]


class Aim(NamedTuple):
    """Aim of a figure, in the words of the table."""

    figure: str
    bound: Literal["at least", "at most"]
    value: float


AIMS: Final[dict[str, Aim]] = {
    "http.ratio_to_bare_all_cores": Aim("service / bare, all cores", "at least", 0.65),
    "engine.policy_speedup.fifo_count_64": Aim("throughput over FIFO, 64 light curves", "at least", 7),
    "engine.policy_speedup.fifo_token_budget": Aim("over FIFO, 4,096 padded observations", "at least", 2.5),
    "engine.policy_speedup.window_5ms": Aim("over a window of 5 ms, 64 light curves", "at least", 5),
    "engine.policy_speedup.one_by_one": Aim("over one by one", "at least", 1.5),
    "engine.p99_half_load_vs_one_by_one": Aim("p99 at half load over that of one by one", "at most", 1),
    "engine.vs_bare.msgpack_64": Aim("service / bare at its best, msgpack by 64", "at least", 0.95),
    "engine.vs_bare.json_1": Aim("service / bare, JSON one by one, 32 in flight", "at least", 0.8),
    "engine.vs_bare.json_1_128": Aim("the same, 128 in flight", "at least", 0.85),
    "engine.lone_p50_overhead_ms": Aim("added to a lone request, median, ms", "at most", 1.5),
    "engine.burst_10k_vs_ideal": Aim("10,000 at once / bare at its best", "at most", 1.2),
    "engine.simulation_error": Aim("simulation against engine, largest error", "at most", 0.15),
    "stream.visit_10k_s": Aim("10,000 alerts in 5 s, all answered after, s", "at most", 15),
    "stream.visit_40k_s": Aim("40,000 alerts in 5 s, all answered after, s", "at most", 60),
    "stream.vs_bare": Aim(
        "alerts per second / light curves per second of bare onnxruntime at its best", "at least", 0.6
    ),
    "stream.decode_vs_fastavro": Aim("decoding 60 + 300 points / fastavro", "at most", 0.34),
    "stream.backlog.late_vs_early": Aim("memory late / early while a backlog waits", "at most", 1.1),
    "kafka.visit_10k_s": Aim("10,000 alerts in 5 s through Kafka in and out, s", "at most", 15),
    "kafka.visit_40k_s": Aim("40,000 alerts in 5 s through Kafka in and out, s", "at most", 60),
    "kafka.standstill_s": Aim("longest standstill of a loaded worker while another joins and leaves, s", "at most", 2),
    "kafka.repeats_per_rebalance": Aim("alerts answered twice meanwhile", "at most", 256),
    "kafka.repeats_per_kill": Aim("alerts answered twice for each kill at 270/s", "at most", 64),
    "kafka.repeats_per_kill_full_load": Aim("the same at full load", "at most", 256),
}


def aims_of(part: str) -> dict[str, Aim]:
    """Return what is aimed at in a part of the benchmark, by the key of the figure."""
    return {key: aim for key, aim in AIMS.items() if key.startswith(f"{part}.")}


def spread(values: Sequence[float]) -> Spread:
    """Median and full range of repeated measurements."""
    return {"median": statistics.median(values), "spread": max(values) - min(values)}


def held_for(bundle: Path) -> Facts:
    """Return what the numbers hold for: bundle, day, processor, cores, versions, commit, and how busy it was."""
    manifest = load_bundle(bundle).manifest
    return {
        "bundle": f"{manifest.name} {manifest.version}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine.cpu": processor_name(),
        "machine.cores": usable_cores(),
        "machine.load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "commit": _commit(),
    }


def _commit() -> str:
    """Short hash of HEAD, with a plus sign when the tree differs from it; "unknown" outside a checkout."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write(path: Path, facts: Facts, numbers: Numbers) -> None:
    """Write one JSON object, sorted by key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, **dict(sorted(numbers.items()))}, indent=1) + "\n")


def table(facts: Facts, numbers: Numbers) -> str:
    """Format the numbers for people: one line a key, aligned."""
    rows: Mapping[str, str] = {
        **{key: _figure(value) if isinstance(value, float) else str(value) for key, value in facts.items()},
        **{key: _text(value) for key, value in sorted(numbers.items())},
    }
    width = max(map(len, rows))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows.items())


def _text(value: float | Spread) -> str:
    if isinstance(value, dict):
        return f"{_figure(value['median'])}  (spread {_figure(value['spread'])})"
    return _figure(value)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.4g}"
