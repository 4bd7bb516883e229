// The page: one input at a time, its light curve, its classification, and what changes them.

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Account, Answer, Latency } from "./answer.js";
import { Assumptions } from "./assumptions.js";
import { stylesOf } from "./bands.js";
import { EvolutionPlot, shownClasses } from "./evolution_plot.js";
import { classify, evolve, filesOf, readAll, sourceOf, sourceOfCurve, sourceOfSample, sourcesOf, withOption } from "./input.js";
import { Legend, LightCurvePlot } from "./light_curve_plot.js";
import { contentOf } from "./link.js";
import { ObjectTable, TableReading } from "./object_table.js";
import { canBeDrawn, count, firstDetection, pointsOf } from "./photometry.js";
import { inWords, percent, Probabilities } from "./probabilities.js";
import { Problem } from "./problem.js";
import { SAMPLES } from "./samples.js";
import { padded } from "./scales.js";
import { get, ServiceError, setApiKey } from "./service.js";
import { TakeAway } from "./take_away.js";

const NO_SETTINGS = { model: "", prior: "", coverage: null };
const WHOLE_VIEW = { magnitudes: false, hidden: new Set(), domain: null, period: null, folded: false };
const REDRAW = 300; // ms between updates of the table of objects
const TYPING = 250; // ms after the last change before the service is asked again
const BEFORE_DETECTION = 30; // days shown by "Around the detections"
const AFTER_DETECTION = 15;

/** Error of the page itself, in the form of a problem. */
const problemOf = (error) => (error instanceof ServiceError ? error : { title: "The input could not be read", message: error.message });

function InputBar({ busy, sample, onSample, onFiles, onText }) {
  const [text, setText] = useState("");
  const [pasting, setPasting] = useState(false);
  return html`<section class="panel input" aria-label="Input">
    <label class="sample"
      ><span>Sample</span>
      <select name="sample" value=${sample} onChange=${(event) => event.target.value && onSample(event.target.value)}>
        <option value="">Choose …</option>
        ${SAMPLES.map(([file, label]) => html`<option key=${file} value=${file}>${label}</option>`)}
      </select></label
    >
    <label class="button primary">Open files<input type="file" name="files" multiple onChange=${(event) => (onFiles([...event.target.files]), (event.target.value = ""))} /></label>
    <label class="button">Open folder<input type="file" name="folder" webkitdirectory onChange=${(event) => (onFiles([...event.target.files]), (event.target.value = ""))} /></label>
    <button type="button" aria-expanded=${pasting} onClick=${() => setPasting(!pasting)}>Paste text</button>
    <p class="muted hint">
      Drop alert packets (Avro or JSON), light curves (JSON), tables (CSV and others) or a folder of them anywhere on this page. They are sent to this service only and
      not stored.
    </p>
    <span class="busy" role="status">${busy ? "Classifying …" : ""}</span>
    ${pasting &&
    html`<div class="pasting">
      <label for="paste">A light curve or an alert as JSON, or a table with columns such as mjd, band, flux, flux_err</label>
      <textarea id="paste" rows="6" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      <button type="button" class="primary" disabled=${text.trim() === ""} onClick=${() => onText(text)}>Classify</button>
    </div>`}
  </section>`;
}

function KeyForm({ refused, onKey }) {
  const [key, setKey] = useState("");
  return html`<form
    class="panel key"
    onSubmit=${(event) => {
      event.preventDefault();
      onKey(key);
    }}
  >
    <h2>API key required</h2>
    <p>${refused ? "The service does not know this key." : "This service asks for an API key."} It is kept in the memory of this page only.</p>
    <label class="field"><span>API key</span><input type="password" name="key" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    <button class="primary">Use this key</button>
  </form>`;
}

