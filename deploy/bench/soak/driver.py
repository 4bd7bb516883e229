"""The load of a soak: requests with known answers, sent in an open loop while models change.

Models that change under load: a second version is loaded, taken back, and loaded again, by the admin interface.

Open-loop load: requests leave at random moments, whatever has become of the earlier ones.

Latency counts from the moment intended. A request that is not answered within :data:`STRANDED_SECONDS`, or whose
connection ends without a reply, is stranded.

What is asked during a soak, and what has to be answered.

Every right answer is known beforehand from bare runs, one light curve at a time, of each network that may answer; a
reply names the version that gave it, and is held to that one's. The two versions are different networks, so that an
answer of the wrong one cannot pass.
"""

import asyncio
import json
import random
import shutil
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from deploy.bench.bare import Bare
from deploy.bench.load import DROPPED, HOST, Client, Reply, Request, request
from deploy.bench.wire import MSGPACK, TOLERANCE, packed_request
from deploy.bench.workload import Columns, alert_mix, broken
from models.bundle import load_bundle, write_manifest

Kind = Literal["one", "batch", "bad", "cancelled", "look-up"]
SHARES: Final[Mapping[Kind, float]] = {"one": 0.62, "batch": 0.15, "bad": 0.10, "cancelled": 0.08, "look-up": 0.05}
CURVES, REQUESTS = 200, 2000  # prepared; requests are then drawn from them
LARGEST_BATCH: Final = 12
REFUSALS: Final = (429, 503, 504)
LATE: Final = "deadline_exceeded"
LOOK_UPS: Final = ("/v1/models", "/healthz", "/readyz", "/metrics")
SEED: Final = 20260104

Verdict = Literal["right", "refused", "wrong"]
Golden = Mapping[str, NDArray[np.float32]]
"""Probabilities of every curve by the version that gives them, shape (curves, classes)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; ``curves`` are the numbers of the light curves in it."""

    kind: Kind
    request: Request
    curves: tuple[int, ...] = ()


def golden(bundles: Mapping[str, Path], curves: Sequence[Columns]) -> Golden:
    """Bare answers of the bundle of each version."""
    return {version: Bare.of(path, curves).probabilities() for version, path in bundles.items()}


def drawn() -> list[Columns]:
    """Return the light curves that everything is about."""
    return alert_mix(CURVES, SEED)


def prepared(curves: Sequence[Columns]) -> list[Asked]:
    """Return requests of every kind, in their shares."""
    rng = random.Random(SEED)
    kinds = rng.choices(list(SHARES), list(SHARES.values()), k=REQUESTS)
    return [_one(kind, curves, rng) for kind in kinds]


def _one(kind: Kind, curves: Sequence[Columns], rng: random.Random) -> Asked:
    number = rng.randrange(len(curves))
    alone = request("/v1/classify", orjson.dumps(curves[number]))
    match kind:
        case "one":
            return Asked(kind, alone, (number,))
        case "batch":
            chosen = tuple(rng.sample(range(len(curves)), rng.randint(2, LARGEST_BATCH)))
            return Asked(kind, packed_request([curves[index] for index in chosen]), chosen)
        case "bad":
            return Asked(kind, request("/v1/classify", broken(curves[number], rng)))
        case "cancelled":
            return Asked(kind, Request(alone.data, vanish=True))
        case "look-up":
            return Asked(kind, request(rng.choice(LOOK_UPS)))


def judge(asked: Asked, reply: Reply, golden: Golden) -> Verdict:
    """Judge whether a reply is what it has to be. A refusal for want of room is none to a bad request."""
    if asked.kind == "bad":
        return "right" if 400 <= reply.status < 500 or reply.status in REFUSALS else "wrong"
    if reply.status in REFUSALS:
        return "refused"
    if reply.status != 200:
        return "wrong"
    return _compared(asked, reply, golden) if asked.curves else "right"


def _compared(asked: Asked, reply: Reply, golden: Golden) -> Verdict:
    """Light curves of a batch that came too late are refused one by one; the others have to be right all the same."""
    document: Any = msgspec.msgpack.decode(reply.body) if _is_packed(asked) else json.loads(reply.body)
    expected, results = golden.get(document["model"]["version"]), document["results"]
    if expected is None or len(results) != len(asked.curves):
        return "wrong"
    late = [result.get("reason") == LATE for result in results]
    for result, curve, is_late in zip(results, asked.curves, late, strict=True):
        if not is_late and not _agrees(result, expected[curve]):
            return "wrong"
    return "refused" if any(late) else "right"


def _agrees(result: Mapping[str, Any], expected: NDArray[np.float32]) -> bool:
    if result["status"] != "classified":
        return False
    return bool(np.abs(np.array(list(result["probabilities"].values())) - expected).max() <= TOLERANCE)


def _is_packed(asked: Asked) -> bool:
    return MSGPACK.encode() in asked.request.data.partition(b"\r\n\r\n")[0]


PATIENCE_SECONDS: Final = 300.0


