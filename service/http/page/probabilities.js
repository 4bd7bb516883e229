// Probabilities as bars, by the class hierarchy of the model.

import { html } from "./vendor/htm-preact-standalone-3.1.1.js";
import { MEANINGS } from "./names.js";

const LONGEST_NAME = 100;
const SMALL = 0.005; // classes below this share one line in their group

export const percent = (value) => {
  const digits = value > 0 && value < 0.0995 ? 1 : value > 0.995 && value < 1 ? 1 : 0;
  return value > 0 && value < 0.0005 ? "< 0.1 %" : value > 0.9995 && value < 1 ? "> 99.9 %" : `${(100 * value).toFixed(digits)} %`;
};

/** An object's name as it is shown: tables may hold names of any length. */
export const shortName = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name);

/** "Ia", "Ia or II", "Ia, II or Ib/c". */
export const inWords = (names, conjunction = "or") =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} ${conjunction} ${names.at(-1)}`;

/**
 * Groups and classes with probabilities, the most probable first.
 * `classes` as in /v1/models: [{name, path}]; a class without a path stands at the top.
 */
function hierarchy(classes, probabilities) {
  const root = { name: "", value: 0, groups: new Map(), leaves: [] };
  const paths = new Map(classes.map(({ name, path }) => [name, path]));
  for (const [name, value] of Object.entries(probabilities)) {
    let group = root;
    for (const step of paths.get(name) || []) {
      if (!group.groups.has(step)) group.groups.set(step, { name: step, value: 0, groups: new Map(), leaves: [] });
      group = group.groups.get(step);
      group.value += value;
    }
    group.leaves.push({ name, value });
  }
  const sorted = (group) => ({
    name: group.name,
    value: group.value,
    children: [...[...group.groups.values()].map(sorted), ...group.leaves].sort((a, b) => b.value - a.value),
  });
  let top = sorted(root);
  while (top.children.length === 1 && top.children[0].children) top = top.children[0]; // a group that holds everything
  return top.children;
}

function Row({ node, set, colors }) {
  const inSet = set.includes(node.name) && !node.children;
  const color = colors.get(node.name);
  return html`<div class=${`row ${node.children ? "group" : "leaf"} ${inSet ? "in-set" : ""}`}>
    <span class="name">
      ${color !== undefined && !node.children && html`<span class=${`swatch class-${color}`} aria-hidden="true"></span>`}
      ${node.name}${inSet && html`<span class="badge" title="In the prediction set">in set</span>`}
    </span>
    <span class="bar" aria-hidden="true"><span style=${{ width: `${100 * node.value}%` }}></span></span>
    <span class="value">${percent(node.value)}</span>
  </div>`;
}

function Nodes({ nodes, set, colors }) {
  const shown = nodes.filter((node, i) => node.children || node.value >= SMALL || set.includes(node.name) || i === 0);
  const small = nodes.filter((node) => !shown.includes(node));
  return html`<ul>
    ${shown.map(
      (node) => html`<li key=${node.name}>
        <${Row} node=${node} set=${set} colors=${colors} />
        ${node.children && html`<${Nodes} nodes=${node.children} set=${set} colors=${colors} />`}
      </li>`,
    )}
    ${
      small.length > 0 &&
      html`<li>
      <details>
        <summary>${small.length} more, ${percent(small.reduce((sum, node) => sum + node.value, 0))} in all</summary>
        <ul>${small.map((node) => html`<li key=${node.name}><${Row} node=${node} set=${set} colors=${colors} /></li>`)}</ul>
      </details>
    </li>`
    }
  </ul>`;
}

const NO_COLORS = new Map();

function Meanings({ names }) {
  const known = names.filter((name) => MEANINGS[name]);
  if (known.length === 0) return null;
  return html`<details>
    <summary>What the names mean</summary>
    <ul class="plain small">${known.map((name) => html`<li key=${name}><strong>${name}</strong>: ${MEANINGS[name]}</li>`)}</ul>
  </details>`;
}

/** `subtype` as in a result, with `subtypeClasses` of the model that it comes from; undefined where there is none. */
export function Probabilities({ probabilities, classes, set, colors, subtype, subtypeClasses }) {
  return html`<section class="panel probabilities" aria-labelledby="probabilities-title">
    <h2 id="probabilities-title">Probabilities</h2>
    <${Nodes} nodes=${hierarchy(classes, probabilities)} set=${set || []} colors=${colors} />
    ${
      subtype &&
      html`<h3>Types, if it is a supernova</h3>
      <p class="muted small">${subtype.model.name} ${subtype.model.version}</p>
      <${Nodes} nodes=${hierarchy(subtypeClasses, subtype.probabilities)} set=${subtype.prediction_set || []} colors=${NO_COLORS} />`
    }
    <${Meanings} names=${[...new Set([...classes.flatMap(({ path }) => path), ...Object.keys({ ...probabilities, ...subtype?.probabilities })])]} />
  </section>`;
}
