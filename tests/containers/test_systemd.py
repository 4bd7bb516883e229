"""deploy/nightjar@.service and deploy/replace.sh under a real systemd, with a real nginx, in a container."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from support.containers import ENGINE, Container, classify, container, engine, needs_containers, published, status
from support.edge import curve, wait_until

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
IMAGE: Final = os.environ.get("NIGHTJAR_SYSTEMD_IMAGE", "")
PORTS: Final = (8081, 8082)
CLIENTS: Final = 4
pytestmark = [
    *needs_containers,
    pytest.mark.skipif(ENGINE != "podman", reason="only podman prepares a container for systemd"),
    pytest.mark.skipif(not IMAGE, reason="NIGHTJAR_SYSTEMD_IMAGE names no image: `make containers`"),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """A machine with two processes of the template behind nginx, which passes plain HTTP here."""
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in PORTS)
    text = (DEPLOY / "nginx.conf").read_text().replace("server 127.0.0.1:8080 max_fails=0;", servers)
    text = text.replace("443 ssl;", "8443;").replace("rate=100r/s", "rate=10000r/s")
    conf = tmp_path_factory.mktemp("nginx") / "nginx.conf"
    conf.write_text("\n".join(line for line in text.splitlines() if "ssl_" not in line))
    options = ("--privileged", "--systemd=always", *published(8443))
    with container(*options, image=IMAGE, hardened=()) as running:
        for path, place in {
            DEPLOY / "nightjar@.service": "/etc/systemd/system/nightjar@.service",
            DEPLOY / "replace.sh": "/root/replace.sh",
            conf: "/etc/nginx/nginx.conf",
        }.items():
            engine("cp", str(path), f"{running.name}:{place}")
        wait_until(lambda: running.run("systemctl", "is-system-running", check=False) in {"running", "degraded"})
        running.run("systemctl", "daemon-reload")
        running.run("systemctl", "start", *(f"nightjar@{port}" for port in PORTS), check=False)
        active = running.run("systemctl", "is-active", *(f"nightjar@{port}" for port in PORTS), check=False).split()
        assert active == ["active", "active"], running.run("journalctl", "--no-pager", "--lines", "50")
        running.run("systemctl", "restart", "nginx")
        yield running


def test_unit_start_returns_when_the_process_is_ready(host: Container) -> None:
    host.run("systemctl", "restart", "nightjar@8081")
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8081/readyz').status)"
    assert host.run("python3", "-c", code) == "200"


def test_unit_with_a_wrong_setting_fails_at_once_and_is_not_restarted(host: Container) -> None:
    host.run("sh", "-c", "echo NIGHTJAR_MAX_CURVES=many > /etc/nightjar-8083.env")
    started = time.monotonic()
    assert "failed" in host.run("sh", "-c", "systemctl start nightjar@8083 2>&1", check=False)
    assert time.monotonic() - started < 60  # TimeoutStartSec has 300
    time.sleep(2)
    assert host.run("systemctl", "is-failed", "nightjar@8083") == "failed"
    assert "NIGHTJAR_MAX_CURVES" in host.run("journalctl", "--unit", "nightjar@8083", "--no-pager")


def main_pids(host: Container) -> set[str]:
    return {host.run("systemctl", "show", "--property", "MainPID", f"nightjar@{port}") for port in PORTS}


def test_replace_script_fails_no_request_of_units(host: Container, figures: dict[str, Any]) -> None:
    before = main_pids(host)
    statuses: Counter[object] = Counter()
    done = threading.Event()
    port = host.port(8443)
    wait_until(lambda: status(port, "/readyz") == 200)

    def send() -> None:
        while not done.is_set():
            try:
                statuses[classify(port, curve(10 + statuses.total() % 90))["results"][0]["status"]] += 1
            except OSError as error:
                statuses[repr(error)] += 1

    with ThreadPoolExecutor(CLIENTS) as clients:
        sent = [clients.submit(send) for _ in range(CLIENTS)]
        try:
            host.run("sh", "/root/replace.sh", *map(str, PORTS))
        finally:
            done.set()
        for each in sent:
            each.result()
    figures["systemd.requests_while_both_were_replaced"] = statuses.total()
    figures["systemd.failed_requests"] = statuses.total() - statuses["classified"]
    assert set(statuses) == {"classified"}
    assert not set(before) & {
        host.run("systemctl", "show", "--property", "MainPID", f"nightjar@{port}") for port in PORTS
    }
