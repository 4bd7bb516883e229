// What to take away: a link, downloads, and the commands that give the same answer.

import { html, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { fileName, plotsAsPng, plotsAsSvg, save, stepsToCsv } from "./downloads.js";
import { queryOf } from "./input.js";
import { fragmentOf, LONGEST } from "./link.js";
import { toCsv } from "./photometry.js";
import { address, hasApiKey } from "./service.js";

const EXTENSIONS = { "application/json": ".json", "application/octet-stream": ".avro" };

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** {file, body, curl, python, nightjar} of the commands; `body` is null where the file is the user's own. */
function commandsOf({ source, curve, settings, edited }) {
  const own = source.kind !== "table" && !edited && !(source.kind === "packet" && settings.coverage);
  const query = new URLSearchParams(Object.entries(queryOf(settings)).filter(([, value]) => value));
  const file = own
    ? fileName(source.name, /\.\w+$/.test(source.name) ? "" : EXTENSIONS[source.type] || "")
    : fileName(curve?.object_id || source.name, ".json");
  const route = own && source.kind === "packet" ? "v1/alerts" : "v1/classify";
  const type = own ? source.type : "application/json";
  const url = `${address}${route}${query.size > 0 ? `?${query}` : ""}`;
  const key = hasApiKey();
  const curl = [
    `curl ${quoted(url)} -H ${quoted(`content-type: ${type}`)} \\`,
    ...(key ? [`     -H "authorization: Bearer $NIGHTJAR_API_KEY" \\`] : []),
    `     --data-binary @${file}`,
  ].join("\n");
  const python = [
    "import json",
    ...(key ? ["import os"] : []),
    "import pathlib",
    "import urllib.request",
    "",
    `body = pathlib.Path(${JSON.stringify(file)}).read_bytes()`,
    `headers = {"content-type": ${JSON.stringify(type)}}`,
    ...(key ? ['headers["authorization"] = "Bearer " + os.environ["NIGHTJAR_API_KEY"]'] : []),
    `request = urllib.request.Request(${JSON.stringify(url)}, body, headers)`,
    "with urllib.request.urlopen(request) as response:",
    '    result = json.load(response)["results"][0]',
    'print(result.get("class", result["status"]), result.get("confidence"), result.get("prediction_set") or result.get("detail"))',
  ].join("\n");
  const options = [...query].map(([name, value]) => ` --${name} ${quoted(value)}`).join("");
  const keyOption = key ? ' --api-key "$NIGHTJAR_API_KEY"' : "";
  const nightjar =
    typeof settings.prior === "object" && settings.prior
      ? null
      : `nightjar classify ${file} --url ${quoted(address.replace(/\/$/, ""))}${options}${keyOption}`;
  return { file, body: own ? null : JSON.stringify(curve), curl, python, nightjar };
}

/** `linked` is what a link holds. */
export function TakeAway({ source, curve, points, steps, settings, linked, edited, name, title }) {
  const [shown, setShown] = useState("curl");
  const [link, setLink] = useState("");
  const [note, setNote] = useState("");
  const commands = curve || (!["table", "unread"].includes(source.kind) && !edited) ? commandsOf({ source, curve, settings, edited }) : null;
  const copy = async (text, what) => {
    try {
      await navigator.clipboard.writeText(text);
      setNote(`${what} copied`);
    } catch {
      setNote("Copying is not allowed here; select the text instead");
    }
  };
  const makeLink = async () => {
    const fragment = await fragmentOf(linked);
    if (fragment.length > LONGEST) return setNote("This light curve is too long for a link; save it as a file instead");
    const url = `${address}${fragment}`;
    setLink(url);
    await copy(url, "Link");
  };
  const saveInput = () =>
    commands.body === null
      ? save(new Blob([source.body]), commands.file, source.type)
      : save(commands.body, commands.file, "application/json");
  const kinds = [["curl", "curl"], ["python", "Python"], ...(commands?.nightjar ? [["nightjar", "nightjar"]] : [])];
  const kind = commands?.[shown] ? shown : "curl";
  if (!commands && !points && !steps?.length) return null;
  return html`<section class="panel take-away" aria-labelledby="take-away-title">
    <h2 id="take-away-title">Take it with you</h2>
    <div class="buttons">
      ${curve && html`<button type="button" onClick=${makeLink}>Copy link</button>`}
      ${
        points &&
        html`<button type="button" onClick=${async () => save(await plotsAsPng(title), fileName(name, ".png"))}>PNG</button>
        <button type="button" onClick=${() => save(plotsAsSvg(title).text, fileName(name, ".svg"), "image/svg+xml")}>SVG</button>
        <button type="button" onClick=${() => save(toCsv(points), fileName(name, "_light_curve.csv"), "text/csv")}>Light curve (CSV)</button>`
      }
      ${
        steps?.length > 0 &&
        html`<button type="button" onClick=${() => save(stepsToCsv(steps), fileName(name, "_probabilities.csv"), "text/csv")}>Probabilities (CSV)</button>`
      }
      ${commands && html`<button type="button" onClick=${saveInput}>Input (${commands.file})</button>`}
    </div>
    ${
      link &&
      html`<label class="field link"><span>Link: the light curve and this view of it are in the address itself and are not stored anywhere</span><input readonly value=${link} onFocus=${(event) => event.target.select()} /></label>`
    }
    <p class="muted small" role="status">${note}</p>
    ${
      commands &&
      html`<h3>The same answer from the command line</h3>
      <div class="buttons" role="group" aria-label="Kind of command">
        ${kinds.map(
          ([each, label]) =>
            html`<button key=${each} type="button" aria-pressed=${kind === each} onClick=${() => setShown(each)}>${label}</button>`,
        )}
        <button type="button" onClick=${() => copy(commands[kind], "Command")}>Copy</button>
      </div>
      <pre class="command" tabindex="0" data-command=${kind}>${commands[kind]}</pre>
      ${commands.body !== null && html`<p class="muted small">First save the light curve with <q>Input (${commands.file})</q>.</p>`}
      ${kind === "nightjar" && html`<p class="muted small">Needs <code>pip install '.[client]'</code> in a clone of Nightjar.</p>`}
      ${!commands.nightjar && html`<p class="muted small"><code>nightjar classify</code> takes these class shares as JSON: <code>--prior</code>.</p>`}`
    }
  </section>`;
}
