"""Classification in process, without a server.

    from nightjar_alerts import Classifier

    classifier = Classifier()
    result = classifier.classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
    results = classifier.classify("supernovae.csv")

The models, the checks of the input, the batching policy and the fields of a result are those of the service. Several
threads work on one call: while one of them waits for the network, another prepares light curves.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, overload
from weakref import WeakSet

import numpy as np

from nightjar_alerts.inputs import Input, decode_bodies, read_request
from nightjar_alerts.models.alerts.envelopes import read_packet
from nightjar_alerts.models.alerts.packet import Packet, PacketError
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, PRETRAINED, SURVEY_BUNDLES, load_bundle
from nightjar_alerts.models.evolution import history
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.results import Evolution, Result, Results
from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.answers.serializer import (
    RequestedPrior,
    ResultSerializer,
    curve_identity,
    evolution_document,
    packet_identity,
)
from nightjar_alerts.service.engine.adapter import ModelInput, TaskAdapter
from nightjar_alerts.service.engine.batch import Prediction, RunResult
from nightjar_alerts.service.engine.errors import InferenceFailed, error_of
from nightjar_alerts.service.engine.policy import QueueItem, plan
from nightjar_alerts.service.inference import (
    MIN_SUPERNOVA_PROBABILITY,
    Item,
    Outcome,
    Skipped,
    outcome_of,
    outside_domain,
    skipped_outcome,
)
from nightjar_alerts.service.lightcurves.errors import InvalidLightCurve

if TYPE_CHECKING:
    from nightjar_alerts.models.native import Native
    from nightjar_alerts.models.runtime import Provider
    from nightjar_alerts.service.engine.load import LoadedModel

PORTION: Final = 128
"""Inputs that a thread prepares, and results that it writes, at a time. Between runs of the network, which leave the
processor's caches cold, many small portions would take longer."""
PREPARED: Final = 512
"""Prepared light curves among which batch mates are looked for."""
FEW_PREPARED: Final = 64
"""Prepared light curves below which every thread prepares more."""
CHUNK: Final = 4096
"""Inputs of a stream that are in memory at the same time."""
WARM_UP_SECONDS: Final = 0.25

DEFAULT: Final = "default"


