"""Soak the service: 80 % of what it can do, for half an hour, while models change under it. Prints a table.

    make soak
    python -m deploy.bench.soak --minutes 2

Notable: the load comes in an open loop, a tenth of it is nonsense, a twelfth hangs up without waiting; a second version
of the model, another network, is loaded and taken back again and again. Every answer is held to the answer of the
version that it names, run bare. The process exits with 1 when an answer was wrong, a request got none, a change of
models failed, memory grew, or something was left in the queue at the end. The cache is off: every answer is computed.
"""

import asyncio
import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from deploy.bench.load import HOST
from deploy.bench.process import Service, free_port, running
from deploy.bench.soak.driver import Administrator, Driver, Tally, drawn, golden, next_version, prepared
from models.bundle import DEFAULT_BUNDLE, load_bundle

OTHER: Final = DEFAULT_BUNDLE.parents[1] / "romae-elasticc" / "1.1.0"
CLIENTS: Final = 64  # that saturate
SATURATED_SHARE, SATURATED_MOST = 0.05, 20.0  # of the time, and seconds at most, to find out what it can do
SAMPLES: Final = 120  # of memory
CALM_SECONDS: Final = 15.0
FLAT: Final = 1.05
_BUSY: Final = re.compile(rb"^nightjar_(inflight_requests|queue_depth(?:{.*})?) (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Soaked:
    """Result of a soak; memory in bytes, at even distances in time."""

    rate: float
    tally: Tally
    administrator: Administrator
    memory: list[int] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)

    def growth(self) -> float:
        """Memory in the last quarter over that in the second, by their medians; the first one fills caches."""
        quarter = max(1, len(self.memory) // 4)
        return median(self.memory[-quarter:]) / median(self.memory[quarter : 2 * quarter] or self.memory)

    def faults(self) -> list[str]:
        """Reasons why this was no success."""
        wrong, stranded = self.tally.count("wrong"), self.tally.count("stranded")
        found = [f"{wrong} wrong answers"] * bool(wrong) + [f"{stranded} stranded requests"] * bool(stranded)
        found += [f"left at the end: {name} {value:g}" for name, value in self.left.items() if value]
        found += [f"memory grew by {self.growth() - 1:.0%}"] * (self.growth() > FLAT)
        found += ["no version was loaded"] * (not self.administrator.made["load"])
        return found + self.administrator.failures + self.tally.examples


class Soak(BaseSettings):
    """Load the service while models change, clients hang up and nonsense comes in; nothing may be wrong or lost."""

    model_config = SettingsConfigDict(
        env_prefix="SOAK_", cli_prog_name="python -m deploy.bench.soak", cli_kebab_case=True
    )

    minutes: float = Field(30, gt=0, description="how long")
    load: float = Field(0.8, gt=0, lt=1, description="of the requests a second that the service answers at most")
    bundle: Path = Field(DEFAULT_BUNDLE, description="bundle to serve")
    other: Path = Field(OTHER, description="bundle that plays the next version of it; another network")
    change_seconds: float = Field(20, gt=0, description="from one change of models to the next")

    def cli_cmd(self) -> None:
        """Run, print the table, exit with 1 when something is wrong."""
        with tempfile.TemporaryDirectory(prefix="nightjar-") as folder:
            soaked = self.run(Path(folder))
        print(table(soaked, self.minutes))
        if faults := soaked.faults():
            print("\n" + "\n".join(faults), file=sys.stderr)
            raise SystemExit(1)

    def run(self, folder: Path) -> Soaked:
        """Run it; the folder is for a repository of bundles, which does not outlive this."""
        made, repository = folder / "made", folder / "repository"
        repository.mkdir()
        name, version = next_version(self.bundle, self.other, made)
        curves, admin = drawn(), free_port()
        answers = golden({load_bundle(self.bundle).manifest.version: self.bundle, version: made}, curves)
        chosen = {"REPOSITORY": repository, "ADMIN_PORT": admin, "CACHE_BYTES": 0}
        with running(self.bundle, {f"NIGHTJAR_{key}": str(value) for key, value in chosen.items()}) as service:
            driver = Driver(service.port, prepared(curves), answers)
            rate = self.load * asyncio.run(self._most(driver))
            (repository / name).mkdir()
            made.rename(repository / name / version)  # not before: the newest version would have been measured
            administrator = Administrator(admin, name, version, self.change_seconds)
            return asyncio.run(self._drive(service, driver, Soaked(rate, driver.tally, administrator)))

    async def _most(self, driver: Driver) -> float:
        """Measure the requests a second that the service answers at most; latencies meanwhile are forgotten."""
        most = await driver.saturate(CLIENTS, min(SATURATED_MOST, SATURATED_SHARE * 60 * self.minutes))
        driver.close()
        driver.tally.seconds = driver.tally.seconds[:0]
        print(f"{most:.0f} requests/s at most; {self.load:.0%} of that for {self.minutes:g} minutes", flush=True)
        return most

    async def _drive(self, service: Service, driver: Driver, soaked: Soaked) -> Soaked:
        seconds = 60 * self.minutes
        tasks = (soaked.administrator.work(), _watch(service, soaked, seconds))
        beside = [asyncio.create_task(task) for task in tasks]
        await driver.run(soaked.rate, seconds)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        driver.close()
        soaked.left = await _left(service)
        return soaked


async def _watch(service: Service, soaked: Soaked, seconds: float) -> None:
    while True:
        soaked.memory.append(service.memory())
        await asyncio.sleep(seconds / SAMPLES)


async def _left(service: Service) -> dict[str, float]:
    """Return the metrics of work under way, once the service has had time to finish."""
    for _ in range(round(CALM_SECONDS)):
        left = await asyncio.to_thread(_busy, service)
        if not any(left.values()):
            break
        await asyncio.sleep(1.0)
    return left


def _busy(service: Service) -> dict[str, float]:
    connection = HTTPConnection(HOST, service.port, timeout=30)
    with suppress(OSError):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        connection.close()
        found = {name.decode(): float(value) for name, value in _BUSY.findall(text)}
        return found | {"inflight_requests": found["inflight_requests"] - 1}  # this one
    return {"unreachable": 1.0}


def table(soaked: Soaked, minutes: float) -> str:
    """Markdown."""
    tally, memory = soaked.tally, soaked.memory
    p50, p99 = 1e3 * np.quantile(tally.seconds, (0.5, 0.99)) if tally.seconds else (np.nan, np.nan)
    kinds = sorted({kind for kind, _ in tally.outcomes})
    shown = {
        "minutes, requests a second offered": f"{minutes:g}, {soaked.rate:.0f}",
        **{f"requests: {kind}": _outcomes(tally, kind) for kind in kinds},
        "status codes": ", ".join(f"{count:,} x {status}" for status, count in sorted(tally.statuses.items())),
        "latency of right answers, p50 / p99": f"{p50:.1f} / {p99:.1f} ms",
        "most that the client itself was late": f"{tally.behind:.1f} s",
        "changes of models": ", ".join(f"{n} x {what}" for what, n in soaked.administrator.made.items()) or "none",
        "changes that failed": str(len(soaked.administrator.failures)),
        "wrong answers": str(tally.count("wrong")),
        "stranded requests": str(tally.count("stranded") + sum(map(int, soaked.left.values()))),
        "memory: first, median of 2nd and last quarter, most": _memory(memory),
    }
    return "| what | value |\n|---|---|\n" + "\n".join(f"| {what} | {value} |" for what, value in shown.items())


def _outcomes(tally: Tally, kind: str) -> str:
    return ", ".join(f"{count:,} {what}" for (of, what), count in sorted(tally.outcomes.items()) if of == kind)


def _memory(memory: list[int]) -> str:
    quarter = max(1, len(memory) // 4)
    early, late = median(memory[quarter : 2 * quarter] or memory), median(memory[-quarter:])
    return ", ".join(f"{size / 1e6:.0f}" for size in (memory[0], early, late, max(memory))) + " MB"


if __name__ == "__main__":
    CliApp.run(Soak)
