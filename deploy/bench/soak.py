"""Soak test: 80 % of the maximum load for half an hour while models change. Prints a table.

    make nightly PART=soak
    python -m deploy.bench.soak --minutes 2

Notable: the load is open-loop; 10 % of the requests are invalid, and 8 % of the clients disconnect without waiting. A
second version of the model, a different network, is loaded and rolled back repeatedly. Every result is compared with a
bare run of the version that it states, with context such as redshifts applied. The process exits with 1 if a result was
wrong or missing, a model change failed, memory grew, or the queue was not empty at the end. The cache is disabled.

Latency is measured from the intended time of the request. A request without a response within
:data:`STRANDED_SECONDS`, or whose connection ends without a response, is stranded.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from deploy.bench.bare import Bare
from deploy.bench.http_load import DROPPED, HOST, HttpReply, HttpRequest, LoadClient, request
from deploy.bench.throughput import TOLERANCE
from deploy.bench.workload import MSGPACK, CurveColumns, alert_mix, broken, packed_request
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, load_bundle, write_manifest
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.posterior import Posterior
from nightjar_alerts.service.local import ServiceProcess, free_port, running

Kind = Literal["one", "batch", "bad", "cancelled", "look-up"]
SHARES: Final[Mapping[Kind, float]] = {"one": 0.62, "batch": 0.15, "bad": 0.10, "cancelled": 0.08, "look-up": 0.05}
CURVES, REQUESTS = 200, 2000  # prepared light curves, and prepared requests to draw from
LARGEST_BATCH: Final = 12
REFUSALS: Final = (429, 503, 504)
LATE: Final = "deadline_exceeded"
LOOK_UPS: Final = ("/v1/models", "/healthz", "/readyz", "/metrics")
SEED: Final = 20260104

Verdict = Literal["right", "refused", "wrong"]
Golden = Mapping[str, NDArray[np.float32]]
"""Expected probabilities of all curves by version of the model, shape (curves, classes)."""


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """Request; ``curves`` are the indices of its light curves."""

    kind: Kind
    request: HttpRequest
    curves: tuple[int, ...] = ()


def golden(bundles: Mapping[str, Path], curves: Sequence[CurveColumns]) -> Golden:
    """Return the expected probabilities of each version: bare runs with the evidence of the metadata applied."""
    found = {}
    for version, path in bundles.items():
        posterior, rows = Posterior(load_bundle(path).manifest), Bare.of(path, curves).probabilities()
        found[version] = np.array(
            [
                posterior.apply_prior(row_C, metadata=curve["metadata"]).probabilities
                for row_C, curve in zip(rows, curves, strict=True)
            ],
            np.float32,
        )
    return found


def light_curves() -> list[CurveColumns]:
    """Return the light curves of the test."""
    return alert_mix(CURVES, SEED)


def prepare_requests(curves: Sequence[CurveColumns]) -> list[SoakRequest]:
    """Return requests of all kinds in the proportions of :data:`SHARES`."""
    rng = random.Random(SEED)
    kinds = rng.choices(list(SHARES), list(SHARES.values()), k=REQUESTS)
    return [_one(kind, curves, rng) for kind in kinds]


def _one(kind: Kind, curves: Sequence[CurveColumns], rng: random.Random) -> SoakRequest:
    number = rng.randrange(len(curves))
    alone = request("/v1/classify", orjson.dumps(curves[number]))
    match kind:
        case "one":
            return SoakRequest(kind, alone, (number,))
        case "batch":
            chosen = tuple(rng.sample(range(len(curves)), rng.randint(2, LARGEST_BATCH)))
            return SoakRequest(kind, packed_request([curves[index] for index in chosen]), chosen)
        case "bad":
            return SoakRequest(kind, request("/v1/classify", broken(curves[number], rng)))
        case "cancelled":
            return SoakRequest(kind, HttpRequest(alone.data, vanish=True))
        case "look-up":
            return SoakRequest(kind, request(rng.choice(LOOK_UPS)))


def check_reply(sent: SoakRequest, reply: HttpReply, golden: Golden) -> Verdict:
    """Return whether a response is right, refused for lack of capacity, or wrong."""
    if sent.kind == "bad":
        return "right" if 400 <= reply.status < 500 or reply.status in REFUSALS else "wrong"
    if reply.status in REFUSALS:
        return "refused"
    if reply.status != 200:
        return "wrong"
    return _check_results(sent, reply, golden) if sent.curves else "right"


def _check_results(sent: SoakRequest, reply: HttpReply, golden: Golden) -> Verdict:
    """Compare results with the expected ones; light curves past their deadline count as refused."""
    document: Any = msgspec.msgpack.decode(reply.body) if _is_packed(sent) else json.loads(reply.body)
    expected, results = golden.get(document["model"]["version"]), document["results"]
    if expected is None or len(results) != len(sent.curves):
        return "wrong"
    late = [result.get("reason") == LATE for result in results]
    for result, curve, is_late in zip(results, sent.curves, late, strict=True):
        if not is_late and not _agrees(result, expected[curve]):
            return "wrong"
    return "refused" if any(late) else "right"


def _agrees(result: Mapping[str, Any], expected: NDArray[np.float32]) -> bool:
    if result["status"] != "classified":
        return False
    return bool(np.abs(np.array(list(result["probabilities"].values())) - expected).max() <= TOLERANCE)


def _is_packed(sent: SoakRequest) -> bool:
    return MSGPACK.encode() in sent.request.data.partition(b"\r\n\r\n")[0]


PATIENCE_SECONDS: Final = 300.0


def next_version(bundle: Path, other: Path, folder: Path) -> tuple[str, str]:
    """Copy another network to a new folder as the next version of a model; return the model's name and version."""
    manifest = load_bundle(bundle).manifest
    major, minor, patch = map(int, manifest.version.split("."))
    version = f"{major}.{minor}.{patch + 1}"
    shutil.copytree(other, folder)
    write_manifest(folder, load_bundle(other).manifest.model_copy(update={"name": manifest.name, "version": version}))
    return manifest.name, version


