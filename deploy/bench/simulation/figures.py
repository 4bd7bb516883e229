"""Figures and charts of simulated or real runs of the engine, and sweeps that compare policies with equal traffic.

The figures are throughput, latency, batch size, padding and goodput. The traffic of a sweep is rising Poisson load,
visits of a survey, or a recorded trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deploy.bench.simulation.events import Contender, Machine, PolicyName, TraceOutcome, simulate
from deploy.bench.workload import VISIT_SECONDS, Trace, poisson, visits


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a policy with one kind of traffic.

    Attributes
    ----------
    offered : arriving light curves per second; infinite if all arrive at once.
    throughput : results per second, from the first arrival to the last result.
    p50_ms, p99_ms, max_ms : latency of the results, from the intended arrival.
    mean_batch : mean number of light curves in a run.
    padding : fraction of the padded observations that are padding.
    goodput : results per second within the deadline, over the same time as ``throughput``.
    expired : number of light curves whose deadline passed before they had a result.
    peak_waiting : maximum number of light curves in the queue.
    """

    offered: float
    throughput: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    mean_batch: float
    padding: float
    goodput: float
    expired: int
    peak_waiting: int

    def row(self) -> dict[str, Any]:
        """Return the figures by name as JSON values."""
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def figures(outcome: TraceOutcome, within: float) -> Figures:
    """Compute the figures of an outcome.

    Parameters
    ----------
    within : maximum seconds from the arrival for a result to count as goodput.
    """
    arrival, answered = outcome.trace.arrival, outcome.answered
    latency = (answered - arrival)[np.isfinite(answered)]
    span, busy = arrival[-1] - arrival[0], np.nanmax(answered, initial=arrival[-1]) - arrival[0]
    p50, p99, most = 1000 * np.quantile(latency, (0.5, 0.99, 1.0)) if len(latency) else np.full(3, np.nan)
    sizes = [len(run.items) for run in outcome.runs]
    padded = sum(size * run.length for size, run in zip(sizes, outcome.runs, strict=True))
    return Figures(
        offered=_rate(len(arrival), span),
        throughput=_rate(len(latency), busy),
        p50_ms=float(p50),
        p99_ms=float(p99),
        max_ms=float(most),
        mean_batch=float(np.mean(sizes)) if sizes else float("nan"),
        padding=1 - sum(run.tokens for run in outcome.runs) / padded if padded else 0.0,
        goodput=_rate(int((latency <= within).sum()), busy),
        expired=len(arrival) - len(latency),
        peak_waiting=outcome.peak_waiting,
    )


def _rate(count: int, seconds: float) -> float:
    return float(count / seconds) if seconds > 0 else float("inf")


def table(rows: Sequence[tuple[str, Figures]]) -> str:
    """Format rows of figures as text for a terminal."""
    names = ("offered/s", "answered/s", "good/s", "p50 ms", "p99 ms", "batch", "padding")
    width = max((len(label) for label, _ in rows), default=0)
    lines = ["".join([" " * width, *(f"{name:>12}" for name in names)])]
    for label, one in rows:
        values = (one.offered, one.throughput, one.goodput, one.p50_ms, one.p99_ms, one.mean_batch)
        lines.append("".join([label.ljust(width), *(f"{value:>12.1f}" for value in values), f"{one.padding:>12.0%}"]))
    return "\n".join(lines)


LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Offered loads, as fractions of the throughput of Nightjar's policy at saturation."""

VISITS = 2
LATENCIES_MS = (1.0, 10_000.0)  # range of the chart
Contenders = Mapping[PolicyName, Contender]


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Result of a policy with one kind of traffic."""

    traffic: str
    policy: PolicyName
    outcome: TraceOutcome
    figures: Figures


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settings of a sweep.

    Attributes
    ----------
    within : maximum seconds from the arrival for a result to count as goodput.
    deadline : seconds after which a result is no longer computed; None for no deadline.
    longest : maximum number of observations that the network takes.
    """

    machine: Machine
    contenders: Contenders
    within: float
    deadline: float | None
    longest: int
    seed: int

    def trace(self, name: str, trace: Trace) -> Iterator[PolicyResult]:
        """Simulate every policy on a trace."""
        for policy, contender in self.contenders.items():
            outcome = simulate(trace, contender, self.machine, self.deadline)
            yield PolicyResult(name, policy, outcome, figures(outcome, self.within))

    def saturated(self, alerts: int) -> Iterator[PolicyResult]:
        """Simulate every policy on ``alerts`` light curves that arrive at once."""
        yield from self.trace("saturation", visits(alerts, 1, self.longest, self._rng()))

    def poisson(self, rates: Sequence[float], alerts: int) -> Iterator[PolicyResult]:
        """Simulate every policy on the same ``alerts`` light curves at each rate."""
        for rate in rates:
            yield from self.trace(f"poisson {rate:.0f}/s", poisson(rate, alerts, self.longest, self._rng()))

    def visits(self, alerts: int) -> Iterator[PolicyResult]:
        """Simulate every policy on consecutive visits."""
        yield from self.trace(
            f"{alerts:,} every {VISIT_SECONDS:.0f} s", visits(alerts, VISITS, self.longest, self._rng())
        )

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def picture(loads: Sequence[PolicyResult], bursts: Sequence[Sequence[PolicyResult]]) -> Figure:
    """Draw latency against throughput under rising load, and the results of each burst over time."""
    panels = ([loads] if loads else []) + list(bursts)
    figure = Figure((5.6 * len(panels), 4.0), layout="constrained")
    for number, (panel, results) in enumerate(
        zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
    ):
        if loads and number == 0:
            _draw_latency(panel, results)
        else:
            _draw_drain(panel, results)
        panel.grid(visible=True, color="#ddd")
        panel.set_xlim(left=0)
        panel.legend(fontsize=8)
    return figure


def _draw_latency(panel: Axes, results: Sequence[PolicyResult]) -> None:
    for number, policy in enumerate(dict.fromkeys(result.policy for result in results)):
        mine = [result.figures for result in results if result.policy == policy]
        throughput, colour = [one.throughput for one in mine], f"C{number}"
        panel.plot(throughput, [one.p99_ms for one in mine], label=policy, color=colour)
        panel.plot(throughput, [one.p50_ms for one in mine], "--", color=colour)
    panel.set(
        title="Poisson arrivals: p99 (solid) and p50 (dashed)",
        xlabel="light curves answered per second",
        ylabel="latency from arrival, ms",
        yscale="log",
        ylim=LATENCIES_MS,
    )


def _draw_drain(panel: Axes, results: Sequence[PolicyResult]) -> None:
    for result in results:
        answered = np.sort(result.outcome.answered[np.isfinite(result.outcome.answered)])
        # Dashed, because at saturation it coincides with the line of fifo_count_64.
        line = "--" if result.policy == "window_5ms" else "-"
        panel.plot(answered, np.arange(1, len(answered) + 1), line, label=result.policy)
    panel.set(title=results[0].traffic, xlabel="seconds", ylabel="light curves answered")
