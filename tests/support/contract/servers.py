"""The service processes of the contract: which bundles and settings each has, and how requests are put to it."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from support.contract.masks import Masks, reply
from support.contract.requests import KEY, REQUESTS, Ask
from support.graph_bundles import classifier_bundle, forecaster_bundle
from support.repository import lie, version

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[3]
ROMAE = "models/pretrained/romae-elasticc"
START_SECONDS = 120.0
QUIET = {"AUTOTUNE": "false", "WORKERS": "1", "DRAIN_DELAY": "0", "LOG_LEVEL": "warning", "HOST": HOST}


def _bundled(folder: Path, tree: Path) -> dict[str, str]:
    """The default service, with the third bundled model beside it and a forecaster of a few nodes."""
    (newest,) = (path for path in (tree / ROMAE).iterdir() if path.is_dir())
    shutil.copytree(newest, folder / "repository" / "romae")
    ruler = forecaster_bundle(folder / "ruler").path
    return {"REPOSITORY": str(folder / "repository"), "FORECAST_BUNDLE": str(ruler)}


def _repository(folder: Path, tree: Path) -> dict[str, str]:
    """Two versions of a model, one that is broken, and an admin interface."""
    version(folder / "repository", "1.0.0", 1.0)
    version(folder / "repository", "1.1.0", 2.0)
    version(folder / "repository", "0.1.0", 3.0, name="broken")
    lie(folder / "repository" / "broken" / "0.1.0")
    counter = classifier_bundle(folder / "counter").path
    aliases = json.dumps({"second": "mine@1.1.0"})
    return {"BUNDLE": str(counter), "REPOSITORY": str(folder / "repository"), "ALIASES": aliases, "ADMIN_PORT": "0"}


def _guarded(folder: Path, tree: Path) -> dict[str, str]:
    """API keys and small limits."""
    limits = {"JSON_BYTES": 4000, "ALERT_BYTES": 20_000, "TENSOR_BYTES": 8000, "CURVES": 3, "STREAM_CURVES": 4}
    limits |= {"POINTS": 30, "PACKETS": 2}
    keys = json.dumps([hashlib.sha256(KEY.encode()).hexdigest()])
    told = {"BUNDLE": str(classifier_bundle(folder / "counter").path), "API_KEYS": keys, "DOCS": "false"}
    return told | {f"MAX_{name}": str(number) for name, number in limits.items()}


SERVERS = {"bundled": _bundled, "repository": _repository, "guarded": _guarded}


def environment(tree: Path, folder: Path, chosen: dict[str, str]) -> dict[str, str]:
    """Environment of a process of that checkout: nothing of this machine's own settings."""
    foreign = {name: text for name, text in os.environ.items() if not name.startswith("NIGHTJAR_")}
    told = QUIET | {"MEASUREMENTS_FOLDER": str(folder / "measurements")} | chosen
    named = {f"NIGHTJAR_{name}": text for name, text in told.items()}
    return foreign | named | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A TCP port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(name: str, tree: Path, folder: Path) -> Iterator[dict[str, int]]:
    """A ready service; ports by the name of their interface."""
    chosen = SERVERS[name](folder, tree)
    ports = {"http": free_port()} | ({"admin": free_port()} if "ADMIN_PORT" in chosen else {})
    chosen |= {"PORT": str(ports["http"])} | ({"ADMIN_PORT": str(ports["admin"])} if "admin" in ports else {})
    log = folder / "log"
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "nightjar_alerts.service", "serve"]
        process = subprocess.Popen(command, env=environment(tree, folder, chosen), cwd=tree, stdout=sink, stderr=sink)
    try:
        _wait(process, ports["http"], log)
        yield ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < give_up:
        try:
            if send(Ask("", "GET", "/readyz"), port)[0] == 200:
                return
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.1)
    raise AssertionError(f"not ready\n{log.read_text()}")


def send(ask: Ask, port: int) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of one request on a connection of its own."""
    connection = HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(ask.method, ask.path, ask.body, ask.headers)
        response = connection.getresponse()
        return response.status, response.getheaders(), response.read()
    finally:
        connection.close()


def _settle(port: int) -> None:
    """Wait until models that were replaced have left: how long that takes is no part of the contract."""
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up and b'"leaving"' in send(Ask("", "GET", "/admin/models"), port)[2]:
        time.sleep(0.05)


def replies(name: str, tree: Path, folder: Path) -> dict[str, Any]:
    """Replies of a server of the contract, by the names of its requests, in their order."""
    masks: Masks = {str(folder): "<folder>", str(tree): "<tree>"}
    found: dict[str, Any] = {}
    with server(name, tree, folder) as ports:
        here = masks | {f":{port}": f":<{interface}>" for interface, port in ports.items()}
        for place, ask in enumerate(REQUESTS[name]):
            label = f"{place:03d} {ask.name}"
            found[label] = reply(*send(ask, ports[ask.port]), here)
            if ask.port == "admin" and ask.method != "GET":
                _settle(ports["admin"])
    return found
