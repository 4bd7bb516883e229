"""A real Prometheus scrapes a real service and a real worker under light load: every panel has something to show.

Queries run without the line at zero that the dashboard draws while there is no data, so what a panel shows was
measured. :data:`NOTHING_HAPPENED` lists what this load does not cause.
"""

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.bench.__main__ import sample_packets
from deploy.bench.http_load import drive
from deploy.bench.service_process import HOST, ServiceProcess, free_port, running
from deploy.bench.stream import feed, redis_server, worker
from deploy.bench.workload import requests
from support.dashboard import ROOT, panels

PROMETHEUS = shutil.which("prometheus")
WINDOW = "6s"  # of rates; several scrapes long
PATIENCE = 60.0
NOTHING_HAPPENED = {
    "{{role}}": "no canary",
    "{{outcome}}": "no repository and no shadow",
    "total-variation distance": "no shadow",
    "delay, s": "no shadow",
    "{{found}}": "results are not kept, so that the network runs",
    "{{step}}": "no step of the worker fails",
    "{{key}}": "no API keys",
    "{{key}}, {{limit}}": "no API keys",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROMETHEUS is None, reason="Prometheus is not installed (apt-get install prometheus), so no query was evaluated"
    ),
    pytest.mark.skipif(
        shutil.which("redis-server") is None, reason="Redis is not installed (apt-get install redis-server)"
    ),
]


@contextmanager
def load(service: ServiceProcess) -> Iterator[None]:
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
def stream(client: Any) -> Iterator[None]:
    """Alerts to a worker, one of them unreadable, until the block ends."""
    packets = [*sample_packets(), b"not an alert"]
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(1.0):
            feed(client, packets)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def prometheus(folder: Path, service: ServiceProcess, consumer: ServiceProcess) -> Iterator[str]:
    """The shipped configuration, pointed at processes on this machine, scraping every second; yields its address."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    for job, watched in zip(config["scrape_configs"], (service, consumer), strict=True):
        del job["dns_sd_configs" if "dns_sd_configs" in job else "static_configs"]
        job["static_configs"] = [{"targets": [f"{HOST}:{watched.port}"]}]
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


def shows(values: list[float]) -> bool:
    return bool(values) and not any(math.isnan(value) for value in values)


def queries() -> Iterator[tuple[str, str, str, bool]]:
    """Title, legend, expression and whether the line at zero was removed, of every query of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            expr, fallback, _ = target["expr"].partition(" or (label_replace(vector(0),")
            yield panel["title"], target.get("legendFormat", ""), expr, bool(fallback)


def busy_queries() -> dict[str, str]:
    """Every query of the dashboard that has something to show under this load, by panel and legend."""
    return {
        f"{title}: {legend}": expr
        for title, legend, expr, has_fallback in queries()
        if not (has_fallback and legend in NOTHING_HAPPENED)
    }


def test_queries_left_out_here_are_on_the_dashboard() -> None:
    assert NOTHING_HAPPENED.keys() <= {legend for _, legend, _, has_fallback in queries() if has_fallback}


def test_every_panel_has_something_to_show(tmp_path: Path, tiny_bundle: Path) -> None:
    missing = busy_queries()
    anew = {"NIGHTJAR_CACHE_BYTES": "0"}  # else nothing would run after the first round
    with ExitStack() as stack:
        service = stack.enter_context(running(tiny_bundle, anew))
        client = stack.enter_context(redis_server())
        consumer = stack.enter_context(worker(tiny_bundle, client, 1))
        address = stack.enter_context(prometheus(tmp_path, service, consumer))
        stack.enter_context(load(service))
        stack.enter_context(stream(client))
        give_up = time.monotonic() + PATIENCE
        while missing and time.monotonic() < give_up:
            time.sleep(1)
            missing = {title: query for title, query in missing.items() if not shows(values(address, query))}
    assert missing == {}
