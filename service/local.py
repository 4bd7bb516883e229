"""Start, wait for and stop a local service or worker process, for the demo, benchmarks and tests.

    with running(bundle) as service:
        urllib.request.urlopen(f"{service.url}/readyz")

The process is ``nightjar serve`` or ``nightjar worker``, configured by environment variables. It logs to a file, since
a full pipe would block it.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

HOST = "127.0.0.1"
SERVE = (sys.executable, "-m", "nightjar_alerts.service", "serve")
WORKER = (sys.executable, "-m", "nightjar_alerts.service", "worker")
START_SECONDS = 400.0  # for heavily loaded machines; usually a few
STOP_SECONDS = 30.0


class ServiceDied(RuntimeError):
    """The process ended, or did not start or stop in time; the message includes its log."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A running service process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{HOST}:{self.port}"

    def memory(self, field: str = "VmRSS") -> int:
        """Return the bytes of a field of ``/proc/PID/status``: VmRSS (current) or VmHWM (peak resident memory)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise ServiceDied(f"no {field} of process {self.process.pid}")

    def cpu_seconds(self) -> float:
        """Return the processor time of the process, in all threads."""
        return _cpu_seconds(Path(f"/proc/{self.process.pid}/stat"))

    def loop_seconds(self) -> float:
        """Return the processor time of the main thread, which runs the event loop."""
        return _cpu_seconds(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/stat"))

    def get(self, path: str, timeout: float = 5.0) -> int:
        """Return the status code of a GET request. Raises OSError or HTTPException if there is no response."""
        connection = HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels. Raises OSError if the service does not respond."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until ``/readyz`` returns 200. Raises ServiceDied if the process ends or on timeout."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise ServiceDied(f"ended with {self.process.returncode} before it was ready\n{self.log.read_text()}")
            try:
                if self.get("/readyz") == 200:
                    return
            except (OSError, HTTPException):
                pass  # not listening yet
            time.sleep(0.01)
        raise ServiceDied(f"not ready after {seconds:.0f} s\n{self.log.read_text()}")

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Send SIGTERM, wait and return the exit status. On timeout, kills the process and raises ServiceDied."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ServiceDied(f"still there {seconds:.0f} s after SIGTERM\n{self.log.read_text()}") from None


def _cpu_seconds(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return an unused TCP port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def start(
    folder: Path,
    bundle: Path | None = None,
    settings: Mapping[str, str] | None = None,
    command: Sequence[str | Path] = SERVE,
    environment: Mapping[str, str] = os.environ,
) -> ServiceProcess:
    """Start a service or a worker without waiting until it is ready.

    Parameters
    ----------
    folder : directory of the log.
    bundle : bundle to serve; None for the default bundle (or NIGHTJAR_BUNDLE).
    settings : additional settings by environment variable (``NIGHTJAR_WORKERS``).
    """
    port = free_port()
    chosen = {name: str(port) for name in ("NIGHTJAR_PORT", "NIGHTJAR_WORKER_PORT")}
    chosen |= {"NIGHTJAR_HOST": HOST, "NIGHTJAR_DRAIN_DELAY": "0"}
    if bundle is not None:
        chosen["NIGHTJAR_BUNDLE"] = str(bundle)
    log = folder / f"service-{port}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env={**environment, **chosen, **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    return ServiceProcess(process, port, log)


@contextmanager
def running(
    bundle: Path | None = None,
    settings: Mapping[str, str] | None = None,
    seconds: float = START_SECONDS,
    command: Sequence[str | Path] = SERVE,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[ServiceProcess]:
    """Run a process for a ``with`` block, which starts once it is ready. Raises ServiceDied."""
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        service = start(Path(folder), bundle, settings, command, environment)
        try:
            service.wait_ready(seconds)
            yield service
            if service.process.poll() not in (None, 0):
                raise ServiceDied(f"ended with {service.process.returncode}\n{service.log.read_text()}")
        finally:
            if service.process.poll() is None:
                service.stop()
