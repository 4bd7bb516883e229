"""Figures and charts of runs of the engine, and the sweep that compares every policy under the same traffic.

A run, simulated or real, has throughput, latency, batches, padding and goodput. The traffic of a sweep is rising
Poisson load, visits of a survey, or a recorded trace. Line charts are SVG text, so that drawing them needs no library.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any, Literal

import numpy as np

from deploy.bench.simulation.events import Contender, Machine, PolicyName, TraceOutcome, simulate
from deploy.bench.workload import VISIT_SECONDS, Trace, poisson, visits


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
    goodput : light curves per second within the deadline, by the clock of ``throughput``.
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
        """Return the figures by name, as JSON can hold them."""
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def figures(outcome: TraceOutcome, within: float) -> Figures:
    """Sum up an outcome.

    Parameters
    ----------
    within : seconds from its arrival in which an answer counts as goodput.
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
    """Rows of figures as text for a terminal."""
    names = ("offered/s", "answered/s", "good/s", "p50 ms", "p99 ms", "batch", "padding")
    width = max((len(label) for label, _ in rows), default=0)
    lines = ["".join([" " * width, *(f"{name:>12}" for name in names)])]
    for label, one in rows:
        values = (one.offered, one.throughput, one.goodput, one.p50_ms, one.p99_ms, one.mean_batch)
        lines.append("".join([label.ljust(width), *(f"{value:>12.1f}" for value in values), f"{one.padding:>12.0%}"]))
    return "\n".join(lines)


