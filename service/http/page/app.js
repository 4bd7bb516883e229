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
import { percent, Probabilities } from "./probabilities.js";
import { Problem } from "./problem.js";
import { SAMPLES } from "./samples.js";
import { get, ServiceError, setApiKey } from "./service.js";
import { TakeAway } from "./take_away.js";

const NO_SETTINGS = { model: "", prior: "", coverage: null };
const WHOLE_VIEW = { magnitudes: false, hidden: new Set(), domain: null, period: null, folded: false };
const REDRAW = 300; // ms between updates of the table of objects
const TYPING = 250; // ms after the last change before the service is asked again

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
          update({
            table: null,
            summary: null,
            ...latest.current.pendingTable,
            pendingTable: null,
            keyWanted: false,
            ...change,
            objects: found,
            settings: own,
          });
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
      open(() => sourceOfCurve(content.light_curve.object_id || "linked light curve", content.light_curve), {
        ...NO_SETTINGS,
        ...content.settings,
      });
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
    state.problem &&
    html`<${Problem} problem=${state.problem} source=${wrongSetting ? null : source} actions=${wrongSetting && source && reset} onAnswer=${(option, value) => open(() => withOption(source, option, value))} />`;
  if (!object || !answer || (state.problem && !wrongSetting)) return html`${bar}${problem}`;

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
    ${
      objects.length > 1 &&
      html`<${ObjectTable}
      objects=${objects}
      index=${index}
      reading=${state.reading}
      onObject=${showObject}
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
      points=${points}
      step=${step && { ...step, night }}
      source=${source}
      text=${source.text}
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
        ${result.points_per_band && html`<${Account} result=${result} model=${model} description=${description} points=${points} />`}
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
