// The panel of the classification over time, with the slider.

import { html, useMemo } from "./vendor/htm-preact-standalone-3.1.1.js";
import { EvolutionPlot, shownClasses } from "./evolution_plot.js";
import { wholeDomain } from "./light_curve_panel.js";
import { count, firstDetection } from "./photometry.js";
import { inWords, percent } from "./probabilities.js";

/** Steps of the evolution, and as the last one the answer from all observations where some are later. */
export function stepsUntilNow(evolution, points, result) {
  const steps = (evolution?.steps || []).filter((step) => step.probabilities); // others were not classified
  if (steps.length === 0 || result.status !== "classified" || points.at(-1).mjd <= steps.at(-1).mjd) return steps;
  const { class: name, confidence, probabilities, prediction_set, unusual, novelty } = result;
  const now = { mjd: points.at(-1).mjd, detections: steps.at(-1).detections, now: true };
  return [...steps, { ...now, class: name, confidence, probabilities, prediction_set, unusual, novelty }];
}

export function EvolutionPanel({ evolution, steps, points, view, chosen, onChoose, name }) {
  const classes = useMemo(() => shownClasses(steps), [steps]);
  const epoch = firstDetection(points);
  const step = steps[chosen];
  const night = (mjd) => (mjd - epoch).toFixed(1).replace("-", "−");
  const total = evolution.class_changes;
  const rest = 1 - classes.reduce((sum, { name: each }) => sum + (step.probabilities[each] || 0), 0);
  const sentence = `Night ${night(step.mjd)}${step.now ? " (all observations)" : ""}, ${count(step.detections, "detection")}: ${step.class} ${percent(step.confidence)}${
    step.prediction_set ? `; ${inWords(step.prediction_set)}` : ""
  }${step.unusual ? "; out of distribution" : ""}`;
  return html`<section class="panel evolution" aria-labelledby="evolution-title">
    <h2 id="evolution-title">Classification over time</h2>
    <${EvolutionPlot}
      steps=${steps}
      classes=${classes}
      domain=${view.domain || wholeDomain(points)}
      chosen=${chosen}
      onChoose=${onChoose}
      name=${name}
    />
    <label class="slider"
      ><span>What did we know then?</span>
      <input
        type="range"
        name="night"
        min="0"
        max=${String(steps.length - 1)}
        value=${String(chosen)}
        aria-valuetext=${sentence}
        onInput=${(event) => onChoose(event.target.valueAsNumber)}
      />
    </label>
    <p class="reading" data-reading="night">${sentence}</p>
    <ul class="legend classes" aria-label="Classes at that time">
      ${classes.map(
        ({ name: each, color }) =>
          html`<li key=${each}><span class=${`swatch class-${color}`} aria-hidden="true"></span>${each} <span class="muted">${percent(step.probabilities[each] || 0)}</span></li>`,
      )}
      ${rest > 0.0005 && html`<li><span class="swatch class-rest" aria-hidden="true"></span>Others <span class="muted">${percent(rest)}</span></li>`}
    </ul>
    <p class="muted small">
      Areas: probability of each class, after each detection until the next.
      ${total > 0 && " White lines: another class became the most probable."}
      ${steps.some(({ unusual }) => unusual) && " Red dashes above: out of distribution at that time."}
    </p>
    <p class="muted small">
      ${
        total === 0
          ? steps.length > 1 && "The most probable class never changed from detection to detection."
          : `The most probable class changed ${total === 1 ? "once" : `${total} times`}, last on night ${night(evolution.last_change_mjd)}.`
      }
      ${
        evolution.recent_variation !== null &&
        evolution.recent_variation !== undefined &&
        ` Recent variation ${evolution.recent_variation.toFixed(3)} (mean total variation distance between the last detections; 0 is stable, 1 is a different answer every time).`
      }
      ${evolution.sampled && ` The history is long: ${evolution.steps.length} of ${evolution.detections} detections are shown.`}
    </p>
  </section>`;
}
