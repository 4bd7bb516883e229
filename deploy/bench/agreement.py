"""The simulation of ``nightjar simulate`` beside the engine that it simulates: the same trace, the same limits.

Each round measures what runs cost, simulates, and drives the real engine with the trace. Two simulations are held
against it: one that was told only what could be known before, and one that knows what runs took in the replay. The
first also shows how much the machine changed from one second to the next; the second shows queue and policy alone.
"""

import asyncio
from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from deploy.bench.curves import LONGEST
from deploy.bench.policies import OURS, limits_of
from deploy.bench.report import Numbers, spread
from service.inference.loaded import LoadedModel
from service.inference.programs import program_of
from service.simulation.events import Machine, Outcome, simulate
from service.simulation.figures import Figures, figures
from service.simulation.replay import fitted, occupation, replay
from service.simulation.rivals import Contender, contenders
from service.simulation.traffic import Trace, visits

WITHIN: Final = 1.0  # seconds, of goodput, which is not looked at here
FIGURES: Final = ("throughput", "p50_ms", "p99_ms")


class Ratios(NamedTuple):
    """Simulated over measured, in the order of :data:`FIGURES`."""

    before: tuple[float, ...]
    afterwards: tuple[float, ...]


def measure(model: LoadedModel, curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``engine.simulated_vs_measured.FIGURE``, ``...FIGURE.runs_known`` and ``engine.simulation_error``."""
    longest = min(LONGEST, program_of(model.bundle.manifest).most_points)
    seen = []
    for number in range(rounds):
        trace = visits(curves, 1, longest, np.random.default_rng(number))
        seen.append(_round(model, trace, contenders(limits_of(model))[OURS]))
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(FIGURES, seen[-1].before, strict=True))
        say(f"simulated / measured, {number + 1}/{rounds}: {shown}")
    numbers: Numbers = {}
    for index, name in enumerate(FIGURES):
        numbers[f"engine.simulated_vs_measured.{name}"] = spread([one.before[index] for one in seen])
        numbers[f"engine.simulated_vs_measured.{name}.runs_known"] = spread([one.afterwards[index] for one in seen])
    numbers["engine.simulation_error"] = _error([one.before for one in seen])
    numbers["engine.simulation_error.runs_known"] = _error([one.afterwards for one in seen])
    return numbers


def _round(model: LoadedModel, trace: Trace, ours: Contender) -> Ratios:
    workers = model.layout.runs
    before = Machine(workers, model.cost, occupation(model, workers))
    measured = asyncio.run(replay(trace, model, workers, ours.limits))
    afterwards = Machine(workers, model.cost, fitted(measured.runs))
    real = _figures(measured)
    return Ratios(*(_over(_figures(simulate(trace, ours, machine)), real) for machine in (before, afterwards)))


def _figures(outcome: Outcome) -> Figures:
    return figures(outcome, WITHIN)


def _over(simulated: Figures, measured: Figures) -> tuple[float, ...]:
    return tuple(getattr(simulated, name) / getattr(measured, name) for name in FIGURES)


def _error(ratios: list[tuple[float, ...]]) -> float:
    """Largest distance of a figure's median ratio from 1."""
    return max(abs(float(median(column)) - 1) for column in zip(*ratios, strict=True))