def next_version(bundle: Path, other: Path, folder: Path) -> tuple[str, str]:
    """Make another network the next version of a model, in a new folder; the model's name and the version."""
    manifest = load_bundle(bundle).manifest
    major, minor, patch = map(int, manifest.version.split("."))
    version = f"{major}.{minor}.{patch + 1}"
    shutil.copytree(other, folder)
    write_manifest(folder, load_bundle(other).manifest.model_copy(update={"name": manifest.name, "version": version}))
    return manifest.name, version


@dataclass(slots=True)
class Administrator:
    """Makes a change every ``pause`` seconds, each kind in turn; counts those ``made``, keeps what failed."""

    port: int
    name: str
    version: str
    pause: float
    made: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def work(self) -> None:
        """Go on until cancelled."""
        changes = (
            ("load", f"/admin/models/{self.name}/load", json.dumps({"version": self.version})),
            ("reload", "/admin/reload", ""),
            ("rollback", f"/admin/models/{self.name}/rollback", ""),
            ("reload", "/admin/reload", ""),
        )
        while True:
            for what, path, body in changes:
                await asyncio.sleep(self.pause)
                await asyncio.to_thread(self._make, what, path, body)

    def _make(self, what: str, path: str, body: str) -> None:
        connection = HTTPConnection(HOST, self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            said = response.read()
            if response.status == 200:
                self.made[what] += 1
            else:
                self.failures.append(f"{what}: {response.status} {said[:300].decode('utf-8', 'replace')}")
        except (OSError, HTTPException) as error:
            self.failures.append(f"{what}: {error}")
        finally:
            connection.close()


STRANDED_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 20.0  # after which a connection is not used again: the service may be about to close it
MOST_EXAMPLES: Final = 10


@dataclass(slots=True)
class Tally:
    """Count of answers. ``outcomes`` is by kind and outcome; ``seconds`` are latencies of right answers.

    ``behind`` is the most seconds by which a request left late: a client that was not run itself can strand requests.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    behind: float = 0.0

    def count(self, outcome: str) -> int:
        """Return requests of any kind with an outcome."""
        return sum(count for (_, what), count in self.outcomes.items() if what == outcome)

    def note(self, asked: Asked, outcome: str, seconds: float, said: str = "") -> None:
        """One more; what was said is kept of the first that went wrong."""
        self.outcomes[asked.kind, outcome] += 1
        if outcome == "right":
            self.seconds.append(seconds)
        elif outcome in ("wrong", "stranded") and len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{asked.kind}: {outcome}: {said[:300]}")


class Driver:
    """Sends prepared requests to a port and keeps the tally."""

    def __init__(self, port: int, asked: Sequence[Asked], golden: Golden, seed: int = 0) -> None:
        self.tally = Tally()
        self._port, self._asked, self._golden = port, asked, golden
        self._rng = random.Random(seed)
        self._idle: list[tuple[Client, float]] = []

    async def saturate(self, clients: int, seconds: float) -> float:
        """Measure requests a second, closed loop; the first third of the time, while the queue fills, is left out."""
        loop = asyncio.get_running_loop()
        started, sent = loop.time(), 0
        settled = started + seconds / 3

        async def work() -> None:
            nonlocal sent
            while loop.time() < started + seconds:
                await self._send(self._rng.choice(self._asked), loop.time())
                sent += loop.time() > settled

        await asyncio.gather(*(work() for _ in range(clients)))
        return sent / (loop.time() - settled)

    async def run(self, rate: float, seconds: float) -> None:
        """Send requests at random moments for some time; return when each has its outcome."""
        loop = asyncio.get_running_loop()
        due, end = loop.time(), loop.time() + seconds
        sending: set[asyncio.Task[None]] = set()
        while due < end:
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            self.tally.behind = max(self.tally.behind, loop.time() - due)
            task = asyncio.create_task(self._send(self._rng.choice(self._asked), due))
            sending.add(task)
            task.add_done_callback(sending.discard)
            due += self._rng.expovariate(rate)
        await asyncio.gather(*sending)

    def close(self) -> None:
        """Hang up."""
        for client, _ in self._idle:
            client.close()
        self._idle.clear()

    async def _send(self, asked: Asked, due: float) -> None:
        loop = asyncio.get_running_loop()
        client = self._connection(loop.time())
        try:
            reply = await asyncio.wait_for(client.send(asked.request), STRANDED_SECONDS)
        except TimeoutError:
            client.close()
            self.tally.note(asked, "stranded", 0.0, f"no reply within {STRANDED_SECONDS:.0f} s")
            return
        self._idle.append((client, loop.time()))
        self._settle(asked, reply, loop.time() - due)

    def _settle(self, asked: Asked, reply: Reply | str, seconds: float) -> None:
        if isinstance(reply, Reply):
            self.tally.statuses[str(reply.status)] += 1
            said = f"{reply.status} {reply.body[:300].decode('utf-8', 'replace')}"
            self.tally.note(asked, judge(asked, reply, self._golden), seconds, said)
        else:
            self.tally.note(asked, "stranded" if reply == DROPPED else reply, seconds, reply)

    def _connection(self, now: float) -> Client:
        while self._idle:
            client, since = self._idle.pop()
            if now - since < IDLE_SECONDS:
                return client
            client.close()
        return Client(self._port)
