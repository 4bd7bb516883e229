"""Simulate batching policies with generated or recorded traffic, or compare the simulation with the engine."""

import asyncio
import json
import sys
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliImplicitFlag, SettingsConfigDict

from deploy.bench.simulation.events import Machine, contenders, fitted, occupation, replay, simulate
from deploy.bench.simulation.figures import LOADS, PolicyResult, Sweep, figures, picture, table
from deploy.bench.workload import LONGEST, Trace, TraceError, poisson, read_trace
from nightjar_alerts.core.adapter import Adapter
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.load import LoadedModel, load_model
from nightjar_alerts.core.machine import usable_cores
from nightjar_alerts.core.policy import BatchLimits
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, BundleError
from nightjar_alerts.models.runtime import Provider, ProviderError

OURS: Final = "nightjar"
REPLAY_LOAD = 0.6  # of the throughput at saturation


class SimulateError(ValueError):
    """Invalid simulation request."""


class SimulatePolicies(BaseSettings):
    """Simulate batching policies: Poisson load, visits of a survey, or a recorded trace."""

    model_config = SettingsConfigDict(cli_prog_name="python -m deploy.bench.simulation", cli_kebab_case=True)

    bundle: Path = Field(DEFAULT_BUNDLE, description="folder of the bundle whose costs are measured")
    provider: Provider = Field("cpu", description="onnxruntime execution provider")
    cost: Path | None = Field(
        None, description='JSON file {"c0", "c1", "c2", "c3", "c4"} in seconds, to be used in place of a measurement'
    )
    workers: int = Field(0, ge=0, description="runs at the same time; 0 means one per usable core")
    max_batch_tokens: PositiveInt = Field(1024, description="padded observations in one batch of our own policy")
    trace: Path | None = Field(None, description="recorded traffic, a line `seconds length` per light curve")
    rates: tuple[PositiveFloat, ...] = Field((), description="Poisson rates, per second; empty: shares of saturation")
    alerts: PositiveInt = Field(4000, description="light curves at each rate")
    visits: tuple[PositiveInt, ...] = Field((10_000, 40_000), description="alerts in a visit, one every 37 s")
    within_ms: PositiveFloat = Field(100, description="milliseconds in which an answer counts as goodput")
    deadline_ms: PositiveFloat | None = Field(None, description="milliseconds after which an answer is not computed")
    replay: CliImplicitFlag[bool] = Field(
        False, description="also drive the real engine, on the trace or at 60 % of saturation"
    )
    seed: int = Field(0, description="of arrivals and lengths")
    output: Path = Field(Path("build/simulation.json"), description="JSON file to write")
    picture: Path = Field(Path("build/simulation.svg"), description="SVG file to write")

    def cli_cmd(self) -> None:
        """Run the command."""
        sweep = self._sweep()
        saturated, loads, bursts = self._results(sweep)
        results = [*saturated, *loads, *(result for burst in bursts for result in burst)]
        print(table([(f"{result.policy}, {result.traffic}", result.figures) for result in results]))
        compared = self._compare(sweep, saturated) if self.replay else {}
        for path in (self.output, self.picture):
            path.parent.mkdir(parents=True, exist_ok=True)
        picture(loads, bursts).savefig(self.picture)
        self.output.write_text(json.dumps(self._document(sweep, results) | compared, indent=1) + "\n")
        print(f"\nwritten to {self.output} and {self.picture}")

    @cached_property
    def _model(self) -> LoadedModel:
        return load_model(self.bundle, self.provider)

    @property
    def _limits(self) -> BatchLimits:
        return BatchLimits(max_tokens=self.max_batch_tokens)

    @property
    def _deadline(self) -> float | None:
        return None if self.deadline_ms is None else self.deadline_ms / 1000

    def _sweep(self) -> Sweep:
        longest = LONGEST if self.cost and not self.replay else Adapter(self._model.bundle.manifest).max_points
        limits, within = contenders(self._limits), self.within_ms / 1000
        return Sweep(self._machine(), limits, within, self._deadline, longest, self.seed)

    def _machine(self) -> Machine:
        workers = self.workers or usable_cores()
        if self.cost is not None:
            cost = read_cost(self.cost)
            return Machine(workers, cost, cost)
        return Machine(workers, self._model.cost, occupation(self._model, workers))

    def _results(self, sweep: Sweep) -> tuple[list[PolicyResult], list[PolicyResult], list[list[PolicyResult]]]:
        """Return the results at saturation, under rising load and under bursts; or those of a trace only."""
        if self.trace is not None:
            return [], [], [list(sweep.trace(self.trace.name, read_trace(self.trace, sweep.longest)))]
        saturated = list(sweep.saturated(self.alerts))
        rates = self.rates or tuple(load * _most(saturated) for load in LOADS)
        return saturated, list(sweep.poisson(rates, self.alerts)), [list(sweep.visits(size)) for size in self.visits]

    def _compare(self, sweep: Sweep, saturated: list[PolicyResult]) -> dict[str, Any]:
        trace = self._replayed(sweep, saturated)
        real = asyncio.run(replay(trace, self._model, sweep.machine.workers, self._limits, sweep.deadline))
        afterwards = replace(sweep.machine, occupied=fitted(real.runs)) if real.runs else sweep.machine
        outcomes = {
            "simulated": simulate(trace, sweep.contenders[OURS], sweep.machine, sweep.deadline),
            "simulated, runs as measured": simulate(trace, sweep.contenders[OURS], afterwards, sweep.deadline),
            "measured": real,
        }
        rows = {name: figures(outcome, sweep.within) for name, outcome in outcomes.items()}
        print(f"\nthe engine itself\n{table(list(rows.items()))}")
        return {"replay": {name: one.row() for name, one in rows.items()}}

    def _replayed(self, sweep: Sweep, saturated: list[PolicyResult]) -> Trace:
        if self.trace is not None:
            return read_trace(self.trace, sweep.longest)
        rate = self.rates[0] if self.rates else REPLAY_LOAD * _most(saturated)
        return poisson(rate, self.alerts, sweep.longest, np.random.default_rng(self.seed))

    def _document(self, sweep: Sweep, results: list[PolicyResult]) -> dict[str, Any]:
        machine = sweep.machine
        return {
            "workers": machine.workers,
            "cost": {"predicted": asdict(machine.predicted), "occupied": asdict(machine.occupied)},
            "within_ms": self.within_ms,
            "deadline_ms": self.deadline_ms,
            "results": [{"traffic": r.traffic, "policy": r.policy} | r.figures.row() for r in results],
        }


def _most(saturated: list[PolicyResult]) -> float:
    """Return the throughput of Nightjar's policy at saturation, light curves per second."""
    return next(result.figures.throughput for result in saturated if result.policy == OURS)


def read_cost(path: Path) -> CostModel:
    """Read a cost model from a file.

    Raises
    ------
    SimulateError
        If the file cannot be read or is not a valid cost model.
    """
    try:
        terms = TypeAdapter(dict[str, float]).validate_json(path.read_bytes())
        cost = CostModel(**terms)
    except (OSError, ValidationError, TypeError) as error:
        raise SimulateError(f"{path}: no cost model: {error}") from error
    if not (all(0 <= term < np.inf for term in terms.values()) and cost.seconds(1, 1) > 0):
        raise SimulateError(f"{path}: coefficients must not be negative, nor all of them zero")
    return cost


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors are printed and give status 1."""
    try:
        CliApp.run(SimulatePolicies, arguments)
    except (BundleError, ProviderError, SimulateError, TraceError) as error:
        print(f"simulation: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
