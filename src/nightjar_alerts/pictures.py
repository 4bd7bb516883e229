"""Pictures of results: SVG without any library, and matplotlib plots; HTML tables for notebooks.

A picture shows the light curve against time: difference flux, or of total flux the AB magnitude (the flux if a point
has less than 3 sigma). Each filter has a colour and a symbol; open symbols are non-detections. It also shows the most
probable classes, with those of the prediction set in a stronger colour.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import DETECTION_SNR, FILTERS, magnitude_of
from nightjar_alerts.names import printable

if TYPE_CHECKING:
    from nightjar_alerts.models.lightcurve import LightCurve
    from nightjar_alerts.results import Evolution, Result, Results

FILTER_STYLES: Final = {
    "u": ("#0c71ff", "o"), "g": ("#2f9e44", "^"), "r": ("#c61c00", "v"), "i": ("#e8a500", "s"), "z": ("#d6338a", "*"),
    "Y": ("#5d0000", "p"), "c": ("#00a3b8", "D"), "o": ("#e8730c", "h"), "BP": ("#2b5fd9", "o"), "G": ("#2e9a47", "^"),
    "RP": ("#c61c00", "v"), "U": ("#7a3fd1", "o"), "B": ("#2b5fd9", "D"), "V": ("#2e9a47", "s"), "R": ("#c61c00", "h"),
    "I": ("#7b4a21", "s"), "w": ("#66707f", "o"), "C": ("#66707f", "D"),
}  # fmt: skip
"""Colour and matplotlib symbol of every filter, as on the web page; those of Rubin are from RTN-045."""
_CORNERS: Final = {
    "^": (3, 0.0),
    "v": (3, 0.5),
    "s": (4, 0.125),
    "D": (4, 0.0),
    "*": (5, 0.0),
    "p": (5, 0.0),
    "h": (6, 0.0),
}
"""Number of corners of each symbol except the circle, and position of the first one as a fraction of a turn."""
PALE_TEXT: Final = "#666666"
INSIDE, OUTSIDE = "#2b6cb0", "#b8c7d9"
"""Colours of the classes inside and outside of the prediction set."""
SHOWN_CLASSES: Final = 8
WIDTH, HEIGHT = 900, 338
_LEFT, _TOP, _RIGHT, _BOTTOM = 78, 70, 560, 290
_BARS, _LABEL = 585, 118
_INK, _PALE = "#1a202c", "#d5dbe3"
_TICKS: Final = 5
_LINE: Final = 130
"""Maximum number of characters in a line of the heading."""
MAGNITUDE_SIGMA: Final = 3.0
"""Total flux is shown in magnitudes if every point has this signal-to-noise ratio, as on the web page."""
_DENSE_POINTS: Final = 1000
"""Number of points above which symbols are small and error bars faint."""
_MAX_POINTS: Final = 2000
"""Maximum number of points in a picture; of longer light curves each filter has a random sample of its points."""


def svg(result: "Result") -> str:
    """Return a picture of a result as an SVG document."""
    heading, lines = _heading(result)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_INK}">',
        f"<title>{escape(f'{heading}: {lines}')}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="16" font-weight="bold">{escape(heading)}</text>',
    ]
    for row, line in enumerate(wrap(lines, _LINE, max_lines=2, placeholder=" ...")):
        parts.append(f'<text x="{_LEFT}" y="{41 + 16 * row}">{escape(line)}</text>')
    curve = result.light_curve
    parts += _panel(curve) if curve is not None and len(curve) else [_note("no light curve")]
    parts += _bars(result)
    return "".join([*parts, "</svg>"])


def _heading(result: "Result") -> tuple[str, str]:
    name = printable(result.object_id) or "light curve"  # XML has no control characters
    if not result.classified:
        return name, printable(f"{result.status}: {result.detail or result.reason}")
    warned = "".join(f"; warning: {warning.detail}" for warning in result.warnings)
    if result.other_filters:
        warned = f"; not used: {', '.join(result.other_filters)}{warned}"
    warned = printable(warned)
    if result.unusual:
        unlike = "but unusual: unlike what the model was trained on"
        return name, f"{result.class_name} {result.confidence:.2f}, {unlike}{warned}"
    members, coverage = result.prediction_set, result.coverage
    shown = "" if members is None or coverage is None else f"; {coverage:.0%} prediction set: {', '.join(members)}"
    return name, f"{result.class_name} {result.confidence:.2f}{shown}{warned}"


def _note(text: str) -> str:
    return f'<text x="{(_LEFT + _RIGHT) / 2}" y="178" text-anchor="middle" fill="{PALE_TEXT}">{escape(text)}</text>'


class _Axis:
    """Linear axis from data to pixels, with round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if high == low:
            low, high = low - 1.0, high + 1.0
        margin = 0.05 * (high - low)
        self.low, self.high, self.start, self.end = low - margin, high + margin, start, end
        self.step = _round_step(abs(self.high - self.low) / _TICKS)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        low, high = sorted((self.low, self.high))
        first, last = math.ceil(low / self.step), math.floor(high / self.step)
        return [number * self.step for number in range(first, last + 1)]


