"""Processes of a checkout: its ``nightjar`` command, its settings and the environment in which it runs."""

import os
import re
import socket
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[3]
SECONDS = 180.0
"""Longest run of a command."""

RENAMED = {"GROUPS_IN_FLIGHT": "PREFETCH_BATCHES", "KEYS_FOR": "PROTECTED_PATHS", "DOCS": "ENABLE_DOCS"}
"""Settings of the recorded commit and the names that replace them."""
OPTIONAL = {"AUTOTUNE": "false", "MEASUREMENTS_FOLDER": "{folder}/measurements"}
"""Settings that keep a process quick to start, where it has them."""
USUAL = {"WORKERS": "1", "MAX_BATCH_TOKENS": "1", "DRAIN_DELAY": "0", "LOG_LEVEL": "warning", "HOST": HOST}
"""Each light curve runs alone: how curves are batched depends on time and changes the last digits of their scores."""


@dataclass(frozen=True)
class Tree:
    """A checkout whose processes are run.

    Parameters
    ----------
    path : root folder; one that is not this checkout has an environment in ``.venv``.
    native : value of the setting of that name.
    """

    path: Path = ROOT
    native: str = "off"

    @property
    def nightjar(self) -> str:
        """Path of the installed command."""
        folder = sysconfig.get_path("scripts") if self.path == ROOT else self.path / ".venv" / "bin"
        return str(Path(folder) / "nightjar")

    @cached_property
    def settings(self) -> frozenset[str]:
        """Names of all settings, without their prefix."""
        table = subprocess.run(
            [self.nightjar, "settings"], env=_inherited(), capture_output=True, text=True, check=True
        )
        return frozenset(re.findall(r"^\| `NIGHTJAR_(\w+)`", table.stdout, re.M))

    def environment(self, folder: Path, chosen: dict[str, str]) -> dict[str, str]:
        """Environment of a process with these settings, and nothing of this machine's own settings."""
        optional = {name: text.format(folder=folder) for name, text in OPTIONAL.items() if name in self.settings}
        settings = optional | USUAL | {"NATIVE": self.native} | chosen
        named = {f"NIGHTJAR_{self._current_name(name)}": text for name, text in settings.items()}
        return _inherited() | named | {"OMP_NUM_THREADS": "1"}

    def _current_name(self, name: str) -> str:
        return RENAMED[name] if name in RENAMED and name not in self.settings else name

    def run(self, arguments: list[str], folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            [self.nightjar, *arguments],
            env=self.environment(folder, settings),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def _inherited() -> dict[str, str]:
    """Environment of this process without what changes Nightjar's settings or code."""
    foreign = ("NIGHTJAR_", "PYTHONPATH")
    return {name: text for name, text in os.environ.items() if not name.startswith(foreign)}


def free_port() -> int:
    """A TCP port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
