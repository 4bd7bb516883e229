"""A real Redis server for a test, on a port of its own, which the test may kill, stop and start again."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nightjar_alerts.service.local import free_port
from support.edge import HOST, wait_until

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (apt-get install redis-server)"
)


class RedisServer:
    """A server.

    Parameters
    ----------
    options : further options of redis-server.
    keeps : whether it has after a kill what it had before; otherwise it keeps nothing on disk.
    plain : whether it is started with the given options alone, such as a Sentinel.
    tls : whether it also listens on :attr:`tls_port`.
    """

    def __init__(
        self, folder: Path, *options: str, keeps: bool = False, plain: bool = False, tls: bool = False
    ) -> None:
        self._options = list(options)
        self._keeps, self._plain = "yes" if keeps else "no", plain
        self.port = free_port()
        self.tls_port = free_port() if tls else 0
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", *self._options[:1]] if self._plain else ["redis-server"]
        command += ["--port", str(self.port), "--bind", HOST, "--dir", str(self._folder)]
        if self._plain:
            command += self._options[1:]
        else:
            command += ["--save", "", "--appendonly", self._keeps, "--appendfsync", "always", *self._options]
        if self.tls_port:
            command += ["--tls-port", str(self.tls_port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextmanager
def redis_server(
    folder: Path, *options: str, keeps: bool = False, plain: bool = False, tls: bool = False
) -> Iterator[RedisServer]:
    """A server, running."""
    server = RedisServer(folder, *options, keeps=keeps, plain=plain, tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.kill()
