"""Benchmark of the engine: comparison of batching policies, and latency of a lone request.

**Lone request**: one JSON light curve without other load, compared with its bare run. Each curve is classified over
HTTP and run bare in turn, and the difference is taken for each curve. The client is http.client in this process.

**Light curves** have the lengths of real alerts: lognormal around 50 points, and one in a hundred from a deep field.
The cache is disabled, because curves are repeated.

**Batching policies** of Nightjar and other servers run on the real engine with the same network and curves. At
saturation all curves are queued at the start, and the time until the last result is measured. At half of that load
curves arrive at random (open loop), and latency is measured from the arrival. Rounds are interleaved (every policy
once, in turn), and ratios are taken within a round.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from deploy.bench.bare import Bare, tokens_of
from deploy.bench.http_load import HOST
from deploy.bench.report import Numbers, Spread, spread
from deploy.bench.simulation.events import Contender, PolicyName, contenders, replay
from deploy.bench.throughput import WrongAnswer, patient
from deploy.bench.workload import CurveColumns, Trace, alert_mix
from nightjar_alerts.core.adapter import ModelInput
from nightjar_alerts.core.load import LoadedModel, load_model
from nightjar_alerts.models.runtime import run
from nightjar_alerts.service.engine.engine import engine_options

CURVES: Final = 100


class Lone(NamedTuple):
    """Timings of a lone light curve: seconds over HTTP, seconds bare, and the service's stages."""

    over_http: float
    bare: float
    stages: Mapping[str, float]


BETWEEN, OUTSIDE = "between", "outside"
"""Keys of the time outside all stages: within the service's total (waiting for threads, limits, metrics), and before or
after it (sockets, HTTP, event loop, client)."""


