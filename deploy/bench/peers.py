"""Throughput and latency of other model servers with the same light curves, network, client and machine.

Each is installed from PyPI into its own environment under ``build/`` (servers that cannot be installed are reported and
left out), started with the endpoint in ``endpoints/``, verified against the network's outputs, measured and stopped,
once per round. All have one process per core. Servers with batching are measured without it and with batches of up to
64 light curves, collected for up to 5 ms.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import orjson

from deploy.bench.bare import Bare
from deploy.bench.http_load import HOST, request, run_in_process, write_plan
from deploy.bench.report import ROOT, Numbers, spread
from deploy.bench.throughput import WrongAnswer, answered, patient
from deploy.bench.workload import CurveColumns, alert_mix
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.service.local import free_port

COMMON: Final = ("numpy>=2.0", "onnxruntime>=1.24", "orjson>=3.10", "pydantic>=2.10")
INSTALL_SECONDS: Final = 600
STOP_SECONDS: Final = 15.0


class NoServer(RuntimeError):
    """A peer could not be installed or did not respond; the message ends with its output."""


def install(folder: Path, requires: Sequence[str]) -> Path:
    """Return the interpreter of the environment in a folder; create it if necessary. Raises NoServer."""
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
    """Run a server; yield its port and log. Its process group is ended afterwards."""
    port = free_port()
    settings = {"PORT": port, "WORKERS": usable_cores(), "BATCH": batch, "BUNDLE": bundle.absolute()}
    environment = {**os.environ, **{f"ENDPOINT_{key}": str(value) for key, value in settings.items()}}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    )
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
    """End a server and its child processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


Name = Literal["fastapi", "litserve", "mosec", "bentoml", "ray"]
EVERY: Final[tuple[Name, ...]] = ("fastapi", "litserve", "mosec", "bentoml", "ray")
CLIENTS: Final = 32
ROUNDS: Final = 3
SEED: Final = 20260103
START_SECONDS: Final = 120.0
BATCH: Final = 64
WARM_UP: Final = 128
TOLERANCE: Final = 1e-4


class PeerRoute(NamedTuple):
    """Path for a light curve, and the JSON before and after its columns."""

    path: str
    before: bytes = b""
    after: bytes = b""

    def body(self, curve: CurveColumns) -> bytes:
        """Return the body of a request."""
        return self.before + orjson.dumps(curve) + self.after


class Peer(NamedTuple):
    """Requirements of a server, and its routes without batching and, if supported, with it."""

    requires: tuple[str, ...]
    alone: PeerRoute
    batched: PeerRoute | None = None


_CLASSIFY, _PREDICT, _INFERENCE = PeerRoute("/classify"), PeerRoute("/predict"), PeerRoute("/inference")
PEERS: Final[Mapping[Name, Peer]] = {
    "fastapi": Peer(("fastapi>=0.115", "uvicorn[standard]>=0.32"), _CLASSIFY),
    "litserve": Peer(("litserve>=0.2.10",), _PREDICT, _PREDICT),
    "mosec": Peer(("mosec>=0.9",), _INFERENCE, _INFERENCE),
    "bentoml": Peer(
        ("bentoml>=1.4",), PeerRoute("/alone", b'{"columns":', b"}"), PeerRoute("/together", b'{"curves":[', b"]}")
    ),
    "ray": Peer(("ray[serve]>=2.40",), _CLASSIFY, _CLASSIFY),
}


class PeerRow(NamedTuple):
    """Figures of a server in one round."""

    server: str
    per_second: float
    p50_ms: float
    p99_ms: float


def measure(
    bundle: Path, names: Sequence[Name], environments: Path, curves: int, rounds: int, say: Callable[[str], None]
) -> list[PeerRow]:
    """Return a row for every server and round; servers that do not start are reported and left out."""
    drawn = alert_mix(curves, SEED)
    expected = Bare.of(bundle, drawn).probabilities()
    pythons: dict[Name, Path] = {}
    for name in names:
        try:
            pythons[name] = install(environments / name, PEERS[name].requires)
        except NoServer as error:
            say(f"{name} is left out: {error}")
    rows: list[PeerRow] = []
    for number in range(rounds):
        rows.append(_ours(bundle, drawn))
        say(f"round {number + 1}/{rounds}: {_line(rows[-1])}")
        for name, python in list(pythons.items()):
            try:
                for row in measure_server(name, python, bundle, drawn, expected):
                    rows.append(row)
                    say(f"round {number + 1}/{rounds}: {_line(row)}")
            except NoServer as error:
                del pythons[name]
                say(f"{name} is left out: {error}")
    return rows


def _ours(bundle: Path, curves: Sequence[CurveColumns]) -> PeerRow:
    with patient(bundle) as service:
        _load(service.port, PeerRoute("/v1/classify"), curves)  # warm-up, as for the other servers in _check
        return _row("Nightjar", service.port, PeerRoute("/v1/classify"), curves)


