"""``Server-Timing`` accounts for the time of a request: slow steps show in their stage."""

import json
import threading
import time

from nightjar_alerts.service.observe.metrics import STAGES
from support.edge import Network, curve, live, loader, raw_post

PAUSE = 0.6


def timing(head: bytes) -> dict[str, float]:
    """Return the milliseconds of each stage from response headers."""
    (line,) = [line for line in head.decode().split("\r\n") if line.lower().startswith("server-timing: ")]
    return {name: float(value) for name, value in (part.split(";dur=") for part in line[15:].split(", "))}


def test_server_timing_shows_slow_client_and_slow_network() -> None:
    network = Network()
    request = raw_post("/v1/classify", json.dumps(curve()).encode())
    with live(loader(network)) as edge, edge.connect() as connection:
        network.hold()
        connection.sendall(request[:-20])
        time.sleep(PAUSE)
        connection.sendall(request[-20:])
        assert network.started.acquire(timeout=10)
        threading.Timer(PAUSE, network.release).start()
        stages = timing(connection.recv(65536))
    assert tuple(stages) == (*STAGES, "total")
    total = stages.pop("total")
    assert stages["receive"] >= 0.9e3 * PAUSE
    assert stages["run"] >= 0.9e3 * PAUSE
    assert sum(stages[stage] for stage in STAGES if stage not in ("receive", "run")) < 0.9e3 * PAUSE
    assert sum(stages.values()) <= total + 0.1
    assert total - sum(stages.values()) < 0.5e3 * PAUSE
