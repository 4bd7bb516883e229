// Classification over time: stacked probabilities after every detection, on the time axis of the light curve.

import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { AxisX, AxisY, Cursor, MARGIN, pointerPosition, useWidth } from "./plot.js";
import { linear } from "./scales.js";

const TOP = 16;
const HEIGHT = 210;
const MOST = 8; // classes with a colour of their own
const LEAST = 0.04; // largest probability of a class that gets one

/** Classes with colours, the final prediction set first, as [{name, color}]; the rest are shown together. */
export function shownClasses(steps) {
  const largest = {};
  for (const { probabilities } of steps) {
    for (const [name, value] of Object.entries(probabilities)) largest[name] = Math.max(largest[name] || 0, value);
  }
  const { probabilities: last, prediction_set: set } = steps.at(-1);
  const inSet = (name) => Number(set?.includes(name) || false);
  const names = Object.keys(largest)
    .filter((name) => largest[name] >= LEAST || inSet(name))
    .sort((a, b) => inSet(b) - inSet(a) || largest[b] - largest[a])
    .slice(0, MOST)
    .sort((a, b) => last[b] - last[a]);
  return names.map((name, i) => ({ name, color: i }));
}

/** Area between two cumulative levels, constant from each step to the next. */
function area(edges, lower, upper, y) {
  let forward = "";
  let back = "";
  for (let i = 0; i < lower.length; i++) {
    forward += `L${edges[i].toFixed(1)},${y(upper[i]).toFixed(1)}H${edges[i + 1].toFixed(1)}`;
    back = `L${edges[i + 1].toFixed(1)},${y(lower[i]).toFixed(1)}H${edges[i].toFixed(1)}` + back;
  }
  return `M${forward.slice(1)}${back}Z`;
}

export function EvolutionPlot({ steps, classes, domain, chosen, onChoose, name }) {
  const [ref, width] = useWidth();
  const bottom = HEIGHT - 42;
  const right = width - MARGIN.right;
  const x = linear(domain, [MARGIN.left, right]);
  const y = linear([0, 1], [bottom, TOP]);
  const clamped = (time) => Math.max(MARGIN.left, Math.min(right, x(time)));
  const edges = [...steps.map((step) => clamped(step.mjd)), right];

  let lower = steps.map(() => 0);
  const areas = classes.map(({ name: each, color }) => {
    const upper = lower.map((value, i) => value + (steps[i].probabilities[each] || 0));
    const path = area(edges, lower, upper, y);
    lower = upper;
    return html`<path key=${each} class=${`class-${color}`} d=${path} />`;
  });
  const rest = area(
    edges,
    lower,
    lower.map(() => 1),
    y,
  );
  const unusual = steps.flatMap((step, i) => (step.unusual ? [`M${edges[i]},${TOP - 7}H${edges[i + 1]}`] : []));
  const changes = steps.flatMap((step, i) => (i > 0 && step.class !== steps[i - 1].class ? [edges[i]] : []));

  const choose = (event) => {
    const time = x.invert(pointerPosition(event)[0]);
    const later = steps.findIndex((step) => step.mjd > time);
    onChoose(Math.max(0, later === -1 ? steps.length - 1 : later - 1));
  };

  return html`<div class="plot" ref=${ref}>
    <svg
      viewBox=${`0 0 ${width} ${HEIGHT}`}
      width=${width}
      height=${HEIGHT}
      role="img"
      aria-label=${`Class probabilities of ${name} after each of ${steps.length} detections; at the end ${steps.at(-1).class}.`}
      data-plot="evolution"
    >
      <${AxisX} scale=${x} top=${TOP} bottom=${bottom} label="MJD (TAI)" wanted=${width / 80} />
      ${areas}
      <path class="class-rest" d=${rest} />
      <${AxisY} scale=${y} left=${MARGIN.left} right=${right} label="Probability" wanted=${4} />
      <path class="unusual" d=${unusual.join("")} />
      ${changes.map((at) => html`<path key=${at} class="change" d=${`M${at},${bottom}V${TOP}`} />`)}
      <${Cursor} x=${clamped(steps[chosen].mjd)} top=${TOP - 8} bottom=${bottom} />
      <rect class="surface" x=${MARGIN.left} y=${TOP} width=${right - MARGIN.left} height=${bottom - TOP} onPointerDown=${choose} />
    </svg>
  </div>`;
}
