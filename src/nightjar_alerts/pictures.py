"""Pictures of results: SVG without any library, and axes of matplotlib.

A picture shows the light curve (difference flux against time, one colour per band; open circles are not detected) and
the most probable classes, those of the prediction set in a strong colour.
"""

import math
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nightjar_alerts.models.photometry import FILTERS

if TYPE_CHECKING:
    from nightjar_alerts.models.lightcurve import LightCurve
    from nightjar_alerts.results import Evolution, Result, Results

COLOURS: Final = {"u": "#0c71ff", "g": "#2f9e44", "r": "#c61c00", "i": "#e8a500", "z": "#d6338a", "Y": "#5d0000"}
"""Colours of the Rubin bands; other filters are grey."""
OTHER: Final = "#666666"
INSIDE, OUTSIDE = "#2b6cb0", "#b8c7d9"
"""Colours of the classes inside and outside of the prediction set."""
SHOWN_CLASSES: Final = 8
WIDTH, HEIGHT = 900, 320
_LEFT, _TOP, _RIGHT, _BOTTOM = 78, 52, 560, 272
_BARS, _LABEL = 585, 118
_INK, _PALE = "#1a202c", "#d5dbe3"
_TICKS: Final = 5
_MAX_POINTS: Final = 2000
"""Points of a light curve that a picture shows; of a longer one evenly chosen points."""


def svg(result: "Result") -> str:
    """Return a picture of a result as an SVG document."""
    heading, lines = _heading(result)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_INK}">',
        f"<title>{escape(f'{heading}: {lines}')}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="16" font-weight="bold">{escape(heading)}</text>',
        f'<text x="{_LEFT}" y="41">{escape(lines)}</text>',
    ]
    curve = result.light_curve
    parts += _panel(curve) if curve is not None and len(curve) else [_note("no light curve")]
    parts += _bars(result)
    return "".join([*parts, "</svg>"])


def _heading(result: "Result") -> tuple[str, str]:
    name = result.object_id or "light curve"
    if not result.classified:
        return name, f"{result.status}: {result.detail or result.reason}"[:120]
    if result.unusual:
        return name, f"{result.class_name} {result.confidence:.2f}, but unusual: unlike what the model was trained on"
    members = result.prediction_set
    shown = "" if members is None else f"; {len(members)} class{'es' if len(members) > 1 else ''} in the set"
    stated = "" if members is None or result.coverage is None else f" of {result.coverage:.0%}"
    return name, f"{result.class_name} {result.confidence:.2f}{shown}{stated}"


def _note(text: str) -> str:
    return f'<text x="{(_LEFT + _RIGHT) / 2}" y="160" text-anchor="middle" fill="{OTHER}">{escape(text)}</text>'


class _Axis:
    """Linear axis from data to pixels, with round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if not high > low:
            low, high = low - 1.0, high + 1.0
        margin = 0.05 * (high - low)
        self.low, self.high, self.start, self.end = low - margin, high + margin, start, end
        self.step = _round_step((self.high - self.low) / _TICKS)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step), math.floor(self.high / self.step)
        return [number * self.step for number in range(first, last + 1)]


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... that is not below a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def flux_scale(largest: float) -> tuple[float, str]:
    """Return the divisor of fluxes in nJy, and the unit, that suit the largest of them."""
    return next(((scale, unit) for scale, unit in ((1e6, "mJy"), (1e3, "µJy")) if largest >= 10 * scale), (1.0, "nJy"))


class _Points:
    """Points of a light curve to draw: at most :data:`_MAX_POINTS`, in a suitable unit."""

    def __init__(self, curve: "LightCurve") -> None:
        rows = np.argsort(curve.mjd, kind="stable")
        if len(rows) > _MAX_POINTS:
            rows = rows[np.linspace(0, len(rows) - 1, _MAX_POINTS).astype(np.int64)]
        self.mjd, self.band, self.detected = curve.mjd[rows], curve.band[rows], curve.detected[rows]
        scale, self.unit = flux_scale(float(np.abs(curve.flux).max()))
        self.flux, self.flux_err = curve.flux[rows] / scale, curve.flux_err[rows] / scale
        self.bands = [(FILTERS[index], self.band == index) for index in sorted(set(self.band.tolist()))]
        self.zero = math.floor(float(self.mjd.min()))

    def limits(self) -> tuple[float, float]:
        """Return the range of fluxes: every point, and error bars unless they are far longer than the points."""
        low, high = float(self.flux.min()), float(self.flux.max())
        longest = float(np.quantile(self.flux_err, 0.9))
        return min(0.0, low - longest), max(0.0, high + longest)


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
    parts.append(
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 35}" text-anchor="middle">MJD - {points.zero} (days)</text>'
    )
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">'
        f"difference flux ({points.unit})</text>"
    )
    parts.append('<g clip-path="url(#panel)">')
    for name, rows in points.bands:
        colour = COLOURS.get(name, OTHER)
        columns = (days[rows], points.flux[rows], points.flux_err[rows], points.detected[rows])
        for day, flux, error, detected in zip(*(column.tolist() for column in columns), strict=True):
            parts.append(
                f'<path d="M{x(day)} {y(flux - error)}V{y(flux + error)}" stroke="{colour}" stroke-opacity=".5"/>'
                f'<circle cx="{x(day)}" cy="{y(flux)}" r="3" stroke="{colour}" '
                f'fill="{colour if detected else "#fff"}"/>'
            )
    parts.append("</g>")
    for index, (name, _) in enumerate(points.bands):
        left = _RIGHT - 34 * (len(points.bands) - index)
        colour = COLOURS.get(name, OTHER)
        parts.append(
            f'<circle cx="{left}" cy="18" r="4" fill="{colour}"/><text x="{left + 8}" y="22">{escape(name)}</text>'
        )
    return parts


def _number(value: float, step: float) -> str:
    """Return a tick's label, with as many decimals as its step needs."""
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"


