// The table of all objects of an input: progress, sorting, filters and export. A click shows an object below.

import { html, useMemo, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { save } from "./downloads.js";
import { count, csvValue } from "./photometry.js";
import { percent, shortName } from "./probabilities.js";

const ROWS = 25; // on one page
const COLUMNS = [
  ["object_id", "Object", ({ object_id: name }) => name],
  ["class", "Class", (result) => result.class || result.status],
  ["confidence", "Probability", ({ confidence }) => confidence ?? -1],
  ["prediction_set", "Prediction set or reason", ({ prediction_set: set }) => set?.length ?? Infinity],
  ["novelty", "Novelty", ({ novelty }) => novelty ?? -1],
  ["points", "Observations used", ({ points_per_band: counts }) => Object.values(counts || {}).reduce((sum, each) => sum + each, 0)],
];
const VALUE = new Map(COLUMNS.map(([name, , value]) => [name, value]));
const FIRST_DOWN = new Set(["confidence", "novelty", "points"]); // sorted from the largest first

/** Results as CSV, one row per object and one column per class. */
function resultsToCsv(results) {
  const classes = [...new Set(results.flatMap((result) => Object.keys(result.probabilities || {})))];
  const fields = ["file", "object_id", "survey", "status", "reason", "detail", "class", "confidence", "novelty", "unusual"];
  const rows = results.map((result) => [
    ...fields.map((name) => result[name]),
    (result.prediction_set || []).join("; "),
    ...classes.map((name) => result.probabilities?.[name]),
  ]);
  return [[...fields, "prediction_set", ...classes], ...rows].map((row) => row.map(csvValue).join(",")).join("\r\n") + "\r\n";
}

function Heading({ name, label, sort, onSort }) {
  const sorted = sort.name === name;
  return html`<th scope="col" class=${FIRST_DOWN.has(name) ? "value" : ""} aria-sort=${sorted ? (sort.down ? "descending" : "ascending") : "none"}>
    <button type="button" onClick=${() => onSort(name)}>${label}<span aria-hidden="true">${sorted ? (sort.down ? " ▾" : " ▴") : ""}</span></button>
  </th>`;
}

export function ObjectTable({ objects, index, reading, onObject, onStop }) {
  const [sort, setSort] = useState({ name: null, down: false });
  const [filter, setFilter] = useState({ text: "", group: "", confidence: 0, unusual: false });
  const [page, setPage] = useState(0);

  const groups = useMemo(() => {
    const counts = new Map();
    for (const { result } of objects) counts.set(result.class || result.status, (counts.get(result.class || result.status) || 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  }, [objects]);
  const rows = useMemo(() => {
    const text = filter.text.toLowerCase();
    const kept = objects
      .map(({ result, source }, i) => ({ result, source, i }))
      .filter(
        ({ result }) =>
          (!filter.group || (result.class || result.status) === filter.group) &&
          (!filter.unusual || result.unusual) &&
          (!filter.confidence || 100 * (result.confidence ?? 0) >= filter.confidence) &&
          (!text ||
            String(result.object_id || source.name)
              .toLowerCase()
              .includes(text)),
      );
    const value = VALUE.get(sort.name);
    if (!value) return kept;
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return kept.sort((a, b) => (sort.down ? -1 : 1) * compare(value(a.result), value(b.result)) || a.i - b.i);
  }, [objects, filter, sort]);
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  const shownPage = Math.min(page, pages - 1);
  const change = (part) => {
    setFilter({ ...filter, ...part });
    setPage(0);
  };
  const onSort = (name) => setSort({ name, down: sort.name === name ? !sort.down : FIRST_DOWN.has(name) });
  const results = () => rows.map(({ result, source }) => ({ file: source.name, ...result }));

  return html`<section class="panel objects" aria-labelledby="objects-title">
    <div class="bar-of-title">
      <h2 id="objects-title" tabindex="-1">Objects <span class="muted">${objects.length.toLocaleString("en")}</span></h2>
      ${
        reading &&
        html`<label class="progress"
          >Classifying <progress max=${String(reading.total)} value=${String(Math.min(reading.done, reading.total))}></progress>
          ${percent(Math.min(1, reading.done / reading.total))}</label
        >
        <button type="button" onClick=${onStop}>Stop</button>`
      }
      <div class="buttons">
        <button type="button" onClick=${() => save(resultsToCsv(results()), "classes.csv", "text/csv")}>Save as CSV</button>
        <button type="button" onClick=${() =>
          save(
            results()
              .map((result) => JSON.stringify(result) + "\n")
              .join(""),
            "classes.jsonl",
            "application/x-ndjson",
          )}>
          Save as JSON Lines
        </button>
      </div>
    </div>
    <div class="buttons filters" role="group" aria-label="Filters">
      <label class="inline">Name <input type="search" name="filter-name" value=${filter.text} onInput=${(event) => change({ text: event.target.value })} /></label>
      <label class="inline"
        >Class
        <select name="filter-class" value=${filter.group} onChange=${(event) => change({ group: event.target.value })}>
          <option value="">All</option>
          ${groups.map(([name, number]) => html`<option key=${name} value=${name}>${name} (${number})</option>`)}
        </select></label
      >
      <label class="inline"
        >Probability at least (%)
        <input
          type="number"
          name="filter-probability"
          min="0"
          max="100"
          step="5"
          value=${String(filter.confidence)}
          onInput=${(event) => change({ confidence: event.target.valueAsNumber || 0 })}
      /></label>
      <label class="inline"><input type="checkbox" name="filter-unusual" checked=${filter.unusual} onChange=${(event) => change({ unusual: event.target.checked })} /> Unusual only</label>
    </div>
    <div class="table-scroll" tabindex="0" role="region" aria-label="Table of objects">
      <table>
        <thead>
          <tr>${COLUMNS.map(([name, label]) => html`<${Heading} key=${name} name=${name} label=${label} sort=${sort} onSort=${onSort} />`)}</tr>
        </thead>
        <tbody>
          ${rows.slice(shownPage * ROWS, (shownPage + 1) * ROWS).map(
            ({ result, source, i }) => html`<tr key=${i} class=${i === index ? "chosen" : ""}>
              <th scope="row">
                <button type="button" class="link-button" aria-current=${i === index ? "true" : undefined} onClick=${() => onObject(i)}>
                  ${shortName(result.object_id || source.name)}
                </button>
              </th>
              <td>${result.class || html`<span class="status">${result.status}</span>`}</td>
              <td class="value">${result.confidence === undefined ? "" : percent(result.confidence)}</td>
              <td>${result.prediction_set ? result.prediction_set.join(", ") : result.detail || ""}</td>
              <td class="value">${result.novelty === undefined ? "" : result.novelty.toFixed(2)}${result.unusual ? html` <span class="badge">unusual</span>` : ""}</td>
              <td class="value">${VALUE.get("points")(result) || ""}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    <div class="buttons pages">
      <button type="button" disabled=${shownPage === 0} onClick=${() => setPage(shownPage - 1)}>Previous</button>
      <span>${rows.length === 0 ? "No object passes the filters" : `${shownPage * ROWS + 1} to ${Math.min(rows.length, (shownPage + 1) * ROWS)} of ${rows.length.toLocaleString("en")}`}</span>
      <button type="button" disabled=${shownPage >= pages - 1} onClick=${() => setPage(shownPage + 1)}>Next</button>
    </div>
  </section>`;
}

/** How a table was read: the reader's guesses, and what it left out. */
export function TableReading({ table, summary }) {
  const counts = (members) =>
    Object.entries(members || {})
      .map(([name, number]) => `${name} ${number}`)
      .join(", ");
  const left =
    summary &&
    [
      ["Observations that cannot be used", counts(summary.unused_points)],
      ["Repeated observations", summary.repeated_points > 0 ? String(summary.repeated_points) : ""],
      ["Unknown filters", counts(summary.unknown_filters)],
      ["Malformed rows", counts(summary.malformed_rows)],
    ].filter(([, text]) => text);
  const assumed = table.guesses.filter(({ text }) => text.includes("assumed: ")).map(({ text }) => text.split("assumed: ")[1]);
  return html`<section class="panel reading-of-table">
    <details>
      <summary>How the table was read: ${count(table.guesses.length, "guess", "guesses")}${summary ? `, ${count(summary.points, "observation")} of ${count(summary.objects, "object")}` : ""}</summary>
      <ul class="plain">
        ${table.guesses.map(({ text }) => html`<li key=${text}>${text[0].toUpperCase() + text.slice(1)}.</li>`)}
        ${summary?.examples.map((example) => html`<li key=${example} class="muted">${example}</li>`)}
      </ul>
    </details>
    ${assumed.length > 0 && html`<p class="small">Assumed: ${assumed.join("; ")}.</p>`}
    ${summary?.contradictory_objects > 0 && html`<p class="small">${count(summary.contradictory_objects, "object")} with different values of one filter at one time: they may be several objects.</p>`}
    ${left?.length > 0 && html`<p class="small muted">Left out: ${left.map(([label, text]) => `${label.toLowerCase()}: ${text}`).join("; ")}</p>`}
  </section>`;
}