function FoldControls({ points, view, onView }) {
  const [state, setState] = useState({ searching: false, found: null, failed: false });
  const worker = useRef(null);
  useEffect(() => () => worker.current?.terminate(), []);
  const span = points.at(-1).mjd - points[0].mjd;
  const search = () => {
    worker.current?.terminate();
    worker.current = new Worker(new URL("period_worker.js", import.meta.url), { type: "module" });
    setState({ searching: true, found: null, failed: false });
    worker.current.onmessage = ({ data }) => {
      worker.current.terminate();
      setState({ searching: false, found: data, failed: data === null });
      if (data) onView({ folded: true, period: data.period, best: data.period });
    };
    worker.current.postMessage(points);
  };
  if (!view.folded) {
    return html`<button type="button" disabled=${state.searching} onClick=${search}>${state.searching ? "Searching …" : "Fold"}</button>
      ${state.failed && html`<span class="muted">Too few observations for a period</span>`}`;
  }
  const center = view.best || view.period;
  const reach = Math.min(0.3, (2 * center) / Math.max(span, center)); // a few cycles over the whole light curve
  const offset = Math.max(-1000, Math.min(1000, Math.round((1000 * (view.period / center - 1)) / reach)));
  const setPeriod = (period) => period > 0 && onView({ period, best: period });
  return html`<button type="button" aria-pressed="true" onClick=${() => onView({ folded: false })}>Fold</button>
    <label class="inline">Period <input type="number" name="period" step="any" min="0.001" value=${Number(view.period.toPrecision(8))} onChange=${(event) => setPeriod(event.target.valueAsNumber)} /> d</label>
    <input
      type="range"
      min="-1000"
      max="1000"
      value=${String(offset)}
      aria-label="Fine tuning of the period"
      onInput=${(event) => onView({ period: center * (1 + (reach * event.target.valueAsNumber) / 1000), best: center })}
    />
    <button type="button" onClick=${() => setPeriod(view.period / 2)}>÷ 2</button>
    <button type="button" onClick=${() => setPeriod(view.period * 2)}>× 2</button>
    <button type="button" onClick=${search}>Best</button>
    ${state.found &&
    html`<span class="muted small">Best period ${Number(state.found.period.toPrecision(7))} d explains ${percent(state.found.power)} of the scatter; searched from ${Number(state.found.shortest.toPrecision(2))} d</span>`}`;
}

function LightCurvePanel({ points, view, onView, until, name }) {
  const styles = useMemo(() => stylesOf(points), [points]);
  const epoch = firstDetection(points);
  const toggle = (band) => {
    const hidden = new Set(view.hidden);
    hidden.delete(band) || hidden.add(band);
    onView({ hidden });
  };
  const detections = points.filter((point) => point.detected);
  return html`<section class="panel" aria-labelledby="light-curve-title">
    <div class="bar-of-title">
      <h2 id="light-curve-title">Light curve</h2>
      <div class="buttons" role="group" aria-label="Vertical axis">
        <button type="button" aria-pressed=${!view.magnitudes} onClick=${() => onView({ magnitudes: false })}>Flux</button>
        <button type="button" aria-pressed=${view.magnitudes} onClick=${() => onView({ magnitudes: true })}>Magnitude</button>
      </div>
      ${!view.folded &&
      html`<div class="buttons" role="group" aria-label="Time range">
        <button type="button" aria-pressed=${view.domain === null} onClick=${() => onView({ domain: null })}>All</button>
        ${detections.length > 0 &&
        html`<button type="button" aria-pressed=${view.domain !== null} onClick=${() => onView({ domain: [epoch - BEFORE_DETECTION, detections.at(-1).mjd + AFTER_DETECTION] })}>
          Around the detections
        </button>`}
      </div>`}
      <div class="buttons fold"><${FoldControls} points=${points} view=${view} onView=${onView} /></div>
    </div>
    <${Legend} styles=${styles} points=${points} hidden=${view.hidden} onToggle=${toggle} />
    <${LightCurvePlot}
      points=${points}
      styles=${styles}
      hidden=${view.hidden}
      magnitudes=${view.magnitudes}
      period=${view.folded ? view.period : null}
      domain=${view.domain || wholeDomain(points)}
      epoch=${epoch}
      until=${until}
      name=${name}
      onZoom=${(domain) => onView({ domain })}
    />
  </section>`;
}