def _round_step(step: float) -> float:
    """Round a step up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def flux_scale(largest: float) -> tuple[float, str]:
    """Return a suitable unit for fluxes up to ``largest``, in nJy, and the divisor that converts to it."""
    return next(((scale, unit) for scale, unit in ((1e6, "mJy"), (1e3, "µJy")) if largest >= 10 * scale), (1.0, "nJy"))


class _Points:
    """Points of a light curve to draw, about :data:`_MAX_POINTS` at most.

    ``value`` and ``error`` are fluxes in a suitable unit, or AB magnitudes of total flux (``is_magnitude``).
    """

    def __init__(self, curve: "LightCurve") -> None:
        rows = np.argsort(curve.mjd, kind="stable")
        note = ""
        if len(rows) > _MAX_POINTS:
            rows = _sample(rows, curve.band[rows])
            note = f", {len(rows):,} of {len(curve):,} points"
        self.mjd, self.band, self.detected = curve.mjd[rows], curve.band[rows], curve.detected[rows]
        total, flux_err = curve.total_flux(), curve.flux_err[rows]
        flux = np.asarray(curve.flux if total is None else total, np.float64)[rows]
        self.value: NDArray[Any]
        self.error: NDArray[Any]
        self.is_magnitude = total is not None and bool((flux >= MAGNITUDE_SIGMA * flux_err).all())
        if total is not None:
            self.detected = flux >= DETECTION_SNR * flux_err
        if self.is_magnitude:
            self.value, self.error = magnitude_of(flux), 2.5 / math.log(10.0) * flux_err / flux
            self.detected = np.ones(len(rows), np.bool_)
            self.value_label = "AB magnitude"
        else:
            scale, unit = flux_scale(float(np.abs(flux).max()))
            self.value, self.error = flux / scale, flux_err / scale
            self.value_label = f"{'difference ' * (total is None)}flux ({unit})"
        self.bands = [(FILTERS[index], self.band == index) for index in sorted(set(self.band.tolist()))]
        self.radius, self.opacity = (1.5, 0.15) if len(rows) > _DENSE_POINTS else (3.0, 0.5)
        self.zero = math.floor(float(self.mjd.min()))
        self.time_label = f"MJD - {self.zero} (days){note}"

    def limits(self) -> tuple[float, float]:
        """Return the values at the bottom and at the top, extended by the 90th percentile of the errors.

        Zero flux is among them, and faint magnitudes are at the bottom.
        """
        longest = float(np.quantile(self.error, 0.9))
        low, high = float(self.value.min()) - longest, float(self.value.max()) + longest
        return (high, low) if self.is_magnitude else (min(0.0, low), max(0.0, high))


def _sample(rows: NDArray[np.int64], band: NDArray[Any]) -> NDArray[np.int64]:
    """Return about :data:`_MAX_POINTS` rows: of each filter the same fraction, its extremes in time among them.

    A random choice cannot beat with the cadence or with the order of the filters, as steps of equal length do.
    """
    random = np.random.default_rng(0)
    kept = []
    for index in np.unique(band):
        own = np.flatnonzero(band == index)
        count = max(2, round(len(own) * _MAX_POINTS / len(rows)))
        inner = own[1:-1]
        chosen = random.choice(inner, min(len(inner), count - 2), replace=False)
        kept.append(np.unique(np.concatenate([own[:1], chosen, own[-1:]])))
    result: NDArray[np.int64] = rows[np.sort(np.concatenate(kept))]
    return result


def _panel(curve: "LightCurve") -> list[str]:
    points = _Points(curve)
    days = points.mjd - points.zero
    x = _Axis(float(days.min()), float(days.max()), _LEFT, _RIGHT)
    y = _Axis(*points.limits(), _BOTTOM, _TOP)
    parts = [
        f'<clipPath id="panel"><rect x="{_LEFT}" y="{_TOP}" width="{_RIGHT - _LEFT}" height="{_BOTTOM - _TOP}"/>'
        "</clipPath>"
    ]
    for value in y.ticks():
        parts.append(f'<path d="M{_LEFT} {y(value)}H{_RIGHT}" stroke="{_PALE}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{_number(value, y.step)}</text>')
    for value in x.ticks():
        parts.append(f'<path d="M{x(value)} {_BOTTOM}v4" stroke="{_INK}"/>')
        parts.append(f'<text x="{x(value)}" y="{_BOTTOM + 17}" text-anchor="middle">{_number(value, x.step)}</text>')
    middle = (_TOP + _BOTTOM) / 2
    parts.append(f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="{_INK}"/>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 35}" text-anchor="middle">{points.time_label}</text>')
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{points.value_label}</text>'
    )
    parts.append('<g clip-path="url(#panel)">')
    columns = (points.band, days, points.value, points.error, points.detected)  # by time: no filter hides another
    for band, day, value, error, detected in zip(*(column.tolist() for column in columns), strict=True):
        colour, symbol = FILTER_STYLES[FILTERS[band]]
        parts.append(
            f'<path d="M{x(day)} {y(value - error)}V{y(value + error)}" stroke="{colour}" '
            f'stroke-opacity="{points.opacity}"/>'
            f'<path d="{_symbol(symbol, x(day), y(value), points.radius)}" stroke="{colour}" '
            f'fill="{colour if detected else "#fff"}"/>'
        )
    parts.append("</g>")
    legend = [(name, *FILTER_STYLES[name], True) for name, _ in points.bands]
    if not points.detected.all():
        legend.append(("not detected", _INK, "o", False))
    left = _RIGHT + 8.0 - sum(22 + 7 * len(name) for name, *_ in legend)
    for name, colour, symbol, filled in legend:
        parts.append(
            f'<path d="{_symbol(symbol, left, 18, 4)}" stroke="{colour}" fill="{colour if filled else "#fff"}"/>'
            f'<text x="{left + 8}" y="22">{escape(name)}</text>'
        )
        left += 22 + 7 * len(name)
    return parts


def _symbol(symbol: str, x: float, y: float, radius: float) -> str:
    """Return the SVG path of a symbol."""
    if symbol == "o":
        return (
            f"M{x - radius:.1f} {y:.1f}a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 {-2 * radius} 0Z"
        )
    corners, turn = _CORNERS[symbol]
    steps = 2 * corners if symbol == "*" else corners
    path = []
    for step in range(steps):
        angle = 2 * math.pi * (turn + step / steps)
        length = radius * (0.6 if symbol == "*" and step % 2 else 1.4 if symbol == "*" else 1.25)
        path.append(f"{x + length * math.sin(angle):.1f} {y - length * math.cos(angle):.1f}")
    return f"M{'L'.join(path)}Z"


def _number(value: float, step: float) -> str:
    """Return the label of a tick with as many decimals as its step needs."""
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"


def ranked(result: "Result") -> list[tuple[str, float, bool]]:
    """Return the most probable classes: name, probability, and whether it is in the prediction set."""
    members = set(result.prediction_set or ())
    ordered = sorted(result.probabilities.items(), key=lambda item: -item[1])[:SHOWN_CLASSES]
    return [(name, probability, name in members) for name, probability in ordered]


def _bars(result: "Result") -> list[str]:
    parts = []
    start, full = _BARS + _LABEL, WIDTH - _BARS - _LABEL - 48
    for index, (name, probability, inside) in enumerate(ranked(result)):
        top = _TOP + 27 * index
        width = max(1.0, round(full * probability, 1))
        parts.append(
            f'<text x="{start - 8}" y="{top + 14}" text-anchor="end">{escape(name[:18])}</text>'
            f'<rect x="{start}" y="{top}" width="{width}" height="19" fill="{INSIDE if inside else OUTSIDE}"/>'
            f'<text x="{start + width + 5}" y="{top + 14}">{probability:.2f}</text>'
        )
    if any(inside for *_, inside in ranked(result)):
        parts.append(
            f'<rect x="{start}" y="{_TOP - 24}" width="10" height="10" fill="{INSIDE}"/>'
            f'<text x="{start + 15}" y="{_TOP - 15}">in the prediction set</text>'
        )
    return parts


def draw(result: "Result", ax: Any = None) -> Any:
    """Draw a result with matplotlib; see :meth:`nightjar_alerts.results.Result.plot`."""
    if ax is not None:
        _draw_light_curve(result, ax)
        return ax
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError("matplotlib is not installed: pip install matplotlib; to_svg() needs no library") from error
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), width_ratios=(3, 1.6), layout="constrained")
    heading, lines = _heading(result)
    figure.suptitle("\n".join(wrap(f"{heading}: {lines}", _LINE, max_lines=3, placeholder=" ...")), fontsize=10)
    _draw_light_curve(result, axes[0])
    classes = ranked(result)[::-1]
    colours = [INSIDE if inside else OUTSIDE for *_, inside in classes]
    axes[1].barh([name for name, *_ in classes], [probability for _, probability, _ in classes], color=colours)
    axes[1].set(xlim=(0, 1), xlabel="probability")
    return axes


def _draw_light_curve(result: "Result", ax: Any) -> None:
    curve = result.light_curve
    if curve is None or not len(curve):
        ax.text(0.5, 0.5, "no light curve", transform=ax.transAxes, ha="center")
        return
    points = _Points(curve)
    for name, rows in points.bands:
        (colour, symbol), detected = FILTER_STYLES[name], points.detected
        style = {"fmt": symbol, "color": colour, "markersize": 4 / 3 * points.radius, "elinewidth": 0.8}
        days = points.mjd - points.zero
        for chosen, look in ((rows & detected, {}), (rows & ~detected, {"markerfacecolor": "none"})):
            label = name if look == {} else None
            ax.errorbar(days[chosen], points.value[chosen], points.error[chosen], label=label, **style, **look)
    y = _Axis(*points.limits(), 0, 1)
    ax.set(xlabel=points.time_label, ylabel=points.value_label, ylim=(y.low, y.high))
    ax.legend(fontsize="small")


def draw_evolution(evolution: "Evolution", ax: Any = None) -> Any:
    """Draw an evolution with matplotlib; see :meth:`nightjar_alerts.results.Evolution.plot`."""
    if ax is None:
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError as error:
            raise ImportError("matplotlib is not installed: pip install matplotlib") from error
        _, ax = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    steps = [(step.mjd, step.probabilities) for step in evolution.steps if step.probabilities]
    days = [mjd for mjd, _ in steps]
    best: dict[str, float] = {}
    for _, probabilities in steps:
        for name, probability in probabilities.items():
            best[name] = max(best.get(name, 0.0), probability)
    for name in sorted(best, key=lambda name: -best[name])[:SHOWN_CLASSES]:
        ax.plot(days, [probabilities[name] for _, probabilities in steps], marker=".", label=name)
    ax.set(xlabel="MJD (days)", ylabel="probability", ylim=(0, 1), title=evolution.object_id)
    if steps:
        ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def html_table(results: "Results", rows: int) -> str:
    """Return the first results as an HTML table, and their number by status."""
    heads = ["object_id", "class", "confidence", "prediction_set", "unusual", "status", "reason"]
    if any(result.warnings for result in results):
        heads.append("warnings")
    shown = f"the first {rows} of {len(results):,}: " if len(results) > rows else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes)
    listed = f"<ul>{notes}</ul>" if notes else ""
    table = _html(heads, [result.row() for result in results[:rows]])
    return f"{table}<p>{shown}{escape(results.summary())}</p>{listed}"


def html_steps(evolution: "Evolution", rows: int) -> str:
    """Return the last steps of an evolution as an HTML table, below a summary line."""
    heads = ("mjd", "detections", "class", "confidence", "prediction_set", "unusual")
    steps = evolution.steps
    shown = f"the last {rows} of {len(steps)} steps" if len(steps) > rows else f"{len(steps)} steps"
    changes = f"{evolution.class_changes} changes of the class"
    table = _html(heads, [step.members() for step in steps[-rows:]])
    return f"<p>{escape(evolution.object_id)} {shown}, {changes}</p>{table}"


def _html(heads: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return some columns of rows as an HTML table, with three decimals in numbers and comma-separated lists."""

    def text(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(value)
        return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)

    lines = ["<table><thead><tr>", *(f"<th>{head}</th>" for head in heads), "</tr></thead><tbody>"]
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td>{escape(text(row.get(head)))}</td>' for head in heads)}</tr>")
    return "".join([*lines, "</tbody></table>"])
