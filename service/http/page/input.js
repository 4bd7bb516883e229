// Recognises what a user dropped, pasted or picked: alert packets, light curves in JSON, or tables. The service reads
// and classifies it; nothing is decoded here but JSON, whose light curves are drawn.

import { address, post, postLines, postParts, sample, ServiceError } from "./service.js";
import { unreadFormat } from "./formats.js";
import { canBeDrawn } from "./photometry.js";

const BYTES = "application/octet-stream";
const JSON_TYPE = "application/json";
const TABLE_NAME = /\.(csv|tsv|txt|dat|jsonl|ndjson)$/i;
const BATCH = 64; // packets in one request
const BATCH_BYTES = 4e6;
const ATTEMPTS = 6; // while the service is busy

/** Input of the user: what it is, its name, and the bytes or the text that goes to the service. */
export function sourceOf(name, bytes) {
  const unread = unreadFormat(name, bytes);
  if (unread) return { kind: "unread", name, body: new Uint8Array(), text: null, type: BYTES, detail: adviceOf(name, ...unread) };
  const text = asText(bytes);
  const trimmed = text?.replace(/^\uFEFF/, "").trimStart();
  const json = /^[{[]/.test(trimmed || "");
  if (json && /"(candidate|candid|diaSource|diaObject|prvDiaSources)"\s*:/.test(trimmed))
    return { kind: "packet", name, body: bytes, text, type: JSON_TYPE };
  if (TABLE_NAME.test(name) || (json && /^\[\s*\{/.test(trimmed)) || (trimmed && !json && isTable(trimmed))) {
    return { kind: "table", name, body: bytes, text, type: text === null ? BYTES : "text/csv" };
  }
  if (json)
    return { kind: /"(mjd|light_curves|flux|mag)"\s*:/.test(trimmed) ? "light_curve" : "packet", name, body: bytes, text, type: JSON_TYPE };
  return { kind: "packet", name, body: bytes, text: null, type: BYTES };
}

/** What to do with a file in a format that no service reads. */
function adviceOf(name, format, start = "Save it as CSV, or") {
  const file = /^[\w.-]+$/.test(name) && !name.startsWith("-") ? name : "FILE";
  const command = `nightjar classify ${file} --url ${address.replace(/\/$/, "")}`;
  return `${name} is ${format}, which this page does not send. ${start} use ${command}, which reads the file on your machine and sends its light curves.`;
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

/** Whether text looks like a table: a line of several columns, and at least one more. */
function isTable(text) {
  const lines = text.split(/\r?\n/).filter((line) => line !== "" && !line.startsWith("#"));
  return lines.length > 1 && /[,;\t|]|\S\s+\S+\s+\S/.test(lines[0]);
}

export async function sourceOfSample(file) {
  return { kind: "packet", name: file, body: await sample(file), text: null, type: BYTES, sample: true };
}

export function sourceOfCurve(name, curve) {
  const text = JSON.stringify(curve, null, 1);
  return { kind: "light_curve", name, body: new TextEncoder().encode(text), text, type: JSON_TYPE };
}

/** A table with one more of the reader's options set; `option` may be dotted, as in columns.time. */
export function withOption(source, option, value) {
  const [name, ...inner] = option.split(".");
  const key = inner.join(".");
  const options = { ...source.options, [name]: key ? { ...source.options?.[name], [key]: value } : value };
  return { ...source, options };
}

export const queryOf = ({ model, prior, coverage }) => ({
  model,
  prior: prior && typeof prior === "object" ? JSON.stringify(prior) : prior,
  coverage,
});

/** Repeat a request for as long as the service says that it is busy. */
async function patiently(action) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await action();
    } catch (error) {
      if (![429, 503].includes(error.status) || attempt === ATTEMPTS) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter || 1)));
    }
  }
}

/**
 * Have the service read and classify inputs. A file in a format that no service reads is not sent. Yields {objects: [{result, curve, source}], model, timings, done} as they
 * come, `done` counting inputs; of a table also {table} and {summary}; of JSON also its {options}. `curve` is null where
 * nothing can be drawn. An input among several that fails becomes an object of its own; of a single one the error is raised.
 */
