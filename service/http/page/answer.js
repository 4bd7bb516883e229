// The answer in words: class, prediction set, warnings, source of the label; and the account of what the network saw.

import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { stylesOf } from "./bands.js";
import { count, summary } from "./photometry.js";
import { inWords, percent, shortName } from "./probabilities.js";
import { Errors } from "./problem.js";

const STATUS = {
  abstained: "No class: the service abstained",
  rejected: "No class: the input was rejected",
  failed: "No class: the classification failed",
};
const DROPPED = {
  no_time: "without a time",
  no_flux: "without a flux",
  no_error: "without a positive error",
  bad_sign: "with an unreadable sign of the difference",
  flagged: "flagged by the survey",
  withdrawn: "withdrawn by the survey",
  upper_limit: "not used: upper limits",
};

const modelName = (model) => `${model.name} ${model.version}${model.role ? ` (${model.role})` : ""}`;

/** Whether the coverage of the model's sets was measured for these class shares; undefined if that is not known. */
const isMeasured = (model) => model.coverage_measured_on && !model.coverage_measured_on.startsWith("not measured");

/** Number of metadata columns of the network that have a value. */
const metadataUsed = (result, description) => Math.max(0, (description?.metadata_columns.length || 0) - (result.metadata_missing ?? Infinity));

function Warnings({ result, model }) {
  const warnings = (result.warnings || []).map((warning) => warning.detail || String(warning));
  if (result.unusual) {
    warnings.unshift(
      `Out of distribution: more unusual than ${percent(result.novelty)} of known objects. The model gives no prediction set, and the probabilities are not reliable.`,
    );
  } else if (result.status === "classified" && !result.prediction_set) {
    warnings.push(`${modelName(model)} states no prediction sets.`);
  }
  if (result.truncated) warnings.push("The light curve is longer than the network reads; some observations were left out.");
  return html`${warnings.map((text) => html`<p key=${text} class="warning"><strong>Warning</strong> ${text}</p>`)}`;
}

/** `step` is null, or {night, mjd, detections} of an earlier time that the result belongs to. */
export function Answer({ result, survey, model, description, points, total, step, source, text, back }) {
  const name = shortName(result.object_id || source.name);
  const classified = result.status === "classified";
  const measured = isMeasured(model); // undefined: not known
  const metadata = metadataUsed(result, description);
  const used = ["the light curve", metadata && count(metadata, "value of metadata", "values of metadata"), result.evidence?.length > 0 && "the other evidence below"];
  return html`<section class="panel answer" aria-labelledby="answer-title" aria-live="polite">
    <div class="identity">
      <h2 id="answer-title" class="object" tabindex="-1">${name}</h2>
      <p class="muted">
        ${survey && survey !== "unknown" && html`<span class="chip">${survey}</span> `}
        ${points ? summary(points, total) : source.name}
      </p>
      ${back}
    </div>
    ${
      classified
        ? html`<div class="verdict">
          <p class="class-line">
            <span class="class-name">${result.class}</span> <span class="confidence">${percent(result.confidence)}</span>
          </p>
          ${
            result.prediction_set &&
            html`<p class="set"><strong>${percent(result.coverage)}${measured === false ? " (coverage not measured)" : ""}:</strong> ${inWords(result.prediction_set)}</p>
            ${
              measured &&
              html`<p class="muted small">
              On average over the light curves on which coverage was measured, such sets contain the true class in ${percent(result.coverage)} of cases.
              For a survey that is not among them it may be less.
            </p>`
            }`
          }
          ${
            result.subtype &&
            html`<p class="subtype">
            If it is a supernova: <strong>${result.subtype.class}</strong> ${percent(result.subtype.confidence)}
            ${result.subtype.prediction_set && ` (${Math.round(100 * result.subtype.coverage)} %: ${inWords(result.subtype.prediction_set)})`}
            ${result.subtype.unusual && " (out of distribution for the model of types)"}
          </p>`
          }
          ${step && html`<p class="then">As known on night ${step.night}, after ${count(step.detections, "detection")}</p>`}
        </div>`
        : html`<div class="verdict">
          <p class="class-line"><span class="class-name">${STATUS[result.status]}</span></p>
          <p>${result.detail} <span class="muted">(${result.reason})</span></p>
        </div>`
    }
    <div class="remarks">
      <${Warnings} result=${result} model=${model} />
      ${result.errors?.length > 0 && html`<${Errors} errors=${result.errors} text=${text} />`}
      ${
        classified &&
        html`<p class="small muted label-source">
        Source of the label: the model ${modelName(model)}, from ${inWords(used.filter(Boolean), "and")}${
          result.subtype ? html`; of the supernova type: ${modelName(result.subtype.model)}` : ""
        }. No class was taken from a catalogue.
      </p>`
      }
    </div>
  </section>`;
}