@dataclass(slots=True)
class Administrator:
    """Changes models every ``pause`` seconds, each kind of change in turn; records counts and failures."""

    port: int
    name: str
    version: str
    pause: float
    changes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def work(self) -> None:
        """Run until cancelled."""
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
        request = urllib.request.Request(f"http://{HOST}:{self.port}{path}", body.encode(), method="POST")
        try:
            urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()
            self.changes[what] += 1
        except urllib.error.HTTPError as error:
            self.failures.append(f"{what}: {error.code} {error.read(300).decode('utf-8', 'replace')}")
        except OSError as error:
            self.failures.append(f"{what}: {error}")


STRANDED_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 20.0  # before a connection is not reused, because the service may be about to close it
MOST_EXAMPLES: Final = 10


@dataclass(slots=True)
class Tally:
    """Counts of responses. ``outcomes`` is by kind and outcome; ``seconds`` are the latencies of right results.

    ``behind`` is the maximum delay of sending a request, because a client that is too slow can strand requests.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    behind: float = 0.0

    def count(self, outcome: str) -> int:
        """Return the number of requests with an outcome."""
        return sum(count for (_, what), count in self.outcomes.items() if what == outcome)

    def note(self, sent: SoakRequest, outcome: str, seconds: float, text: str = "") -> None:
        """Count a response; keep the first wrong ones as examples."""
        self.outcomes[sent.kind, outcome] += 1
        if outcome == "right":
            self.seconds.append(seconds)
        elif outcome in ("wrong", "stranded") and len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{sent.kind}: {outcome}: {text[:300]}")


class SoakDriver:
    """Sends prepared requests to a port and keeps the tally."""

    def __init__(self, port: int, requests: Sequence[SoakRequest], golden: Golden) -> None:
        self.tally = Tally()
        self._port, self._requests, self._golden = port, requests, golden
        self._rng = random.Random(0)
        self._idle: list[tuple[LoadClient, float]] = []

    async def saturate(self, clients: int, seconds: float) -> float:
        """Measure the requests per second in a closed loop, without the first third of the time (queue filling)."""
        loop = asyncio.get_running_loop()
        started, sent = loop.time(), 0
        settled = started + seconds / 3

        async def work() -> None:
            nonlocal sent
            while loop.time() < started + seconds:
                await self._send(self._rng.choice(self._requests), loop.time())
                sent += loop.time() > settled

        await asyncio.gather(*(work() for _ in range(clients)))
        return sent / (loop.time() - settled)

    async def run(self, rate: float, seconds: float) -> None:
        """Send requests with Poisson arrivals for some time; return when all have an outcome."""
        loop = asyncio.get_running_loop()
        due, end = loop.time(), loop.time() + seconds
        sending: set[asyncio.Task[None]] = set()
        while due < end:
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            self.tally.behind = max(self.tally.behind, loop.time() - due)
            task = asyncio.create_task(self._send(self._rng.choice(self._requests), due))
            sending.add(task)
            task.add_done_callback(sending.discard)
            due += self._rng.expovariate(rate)
        await asyncio.gather(*sending)

    def close(self) -> None:
        """Close the connections."""
        for client, _ in self._idle:
            client.close()
        self._idle.clear()

    async def _send(self, sent: SoakRequest, due: float) -> None:
        loop = asyncio.get_running_loop()
        client = self._connection(loop.time())
        try:
            reply = await asyncio.wait_for(client.send(sent.request), STRANDED_SECONDS)
        except TimeoutError:
            client.close()
            self.tally.note(sent, "stranded", 0.0, f"no reply within {STRANDED_SECONDS:.0f} s")
            return
        self._idle.append((client, loop.time()))
        if isinstance(reply, str):
            self.tally.note(sent, "stranded" if reply == DROPPED else reply, 0.0, reply)
            return
        self.tally.statuses[str(reply.status)] += 1
        text = f"{reply.status} {reply.body[:300].decode('utf-8', 'replace')}"
        self.tally.note(sent, check_reply(sent, reply, self._golden), loop.time() - due, text)

    def _connection(self, now: float) -> LoadClient:
        while self._idle:
            client, since = self._idle.pop()
            if now - since < IDLE_SECONDS:
                return client
            client.close()
        return LoadClient(self._port)


OTHER: Final = DEFAULT_BUNDLE.parents[1] / "romae-elasticc" / "2.1.2"
CLIENTS: Final = 64  # for saturation
SATURATED_SHARE, SATURATED_MOST = 0.05, 20.0  # duration of the measurement at saturation: fraction of all, max. seconds
SAMPLES: Final = 120  # of the memory
CALM_SECONDS: Final = 15.0
FLAT: Final = 1.05


@dataclass(slots=True)
class SoakResult:
    """Result of a soak test; memory in bytes, at regular intervals."""

    rate: float
    tally: Tally
    administrator: Administrator
    memory: list[int] = field(default_factory=list)
    leftovers: dict[str, float] = field(default_factory=dict)

    def growth(self) -> float:
        """Return the median memory of the last quarter divided by that of the second; the first one fills caches."""
        quarter = max(1, len(self.memory) // 4)
        return median(self.memory[-quarter:]) / median(self.memory[quarter : 2 * quarter] or self.memory)

    def faults(self) -> list[str]:
        """Return the reasons why the test failed."""
        wrong, stranded = self.tally.count("wrong"), self.tally.count("stranded")
        faults = [f"{wrong} wrong answers"] * bool(wrong) + [f"{stranded} stranded requests"] * bool(stranded)
        faults += [f"left at the end: {name} {value:g}" for name, value in self.leftovers.items() if value]
        faults += [f"memory grew by {self.growth() - 1:.0%}"] * (self.growth() > FLAT)
        faults += ["no version was loaded"] * (not self.administrator.changes["load"])
        return faults + self.administrator.failures + self.tally.examples


class Soak(BaseSettings):
    """Load the service while models change, clients disconnect and invalid requests arrive; check every result."""

    model_config = SettingsConfigDict(
        env_prefix="SOAK_", cli_prog_name="python -m deploy.bench.soak", cli_kebab_case=True
    )

    minutes: float = Field(30, gt=0, description="how long")
    load: float = Field(0.8, gt=0, lt=1, description="of the requests a second that the service answers at most")
    bundle: Path = Field(DEFAULT_BUNDLE, description="bundle to serve")
    other: Path = Field(OTHER, description="bundle that plays the next version of it; another network")
    change_seconds: float = Field(20, gt=0, description="from one change of models to the next")

    def cli_cmd(self) -> None:
        """Run the test, print the table, and exit with 1 if it failed."""
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            result = self.run(Path(folder))
        print(table(result, self.minutes))
        if faults := result.faults():
            print("\n" + "\n".join(faults), file=sys.stderr)
            raise SystemExit(1)

    def run(self, folder: Path) -> SoakResult:
        """Run the test with a temporary repository of bundles in ``folder``."""
        second, repository = folder / "made", folder / "repository"
        repository.mkdir()
        name, version = next_version(self.bundle, self.other, second)
        curves, admin = light_curves(), free_port()
        answers = golden({load_bundle(self.bundle).manifest.version: self.bundle, version: second}, curves)
        chosen = {"REPOSITORY": repository, "ADMIN_PORT": admin, "CACHE_BYTES": 0}
        settings = {f"NIGHTJAR_{key}": str(value) for key, value in chosen.items()}
        with running(self.bundle, settings, PATIENCE_SECONDS) as service:
            driver = SoakDriver(service.port, prepare_requests(curves), answers)
            rate = self.load * asyncio.run(self._measure_max_rate(driver))
            (repository / name).mkdir()
            second.rename(repository / name / version)  # after the measurement, which would use the newest version
            administrator = Administrator(admin, name, version, self.change_seconds)
            return asyncio.run(self._drive(service, driver, SoakResult(rate, driver.tally, administrator)))

    async def _measure_max_rate(self, driver: SoakDriver) -> float:
        """Measure the maximum requests per second; discard the latencies."""
        most = await driver.saturate(CLIENTS, min(SATURATED_MOST, SATURATED_SHARE * 60 * self.minutes))
        driver.close()
        driver.tally.seconds = driver.tally.seconds[:0]
        print(f"{most:.0f} requests/s at most; {self.load:.0%} of that for {self.minutes:g} minutes", flush=True)
        return most

    async def _drive(self, service: ServiceProcess, driver: SoakDriver, result: SoakResult) -> SoakResult:
        seconds = 60 * self.minutes
        tasks = (result.administrator.work(), _watch(service, result, seconds))
        background = [asyncio.create_task(task) for task in tasks]
        await driver.run(result.rate, seconds)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        driver.close()
        result.leftovers = await _leftovers(service)
        return result


async def _watch(service: ServiceProcess, result: SoakResult, seconds: float) -> None:
    while True:
        result.memory.append(service.memory())
        await asyncio.sleep(seconds / SAMPLES)


async def _leftovers(service: ServiceProcess) -> dict[str, float]:
    """Return the metrics of unfinished work, after waiting for the service to finish."""
    for _ in range(round(CALM_SECONDS)):
        leftovers = await asyncio.to_thread(_busy, service)
        if not any(leftovers.values()):
            break
        await asyncio.sleep(1.0)
    return leftovers


def _busy(service: ServiceProcess) -> dict[str, float]:
    try:
        requests = service.metric("nightjar_inflight_requests") - 1  # this one
        return {"inflight_requests": requests, "queue_depth": service.metric("nightjar_queue_depth")}
    except OSError:
        return {"unreachable": 1.0}


def table(result: SoakResult, minutes: float) -> str:
    """Format the result as Markdown."""
    tally, memory = result.tally, result.memory
    p50, p99 = 1e3 * np.quantile(tally.seconds, (0.5, 0.99)) if tally.seconds else (np.nan, np.nan)
    kinds = sorted({kind for kind, _ in tally.outcomes})
    rows = {
        "minutes, requests a second offered": f"{minutes:g}, {result.rate:.0f}",
        **{f"requests: {kind}": _outcomes(tally, kind) for kind in kinds},
        "status codes": ", ".join(f"{count:,} x {status}" for status, count in sorted(tally.statuses.items())),
        "latency of right answers, p50 / p99": f"{p50:.1f} / {p99:.1f} ms",
        "most that the client itself was late": f"{tally.behind:.1f} s",
        "changes of models": ", ".join(f"{n} x {what}" for what, n in result.administrator.changes.items()) or "none",
        "changes that failed": str(len(result.administrator.failures)),
        "wrong answers": str(tally.count("wrong")),
        "stranded requests": str(tally.count("stranded") + sum(map(int, result.leftovers.values()))),
        "memory: first, median of 2nd and last quarter, most": _memory(memory),
    }
    return markdown_table(("what", "value"), rows.items())


def _outcomes(tally: Tally, kind: str) -> str:
    return ", ".join(f"{count:,} {what}" for (of, what), count in sorted(tally.outcomes.items()) if of == kind)


def _memory(memory: list[int]) -> str:
    quarter = max(1, len(memory) // 4)
    early, late = median(memory[quarter : 2 * quarter] or memory), median(memory[-quarter:])
    return ", ".join(f"{size / 1e6:.0f}" for size in (memory[0], early, late, max(memory))) + " MB"


if __name__ == "__main__":
    CliApp.run(Soak)
