"""docker-compose.yml, run: from the shipped file and one override that names images without a registry.

Redis entries are delivered at least once: a killed worker may repeat what it had published without an acknowledgement,
under the same key (docs/stream.md). Each test counts the keys, and the repetitions are recorded.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import yaml

from deploy.bench.nginx import client_context, self_signed
from nightjar_alerts.service.settings import StreamSettings
from support.containers import ENGINE, Container, classify, engine, needs_containers, status
from support.edge import curve, wait_until
from support.stream import alert

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "nightjartest"
COMMAND: Final = (
    os.environ.get("NIGHTJAR_COMPOSE") or ("podman-compose" if ENGINE == "podman" else "docker compose")
).split()
FILES: Final = ("-f", "docker-compose.yml", "-f", "tests/containers/override.yml")
PROFILES: Final = ("--profile", "stream", "--profile", "proxy")
STARTED: Final = ("service", "worker", "redis", "prometheus", "proxy")
PARTS: Final = ("NIGHTJAR_PARTS_IMAGE", "NIGHTJAR_PROXY_IMAGE")
BURST: Final = 2000
IN_FLIGHT: Final[int] = StreamSettings.model_fields["max_inflight_messages"].default
"""Largest number of alerts that a worker has published without an acknowledgement."""

pytestmark = [
    *needs_containers,
    pytest.mark.skipif(shutil.which(COMMAND[0]) is None, reason=f"{COMMAND[0]} is not installed"),
    pytest.mark.skipif(
        not all(os.environ.get(name) for name in PARTS),
        reason=f"{' or '.join(PARTS)} names no image: `make containers`",
    ),
]


class Stack:
    """The containers of the file, by the names of their services."""

    def __init__(self, tls: Path) -> None:
        self.tls = tls
        self.environment = os.environ | {"TLS_FOLDER": str(tls), "SERVICE_PORT": ""}

    def compose(self, *arguments: str) -> None:
        command = [*COMMAND, "-p", PROJECT, *FILES, *PROFILES, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def up(self, *arguments: str) -> None:
        self.compose("up", "-d", "--no-build", *arguments, *STARTED)
        wait_until(self.is_ready)

    def down(self, *arguments: str) -> None:
        """Remove every container; podman-compose itself leaves those that were added with ``--scale``."""
        label = f"label=com.docker.compose.project={PROJECT}"
        if left := engine("ps", "--all", "--quiet", "--filter", label).split():
            engine("stop", "--time", "45", *left)
        self.compose("down", *arguments)
        if left := engine("ps", "--all", "--quiet", "--filter", label).split():
            engine("rm", "--force", *left)
            self.compose("down", *arguments)

    def all(self, service: str) -> list[Container]:
        labels = (f"project={PROJECT}", f"service={service}")
        filters = [part for label in labels for part in ("--filter", f"label=com.docker.compose.{label}")]
        return [Container(name) for name in engine("ps", "--quiet", *filters).split()]

    def one(self, service: str) -> Container:
        (container,) = self.all(service)
        return container

    def pid(self, service: str) -> int:
        pid: int = self.one(service).state["Pid"]
        assert pid > 1  # 0, between two starts, would be this process and its group
        return pid

    def kill(self, service: str, pid: int) -> None:
        """Kill the process of a container, as the kernel or a fault would: the restart policy brings it back."""
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: any(each.state["Pid"] not in {0, pid} for each in self.all(service)))

    def redis(self) -> Any:
        networks = json.loads(engine("inspect", self.one("redis").name))[0]["NetworkSettings"]["Networks"]
        return redis.Redis(next(iter(networks.values()))["IPAddress"], protocol=2, socket_timeout=10)

    def feed(self, numbers: range) -> None:
        """Add alerts all at once, so that most of them wait when this returns."""
        with self.redis() as client, client.pipeline() as pipeline:
            for number in numbers:
                pipeline.xadd("alerts", {"value": alert(number, flux=1000.0 + number)})
            pipeline.execute()

    def keys(self) -> Counter[bytes]:
        """Count the results by key, while Redis may be away."""
        try:
            with self.redis() as client:
                return Counter(fields[b"key"] for _, fields in client.xrange("classifications"))
        except (redis.RedisError, ValueError, StopIteration):
            return Counter()

    def is_ready(self) -> bool:
        try:
            return all(
                [
                    len(self.all("service")) > 0,
                    *(status(service.port(8080), "/readyz") == 200 for service in self.all("service")),
                    self.redis().ping(),
                    *(ready(worker) for worker in self.all("worker")),
                    status(9090, "/-/ready") == 200,
                    self.https("/readyz")[0] == 200,
                ]
            )
        except (OSError, ValueError, redis.RedisError, AssertionError, StopIteration):
            return False

    def https(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(f"https://localhost{path}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, context=client_context(self.tls / "fullchain.pem"), timeout=60) as reply:
            return reply.status, reply.read()


def ready(worker: Container) -> bool:
    code = "import urllib.request as r; r.urlopen('http://127.0.0.1:8081/readyz', timeout=2)"
    return worker.run("sh", "-c", f'python3 -c "{code}" && echo ready', check=False) == "ready"


def prometheus(path: str, **query: str) -> Any:
    url = f"http://127.0.0.1:9090/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)["data"]


def targets() -> list[tuple[str, str]]:
    return sorted((each["labels"]["job"], each["health"]) for each in prometheus("targets")["activeTargets"])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, figures: dict[str, Any]) -> Iterator[Stack]:
    tls = tmp_path_factory.mktemp("tls")
    self_signed(tls)
    tls.chmod(0o755)
    (tls / "privkey.pem").chmod(0o644)  # nginx has another user
    stack = Stack(tls)
    started = time.monotonic()
    try:
        stack.up()
        figures["compose.start_seconds"] = round(time.monotonic() - started, 1)
        yield stack
    finally:
        stack.down("--volumes")


def test_prometheus_scrapes_both_targets_and_has_every_rule(stack: Stack) -> None:
    wait_until(lambda: targets() == [("nightjar", "up"), ("nightjar-worker", "up")])
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    loaded = prometheus("rules")["groups"]
    assert [len(group["rules"]) for group in loaded] == [len(group["rules"]) for group in groups]


def test_proxy_classifies_over_tls(stack: Stack) -> None:
    code, body = stack.https("/v1/classify", json.dumps(curve()).encode())
    assert (code, json.loads(body)["results"][0]["status"]) == (200, "classified")
    with pytest.raises(ssl.SSLError), socket.create_connection(("localhost", 443)) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


def test_containers_pass_the_health_check_of_the_image(stack: Stack) -> None:
    for service in ("service", "worker"):
        container = stack.one(service)
        check = json.loads(engine("inspect", container.name))[0]["Config"]["Healthcheck"]["Test"]
        container.run(*check[1:])


def test_service_finds_the_proxied_names_of_its_networks_only(stack: Stack) -> None:
    """podman 4.3 separates networks by name only; Docker also drops packets between them."""
    look_up = "import socket, sys; socket.getaddrinfo(sys.argv[1], 80)"
    for name, found in {"prometheus": True, "redis": False}.items():
        failed = stack.one("service").run(
            "sh", "-c", f'python3 -c "{look_up}" {name} 2>/dev/null || echo no', check=False
        )
        assert (failed != "no") is found, name


def test_alerts_through_redis_come_out_classified_once(stack: Stack) -> None:
    before = len(stack.keys())
    stack.feed(range(200))
    wait_until(lambda: len(stack.keys()) >= before + 200)
    with stack.redis() as client:
        values = [json.loads(fields[b"value"]) for _, fields in client.xrange("classifications")]
        assert client.xlen("alerts") == 0  # delete=yes
    assert {value["status"] for value in values} == {"classified"}
    assert set(stack.keys().values()) == {1}


@pytest.mark.parametrize("service", ["worker", "service", "proxy", "prometheus", "redis"])
def test_no_alert_is_lost_when_a_container_is_killed(stack: Stack, service: str, figures: dict[str, Any]) -> None:
    """The worker is in the middle of its work: some of a burst are published, and most are not."""
    first = 10_000 * (2 + STARTED.index(service))
    before = stack.keys()
    pid = stack.pid(service)
    with stack.redis() as client:
        stack.feed(range(first, first + BURST))
        while not (done := client.xlen("classifications") - before.total()):
            time.sleep(0.01)
    started = time.monotonic()
    stack.kill(service, pid)
    wait_until(stack.is_ready)
    figures[f"compose.seconds_to_ready_after_kill.{service}"] = round(time.monotonic() - started, 1)
    stack.feed(range(first + BURST, first + BURST + 200))
    wait_until(lambda: len(stack.keys()) >= len(before) + BURST + 200)
    figures[f"compose.seconds_to_last_alert_after_kill.{service}"] = round(time.monotonic() - started, 1)
    time.sleep(2)
    new = stack.keys() - before
    figures[f"compose.published_before_kill.{service}"] = done
    figures[f"compose.lost_after_kill.{service}"] = BURST + 200 - len(new)
    figures[f"compose.repeated_after_kill.{service}"] = sum(new.values()) - len(new)
    assert done < BURST
    assert len(new) == BURST + 200
    assert sum(new.values()) - len(new) <= IN_FLIGHT


def test_prometheus_keeps_what_it_scraped_before_it_was_killed(stack: Stack) -> None:
    begun = stack.one("service").state["StartedAt"]
    assert begun
    samples = prometheus("query", query="count_over_time(up{job='nightjar-worker'}[1h])")["result"]
    stack.kill("prometheus", stack.pid("prometheus"))
    wait_until(stack.is_ready)
    after = prometheus("query", query="max(count_over_time(up{job='nightjar-worker'}[1h]))")["result"]
    assert float(after[0]["value"][1]) >= max(float(each["value"][1]) for each in samples) - 2


def test_two_workers_share_the_stream(stack: Stack) -> None:
    before = stack.keys()
    stack.up("--scale", "worker=2")
    assert len(stack.all("worker")) == 2
    wait_until(lambda: targets().count(("nightjar-worker", "up")) == 2)
    stack.feed(range(200_000, 200_600))
    wait_until(lambda: len(stack.keys()) >= len(before) + 600)
    time.sleep(2)
    new = stack.keys() - before
    assert (len(new), set(new.values())) == (600, {1})


def test_volumes_outlive_their_containers(stack: Stack) -> None:
    before = stack.keys()
    stack.down()
    stack.up()
    assert stack.keys() == before
    assert prometheus("query", query="count_over_time(up{job='nightjar'}[1h] offset 30s)")["result"]


def test_classifies_at_the_published_port(stack: Stack) -> None:
    assert classify(stack.one("service").port(8080), curve())["results"][0]["status"] == "classified"


def test_two_services_behind_the_proxy_are_replaced_without_a_failed_request(stack: Stack) -> None:
    stack.up("--scale", "service=2")
    services = stack.all("service")
    assert len(services) == 2
    engine("kill", "--signal", "HUP", stack.one("proxy").name)  # nginx resolves the name `service` again
    statuses: Counter[object] = Counter()
    with ThreadPoolExecutor(4) as clients, sending(stack, clients, statuses):
        for service in services:
            answered = statuses[200]
            engine("stop", "--time", "45", service.name)
            engine("start", service.name)
            wait_until(stack.is_ready)
            engine("kill", "--signal", "HUP", stack.one("proxy").name)
            wait_until(partial(has_classified, service, 10))
            assert statuses[200] > answered
    assert set(statuses) == {200}


def has_classified(service: Container, count: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port(8080)}/metrics", timeout=10) as reply:
        counts = re.findall(rb"^nightjar_confidence_count\S* (\S+)$", reply.read(), re.MULTILINE)
    return sum(map(float, counts)) > count


@contextmanager
def sending(stack: Stack, clients: ThreadPoolExecutor, statuses: Counter[object]) -> Iterator[None]:
    """Let four clients send light curves one after the other, and count the status of each response."""
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            try:
                statuses[stack.https("/v1/classify", json.dumps(curve(10 + statuses.total() % 90)).encode())[0]] += 1
            except OSError as error:
                statuses[repr(error)] += 1
            time.sleep(0.1)  # nginx allows each address 100 requests a second

    sent = [clients.submit(send) for _ in range(4)]
    try:
        yield
    finally:
        done.set()
        for each in sent:
            each.result()
