"""Every policy under the same traffic: rising Poisson load, visits of a survey, or a recorded trace."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.bench.simulation.events import Machine, Outcome, simulate
from deploy.bench.simulation.figures import Figures, Line, Panel, draw, figures
from deploy.bench.simulation.traffic import VISIT_SECONDS, Contender, PolicyName, Trace, poisson, visits

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Offered load over what our own policy answers at saturation."""

VISITS = 2
DRAIN_POINTS = 200
LATENCIES_MS = (1.0, 10_000.0)  # of the picture
Contenders = Mapping[PolicyName, Contender]


@dataclass(frozen=True, slots=True)
class Result:
    """One policy under one traffic; ``outcome`` is its detail."""

    traffic: str
    policy: PolicyName
    outcome: Outcome
    figures: Figures


@dataclass(frozen=True, slots=True)
class Sweep:
    """What every traffic of a sweep shares.

    Attributes
    ----------
    within : seconds from its arrival in which an answer counts as goodput.
    deadline : seconds after which an answer is worth nothing and is no longer computed; None: never.
    longest : observations that the network takes.
    """

    machine: Machine
    contenders: Contenders
    within: float
    deadline: float | None
    longest: int
    seed: int

    def trace(self, name: str, trace: Trace) -> Iterator[Result]:
        """Every policy on one trace."""
        for policy, contender in self.contenders.items():
            outcome = simulate(trace, contender, self.machine, self.deadline)
            yield Result(name, policy, outcome, figures(outcome, self.within))

    def saturated(self, alerts: int) -> Iterator[Result]:
        """Every policy on ``alerts`` light curves that are all there at once."""
        yield from self.trace("saturation", visits(alerts, 1, self.longest, self._rng()))

    def poisson(self, rates: Sequence[float], alerts: int) -> Iterator[Result]:
        """Every policy on ``alerts`` light curves at each rate, the same ones each time."""
        for rate in rates:
            yield from self.trace(f"poisson {rate:.0f}/s", poisson(rate, alerts, self.longest, self._rng()))

    def visits(self, alerts: int) -> Iterator[Result]:
        """Every policy on consecutive visits."""
        yield from self.trace(
            f"{alerts:,} every {VISIT_SECONDS:.0f} s", visits(alerts, VISITS, self.longest, self._rng())
        )

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def picture(loads: Sequence[Result], bursts: Sequence[Sequence[Result]]) -> str:
    """Latency against throughput under rising load, and how fast each burst drains, as SVG."""
    panels = [_latency_panel(loads)] if loads else []
    return draw([*panels, *(_drain_panel(burst) for burst in bursts)])


def _latency_panel(results: Sequence[Result]) -> Panel:
    lines = []
    for policy in dict.fromkeys(result.policy for result in results):
        mine = [result.figures for result in results if result.policy == policy]
        lines.append(Line(policy, [(one.throughput, one.p99_ms) for one in mine]))
        lines.append(Line(policy, [(one.throughput, one.p50_ms) for one in mine], dashed=True))
    return Panel(
        "Poisson arrivals: p99 (solid) and p50 (dashed)",
        "light curves answered per second",
        "latency from arrival, ms",
        [Line(line.label, [point for point in line.points if point[1] > 0], line.dashed) for line in lines],
        LATENCIES_MS,
        log_y=True,
    )


def _drain_panel(results: Sequence[Result]) -> Panel:
    lines = []
    for result in results:
        answered = np.sort(result.outcome.answered[np.isfinite(result.outcome.answered)])
        shown = np.unique(np.linspace(0, len(answered), DRAIN_POINTS + 1).astype(int)[1:])
        points = [(0.0, 0.0), *((float(answered[n - 1]), float(n)) for n in shown)]
        # At saturation a window is never waited for: dashes leave the line it covers in sight.
        lines.append(Line(result.policy, points, dashed=result.policy == "window_5ms"))
    total = len(results[0].outcome.answered)
    return Panel(
        results[0].traffic,
        "seconds",
        "light curves answered",
        lines,
        (0.0, 1.05 * total),
        legend="bottom right",
    )
