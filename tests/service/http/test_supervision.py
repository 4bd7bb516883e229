"""Engine failures as seen by clients and probes, and exit of the process, with real graphs and processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.core.load import load_model
from nightjar_alerts.models.bundle import MANIFEST, MODEL, Bundle, Manifest, write_manifest
from nightjar_alerts.service.http.edge.errors import UNAVAILABLE
from nightjar_alerts.service.local import free_port
from support.edge import HOST, Live, Network, curve, live, loader, wait_until
from support.trouble import ENDLESS, FATAL, GREEDY, STUCK, trouble_bundle

pytestmark = pytest.mark.slow

POINTS = 8
ROOT = Path(__file__).resolve().parents[3]


def troubled(kind: dict[str, float]) -> dict[str, Any]:
    """A light curve that makes the graph fail."""
    return curve(POINTS, **{column: [value] * POINTS for column, value in kind.items()})


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return trouble_bundle(tmp_path_factory.mktemp("trouble") / "trouble")


@pytest.fixture(scope="module")
def edge(trouble: Bundle) -> Iterator[Live]:
    loaded = load_model(trouble.path)
    with live(lambda *_: loaded, hung_run_seconds=0.6) as edge:
        yield edge


def faults(edge: Live, fault: str) -> float:
    labels = {"fault": fault, "outcome": "recovered"}
    return edge.metric("nightjar_engine_faults_total", **labels)


def assert_try_again(status: int, headers: dict[str, str], body: bytes, detail: str) -> None:
    problem = json.loads(body)
    assert (status, problem["type"], headers["retry-after"]) == (503, "/problems/unavailable", "5")
    assert problem["detail"] == detail


def test_engine_out_of_memory_answers_the_light_curve(edge: Live) -> None:
    body = json.dumps(troubled(GREEDY)).encode()
    told = edge.ask("POST", "/v1/classify", body)
    assert_try_again(*told, "there was not enough memory to run this light curve")
    assert faults(edge, "out_of_memory") >= 1
    edge.still_well()


def test_engine_out_of_memory_batch_mates_are_answered(edge: Live) -> None:
    status, reply = edge.classify({"light_curves": [curve(), troubled(GREEDY), curve()]})
    results = reply["results"]
    assert (status, [result["status"] for result in results]) == (200, ["classified", "failed", "classified"])
    assert results[1]["reason"] == "out_of_memory"


def test_engine_dead_thread_is_reported_everywhere() -> None:
    network = Network()
    network.on_marker[FATAL] = sys.exit
    with live(loader(network)) as edge:
        status, headers, body = edge.ask("POST", "/v1/classify", json.dumps(troubled({"flux": FATAL})).encode())
        assert_try_again(status, headers, body, UNAVAILABLE.meaning)
        wait_until(lambda: edge.service.unready == "the service has failed: an inference thread died")
        labels = {"fault": "thread_died", "outcome": "fatal"}
        assert edge.metric("nightjar_engine_faults_total", **labels) == 1
    assert edge.server.exit_status == 1


class Process:
    """A service in a separate process."""

    def __init__(self, arguments: list[str], settings: dict[str, str]) -> None:
        self.port = free_port()
        chosen = {"HOST": HOST, "PORT": str(self.port), "DRAIN_DELAY": "0", "WORKERS": "2"} | settings
        environment = {**os.environ, **{f"NIGHTJAR_{name}": value for name, value in chosen.items()}}
        environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
        self.process = subprocess.Popen([sys.executable, "-m", *arguments], env=environment, stderr=subprocess.PIPE)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(HOST, self.port, timeout=30)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def answers(self, path: str) -> bool:
        try:
            return self.ask("GET", path)[0] == 200
        except (OSError, HTTPException):
            return False

    def ended(self, seconds: float = 30) -> tuple[int, list[dict[str, Any]]]:
        """Return exit status and log, after it has exited by itself."""
        _, log = self.process.communicate(timeout=seconds)
        return self.process.returncode, [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]


@contextmanager
def process(*arguments: str, **settings: str) -> Iterator[Process]:
    started = Process(list(arguments), settings)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@pytest.mark.parametrize("kind", [ENDLESS, STUCK], ids=["endless loop", "kernel that nothing can interrupt"])
def test_serve_with_a_hung_run_responds_to_all_and_exits(trouble: Bundle, kind: dict[str, float]) -> None:
    settings = {"BUNDLE": str(trouble.path), "HUNG_RUN_SECONDS": "1"}
    with process("nightjar_alerts.service", "serve", **settings) as service:
        wait_until(lambda: service.answers("/readyz"), 60)
        status, headers, _ = service.ask("POST", "/v1/classify", json.dumps(troubled(kind)).encode())
        assert (status, headers["retry-after"]) == (503, "5")
        exit_status, log = service.ended()
    assert exit_status == 1
    (death,) = [line for line in log if line["event"] == "the engine died"]
    assert (death["fault"], death["level"]) == ("run_hung", "critical")


@pytest.mark.parametrize(
    ("kind", "fault"), [("thread", "thread_died"), ("hang", "run_hung"), ("lost", "provider_lost")]
)
def test_serve_fatal_error_exits_with_1(kind: str, fault: str) -> None:
    with process("support.trouble", kind, HUNG_RUN_SECONDS="0.5") as service:
        wait_until(lambda: service.answers("/readyz"), 60)
        status, headers, body = service.ask("POST", "/v1/classify", json.dumps(troubled({"flux": FATAL})).encode())
        exit_status, log = service.ended()
    assert (status, headers["retry-after"], exit_status) == (503, "5", 1)
    assert json.loads(body)["type"] == "/problems/unavailable"
    assert [line["fault"] for line in log if line["event"] == "the engine died"] == [fault]


@pytest.mark.parametrize("known", [False, True], ids=["altered", "with its hash"])
def test_serve_truncated_graph_is_never_served(trouble: Bundle, tmp_path: Path, known: bool) -> None:
    """A truncated graph is rejected, even if the manifest has its hash."""
    folder = tmp_path / "cut"
    shutil.copytree(trouble.path, folder)
    (folder / MODEL).write_bytes((folder / MODEL).read_bytes()[:-100])
    if known:
        write_manifest(folder, Manifest.model_validate_json((folder / MANIFEST).read_bytes()))
    with process("nightjar_alerts.service", "serve", BUNDLE=str(folder)) as service:
        ready: list[bool] = []
        while service.process.poll() is None:
            ready.append(service.answers("/readyz"))
            time.sleep(0.05)
        exit_status, log = service.ended()
    assert (exit_status, any(ready)) == (1, False)
    (line,) = [line for line in log if line["level"] == "critical"]
    assert line["event"] == "the model cannot be served"
