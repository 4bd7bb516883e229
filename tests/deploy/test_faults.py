"""Every alerting rule fires when a real fault happens: real processes, a real Prometheus with the shipped rules.

Durations of the rules are scaled (:func:`deploy.monitoring.scaled`); thresholds are the shipped ones. The processes run
under job names of their own. Faults that do not disturb each other happen at the same time: those of the worker while
the service has usual requests, and afterwards most of the service's.
"""

import asyncio
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from deploy.bench.http_load import HttpRequest, drive, request
from deploy.bench.stream import Redis, feed, worker
from deploy.bench.workload import visit
from deploy.monitoring import (
    RULES,
    Prometheus,
    classify,
    copy_bundle,
    prometheus,
    repeated,
    scaled,
    scaled_rules,
    without_band,
)
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.service.local import HOST, ServiceProcess, free_port, start
from support.graph_bundles import FEWEST_POINTS
from support.trouble import FAILING, GREEDY, faulty_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not installed (apt-get install prometheus)"
    ),
    pytest.mark.skipif(
        shutil.which("redis-server") is None, reason="Redis is not installed (apt-get install redis-server)"
    ),
]

PATIENCE_SECONDS = 600.0
SERVICE, RESTARTED, WORKER = "classifiers", "restarted-classifiers", "alert-classifiers"
SECONDS = {"m": 0.5, "h": 5.0, "d": 45.0}
"""An hour holds ten scrapes; a day is much longer than what it is compared with."""
HISTORY_SECONDS = 30.0
"""What the rules compare the faults with: most of a day."""
SLOWER = {"m": 20.0, "h": 20.0, "d": 120.0}
"""Minutes of NightjarRestarting: four starts must fit into its window, however slow the machine is."""


def curve(flux: float, points: int = 8, survey: str = "", error: float = 1.0) -> dict[str, Any]:
    """A light curve that a faulty_bundle classifies by the sign of its flux."""
    column = {"mjd": [60_000.0 + day for day in range(points)], "flux": [flux] * points, "flux_err": [error] * points}
    return {**column, "band": ["r"] * points, "survey": survey}


USUAL, UNUSUAL = classify([curve(-500.0)] * 50), classify([curve(5000.0)] * 50)
OTHER_UNIT = classify([curve(5000.0, survey="ztf", error=36.0)] * 50)
ABSTAINED = classify([curve(-500.0, FEWEST_POINTS - 1)] * 50)
MANY = classify([curve(-500.0)] * 300)
REJECTED = classify([without_band(curve(-500.0))] * 50)
FAILED, TOO_LARGE = (request("/v1/classify", orjson.dumps(curve(kind["flux"]))) for kind in (FAILING, GREEDY))


def rules() -> dict[str, Any]:
    """The shipped rules, scaled."""
    changed = scaled_rules(SECONDS)
    shipped = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for rule, original in zip((rule for group in changed["groups"] for rule in group["rules"]), shipped, strict=True):
        if rule.get("alert") == "NightjarRestarting":
            rule["expr"] = scaled(original["expr"], SLOWER)
    return changed


@dataclass(slots=True)
class Watch:
    """Processes under watch, and the Prometheus that watches them."""

    folder: Path
    bundle: Bundle
    prometheus: Prometheus
    service: ServiceProcess
    restarted_port: int
    source: Any
    sink: Redis
    broker: Redis
    seen: set[str] = field(default_factory=set)

    def wait_for(
        self, alert: str, job: str, since: float | None = None, work: Callable[[], None] | None = None
    ) -> None:
        """Wait until an alert has fired for a job.

        Parameters
        ----------
        since : when the fault began (``time.monotonic()``); None for now.
        work : called repeatedly until then.
        """
        asked = time.monotonic()
        while True:
            if work is not None:
                work()
            window = math.ceil(time.monotonic() - (since or asked)) + 1
            selector = f'ALERTS{{alertname="{alert}", job="{job}", alertstate="firing"}}'
            if self.prometheus.query(f"last_over_time({selector}[{window}s])"):
                self.seen.add(alert)
                return
            assert time.monotonic() - asked < PATIENCE_SECONDS, f"{alert} did not fire for {job}"
            time.sleep(0.5)

    def send(self, *requests: HttpRequest, clients: int = 1) -> None:
        """Send requests to the service."""
        asyncio.run(drive(self.service.port, list(requests), clients))

    @contextmanager
    def sending(self, *requests: HttpRequest, clients: int = 1, pause: float = 0.3) -> Iterator[None]:
        """Send requests to the service again and again until the block ends."""
        with repeated(lambda _: self.send(*requests, clients=clients), pause):
            yield


