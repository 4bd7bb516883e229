// What the answer assumes, to be changed: model, class shares, coverage and metadata.

import { html, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { percent } from "./probabilities.js";

const FIELDS = {
  zspec: "Spectroscopic redshift",
  zspec_err: "… its error",
  hostgal_zphot: "Photometric redshift of the host",
  hostgal_zphot_err: "… its error",
  hostgal_snsep: "Distance to the host (arcsec)",
  mwebv: "Milky Way E(B−V) (mag)",
  mwebv_err: "… its error (mag)",
  parallax: "Parallax (mas), used with its error",
  parallax_err: "… its error (mas)",
  star_score: "Star score (0 galaxy, 1 star)",
  star_distance: "Distance to that source (arcsec)",
};
const DIGITS = 8; // significant ones of a value: packets have single precision
const PRIORS = {
  "": "The model’s own",
  training: "training (the model’s own)",
  uniform: "uniform (all classes equal)",
  "lsst-alerts": "lsst-alerts (objects found by LSST)",
  "ztf-alerts": "ztf-alerts (objects with alerts of ZTF)",
  "ztf-bright": "ztf-bright (bright transients of ZTF)",
};

function NumberField({ name, label, value, min, onChange }) {
  return html`<label class="field"
    ><span>${label}</span>
    <input
      type="number"
      step="any"
      min=${min}
      name=${name}
      value=${typeof value === "number" ? Number(value.toPrecision(DIGITS)) : ""}
      onInput=${(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)}
  /></label>`;
}

export function Assumptions({ settings, metadata, original, description, models, busy, onSettings, onMetadata }) {
  const [extra, setExtra] = useState([]);
  const [opened] = useState(Object.keys(metadata).length > 0); // stays when the last value is removed
  const own = settings.prior !== null && typeof settings.prior === "object";
  const priors = (description?.priors || Object.keys(PRIORS)).filter((name) => name !== "" && name !== "training");
  const coverages = description?.prediction_sets?.coverages || [];
  const names = [...new Set([...Object.keys(FIELDS), ...Object.keys(original), ...Object.keys(metadata), ...extra])];
  const more = (description?.metadata_columns || []).filter((name) => !names.includes(name));
  const changed = JSON.stringify(metadata) !== JSON.stringify(original);

  const choosePrior = (value) => {
    const weights = Object.fromEntries((description?.classes || []).map(({ name }) => [name, 1]));
    onSettings({ ...settings, prior: value === "own" ? weights : value });
  };
  const setValue = (name, value) => {
    const { [name]: _, ...others } = metadata;
    onMetadata(value === null || Number.isNaN(value) ? others : { ...others, [name]: value });
  };
  return html`<section class="panel assumptions" aria-labelledby="assumptions-title" aria-busy=${busy}>
    <h2 id="assumptions-title">What if</h2>
    <label class="field"
      ><span>Class shares (prior)</span>
      <select name="prior" value=${own ? "own" : settings.prior || ""} onChange=${(event) => choosePrior(event.target.value)}>
        <option value="">${PRIORS[""]}</option>
        ${priors.map((name) => html`<option key=${name} value=${name}>${PRIORS[name] || name}</option>`)}
        <option value="own">Weights of my own …</option>
      </select></label
    >
    ${
      own &&
      html`<fieldset class="weights">
      <legend>Weights by class</legend>
      ${Object.entries(settings.prior).map(
        ([name, value]) =>
          html`<${NumberField}
            key=${name}
            name=${`weight ${name}`}
            label=${name}
            min="0"
            value=${value}
            onChange=${(weight) => onSettings({ ...settings, prior: { ...settings.prior, [name]: weight || 0 } })}
          />`,
      )}
    </fieldset>`
    }
    ${
      coverages.length > 0 &&
      html`<label class="field"
      ><span>Coverage of the prediction set</span>
      <select
        name="coverage"
        value=${String(settings.coverage || "")}
        onChange=${(event) => onSettings({ ...settings, coverage: event.target.value ? Number(event.target.value) : null })}
      >
        <option value="">${percent(description.prediction_sets.default)} (the model’s own)</option>
        ${coverages
          .filter((value) => value !== description.prediction_sets.default)
          .map((value) => html`<option key=${value} value=${String(value)}>${percent(value)}</option>`)}
      </select></label
    >`
    }
    <label class="field"
      ><span>Model</span>
      <select name="model" value=${settings.model} onChange=${(event) => onSettings({ ...settings, model: event.target.value, prior: own ? "" : settings.prior })}>
        <option value="">Chosen by the service</option>
        ${models.map(({ name, version }) => html`<option key=${name + version} value=${`${name}@${version}`}>${name} ${version}</option>`)}
      </select></label
    >
    <details open=${opened}>
      <summary>Metadata: redshift, host, star catalogues</summary>
      ${names.map(
        (name) =>
          html`<${NumberField} key=${name} name=${name} label=${FIELDS[name] || name} value=${metadata[name]} onChange=${(value) => setValue(name, value)} />`,
      )}
      ${
        more.length > 0 &&
        html`<label class="field"
        ><span>Another column</span>
        <select value="" onChange=${(event) => event.target.value && setExtra([...extra, event.target.value])}>
          <option value="">Choose …</option>
          ${more.map((name) => html`<option key=${name}>${name}</option>`)}
        </select></label
      >`
      }
    </details>
    ${
      (changed || settings.prior || settings.coverage || settings.model) &&
      html`<button type="button" onClick=${() => onMetadata(original, { model: "", prior: "", coverage: null })}>Back to the original</button>`
    }
  </section>`;
}