class Classifier:
    """Classifies light curves and alerts in this process. Thread-safe; usable after a fork; can be pickled.

    Models are opened when they are first needed.

    Parameters
    ----------
    model : path of a bundle, or the name of a shipped one (``astro-moe-elasticc``), which then classifies everything.
        By default the models of the service: the default one, and another for surveys that have their own.
    provider : ``cpu`` or ``cuda``; there is no silent fallback.
    threads : number of inference runs at the same time; default: one per core on a CPU.
    native : use of the native kernels: ``auto``, ``on`` or ``off``.

    Raises
    ------
    BundleError
        If the model is missing or not valid.
    ImportError
        If onnxruntime is not installed.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        provider: "Provider" = "cpu",
        threads: int | None = None,
        native: "Native" = "auto",
    ) -> None:
        _require_onnxruntime()
        if threads is not None and threads < 1:
            raise ValueError("threads must be at least 1")
        self._configuration: dict[str, Any] = {
            "model": model, "provider": provider, "threads": threads, "native": native,
        }  # fmt: skip
        self._models = {alias: _Model(path, provider, native) for alias, path in _bundles(model).items()}
        self._is_named = model is not None
        self._default = self._models[DEFAULT]
        self._start()
        _INSTANCES.add(self)

    def _start(self) -> None:
        from nightjar_alerts.service.engine.engine import engine_options

        options = engine_options(self._configuration["provider"], workers=self._configuration["threads"] or 0)
        self._threads, self._limits = options.workers, options.limits
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        for model in self._models.values():
            model.forget()

    def __repr__(self) -> str:
        """Return the models of the classifier."""
        names = ", ".join(f"{m.bundle.manifest.name} {m.bundle.manifest.version}" for m in self._models.values())
        return f"Classifier({names})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration: another process opens the models again."""
        return _classifier, (self._configuration,)

    def __enter__(self) -> Self:
        """Return the classifier."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads."""
        self.close()

    def close(self) -> None:
        """Stop the threads and drop the models. The classifier may be used again, and then opens them again."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        for model in self._models.values():
            model.forget()

    @property
    def version(self) -> str:
        """Version of the default model."""
        return self._default.bundle.manifest.version

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the default model, in the order of the probabilities."""
        return tuple(self._default.bundle.manifest.classes.names)

    @overload
    def classify(
        self, data: LightCurve, /, *, embedding: bool = False, prior: RequestedPrior = None,
        coverage: float | None = None,
    ) -> Result: ...  # fmt: skip
    @overload
    def classify(
        self, data: Any = None, /, *, embedding: bool = False, prior: RequestedPrior = None,
        coverage: float | None = None, **fields: Any,
    ) -> Any: ...  # fmt: skip
    def classify(
        self,
        data: Any = None,
        /,
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        **fields: Any,
    ) -> Result | Results:
        """Classify light curves or alerts.

        Parameters
        ----------
        data : a dictionary like the body of ``/v1/classify``, a :class:`LightCurve`, packets as bytes, a table of
            pandas, pyarrow or astropy, a path, or a list of these. None: the keyword arguments are the light curve.
        embedding : add the network's embedding to each result.
        prior : class shares that the results assume: a name, or weights by class; default: those of the model.
        coverage : of prediction sets, above 0 and below 1.
        fields : of the light curve (``mjd``, ``flux``, ``flux_err``, ``band``, ...), or options of the reader of
            tables (:class:`nightjar_alerts.TableOptions`).

        Returns
        -------
        One :class:`Result` for one light curve, else :class:`Results` in the order of the input. An invalid light
        curve among several is ``rejected`` and harms no other.

        Raises
        ------
        LightCurveError
            If a single light curve is invalid; its ``pointer`` names the value.
        PriorError
            If a model cannot use the prior.
        TableError
            If a table cannot be read; :class:`TableQuestion` if it can be read in two ways.
        """
        request = read_request(data, fields)
        options = _Options.of(request.options, embedding=embedding, prior=prior, coverage=coverage)
        results = self._classify(list(request.inputs), options, request.single, request.indexed)
        return results[0][0] if request.single else Results(chain.from_iterable(results), request.notes)

    def stream(
        self,
        items: Iterable[Any],
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
    ) -> Iterator[Result]:
        """Yield the results of any number of light curves, alerts or tables, in order, in bounded memory.

        Parameters
        ----------
        items : whose elements may be whatever :meth:`classify` accepts.
        """
        options = _Options(embedding, prior, coverage)
        inputs = iter(read_request(items, {}).inputs)
        while chunk := list(islice(inputs, CHUNK)):
            yield from chain.from_iterable(self._classify(chunk, options))

    def evolution(
        self, data: Any = None, /, *, prior: RequestedPrior = None, coverage: float | None = None, **fields: Any
    ) -> Evolution:
        """Classify one object as it was known after each of its detections.

        Parameters
        ----------
        data : one light curve or alert, as for :meth:`classify`. None: the keyword arguments are the light curve.
        prior, coverage : as for :meth:`classify`.

        Returns
        -------
        The classification after each detection; of more than 100 detections a sample, see
        :func:`nightjar_alerts.models.evolution.history`.

        Raises
        ------
        LightCurveError
            If the light curve is invalid, or the alert has none.
        PriorError
            If the model cannot use the prior.
        ValueError
            For several light curves or alerts.
        """
        request = read_request(data, fields)
        options = _Options.of(request.options, prior=prior, coverage=coverage)
        reads = list(chain.from_iterable(_decode(list(request.inputs), None)))
        if len(reads) != 1:
            raise ValueError(f"evolution takes one light curve or alert, not {len(reads)}")
        curve, survey = _item(reads[0])
        if isinstance(curve, LightCurveError):
            raise curve
        if isinstance(curve, Skipped):
            raise LightCurveError("", curve.reason, curve.detail or curve.reason)
        model, _, item = self._route(curve, survey)
        steps = history(curve)
        if isinstance(item, Skipped):
            abstained = {"status": item.status, "reason": item.reason, "detail": item.detail}
            documents: list[dict[str, Any]] = [abstained] * len(steps.curves)
        else:
            results = self._classify(steps.curves, options, model=model)
            documents = [result.to_dict() for (result,) in results]
        provenance = model.serializer(options.prior).provenance
        return Evolution(evolution_document(steps, documents), provenance, curve)

    def classify_each(self, inputs: Sequence[Input], options: Mapping[str, Any]) -> list[list[Result]]:
        """Return the results of each input, several where it is a packet of several alerts."""
        return self._classify(inputs, _Options.of(options))

    def _classify(
        self,
        inputs: Sequence[Input],
        options: "_Options",
        raises: bool = False,
        indexed: bool = False,
        model: "_Model | None" = None,
    ) -> list[list[Result]]:
        """Return the results of each input; ``model`` classifies all of them if it is given."""
        for each in self._models.values() if model is None else [model]:  # raises before anything is classified
            each.serializer(options.prior)
        call = _Call(self, inputs, options, indexed, model)
        helpers = min(self._threads, len(inputs)) - 1
        futures = [self._pool().submit(call.work) for _ in range(helpers)]
        try:
            call.work()
        finally:
            call.stop()
            for future in futures:
                if not future.cancel():
                    future.result()
        return call.finish(raises)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max(1, self._threads - 1), "nightjar")
            return self._executor

    def _route(self, item: Item, survey: str) -> "tuple[_Model, _Model | None, Item]":
        """Return the model for an item, the model of its supernova types if any, and the item or why it is skipped.

        The rules are those of :mod:`service.registry.router`.
        """
        if self._is_named:
            return self._default, None, item
        survey = (item.survey if isinstance(item, LightCurve) else "") or survey
        model, subtypes = self._models.get(survey, self._default), None
        if model.only_supernovae and not self._default.only_supernovae:
            model, subtypes = self._default, model
        if not isinstance(item, LightCurve):
            return model, subtypes, item
        skipped = outside_domain(item, model.bundle.manifest)
        if skipped is None:
            return model, subtypes, item
        for other in self._models.values():
            manifest = other.bundle.manifest
            if other is not model and manifest.domain is not None and outside_domain(item, manifest) is None:
                return other, None, item
        return model, subtypes, skipped


