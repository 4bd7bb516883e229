// The panel of the light curve: flux or magnitude, time range, bands, and folding at a period.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { stylesOf } from "./bands.js";
import { Legend, LightCurvePlot } from "./light_curve_plot.js";
import { firstDetection } from "./photometry.js";
import { percent } from "./probabilities.js";
import { padded } from "./scales.js";

const BEFORE_DETECTION = 30; // days shown by "Around the detections"
const AFTER_DETECTION = 15;

export const wholeDomain = (points) => padded([points[0].mjd, points.at(-1).mjd], 0.03, 0.5);

function FoldControls({ points, view, onView }) {
  const [state, setState] = useState({ searching: false, found: null, failed: false });
  const worker = useRef(null);
  useEffect(() => () => worker.current?.terminate(), []);
  const span = points.at(-1).mjd - points[0].mjd;
  const search = () => {
    worker.current?.terminate();
    worker.current = new Worker(new URL("period_worker.js", import.meta.url), { type: "module" });
    setState({ searching: true, found: null, failed: false });
    worker.current.onmessage = ({ data }) => {
      worker.current.terminate();
      setState({ searching: false, found: data, failed: data === null });
      if (data) onView({ folded: true, period: data.period, best: data.period });
    };
    worker.current.postMessage(points);
  };
  if (!view.folded) {
    return html`<button type="button" disabled=${state.searching} onClick=${search}>${state.searching ? "Searching …" : "Fold"}</button>
      ${state.failed && html`<span class="muted">Too few observations for a period</span>`}`;
  }
  const center = view.best || view.period;
  const reach = Math.min(0.3, (2 * center) / Math.max(span, center)); // a few cycles over the whole light curve
  const offset = Math.max(-1000, Math.min(1000, Math.round((1000 * (view.period / center - 1)) / reach)));
  const setPeriod = (period) => onView({ period, best: period });
  return html`<button type="button" aria-pressed="true" onClick=${() => onView({ folded: false })}>Fold</button>
    <label class="inline">Period <input type="number" name="period" step="any" min="0.001" required value=${Number(view.period.toPrecision(8))} onChange=${(event) => event.target.reportValidity() && setPeriod(event.target.valueAsNumber)} /> d</label>
    <input
      type="range"
      min="-1000"
      max="1000"
      value=${String(offset)}
      aria-label="Fine tuning of the period"
      onInput=${(event) => onView({ period: center * (1 + (reach * event.target.valueAsNumber) / 1000), best: center })}
    />
    <button type="button" onClick=${() => setPeriod(view.period / 2)}>÷ 2</button>
    <button type="button" onClick=${() => setPeriod(view.period * 2)}>× 2</button>
    <button type="button" onClick=${search}>Best</button>
    ${
      state.found?.period === view.period &&
      html`<span class="muted small">Best period ${Number(state.found.period.toPrecision(7))} d explains ${percent(state.found.power)} of the scatter; searched from ${Number(state.found.shortest.toPrecision(2))} d</span>`
    }`;
}

export function LightCurvePanel({ points, total, view, onView, until, name }) {
  const styles = useMemo(() => stylesOf(points), [points]);
  const epoch = total ? points[0].mjd : firstDetection(points);
  const toggle = (band) => {
    const hidden = new Set(view.hidden);
    hidden.delete(band) || hidden.add(band);
    onView({ hidden });
  };
  const detections = total ? [] : points.filter((point) => point.detected);
  return html`<section class="panel" aria-labelledby="light-curve-title">
    <div class="bar-of-title">
      <h2 id="light-curve-title">Light curve</h2>
      <div class="buttons" role="group" aria-label="Vertical axis">
        <button type="button" aria-pressed=${!view.magnitudes} onClick=${() => onView({ magnitudes: false })}>Flux</button>
        <button type="button" aria-pressed=${view.magnitudes} onClick=${() => onView({ magnitudes: true })}>Magnitude</button>
      </div>
      ${
        !view.folded &&
        html`<div class="buttons" role="group" aria-label="Time range">
        <button type="button" aria-pressed=${view.domain === null} onClick=${() => onView({ domain: null })}>All</button>
        ${
          detections.length > 0 &&
          html`<button type="button" aria-pressed=${view.domain !== null} onClick=${() => onView({ domain: [epoch - BEFORE_DETECTION, detections.at(-1).mjd + AFTER_DETECTION] })}>
          Around the detections
        </button>`
        }
      </div>`
      }
      <div class="buttons fold"><${FoldControls} points=${points} view=${view} onView=${onView} /></div>
    </div>
    <${Legend} styles=${styles} points=${points} hidden=${view.hidden} onToggle=${toggle} />
    <${LightCurvePlot}
      points=${points}
      total=${total}
      styles=${styles}
      hidden=${view.hidden}
      magnitudes=${view.magnitudes}
      period=${view.folded ? view.period : null}
      domain=${view.domain || wholeDomain(points)}
      epoch=${epoch}
      until=${until}
      name=${name}
      onZoom=${(domain) => onView({ domain })}
    />
  </section>`;
}