export async function* readAll(sources, settings, signal) {
  let done = 0;
  for (let start = 0; start < sources.length && !signal.aborted;) {
    if (sources[start].kind === "unread") {
      const { detail } = sources[start];
      if (sources.length === 1) throw Object.assign(new Error(detail), { title: "This format is not read here" });
      const result = { status: "rejected", reason: "unsupported_format", detail };
      yield { objects: [{ result, curve: null, source: sources[start++] }], done: (done += 1) };
      continue;
    }
    const end = batchEnd(sources, start);
    const group = sources.slice(start, end);
    try {
      if (group.length > 1) {
        const part = await readPackets(group, settings);
        if (part === null) {
          for (const source of group) source.alone = true; // a file holds several alerts: which one is known only this way
          continue;
        }
        yield { ...part, done: (done += group.length) };
      } else {
        for await (const part of readOne(group[0], settings, signal)) yield { done, ...part };
        yield { objects: [], done: (done += 1) };
      }
    } catch (error) {
      if (sources.length === 1 || !(error instanceof ServiceError) || error.status === 401 || error.status === 0) throw error;
      if (group.length > 1) {
        for (const source of group) source.alone = true; // one by one, so that one input harms no other
        continue;
      }
      const result = {
        status: "rejected",
        reason: `http_${error.status}`,
        detail: error.message,
        errors: error.errors,
      };
      yield { objects: [{ result, curve: null, source: group[0] }], done: (done += 1) };
    }
    start = end;
  }
}

/** End of the run of packets from `start` that go into one request. */
function batchEnd(sources, start) {
  let bytes = 0;
  let end = start;
  while (end < sources.length && sources[end].kind === "packet" && !sources[end].alone && end - start < BATCH) {
    bytes += sources[end].body.length;
    if (bytes > BATCH_BYTES) break;
    end++;
  }
  return Math.max(end, start + 1);
}

async function readPackets(sources, settings) {
  const { coverage, ...query } = queryOf(settings); // packets have the model's own coverage
  const { content, timings } = await patiently(() =>
    postParts(
      "v1/alerts",
      sources.map(({ body }) => body),
      { ...query, light_curve: true, experts: true },
    ),
  );
  if (content.results.length !== sources.length) return null;
  const objects = content.results.map((result, i) => split(result, sources[i]));
  return { objects, model: content.model, timings };
}

async function* readOne(source, settings, signal) {
  if (source.kind === "table") {
    yield* readTable(source, settings, signal);
  } else if (source.kind === "packet") {
    const { coverage, ...query } = queryOf(settings);
    const { content, timings } = await patiently(() => post("v1/alerts", source.body, source.type, { ...query, light_curve: true, experts: true }));
    yield { objects: content.results.map((result) => split(result, source)), model: content.model, timings };
  } else {
    const { content, timings } = await patiently(() => post("v1/classify", source.body, source.type, { ...queryOf(settings), experts: true }));
    const { options, ...bare } = JSON.parse(source.text.replace(/^\uFEFF/, ""));
    const curves = bare.light_curves || [bare];
    const objects = content.results.map((result, i) => ({ result, curve: canBeDrawn(curves[i]) ? curves[i] : null, source }));
    yield { objects, model: content.model, timings, options };
  }
}

async function* readTable(source, settings, signal) {
  const options = source.options ? JSON.stringify(source.options) : "";
  const query = { ...queryOf(settings), light_curve: true, experts: true, name: source.name.slice(-255), options };
  let objects = [];
  let count = 0;
  let model;
  for await (const line of postLines("v1/tables", source.body, source.type, query, signal)) {
    if (line.problem) throw new ServiceError(line.problem.status, line.problem);
    if (line.table) {
      model = line.model;
      yield { objects: [], table: line.table };
    } else if (line.summary) yield { objects, model, timings: [], summary: line.summary };
    else objects.push(split(line, source));
    if (objects.length >= (count < BATCH ? 1 : BATCH) && !line.summary) {
      count += objects.length;
      yield { objects, model, timings: [] };
      objects = [];
    }
  }
}

function split({ light_curve: curve, ...result }, source) {
  return { result, curve: canBeDrawn(curve) ? curve : null, source };
}

/** Classify one light curve: {result, model, timings}. */
export async function classify(curve, settings) {
  const { content, timings } = await post("v1/classify", JSON.stringify(curve), JSON_TYPE, { ...queryOf(settings), experts: true });
  return { result: content.results[0], model: content.results[0].model || content.model, timings };
}

/** Classification after every detection of a light curve. */
export async function evolve(curve, settings) {
  return (await post("v1/evolution", JSON.stringify(curve), JSON_TYPE, queryOf(settings))).content;
}

/** Files of a drop or of a file dialog, those in folders as well. */
export async function filesOf(transfer) {
  const entries = [...(transfer.items || [])].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  const files = [];
  const visit = async (entry) => {
    if (entry.isFile) files.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
    else {
      const reader = entry.createReader();
      for (;;) {
        const inside = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (inside.length === 0) break;
        for (const each of inside) await visit(each);
      }
    }
  };
  for (const entry of entries) await visit(entry);
  return files;
}

export async function sourcesOf(files) {
  const sources = [];
  for (const file of files) {
    if (file.name.startsWith(".")) continue;
    sources.push(sourceOf(file.name, new Uint8Array(await file.arrayBuffer())));
  }
  if (sources.length === 0) throw new Error("No file was chosen.");
  return sources;
}