def _require_onnxruntime() -> None:
    from importlib.util import find_spec

    if find_spec("onnxruntime") is None:
        raise ImportError("onnxruntime is not installed: pip install 'nightjar-alerts[onnxruntime]'")


def _bundles(model: str | Path | None) -> dict[str, Path]:
    """Return the folder of each model, by the alias under which the service has it."""
    if model is None:
        return {DEFAULT: DEFAULT_BUNDLE, **SURVEY_BUNDLES}
    if isinstance(model, str) and (versions := _versions(PRETRAINED / model)):
        return {DEFAULT: versions[-1]}
    return {DEFAULT: Path(model)}


def _versions(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() and folder.parent == PRETRAINED else ()
    return sorted(
        (path for path in found if (path / "manifest.json").is_file()),
        key=lambda path: [int(part) for part in path.name.split(".")],
    )


def _classifier(configuration: Mapping[str, Any]) -> Classifier:
    return Classifier(**configuration)


_INSTANCES: "WeakSet[Classifier]" = WeakSet()
_ABANDONED: list[object] = []
"""Sessions and threads of a parent process: they do not work after a fork, and ending them might hang."""


def _after_fork() -> None:
    for classifier in list(_INSTANCES):
        _ABANDONED.append(classifier._executor)
        _ABANDONED.extend(model.loaded for model in classifier._models.values())
        classifier._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class _Options:
    embedding: bool = False
    prior: RequestedPrior = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a coverage that is no probability, as ``/v1/classify`` does."""
        if self.coverage is not None and not 0 < self.coverage < 1:
            raise ValueError(f"coverage is {self.coverage}; it must be above 0 and below 1")

    @classmethod
    def of(cls, named: Mapping[str, Any], **default: Any) -> "_Options":
        """Return the options of a body, and those of the call where the body names none."""
        if unknown := set(named) - {each.name for each in fields(cls)}:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        return cls(**(default | dict(named)))


class _Model:
    """A bundle, opened when a light curve needs it."""

    def __init__(self, path: Path, provider: "Provider", native: "Native") -> None:
        self._path, self._provider, self._native = path, provider, native
        self.bundle = load_bundle(path)
        self.adapter = TaskAdapter(self.bundle.manifest)
        self._is_supernova = np.array(self.bundle.manifest.classes.supernovae)
        self.only_supernovae = bool(self._is_supernova.all())
        self._serializers: dict[tuple[str | None, _Model | None], ResultSerializer] = {}
        self.forget()

    def forget(self) -> None:
        """Drop the session; it is opened again when it is needed."""
        self.loaded: LoadedModel | None = None
        self._lock = threading.Lock()

    def open(self) -> "LoadedModel":
        """Return the session, verified and warm."""
        from nightjar_alerts.service.engine.load import load_model

        with self._lock:
            if self.loaded is None:
                self.loaded = load_model(self._path, self._provider, self._native, WARM_UP_SECONDS)
            return self.loaded

    def serializer(self, prior: RequestedPrior, subtypes: "_Model | None" = None) -> ResultSerializer:
        """Return the serializer of results under a prior. Raises PriorError."""
        bundle = None if subtypes is None else subtypes.bundle
        if prior is not None and not isinstance(prior, str):
            return ResultSerializer(self.bundle, prior=prior, subtypes=bundle)
        if (prior, subtypes) not in self._serializers:
            self._serializers[prior, subtypes] = ResultSerializer(self.bundle, prior=prior, subtypes=bundle)
        return self._serializers[prior, subtypes]

    def may_be_supernova(self, outcome: Outcome) -> bool:
        """Return True if the model of supernova types has to classify the light curve, too."""
        if outcome.prediction is None:
            return False
        probabilities = outcome.prediction.outputs["probabilities"]
        return float(probabilities[self._is_supernova].sum()) >= MIN_SUPERNOVA_PROBABILITY

    def predict(self, inputs: Sequence[ModelInput]) -> list[RunResult]:
        """Run the network. A batch that fails is bisected, so that one light curve never costs its batch mates."""
        try:
            outputs = self.open().graph(self.adapter.assemble(inputs))
            rows = self.adapter.split(outputs, len(inputs))
        except Exception as error:  # the runtime's exceptions share no useful base class
            if len(inputs) == 1:
                return [error_of(error)]
            middle = len(inputs) // 2
            return self.predict(inputs[:middle]) + self.predict(inputs[middle:])
        return [InferenceFailed() if row is None else Prediction(row, len(inputs), 0.0, 0.0, 0.0) for row in rows]


@dataclass(slots=True, eq=False)
class _Slot:
    """Place of one result.

    Attributes
    ----------
    index, number : of the input, and of the alert in it.
    model, subtypes : that classifies it, and that adds the type of a supernova.
    identity : members of the result that identify it.
    errors : of an invalid light curve; None for an alert, whose result has no such list.
    outcome : of the model, while the model of types runs.
    """

    index: int
    number: int
    model: _Model
    subtypes: _Model | None
    identity: Mapping[str, object]
    curve: LightCurve | None = None
    errors: Sequence[FieldError] | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(QueueItem):
    """A light curve that waits for its batch."""

    model: _Model
    input: ModelInput
    slot: _Slot


class _Call:
    """One call: threads take portions of the inputs to prepare, and batches of the prepared light curves to run.

    Every attribute is guarded by one condition.
    """

    def __init__(
        self,
        classifier: Classifier,
        inputs: Sequence[Input],
        options: _Options,
        indexed: bool,
        model: _Model | None = None,
    ) -> None:
        self._classifier, self._inputs, self._options, self._indexed = classifier, inputs, options, indexed
        self._model = model
        self._documents: list[list[tuple[dict[str, Any], _Slot] | None]] = [[] for _ in inputs]
        self._next = self._preparing = self._active = 0
        self._unwritten: list[tuple[_Slot, Outcome]] = []
        self._waiting: dict[_Model, list[_Entry]] = {}
        self._condition = threading.Condition()
        self._stopped = False

    def work(self) -> None:
        """Work until nothing is left; called by several threads."""
        try:
            while (task := self._next_task()) is not None:
                task()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let the other threads end after their current task."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def finish(self, raises: bool) -> list[list[Result]]:
        """Return the results of each input. If ``raises``, a single invalid light curve raises LightCurveError."""
        self._write_all(self._unwritten)
        results: list[list[Result]] = []
        first: _Model | None = None
        for written in self._documents:
            results.append([])
            for each in written:
                assert each is not None
                document, slot = each
                first = first or slot.model
                model = slot.model.serializer(self._options.prior).provenance
                if slot.model is not first:
                    document["model"] = model
                results[-1].append(Result(document, model, slot.curve))
        if raises and results[0] and results[0][0].status == "rejected":
            raise _light_curve_error(results[0][0])
        return results

    def _next_task(self) -> Callable[[], None] | None:
        with self._condition:
            while not self._stopped:
                waiting = sum(map(len, self._waiting.values()))
                is_left = self._next < len(self._inputs)
                if is_left and (waiting < FEW_PREPARED or (waiting < PREPARED and not self._preparing)):
                    start, self._next = self._next, min(self._next + PORTION, len(self._inputs))
                    self._preparing += 1
                    self._active += 1
                    return partial(self._prepare, start, self._next)
                if waiting:
                    model = max(self._waiting, key=lambda model: len(self._waiting[model]))
                    self._active += 1
                    return partial(self._run, model, self._take(model))
                if not self._active:
                    return None
                self._condition.wait()
            return None

    def _done(self, entries: Sequence[_Entry]) -> None:
        """End a task that has prepared light curves."""
        for model in {entry.model for entry in entries}:
            model.open()  # outside of the lock: it may take a second
        with self._condition:
            for entry in entries:
                self._waiting.setdefault(entry.model, []).append(entry)
            self._active -= 1
            self._condition.notify_all()

    def _take(self, model: _Model) -> list[_Entry]:
        """Remove and return the next batch."""
        entries = self._waiting[model]
        window = entries[:PREPARED]
        limits, workers = self._classifier._limits, self._classifier._threads
        chosen = plan(window, len(entries), 0.0, model.open().cost, limits, workers).batch
        batch = [window[index] for index in chosen]
        taken = set(chosen)
        self._waiting[model] = [entry for index, entry in enumerate(entries) if index not in taken]
        return batch

    def _prepare(self, start: int, end: int) -> None:
        """Decode, route and featurise inputs."""
        entries: list[_Entry] = []
        skipped: list[tuple[_Slot, Outcome]] = []
        decoded = _decode(self._inputs[start:end], start if self._indexed else None)
        for index, items in zip(range(start, end), decoded, strict=True):
            self._documents[index] = [None] * len(items)
            for number, item in enumerate(items):
                slot, model_input = self._place(index, number, item)
                if isinstance(model_input, Outcome):
                    skipped.append((slot, model_input))
                else:
                    entries.append(_Entry(len(model_input), 0.0, None, slot.model, model_input, slot))
        with self._condition:
            self._preparing -= 1
            self._unwritten += skipped
        self._done(entries)

    def _place(self, index: int, number: int, read: "_Read") -> tuple[_Slot, ModelInput | Outcome]:
        """Choose the model of an input; return its place among the results, and its model input or its outcome."""
        item, survey = _item(read)
        model, subtypes, item = (
            self._classifier._route(item, survey) if self._model is None else (self._model, None, item)
        )
        curve = read.curve if isinstance(read, Packet) else read if isinstance(read, LightCurve) else None
        errors = None if isinstance(read, Packet | PacketError) else getattr(read, "errors", ())
        slot = _Slot(index, number, model, subtypes, _identity(read), curve, errors)
        if not isinstance(item, LightCurve):
            return slot, skipped_outcome(item)
        try:
            return slot, model.adapter.prepare(item)
        except LightCurveError as error:  # valid, but not for this network
            return slot, Outcome("abstained", reason=error.reason, detail=str(error))

    def _run(self, model: _Model, batch: Sequence[_Entry]) -> None:
        """Run the network, and write results or send them on to the model of types."""
        entries: list[_Entry] = []
        done: list[tuple[_Slot, Outcome]] = []
        for entry, result in zip(batch, model.predict([entry.input for entry in batch]), strict=True):
            slot = entry.slot
            assert slot.curve is not None
            outcome = outcome_of(entry.input, slot.curve, result)
            if slot.outcome is not None:
                outcome = replace(slot.outcome, subtype=outcome)
            elif slot.subtypes is not None and slot.model.may_be_supernova(outcome):
                try:
                    model_input = slot.subtypes.adapter.prepare(slot.curve)
                except LightCurveError:  # without a point in the bands of that model
                    pass
                else:
                    slot.outcome = outcome
                    entries.append(_Entry(len(model_input), 0.0, None, slot.subtypes, model_input, slot))
                    continue
            done.append((slot, outcome))
        with self._condition:
            self._unwritten += done
            done = []
            if len(self._unwritten) >= PORTION:
                done, self._unwritten = self._unwritten, []
        self._write_all(done)
        self._done(entries)

    def _write_all(self, done: Sequence[tuple[_Slot, Outcome]]) -> None:
        """Write results, those of the same models together."""
        groups: dict[tuple[_Model, _Model | None], list[tuple[_Slot, Outcome]]] = {}
        for slot, outcome in done:
            groups.setdefault((slot.model, slot.subtypes), []).append((slot, outcome))
        for pairs in groups.values():
            self._write([slot for slot, _ in pairs], [outcome for _, outcome in pairs])

    def _write(self, slots: Sequence[_Slot], outcomes: Sequence[Outcome]) -> None:
        """Write the results of light curves with the same models."""
        options = self._options
        identities, errors = [slot.identity for slot in slots], [slot.errors for slot in slots]
        serializer = slots[0].model.serializer(options.prior, slots[0].subtypes)
        documents = serializer.results(outcomes, identities, errors, options.embedding, options.coverage)
        for slot, document in zip(slots, documents, strict=True):
            self._documents[slot.index][slot.number] = (document, slot)


_Read = LightCurve | InvalidLightCurve | Packet | PacketError


def _decode(inputs: Sequence[Input], start: int | None) -> list[Sequence[_Read]]:
    """Decode inputs: every light curve, or every alert of a packet, or the errors of either.

    Parameters
    ----------
    start : index of the first input in its list; None if errors point into each light curve.
    """
    # isinstance is slow for abstract classes such as Mapping, so that dict comes first.
    numbered = [(index, each) for index, each in enumerate(inputs, start or 0) if isinstance(each, dict | Mapping)]
    parents = ["" if start is None else f"/light_curves/{index}" for index, _ in numbered]
    bodies = iter(decode_bodies([body for _, body in numbered], parents))
    return [
        [next(bodies)]
        if isinstance(each, dict)
        else read_packet(each)
        if isinstance(each, bytes)
        else [next(bodies) if isinstance(each, Mapping) else each]
        for each in inputs
    ]


def _item(read: _Read) -> tuple[Item, str]:
    """Return what the data plane takes, and the survey that chooses the model."""
    if isinstance(read, PacketError):
        return Skipped("rejected", read.reason, read.detail), read.survey or "unknown"
    if isinstance(read, Packet):
        return read.curve or Skipped("abstained", read.reason or "", read.detail), read.survey or "unknown"
    return read, ""


def _identity(read: _Read) -> dict[str, Any]:
    """Return the members of a result that identify its light curve or alert, as the service writes them."""
    if isinstance(read, PacketError):
        return {"survey": read.survey or "unknown", "schema_version": "unknown", "alert_id": "", "object_id": ""}
    if isinstance(read, Packet):
        return dict(packet_identity(read))
    return curve_identity(read)


def _light_curve_error(result: Result) -> LightCurveError:
    first = result.errors[0]
    error = LightCurveError(first["pointer"], first["reason"], f"{first['pointer'].lstrip('/')}: {first['detail']}")
    for other in result.errors[1:]:
        error.add_note(f"{other['pointer'].lstrip('/')}: {other['detail']}")
    return error
