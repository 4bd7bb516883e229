// Where input comes from: samples, files, folders and pasted text; and the form for an API key.

import { html, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { SAMPLES } from "./samples.js";
import { hasApiKey, setApiKey } from "./service.js";

export function InputBar({ busy, sample, onSample, onFiles, onText }) {
  const [text, setText] = useState("");
  const [pasting, setPasting] = useState(false);
  return html`<section class="panel input" aria-label="Input">
    <label class="sample"
      ><span>Sample</span>
      <select name="sample" value=${sample} onChange=${(event) => event.target.value && onSample(event.target.value)}>
        <option value="">Choose …</option>
        ${SAMPLES.map(([file, label]) => html`<option key=${file} value=${file}>${label}</option>`)}
      </select></label
    >
    <label class="button primary">Open files<input type="file" name="files" multiple onChange=${(event) => (onFiles([...event.target.files]), (event.target.value = ""))} /></label>
    <label class="button">Open folder<input type="file" name="folder" webkitdirectory onChange=${(event) => (onFiles([...event.target.files]), (event.target.value = ""))} /></label>
    <button type="button" aria-expanded=${pasting} onClick=${() => setPasting(!pasting)}>Paste text</button>
    <p class="muted hint">
      Drop alert packets (Avro or JSON), light curves (JSON), tables (CSV, text or JSON) or a folder of them anywhere on this page. They are sent to this service only
      and not stored. <code>nightjar classify</code> reads FITS, VOTable, ECSV and Parquet.
    </p>
    <${ForgetKey} />
    <span class="busy" role="status">${busy ? "Classifying …" : ""}</span>
    ${
      pasting &&
      html`<div class="pasting">
      <label for="paste">A light curve or an alert as JSON, or a table with columns such as mjd, band, flux, flux_err</label>
      <textarea id="paste" rows="6" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      <button type="button" class="primary" disabled=${text.trim() === ""} onClick=${() => onText(text)}>Classify</button>
    </div>`
    }
  </section>`;
}

/** Form for an API key; `refused` if the service rejected one, `onKey` is called when there is a new one. */
export function KeyForm({ refused, onKey }) {
  const [key, setKey] = useState("");
  return html`<form
    class="panel key"
    onSubmit=${(event) => {
      event.preventDefault();
      setApiKey(key);
      onKey();
    }}
  >
    <h2>API key required</h2>
    <p role="status">${refused ? "The service does not know this key." : "This service asks for an API key."}</p>
    <label class="field"><span>API key</span><input type="password" name="key" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    <button class="primary">Use this key</button>
    <p class="muted small">The page keeps the key in memory until it is left, loaded again, or you choose <q>Forget API key</q>. The key is never stored or part of an address.</p>
  </form>`;
}

/** Button that forgets the API key, and with it everything that was shown with it. */
export function ForgetKey() {
  const forget = () => {
    setApiKey("");
    location.reload();
  };
  return hasApiKey() && html`<button type="button" onClick=${forget}>Forget API key</button>`;
}
