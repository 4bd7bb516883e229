// The page: one input at a time, its light curve, its classification, and what changes them.

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Account, Answer, Latency } from "./answer.js";
import { Assumptions } from "./assumptions.js";
import { EvolutionPanel, stepsUntilNow } from "./evolution_panel.js";
import { shownClasses } from "./evolution_plot.js";
import { classify, evolve, filesOf, readAll, sourceOf, sourceOfCurve, sourceOfSample, sourcesOf, withOption } from "./input.js";
import { InputBar, KeyForm } from "./input_bar.js";
import { LightCurvePanel } from "./light_curve_panel.js";
import { contentOf } from "./link.js";
import { ObjectTable, TableReading } from "./object_table.js";
import { canBeDrawn, firstDetection, pointsOf } from "./photometry.js";
import { percent, Probabilities, shortName } from "./probabilities.js";
import { Problem } from "./problem.js";
import { SAMPLES } from "./samples.js";
import { get, ServiceError, setApiKey } from "./service.js";
import { TakeAway } from "./take_away.js";

const NO_SETTINGS = { model: "", prior: "", coverage: null };
const WHOLE_VIEW = { magnitudes: false, hidden: new Set(), domain: null, period: null, folded: false };
const REDRAW = 300; // ms between updates of the table of objects
const TYPING = 250; // ms after the last change before the service is asked again
const REJECTED = 64; // objects without a class after which the first of them is shown

/** Move the view and the focus to a heading. */
function goTo(selector) {
  const heading = document.querySelector(selector);
  heading.scrollIntoView();
  heading.focus({ preventScroll: true });
}

/** Keep the name of an opened file for as long as the tab is open, to say after a reload what is missing. */
function remember({ name, sample }) {
  try {
    if (sample) sessionStorage.removeItem("opened");
    else sessionStorage.setItem("opened", name);
  } catch {
    // A browser that keeps nothing.
  }
}

function remembered() {
  try {
    return sessionStorage.getItem("opened");
  } catch {
    return null;
  }
}

