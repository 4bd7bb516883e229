"""Several processes on one machine behind deploy/nginx.conf: shared load, and replacing one at a time under load."""

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.bench.nginx import NginxProcess, client_context, is_installed, running_nginx
from nightjar_alerts.service.local import ServiceProcess, start
from nightjar_alerts.service.settings import ALL_FIELDS, Settings
from support.edge import curve, wait_until

ROOT = Path(__file__).resolve().parents[2]
UNIT = (ROOT / "deploy" / "nightjar@.service").read_text()
CLIENTS = 6
needs_nginx = pytest.mark.skipif(not is_installed(), reason="nginx or openssl is not installed")


def process(folder: Path, bundle: Path) -> ServiceProcess:
    """Start a process with one inference run, without waiting for it; it drains as by default, but for less time."""
    settings = {"NIGHTJAR_WORKERS": "1", "NIGHTJAR_DRAIN_DELAY": "1", "NIGHTJAR_CACHE_BYTES": "0"}
    return start(folder, bundle, settings)


class Load:
    """Clients that keep their connection and count the status of each request."""

    def __init__(self, nginx: NginxProcess) -> None:
        self.statuses: Counter[str] = Counter()
        self._nginx, self._end = nginx, threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(CLIENTS)]

    def _send(self) -> None:
        context = client_context(self._nginx.certificate)
        connection = http.client.HTTPSConnection("localhost", self._nginx.port, timeout=60, context=context)
        reused = False
        body = json.dumps(curve(60))
        while not self._end.is_set():
            try:
                connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                reply.read()
                self.statuses[str(reply.status)] += 1
                reused = True
            except (OSError, http.client.HTTPException) as error:
                # nginx closes idle connections when it is reloaded, and every client then connects again.
                if not (reused and isinstance(error, http.client.RemoteDisconnected | ssl.SSLEOFError)):
                    self.statuses[repr(error)] += 1
                connection.close()
                reused = False
        connection.close()

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def proxied(folder: Path, ports: list[int]) -> Iterator[NginxProcess]:
    """The shipped configuration with several processes and a rate that the load does not reach."""
    servers = f":{ports[0]} max_fails=0;" + "".join(f" server 127.0.0.1:{port} max_fails=0;" for port in ports[1:])
    changes = {f":{ports[0]} max_fails=0;": servers, "rate=100r/s": "rate=10000r/s"}
    with running_nginx(folder, ports[0], changes) as nginx:
        yield nginx


RESTART = """#!/bin/sh
kill -TERM "$(cat {folder}/$1.pid)"
while kill -0 "$(cat {folder}/$1.pid)" 2>/dev/null; do sleep 0.1; done
NIGHTJAR_PORT=$1 {python} -m nightjar_alerts.service serve >{folder}/$1.log 2>&1 &
echo $! >{folder}/$1.pid
until {python} -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$1/readyz')" 2>/dev/null; do sleep 0.1; done
"""


@pytest.mark.slow
@needs_nginx
def test_replace_script_fails_no_request(tiny_bundle: Path, tmp_path: Path) -> None:
    restart = tmp_path / "restart"
    restart.write_text(RESTART.format(folder=tmp_path, python=sys.executable))
    restart.chmod(0o755)
    settings = {"NIGHTJAR_BUNDLE": str(tiny_bundle), "NIGHTJAR_WORKERS": "1", "NIGHTJAR_DRAIN_DELAY": "1"}
    with ExitStack() as stack:
        processes = [process(tmp_path, tiny_bundle) for _ in range(2)]
        ports = [one.port for one in processes]
        stack.callback(end, tmp_path, ports)
        for one in processes:
            (tmp_path / f"{one.port}.pid").write_text(str(one.process.pid))
            threading.Thread(target=one.process.wait, daemon=True).start()  # a zombie would look alive
            one.wait_ready()
        nginx = stack.enter_context(proxied(tmp_path / "nginx", ports))
        commands = {
            "NGINX_CONF": str(nginx.folder / "nginx.conf"),
            "NGINX_RELOAD": f"kill -HUP {nginx.process.pid}",
            "RESTART": str(restart),
        }
        with Load(nginx) as load:
            wait_until(lambda: load.statuses["200"] > 50)
            command = ["sh", str(ROOT / "deploy" / "replace.sh"), *map(str, ports)]
            subprocess.run(command, env=os.environ | settings | commands, check=True)
            before = load.statuses["200"]
            wait_until(lambda: load.statuses["200"] > before + 50)
        pids = {int((tmp_path / f"{port}.pid").read_text()) for port in ports}
    assert not pids & {one.process.pid for one in processes}
    assert set(load.statuses) == {"200"}