COLOURS = ("#0072b2", "#555555", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Distinguishable with red-green colour blindness (Okabe and Ito)."""

WIDTH, HEIGHT = 560, 400
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 40, 56
LEGEND_STEP, LEGEND_WIDTH = 17, 150


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Points (x, y) in order; lines of one label share a colour and an entry in the legend."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. ``y_range`` cuts what lies outside, ``log_y`` needs it positive; the legend is where no line is."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    y_range: tuple[float, float]
    log_y: bool = False
    legend: Literal["top left", "bottom right"] = "top left"


@dataclass(frozen=True, slots=True)
class _Axes:
    """From numbers to places on the paper."""

    x_max: float
    y_range: tuple[float, float]
    log_y: bool

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = log10(value / low) / log10(high / low) if self.log_y else (value - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def draw(panels: Sequence[Chart]) -> str:
    """Panels side by side, as one SVG document."""
    body = "".join(
        f'<g transform="translate({number * WIDTH},0)">{"".join(_panel(panel, number))}</g>\n'
        for number, panel in enumerate(panels)
    )
    width = WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{width}" height="{HEIGHT}" fill="white"/>\n'
        f"{body}</svg>\n"
    )


def _panel(panel: Chart, number: int) -> Iterator[str]:
    x_max = max((x for line in panel.lines for x, _ in line.points), default=1.0) or 1.0
    axes = _Axes(1.04 * x_max, panel.y_range, panel.log_y)
    yield f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold">{escape(panel.title)}</text>\n'
    yield from _grid(panel, axes)
    yield (
        f'<clipPath id="plot{number}"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>\n'
    )
    labels = list(dict.fromkeys(line.label for line in panel.lines))
    for line in panel.lines:
        yield _line(line, axes, COLOURS[labels.index(line.label) % len(COLOURS)], number)
    yield from _legend(labels, panel.legend)


def _grid(panel: Chart, axes: _Axes) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in _ticks(axes.x_max):
        x = axes.x(value)
        yield f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:,.10g}</text>\n'
    low, high = panel.y_range
    powers = [10.0**power for power in range(ceil(log10(low)), floor(log10(high)) + 1)] if panel.log_y else []
    for value in powers or _ticks(high):
        y = axes.y(value)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>\n'
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="black"/>\n'
    middle = (TOP + bottom) / 2
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(panel.x_label)}</text>\n'
    yield (
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">'
        f"{escape(panel.y_label)}</text>\n"
    )


def _ticks(most: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from 0 to at most ``most``, four to nine of them."""
    power = 10.0 ** floor(log10(most / 4))
    step = next(power * digit for digit in (1, 2, 5, 10) if most / (power * digit) < 9)
    return [step * number for number in range(floor(most / step) + 1)]


def _line(line: ChartLine, axes: _Axes, colour: str, number: int) -> str:
    places = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    return (
        f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"{dash} '
        f'stroke-linejoin="round" clip-path="url(#plot{number})"/>\n'
    )


def _legend(labels: Sequence[str], corner: str) -> Iterator[str]:
    height = LEGEND_STEP * len(labels) + 6
    at_left = corner == "top left"
    left = LEFT + 8 if at_left else WIDTH - RIGHT - LEGEND_WIDTH - 8
    top = TOP + 4 if at_left else HEIGHT - BOTTOM - height - 8
    yield f'<rect x="{left}" y="{top}" width="{LEGEND_WIDTH}" height="{height}" fill="white" fill-opacity="0.85"/>\n'
    for row, label in enumerate(labels):
        y = top + 14 + LEGEND_STEP * row
        colour = COLOURS[row % len(COLOURS)]
        yield f'<path d="M{left + 6} {y - 4}h22" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{left + 34}" y="{y}">{escape(label)}</text>\n'


LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Offered load over what our own policy answers at saturation."""

VISITS = 2
DRAIN_POINTS = 200
LATENCIES_MS = (1.0, 10_000.0)  # of the picture
Contenders = Mapping[PolicyName, Contender]


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy under one traffic; ``outcome`` is its detail."""

    traffic: str
    policy: PolicyName
    outcome: TraceOutcome
    figures: Figures


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settings that every traffic of a sweep shares.

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

    def trace(self, name: str, trace: Trace) -> Iterator[PolicyResult]:
        """Every policy on one trace."""
        for policy, contender in self.contenders.items():
            outcome = simulate(trace, contender, self.machine, self.deadline)
            yield PolicyResult(name, policy, outcome, figures(outcome, self.within))

    def saturated(self, alerts: int) -> Iterator[PolicyResult]:
        """Every policy on ``alerts`` light curves that are all there at once."""
        yield from self.trace("saturation", visits(alerts, 1, self.longest, self._rng()))

    def poisson(self, rates: Sequence[float], alerts: int) -> Iterator[PolicyResult]:
        """Every policy on ``alerts`` light curves at each rate, the same ones each time."""
        for rate in rates:
            yield from self.trace(f"poisson {rate:.0f}/s", poisson(rate, alerts, self.longest, self._rng()))

    def visits(self, alerts: int) -> Iterator[PolicyResult]:
        """Every policy on consecutive visits."""
        yield from self.trace(
            f"{alerts:,} every {VISIT_SECONDS:.0f} s", visits(alerts, VISITS, self.longest, self._rng())
        )

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def picture(loads: Sequence[PolicyResult], bursts: Sequence[Sequence[PolicyResult]]) -> str:
    """Latency against throughput under rising load, and how fast each burst drains, as SVG."""
    panels = [_latency_panel(loads)] if loads else []
    return draw([*panels, *(_drain_panel(burst) for burst in bursts)])


def _latency_panel(results: Sequence[PolicyResult]) -> Chart:
    lines = []
    for policy in dict.fromkeys(result.policy for result in results):
        mine = [result.figures for result in results if result.policy == policy]
        lines.append(ChartLine(policy, [(one.throughput, one.p99_ms) for one in mine]))
        lines.append(ChartLine(policy, [(one.throughput, one.p50_ms) for one in mine], dashed=True))
    return Chart(
        "Poisson arrivals: p99 (solid) and p50 (dashed)",
        "light curves answered per second",
        "latency from arrival, ms",
        [ChartLine(line.label, [point for point in line.points if point[1] > 0], line.dashed) for line in lines],
        LATENCIES_MS,
        log_y=True,
    )


def _drain_panel(results: Sequence[PolicyResult]) -> Chart:
    lines = []
    for result in results:
        answered = np.sort(result.outcome.answered[np.isfinite(result.outcome.answered)])
        places = np.unique(np.linspace(0, len(answered), DRAIN_POINTS + 1).astype(int)[1:])
        points = [(0.0, 0.0), *((float(answered[n - 1]), float(n)) for n in places)]
        # At saturation a window is never waited for: dashes leave the line it covers in sight.
        lines.append(ChartLine(result.policy, points, dashed=result.policy == "window_5ms"))
    total = len(results[0].outcome.answered)
    return Chart(
        results[0].traffic,
        "seconds",
        "light curves answered",
        lines,
        (0.0, 1.05 * total),
        legend="bottom right",
    )
