// Recognises what a user dropped, pasted or picked: an alert packet, light curves in JSON, or a table. The service reads
// it; nothing is decoded here but JSON, whose light curves are drawn.

import { post, sample } from "./service.js";
import { canBeDrawn } from "./photometry.js";

const PACKET = "application/octet-stream";
const JSON_TYPE = "application/json";
const TABLE_NAME = /\.(csv|tsv|txt|dat|ecsv|fits?|fits?\.gz|vot|votable|xml|parquet|pq)$/i;
const TABLE_TYPES = [
  [/\.parquet$|\.pq$/i, "application/vnd.apache.parquet"],
  [/\.fits?(\.gz)?$/i, "application/fits"],
  [/\.(vot|votable|xml)$/i, "application/x-votable+xml"],
];

/** Input of the user: what it is, its name, and the bytes or the text that goes to the service. */
export function sourceOf(name, bytes) {
  const text = asText(bytes);
  const trimmed = text?.replace(/^\uFEFF/, "").trimStart();
  if (trimmed?.startsWith("{") || trimmed?.startsWith("[")) {
    const kind = /"(mjd|light_curves|flux_err)"\s*:/.test(trimmed) ? "light_curve" : "packet";
    return { kind, name, body: bytes, text, type: JSON_TYPE };
  }
  if (TABLE_NAME.test(name) || (text !== null && trimmed !== "" && isTable(trimmed))) {
    const type = TABLE_TYPES.find(([pattern]) => pattern.test(name))?.[1] || "text/csv";
    return { kind: "table", name, body: bytes, text, type };
  }
  return { kind: "packet", name, body: bytes, text: null, type: PACKET };
}

/** Text of bytes, or null if they are not UTF-8 text. */
function asText(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /[\u0000-\u0008\u000e-\u001f]/.test(text.slice(0, 4096)) ? null : text;
  } catch {
    return null;
  }
}

function isTable(text) {
  const line = text.slice(0, 2000).split(/\r?\n/).find((each) => each !== "" && !each.startsWith("#")) || "";
  return /[,;\t|]|\S\s+\S+\s+\S/.test(line);
}

export async function sourceOfSample(file) {
  return { kind: "packet", name: file, body: await sample(file), text: null, type: PACKET, sample: true };
}

export function sourceOfCurve(name, curve) {
  const text = JSON.stringify(curve, null, 1);
  return { kind: "light_curve", name, body: new TextEncoder().encode(text), text, type: JSON_TYPE };
}

const queryOf = ({ model, prior, coverage }) => ({
  model,
  prior: prior && typeof prior === "object" ? JSON.stringify(prior) : prior,
  coverage,
});

/**
 * Have the service read and classify an input.
 * Returns {objects: [{result, curve}], model, timings}; `curve` is null where nothing could be read.
 */
export async function read(source, settings) {
  if (source.kind === "table") {
    const { content, timings } = await post("v1/tables", source.body, source.type, queryOf(settings));
    return { objects: content.results.map(split), model: content.model, timings };
  }
  if (source.kind === "packet") {
    const { coverage, ...query } = queryOf(settings); // packets have the model's own coverage
    const { content, timings } = await post("v1/alerts", source.body, source.type, { ...query, light_curve: true });
    return { objects: content.results.map(split), model: content.model, timings };
  }
  const { content, timings } = await post("v1/classify", source.body, source.type, queryOf(settings));
  const parsed = JSON.parse(source.text.replace(/^\uFEFF/, ""));
  const { options, ...bare } = parsed;
  const curves = parsed.light_curves || [bare];
  const objects = content.results.map((result, i) => ({ result, curve: canBeDrawn(curves[i]) ? curves[i] : null }));
  return { objects, model: content.model, timings, options };
}

function split({ light_curve: curve, ...result }) {
  return { result, curve: canBeDrawn(curve) ? curve : null };
}

/** Classify one light curve: {result, model, timings}. */
export async function classify(curve, settings) {
  const { content, timings } = await post("v1/classify", JSON.stringify(curve), JSON_TYPE, queryOf(settings));
  return { result: content.results[0], model: content.results[0].model || content.model, timings };
}

/** Classification after every detection of a light curve. */
export async function evolve(curve, settings) {
  return (await post("v1/evolution", JSON.stringify(curve), JSON_TYPE, queryOf(settings))).content;
}
