"""Classification in process, without a server.

    from nightjar_alerts import Classifier

    classifier = Classifier()
    result = classifier.classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
    results = classifier.classify("supernovae.csv")

Models, input validation, batching policy and result fields are those of the service. While worker threads run the
network, the calling thread prepares further light curves and writes results.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, overload
from weakref import WeakSet

from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.core.adapter import ModelInput, TaskAdapter
from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.failures import InferenceFailed, error_of
from nightjar_alerts.core.items import (
    OUTSIDE_DOMAIN,
    Outcome,
    Prediction,
    Read,
    RunResult,
    Skipped,
    curve_of,
    errors_of,
    identity_of,
    item_of,
    outcome_of,
    skipped_outcome,
)
from nightjar_alerts.core.policy import QueueItem, choose
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.serializer import (
    RequestedPrior,
    ResultSerializer,
    evolution_document,
    serializer_of,
)
from nightjar_alerts.inputs import Input, SeveralLightCurves, call_options, evolution_input, read_inputs, read_request
from nightjar_alerts.models.bundle import (
    DEFAULT_BUNDLE,
    MANIFEST,
    PRETRAINED,
    BundleError,
    load_bundle,
    version_key,
)
from nightjar_alerts.models.evolution import history
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.results import Evolution, ModelNames, Result, Results, light_curve_error
from nightjar_alerts.routing import DEFAULT, SURVEY_BUNDLES, Route, may_be_supernova, route

if TYPE_CHECKING:
    from nightjar_alerts.core.load import LoadedModel
    from nightjar_alerts.models.native import Native
    from nightjar_alerts.models.runtime import Provider

BLOCK: Final = 512
"""Number of inputs that are prepared together; batches are made of the inputs of one block."""
FIRST_BLOCK: Final = 128
"""Number of inputs in the first block, which is smaller so that the network starts early."""
WARM_UP_SECONDS: Final = 0.25


class Classifier:
    """Classifies light curves and alerts in this process. Thread-safe; usable after a fork; can be pickled.

    Models are loaded on first use.

    Parameters
    ----------
    model : path of a bundle, or the name of a shipped one (``astro-moe-elasticc``), which then classifies everything.
        By default the models of the service: the default model, and others for surveys that have their own.
    provider : ``cpu`` or ``cuda``; there is no silent fallback.
    threads : number of concurrent inference runs; by default one per core on a CPU.
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
        """Return the names and versions of the models."""
        names = ", ".join(f"{m.bundle.manifest.name} {m.bundle.manifest.version}" for m in self._models.values())
        return f"Classifier({names})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration; another process loads the models again."""
        return _classifier, (self._configuration,)

    def __enter__(self) -> Self:
        """Return the classifier."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads."""
        self.close()

    def close(self) -> None:
        """Stop the threads and drop the models. If the classifier is used again, it loads them again."""
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
        self, data: LightCurve | Packet | Mapping[str, Any] | None = None, /, *, embedding: bool = False,
        prior: RequestedPrior = None, coverage: float | None = None, experts: bool = False, **fields: Any,
    ) -> Result: ...  # fmt: skip
    @overload
    def classify(
        self, data: SeveralLightCurves, /, *, embedding: bool = False, prior: RequestedPrior = None,
        coverage: float | None = None, experts: bool = False, **fields: Any,
    ) -> Results: ...  # fmt: skip
    def classify(
        self,
        data: Any = None,
        /,
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        experts: bool = False,
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
        experts : add the experts that the router chose for the observations to each result, if the model has experts.
        fields : of the light curve (``mjd``, ``flux``, ``flux_err``, ``band``, ...), or options of the reader of
            tables (:class:`nightjar_alerts.TableOptions`).

        Returns
        -------
        One :class:`Result` for one light curve, else :class:`Results` in the order of the input, also for a dictionary
        with ``light_curves``. An invalid light curve among several is ``rejected`` and does not affect the others.

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
        options = call_options(request.options, embedding=embedding, prior=prior, coverage=coverage, experts=experts)
        results = list(chain.from_iterable(_Call(self, options, request.indexed).results(request.inputs)))
        if not request.single:
            return Results(results, request.notes)
        if results[0].status == "rejected":
            raise light_curve_error(results[0].errors)
        return results[0]

    def stream(
        self,
        items: Iterable[Any],
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        experts: bool = False,
    ) -> Iterator[Result]:
        """Yield the results of any number of light curves, alerts or tables, in order, in bounded memory.

        Parameters
        ----------
        items : elements of any type that :meth:`classify` accepts.
        """
        options = call_options({}, embedding=embedding, prior=prior, coverage=coverage, experts=experts)
        for results in self.classify_each(read_request(items, {}).inputs, options):
            yield from results

    def evolution(
        self, data: Any = None, /, *, prior: RequestedPrior = None, coverage: float | None = None, **fields: Any
    ) -> Evolution:
        """Classify one object after each of its detections, from the observations up to then.

        Parameters
        ----------
        data : one light curve or alert, as for :meth:`classify`. None: the keyword arguments are the light curve.
        prior, coverage : as for :meth:`classify`.

        Returns
        -------
        The classification after each detection, or after a sample of more than 100 detections (see
        :func:`nightjar_alerts.models.evolution.history`).

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
        options = call_options(request.options, prior=prior, coverage=coverage)
        curve, survey = evolution_input(request.inputs)
        chosen = self._route(curve, survey, substitute=False)
        steps = history(curve)
        if chosen.outside:
            abstained = {"status": "abstained", "reason": OUTSIDE_DOMAIN, "detail": chosen.outside}
            documents: list[dict[str, Any]] = [abstained] * len(steps.curves)
        else:
            results = _Call(self, options, model=chosen.model).results(steps.curves)
            documents = [result.to_dict() for (result,) in results]
        provenance = serializer_of(chosen.model.bundle, options.prior).provenance
        return Evolution(evolution_document(steps, documents), provenance, curve)

    def classify_each(self, inputs: Iterable[Input], options: Options) -> Iterator[list[Result]]:
        """Yield the results of each input, in order; a packet with several alerts has several results."""
        return _Call(self, options).results(inputs)

    def _route(self, curve: LightCurve | None, survey: str, substitute: bool = True) -> "Route[_Model]":
        if self._is_named:
            return Route(self._default)
        return route(curve, survey, self._models.get, lambda: self._default, substitute)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "nightjar")
            return self._executor


def _require_onnxruntime() -> None:
    from importlib.util import find_spec

    if find_spec("onnxruntime") is None:
        raise ImportError("onnxruntime is not installed: pip install 'nightjar-alerts[onnxruntime]'")


def _bundles(model: str | Path | None) -> dict[str, Path]:
    """Return the folder of each model, by the alias of the model in the service."""
    if model is None:
        return {DEFAULT: DEFAULT_BUNDLE, **SURVEY_BUNDLES}
    manifests = sorted(PRETRAINED.glob(f"*/*/{MANIFEST}"), key=lambda path: version_key(path.parent.name))
    newest = {path.parts[-3]: path.parent for path in manifests}
    if str(model) in newest:
        return {DEFAULT: newest[str(model)]}
    if not Path(model).exists():
        raise BundleError(f"no model {str(model)!r}: it is neither a folder nor one of {', '.join(sorted(newest))}")
    return {DEFAULT: Path(model)}


def _classifier(configuration: Mapping[str, Any]) -> Classifier:
    return Classifier(**configuration)


_INSTANCES: "WeakSet[Classifier]" = WeakSet()
_ABANDONED: list[object] = []
"""Sessions and threads of the parent process. They do not work after a fork, and deleting them might hang."""


def _after_fork() -> None:
    for classifier in list(_INSTANCES):
        _ABANDONED.append(classifier._executor)
        _ABANDONED.extend(model.loaded for model in classifier._models.values())
        classifier._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Model:
    """Bundle whose session is opened on first use."""

    def __init__(self, path: Path, provider: "Provider", native: "Native") -> None:
        self._path, self._provider, self._native = path, provider, native
        self.bundle = load_bundle(path)
        self.adapter = TaskAdapter(self.bundle.manifest)
        self.forget()

    def forget(self) -> None:
        """Drop the session; the next use opens a new one."""
        self.loaded: LoadedModel | None = None
        self._lock = threading.Lock()

    def open(self) -> "LoadedModel":
        """Return the verified and warmed-up model; load it on first use."""
        from nightjar_alerts.core.load import load_model

        with self._lock:
            if self.loaded is None:
                self.loaded = load_model(self._path, self._provider, self._native, WARM_UP_SECONDS)
            return self.loaded

    def predict(self, inputs: Sequence[ModelInput]) -> list[RunResult]:
        """Run the network. A failed batch is bisected, so that one light curve does not affect the others."""
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
class _PendingResult:
    """Result of one light curve or alert while it is computed.

    Attributes
    ----------
    route : models of the light curve.
    identity : fields of the result that identify the object or alert.
    errors : errors of an invalid light curve; None for an alert, whose result has no such list.
    outcome : outcome of the first model.
    document, provenance : fields of the complete result, and its model.
    """

    route: Route[_Model]
    identity: Mapping[str, object]
    curve: LightCurve | None
    errors: Sequence[FieldError] | None
    outcome: Outcome | None = None
    document: dict[str, Any] | None = None
    provenance: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(QueueItem):
    """Light curve that waits for its batch."""

    input: ModelInput
    pending: _PendingResult


_Waiting = dict[_Model, list[_Entry]]


class _Batch(NamedTuple):
    """Batch and the future of its results."""

    entries: Sequence[_Entry]
    future: Future[list[RunResult]]


class _Call:
    """Pipeline of one call: prepares a block of inputs while the network runs on the previous block.

    Parameters
    ----------
    indexed : whether error pointers begin with ``/light_curves/INDEX``.
    model : model for all light curves; None to route each.
    """

    def __init__(
        self, classifier: Classifier, options: Options, indexed: bool = False, model: _Model | None = None
    ) -> None:
        self._classifier, self._options, self._indexed, self._model = classifier, options, indexed, model
        self._serializers: dict[tuple[_Model, _Model | None], ResultSerializer] = {}
        self._running: deque[_Batch] = deque()
        self._read = 0
        self._names = ModelNames()

    def results(self, inputs: Iterable[Input]) -> Iterator[list[Result]]:
        """Yield the results of each input, in order. Raises PriorError, for the default model before any result."""
        self._serializer(self._model or self._classifier._default, None)
        remaining, blocks = iter(inputs), deque[list[list[_PendingResult]]]()
        try:
            while (block := list(islice(remaining, BLOCK if self._read else FIRST_BLOCK))) or self._running:
                before = len(self._running)
                if block:
                    blocks.append(self._prepare(block))
                self._collect(before)
                while blocks and all(
                    pending.document is not None for pending_results in blocks[0] for pending in pending_results
                ):
                    for pending_results in blocks.popleft():
                        yield [self._result(pending) for pending in pending_results]
        finally:
            for batch in self._running:
                batch.future.cancel()

    def _prepare(self, block: Sequence[Input]) -> list[list[_PendingResult]]:
        """Decode, route and featurise inputs, and start their batches."""
        start = self._read if self._indexed else None
        self._read += len(block)
        waiting: _Waiting = {}
        results = [[self._start_result(read, waiting) for read in reads] for reads in read_inputs(block, start)]
        self._write(
            [pending for pending_results in results for pending in pending_results if pending.outcome is not None]
        )
        self._submit(waiting)
        return results

    def _start_result(self, read: Read, waiting: _Waiting) -> _PendingResult:
        """Route and featurise an input; its outcome is set if no network can classify it."""
        (item, survey), curve = item_of(read), curve_of(read)
        chosen = self._classifier._route(curve, survey) if self._model is None else Route(self._model)
        pending = _PendingResult(chosen, identity_of(read), curve, errors_of(read))
        if chosen.outside:
            pending.outcome = skipped_outcome(Skipped("abstained", OUTSIDE_DOMAIN, chosen.outside))
        elif isinstance(item, LightCurve):
            pending.outcome = _featurise(pending, item, chosen.model, waiting)
        else:
            pending.outcome = skipped_outcome(item)
        return pending

    def _submit(self, waiting: _Waiting) -> None:
        """Divide light curves into batches of similar length and submit them to the threads."""
        pool, threads = self._classifier._pool(), self._classifier._threads
        for model, entries in waiting.items():
            cost, limits = model.open().cost, self._classifier._limits.shared(len(entries), threads)
            entries.sort(key=lambda entry: entry.length, reverse=True)
            while entries:
                size = len(choose(entries[: limits.max_items], 0.0, cost, limits))
                batch, entries = entries[:size], entries[size:]
                self._running.append(_Batch(batch, pool.submit(model.predict, [entry.input for entry in batch])))

    def _collect(self, count: int) -> None:
        """Wait for the first ``count`` batches; write results, or pass light curves to the model of subtypes."""
        waiting: _Waiting = {}
        done: list[_PendingResult] = []
        for _ in range(count):
            entries, future = self._running.popleft()
            for entry, result in zip(entries, future.result(), strict=True):
                pending, subtypes = entry.pending, entry.pending.route.subtypes
                assert pending.curve is not None
                outcome = outcome_of(entry.input, pending.curve, result)
                if pending.outcome is not None:
                    pending.outcome = replace(pending.outcome, subtype=outcome)
                else:
                    pending.outcome = outcome
                    probabilities = None if outcome.prediction is None else outcome.prediction.outputs["probabilities"]
                    if (
                        subtypes is not None
                        and probabilities is not None
                        and may_be_supernova(probabilities, pending.route.model.bundle.manifest.classes)
                        and _featurise(pending, pending.curve, subtypes, waiting) is None
                    ):
                        continue
                done.append(pending)
        self._write(done)
        self._submit(waiting)

    def _serializer(self, model: _Model, subtypes: _Model | None) -> ResultSerializer:
        if (model, subtypes) not in self._serializers:
            bundle = None if subtypes is None else subtypes.bundle
            self._serializers[model, subtypes] = serializer_of(model.bundle, self._options.prior, bundle)
        return self._serializers[model, subtypes]

    def _write(self, pending_results: Sequence[_PendingResult]) -> None:
        """Write results, grouped by their models."""
        groups: dict[tuple[_Model, _Model | None], list[_PendingResult]] = {}
        for pending in pending_results:
            groups.setdefault((pending.route.model, pending.route.subtypes), []).append(pending)
        for models, group in groups.items():
            serializer = self._serializer(*models)
            documents = serializer.results(
                [pending.outcome for pending in group if pending.outcome is not None],
                [pending.identity for pending in group],
                [pending.errors for pending in group],
                self._options.embedding,
                self._options.coverage,
                self._options.experts,
            )
            for pending, document in zip(group, documents, strict=True):
                pending.document, pending.provenance = document, serializer.provenance

    def _result(self, pending: _PendingResult) -> Result:
        assert pending.document is not None
        assert pending.provenance is not None
        return self._names(Result(pending.document, pending.provenance, pending.curve))


def _featurise(pending: _PendingResult, curve: LightCurve, model: _Model, waiting: _Waiting) -> Outcome | None:
    """Queue a light curve for its batch; return the outcome if the network cannot classify it."""
    try:
        model_input = model.adapter.prepare(curve)
    except LightCurveError as error:  # valid, but not for this network
        return Outcome("abstained", reason=error.reason, detail=str(error))
    waiting.setdefault(model, []).append(_Entry(len(model_input), 0.0, None, model_input, pending))
    return None
