"""Batching policies on the real engine: ours and those of other servers, on the same network, curves and run.

At saturation every curve waits from the start, and what counts is how long it takes until the last is answered. At half
of that load curves arrive at random, open loop: each is given to the engine at its moment whatever has become of the
others, and its latency counts from that moment. Rounds are interleaved (every policy once, in turn), and ratios are
taken within a round.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deploy.bench.curves import Columns
from deploy.bench.report import Numbers, spread
from deploy.bench.schedules import tokens_of
from deploy.bench.simulation.traffic import Contender, PolicyName, contenders
from service.engine.batch import Prediction, Question
from service.engine.engine import Engine, EngineOptions
from service.engine.load import LoadedModel
from service.engine.policy import BatchLimits, most_items
from service.engine.programs import program_of

OURS: Final = "nightjar"
ALONE: Final = "one_by_one"
ROOM: Final = 10**9  # of the queue: nothing is refused
HALF: Final = 0.5
PASSES: Final = 4  # over the curves at half load: a 99th percentile needs many


@dataclass(frozen=True, slots=True)
class Bench:
    """A network, what it is asked, and the policies that are compared."""

    model: LoadedModel
    questions: Sequence[Question]
    contenders: Mapping[PolicyName, Contender]

    @classmethod
    def of(cls, model: LoadedModel, curves: Sequence[Columns]) -> "Bench":
        """Featurise the curves: the engine takes them from there."""
        questions = [Question(tokens_of(curve, model.bundle.manifest)) for curve in curves]
        return cls(model, questions, contenders(limits_of(model)))

    @asynccontextmanager
    async def engine(self, policy: PolicyName) -> AsyncIterator[Engine]:
        """Return the service's engine, in the layout that the service would use, under a policy."""
        contender, layout = self.contenders[policy], self.model.layout
        engine = Engine(
            self.model.run,
            program_of(self.model.bundle.manifest),
            self.model.cost,
            EngineOptions(
                workers=layout.runs,
                groups=layout.groups,
                limits=contender.limits,
                policy=contender.policy,
                max_queued_seconds=ROOM,
                max_queued_items=ROOM,
            ),
            samples=self.model.samples,
            clock=self.model.clock,
        )
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def saturated(self, policy: PolicyName) -> float:
        """Curves a second, all of them there at once."""
        async with self.engine(policy) as engine:
            loop = asyncio.get_running_loop()
            started = loop.time()
            await asyncio.gather(*(entry.future for entry in engine.enqueue(self.questions)))
            return len(self.questions) / (loop.time() - started)

    async def latencies(self, policy: PolicyName, arrival: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds from each intended arrival to its answer; the curves come in turn, as often as there are arrivals."""
        async with self.engine(policy) as engine:
            loop = asyncio.get_running_loop()
            answered, futures = np.zeros(len(arrival)), []
            start = loop.time()
            for number, due in enumerate(arrival.tolist()):
                if (early := start + due - loop.time()) > 0:
                    await asyncio.sleep(early)
                (entry,) = engine.enqueue([self.questions[number % len(self.questions)]])
                entry.future.add_done_callback(_noted(answered, number, loop))
                futures.append(entry.future)
            await asyncio.gather(*futures)
            await asyncio.sleep(0)  # the notes of the last answers are taken in this turn of the loop
            return answered - start - arrival


def _noted(
    answered: NDArray[np.float64], number: int, loop: asyncio.AbstractEventLoop
) -> Callable[[asyncio.Future[Prediction]], None]:
    def note(_: asyncio.Future[Prediction]) -> None:
        answered[number] = loop.time()

    return note


def limits_of(model: LoadedModel) -> BatchLimits:
    """Return the limits that the service gives its engine for this model."""
    return BatchLimits(max_tokens=model.max_tokens, max_items=most_items(model.max_tokens))


def measure(model: LoadedModel, curves: Sequence[Columns], rounds: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``engine.policy_per_s.*``, ``engine.policy_speedup.*`` and those of half load."""
    return asyncio.run(_measure(Bench.of(model, curves), rounds, say))


async def _measure(bench: Bench, rounds: int, say: Callable[[str], None]) -> Numbers:
    await bench.saturated(OURS)  # the first run of a shape is dearer
    rates: list[dict[PolicyName, float]] = []
    for number in range(rounds):
        rates.append({policy: await bench.saturated(policy) for policy in bench.contenders})
        say(f"round {number + 1}/{rounds}: " + ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates[-1].items()))
    numbers: Numbers = {}
    for policy in bench.contenders:
        numbers[f"engine.policy_per_s.{policy}"] = spread([rate[policy] for rate in rates])
        if policy != OURS:
            numbers[f"engine.policy_speedup.{policy}"] = spread([rate[OURS] / rate[policy] for rate in rates])
    return numbers | await _half_load(bench, HALF * median(rate[OURS] for rate in rates), rounds, say)


async def _half_load(bench: Bench, rate: float, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Ours and one by one at the same rate, the same arrivals within a round."""
    ours, alone = [], []
    for number in range(rounds):
        arrival = np.cumsum(np.random.default_rng(number).exponential(1 / rate, PASSES * len(bench.questions)))
        ours.append(1e3 * np.quantile(await bench.latencies(OURS, arrival), (0.5, 0.99)))
        alone.append(1e3 * np.quantile(await bench.latencies(ALONE, arrival), (0.5, 0.99)))
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
