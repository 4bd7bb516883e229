"""Processes of the contract: the installed ``nightjar`` command, its settings and its environment."""

import os
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from nightjar_alerts.service.local import HOST

ROOT = Path(__file__).resolve().parents[3]
NIGHTJAR = Path(sysconfig.get_path("scripts")) / "nightjar"
SECONDS = 180.0
"""Longest run of a command."""

USUAL = {
    "NATIVE": "off", "WORKERS": "1", "MAX_BATCH_TOKENS": "1", "DRAIN_DELAY": "0", "LOG_LEVEL": "warning", "HOST": HOST,
}  # fmt: skip
"""Each light curve runs alone: how curves are batched depends on time and changes the last digits of their scores."""


def variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of these settings and the usual ones."""
    return {f"NIGHTJAR_{name}": text for name, text in (USUAL | dict(settings)).items()} | {
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
    }


def inherited() -> dict[str, str]:
    """Environment of this process without what changes Nightjar's settings or code."""
    foreign = ("NIGHTJAR_", "PYTHONPATH")
    return {name: text for name, text in os.environ.items() if not name.startswith(foreign)}


def run(arguments: list[str], folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    environment = inherited() | variables(settings)
    return subprocess.run(
        [NIGHTJAR, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
