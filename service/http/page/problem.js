// An error as the service states it, with the places in the input that it points at.

import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { excerpt, locate, placeInMessage } from "./locate.js";

function Place({ text, pointer, reason, detail }) {
  const place = text && ((pointer && !pointer.startsWith("/query/") && locate(text, pointer, reason === "unknown_field")) || placeInMessage(text, detail));
  if (!place) return null;
  const { before, marked, after, line } = excerpt(text, place);
  return html`<figure class="excerpt">
    <figcaption>Line ${line} of the input</figcaption>
    <pre tabindex="0">${before}<mark>${marked}</mark>${after}</pre>
  </figure>`;
}

/** `errors` are those of a problem document or of a rejected light curve. */
export function Errors({ errors, text }) {
  return html`<ul class="errors">
    ${errors.slice(0, 20).map(
      (error) => html`<li key=${error.pointer}>
        <code>${error.pointer}</code> ${error.detail} <span class="muted">(${error.reason})</span>
        <${Place} text=${text} pointer=${error.pointer} reason=${error.reason} detail=${error.detail} />
      </li>`,
    )}
  </ul>`;
}

export function Problem({ problem, source, actions }) {
  const table = source?.kind === "table" && problem.status === 404;
  return html`<section class="panel problem" role="alert" id="problem">
    <h2>${table ? "This service does not read tables" : problem.title || "The input could not be read"}</h2>
    <p>
      ${table
        ? "It has no route /v1/tables. Send the light curve as JSON, with the columns mjd, flux, flux_err and band."
        : problem.message}
    </p>
    ${source && html`<p class="muted">Input: ${source.name}</p>`}
    ${problem.errors?.length > 0
      ? html`<${Errors} errors=${problem.errors} text=${source?.text} />`
      : html`<${Place} text=${source?.text} detail=${problem.message} />`}
    ${problem.requestId && html`<p class="muted">Request id: <code>${problem.requestId}</code></p>`} ${actions}
  </section>`;
}
