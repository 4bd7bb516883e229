"""A real Redis server for a test, on a port of its own, which the test may kill, stop and start again."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.edge import HOST, wait_until

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (apt-get install redis-server)"
)


class RedisServer:
    """A server.

    Parameters
    ----------
    keeps : whether it has after a kill what it had before; otherwise it keeps nothing on disk.
    """

    def __init__(self, folder: Path, keeps: bool = False) -> None:
        self._keeps = "yes" if keeps else "no"
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = int(probe.getsockname()[1])
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", HOST, "--save", "", "--dir", str(self._folder)]
        keep = ["--appendonly", self._keeps, "--appendfsync", "always"]
        self._process = subprocess.Popen([*command, *keep], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)

    def kill(self) -> None:
        """Kill the server, as a machine that loses power does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Connections stay open and are answered no more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """End :meth:`hang`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def redis_server(folder: Path, keeps: bool = False) -> Iterator[RedisServer]:
    """A server, running."""
    server = RedisServer(folder, keeps)
    server.start()
    try:
        yield server
    finally:
        server.kill()
