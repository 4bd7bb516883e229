"""A service of one's own for the length of a ``with`` block: the command a user would start, on a free port."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep

from service.client import Client, ClientError
from service.settings import ClientSettings

HOST = "127.0.0.1"
SAMPLES = Path(__file__).parent / "samples"
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class DemoError(Exception):
    """The service did not start, ended by itself or did not stop as it should; the text ends with its log."""


@contextmanager
def own_service() -> Iterator[str]:
    """Address of a ready service, stopped with SIGTERM at the end of the block. Raises DemoError."""
    with tempfile.TemporaryFile() as log:
        port = _free_port()
        settings = {"HOST": HOST, "PORT": str(port), "DRAIN_DELAY": "0", "API_KEYS": "[]", "LOG_LEVEL": "info"}
        environment = {**os.environ, **{f"NIGHTJAR_{name}": value for name, value in settings.items()}}
        command = [sys.executable, "-m", "service", "serve"]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            url = f"http://{HOST}:{port}"
            _wait_ready(process, url)
            yield url
            _stop(process)
        except DemoError as error:
            log.seek(0)
            raise DemoError(f"{error}\n{log.read().decode(errors='replace')}") from None
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    give_up = monotonic() + START_SECONDS
    with closing(Client(ClientSettings(url=url, api_key="", timeout=5))) as client:
        while process.poll() is None and monotonic() < give_up:
            try:
                client.ask("GET", "/readyz")
            except ClientError:
                sleep(0.05)
            else:
                return
    raise DemoError("the service did not become ready")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise DemoError("the service did not stop when told to") from None
    if status != 0:
        raise DemoError(f"the service ended with status {status}")