def replace(conf: Path, *ports: str, restart: str = "true") -> subprocess.CompletedProcess[str]:
    commands = {"NGINX_CONF": str(conf), "NGINX_RELOAD": "true", "RESTART": restart}
    command = ["sh", str(ROOT / "deploy" / "replace.sh"), *ports]
    return subprocess.run(command, env=os.environ | commands, capture_output=True, text=True, check=False)


def test_replace_script_refuses_to_take_away_the_only_process(tmp_path: Path) -> None:
    conf = tmp_path / "nginx.conf"
    conf.write_text("server 127.0.0.1:8081 max_fails=0;\nserver 127.0.0.1:8082 max_fails=0 down;\n")
    before = conf.read_text()
    done = replace(conf, "8081")
    assert (done.returncode, done.stderr) == (1, f"{conf}: no process in service but 8081\n")
    assert conf.read_text() == before


def test_replace_script_run_again_after_a_failed_restart_finishes(tmp_path: Path) -> None:
    conf = tmp_path / "nginx.conf"
    conf.write_text("server 127.0.0.1:8081 max_fails=0;\nserver 127.0.0.1:8082 max_fails=0;\n")
    before = conf.read_text()
    assert replace(conf, "8081", restart="false").returncode == 1
    assert "8081 max_fails=0 down;" in conf.read_text()
    assert replace(conf, "8081").returncode == 0
    assert conf.read_text() == before


def end(folder: Path, ports: list[int]) -> None:
    """End the processes of a test by their recorded ids."""
    for port in ports:
        with suppress(ProcessLookupError):
            os.kill(int((folder / f"{port}.pid").read_text()), signal.SIGKILL)


@pytest.mark.slow
@needs_nginx
def test_processes_share_the_requests(tiny_bundle: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [process(tmp_path, tiny_bundle) for _ in range(2)]
        for one in processes:
            stack.callback(one.stop)
            one.wait_ready()
        nginx = stack.enter_context(proxied(tmp_path / "nginx", [one.port for one in processes]))
        with Load(nginx) as load:
            wait_until(lambda: load.statuses["200"] > 400)
        counts = [one.metric("nightjar_confidence_count") for one in processes]
    assert min(counts) > max(counts) / 4


@pytest.mark.slow
@needs_nginx
def test_killed_process_fails_only_the_requests_that_it_had(tiny_bundle: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        kept, killed = (process(tmp_path, tiny_bundle) for _ in range(2))
        stack.callback(kept.stop)
        kept.wait_ready()
        killed.wait_ready()
        nginx = stack.enter_context(proxied(tmp_path / "nginx", [kept.port, killed.port]))
        with Load(nginx) as load:
            wait_until(lambda: load.statuses["200"] > 50)
            killed.process.send_signal(signal.SIGKILL)
            killed.process.wait()
            before = load.statuses["200"]
            wait_until(lambda: load.statuses["200"] > before + 100)
    failed = {status: count for status, count in load.statuses.items() if status != "200"}
    assert all(status == "502" or status.startswith("IncompleteRead") for status in failed)  # the reply had begun
    assert sum(failed.values()) <= CLIENTS


def test_unit_outlasts_the_drain_and_names_settings_that_exist() -> None:
    fields = Settings.model_fields
    drain = timedelta(seconds=fields["drain_delay"].default + fields["drain_timeout"].default)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert stop is not None
    assert timedelta(seconds=int(stop[1])) > drain
    assert set(re.findall(r"^Environment=NIGHTJAR_(\w+)=", UNIT, re.MULTILINE)) <= {name.upper() for name in ALL_FIELDS}
