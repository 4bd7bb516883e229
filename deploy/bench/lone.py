"""What the service adds to a lone request: one JSON light curve, nothing else going on, beside the bare run of it.

Each curve is run bare and asked over HTTP, in turn; the difference counts, curve by curve, so that long and short ones
weigh alike. The client is a blocking socket in this process, the thinnest there is.
"""

import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import orjson

from deploy.bench.bare import Bare
from deploy.bench.curves import Columns
from deploy.bench.load import HOST, request
from deploy.bench.report import Numbers, spread
from deploy.bench.throughput import WrongAnswer
from deploy.bench.wire import patient
from models.runtime import run

CURVES: Final = 100
_PIECE: Final = 1 << 16


class Line:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, data: bytes) -> bytes:
        """The body of the reply. Raises WrongAnswer for anything but 200."""
        self._socket.sendall(data)
        received = b""
        while (split := received.find(b"\r\n\r\n")) < 0:
            received += self._more()
        head = received[:split].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(received) < split + 4 + length:
            received += self._more()
        if head[9:12] != b"200":
            raise WrongAnswer(received.decode("utf-8", "replace")[:500])
        return received[split + 4 :]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _more(self) -> bytes:
        piece = self._socket.recv(_PIECE)
        if not piece:
            raise WrongAnswer("the service hung up in the middle of a reply")
        return piece


def measure(bundle: Path, curves: Sequence[Columns], rounds: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``engine.lone_*``; medians over the curves of a round."""
    some = curves[:CURVES]
    bare = Bare.of(bundle, some)
    requests = [request("/v1/classify", orjson.dumps(curve)).data for curve in some]
    asked, alone, added = [], [], []
    with patient(bundle) as service:
        line = Line(service.port)
        for number in range(1 + rounds):
            pairs = [_pair(line, data, bare, index) for index, data in enumerate(requests)]
            if number:  # the first round warms up
                asked.append(1e3 * median(http for http, _ in pairs))
                alone.append(1e3 * median(network for _, network in pairs))
                added.append(1e3 * median(http - network for http, network in pairs))
                say(f"lone, {number}/{rounds}: {asked[-1]:.2f} ms, of which bare {alone[-1]:.2f} ms")
        line.close()
    return {
        "engine.lone_p50_ms": spread(asked),
        "engine.lone_bare_p50_ms": spread(alone),
        "engine.lone_p50_overhead_ms": spread(added),
    }


def _pair(line: Line, data: bytes, bare: Bare, index: int) -> tuple[float, float]:
    """Seconds over HTTP and seconds bare."""
    began = time.perf_counter()
    body = line.ask(data)
    asked = time.perf_counter() - began
    if json.loads(body)["results"][0]["status"] != "classified":
        raise WrongAnswer(body.decode()[:500])
    began = time.perf_counter()
    run(bare.session, bare.inputs[index])
    return asked, time.perf_counter() - began
