"""A service process for the demonstration: started on a free port, waited for, stopped."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from service.commands.client import ClientError

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
SETTINGS = {"HOST": HOST, "DRAIN_DELAY": "0", "API_KEYS": "[]", "LOG_LEVEL": "info"}


@contextmanager
def service() -> Iterator[str]:
    """Address of a service that is ready, for the length of a ``with`` block; ClientError with its log if it is not.

    The process is the command a user starts, with its log in a file, so that a full pipe can never block it.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
        log = Path(folder) / "service.log"
        chosen = {f"NIGHTJAR_{name}": text for name, text in (SETTINGS | {"PORT": str(port)}).items()}
        with log.open("wb") as sink:
            command = [sys.executable, "-m", "service", "serve"]
            process = subprocess.Popen(command, env=os.environ | chosen, stdout=sink, stderr=subprocess.STDOUT)
        try:
            _wait(process, port, log)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise ClientError(f"ended with {process.returncode} before it was ready\n{log.read_text()}")
        if _is_ready(port):
            return
        time.sleep(0.01)
    raise ClientError(f"not ready after {START_SECONDS:.0f} s\n{log.read_text()}")


def _is_ready(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):  # it does not listen yet
        return False
    finally:
        connection.close()
