"""Containers of the image for a test, through podman or Docker, with the restrictions of docker-compose.yml."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import gettempdir
from typing import Any, Final

import pytest

ENGINE: Final = os.environ.get("NIGHTJAR_CONTAINERS") or ("podman" if shutil.which("podman") else "docker")
IMAGE: Final = os.environ.get("NIGHTJAR_IMAGE", "")
START_SECONDS: Final = 180.0
HARDENED: Final = (
    "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges",
    "--pids-limit", "256", "--cpus", "2",
)  # fmt: skip

needs_containers = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which(ENGINE) is None, reason=f"{ENGINE} is not installed"),
    pytest.mark.skipif(not IMAGE, reason="NIGHTJAR_IMAGE names no image: `make containers` builds and tests one"),
]


def engine(*arguments: str, check: bool = True, seconds: float = 600.0) -> str:
    """Run a command of podman or Docker and return its standard output."""
    done = subprocess.run(  # podman leaves a file `oom` in its folder when a container is out of memory
        [ENGINE, *arguments], cwd=gettempdir(), capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Container:
    """A container that was started in the background."""

    name: str

    def port(self, inside: int) -> int:
        """Return the port of this machine at which a port of the container is published."""
        return int(engine("port", self.name, f"{inside}/tcp").rpartition(":")[2])

    @property
    def state(self) -> dict[str, Any]:
        """What the engine says of the process: Running, ExitCode, OOMKilled."""
        state: dict[str, Any] = json.loads(engine("inspect", self.name))[0]["State"]
        return state

    def log(self) -> str:
        """Return what the process has written."""
        done = subprocess.run([ENGINE, "logs", self.name], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in the container and return its output."""
        return engine("exec", self.name, *command, check=check)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit status."""
        return int(engine("wait", self.name).splitlines()[-1])

    def wait_ready(self, port: int = 8080) -> float:
        """Wait until ``/readyz`` answers 200; return the seconds that took. Fails with the log if the process ends."""
        started = time.monotonic()
        while status(self.port(port), "/readyz") != 200:
            assert self.state["Running"], self.log()
            assert time.monotonic() < started + START_SECONDS, self.log()
            time.sleep(0.1)
        return time.monotonic() - started


def status(port: int, path: str) -> int:
    """Return the status of a GET request, 0 without a response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def classify(port: int, body: Any) -> dict[str, Any]:
    """Send a body to ``/v1/classify`` and return the response."""
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/classify", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def published(inside: int = 8080) -> Sequence[str]:
    """Return the options that publish a port on loopback, at a free port.

    The port is chosen here, because podman gives a container another one when it is started again.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ("--publish", f"127.0.0.1:{probe.getsockname()[1]}:{inside}")


ANONYMOUS: Final = ("--env", "NIGHTJAR_ALLOW_ANONYMOUS=true")


@contextmanager
def container(
    *options: str, command: Sequence[str] = (), image: str = IMAGE, hardened: Sequence[str] = HARDENED
) -> Iterator[Container]:
    """Run a container for the length of a ``with`` block, and remove it with its volumes."""
    name = engine("run", "--detach", *hardened, *options, image, *command)
    try:
        yield Container(name)
    finally:
        engine("rm", "--force", "--volumes", name)
