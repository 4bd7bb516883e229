// Requests to the service. The API key is sent in a header, and kept in memory only.

const base = new URL(".", document.baseURI.split("#")[0]);
let apiKey = "";

/** Address of the service, with a trailing slash; works under a path prefix. */
export const address = base.href;

/** Send this key from now on; an empty one forgets the key. */
export function setApiKey(key) {
  apiKey = key;
}

export function hasApiKey() {
  return apiKey !== "";
}

/** A problem document of the service, or a failure to reach it. */
export class ServiceError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || "The service did not answer.");
    this.status = status;
    this.title = problem.title || "Request failed";
    this.errors = problem.errors || [];
    this.requestId = problem.request_id;
    this.retryAfter = problem.retry_after;
    this.limit = problem.limit; // bytes of a body, where it was too long
    this.question = problem.question; // of the reader of tables, where a table can be read in two ways
  }
}

async function send(path, options, query = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  const headers = { ...options.headers, ...(apiKey && { authorization: `Bearer ${apiKey}` }) };
  let response;
  try {
    response = await fetch(url, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, { title: "No connection", detail: `The service at ${base.host} does not answer.` });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({ title: `HTTP status ${response.status}`, detail: "The reply has no description." }));
  throw new ServiceError(response.status, problem);
}

async function request(path, options, query) {
  const response = await send(path, options, query);
  return { content: await response.json(), timings: parseTimings(response.headers.get("server-timing")) };
}

export function get(path) {
  return request(path, { method: "GET" });
}

/** Post a body. Returns {content, timings}; raises ServiceError. */
export function post(path, body, contentType, query) {
  return request(path, { method: "POST", body, headers: { "content-type": contentType } }, query);
}

/** Post packets in one multipart body. Returns {content, timings}; raises ServiceError. */
export function postParts(path, bodies, query) {
  const form = new FormData();
  bodies.forEach((body, i) => form.append(`packet${i}`, new Blob([body])));
  return request(path, { method: "POST", body: form }, query);
}

/** Post a body and yield the lines of the NDJSON reply as they arrive. */
export async function* postLines(path, body, contentType, query, signal) {
  const response = await send(path, { method: "POST", body, headers: { "content-type": contentType }, signal }, query);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value || "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
    if (done) return;
  }
}

/** Server-sent events of a route as they arrive: {event, data}. They are read by fetch, so that the key is in a header. */
export async function* events(path, query, signal) {
  const response = await send(path, { method: "GET", signal }, query);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(
        block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]),
      );
      if (fields.data) yield { event: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

/** Bytes of a sample packet that the page brings along. */
export async function sample(file) {
  return new Uint8Array(await (await send(`page/samples/${file}`, {})).arrayBuffer());
}

/** Read a Server-Timing header: [{name, milliseconds}]. */
function parseTimings(header) {
  return (header || "").split(",").flatMap((entry) => {
    const [name, ...parameters] = entry.split(";").map((part) => part.trim());
    const duration = parameters.find((parameter) => parameter.startsWith("dur="));
    return name && duration ? [{ name, milliseconds: Number(duration.slice(4)) }] : [];
  });
}
