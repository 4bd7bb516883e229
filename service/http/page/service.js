// Requests to the service. The API key is kept in this module's memory only and sent in a header.

const base = new URL(".", document.baseURI.split("#")[0]);
let apiKey = "";

/** Address of the service, with a trailing slash; works under a path prefix. */
export const address = base.href;

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
  }
}

async function request(path, options, query = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  const headers = { ...options.headers, ...(apiKey && { authorization: `Bearer ${apiKey}` }) };
  let response;
  try {
    response = await fetch(url, { ...options, headers });
  } catch {
    throw new ServiceError(0, { title: "No connection", detail: `The service at ${base.host} does not answer.` });
  }
  const text = await response.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    content = { title: `HTTP status ${response.status}`, detail: "The reply is not JSON." };
    if (response.ok) throw new ServiceError(response.status, content);
  }
  if (!response.ok) throw new ServiceError(response.status, content);
  return { content, timings: parseTimings(response.headers.get("server-timing")) };
}

export function get(path) {
  return request(path, { method: "GET" });
}

/** Post a body. Returns {content, timings}; raises ServiceError. */
export function post(path, body, contentType, query) {
  return request(path, { method: "POST", body, headers: { "content-type": contentType } }, query);
}

/** Bytes of a sample packet that the page brings along. */
export async function sample(file) {
  const response = await fetch(new URL(`page/samples/${file}`, base), apiKey ? { headers: { authorization: `Bearer ${apiKey}` } } : {});
  if (!response.ok) throw new ServiceError(response.status, { title: "No such sample" });
  return new Uint8Array(await response.arrayBuffer());
}

/** Read a Server-Timing header: [{name, milliseconds}]. */
export function parseTimings(header) {
  return (header || "").split(",").flatMap((entry) => {
    const [name, ...parameters] = entry.split(";").map((part) => part.trim());
    const duration = parameters.find((parameter) => parameter.startsWith("dur="));
    return name && duration ? [{ name, milliseconds: Number(duration.slice(4)) }] : [];
  });
}
