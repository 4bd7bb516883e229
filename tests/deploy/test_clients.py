"""Clients other than browsers reach a service and a worker without API keys: Prometheus, probes and curl."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from deploy.monitoring import prometheus
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.probes import Probes
from support.edge import Live, Network, curve, live, loader, outside_address, wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
HOSTS = {name: SERVICES[name]["environment"]["NIGHTJAR_ALLOWED_HOSTS"] for name in ("service", "worker")}


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    """A service as the compose file configures it."""
    with live(loader(Network()), host="0.0.0.0", allowed_hosts=HOSTS["service"]) as edge:
        yield edge


@pytest.fixture(scope="module")
def worker() -> Iterator[Probes]:
    """The port of a worker as the compose file configures it."""
    with closing(Probes("0.0.0.0", 0, Metrics(), lambda: "", lambda: "", allowed_hosts=HOSTS["worker"])) as probes:
        yield probes


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_scrapes_by_name_and_by_address(edge: Live, worker: Probes, tmp_path: Path) -> None:
    hosts = ("localhost", "127.0.0.1", socket.gethostname(), outside_address())
    jobs = {name: [f"{host}:{port}" for host in hosts] for name, port in (("a", edge.port), ("b", worker.port))}
    with prometheus(tmp_path, jobs) as server:
        wait_until(lambda: len(server.query("up == 1")) == len(hosts) * 2, 60)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "service", "service.localhost"])
def test_curl_by_a_name_of_the_service_classifies(edge: Live, name: str) -> None:
    """``service`` is its name on the network of the compose file; --resolve stands for the network's DNS."""
    resolve = ["--resolve", f"{name}:{edge.port}:127.0.0.1"]
    url = f"http://{name}:{edge.port}/v1/classify"
    command = ["curl", "-sS", *resolve, url, "-H", "content-type: application/json", "-d", json.dumps(curve())]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["results"][0]["status"] == "classified"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("name", "status"), [("worker", "200"), ("service", "403"), ("evil.example", "403")])
def test_curl_reads_the_metrics_of_a_worker_by_its_name(worker: Probes, name: str, status: str) -> None:
    resolve = ["--resolve", f"{name}:{worker.port}:127.0.0.1"]
    command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", *resolve, f"http://{name}:{worker.port}/metrics"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode() == status


def test_compose_allows_the_names_on_its_network() -> None:
    assert HOSTS == {"service": "service", "worker": "worker"}
