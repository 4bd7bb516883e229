"""Stream workers for tests: in this process around a network that can be held and poisoned, or as processes to kill.

python -m support.stream      a worker with the settings of the environment and a stand-in for the network
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.client_settings import ENV_PREFIX
from nightjar_alerts.service.process import configure_log
from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream import redis_streams
from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.batches import Batch
from nightjar_alerts.service.stream.pipeline import InferStage
from nightjar_alerts.service.stream.worker import RESTART_STATUS, Worker, supervise
from support import alerts
from support.edge import HOST, Network, loader, wait_until

TESTS = Path(__file__).resolve().parents[1]
PYTHONPATH = TESTS, TESTS.parent, TESTS.parent / "src"
FAST_GROUP = "session.timeout.ms=3000&heartbeat.interval.ms=100"
"""Options of a Kafka source whose group soon notices that a member is gone; a busy machine misses no session."""


def alert(number: int, flux: float | None = None) -> bytes:
    """A framed LSST packet of two points; the stand-in network names a class after its flux."""
    record = alerts.lsst_alert("lsst/10.0", points=2)
    point = {"psfFlux": float(number % 20) if flux is None else flux, "psfFluxErr": 1.0}
    ids = {"diaSourceId": 10_000 + number, "diaObjectId": 500 + number}
    record["diaSource"] |= point | ids
    record["diaObject"]["diaObjectId"] = 500 + number
    return alerts.confluent(1000, record | {"diaSourceId": 10_000 + number, "prvDiaForcedSources": None})


def solar_system_alert() -> bytes:
    """A framed LSST packet of a moving object."""
    record = alerts.lsst_alert("lsst/10.0")
    record["diaObject"] = None
    record["diaSource"] |= {"diaObjectId": 0, "ssObjectId": 77, "diaSourceId": 9}
    return alerts.confluent(1000, record | {"diaSourceId": 9})


def chosen(folder: Path, **changes: Any) -> StreamSettings:
    """Settings for a test: any port, nothing slow, dead letters and results in a folder."""
    usual: dict[str, Any] = {
        "bundle": Path("echo"),
        "host": HOST,
        "worker_port": 0,
        "workers": 1,
        "cache_bytes": 0,
        "drain_timeout": 5,
        "sink": f"file:{folder}/results.jsonl",
        "dead_letters": f"file:{folder}/letters/",
        "account_interval": 0.2,
    }
    return StreamSettings(**(usual | changes))


class Running:
    """A worker in a thread of this process.

    Attributes
    ----------
    noted_megabytes : memory as a test noted it last, 0 before.
    """

    noted_megabytes = 0.0

    def __init__(self, settings: StreamSettings, network: Network | None = None, replay: bool = False) -> None:
        self.network = network or Network()
        self._settings, self._replay = settings, replay
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.status: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker")

    def _run(self) -> None:
        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            self._worker = Worker(self._settings, self._replay, loader(self.network))
            return await self._worker.run()

        try:
            self.status = asyncio.run(main())
        except BaseException as error:
            self.error = error

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    def start(self) -> "Running":
        self._thread.start()
        wait_until(lambda: self.error is not None or (self._worker is not None and self.worker.probes is not None))
        return self

    def stop(self, timeout: float = 60.0) -> int | None:
        """Tell the worker to stop, wait until it has; its exit status."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.worker.stop)
        return self.join(timeout)

    def join(self, timeout: float = 60.0) -> int | None:
        """Wait until the worker has ended by itself; its exit status."""
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.status

    def totals(self) -> dict[str, int]:
        """Outcomes of the alerts of all topics together."""
        totals: dict[str, int] = {}
        for counts in self.worker.ledger.summary().values():
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
        return totals

    @property
    def ready(self) -> bool:
        """Tell if the worker takes alerts, or would if nothing were wrong outside."""
        return "the worker is" not in self.ask("/readyz")[1]

    @property
    def megabytes(self) -> float:
        """Resident memory of this process, the test's own included."""
        return resident_megabytes(os.getpid())

    def ask(self, path: str) -> tuple[int, str]:
        """Status and body of a probe."""
        assert self.worker.probes is not None
        return ask(self.worker.probes.port, path)

    def metric(self, name: str, **labels: str) -> float:
        return self.worker.metrics.registry.get_sample_value(name, labels) or 0.0


def ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@contextmanager
def running(settings: StreamSettings, network: Network | None = None, replay: bool = False) -> Iterator[Running]:
    """A worker, stopped at the end of the block."""
    worker = Running(settings, network, replay).start()
    try:
        yield worker
    finally:
        worker.network.release()
        worker.stop()


