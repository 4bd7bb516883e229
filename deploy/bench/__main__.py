"""Measure the service on this machine and write the figures as JSON.

    make bench
    python -m deploy.bench --parts '["throughput", "kernels"]' --output build/bench.json
    python -m deploy.bench --parts '["before"]' --before OTHER/CHECKOUT
    python -m deploy.bench --parts '["peers"]'     other servers, installed from PyPI on the way

Each part starts its own service process, and ratios are taken within a round. A full run takes half an hour on two
cores. Separate commands:
``deploy.bench.simulation`` (batching policies and cluster sizes), ``deploy.bench.soak`` (half an hour of load) and
``deploy.bench.http_load`` (the load client).
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from deploy.bench import engine_bench, hostile, in_process, kafka, peers, processes, report, stream, throughput
from deploy.bench.before import ARMS, Arm, compare
from nightjar_alerts.alerts.files import read_path
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.service import SAMPLES

Part = Literal[
    "throughput",
    "engine",
    "in_process",
    "stream",
    "kafka",
    "grpc",
    "kernels",
    "gpu",
    "hostile",
    "processes",
    "peers",
    "before",
]


class Bench(BaseSettings):
    """Measure throughput, latency, batching, streams and robustness of the service."""

    model_config = SettingsConfigDict(env_prefix="BENCH_", cli_prog_name="python -m deploy.bench", cli_kebab_case=True)

    output: Path = Field(Path("build/bench.json"), description="JSON file to write")
    bundle: Path = Field(DEFAULT_BUNDLE, description="bundle to serve")
    parts: tuple[Part, ...] = Field(
        ("throughput", "engine", "stream", "kafka"), description="what to measure, as a JSON list"
    )
    curves: int = Field(1024, ge=32, description="light curves in a round of throughput, engine and peers")
    rounds: int = Field(7, ge=1, description="rounds of throughput and engine; peers have at most three")
    starts: int = Field(5, ge=1, description="cold starts of the throughput part")
    requests: int = Field(throughput.TOTAL, ge=50, description="requests while the throughput part watches memory")
    stream_scale: float = Field(1.0, gt=0, le=1, description="share of the alerts of stream and kafka, for a trial")
    backlog: int = Field(200_000, ge=1000, le=1_000_000, description="small alerts that wait while memory is read")
    kafka_parts: tuple[kafka.Part, ...] = Field(
        (), description="parts of kafka to measure, in this order, as a JSON list"
    )
    servers: tuple[peers.Name, ...] = Field(peers.EVERY, description="other servers of the peers part, as a JSON list")
    environments: Path = Field(Path("build/peers"), description="where the other servers are installed")
    hostile_seconds: float = Field(10, gt=0, description="seconds of each attack of the hostile part")
    hostile_scale: float = Field(1.0, gt=0, le=1, description="share of the attacks' force, for a trial")
    hostile_attacks: tuple[str, ...] = Field((), description="names of the attacks to measure, as a JSON list")
    before: Path | None = Field(None, description="checkout of another commit, installed in its own .venv")
    before_arms: tuple[Arm, ...] = Field(ARMS, description="what is compared with it, as a JSON list")
    before_starts: int = Field(5, ge=1, description="starts of both checkouts")
    before_alerts: int = Field(4000, ge=100, description="alerts in a measurement of the compared stream workers")
    before_native: Literal["auto", "on", "off"] = Field("off", description="native kernels of both checkouts")
    before_control: bool = Field(False, description="compare the other checkout with itself: the spread of equal code")

    _facts: report.Facts = PrivateAttr(default_factory=dict)
    _numbers: report.Numbers = PrivateAttr(default_factory=dict)

    def cli_cmd(self) -> None:
        """Run the selected parts, write the file after each, and print the figures."""
        self._facts = report.run_facts(self.bundle)
        for part in self.parts:
            say(f"-- {part}")
            self._keep(self._measure(part))
        print(f"\n{report.table(self._facts, self._numbers)}\n\nwritten to {self.output}")

    def _keep(self, numbers: report.Numbers) -> None:
        """Add figures to the file, so that an interrupted run keeps its results."""
        self._numbers |= numbers
        report.write(self.output, self._facts, self._numbers)

    def _measure(self, part: Part) -> report.Numbers:
        match part:
            case "throughput":
                return (
                    throughput.measure(self.bundle, self.curves, self.rounds, say)
                    | throughput.measure_starts(self.bundle, self.starts, say)
                    | throughput.measure_memory(self.bundle, sample_packets(), self.requests, say)
                )
            case "engine":
                return engine_bench.measure(self.bundle, self.curves, self.rounds, say)
            case "in_process":
                return in_process.measure(self.curves, self.rounds, say)
            case "stream":
                return stream.measure(self.bundle, self.stream_scale, self.backlog, say)
            case "kafka":
                return kafka.measure(self.bundle, self.stream_scale, say, self._keep, self.kafka_parts)
            case "grpc":  # needs the extra of this name
                from deploy.bench import grpc_bench

                return grpc_bench.measure(self.bundle, self.curves, self.rounds, say)
            case "kernels":  # both need the training extra
                from deploy.bench import kernels

                return kernels.measure(self.bundle, say)
            case "gpu":
                from deploy.bench import gpu

                return gpu.measure(self.bundle, say)
            case "hostile":
                rows = hostile.measure(self.bundle, self.hostile_seconds, self.hostile_scale, self.hostile_attacks, say)
                print(hostile.table(rows))
                return hostile.numbers(rows)
            case "processes":  # needs nginx
                return processes.measure(self.bundle, self.curves, self.rounds, say)
            case "peers":
                servers = peers.measure(
                    self.bundle, self.servers, self.environments, self.curves, min(self.rounds, peers.ROUNDS), say
                )
                print(peers.table(servers))
                return peers.numbers(servers)
            case "before":
                return self._before()

    def _before(self) -> report.Numbers:
        if self.before is None:
            say("skipped: set BENCH_BEFORE")
            return {}
        return compare(
            self.bundle,
            self.before,
            self.before_arms,
            self.before_starts,
            self.rounds,
            self.curves,
            self.before_alerts,
            self.before_native,
            self.before_control,
            say,
        )


def sample_packets() -> list[bytes]:
    """Return the alert packets shipped with the project."""
    return [item.data for item in read_path(SAMPLES)]


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"   {line}", flush=True)


if __name__ == "__main__":
    CliApp.run(Bench)
