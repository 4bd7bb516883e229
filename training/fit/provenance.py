"""What a run was made with: one line in the run folder for every time it was started.

``config.json`` says what is trained and on which data; together with a line of ``starts.jsonl`` (the command, the
versions, the commit, the machine) it is what somebody needs to train the same weights again. The same recipe and data
give bitwise the same weights on the same kind of machine with the same versions, threads and number of processes; the
line tells which of these differed where they do not. A commit that ends in ``+`` is one with uncommitted changes.
"""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nightjar-alerts", "torch", "numpy", "pydantic", "pyarrow")


def describe_start(step: int, device: str, processes: int) -> dict[str, Any]:
    """What this process runs, and on what, from ``step`` on."""
    return {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.orig_argv,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a clone that was never installed
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str | None:
    """Hash of HEAD, with a plus sign when the tree differs from it; None outside a checkout or without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
