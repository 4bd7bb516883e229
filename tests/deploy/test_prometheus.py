"""A real Prometheus scrapes the real service under light load: every panel of the dashboard has something to show."""

import asyncio
import json
import math
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deploy.bench.__main__ import sample_packets
from deploy.bench.load import drive
from deploy.bench.mixed import requests
from service.commands.process import HOST, Service, free_port, running
from support.dashboard import ROOT, queries

PROMETHEUS = shutil.which("prometheus")
WINDOW = "6s"  # of rates; several scrapes long
PATIENCE = 40.0

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="Prometheus is not installed (apt-get install prometheus), so no query was evaluated"
)


@contextmanager
def load(service: Service) -> Iterator[None]:
    """One client that sends good and bad requests until the block ends."""
    plan = requests(200, sample_packets(), seed=1)
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            asyncio.run(drive(service.port, plan[:40], clients=1))
            plan.append(plan.pop(0))

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def prometheus(folder: Path, service: Service) -> Iterator[str]:
    """The shipped configuration, pointed at a service on this machine and scraping every second; yields its address."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"{HOST}:{service.port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"{HOST}:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def values(address: str, query: str) -> list[float]:
    """The values of an instant query; empty while Prometheus is starting."""
    text = query.replace("$__rate_interval", WINDOW).replace("$__range", WINDOW)
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{urllib.parse.urlencode({'query': text})}") as reply:
            result = json.load(reply)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []
        raise AssertionError(f"{query}\n{error.read().decode()}") from None
    except urllib.error.URLError:
        return []
    return [float(series["value"][1]) for series in result]


def shows(found: list[float]) -> bool:
    return bool(found) and not any(math.isnan(value) for value in found)


def test_every_panel_has_something_to_show(tmp_path: Path, tiny_bundle: Path) -> None:
    missing = dict(queries())
    asked_anew = {"NIGHTJAR_CACHE_BYTES": "0"}  # else nothing would run after the first round
    with running(tiny_bundle, asked_anew) as service, load(service), prometheus(tmp_path, service) as address:
        give_up = time.monotonic() + PATIENCE
        while missing and time.monotonic() < give_up:
            time.sleep(1)
            missing = {title: query for title, query in missing.items() if not shows(values(address, query))}
    assert missing == {}