const wholeDomain = (points) => padded([points[0].mjd, points.at(-1).mjd], 0.03, 0.5);

/** Steps of the evolution, and as the last one the answer from all observations where some are later. */
function stepsUntilNow(evolution, points, result) {
  const steps = (evolution?.steps || []).filter((step) => step.probabilities); // others were not classified
  if (steps.length === 0 || result.status !== "classified" || points.at(-1).mjd <= steps.at(-1).mjd) return steps;
  const { class: name, confidence, probabilities, prediction_set, unusual, novelty } = result;
  const now = { mjd: points.at(-1).mjd, detections: steps.at(-1).detections, now: true };
  return [...steps, { ...now, class: name, confidence, probabilities, prediction_set, unusual, novelty }];
}

function EvolutionPanel({ evolution, steps, points, view, chosen, onChoose, name }) {
  const classes = useMemo(() => shownClasses(steps), [steps]);
  const epoch = firstDetection(points);
  const step = steps[chosen];
  const night = (mjd) => (mjd - epoch).toFixed(1).replace("-", "−");
  const total = evolution.class_changes;
  const rest = 1 - classes.reduce((sum, { name: each }) => sum + (step.probabilities[each] || 0), 0);
  const sentence = `Night ${night(step.mjd)}${step.now ? " (all observations)" : ""}, ${count(step.detections, "detection")}: ${step.class} ${percent(step.confidence)}${
    step.prediction_set ? `; ${inWords(step.prediction_set)}` : ""
  }${step.unusual ? "; out of distribution" : ""}`;
  return html`<section class="panel evolution" aria-labelledby="evolution-title">
    <h2 id="evolution-title">Classification over time</h2>
    <${EvolutionPlot}
      steps=${steps}
      classes=${classes}
      domain=${view.domain || wholeDomain(points)}
      chosen=${chosen}
      onChoose=${onChoose}
      name=${name}
    />
    <label class="slider"
      ><span>What did we know then?</span>
      <input
        type="range"
        name="night"
        min="0"
        max=${String(steps.length - 1)}
        value=${String(chosen)}
        aria-valuetext=${sentence}
        onInput=${(event) => onChoose(event.target.valueAsNumber)}
      />
    </label>
    <p class="reading" data-reading="night">${sentence}</p>
    <ul class="legend classes" aria-label="Classes at that time">
      ${classes.map(
        ({ name: each, color }) =>
          html`<li key=${each}><span class=${`swatch class-${color}`} aria-hidden="true"></span>${each} <span class="muted">${percent(step.probabilities[each] || 0)}</span></li>`,
      )}
      ${rest > 0.0005 && html`<li><span class="swatch class-rest" aria-hidden="true"></span>Others <span class="muted">${percent(rest)}</span></li>`}
    </ul>
    <p class="muted small">
      ${total === 0
        ? "The most probable class never changed from detection to detection."
        : `The most probable class changed ${total === 1 ? "once" : `${total} times`}, last on night ${night(evolution.last_change_mjd)}.`}
      ${evolution.recent_variation !== null &&
      evolution.recent_variation !== undefined &&
      ` Recent variation ${evolution.recent_variation.toFixed(3)} (mean total variation distance between the last detections; 0 is stable, 1 is a different answer every time).`}
      ${evolution.sampled && ` The history is long: ${evolution.steps.length} of ${evolution.detections} detections are shown.`}
    </p>
  </section>`;
}

