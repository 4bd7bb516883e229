"""Classification in process, without a server.

    from nightjar_alerts import Classifier

    classifier = Classifier()
    result = classifier.classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
    results = classifier.classify("supernovae.csv")

Models, input validation, routing, batching policy and result fields are those of the service: both use
:mod:`nightjar_alerts.core`. While worker threads run the network, the calling thread prepares further light curves and
writes results.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, overload
from weakref import WeakSet

from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.core.adapter import Adapter, ModelInput
from nightjar_alerts.core.classify import Steps, classify, overlapped
from nightjar_alerts.core.items import Outcome, Read, curve_of, errors_of, identity_of, item_of
from nightjar_alerts.core.machine import batch_limits, default_workers
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.runner import PendingRuns, ThreadRunner
from nightjar_alerts.core.serializer import (
    RequestedPrior,
    ResultSerializer,
    evolution_document,
    serialize_all,
    serializer_of,
)
from nightjar_alerts.inputs import Input, SeveralLightCurves, call_options, evolution_input, read_inputs, read_request
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, BundleError, load_bundle, pretrained_bundles
from nightjar_alerts.models.evolution import history
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.results import Evolution, ModelNames, Result, Results, light_curve_error
from nightjar_alerts.routing import DEFAULT, SURVEY_BUNDLES, Route, route

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
        """Start a runner, whose threads begin with the first run, and drop the models."""
        provider, threads = self._configuration["provider"], self._configuration["threads"]
        self._runner = ThreadRunner(threads or default_workers(provider), batch_limits(provider))
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
        runner = self._runner
        self._start()
        runner.close()

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
        ModelFailedError
            If a model fails every run, such as on a GPU that was lost: restart Python.
        TableError
            If a table cannot be read; :class:`TableQuestion` if it can be read in two ways.
        """
        request = read_request(data, fields)
        options = call_options(request.options, embedding=embedding, prior=prior, coverage=coverage, experts=experts)
        results = list(chain.from_iterable(self._classify_each(request.inputs, options, indexed=request.indexed)))
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
        items : elements of any type that :meth:`classify` accepts. Some hundred are taken before the first result is
            yielded, so arrays must not be changed after they were passed on.
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
        ModelFailedError
            As :meth:`classify`.
        ValueError
            For several light curves or alerts.
        """
        request = read_request(data, fields)
        options = call_options(request.options, prior=prior, coverage=coverage)
        curve, survey = evolution_input(request.inputs)
        chosen = self._route(curve, survey, substitute=False)
        steps = history(curve)
        each = self._classify_each(steps.curves, options, chosen)
        found = [result.fields for result in chain.from_iterable(each)]
        provenance = serializer_of(chosen.model.bundle, options.prior).provenance
        return Evolution(evolution_document(steps, found), provenance, curve)

    def classify_each(self, inputs: Iterable[Input], options: Options) -> Iterator[list[Result]]:
        """Yield the results of each input, in order; a packet with several alerts has several results."""
        return self._classify_each(inputs, options)

    def _classify_each(
        self,
        inputs: Iterable[Input],
        options: Options,
        chosen: "Route[_Model] | None" = None,
        indexed: bool = False,
    ) -> Iterator[list[Result]]:
        """Yield the results of each input, in order. Raises PriorError, for the default model before any result.

        Parameters
        ----------
        chosen : models of every light curve; None to route each.
        indexed : whether error pointers begin with ``/light_curves/INDEX``.
        """
        serializers, names = _serializers(options), ModelNames()
        serializers(self._default if chosen is None else chosen.model, None)
        blocks = (
            self._classify_block(block, start if indexed else None, options, serializers, chosen)
            for start, block in _blocks(inputs)
        )
        for results in chain.from_iterable(overlapped(blocks)):
            yield [names(result) for result in results]

    def _classify_block(
        self,
        block: Sequence[Input],
        start: int | None,
        options: Options,
        serializers: "_Serializers",
        chosen: "Route[_Model] | None",
    ) -> Steps[list[list[Result]]]:
        """Return the results of each input of a block."""
        alerts = read_inputs(block, start)
        reads = list(chain.from_iterable(alerts))
        named = [item_of(read) for read in reads]
        routes = [chosen or self._route(curve_of(read), survey) for read, (_, survey) in zip(reads, named, strict=True)]
        outcomes = yield from classify([item for item, _ in named], routes, self._run)
        results = _results(reads, outcomes, [serializers(route.model, route.subtypes) for route in routes], options)
        return [list(islice(results, len(each))) for each in alerts]

    def _run(self, model: "_Model", inputs: Sequence[ModelInput]) -> PendingRuns:
        loaded = model.open()
        return self._runner.start(loaded.graph, model.adapter, loaded.cost, inputs)

    def _route(self, curve: LightCurve | None, survey: str, substitute: bool = True) -> "Route[_Model]":
        if self._is_named:
            return Route(self._default)
        return route(curve, survey, self._models.get, lambda: self._default, substitute)


def _require_onnxruntime() -> None:
    from importlib.util import find_spec

    if find_spec("onnxruntime") is None:
        raise ImportError("onnxruntime is not installed: pip install 'nightjar-alerts[onnxruntime]'")


def _bundles(model: str | Path | None) -> dict[str, Path]:
    """Return the folder of each model, by the alias of the model in the service."""
    if model is None:
        return {DEFAULT: DEFAULT_BUNDLE, **SURVEY_BUNDLES}
    newest = pretrained_bundles()
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
        _ABANDONED.append(classifier._runner)
        _ABANDONED.extend(model.loaded for model in classifier._models.values())
        classifier._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Model:
    """Bundle whose session is opened on first use."""

    def __init__(self, path: Path, provider: "Provider", native: "Native") -> None:
        self._path, self._provider, self._native = path, provider, native
        self.bundle = load_bundle(path)
        self.adapter = Adapter(self.bundle.manifest)
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


_Serializers = Callable[[_Model, _Model | None], ResultSerializer]
"""Returns the serializer of a model, with the subtypes of another. Raises PriorError."""


def _serializers(options: Options) -> _Serializers:
    """Return the serializers of a call, which are made once."""

    @cache
    def serializer(model: _Model, subtypes: _Model | None) -> ResultSerializer:
        return serializer_of(model.bundle, options.prior, None if subtypes is None else subtypes.bundle)

    return serializer


def _blocks(inputs: Iterable[Input]) -> Iterator[tuple[int, list[Input]]]:
    """Yield blocks of inputs, each with the index of its first."""
    remaining, start, size = iter(inputs), 0, FIRST_BLOCK
    while block := list(islice(remaining, size)):
        yield start, block
        start, size = start + len(block), BLOCK


def _results(
    reads: Sequence[Read], outcomes: Sequence[Outcome], serializers: Sequence[ResultSerializer], options: Options
) -> Iterator[Result]:
    """Yield the results of light curves and alerts, each by the serializer of its models."""
    found = serialize_all(
        serializers,
        outcomes,
        [identity_of(read) for read in reads],
        [errors_of(read) for read in reads],
        options.embedding,
        options.coverage,
        options.experts,
    )
    for fields, serializer, read in zip(found, serializers, reads, strict=True):
        yield Result(fields, serializer.provenance, curve_of(read))
