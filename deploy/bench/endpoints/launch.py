"""Environments with other servers in them, and the servers: installed, started, stopped with all that they started."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.bench.report import ROOT
from service.commands.process import free_port
from service.settings import usable_cores

COMMON: Final = ("numpy>=2.0", "onnxruntime>=1.24", "orjson>=3.10", "pydantic>=2.10")
INSTALL_SECONDS: Final = 600
STOP_SECONDS: Final = 15.0


class NoServer(RuntimeError):
    """A peer could not be installed or did not answer; the message ends with what it had to say."""


def install(folder: Path, requires: Sequence[str]) -> Path:
    """The interpreter of an environment in a folder, made unless it is there. Raises NoServer."""
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *COMMON, *requires]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NoServer(f"not installed within {INSTALL_SECONDS} s") from None
        if done.returncode:
            raise NoServer(f"pip: {done.stderr[-500:]}")
        stamp.touch()
    return python.absolute()


@contextmanager
def endpoint(name: str, python: Path, bundle: Path, batch: int) -> Iterator[tuple[int, Path]]:
    """A server's port and log; its whole group of processes is gone afterwards."""
    port = free_port()
    told = {"PORT": port, "WORKERS": usable_cores(), "BATCH": batch, "BUNDLE": bundle.absolute()}
    environment = {**os.environ, **{f"ENDPOINT_{key}": str(value) for key, value in told.items()}}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [python, "-m", f"deploy.bench.endpoints.with_{name}"],
                cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield port, log
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