function App() {
  const [state, setState] = useState({ objects: [], index: 0, settings: NO_SETTINGS, view: WHOLE_VIEW, busy: true, models: [] });
  const latest = useRef(state);
  latest.current = state;
  const update = (change) => {
    latest.current = { ...latest.current, ...change };
    setState(latest.current);
  };
  const run = useRef(0);
  const timer = useRef(0);
  const retry = useRef(() => {});

  /** Do something that asks the service; what it returns is ignored when something else was asked meanwhile. */
  const ask = async (action) => {
    const mine = ++run.current;
    clearTimeout(timer.current);
    update({ busy: true });
    try {
      const change = await action();
      if (mine === run.current) update({ problem: null, keyWanted: false, ...change, busy: false });
    } catch (error) {
      if (mine !== run.current) return;
      if (error.status === 401) {
        retry.current = () => ask(action);
        update({ keyWanted: true, keyRefused: latest.current.keyWanted, busy: false });
      } else {
        update({ problem: problemOf(error), busy: false });
      }
    }
  };

  const evolution = async (curve, settings, result) => {
    if (!curve || result.status !== "classified") return { evolution: null, evolutionProblem: null };
    try {
      return { evolution: await evolve(curve, settings), evolutionProblem: null };
    } catch (error) {
      if (error.status === 401) throw error;
      return { evolution: null, evolutionProblem: problemOf(error).message };
    }
  };

  const reading = useRef(new AbortController());

  const answerOf = async ({ result, curve, model, timings }, settings) => {
    const answered = settings.coverage && curve ? await classify(curve, settings) : { result, model, timings };
    return { answer: answered, chosen: null, ...(await evolution(curve, settings, result)) };
  };

  /** Read inputs. The first object is shown as soon as it is there, the others are added to the table of objects. */
  const open = async (makeSources, settings = latest.current.settings) => {
    reading.current.abort();
    const { signal } = (reading.current = new AbortController());
    run.current++;
    clearTimeout(timer.current);
    update({ busy: true, problem: null });
    try {
      const kept = typeof settings.prior === "object" ? { ...settings, prior: "" } : settings;
      const models = latest.current.models.length > 0 ? latest.current.models : (await get("v1/models")).content.models;
      const sources = [await makeSources()].flat();
      if (signal.aborted) return;
      update({ models, source: sources[0], sources });
      let found = [];
      let shown = false;
      let drawn = 0;
      let read = 0;
      const table = sources.length === 1 && sources[0].kind === "table" ? sources[0].text : null;
      const lines = table ? table.split("\n").length : 0; // for the progress of a table: rows that have become objects
      const rowPerObject = table !== null && table.slice(0, 4096).includes("[");
      for await (const { objects, model, timings, options, done, ...about } of readAll(sources, kept, signal)) {
        if (signal.aborted) return;
        found = found.concat(objects.map((object) => ({ ...object, model: object.result.model || model, timings: timings || [] })));
        read += objects.reduce((sum, { curve }) => sum + (rowPerObject ? 1 : curve?.mjd.length || 1), 0);
        const change = { ...about, reading: lines > 0 ? { done: read, total: lines } : { done, total: sources.length } };
        if (!shown && found.length > 0) {
          shown = true;
          const own = options ? { ...kept, prior: options.prior || kept.prior, coverage: options.coverage || kept.coverage } : kept;
          update({ table: null, summary: null, ...latest.current.pendingTable, pendingTable: null, keyWanted: false, ...change, objects: found, settings: own });
          await showObject(0);
        } else if (!shown) {
          update({ pendingTable: { ...latest.current.pendingTable, ...about } });
        } else if (done === sources.length || about.summary || performance.now() - drawn > REDRAW) {
          drawn = performance.now();
          update({ ...change, objects: found });
        }
      }
      if (signal.aborted) return;
      if (!shown) throw new Error("The input holds no objects.");
      update({ objects: found, reading: null, busy: false });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) {
        retry.current = () => open(makeSources, settings);
        update({ keyWanted: true, keyRefused: latest.current.keyWanted, reading: null, busy: false });
      } else {
        update({ problem: problemOf(error), pendingTable: null, reading: null, busy: false });
      }
    }
  };

  const showObject = (index) =>
    ask(async () => {
      const { objects, settings } = latest.current;
      const object = objects[index];
      const chosen = { index, source: object.source, view: WHOLE_VIEW, metadata: { ...object.curve?.metadata } };
      return { ...chosen, ...(await answerOf(object, settings)) };
    });

  /** Classify the shown light curve again, with other settings or metadata. */
  const change = (settings, metadata) => {
    update({ settings, metadata });
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const { curve } = latest.current.objects[latest.current.index] || {};
      if (!curve) return;
      ask(async () => {
        const edited = { ...curve, metadata };
        const [answer, over] = await Promise.all([classify(edited, settings), evolution(edited, settings, { status: "classified" })]);
        return { answer, ...over, chosen: null };
      });
    }, TYPING);
  };

  const openFiles = (files) => files.length > 0 && open(() => sourcesOf(files));
  const openText = (text) => open(() => sourceOf("pasted text", new TextEncoder().encode(text)));
  const openLink = async () => {
    try {
      const content = await contentOf(location.hash);
      if (!content) return open(() => sourceOfSample(SAMPLES[0][0]));
      if (!canBeDrawn(content.light_curve)) throw new Error("The link holds no light curve.");
      open(() => sourceOfCurve(content.light_curve.object_id || "linked light curve", content.light_curve), { ...NO_SETTINGS, ...content.settings });
    } catch (error) {
      update({ problem: { title: "The link could not be read", message: error.message }, busy: false });
    }
  };

  useEffect(() => {
    openLink();
    const onPaste = (event) => {
      if (event.target.closest?.("input, textarea")) return;
      const { files } = event.clipboardData;
      const text = event.clipboardData.getData("text");
      if (files.length > 0) openFiles([...files]);
      else if (text.trim()) openText(text);
    };
    const onDrag = (event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", event.type === "dragover");
      if (event.type === "drop") filesOf(event.dataTransfer).then(openFiles);
    };
    const listeners = { paste: onPaste, dragover: onDrag, dragleave: onDrag, drop: onDrag };
    for (const [name, listener] of Object.entries(listeners)) document.addEventListener(name, listener);
    window.addEventListener("hashchange", openLink);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) document.removeEventListener(name, listener);
      window.removeEventListener("hashchange", openLink);
    };
  }, []);

  const { source, objects, index, settings, view, answer, metadata, models } = state;
  const object = objects[index];
  const points = useMemo(() => (object?.curve ? pointsOf(object.curve) : null), [object?.curve]);
  const over = points ? state.evolution : null;
  const steps = useMemo(() => stepsUntilNow(over, points, answer?.result), [over, points, answer]);
  const chosen = state.chosen ?? steps.length - 1;
  const step = steps.length > 0 && chosen < steps.length - 1 ? steps[chosen] : null;
  const colors = useMemo(() => new Map(steps.length > 0 ? shownClasses(steps).map(({ name, color }) => [name, color]) : []), [steps]);

  if (state.keyWanted) {
    return html`<${KeyForm}
      refused=${state.keyRefused}
      onKey=${(key) => {
        setApiKey(key);
        retry.current();
      }}
    />`;
  }
  const bar = html`<${InputBar} busy=${state.busy} sample=${source?.sample ? source.name : ""} onSample=${(file) => open(() => sourceOfSample(file))} onFiles=${openFiles} onText=${openText} />`;
  const reset = html`<button type="button" onClick=${() => (object?.curve ? change(NO_SETTINGS, { ...object.curve.metadata }) : open(() => source, NO_SETTINGS))}>
    Use the model’s own settings
  </button>`;
  const wrongSetting = state.problem?.errors?.some(({ pointer }) => /^\/(query\/(?!options)|options\/)/.test(pointer));
  const problem =
    state.problem && html`<${Problem} problem=${state.problem} source=${wrongSetting ? null : source} actions=${wrongSetting && source && reset} onAnswer=${(option, value) => open(() => withOption(source, option, value))} />`;
  if (!object || !answer || (state.problem && !wrongSetting)) return html`${bar}${problem}`;

  const first = object.result;
  const { dropped_points, duplicates, other_filters } = first; // what reading the packet left out
  const result = { ...first, ...answer.result, ...(dropped_points && { dropped_points }), ...(duplicates && { duplicates }), ...(other_filters && { other_filters }) };
  if (answer.result.status !== "classified") for (const name of ["class", "probabilities"]) delete result[name];
  for (const name of ["prediction_set", "coverage", "evidence", "subtype"]) if (!(name in answer.result)) delete result[name];
  const description = models.find(({ name, version }) => name === answer.model?.name && version === answer.model?.version);
  const shown = step ? { ...result, ...step, prediction_set: step.prediction_set || undefined, subtype: undefined } : result;
  const { subtype } = shown;
  const typeModel = subtype && models.find(({ name: each, version }) => each === subtype.model.name && version === subtype.model.version);
  const night = step && (step.mjd - firstDetection(points)).toFixed(1);
  const original = object.curve?.metadata || {};
  const name = result.object_id || "light curve";
  const edited = JSON.stringify(metadata) !== JSON.stringify(original);
  const title = result.status === "classified" ? `${name}: ${result.class} ${percent(result.confidence)}` : name;

  const prior = typeof settings.prior === "object" && settings.prior ? "given" : settings.prior;
  const model = { ...description, ...(prior && { prior }), ...answer.model }; // of a table only the name is known, of a file that failed nothing
  return html`${bar}${problem}
    ${objects.length > 1 &&
    html`<${ObjectTable}
      objects=${objects}
      index=${index}
      reading=${state.reading}
      onObject=${showObject}
      onStop=${() => {
        reading.current.abort();
        update({ reading: null, busy: false });
      }}
    />`}
    ${state.table && html`<${TableReading} table=${state.table} summary=${state.summary} />`}
    <${Answer}
      result=${shown}
      model=${model}
      points=${points}
      step=${step && { ...step, night }}
      source=${source}
      text=${source.text}
    />
    <div class="columns">
      <div class="column">
        ${points &&
        html`<${LightCurvePanel}
          points=${points}
          view=${view}
          onView=${(part) => update({ view: { ...latest.current.view, ...part } })}
          until=${step ? step.mjd : Infinity}
          name=${name}
        />`}
        ${steps.length > 0 &&
        html`<${EvolutionPanel} evolution=${over} steps=${steps} points=${points} view=${view} chosen=${chosen} onChoose=${(value) => update({ chosen: value })} name=${name} />`}
        ${state.evolutionProblem &&
        html`<section class="panel"><h2>Classification over time</h2><p class="muted">Not available: ${state.evolutionProblem}</p></section>`}
        ${model.name && html`<${Account} result=${result} model=${model} description=${description} points=${points} />`}
        <${TakeAway}
          source=${source}
          curve=${object.curve && { ...object.curve, metadata }}
          points=${points}
          steps=${steps.length > 0 ? steps : result.probabilities ? [result] : []}
          settings=${settings}
          edited=${edited || (objects.length > 1 && (state.sources.length === 1 || source.kind !== "packet"))}
          name=${name}
          title=${title}
        />
      </div>
      <div class="column side">
        ${shown.probabilities &&
        html`<${Probabilities} probabilities=${shown.probabilities} classes=${description?.classes || []} set=${shown.prediction_set} colors=${colors} subtype=${subtype} subtypeClasses=${typeModel?.classes || []} />`}
        ${object.curve &&
        html`<${Assumptions}
          settings=${settings}
          metadata=${metadata}
          original=${original}
          description=${description}
          models=${models}
          busy=${state.busy}
          onSettings=${(next) => change(next, latest.current.metadata)}
          onMetadata=${(next, nextSettings = latest.current.settings) => change(nextSettings, next)}
        />`}
        <${Latency} timings=${answer.timings} />
      </div>
    </div>`;
}

const main = document.querySelector("main");
main.replaceChildren();
render(html`<${App} />`, main);
