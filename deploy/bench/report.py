"""Report of a run: flat dotted keys, each a number or ``{"median", "spread"}``, and facts about the machine."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import numpy as np

from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.common import processor_name

ROOT = Path(__file__).resolve().parents[2]


class Spread(TypedDict):
    """Median and range of repeated measurements. ``spread`` is the largest minus the smallest, not an error bar."""

    median: float
    spread: float


Numbers = dict[str, float | Spread]
Facts = dict[str, str | float]


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the full range of repeated measurements."""
    return {"median": statistics.median(values), "spread": max(values) - min(values)}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by bootstrapping."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (10_000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def run_facts(bundle: Path) -> Facts:
    """Return the facts of a run: bundle, date, processor, cores, load average, versions and commit."""
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
    """Return the short hash of HEAD, with a plus sign if the tree is modified; "unknown" outside a checkout."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write(path: Path, facts: Facts, numbers: Numbers) -> None:
    """Write one JSON object, sorted by key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, **dict(sorted(numbers.items()))}, indent=1) + "\n")


def table(facts: Facts, numbers: Numbers) -> str:
    """Format the facts and numbers as aligned text, one line per key."""
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
