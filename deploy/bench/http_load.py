"""Closed-loop HTTP load client over raw asyncio streams, in a separate process.

    python -m deploy.bench.http_load PORT PLAN --clients 32 --replies FILE < /dev/null

A plan is a file of requests, written by :func:`write_plan`. Each client keeps one connection, sends the next request
of the plan as soon as it has received the last response, and reconnects if the server closes the connection. Latency is
measured from the first byte sent to the last byte received. The result is one JSON object on standard output. The
client handles tens of thousands of requests per second on one core, far more than the service.
"""

import argparse
import asyncio
import json
import math
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

HOST = "127.0.0.1"
_HEADER = struct.Struct(">?I")
DROPPED = "dropped"  # the connection ended before a complete response
VANISHED = "vanished"  # the client disconnected, as planned


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """HTTP/1.1 request as bytes; ``vanish`` closes the connection after sending, without waiting for the response."""

    data: bytes
    vanish: bool = False


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Response: status code (0 for none) and body."""

    status: int
    body: bytes = b""


def request(path: str, body: bytes = b"", content_type: str = "application/json", method: str = "") -> HttpRequest:
    """Return a request with a minimum of headers; POST if there is a body."""
    head = f"{method or ('POST' if body else 'GET')} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return HttpRequest(head.encode() + b"\r\n" + body)


def write_plan(path: Path, requests: Iterable[HttpRequest]) -> None:
    """Write requests to a file, in order."""
    path.write_bytes(b"".join(_HEADER.pack(r.vanish, len(r.data)) + r.data for r in requests))


def read_plan(path: Path) -> list[HttpRequest]:
    """Read the requests written by :func:`write_plan`."""
    data, at, requests = path.read_bytes(), 0, []
    while at < len(data):
        vanish, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        requests.append(HttpRequest(data[at : at + length], vanish))
        at += length
    return requests


@dataclass(slots=True)
class PlanOutcome:
    """Outcome of a plan. ``latency`` (seconds) and ``replies`` are indexed like the plan."""

    latency: list[float]
    replies: list[HttpReply]
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


async def _read_reply(reader: asyncio.StreamReader) -> tuple[HttpReply, bool]:
    """Read a response; also return whether the server keeps the connection open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    body = await reader.readexactly(int(length or 0))
    return HttpReply(status, body), b"connection: close" not in head


class LoadClient:
    """Client with one connection, opened on demand."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, one: HttpRequest) -> HttpReply | str:
        """Send a request; return the response, or why there is none."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(HOST, self._port)
            reader, writer = self._streams
            writer.write(one.data)
            if one.vanish:
                await writer.drain()
                self.close()
                return VANISHED
            reply, keep = await _read_reply(reader)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return DROPPED
        if not keep:
            self.close()
        return reply

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def drive(port: int, plan: list[HttpRequest], clients: int) -> PlanOutcome:
    """Send all requests of a plan with `clients` concurrent clients."""
    outcome = PlanOutcome([0.0] * len(plan), [HttpReply(0)] * len(plan))
    queue: Iterator[tuple[int, HttpRequest]] = iter(enumerate(plan))

    async def work() -> None:
        client = LoadClient(port)
        for index, one in queue:  # shared by the clients
            started = time.perf_counter()
            reply = await client.send(one)
            outcome.latency[index] = time.perf_counter() - started
            if isinstance(reply, HttpReply):
                outcome.replies[index] = reply
            outcome.statuses[reply if isinstance(reply, str) else str(reply.status)] += 1
        client.close()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    outcome.seconds = time.perf_counter() - started
    return outcome


def summary(outcome: PlanOutcome) -> dict[str, Any]:
    """Return the figures of an outcome as JSON values; latencies in milliseconds."""
    answered = sorted(s for s, reply in zip(outcome.latency, outcome.replies, strict=True) if reply.status)
    return {
        "seconds": outcome.seconds,
        "per_second": len(answered) / outcome.seconds,
        "p50_ms": 1e3 * quantile(answered, 0.50),
        "p99_ms": 1e3 * quantile(answered, 0.99),
        "statuses": dict(outcome.statuses),
    }


def quantile(ordered: list[float], q: float) -> float:
    """Return the smallest value that a fraction `q` of the values does not exceed; NaN if there are none."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def run_in_process(port: int, plan: Path, clients: int, replies: Path | None = None) -> dict[str, Any]:
    """Run this module in a separate process and return its :func:`summary`."""
    command = [sys.executable, "-m", "deploy.bench.http_load", str(port), str(plan), "--clients", str(clients)]
    if replies is not None:
        command += ["--replies", str(replies)]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    """Send a plan and print the summary."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.http_load", description="closed-loop HTTP load")
    parser.add_argument("port", type=int)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--replies", type=Path, help="write [status, body] of every reply here, as JSON")
    options = parser.parse_args()
    outcome = uvloop.run(drive(options.port, read_plan(options.plan), options.clients))
    if options.replies:
        rows = [[reply.status, reply.body.decode("utf-8", "replace")] for reply in outcome.replies]
        options.replies.write_text(json.dumps(rows))
    print(json.dumps(summary(outcome)))


if __name__ == "__main__":
    main()