def measure_lone(bundle: Path, curves: Sequence[CurveColumns], rounds: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``engine.lone_*``: medians over the curves of a round."""
    some = curves[:CURVES]
    bare = Bare.of(bundle, some)
    bodies = [orjson.dumps(curve) for curve in some]
    lone_rounds: list[list[Lone]] = []
    with patient(bundle) as service, closing(HTTPConnection(HOST, service.port, timeout=30)) as connection:
        for number in range(1 + rounds):
            lone_rounds.append([_classify_lone(connection, body, bare, index) for index, body in enumerate(bodies)])
            http_ms, alone = (
                1e3 * median(one.over_http for one in lone_rounds[-1]),
                1e3 * median(one.bare for one in lone_rounds[-1]),
            )
            say(f"lone, {number}/{rounds}: {http_ms:.2f} ms, of which bare {alone:.2f} ms")
    return lone_numbers(lone_rounds[1:])  # the first round warms up


def lone_numbers(rounds: Sequence[Sequence[Lone]]) -> Numbers:
    """Return the keys of lone requests, in milliseconds, and by stage (``engine.lone_us.STAGE``) in microseconds."""

    def middle(scale: float, value: Callable[[Lone], float]) -> Spread:
        return spread([scale * median(map(value, one)) for one in rounds])

    def stage(name: str) -> Spread:
        return middle(1e6, lambda one: one.stages[name])

    return {
        "engine.lone_p50_ms": middle(1e3, lambda one: one.over_http),
        "engine.lone_bare_p50_ms": middle(1e3, lambda one: one.bare),
        "engine.lone_p50_overhead_ms": middle(1e3, lambda one: one.over_http - one.bare),
        **{f"engine.lone_us.{name}": stage(name) for name in rounds[0][0].stages},
        "engine.lone_us.run_over_bare": middle(1e6, lambda one: one.stages["run"] - one.bare),
    }


def _classify_lone(connection: HTTPConnection, body: bytes, bare: Bare, index: int) -> Lone:
    """Classify a light curve over HTTP, then run the network bare. Raises WrongAnswer."""
    began = time.perf_counter()
    connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    reply = response.read()
    over_http = time.perf_counter() - began
    if response.status != 200 or orjson.loads(reply)["results"][0]["status"] != "classified":
        raise WrongAnswer(reply.decode()[:500])
    began = time.perf_counter()
    run(bare.session, bare.inputs[index])
    return Lone(over_http, time.perf_counter() - began, stages_of(response.headers["Server-Timing"], over_http))


def stages_of(header: str, over_http: float) -> dict[str, float]:
    """Return the seconds by stage in ``Server-Timing``, and those between the stages and outside the total."""
    seconds = {name: 1e-3 * float(value) for name, value in re.findall(r"([a-z_]+);dur=([0-9.]+)", header)}
    total = seconds.pop("total")
    return {**seconds, BETWEEN: total - sum(seconds.values()), OUTSIDE: over_http - total}


SEED = 20260102


def measure(bundle: Path, curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Return the keys ``engine.*``.

    Parameters
    ----------
    curves : number of light curves in a round.
    """
    drawn = alert_mix(curves, SEED)
    model = load_model(bundle)
    options = engine_options(model.provider)
    say(f"{options.workers} workers, batches of {options.limits.max_tokens} padded points")
    numbers: Numbers = {
        "engine.curves_per_round": curves,
        "engine.rounds": rounds,
        "engine.workers": options.workers,
        "engine.max_batch_tokens": options.limits.max_tokens,
    }
    numbers |= measure_policies(model, drawn, rounds, say)
    del model  # frees its memory before the next measurement
    return numbers | measure_lone(bundle, drawn, rounds, say)


OURS: Final = "nightjar"
ALONE: Final = "one_by_one"
HALF: Final = 0.5
PASSES: Final = 4  # over the curves at half load, because the 99th percentile needs many


@dataclass(frozen=True, slots=True)
class EngineBench:
    """Network, inputs and compared policies."""

    model: LoadedModel
    inputs: Sequence[ModelInput]
    contenders: Mapping[PolicyName, Contender]

    @classmethod
    def of(cls, model: LoadedModel, curves: Sequence[CurveColumns]) -> "EngineBench":
        """Featurise the curves, which is not part of the measurement."""
        inputs = [ModelInput(tokens_of(curve, model.bundle.manifest)) for curve in curves]
        return cls(model, inputs, contenders(engine_options(model.provider).limits))

    def saturated(self, policy: PolicyName) -> float:
        """Return the curves per second if all are queued at once."""
        return len(self.inputs) / float(self.latencies(policy, np.zeros(len(self.inputs))).max())

    def latencies(self, policy: PolicyName, arrival: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds from each intended arrival to the result; curves are repeated if necessary."""
        inputs = list(islice(cycle(self.inputs), len(arrival)))
        trace = Trace(arrival, np.array([len(one) for one in inputs]))
        contender, workers = self.contenders[policy], engine_options(self.model.provider).workers
        work = replay(trace, self.model, workers, contender.limits, policy=contender.policy, inputs=inputs)
        return asyncio.run(work).answered - arrival


def measure_policies(
    model: LoadedModel, curves: Sequence[CurveColumns], rounds: int, say: Callable[[str], None]
) -> Numbers:
    """Return the keys ``engine.policy_per_s.*``, ``engine.policy_speedup.*`` and those of half load."""
    bench = EngineBench.of(model, curves)
    bench.saturated(OURS)  # the first run of a shape takes longer
    rates: list[dict[PolicyName, float]] = []
    for number in range(rounds):
        rates.append({policy: bench.saturated(policy) for policy in bench.contenders})
        say(f"round {number + 1}/{rounds}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates[-1].items()))
    numbers: Numbers = {}
    for policy in bench.contenders:
        numbers[f"engine.policy_per_s.{policy}"] = spread([rate[policy] for rate in rates])
        if policy != OURS:
            numbers[f"engine.policy_speedup.{policy}"] = spread([rate[OURS] / rate[policy] for rate in rates])
    return numbers | _half_load(bench, HALF * median(rate[OURS] for rate in rates), rounds, say)


def _half_load(bench: EngineBench, rate: float, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Compare Nightjar's policy and no batching at the same rate, with the same arrivals within a round."""
    ours, alone = [], []
    for number in range(rounds):
        arrival = np.cumsum(np.random.default_rng(number).exponential(1 / rate, PASSES * len(bench.inputs)))
        ours.append(1e3 * np.quantile(bench.latencies(OURS, arrival), (0.5, 0.99)))
        alone.append(1e3 * np.quantile(bench.latencies(ALONE, arrival), (0.5, 0.99)))
        say(f"half load, {number + 1}/{rounds}: p99 {ours[-1][1]:.1f} ms, one by one {alone[-1][1]:.1f} ms")
    return {
        "engine.half_load_per_s": rate,
        "engine.half_load_p50_ms": spread([float(p50) for p50, _ in ours]),
        "engine.half_load_p99_ms": spread([float(p99) for _, p99 in ours]),
        "engine.half_load_p99_ms.one_by_one": spread([float(p99) for _, p99 in alone]),
        "engine.p99_half_load_vs_one_by_one": spread(
            [float(mine[1] / theirs[1]) for mine, theirs in zip(ours, alone, strict=True)]
        ),
    }