def ranked(result: "Result") -> list[tuple[str, float, bool]]:
    """Return the most probable classes: name, probability, and whether the prediction set holds it."""
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
    figure.suptitle(f"{heading}: {lines}", fontsize=10)
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
        colour, detected = COLOURS.get(name, OTHER), points.detected
        style = {"fmt": "o", "color": colour, "markersize": 4, "elinewidth": 0.8}
        days = points.mjd - points.zero
        for chosen, look in ((rows & detected, {}), (rows & ~detected, {"markerfacecolor": "none"})):
            label = name if look == {} else None
            ax.errorbar(days[chosen], points.flux[chosen], points.flux_err[chosen], label=label, **style, **look)
    ax.set(xlabel=f"MJD - {points.zero} (days)", ylabel=f"difference flux ({points.unit})", ylim=points.limits())
    ax.legend(fontsize="small")


def draw_evolution(evolution: "Evolution", ax: Any = None) -> Any:
    """Draw an evolution with matplotlib; see :meth:`nightjar_alerts.results.Evolution.plot`."""
    if ax is None:
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError as error:
            raise ImportError("matplotlib is not installed: pip install matplotlib") from error
        _, ax = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    steps = [step for step in evolution.steps if "probabilities" in step]
    days = [step["mjd"] for step in steps]
    best: dict[str, float] = {}
    for step in steps:
        for name, probability in step["probabilities"].items():
            best[name] = max(best.get(name, 0.0), probability)
    for name in sorted(best, key=lambda name: -best[name])[:SHOWN_CLASSES]:
        ax.plot(days, [step["probabilities"][name] for step in steps], marker=".", label=name)
    ax.set(xlabel="MJD (days)", ylabel="probability", ylim=(0, 1), title=evolution.object_id)
    if steps:
        ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def html_table(results: "Results", rows: int) -> str:
    """Return the first results as an HTML table, and their number by status."""
    heads = ("object_id", "class", "confidence", "prediction_set", "unusual", "status", "reason")
    lines = ["<table><thead><tr>", *(f"<th>{head}</th>" for head in heads), "</tr></thead><tbody>"]
    for result in results[:rows]:
        row = result.row()
        texts = {
            "confidence": "" if row["confidence"] is None else f"{row['confidence']:.3f}",
            "prediction_set": ", ".join(row["prediction_set"] or ()),
            "unusual": "" if row["unusual"] is None else str(row["unusual"]),
        }
        cells = (texts.get(head, str(row[head] or "")) for head in heads)
        lines.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    shown = f"the first {rows} of {len(results):,}: " if len(results) > rows else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes)
    listed = f"<ul>{notes}</ul>" if notes else ""
    return "".join([*lines, f"</tbody></table><p>{shown}{escape(results.summary())}</p>{listed}"])