function bandsInWords(counts) {
  const entries = Object.entries(counts).filter(([, number]) => number > 0);
  return entries.length > 0 ? entries.map(([band, number]) => `${band} ${number}`).join(", ") : "none";
}

function leftOut(result, limits) {
  const lines = [];
  for (const [reason, number] of Object.entries(result.dropped_points || {})) {
    lines.push(`${count(number, "observation")} ${DROPPED[reason] || reason} (${reason})`);
  }
  for (const [filter, number] of Object.entries(result.other_filters || {})) {
    lines.push(`${count(number, "observation")} in ${filter}: the model has no band for this filter, or enough in the own filter of the band`);
  }
  if (result.duplicates) {
    lines.push(`${count(result.duplicates, "observation")} merged: the most precise one of the same time and band is used`);
  }
  if (result.truncated && limits) {
    const which = limits.kept === "around_maximum" ? "those closest to the brightest detection" : "the newest ones";
    lines.push(
      `Truncated: the network reads ${limits.max_points_per_band} observations per band, from ${limits.pre_trigger_days} days before the first detection; ${which} were kept`,
    );
  }
  return lines;
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** Experts that the observations of each band chose: one table for each layer, whose cells are coloured by share. */
function Experts({ layers, pointsPerBand }) {
  const bands = Object.keys(layers[0].bands);
  const number = layers[0].bands[bands[0]].length;
  const each = Math.round(sum(layers[0].bands[bands[0]]) / pointsPerBand[bands[0]]);
  return html`<details class="experts">
    <summary>Experts of the network</summary>
    <p class="small">
      In each layer a router sends every observation to ${each} of ${number} experts, which are numbered from 0. The cells give the share of a band’s
      observations that went to an expert, in percent.${" "}
      Router entropy says how sure the router is: 0 if it is certain of one expert, ${Math.log(number).toFixed(2)} nats if it prefers none.
    </p>
    <div class="layers">
      ${layers.map(
        ({ router_entropy: entropy, bands: counts }, layer) => html`<table key=${layer}>
          <caption>Layer ${layer}: router entropy ${entropy.toFixed(2)} nats, as if undecided between ${Math.exp(entropy).toFixed(1)} experts</caption>
          <thead>
            <tr><th scope="col">Band</th>${counts[bands[0]].map((_, expert) => html`<th key=${expert} scope="col" aria-label=${`Expert ${expert}`}>${expert}</th>`)}</tr>
          </thead>
          <tbody>
            ${Object.entries(counts).map(
              ([band, chosen]) => html`<tr key=${band}>
                <th scope="row">${band}</th>
                ${chosen.map((times, expert) => {
                  const share = times / pointsPerBand[band];
                  return html`<td key=${expert} style=${{ "--share": share }}>${Math.round(100 * share)}</td>`;
                })}
              </tr>`,
            )}
          </tbody>
        </table>`,
      )}
    </div>
  </details>`;
}

/** What the network saw, what was left out and why, and what else was used; `step` as in Answer. */
export function Account({ result, model, description, points, step }) {
  const until = (points || []).filter(({ mjd }) => !step || mjd <= step.mjd);
  const sent = Object.fromEntries(stylesOf(until).map(({ name }) => [name, until.filter(({ band }) => band === name).length]));
  const lines = leftOut(result, description?.limits);
  const columns = description?.metadata_columns.length || 0;
  return html`<section class="panel account" aria-labelledby="account-title">
    <h2 id="account-title">What the answer rests on</h2>
    <dl>
      ${points && html`<dt>Light curve</dt><dd>${bandsInWords(sent)}${step && ` until night ${step.night}`}</dd>`}
      ${!step && html`<dt>Seen by the network</dt><dd>${bandsInWords(result.points_per_band)}</dd>`}
      ${
        result.filters &&
        html`<dt>Described filters</dt><dd>${Object.entries(result.filters)
          .map(([filter, band]) => `${filter} is read as ${band}`)
          .join(", ")}</dd>`
      }
      <dt>Left out</dt>
      <dd>
        ${step && lines.length > 0 && "Of the whole light curve:"}
        ${lines.length > 0 ? html`<ul class="plain">${lines.map((line) => html`<li key=${line}>${line}</li>`)}</ul>` : "Nothing"}
      </dd>
      ${
        result.metadata_missing !== undefined &&
        html`<dt>Metadata</dt><dd>${columns > 0 ? `${metadataUsed(result, description)} of ${columns} inputs of the network have a value; a redshift and its error are two` : "The network uses none"}</dd>`
      }
      <dt>Other evidence</dt>
      <dd>
        ${
          result.evidence?.length > 0
            ? html`<ul class="plain">${result.evidence.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`
            : "None: no redshift, parallax or catalogued star was used"
        }
      </dd>
      ${result.novelty !== undefined && html`<dt>Novelty</dt><dd>More unusual than ${percent(result.novelty)} of known objects</dd>`}
      <dt>Class shares</dt>
      <dd>
        ${{ training: "Those that the model was calibrated for", given: "Your weights" }[model.prior] || model.prior || "Those that the model was calibrated for"}
      </dd>
      ${model.coverage_measured_on && html`<dt>Coverage measured on</dt><dd>${model.coverage_measured_on}</dd>`}
      <dt>Model</dt>
      <dd>${modelName(model)}, classes ${model.taxonomy}, calibration ${model.calibration}</dd>
      ${result.schema_version && html`<dt>Packet</dt><dd>${result.survey} ${result.schema_version}, alert ${result.alert_id}</dd>`}
    </dl>
    ${!step && result.experts?.layers.length > 0 && html`<${Experts} layers=${result.experts.layers} pointsPerBand=${result.points_per_band} />`}
  </section>`;
}

const LEAST_SHARE = 0.02; // of the bar that a stage needs to be visible

export function Latency({ timings }) {
  const total = timings.find(({ name }) => name === "total")?.milliseconds;
  const stages = timings.filter(({ name }) => name !== "total");
  if (!total) return null;
  return html`<section class="panel latency" aria-labelledby="latency-title">
    <h2 id="latency-title">Latency <span class="muted">${total.toFixed(1)} ms in the service</span></h2>
    <div class="stages" aria-hidden="true">
      ${stages.map(({ name, milliseconds }, i) =>
        milliseconds / total >= LEAST_SHARE
          ? html`<span key=${name} class=${`class-${i % 8}`} style=${{ flexGrow: milliseconds }} title=${name}></span>`
          : null,
      )}
    </div>
    <ul class="stage-list">
      ${stages.map(
        ({ name, milliseconds }, i) =>
          html`<li key=${name}><span class=${`swatch class-${i % 8}`} aria-hidden="true"></span>${name} <span class="value">${milliseconds.toFixed(milliseconds < 10 ? 2 : 0)} ms</span></li>`,
      )}
    </ul>
  </section>`;
}