/** Error of the page itself, in the form of a problem. */
const problemOf = (error) => (error instanceof ServiceError ? error : { title: "The input could not be read", message: error.message });

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

  /** Show an error; `change` says which input it is about and whether the answer stays. `again` repeats the request. */
  const fail = (error, again, change) => {
    if (error.status === 401) {
      retry.current = again;
      update({ keyWanted: true, keyRefused: latest.current.keyWanted, busy: false });
    } else {
      const temporary = error.status === 0 || error.status === 429 || error.status >= 500;
      update({ problem: problemOf(error), keep: temporary, again: temporary && again, busy: false, ...change });
    }
  };

  /** Do something that asks the service; what it returns is ignored when something else was asked meanwhile. */
  const ask = async (action) => {
    const mine = ++run.current;
    clearTimeout(timer.current);
    update({ busy: true });
    try {
      const change = await action();
      if (mine === run.current) update({ problem: null, keyWanted: false, ...change, busy: false });
    } catch (error) {
      if (mine === run.current) fail(error, () => ask(action), { keep: true, problemSource: latest.current.source });
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
    let sources = [];
    try {
      const kept = typeof settings.prior === "object" ? { ...settings, prior: "" } : settings;
      const models = latest.current.models.length > 0 ? latest.current.models : (await get("v1/models")).content.models;
      sources = [await makeSources()].flat();
      if (signal.aborted) return;
      let found = [];
      let own = kept;
      let change = { table: null, summary: null };
      let shown = false;
      let drawn = 0;
      let read = 0;
      const firstClass = () => found.findIndex(({ result }) => result.status === "classified");
      const show = () => {
        shown = true;
        remember(sources[0]);
        update({ models, sources, notice: null, keyWanted: false, ...change, objects: found, settings: own });
        return showObject(Math.max(0, firstClass()));
      };
      const table = sources.length === 1 && sources[0].kind === "table" ? sources[0].text : null;
      const lines = table ? table.split("\n").length : 0; // for the progress of a table: rows that have become objects
      const rowPerObject = table !== null && table.slice(0, 4096).includes("[");
      for await (const { objects, model, timings, options, done, ...about } of readAll(sources, kept, signal)) {
        if (signal.aborted) return;
        found = found.concat(objects.map((object) => ({ ...object, model: object.result.model || model, timings: timings || [] })));
        read += objects.reduce((sum, { curve }) => sum + (rowPerObject ? 1 : curve?.mjd.length || 1), 0);
        change = { ...change, ...about, reading: lines > 0 ? { done: read, total: lines } : { done, total: sources.length } };
        if (options) own = { ...kept, prior: options.prior || kept.prior, coverage: options.coverage || kept.coverage };
        if (!shown) {
          if (firstClass() >= 0 || found.length >= REJECTED) await show();
        } else if (done === sources.length || about.summary || performance.now() - drawn > REDRAW) {
          drawn = performance.now();
          update({ ...change, objects: found });
        }
      }
      if (signal.aborted) return;
      if (found.length === 0) throw new Error("The input holds no objects.");
      if (!shown) await show();
      update({ objects: found, reading: null, busy: false });
    } catch (error) {
      if (!signal.aborted) fail(error, () => open(makeSources, settings), { reading: null, problemSource: sources[0] });
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

  /** Show an object and move to its answer. */
  const goToObject = async (index) => {
    await showObject(index);
    goTo("#answer-title");
  };

  const openNew = (makeSources) => {
    if (location.hash) history.replaceState(null, "", location.pathname + location.search); // of a link opened before
    return open(makeSources);
  };
  const openFiles = (files) => files.length > 0 && openNew(() => sourcesOf(files));
  const openText = (text) => openNew(() => sourceOf("pasted text", new TextEncoder().encode(text)));
  const openLink = async () => {
    try {
      const content = await contentOf(location.hash);
      const name = remembered();
      if (!content) {
        await open(() => sourceOfSample(SAMPLES[0][0]));
        if (name) update({ notice: `${name} is no longer here, since this page keeps no input when it is loaded again. Open it again.` });
        return;
      }
      if (!canBeDrawn(content.light_curve)) throw new Error("The link holds no light curve.");
      open(() => sourceOfCurve(content.light_curve.object_id || "linked light curve", content.light_curve), {
        ...NO_SETTINGS,
        ...content.settings,
      });
    } catch (error) {
      update({ problem: { title: "The link could not be read", message: error.message }, problemSource: null, keep: false, busy: false });
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
  const bar = html`<${InputBar} busy=${state.busy} sample=${source?.sample ? source.name : ""} onSample=${(file) => openNew(() => sourceOfSample(file))} onFiles=${openFiles} onText=${openText} />`;
  const reset = html`<button type="button" onClick=${() => (object?.curve ? change(NO_SETTINGS, { ...object.curve.metadata }) : open(() => source, NO_SETTINGS))}>
    Use the model’s own settings
  </button>`;
  const wrongSetting = state.problem?.errors?.some(({ pointer }) => /^\/(query\/(?!options)|options\/)/.test(pointer));
  const problem =
    state.problem &&
    html`<${Problem}
      problem=${state.problem}
      source=${wrongSetting ? null : state.problemSource}
      actions=${wrongSetting ? source && reset : state.again && html`<button type="button" onClick=${state.again}>Try again</button>`}
      onAnswer=${(option, value) => open(() => withOption(state.problemSource, option, value))}
    />`;
  if (!object || !answer || (state.problem && !wrongSetting && !state.keep)) return html`${bar}${problem}`;

  const first = object.result;
  const { dropped_points, duplicates, other_filters } = first; // what reading the packet left out
  const result = {
    ...first,
    ...answer.result,
    ...(dropped_points && { dropped_points }),
    ...(duplicates && { duplicates }),
    ...(other_filters && { other_filters }),
  };
  if (answer.result.status !== "classified") for (const name of ["class", "probabilities"]) delete result[name];
  for (const name of ["prediction_set", "coverage", "evidence", "subtype", "experts"]) if (!(name in answer.result)) delete result[name];
  const description = models.find(({ name, version }) => name === answer.model?.name && version === answer.model?.version);
  const shown = step ? { ...result, ...step, prediction_set: step.prediction_set || undefined, subtype: undefined } : result;
  const { subtype } = shown;
  const typeModel = subtype && models.find(({ name: each, version }) => each === subtype.model.name && version === subtype.model.version);
  const night = step && (step.mjd - firstDetection(points)).toFixed(1);
  const original = object.curve?.metadata || {};
  const name = shortName(result.object_id || "light curve");
  const edited = JSON.stringify(metadata) !== JSON.stringify(original);
  const title = `${name}${shown.class ? `: ${shown.class} ${percent(shown.confidence)}` : ""}${step ? `, as known on night ${night}` : ""}`;

  const prior = typeof settings.prior === "object" && settings.prior ? "given" : settings.prior;
  const model = { ...description, ...(prior && { prior }), ...answer.model }; // of a table only the name is known, of a file that failed nothing
  return html`${bar}${problem}${state.notice && html`<p class="panel" role="status">${state.notice}</p>`}
    ${
      objects.length > 1 &&
      html`<${ObjectTable}
      objects=${objects}
      index=${index}
      reading=${state.reading}
      onObject=${goToObject}
      onStop=${() => {
        reading.current.abort();
        update({ reading: null, busy: false });
      }}
    />`
    }
    ${state.table && html`<${TableReading} table=${state.table} summary=${state.summary} />`}
    <${Answer}
      result=${shown}
      model=${model}
      description=${description}
      points=${points}
      step=${step && { ...step, night }}
      source=${source}
      text=${source.text}
      back=${objects.length > 1 && html`<button type="button" onClick=${() => goTo("#objects-title")}>Back to the table</button>`}
    />
    <div class="columns">
      <div class="column">
        ${
          points &&
          html`<${LightCurvePanel}
          points=${points}
          view=${view}
          onView=${(part) => update({ view: { ...latest.current.view, ...part } })}
          until=${step ? step.mjd : Infinity}
          name=${name}
        />`
        }
        ${
          steps.length > 0 &&
          html`<${EvolutionPanel} evolution=${over} steps=${steps} points=${points} view=${view} chosen=${chosen} onChoose=${(value) => update({ chosen: value })} name=${name} />`
        }
        ${
          state.evolutionProblem &&
          html`<section class="panel"><h2>Classification over time</h2><p class="muted">Not available: ${state.evolutionProblem}</p></section>`
        }
        ${result.points_per_band && html`<${Account} result=${shown} model=${model} description=${description} points=${points} step=${step && { ...step, night }} />`}
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
        ${
          shown.probabilities &&
          html`<${Probabilities} probabilities=${shown.probabilities} classes=${description?.classes || []} set=${shown.prediction_set} colors=${colors} subtype=${subtype} subtypeClasses=${typeModel?.classes || []} />`
        }
        ${
          object.curve &&
          html`<${Assumptions}
          key=${`${index} ${name}`}
          settings=${settings}
          metadata=${metadata}
          original=${original}
          description=${description}
          models=${models}
          busy=${state.busy}
          onSettings=${(next) => change(next, latest.current.metadata)}
          onMetadata=${(next, nextSettings = latest.current.settings) => change(nextSettings, next)}
        />`
        }
        <${Latency} timings=${answer.timings} />
      </div>
    </div>`;
}

const main = document.querySelector("main");
main.replaceChildren();
render(html`<${App} />`, main);
