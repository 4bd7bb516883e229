// The multiband light curve: flux or magnitude with error bars and upper limits, over time or folded at a period.

import { html, useMemo, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { markerPath } from "./bands.js";
import { count, fluxUnit, LIMIT_SIGMA, magnitude, magnitudeError, summary, upperLimit } from "./photometry.js";
import { AxisNights, AxisX, AxisY, Cursor, MARGIN, pointerPosition, useWidth } from "./plot.js";
import { linear, padded } from "./scales.js";

const TOP = 44;
const NEAR = 24; // px within which a point is described
const DENSE = 1000; // observations above which points are small and have no outline
const LAYERS = 8; // of a dense plot, each with a share of the points of every band, so that no band hides the others

/** Position of a point in a plot of magnitudes or fluxes: {value, low, high, limit}; null where it has none. */
function placed(point, magnitudes, unit) {
  if (point.limit) {
    const value = magnitudes ? magnitude(point.flux) : point.flux / unit.factor;
    return { value, low: value, high: value, limit: true };
  }
  if (!magnitudes) {
    return {
      value: point.flux / unit.factor,
      low: (point.flux - point.error) / unit.factor,
      high: (point.flux + point.error) / unit.factor,
    };
  }
  if (point.flux < LIMIT_SIGMA * point.error) {
    if (point.flux < -LIMIT_SIGMA * point.error) return null; // fainter than in the template image
    const value = upperLimit(point);
    return { value, low: value, high: value, limit: true };
  }
  const value = magnitude(point.flux);
  const error = magnitudeError(point);
  return { value, low: value - error, high: value + error };
}

function rangeOf(marks) {
  let low = Infinity;
  let high = -Infinity;
  for (const mark of marks) {
    low = Math.min(low, mark.value);
    high = Math.max(high, mark.value);
  }
  const errors = marks.map((mark) => mark.high - mark.value).sort((a, b) => a - b);
  const room = Math.max((high - low) * 0.5, errors[errors.length >> 1]);
  const [lowest, highest] = [low - room, high + room]; // long error bars of a few points may leave the plot
  for (const mark of marks) {
    low = Math.min(low, Math.max(mark.low, lowest));
    high = Math.max(high, Math.min(mark.high, highest));
  }
  return padded([low, high], 0.06, Math.max(0.05, 0.01 * Math.abs(low), 0.01 * Math.abs(high)));
}

function describe(mark, epoch, total) {
  const { point } = mark;
  const night = (point.mjd - epoch).toFixed(1).replace("-", "−");
  const when = `${point.band}, MJD ${point.mjd.toFixed(3)} (day ${night})`;
  if (point.limit) return `${when}: upper limit ${magnitude(point.flux).toFixed(2)} mag, ${point.flux.toPrecision(4)} nJy`;
  const flux = `${point.flux.toPrecision(4)} ± ${point.error.toPrecision(3)} nJy`;
  const mag =
    point.flux >= LIMIT_SIGMA * point.error
      ? `${magnitude(point.flux).toFixed(2)} ± ${magnitudeError(point).toFixed(2)} mag`
      : `> ${upperLimit(point).toFixed(2)} mag (5σ)`;
  const state = point.detected ? "detection" : "no detection";
  return total ? `${when}: ${flux}, ${mag}` : `${when}: ${flux}, ${mag}, ${state}`;
}

/**
 * @param points as from pointsOf; `total` whether they are fluxes of the whole source; `styles` as from stylesOf; `hidden` names of bands that are not shown
 * @param domain times shown; `epoch` time of day 0; `until` time after which points are shown faint
 * @param period days, or null for a plot over time
 */
export function LightCurvePlot({ points, total, styles, hidden, magnitudes, period, domain, epoch, until, onZoom, name }) {
  const [ref, width] = useWidth();
  const [near, setNear] = useState(null);
  const [dragged, setDragged] = useState(null);
  const start = useRef(null);
  const height = width < 520 ? 300 : 370;
  const bottom = height - 42;
  const right = width - MARGIN.right;
  const unit = fluxUnit(points);
  const x = linear(period ? [0, 2] : domain, [MARGIN.left, right]);

  const marks = useMemo(() => {
    const placedMarks = points.flatMap((point) => {
      const mark = hidden.has(point.band) ? null : placed(point, magnitudes, unit);
      if (!mark) return [];
      if (!period) return [{ ...mark, point, x: point.mjd }];
      const phase = ((((point.mjd - epoch) / period) % 1) + 1) % 1;
      return [
        { ...mark, point, x: phase },
        { ...mark, point, x: phase + 1 },
      ];
    });
    return placedMarks.filter((mark) => mark.x >= x.domain[0] && mark.x <= x.domain[1]);
  }, [points, hidden, magnitudes, period, epoch, ...x.domain]);

  const [lowest, high] = marks.length > 0 ? rangeOf(marks) : [0, 1];
  const low = !magnitudes && lowest > 0 && lowest < 0.6 * high ? 0 : lowest; // fluxes of a difference start at zero
  const y = linear(magnitudes ? [high, low] : [low, high], [bottom, TOP]);
  const within = (value) => Math.max(TOP - 2, Math.min(bottom + 2, y(value)));
  const dense = points.length > DENSE;
  const radius = dense ? 1.4 : points.length > 400 ? 2.8 : points.length > 150 ? 3.4 : 4.2;

  const layers = Array.from({ length: dense ? LAYERS : 1 }, (_, layer) => (dense ? marks.filter((_, i) => i % LAYERS === layer) : marks));
  const drawn = layers.flatMap((layer, index) => styles.map((style) => ({ ...style, layer, key: `${style.name} ${index}` })));
  const paths = drawn.map(({ name: band, color, symbol, layer, key }) => {
    const parts = { bars: "", full: "", open: "", limits: "", later: "", laterBars: "" };
    for (const mark of layer) {
      if (mark.point.band !== band) continue;
      const at = x(mark.x);
      const to = y(mark.value);
      if (to < TOP - 1 || to > bottom + 1) continue;
      const faint = mark.point.mjd > until;
      if (mark.limit) {
        parts[faint ? "laterBars" : "limits"] += `M${at.toFixed(1)},${to.toFixed(1)}h4l-4,8l-4,-8Z`;
        continue;
      }
      const bar = `M${at.toFixed(1)},${within(mark.low).toFixed(1)}V${within(mark.high).toFixed(1)}`;
      parts[faint ? "laterBars" : "bars"] += bar;
      parts[faint ? "later" : mark.point.detected ? "full" : "open"] += markerPath(dense ? "circle" : symbol, at, to, radius);
    }
    return html`<g key=${key} class=${`band band-${color}${dense ? " dense" : ""}`}>
      <path class="later" d=${parts.later + parts.laterBars} />
      <path class="bars" d=${parts.bars} />
      <path class="open" d=${parts.open} />
      <path class="limits" d=${parts.limits} />
      <path class="full" d=${parts.full} />
    </g>`;
  });

  const onMove = (event) => {
    const [px, py] = pointerPosition(event);
    if (start.current !== null) setDragged([start.current, Math.max(MARGIN.left, Math.min(right, px))]);
    let best = null;
    let distance = NEAR ** 2;
    for (const mark of marks) {
      const d = (x(mark.x) - px) ** 2 + (y(mark.value) - py) ** 2;
      if (d < distance) [best, distance] = [mark, d];
    }
    setNear(best);
  };
  const onDown = (event) => {
    if (!period && event.button === 0 && event.pointerType === "mouse") start.current = pointerPosition(event)[0];
  };
  const onKey = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || marks.length === 0) return;
    event.preventDefault();
    const order = [...marks].sort((a, b) => a.x - b.x);
    const at = order.indexOf(near);
    setNear(order[at < 0 ? (step > 0 ? 0 : order.length - 1) : Math.max(0, Math.min(order.length - 1, at + step))]);
  };
  const onUp = () => {
    if (dragged && Math.abs(dragged[1] - dragged[0]) > 8) onZoom(dragged.map(x.invert).sort((a, b) => a - b));
    start.current = null;
    setDragged(null);
  };
  const withoutMagnitude = points.filter((point) => point.flux < -LIMIT_SIGMA * point.error).length;
  const limits = points.filter((point) => point.limit || (magnitudes && Math.abs(point.flux) < LIMIT_SIGMA * point.error)).length;
  const legend = [
    magnitudes && `▽ Upper limits${points.some((point) => point.limit) ? "" : " (5σ)"}: ${limits} of ${count(points.length, "observation")}.`,
    magnitudes && withoutMagnitude > 0 && `${withoutMagnitude} with negative flux have no magnitude; Flux shows them.`,
    points.some((point) => !point.detected && !point.limit) && `Open symbols: ${total ? "below 5σ" : "no detection"}.`,
    dense && `${count(points.length, "observation")}, without symbols of the bands.`,
    !magnitudes && limits > 0 && "▽ Upper limits.",
    !period && until < Infinity && "Faint: observed after the time of the slider.",
    period ? "Point at an observation for its values." : "Point at an observation for its values (or use the arrow keys); drag to zoom.",
  ];
  const kind = magnitudes ? "magnitudes" : "fluxes";
  const over = period ? `folded at a period of ${period.toPrecision(7)} days` : "over time";

  return html`<div class="plot" ref=${ref}>
    <svg
      viewBox=${`0 0 ${width} ${height}`}
      width=${width}
      height=${height}
      role="img"
      tabindex="0"
      onKeyDown=${onKey}
      onBlur=${() => setNear(null)}
      aria-label=${`Light curve of ${name}: ${kind} ${over}. ${summary(points, total)}.`}
      data-plot="light-curve"
    >
      <${AxisY} scale=${y} left=${MARGIN.left} right=${right} label=${magnitudes ? "AB magnitude" : `Flux (${unit.name})`} />
      <${AxisX} scale=${x} top=${TOP} bottom=${bottom} label=${period ? "Phase" : "MJD (TAI)"} wanted=${width / 80} />
      ${!period && html`<${AxisNights} scale=${x} epoch=${epoch} top=${TOP} wanted=${width / 80} start=${total || !points.some((point) => point.detected) ? "observation" : "detection"} />`}
      ${!magnitudes && low <= 0 && high > 0 && html`<line class="zero" x1=${MARGIN.left} x2=${right} y1=${y(0)} y2=${y(0)} />`}
      ${paths}
      ${!period && until < Infinity && until >= x.domain[0] && html`<${Cursor} x=${x(until)} top=${TOP} bottom=${bottom} />`}
      ${near && html`<circle class="near" cx=${x(near.x)} cy=${y(near.value)} r="8" />`}
      ${
        dragged &&
        html`<rect class="zoom" x=${Math.min(...dragged)} y=${TOP} width=${Math.abs(dragged[1] - dragged[0])} height=${bottom - TOP} />`
      }
      <rect
        class="surface"
        x=${MARGIN.left}
        y=${TOP}
        width=${right - MARGIN.left}
        height=${bottom - TOP}
        onPointerMove=${onMove}
        onPointerDown=${onDown}
        onPointerUp=${onUp}
        onPointerLeave=${() => (onUp(), setNear(null))}
        onDblClick=${() => onZoom(null)}
      />
    </svg>
    <p class="reading" aria-live="polite">
      ${near ? describe(near, epoch, total) : legend.filter(Boolean).join(" ")}
    </p>
  </div>`;
}

/** The legend, whose buttons show and hide bands. */
export function Legend({ styles, points, hidden, onToggle }) {
  return html`<ul class="legend" aria-label="Bands">
    ${styles.map(
      ({ name, color, symbol }) => html`<li key=${name}>
        <button
          type="button"
          class=${`band-${color}`}
          aria-pressed=${!hidden.has(name)}
          title=${`Show or hide band ${name}`}
          onClick=${() => onToggle(name)}
        >
          <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true"><g class="band"><path class="full" d=${markerPath(symbol, 7, 7, 4)} /></g></svg>
          ${name} <span class="muted">${points.filter((point) => point.band === name).length}</span>
        </button>
      </li>`,
    )}
  </ul>`;
}
