"""Measure the service on this machine and write the numbers down.

    make bench
    python -m deploy.bench --output build/bench.json --parts '["throughput"]'
    BENCH_ALERTS=folder/of/packets BENCH_DENSE_TWIN=bundle python -m deploy.bench
    python -m deploy.bench --parts '["peers"]'     other servers, installed from PyPI on the way

Notable: everything is measured against something bare or repeated, in the same run; each part starts its own service;
the load comes from another process over the loopback interface. Three quarters of an hour on two cores. The parts
engine, stream, kafka and peers also write a Markdown table each, beside the output.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from deploy.bench import (
    engine_bench,
    hostile,
    hostile_stream,
    kafka,
    lean,
    peers,
    report,
    stream,
    throughput,
    wire,
)
from deploy.bench.before import ARMS, Arm, compare
from nightjar_alerts.models.alerts.files import read_path
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.models.networks.astro_moe import AstroMoEConfig
from nightjar_alerts.service.client import SAMPLES

Part = Literal[
    "throughput", "engine", "coldstart", "memory", "stream", "kafka", "peers", "packets", "twin", "hostile",
    "hostile_stream", "lean", "kernels", "core", "gpu", "before",
]  # fmt: skip
EVERY: tuple[Part, ...] = ("throughput", "engine", "coldstart", "memory", "stream", "kafka", "packets", "twin")


class Bench(BaseSettings):
    """Measure the service: requests per second beside bare onnxruntime, cold start, memory, packets."""

    model_config = SettingsConfigDict(env_prefix="BENCH_", cli_prog_name="python -m deploy.bench", cli_kebab_case=True)

    output: Path = Field(Path("build/bench.json"), description="JSON file to write")
    bundle: Path = Field(DEFAULT_BUNDLE, description="bundle to serve")
    parts: tuple[Part, ...] = Field(EVERY, description="what to measure, as a JSON list")
    curves: int = Field(1024, ge=32, description="light curves in a round of throughput, engine and peers")
    rounds: int = Field(7, ge=1, description="rounds of throughput and engine; peers have at most three")
    burst: int = Field(wire.BURST, ge=1, description="light curves posted at once in the engine part")
    servers: tuple[peers.Name, ...] = Field(peers.EVERY, description="other servers of the peers part, as a JSON list")
    environments: Path = Field(Path("build/peers"), description="where the other servers are installed")
    requests: int = Field(throughput.TOTAL, ge=50, description="requests of the memory part")
    stream_scale: float = Field(1.0, gt=0, le=1, description="share of the alerts of stream and kafka, for a trial")
    kafka_parts: tuple[kafka.Part, ...] = Field(
        (), description="parts of kafka to measure, in this order, as a JSON list"
    )
    kafka_minutes: float = Field(60, gt=0, description="minutes after which nothing more of kafka begins")
    backlog: int = Field(200_000, ge=1000, le=1_000_000, description="small alerts that wait while memory is read")
    starts: int = Field(5, ge=1, description="cold starts")
    alerts: Path | None = Field(None, description="folder of alert packets; without it that part is left out")
    dense_twin: Path | None = Field(None, description="bundle of the dense twin; without it that part is left out")
    reference: Path = Field(lean.REFERENCE, description="bundle whose weights the lean part exports anew")
    compiled: bool = Field(True, description="whether the core part compiles torch's network, which takes minutes")
    hostile_seconds: float = Field(10, gt=0, description="seconds of each attack of the hostile part")
    hostile_scale: float = Field(1.0, gt=0, le=1, description="share of the attacks' force, for a trial")
    hostile_root: Path | None = Field(None, description="checkout of another commit, attacked instead")

    before: Path | None = Field(None, description="checkout of another commit, installed in its own .venv")
    before_arms: tuple[Arm, ...] = Field(ARMS, description="what is compared with it, as a JSON list")
    before_starts: int = Field(5, ge=1, description="starts of both checkouts")
    before_alerts: int = Field(4000, ge=100, description="alerts in a measurement of the compared stream workers")
    before_native: Literal["auto", "on", "off"] = Field("off", description="native kernels of both checkouts")
    before_control: bool = Field(False, description="compare the other checkout with itself: the spread of equal code")
    hostile_attacks: tuple[str, ...] = Field((), description="names of the attacks to measure, as a JSON list")

    _facts: report.Facts = PrivateAttr(default_factory=dict)
    _numbers: report.Numbers = PrivateAttr(default_factory=dict)

    def cli_cmd(self) -> None:
        """Run the parts asked for, write the file, print the table."""
        self._facts = report.held_for(self.bundle)
        for part in self.parts:
            print(f"-- {part}", flush=True)
            self._keep(self._measure(part))
        print(f"\n{report.table(self._facts, self._numbers)}\n\nwritten to {self.output}")

    def _keep(self, numbers: report.Numbers) -> None:
        """Write what is known so far: a run that is cut short has measured something."""
        self._numbers |= numbers
        report.write(self.output, self._facts, self._numbers)

    def _measure(self, part: Part) -> report.Numbers:
        if part == "throughput":
            return throughput.measure(self.bundle, self.curves, self.rounds, say)
        if part == "engine":
            return self._engine()
        if part == "peers":
            return self._peers()
        if part == "coldstart":
            return throughput.measure_starts(self.bundle, self.starts, say)
        if part == "memory":
            return throughput.measure_memory(self.bundle, sample_packets(), self.requests, say)
        if part == "stream":
            return self._stream()
        if part == "kafka":
            return self._kafka()
        if part == "hostile":
            return self._hostile()
        if part == "hostile_stream":
            return self._hostile_stream()
        if part == "before" and self.before is not None:
            return self._before(self.before)
        if part == "lean":
            return lean.measure(self.reference, None if self.reference == self.bundle else self.bundle, say)
        if part == "gpu":
            return lean.measure_gpu(self.bundle, say)
        if part == "core":
            return lean.measure_core(self.bundle, self.compiled, say)
        if part == "kernels":
            return lean.measure_kernels(AstroMoEConfig(), say)
        if part == "packets" and self.alerts is not None:
            return throughput.measure_packets(self.bundle, self.alerts, say)
        if part == "twin" and self.dense_twin is not None:
            return lean.measure_twin(self.bundle, self.dense_twin, say)
        missing = {"packets": "BENCH_ALERTS", "twin": "BENCH_DENSE_TWIN", "before": "BENCH_BEFORE"}[part]
        say(f"left out: set {missing}")
        return {}

    def _engine(self) -> report.Numbers:
        numbers = engine_bench.measure(self.bundle, self.curves, self.rounds, self.burst, say)
        self._write_table("engine.md", engine_bench.table(numbers))
        return numbers

    def _peers(self) -> report.Numbers:
        rounds = min(self.rounds, peers.ROUNDS)
        rows = peers.measure(self.bundle, self.servers, self.environments, self.curves, rounds, say)
        self._write_table("peers.md", peers.table(rows))
        return peers.numbers(rows)

    def _stream(self) -> report.Numbers:
        numbers = stream.measure(self.bundle, self.stream_scale, self.backlog, say)
        self._write_table("stream.md", stream.table(numbers))
        return numbers

    def _kafka(self) -> report.Numbers:
        numbers = kafka.measure(self.bundle, self.stream_scale, say, self._keep, self.kafka_parts, self.kafka_minutes)
        self._write_table("kafka.md", stream.table(numbers))
        return numbers

    def _before(self, other: Path) -> report.Numbers:
        return compare(
            self.bundle,
            other,
            self.before_arms,
            self.before_starts,
            self.rounds,
            self.curves,
            self.before_alerts,
            self.before_native,
            self.before_control,
            say,
        )

    def _hostile(self) -> report.Numbers:
        rows = hostile.measure(
            self.bundle, self.hostile_seconds, self.hostile_scale, self.hostile_root, self.hostile_attacks, say
        )
        self._write_table("hostile.md", hostile.table(rows))
        self._write_table("hostile.json", json.dumps(hostile.as_json(rows), indent=1) + "\n")
        return hostile.numbers(rows, before=self.hostile_root is not None)

    def _hostile_stream(self) -> report.Numbers:
        rows = hostile_stream.measure(self.bundle, self.hostile_seconds, say)
        self._write_table("hostile_stream.md", hostile_stream.table(rows))
        return hostile_stream.numbers(rows)

    def _write_table(self, name: str, text: str) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.with_name(name).write_text(text)


def sample_packets() -> list[bytes]:
    """Return the alert packets shipped with the project."""
    return [item.data for item in read_path(SAMPLES)]


def say(line: str) -> None:
    """Progress, one line at a time."""
    print(f"   {line}", flush=True)


if __name__ == "__main__":
    CliApp.run(Bench)
