// The live view: classifications of all clients as they happen, and the last hour in numbers.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { ForgetKey, KeyForm } from "./input_bar.js";
import { inWords, percent, Probabilities, shortName } from "./probabilities.js";
import { Problem } from "./problem.js";
import { events, hasApiKey } from "./service.js";

const ROWS = 60; // newest results that are shown
const RECONNECT = 3000; // ms after the connection has ended
const ANY = { class: "", survey: "", min_confidence: "", min_novelty: "", unusual: "" };

const nameOf = (result) => shortName(result.object_id || "no name");
/** "2026-11-26 16:15:55" of a time in seconds. */
const utc = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 19).replace("T", " ");

/** `brief` leaves time, survey and probability out; `onOpen` is called with a result. */
function Rows({ results, label, brief, onOpen }) {
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead>
        <tr>
          ${!brief && html`<th scope="col">Time (UTC)</th>`}
          <th scope="col">Object</th>
          ${!brief && html`<th scope="col">Survey</th>`}
          <th scope="col">Class</th>
          ${!brief && html`<th scope="col" class="value">Probability</th>`}
          <th scope="col" class="value">Novelty</th>
        </tr>
      </thead>
      <tbody>
        ${results.map(
          (result, i) => html`<tr key=${`${result.time} ${result.object_id} ${i}`}>
            ${!brief && html`<td>${utc(result.time).slice(11)}</td>`}
            <th scope="row"><button type="button" class="link-button" onClick=${() => onOpen(result)}>${nameOf(result)}</button></th>
            ${!brief && html`<td>${result.survey}</td>`}
            <td>${result.class}</td>
            ${!brief && html`<td class="value">${percent(result.confidence)}</td>`}
            <td class="value">${result.novelty === null ? "" : result.novelty.toFixed(2)} ${result.unusual && html`<span class="badge">unusual</span>`}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** What the event of a result says about it, in a dialog. */
function Details({ result, onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} class="panel details" aria-labelledby="details-title" onClose=${onClose}>
    <div class="bar-of-title">
      <h2 id="details-title" class="object">${nameOf(result)}</h2>
      <button type="button" autofocus onClick=${() => dialog.current.close()}>Close</button>
    </div>
    <p class="muted">${result.survey && html`<span class="chip">${result.survey}</span> `}classified at ${utc(result.time)} UTC</p>
    <p class="class-line"><span class="class-name">${result.class}</span> <span class="confidence">${percent(result.confidence)}</span></p>
    ${result.prediction_set && html`<p class="set"><strong>${percent(result.coverage)}:</strong> ${inWords(result.prediction_set)}</p>`}
    ${result.unusual && html`<p class="warning"><strong>Warning</strong> Out of distribution: the probabilities are not reliable.</p>`}
    ${result.warnings?.map(({ detail }) => html`<p key=${detail} class="warning"><strong>Warning</strong> ${detail}</p>`)}
    ${result.novelty !== null && html`<p>Novelty: more unusual than ${percent(result.novelty)} of known objects</p>`}
    <${Probabilities} probabilities=${result.probabilities} classes=${[]} set=${result.prediction_set} colors=${new Map()} />
    <p class="muted small">
      The live view has no light curves, since the service does not store them. To see this object’s, <a href="./">classify its alert</a> on the page.
    </p>
  </dialog>`;
}

function Throughput({ minutes }) {
  const most = Math.max(1, ...minutes);
  const width = 240 / minutes.length;
  const path = minutes.map((number, i) => `M${(i + 0.5) * width},60v${(-55 * number) / most}`).join("");
  return html`<svg viewBox="0 0 240 60" width="240" height="60" role="img" aria-label=${`Results in each of the last ${minutes.length} minutes, at most ${most}`}>
    <path class="minutes" d=${path} />
  </svg>`;
}

function ClassMix({ classes }) {
  const total = Object.values(classes).reduce((sum, number) => sum + number, 0);
  return html`<ul class="probabilities">
    ${Object.entries(classes).map(
      ([name, number]) => html`<li key=${name} class="row">
        <span class="name">${name}</span>
        <span class="bar" aria-hidden="true"><span style=${{ width: `${(100 * number) / total}%` }}></span></span>
        <span class="value">${number.toLocaleString("en")}</span>
      </li>`,
    )}
  </ul>`;
}

function Filters({ filter, classes, onFilter }) {
  const field = (name) => (event) => onFilter({ ...filter, [name]: event.target.value });
  return html`<div class="buttons filters" role="group" aria-label="Filters">
    <label class="inline"
      >Class
      <select name="class" value=${filter.class} onChange=${field("class")}>
        <option value="">All</option>
        ${[...new Set([...classes, ...(filter.class ? [filter.class] : [])])].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></label
    >
    <label class="inline">Survey <input name="survey" value=${filter.survey} onChange=${field("survey")} /></label>
    <label class="inline"
      >Probability at least (%) <input type="number" name="min_confidence" min="0" max="100" step="5" value=${filter.min_confidence} onChange=${field("min_confidence")} />
    </label>
    <label class="inline"
      >Novelty at least <input type="number" name="min_novelty" min="0" max="1" step="0.05" value=${filter.min_novelty} onChange=${field("min_novelty")} />
    </label>
    <label class="inline"
      ><input type="checkbox" name="unusual" checked=${filter.unusual === "true"} onChange=${(event) => onFilter({ ...filter, unusual: event.target.checked ? "true" : "" })} />
      Unusual only</label
    >
  </div>`;
}

function Live() {
  const [state, setState] = useState({ filter: ANY, results: [], rate: null, summary: null, opened: null, keyWanted: false, problem: null });
  const [attempt, setAttempt] = useState(0);
  const update = (change) => setState((old) => ({ ...old, ...(typeof change === "function" ? change(old) : change) }));

  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    const { min_confidence: least, ...others } = state.filter;
    const query = { ...others, min_confidence: least && least / 100 };
    const follow = async () => {
      try {
        for await (const { event, data } of events("live/events", query, controller.signal)) {
          if (event === "summary") update({ summary: data, keyWanted: false, problem: null });
          else
            update((old) => ({
              rate: data,
              results: [...data.results].reverse().concat(old.results).slice(0, ROWS),
              keyWanted: false,
              problem: null,
            }));
        }
        timer = setTimeout(follow, RECONNECT);
      } catch (error) {
        if (controller.signal.aborted) return;
        if (error.status === 401) {
          update({ keyWanted: true, keyRefused: hasApiKey() });
          return;
        }
        update({ problem: error, rate: null });
        if (error.status !== 404 && error.status !== 422) timer = setTimeout(follow, RECONNECT);
      }
    };
    follow();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [attempt, state.filter]);

  if (state.keyWanted) {
    return html`<${KeyForm} refused=${state.keyRefused} onKey=${() => setAttempt(attempt + 1)} />`;
  }
  const { summary, rate, results, problem, filter, opened } = state;
  const onOpen = (result) => update({ opened: result });
  if (problem?.status === 404) {
    return html`<section class="panel"><h2>The live view is off</h2><p>It is turned on by the setting NIGHTJAR_LIVE_KEY.</p></section>`;
  }
  const sampled = rate && rate.matching > rate.results.length;
  return html`${problem && html`<${Problem} problem=${problem} />`}
    ${opened && html`<${Details} result=${opened} onClose=${() => update({ opened: null })} />`}
    <section class="panel" aria-labelledby="rate-title">
      <div class="bar-of-title"><h2 id="rate-title">Throughput <span class="muted" data-reading="rate">${rate && rate.per_second !== null ? `${rate.per_second.toFixed(rate.per_second < 10 ? 1 : 0)} results/s` : "waiting for results"}</span></h2><${ForgetKey} /></div>
      <${Filters} filter=${filter} classes=${Object.keys(summary?.classes || {})} onFilter=${(next) => update({ filter: next, results: [] })} />
      ${sampled && html`<p class="muted small">Of ${rate.matching} matching results in the last second, ${rate.results.length} are shown.</p>`}
    </section>
    <div class="columns">
      <div class="column">
        <section class="panel" aria-labelledby="newest-title">
          <h2 id="newest-title">Newest results</h2>
          <${Rows} results=${results} label="Table of the newest results" onOpen=${onOpen} />
        </section>
      </div>
      <div class="column side">
        ${
          summary &&
          html`<section class="panel" aria-labelledby="hour-title">
            <h2 id="hour-title">The last hour</h2>
            <${Throughput} minutes=${summary.per_minute} />
            <h3>Classes</h3>
            <${ClassMix} classes=${summary.classes} />
            ${
              Object.keys(summary.without_class).length > 0 &&
              html`<p class="muted small">Without a class: ${Object.entries(summary.without_class)
                .map(([status, number]) => `${number.toLocaleString("en")} ${status}`)
                .join(", ")}</p>`
            }
          </section>
          <section class="panel" aria-labelledby="unusual-title">
            <h2 id="unusual-title">Most unusual of the last hour</h2>
            <${Rows} results=${summary.unusual} label="Table of the most unusual objects" brief onOpen=${onOpen} />
          </section>`
        }
      </div>
    </div>`;
}

const main = document.querySelector("main");
main.replaceChildren();
render(html`<${Live} />`, main);
