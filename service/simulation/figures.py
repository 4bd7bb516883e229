"""What a run of the engine, simulated or real, amounts to: throughput, latency, batches, padding, goodput."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from service.simulation.events import Outcome


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one policy under one traffic.

    Attributes
    ----------
    offered : light curves a second that arrived; infinite when all came at once.
    throughput : light curves answered a second, from the first arrival to the last answer.
    p50_ms, p99_ms, max_ms : latency of the answered, from the intended arrival.
    mean_batch : light curves in a run.
    padding : share of the padded observations that were padding.
    goodput : light curves a second answered within the time asked for, by the clock of ``throughput``.
    expired : light curves whose deadline passed before they could be answered.
    peak_waiting : most light curves in the queue.
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
        """The figures by name, as JSON can hold them."""
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def figures(outcome: Outcome, within: float) -> Figures:
    """Sum up an outcome.

    Parameters
    ----------
    within : seconds from its arrival in which an answer counts as goodput.
    """
    arrival, answered = outcome.trace.arrival, outcome.answered
    latency = (answered - arrival)[np.isfinite(answered)]
    span, taken = arrival[-1] - arrival[0], np.nanmax(answered, initial=arrival[-1]) - arrival[0]
    p50, p99, most = 1000 * np.quantile(latency, (0.5, 0.99, 1.0)) if len(latency) else np.full(3, np.nan)
    sizes = [len(run.items) for run in outcome.runs]
    padded = sum(size * run.length for size, run in zip(sizes, outcome.runs, strict=True))
    return Figures(
        offered=_rate(len(arrival), span),
        throughput=_rate(len(latency), taken),
        p50_ms=float(p50),
        p99_ms=float(p99),
        max_ms=float(most),
        mean_batch=float(np.mean(sizes)) if sizes else float("nan"),
        padding=1 - sum(run.tokens for run in outcome.runs) / padded if padded else 0.0,
        goodput=_rate(int((latency <= within).sum()), taken),
        expired=len(arrival) - len(latency),
        peak_waiting=outcome.peak_waiting,
    )


def _rate(count: int, seconds: float) -> float:
    return float(count / seconds) if seconds > 0 else float("inf")


def table(rows: Sequence[tuple[str, Figures]]) -> str:
    """Rows of figures as text for a terminal."""
    names = ("offered/s", "answered/s", "good/s", "p50 ms", "p99 ms", "batch", "padding")
    width = max((len(label) for label, _ in rows), default=0)
    lines = ["".join([" " * width, *(f"{name:>12}" for name in names)])]
    for label, one in rows:
        values = (one.offered, one.throughput, one.goodput, one.p50_ms, one.p99_ms, one.mean_batch)
        lines.append("".join([label.ljust(width), *(f"{value:>12.1f}" for value in values), f"{one.padding:>12.0%}"]))
    return "\n".join(lines)