def results(folder: Path) -> list[dict[str, Any]]:
    """Records that were published to the file of :func:`chosen`."""
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def dead_letters(folder: Path) -> list[dict[str, Any]]:
    """Dead letters in the folder of :func:`chosen`, headers as text."""
    import base64

    records = [json.loads(path.read_text()) for path in sorted((folder / "letters").glob("*.json"))]
    for one in records:
        one["headers"] = {name: base64.b64decode(value).decode() for name, value in one["headers"]}
        one["value"] = base64.b64decode(one["value"])
    return records


class Process:
    """A worker process that may be killed.

    With ``supervise`` it is started again as soon as it ends with :data:`RESTART_STATUS`.

    Parameters
    ----------
    real : whether it answers with the default model, and not with a stand-in for the network; the variable
        ``NIGHTJAR_TEST_WORKER`` may name the command of another build to compare with.

    Attributes
    ----------
    noted_megabytes : memory as a test noted it last, 0 before.
    restarts : number of times that it was started again.
    """

    noted_megabytes = 0.0

    def __init__(self, settings: Mapping[str, Any], log: Path, real: bool = False, supervise: bool = False) -> None:
        usual = {
            "host": HOST,
            "worker_port": 0,
            "workers": 1,
            "cache_bytes": 0,
            "log_format": "json",
        }
        variables = {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in {**usual, **settings}.items()}
        self._environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, PYTHONPATH))}
        self._command = [sys.executable, "-m", "support.stream"]
        if real:
            self._command = shlex.split(os.environ.get("NIGHTJAR_TEST_WORKER", "")) or [
                sys.executable, "-m", "nightjar_alerts.service", "worker",
            ]  # fmt: skip
        self.log, self.restarts = log, 0
        self._process = self._start()
        self._ending = threading.Event()
        self._supervisor = threading.Thread(target=self._restart, name="supervisor", daemon=True) if supervise else None
        if self._supervisor is not None:
            self._supervisor.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as file:
            return subprocess.Popen(self._command, env=self._environment, stderr=file)

    def _restart(self) -> None:
        """Start the worker again each time it ends with the status for its supervisor."""
        while not self._ending.wait(0.1):
            if self._process.poll() == RESTART_STATUS:
                self._process = self._start()
                self.restarts += 1

    def _end_supervision(self) -> None:
        self._ending.set()
        if self._supervisor is not None:
            self._supervisor.join()

    def kill(self) -> None:
        """Kill the worker, as a machine that loses power does."""
        self._end_supervision()
        self._process.kill()
        self._process.wait()

    def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM; the exit status."""
        self._end_supervision()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def suspend(self) -> None:
        """Stop the worker as a machine that swaps does: nothing of it runs until :meth:`resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End :meth:`suspend`."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs, or is about to be started again."""
        status = self._process.poll()
        supervised = self._supervisor is not None and not self._ending.is_set()
        return None if supervised and status == RESTART_STATUS else status

    def ask(self, path: str) -> tuple[int, str]:
        """Status and body of a probe; 503 while a supervised worker starts again."""
        assert self.status is None
        try:
            return ask([event["port"] for event in self.events() if event["event"] == "probes"][-1], path)
        except OSError as error:
            if self._supervisor is None:
                raise
            return 503, f"the worker is starting: {error}"

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        lines = self.ask("/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    @property
    def megabytes(self) -> float:
        """Resident memory."""
        return resident_megabytes(self._process.pid)

    @property
    def ready(self) -> bool:
        """Tell if the worker takes alerts."""
        return any(event["event"] == "ready" for event in self.events())

    def events(self) -> list[dict[str, Any]]:
        """Events that were logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def forget_in_classifying(monkeypatch: pytest.MonkeyPatch, alert_id: str) -> None:
    """Let the stage that classifies drop one alert, as a bug of ours might; for workers in this process."""
    whole = InferStage.infer

    async def forgetful(self: InferStage, *arguments: Any) -> Batch:
        batch = await whole(self, *arguments)
        return replace(batch, results=tuple(one for one in batch.results if one.packet.alert_id != alert_id))

    monkeypatch.setattr(InferStage, "infer", forgetful)


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def eventually(holds: Callable[[], bool], seconds: float = 60.0, pause: float = 0.1) -> None:
    """Return when ``holds()``, asking every ``pause`` seconds; fail after ``seconds``."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(pause)


def main() -> int:
    redis_streams.TIMEOUT_SECONDS = 3.0  # type: ignore[misc]  # a silent server is noticed sooner
    settings = StreamSettings(bundle=Path("echo"))
    configure_log(settings)
    network = Network()
    if deadly := os.environ.get("TEST_DEADLY_FLUX"):  # an alert that kills whoever looks at it
        network.on_marker = {float(deadly): lambda: os.kill(os.getpid(), signal.SIGKILL)}
    try:
        return asyncio.run(supervise(Worker(settings, load=loader(network))))
    except AddressError as error:
        sys.stderr.write(json.dumps({"event": "the worker cannot start", "reason": str(error)}) + "\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
