"""Load a bundle: verify its hashes and golden outputs, open a session, and measure the cost of runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, thread_time

import onnxruntime as ort

from nightjar_alerts.core.adapter import Adapter, Arrays, Graph
from nightjar_alerts.core.cost import CostModel, RunSample
from nightjar_alerts.core.warmup import WARM_UP_SECONDS, BatchShape, dummy_batch, measure, time_run
from nightjar_alerts.models.bundle import GOLDEN_SECONDS, Bundle, BundleError, load_bundle, verify_golden
from nightjar_alerts.models.native import Native, NativeError, native_operators, select_library
from nightjar_alerts.models.runtime import OnnxGraph, Provider, ProviderError, open_session, run_within

RAGGED = BatchShape(2, 4, 2)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A verified, warmed-up model.

    Attributes
    ----------
    cost : cost model of this machine.
    golden_error : largest absolute difference from the bundle's golden outputs.
    load_seconds : duration of loading, verification and warm-up.
    samples : warm-up runs that ``cost`` was fitted to, measured on ``clock``.
    kernels : graph operators that native kernels compute.
    """

    bundle: Bundle
    provider: Provider
    graph: Graph
    cost: CostModel
    golden_error: float
    load_seconds: float
    samples: Sequence[RunSample] = ()
    kernels: tuple[str, ...] = ()

    @property
    def clock(self) -> Callable[[], float]:
        """Clock of runs: processor time on a CPU, where the calling thread does all the work, else wall time."""
        return clock_of(self.provider)


def clock_of(provider: Provider) -> Callable[[], float]:
    """Return the clock that measures runs on a provider."""
    return thread_time if provider == "cpu" else monotonic


def load_model(
    path: Path, provider: Provider = "cpu", native: Native = "off", warm_up_seconds: float = WARM_UP_SECONDS
) -> LoadedModel:
    """Load, verify and warm up a classifier. Takes seconds: do not call it on the event loop.

    Parameters
    ----------
    native : whether native kernels compute the operators that they support; golden outputs are verified with them.
    warm_up_seconds : time budget for measuring the cost of runs.

    Raises
    ------
    BundleError
        If the bundle is missing, altered, made for another task, or does not reproduce its golden outputs.
    ProviderError
        If the provider or the required native kernels are not available.
    """
    started = monotonic()
    try:
        library = select_library(native, provider)
    except NativeError as error:
        raise ProviderError(str(error)) from error
    bundle = load_bundle(path)
    session = _open(bundle, provider, library)
    golden_error = verify_golden(bundle, session)
    adapter = Adapter(bundle.manifest)
    arrays = adapter.assemble(dummy_batch(adapter, RAGGED))
    _check_inputs(bundle, session, arrays)
    _check_outputs(bundle, session, arrays, adapter)
    graph = OnnxGraph(session)
    samples = measure(graph, adapter, clock_of(provider), budget=warm_up_seconds)
    if provider == "cpu":  # golden outputs and warm-up use ten times the memory of requests
        graph.trim(arrays)
    return LoadedModel(
        bundle=bundle,
        provider=provider,
        graph=graph,
        cost=CostModel.fit(samples),
        golden_error=golden_error,
        load_seconds=monotonic() - started,
        samples=samples,
        kernels=() if library is None else native_operators(session),
    )


def _open(bundle: Bundle, provider: Provider, library: Path | None) -> ort.InferenceSession:
    graph = bundle.graph(provider)
    try:
        return open_session(graph, provider, sha256=bundle.manifest.files.get(graph.name, ""), kernels=library)
    except ProviderError:
        raise
    except Exception as error:  # the runtime's exceptions share no useful base class
        raise BundleError(f"{bundle.path}: the graph cannot be opened: {error}") from error


def _check_inputs(bundle: Bundle, session: ort.InferenceSession, arrays: Arrays) -> None:
    """Check that the service provides all inputs of the graph, and that the manifest declares the metadata taken."""
    graph_inputs = {node.name for node in session.get_inputs()}
    if unknown := graph_inputs - set(arrays):
        raise BundleError(f"{bundle.path}: the graph takes unknown inputs: {', '.join(sorted(unknown))}")
    if ("metadata" in graph_inputs) != bool(bundle.manifest.metadata_columns):
        raise BundleError(f"{bundle.path}: the graph and the manifest disagree on whether metadata are taken")


def _check_outputs(bundle: Bundle, session: ort.InferenceSession, arrays: Arrays, adapter: Adapter) -> None:
    """Check that the graph returns the outputs of the manifest, in the expected shapes."""
    try:
        outputs = run_within(GOLDEN_SECONDS, session, arrays)
    except Exception as error:  # the runtime's exceptions share no useful base class
        raise BundleError(f"{bundle.path}: the graph does not run on the inputs of its manifest: {error}") from error
    for name, shape in adapter.output_shapes().items():
        if name not in outputs or outputs[name].shape != (RAGGED.batch, *shape):
            width = f" of width {shape[0]}" if shape else ", one number for each light curve"
            raise BundleError(f"{bundle.path}: the graph does not return {name}{width}")


BATCHES = (1, 4, 16)
LENGTHS = (16, 64, 256)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one run of ``batch`` light curves of ``length`` points."""

    batch: int
    length: int
    seconds: float


def check_bundle(path: Path, provider: Provider, native: Native = "off") -> tuple[LoadedModel, list[Timing]]:
    """Load a bundle and time its runs; raises as :func:`load_model`."""
    loaded = load_model(path, provider, native)
    return loaded, list(_timings(loaded.graph, Adapter(loaded.bundle.manifest)))


def _timings(graph: Graph, adapter: Adapter) -> Iterator[Timing]:
    for batch in BATCHES:
        for length in LENGTHS:
            arrays = adapter.assemble(dummy_batch(adapter, BatchShape(batch, length, others=length)))
            graph(arrays)  # the first run of a shape allocates
            yield Timing(batch, length, median(time_run(graph, arrays, perf_counter) for _ in range(REPEATS)))
