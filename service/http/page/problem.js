// An error as the service states it, with the places in the input that it points at.

import { html, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { excerpt, locate, placeInMessage } from "./locate.js";

function Place({ text, pointer, reason, detail }) {
  const place =
    text &&
    ((pointer && !pointer.startsWith("/query/") && locate(text, pointer, reason === "unknown_field")) || placeInMessage(text, detail));
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

const MOST_BUTTONS = 6;

/** The question of the reader of tables, with a button for each answer, or a list of many values that need no explanation. */
function Question({ question, onAnswer }) {
  const [value, setValue] = useState("");
  const isList = question.choices.length > MOST_BUTTONS && question.choices.every((choice) => !choice.meaning);
  const buttons = isList ? [] : question.choices;
  return html`<div class="question">
    <p>The table can be read in more than one way. Choose, and it is read again:</p>
    <div class="buttons">
      ${buttons.map(
        (choice) => html`<button key=${choice.value} type="button" onClick=${() => onAnswer(question.option, choice.value)}>
          <strong>${choice.value}</strong>${choice.meaning && `: ${choice.meaning}`}
        </button>`,
      )}
      <label class="inline">${buttons.length > 0 ? "Or" : ""} <code>${question.option}</code> <input name="answer" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
      <button type="button" disabled=${value.trim() === ""} onClick=${() => onAnswer(question.option, value.trim())}>Use</button>
    </div>
    ${isList && html`<p class="small muted">One of ${question.choices.map((choice) => choice.value).join(", ")}, for all rows.</p>`}
  </div>`;
}

export function Problem({ problem, source, actions, onAnswer }) {
  const { question } = problem;
  const table = source?.kind === "table" && problem.status === 404;
  return html`<section class=${`panel problem ${question ? "asking" : ""}`} role="alert" id="problem">
    <h2>${question ? "One question about this table" : table ? "This service does not read tables" : problem.title || "The input could not be read"}</h2>
    <p>
      ${
        table ? "It has no route /v1/tables. Send the light curve as JSON, with the columns mjd, flux, flux_err and band." : problem.message
      }
    </p>
    ${
      problem.status === 413 &&
      html`<p>
      ${problem.limit && `This service reads at most ${(problem.limit / 2 ** 20).toFixed(0)} MiB at once. `}Split the file, or classify all of it with${" "}
      <code>nightjar classify FILE</code>, which has no such limit.
    </p>`
    }
    ${problem.retryAfter && html`<p>The service asks to wait for ${problem.retryAfter} s.</p>`}
    ${source && html`<p class="muted">Input: ${source.name}</p>`}
    ${question && html`<${Question} question=${question} onAnswer=${onAnswer} />`}
    ${
      !question && problem.errors?.length > 0
        ? html`<${Errors} errors=${problem.errors} text=${source?.text} />`
        : !question && html`<${Place} text=${source?.text} detail=${problem.message} />`
    }
    ${problem.requestId && html`<p class="muted">Request id: <code>${problem.requestId}</code></p>`} ${actions}
  </section>`;
}
