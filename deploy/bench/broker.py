"""A real Redis server with streams of alerts and results, and the worker between them that a user starts."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from service.commands.process import HOST, Service, free_port

STEP_SECONDS: Final = 0.05
AT_ONCE: Final = 500  # alerts in a round trip to the server
PATIENCE_SECONDS: Final = 600.0


def feed(client: Any, packets: Sequence[bytes], seconds: float = 0.0) -> None:
    """Append alerts evenly over some seconds, or all at once."""
    started, sent = time.monotonic(), 0
    while sent < len(packets):
        due = sent + AT_ONCE if not seconds else int(len(packets) * min(1.0, (time.monotonic() - started) / seconds))
        pipeline = client.pipeline(transaction=False)
        for data in packets[sent:due]:
            pipeline.xadd("alerts", {"value": data})
        pipeline.execute()
        sent = min(due, len(packets))
        time.sleep(STEP_SECONDS if seconds else 0)


def wait(client: Any, count: int) -> None:
    """Wait until so many alerts are answered; raises TimeoutError after ten minutes."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while client.xlen("results") < count:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{client.xlen('results')} of {count} alerts were answered")
        time.sleep(STEP_SECONDS)


def milliseconds(entry: bytes) -> int:
    """When the server took an entry."""
    return int(entry.partition(b"-")[0])


@contextmanager
def redis_server() -> Iterator[Any]:
    """A client of a server of one's own, which keeps nothing on disk."""
    import redis

    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", HOST, "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client = redis.Redis(HOST, port, protocol=2, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 100))
        try:
            client.ping()
            client.xgroup_create("alerts", "nightjar", "0", mkstream=True)
            yield client
        finally:
            client.close()
            process.kill()
            process.wait()


@contextmanager
def worker(bundle: Path, client: Any, runs: int) -> Iterator[Service]:
    """A worker process, ready."""
    port, place = free_port(), f"redis://{HOST}:{client.get_connection_kwargs()['port']}"
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        settings = {
            "HOST": HOST, "WORKER_PORT": port, "BUNDLE": bundle, "WORKERS": runs, "CACHE_BYTES": 0,
            "SOURCE": f"{place}/alerts", "SINK": f"{place}/results", "DEAD_LETTERS": f"file:{folder}/letters/",
        }  # fmt: skip
        environment = {**os.environ, **{f"NIGHTJAR_{name}": str(value) for name, value in settings.items()}}
        log = Path(folder, "log")
        with log.open("wb") as sink:
            process = subprocess.Popen([sys.executable, "-m", "service", "worker"], env=environment, stderr=sink)
        service = Service(process, port, log)
        try:
            service.wait_ready(120)
            yield service
        finally:
            service.stop()
