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
import { canBeDrawn, firstDetection, isTotal, pointsOf } from "./photometry.js";
import { percent, Probabilities, shortName } from "./probabilities.js";
import { Problem } from "./problem.js";
import { SAMPLES } from "./samples.js";
import { get, hasApiKey, ServiceError } from "./service.js";
import { TakeAway } from "./take_away.js";

const NO_SETTINGS = { model: "", prior: "", coverage: null };
const WHOLE_VIEW = { magnitudes: false, hidden: new Set(), domain: null, period: null, folded: false };
const REDRAW = 300; // ms between updates of the table of objects
const TYPING = 250; // ms after the last change before the service is asked again
const REJECTED = 64; // objects without a class after which the first of them is shown

/** Settings for another input, whose model may have other classes. */
const withoutWeights = (settings) => (typeof settings.prior === "object" ? { ...settings, prior: "" } : settings);

const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Move the view and the focus to a heading. */
function goTo(selector) {
  const heading = document.querySelector(selector);
  heading.scrollIntoView();
  heading.focus({ preventScroll: true });
}

/** Error of the page itself, in the form of a problem. */
const problemOf = (error) => (error instanceof ServiceError ? error : { title: error.title || "The input could not be read", message: error.message });

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
      update({ keyWanted: true, keyRefused: hasApiKey(), busy: false });
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
      if (mine === run.current) fail(error, () => ask(action), {
          keep: true,
          problemSource: latest.current.source,
          problemModel: latest.current.settings.model,
        });
    }
  };

  const evolution = async (curve, settings) => {
    try {
      return { evolution: await evolve(curve, settings), evolutionProblem: null };
    } catch (error) {
      if (error.status === 401) throw error;
      return { evolution: null, evolutionProblem: problemOf(error).message };
    }
  };

  const reading = useRef(new AbortController());

  /** Answer of an object that was read; with a coverage, which packets do not take, or other metadata it is classified again. */
  const answerOf = async ({ result, curve, model, timings }, settings, metadata) => {
    const edited = curve && { ...curve, metadata };
    const again = curve && (settings.coverage || !equal(metadata, curve.metadata || {}));
    const answer = again ? await classify(edited, settings) : { result, model, timings };
    if (!curve || answer.result.status !== "classified") return { answer, evolution: null, evolutionProblem: null };
    return { answer, ...(await evolution(edited, settings)) };
  };

  /** Read inputs. The first object is shown as soon as it is there, the others are added to the table of objects. */
  const open = async (makeSources, settings = withoutWeights(latest.current.settings)) => {
    reading.current.abort();
    const { signal } = (reading.current = new AbortController());
    run.current++;
    clearTimeout(timer.current);
    update({ busy: true, problem: null });
    let sources = [];
    try {
      const models = latest.current.models.length > 0 ? latest.current.models : (await get("v1/models")).content.models;
      sources = [await makeSources()].flat();
      if (signal.aborted) return;
      let found = [];
      let own = settings;
      let about = { table: null, summary: null };
      let shown = false;
      let drawn = 0;
      let read = 0;
      const firstClass = () => found.findIndex(({ result }) => result.status === "classified");
      const show = () => {
        shown = true;
        remember("opened", sources[0].sample ? "" : sources[0].name); // to say after a reload what is missing
        update({ models, sources, notice: null, keyWanted: false, ...about, objects: found, settings: own });
        return showObject(Math.max(0, firstClass()));
      };
      const table = sources.length === 1 && sources[0].kind === "table" ? sources[0].text : null;
      const lines = table ? table.split("\n").length : 0; // for the progress of a table: rows that have become objects
      const rowPerObject = table !== null && table.slice(0, 4096).includes("[");
      for await (const { objects, model, timings, options, done, ...more } of readAll(sources, settings, signal)) {
        if (signal.aborted) return;
        found = found.concat(objects.map((object) => ({ ...object, model: object.result.model || model, timings: timings || [] })));
        read += objects.reduce((sum, { curve }) => sum + (rowPerObject ? 1 : curve?.mjd.length || 1), 0);
        about = { ...about, ...more, reading: lines > 0 ? { done: read, total: lines } : { done, total: sources.length } };
        if (options) own = { ...settings, prior: options.prior || settings.prior, coverage: options.coverage || settings.coverage };
        if (!shown) {
          if (firstClass() >= 0 || found.length >= REJECTED) await show();
        } else if (done === sources.length || more.summary || performance.now() - drawn > REDRAW) {
          drawn = performance.now();
          update({ ...about, objects: found });
        }
      }
      if (signal.aborted) return;
      if (found.length === 0) throw new Error("The input holds no objects.");
      if (!shown) await show();
      update({ objects: found, reading: null, busy: false });
    } catch (error) {
      if (!signal.aborted) fail(error, () => open(makeSources, settings), { reading: null, problemSource: sources[0], problemModel: settings.model });
    }
  };

  const showObject = (index) =>
    ask(async () => {
      const { objects, settings } = latest.current;
      const object = objects[index];
      const { metadata = { ...object.curve?.metadata }, view = WHOLE_VIEW, mjd = null } = object.source.linked || {};
      return { index, source: object.source, view, metadata, chosenMjd: mjd, ...(await answerOf(object, settings, metadata)) };
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
        const [answer, over] = await Promise.all([classify(edited, settings), evolution(edited, settings)]);
        return { answer, ...over };
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
      const name = remembered("opened");
      if (!content) {
        await open(() => sourceOfSample(SAMPLES[0][0]));
        if (name) update({ notice: `${name} is no longer here, since this page keeps no input when it is loaded again. Open it again.` });
        return;
      }
      const { light_curve: curve, settings, metadata, view, mjd } = content;
      if (!canBeDrawn(curve)) throw new Error("The link holds no light curve.");
      const linked = { metadata, mjd, view: view && { ...WHOLE_VIEW, ...view, hidden: new Set(view.hidden) } };
      const source = { ...sourceOfCurve(curve.object_id || "linked light curve", curve), linked };
      open(() => source, { ...NO_SETTINGS, ...settings });
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
  const at = steps.findIndex(({ mjd }) => mjd === state.chosenMjd);
  const chosen = at < 0 ? steps.length - 1 : at;
  const step = steps.length > 0 && chosen < steps.length - 1 ? steps[chosen] : null;
  const colors = useMemo(() => new Map(steps.length > 0 ? shownClasses(steps).map(({ name, color }) => [name, color]) : []), [steps]);

  if (state.keyWanted) {
    return html`<${KeyForm} refused=${state.keyRefused} onKey=${() => retry.current()} />`;
  }
  const bar = html`<${InputBar} busy=${state.busy} sample=${source?.sample ? source.name : ""} onSample=${(file) => openNew(() => sourceOfSample(file))} onFiles=${openFiles} onText=${openText} />`;
  const input = state.problemSource;
  const reset = html`<button type="button" onClick=${() => (input === source && object?.curve ? change(NO_SETTINGS, { ...object.curve.metadata }) : open(() => input, NO_SETTINGS))}>
    Use the model’s own settings
  </button>`;
  const wrongSetting =
    state.problem?.errors?.some(({ pointer }) => /^\/(query\/(?!options)|options\/)/.test(pointer)) ||
    (state.problem?.status === 404 && state.problemModel);
  const problem =
    state.problem &&
    html`<${Problem}
      problem=${state.problem}
      source=${wrongSetting ? null : input}
      actions=${wrongSetting ? reset : state.again && html`<button type="button" onClick=${state.again}>Try again</button>`}
      onAnswer=${(option, value) => open(() => withOption(input, option, value))}
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
  const coverage = result.coverage ?? (settings.coverage || description?.prediction_sets?.default); // an unusual result has none
  const shown = step ? { ...result, ...step, coverage, prediction_set: step.prediction_set || undefined, subtype: undefined } : result;
  const { subtype } = shown;
  const typeModel = subtype && models.find(({ name: each, version }) => each === subtype.model.name && version === subtype.model.version);
  const night = step && (step.mjd - firstDetection(points)).toFixed(1);
  const original = object.curve?.metadata || {};
  const name = shortName(result.object_id || "light curve");
  const edited = !equal(metadata, original);
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
      survey=${result.survey || object.curve?.survey}
      model=${model}
      description=${description}
      points=${points}
      total=${isTotal(object.curve)}
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
            total=${isTotal(object.curve)}
          view=${view}
          onView=${(part) => update({ view: { ...latest.current.view, ...part } })}
          until=${step ? step.mjd : Infinity}
          name=${name}
        />`
        }
        ${
          steps.length > 0 &&
          html`<${EvolutionPanel} evolution=${over} steps=${steps} points=${points} view=${view} chosen=${chosen} onChoose=${(value) => update({ chosenMjd: steps[value].mjd })} name=${name} />`
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
          linked=${{
            light_curve: object.curve,
            settings,
            view: { ...view, hidden: [...view.hidden] },
            ...(edited && { metadata }),
            ...(step && { mjd: step.mjd }),
          }}
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

// What this tab of the browser remembers until it is closed, also when the page is loaded again.
function remember(name, value) {
  try {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  } catch {
    // The browser keeps nothing.
  }
}

function remembered(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}
