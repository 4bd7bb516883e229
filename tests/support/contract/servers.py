"""HTTP servers of the contract: their bundles and settings, and how they are started and asked."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from nightjar_alerts.service.local import HOST, ServiceProcess, free_port, start
from support.contract.cases import ADMIN_KEY, CASES, FEW_CURVES_KEY, KEY, METERED_KEY, OLD_KEY, Case
from support.contract.exact import exact, replaced
from support.contract.masks import Masks, response
from support.contract.processes import NIGHTJAR, ROOT, inherited, variables
from support.graph_bundles import classifier_bundle
from support.repository import lie, version

ROMAE = "models/pretrained/romae-elasticc"
START_SECONDS = 120.0
DRAINED = Case("", "GET", "/admin/models", until=r'^(?!.*"state":"leaving")')
"""Listing of models without one that finishes its last requests."""

Settings = dict[str, str]


def _bundled(folder: Path) -> Settings:
    """The default service, with the third bundled model in a repository."""
    (newest,) = (path for path in (ROOT / ROMAE).iterdir() if path.is_dir())
    shutil.copytree(newest, folder / "repository" / "romae")
    return {"REPOSITORY": str(folder / "repository")}


def _small(folder: Path) -> Settings:
    """A classifier of a few nodes, on which every format is tried."""
    return {"BUNDLE": str(classifier_bundle(folder / "counter").path)}


def _repository(folder: Path) -> Settings:
    """Two versions of a model, a broken one, and the admin API."""
    version(folder / "repository", "1.0.0", 1.0)
    version(folder / "repository", "1.1.0", 2.0)
    version(folder / "repository", "0.1.0", 3.0, name="broken")
    lie(folder / "repository" / "broken" / "0.1.0")
    aliases = json.dumps({"second": "mine@1.1.0"})
    return _small(folder) | {
        "REPOSITORY": str(folder / "repository"), "ALIASES": aliases, "ADMIN_PORT": "0",
    }  # fmt: skip


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _guarded(folder: Path) -> Settings:
    """API keys, quotas and small limits."""
    limits = {"JSON_BYTES": 4000, "ALERT_BYTES": 20_000, "TENSOR_BYTES": 8000, "CURVES": 3, "STREAM_CURVES": 4}
    limits |= {"POINTS": 30, "PACKETS": 2, "DECOMPRESSED_BYTES": 500}
    named = {"metered": [_digest(METERED_KEY)], "exchanged": [_digest(OLD_KEY), _digest("new key")]}
    named["few-curves"] = [_digest(FEW_CURVES_KEY)]
    quotas = {"metered": {"requests_per_day": 2}, "few-curves": {"curves_per_day": 4}, "*": {"requests_per_day": 100}}
    settings = {"API_KEYS": [_digest(KEY)], "NAMED_KEYS": named, "KEY_LIMITS": quotas}
    return (
        _small(folder)
        | {name: json.dumps(value) for name, value in settings.items()}
        | {f"MAX_{name}": str(number) for name, number in limits.items()}
        | {"ENABLE_DOCS": "false"}
    )


def _protected(folder: Path) -> Settings:
    """Keys for every page and for the admin API; the process is terminated while it is asked."""
    settings = {
        "API_KEYS": [_digest(KEY)],
        "PROTECTED_PATHS": ["metrics", "docs", "v2"],
        "ADMIN_KEYS": [_digest(ADMIN_KEY)],
    }
    shown = {name: json.dumps(value) for name, value in settings.items()}
    return _small(folder) | shown | {"ADMIN_PORT": "0", "DRAIN_DELAY": "5"}


SERVERS: dict[str, Callable[[Path], Settings]] = {
    "bundled": _bundled,
    "formats": _small,
    "repository": _repository,
    "guarded": _guarded,
    "protected": _protected,
}


@contextmanager
def server(folder: Path, settings: Settings) -> Iterator[tuple[ServiceProcess, dict[str, int]]]:
    """A ready process and the ports of its interfaces, ``http`` and ``admin``; terminated at the end."""
    admin = {"admin": free_port()} if "ADMIN_PORT" in settings else {}
    chosen = settings | {f"{interface.upper()}_PORT": str(port) for interface, port in admin.items()}
    service = start(folder, None, variables(chosen), (NIGHTJAR, "serve"), inherited())
    try:
        service.wait_ready(START_SECONDS)
        yield service, {"http": service.port} | admin
    finally:
        service.process.terminate()
        service.process.wait(60)


@dataclass(frozen=True)
class Reply:
    """A response: its status line, headers in their order, and body."""

    version: int
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def decoded(self, masks: Masks) -> Any:
        """Decoded form of the recording."""
        return response(self.status, self.headers, self.body, masks)

    def exact(self) -> str:
        """Exact form of the recording."""
        sizes = [int(value) for name, value in self.headers if name.lower() == "content-length"]
        assert sizes in ([], [len(self.body)])  # masked
        head = [
            f"HTTP/{self.version / 10} {self.status} {self.reason}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return exact((line.encode("latin-1") for line in head), self.body)


def send(case: Case, port: int) -> Reply:
    """Response to one request on a connection of its own."""
    connection = HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(case.method, case.path, case.body, case.headers)
        reply = connection.getresponse()
        return Reply(reply.version, reply.status, reply.reason, reply.getheaders(), reply.read())
    finally:
        connection.close()


def send_until(case: Case, port: int) -> Reply:
    """Response to a request, repeated until its body matches the pattern of the case."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        reply = send(case, port)
        if re.search(case.until, reply.body.decode(errors="replace")) or time.monotonic() > deadline:
            return reply
        time.sleep(0.05)


def run_server(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Responses of a server to its requests, by the names of these, decoded and exact, and its exit status."""
    masks: Masks = {str(folder): "<folder>", str(ROOT): "<tree>"}
    found: dict[str, Any] = {}
    raw: dict[str, str] = {}
    with server(folder, SERVERS[name](folder)) as (service, ports):
        here = masks | {f":{port}": f":<{interface}>" for interface, port in ports.items()}
        for index, case in enumerate(CASES[name]):
            if case.method == "SIGTERM":
                service.process.terminate()
                time.sleep(0.5)
                continue
            reply = send_until(case, ports[case.port])
            found[f"{index:03d} {case.name}"] = reply.decoded(here)
            raw[f"{index:03d} {case.name}"] = replaced(reply.exact(), masks)
            if case.port == "admin" and case.method != "GET":
                send_until(DRAINED, ports["admin"])
    return found | {"exit status": service.process.returncode}, raw