def measure_server(
    name: Name, python: Path, bundle: Path, curves: Sequence[CurveColumns], expected: np.ndarray
) -> Iterator[PeerRow]:
    """Measure a server without batching and, if supported, with it."""
    peer = PEERS[name]
    for batch, route in ((1, peer.alone), (BATCH, peer.batched)):
        if route is not None:
            with endpoint(name, python, bundle, batch) as (port, log):
                _wait(port, route, curves[0], log)
                _check(port, route, curves, expected)
                yield _row(f"{name}, batches of {batch}" if batch > 1 else name, port, route, curves)


def _wait(port: int, route: PeerRoute, curve: CurveColumns, log: Path) -> None:
    """Wait until the server classifies a light curve. Raises NoServer."""
    give_up, heard = time.monotonic() + START_SECONDS, b""
    while time.monotonic() < give_up:
        try:
            status, heard = _ask(port, route, curve)
        except (OSError, HTTPException):
            status = 0  # not listening yet
        if status == 200:
            return
        time.sleep(0.2)
    raise NoServer(f"no answer after {START_SECONDS:.0f} s: {heard[-500:]!r} {log.read_text()[-500:]}")


def _ask(port: int, route: PeerRoute, curve: CurveColumns) -> tuple[int, bytes]:
    connection = HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("POST", route.path, route.body(curve), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _check(port: int, route: PeerRoute, curves: Sequence[CurveColumns], expected: np.ndarray) -> None:
    """Send all requests once, as a warm-up. Raises WrongAnswer if results differ beyond rounding, or NoServer."""
    with tempfile.TemporaryDirectory() as folder:
        replies = Path(folder, "replies")
        statuses = _load(port, route, curves, replies)["statuses"]
        if set(statuses) != {"200"}:
            raise NoServer(f"not every request was answered: {statuses}")
        served = [_probabilities(body) for _, body in json.loads(replies.read_text())]
    error = float(np.abs(np.asarray(served) - expected).max())
    if not error <= TOLERANCE:
        raise WrongAnswer(f"probabilities differ by {error:.1e} from those of the network alone")


def _probabilities(body: str) -> list[float]:
    """Return the probabilities in a response, which is a list of one for BentoML's batches. Raises NoServer."""
    try:
        document: Any = json.loads(body)
        values: list[float] = (document[0] if isinstance(document, list) else document)["probabilities"]
    except (ValueError, LookupError, TypeError):
        raise NoServer(f"an answer that is none: {body[:300]!r}") from None
    return values


def _load(port: int, route: PeerRoute, curves: Sequence[CurveColumns], replies: Path | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan")
        write_plan(plan, [request(route.path, route.body(curve)) for curve in curves])
        return run_in_process(port, plan, CLIENTS, replies)


def _row(server: str, port: int, route: PeerRoute, curves: Sequence[CurveColumns]) -> PeerRow:
    _load(port, route, curves[:WARM_UP])
    outcome = answered(_load(port, route, curves))
    return PeerRow(server, outcome["per_second"], outcome["p50_ms"], outcome["p99_ms"])


def table(rows: Sequence[PeerRow]) -> str:
    """Format the rows as Markdown, the fastest server first: medians over rounds, and the range of throughput."""
    by_server = {
        server: [row for row in rows if row.server == server] for server in dict.fromkeys(r.server for r in rows)
    }
    cells = []
    for server, mine in sorted(by_server.items(), key=lambda pair: -median(row.per_second for row in pair[1])):
        rates = [row.per_second for row in mine]
        p50, p99 = (median(getattr(row, name) for row in mine) for name in ("p50_ms", "p99_ms"))
        reach = f"{min(rates):,.0f} to {max(rates):,.0f}"
        cells.append((server, f"{median(rates):,.0f}", reach, f"{p50:,.1f}", f"{p99:,.1f}"))
    return markdown_table(("server", "light curves/s", "range", "p50, ms", "p99, ms"), cells) + "\n"


def numbers(rows: Sequence[PeerRow]) -> Numbers:
    """Return the keys ``peers.SERVER.per_s``, ``.p50_ms`` and ``.p99_ms``."""
    figures: Numbers = {}
    for server in dict.fromkeys(row.server for row in rows):
        mine, key = [row for row in rows if row.server == server], _key(server)
        figures[f"peers.{key}.per_s"] = spread([row.per_second for row in mine])
        figures[f"peers.{key}.p50_ms"] = spread([row.p50_ms for row in mine])
        figures[f"peers.{key}.p99_ms"] = spread([row.p99_ms for row in mine])
    return figures


def _key(server: str) -> str:
    return server.lower().replace(", batches of ", "_batch_")


def _line(row: PeerRow) -> str:
    return f"{row.server}: {row.per_second:.0f}/s, p50 {row.p50_ms:.1f} ms, p99 {row.p99_ms:.1f} ms"
