"""Local service processes: they become ready, report metrics and stop with status 0."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_alerts.service.local import ServiceDied, ServiceProcess, free_port, running, start

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def container_healthcheck(port: int) -> int:
    """Return the exit status of the image's HEALTHCHECK command for a port."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    match = re.search(r"^HEALTHCHECK .*?CMD (\[[^\n]*\])$", dockerfile, re.MULTILINE | re.DOTALL)
    assert match is not None
    program, *arguments = json.loads(match[1])
    assert program == "python3"
    environment = {**os.environ, "NIGHTJAR_PORT": str(port)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, timeout=20, check=False).returncode


def test_running_service_becomes_ready_and_stops(tiny_bundle: Path) -> None:
    with running(tiny_bundle) as service:
        assert service.get("/healthz") == 200
        assert service.get("/nowhere") == 404
        assert service.memory() > 10e6
        assert service.memory("VmHWM") >= service.memory()
        assert service.cpu_seconds() > 0
        assert container_healthcheck(service.port) == 0
        assert service.stop() == 0
    assert container_healthcheck(service.port) == 1


def test_running_service_that_cannot_start_raises_with_its_log(tmp_path: Path) -> None:
    service = start(tmp_path, bundle=tmp_path / "nothing")
    with pytest.raises(ServiceDied, match="no readable manifest"):
        service.wait_ready()


def test_running_service_that_dies_raises(tiny_bundle: Path) -> None:
    def kill(service: ServiceProcess) -> None:
        service.process.kill()
        service.process.wait()

    with pytest.raises(ServiceDied, match="ended with -9"), running(tiny_bundle) as service:
        kill(service)


def test_free_ports_can_be_listened_on() -> None:
    assert 1024 < free_port() < 65536