def start_service(folder: Path, bundle: Path, port: int, **settings: str) -> ServiceProcess:
    """Start a service on a port."""
    chosen = {"PORT": str(port), "CACHE_BYTES": "0", "WORKERS": "1"} | settings
    started = start(folder, bundle, {f"NIGHTJAR_{name}": value for name, value in chosen.items()})
    return replace(started, port=port)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    folder = tmp_path_factory.mktemp("faults")
    bundle = faulty_bundle(folder / "bundle")
    (folder / "repository").mkdir()
    (folder / "broker").mkdir()
    (folder / "sink").mkdir()
    (folder / "prometheus").mkdir()
    ports = free_port(), free_port()
    repository = {"REPOSITORY": str(folder / "repository"), "REPOSITORY_POLL": "1", "MAX_QUEUED_SECONDS": "0.1"}
    with ExitStack() as stack:
        service = start_service(folder, bundle.path, ports[0], **repository)
        stack.callback(service.stop)
        service.wait_ready(PATIENCE_SECONDS)
        broker, sink = Redis(folder / "broker"), Redis(folder / "sink")
        stack.callback(broker.kill)
        stack.callback(sink.kill)
        source = broker.client()
        stack.callback(source.close)
        consumer = stack.enter_context(worker(bundle.path, source, 1, sink=f"redis://{HOST}:{sink.port}/results"))
        jobs = {SERVICE: [service.port], RESTARTED: [ports[1]], WORKER: [consumer.port]}
        server = stack.enter_context(prometheus(folder / "prometheus", jobs, rules()))
        yield Watch(folder, bundle, server, service, ports[1], source, sink, broker)


def test_every_rule_fires_at_a_real_fault(watch: Watch) -> None:
    alerts = sorted(visit(200, seed=1), key=len)[:100]
    began = time.monotonic()
    with watch.sending(USUAL):
        with repeated(lambda number: feed(watch.source, alerts[number % 90 :][:10]), pause=0.3):
            check_restarts(watch)
        check_worker(watch, alerts)
        silent = time.monotonic()
        time.sleep(max(0.0, began + HISTORY_SECONDS - time.monotonic()))

    # The stream is silent from now on; its rule fires later, a day after the alerts.
    copy_bundle(watch.bundle.path, watch.folder / "repository" / "damaged", "999.0.0", damage=True)
    with watch.sending(UNUSUAL, OTHER_UNIT, REJECTED, FAILED, TOO_LARGE):
        for alert in (
            *("NightjarUnusualObjects", "NightjarClassMixShifted", "NightjarInputDrift", "NightjarRejectedObjects"),
            *("NightjarServerErrors", "NightjarEngineFault", "NightjarModelNotLoaded"),
        ):
            watch.wait_for(alert, SERVICE)
    with watch.sending(ABSTAINED):
        watch.wait_for("NightjarAbstainedObjects", SERVICE)
    with watch.sending(*[MANY] * 32, clients=32):  # more at once than can wait
        watch.wait_for("NightjarRefusing", SERVICE)
    watch.wait_for("NightjarStreamSilent", WORKER, since=silent)

    shipped = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert watch.seen == {rule["alert"] for rule in shipped if "alert" in rule}


def check_worker(watch: Watch, alerts: list[bytes]) -> None:
    """Feed the worker messages that are no alerts, and take its brokers away."""
    with repeated(lambda _: feed(watch.source, [b"not an alert", *alerts[:5]]), pause=0.1):
        watch.wait_for("NightjarDeadLetters", WORKER)
        watch.sink.kill()
        watch.wait_for("NightjarStreamRetrying", WORKER)
        watch.sink.start()
    watch.wait_for("NightjarStreamBehind", WORKER, work=lambda: keep_behind(watch, alerts))
    watch.broker.kill()
    watch.wait_for("NightjarStreamNotReady", WORKER)
    watch.broker.start()


def check_restarts(watch: Watch) -> None:
    """Start a service and kill it, three times and then for good."""
    starts: set[str] = set()
    query = f'process_start_time_seconds{{job="{RESTARTED}"}}'

    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, 5):
            service = start_service(Path(folder), watch.bundle.path, watch.restarted_port)
            try:
                give_up = time.monotonic() + PATIENCE_SECONDS
                while len(starts) < number:  # until Prometheus has seen this start
                    starts.update(series["value"][1] for series in watch.prometheus.query(query))
                    assert time.monotonic() < give_up
                    time.sleep(0.2)
                if number == 4:
                    watch.wait_for("NightjarRestarting", RESTARTED)
            finally:
                service.process.kill()
                service.process.wait()
        watch.wait_for("NightjarDown", RESTARTED)


def keep_behind(watch: Watch, alerts: list[bytes]) -> None:
    """Feed more alerts than the worker processes within the window of the rule."""
    lag = watch.prometheus.query(f'sum(nightjar_stream_lag_messages{{job="{WORKER}"}})')
    if not lag or float(lag[0]["value"][1]) < 40_000:
        feed(watch.source, alerts * 50)
