"""Loading of a bundle: hashes verified, golden outputs reproduced, session open, costs measured.

What runs of a model cost on this machine, and how its cores are best used for it, is read from an earlier start's file,
or measured, which takes two to four seconds. What was read is first checked by two quick measurements: a processor that
was throttled then, or is now, would make every prediction wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, thread_time
from typing import NamedTuple

import onnxruntime as ort
import structlog

from nightjar_alerts.models.bundle import GOLDEN_SECONDS, Bundle, BundleError, Task, load_bundle, verify_golden
from nightjar_alerts.models.native import Native, NativeError, chosen, held_by
from nightjar_alerts.models.runtime import (
    Cudart,
    DeviceRun,
    MemoryBound,
    Provider,
    ProviderError,
    SessionRun,
    open_session,
    run,
    run_within,
)
from nightjar_alerts.service.engine import machine as layouts
from nightjar_alerts.service.engine.batch import Arrays, RunGraph, TaskProgram, program_of
from nightjar_alerts.service.engine.machine import (
    ONE_BY_ONE,
    USUAL_WIDTH,
    Circumstances,
    CoreLayout,
    Measured,
    Measurements,
    Shape,
    measure,
    measure_one,
    probe,
    processor,
    usable_cores,
    widest,
)
from nightjar_alerts.service.engine.policy import CostModel, RunSample

log = structlog.get_logger(__name__)

CHECKED = (Shape(1, 32, 0), Shape(16, 64, 64))
STILL_TRUE = 2.0
"""Ratio of measured to recalled, either way, up to which the earlier measurements hold."""

OpenGraph = Callable[[int], RunGraph]
"""Function from a number of threads to a graph whose runs have that many."""


def calibrate(
    open_graph: OpenGraph,
    program: TaskProgram,
    provider: Provider,
    wish: CoreLayout,
    stored: Measured | None,
    tune: bool,
    free_bytes: Callable[[], int] | None = None,
) -> Measured:
    """Return the stored measurements if they still predict this machine, otherwise measure again.

    Parameters
    ----------
    stored : measurements of an earlier start under the same circumstances.
    tune : whether to try out what the wish leaves open; that takes every core for a second or two.
    free_bytes : free memory of a device, in bytes, which then bounds how wide a batch may be.
    """
    tune = tune and wish.is_open
    if stored is not None and (stored.tuned or not tune) and _holds(stored, open_graph, program, provider):
        return stored
    log.info("measuring what runs cost on this machine, which takes some seconds")
    cores = usable_cores()
    layout, tuned = layouts.usual(wish, cores), False
    if tune:
        layout, tuned = layouts.tune(layouts.candidates(wish, cores, provider == "cuda"), open_graph, program)
    graph, clock = open_graph(layout.threads), clock_of(provider, layout.threads)
    samples = measure(graph, program, clock=clock)
    room = None if free_bytes is None else MemoryBound(free_bytes, layout.runs)
    width = widest(graph, program, clock=clock, room=room)
    return Measured(runs=tuple(map(tuple, samples)), max_tokens=width, layout=tuple(layout), tuned=tuned)


def clock_of(provider: Provider, threads: int) -> Callable[[], float]:
    """Choose the clock of a run: processor time where the calling thread does all the work, else wall time."""
    return thread_time if provider == "cpu" and threads == 1 else monotonic


def _holds(stored: Measured, open_graph: OpenGraph, program: TaskProgram, provider: Provider) -> bool:
    threads = CoreLayout(*stored.layout).threads
    graph, clock, cost = open_graph(threads), clock_of(provider, threads), CostModel.fit(stored.samples)
    for shape in CHECKED:
        run = measure_one(graph, program, shape, 2, clock)
        ratio = run.seconds / cost.seconds(run.batch, run.length, run.tokens)
        if not 1 / STILL_TRUE <= ratio <= STILL_TRUE:
            return False
    return True


RAGGED = Shape(2, 4, 2)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A verified, warm model.

    Attributes
    ----------
    run : graph inputs to graph outputs, by name; may be called from several threads at once.
    cost : predicted seconds of one run on this machine.
    golden_error : largest absolute difference from the bundle's golden outputs.
    load_seconds : time all of this took.
    samples : the runs that ``cost`` was fitted to, by ``clock``.
    max_tokens : padded points beyond which a batch has nothing to gain.
    layout : use of the machine's cores that is best for this model.
    keep : stores measured runs for the next start; writes a file, so not for the event loop.
    kernels : operators of the graph that kernels of our own compute.
    """

    bundle: Bundle
    provider: Provider
    run: RunGraph
    cost: CostModel
    golden_error: float
    load_seconds: float
    samples: Sequence[RunSample] = ()
    clock: Callable[[], float] = monotonic
    max_tokens: int = USUAL_WIDTH
    layout: CoreLayout = ONE_BY_ONE
    keep: Callable[[Sequence[RunSample]], None] = lambda _: None
    kernels: tuple[str, ...] = ()


class OpenModel(NamedTuple):
    """A verified bundle, open on one execution provider; ``library`` holds kernels of our own, None without."""

    bundle: Bundle
    session: ort.InferenceSession
    program: TaskProgram
    golden_error: float
    library: Path | None

    @property
    def kernels(self) -> tuple[str, ...]:
        """Operators of the graph that kernels of our own compute."""
        return () if self.library is None else held_by(self.session)


def load_model(
    path: Path,
    provider: Provider = "cpu",
    threads: int = 1,
    task: Task = "classification",
    *,
    wish: CoreLayout | None = None,
    folder: Path | None = None,
    tune: bool = False,
    native: Native = "off",
) -> LoadedModel:
    """Load, verify and warm up; seconds of work, so not for the event loop.

    Parameters
    ----------
    threads : of the runtime inside each run, where there is no ``wish``.
    wish : use of the cores as far as the settings fix it.
    folder : of measurements by earlier starts; with None everything is measured again.
    tune : whether to try out what the wish leaves open, rather than take what is usual.
    native : whether kernels of our own take over what they can; golden outputs are reproduced with them.

    Raises
    ------
    BundleError
        When the bundle is missing, altered, made for another task, or gives other numbers on this provider.
    ProviderError
        When the provider, or kernels that are insisted on, are not available.
    """
    started, wish = monotonic(), wish or CoreLayout(threads=threads)
    opened = open_model(path, provider, wish.threads or 1, native)
    bundle, program = opened.bundle, opened.program
    if bundle.manifest.task != task:
        raise BundleError(f"{path}: made for {bundle.manifest.task}, not for {task}")
    driver = Cudart.of_this_process() if provider == "cuda" else None
    open_graph = _graphs_of(opened, provider, wish.threads or 1, driver)
    store = Measurements(folder, _circumstances(bundle, provider, wish, opened.kernels))
    free = None if driver is None else driver.free_bytes
    measured = calibrate(open_graph, program, provider, wish, store.recall(), tune, free)
    store.keep(measured)
    layout = CoreLayout(*measured.layout)
    if provider == "cpu":  # golden outputs and wide batches took ten times the memory that requests need
        open_graph(layout.threads).trim(program.assemble(probe(program, RAGGED)))
    return LoadedModel(
        bundle,
        provider,
        open_graph(layout.threads),
        CostModel.fit(measured.samples),
        opened.golden_error,
        monotonic() - started,
        samples=measured.samples,
        clock=clock_of(provider, layout.threads),
        max_tokens=measured.max_tokens,
        layout=layout,
        keep=lambda samples: store.keep(measured.model_copy(update={"runs": tuple(map(tuple, samples))})),
        kernels=opened.kernels,
    )


def _graphs_of(
    opened: OpenModel, provider: Provider, threads: int, driver: Cudart | None
) -> Callable[[int], SessionRun]:
    """Return a function from a number of threads to a graph with that many; ``opened`` is the one with ``threads``."""

    @cache
    def open_graph(count: int) -> SessionRun:
        again = partial(_reopen, opened.bundle, provider, count, opened.library)
        return _run_of(opened.session if count == threads else again(), again, provider, driver)

    return open_graph


def _run_of(
    session: ort.InferenceSession,
    again: Callable[[], ort.InferenceSession],
    provider: Provider,
    driver: Cudart | None,
) -> SessionRun:
    return DeviceRun(session, again, "cuda", driver) if provider == "cuda" else SessionRun(session, again)


def _circumstances(bundle: Bundle, provider: Provider, wish: CoreLayout, kernels: tuple[str, ...]) -> Circumstances:
    return Circumstances(
        processor=processor(),
        cores=usable_cores(),
        provider=provider,
        kernels=kernels,
        bundle=bundle.sha256,
        wish=tuple(wish),
    )


def open_model(path: Path, provider: Provider = "cpu", threads: int = 1, native: Native = "off") -> OpenModel:
    """Load and verify a bundle; raises as :func:`load_model` does."""
    try:
        library = chosen(native, provider)
    except NativeError as error:
        raise ProviderError(str(error)) from error
    bundle = load_bundle(path)
    session = _open(bundle, provider, threads, library)
    golden_error = verify_golden(bundle, session)
    program = program_of(bundle.manifest)
    inputs = program.assemble(probe(program, RAGGED))
    _check_inputs(bundle, session, inputs)
    _check_outputs(bundle, session, inputs, program)
    return OpenModel(bundle, session, program, golden_error, library)


def _reopen(bundle: Bundle, provider: Provider, threads: int, library: Path | None) -> ort.InferenceSession:
    graph = bundle.graph(provider)
    digest = bundle.manifest.files.get(graph.name, "")
    return open_session(graph, provider, threads, digest, kernels=library)


def _open(bundle: Bundle, provider: Provider, threads: int, library: Path | None) -> ort.InferenceSession:
    try:
        return _reopen(bundle, provider, threads, library)
    except ProviderError:
        raise
    except Exception as error:  # onnxruntime raises a family of its own that share no base class
        raise BundleError(f"{bundle.path}: the graph cannot be opened: {error}") from error


def _check_inputs(bundle: Bundle, session: ort.InferenceSession, inputs: Arrays) -> None:
    """Check that the service makes the inputs the graph takes, and that metadata columns have names."""
    graph_inputs = {node.name for node in session.get_inputs()}
    if unknown := graph_inputs - set(inputs):
        raise BundleError(f"{bundle.path}: the graph takes {', '.join(sorted(unknown))}, which nobody gives it")
    if ("metadata" in graph_inputs) != bool(bundle.manifest.metadata_columns):
        raise BundleError(f"{bundle.path}: the graph and the manifest disagree on whether metadata are taken")


def _check_outputs(bundle: Bundle, session: ort.InferenceSession, inputs: Arrays, program: TaskProgram) -> None:
    """Check that the graph gives the outputs of the manifest: else every reply would be wrong or fail."""
    try:
        outputs = run_within(GOLDEN_SECONDS, session, inputs)
    except Exception as error:  # onnxruntime raises a family of its own that share no base class
        raise BundleError(f"{bundle.path}: the graph does not run on what the manifest promises it: {error}") from error
    for name, row in program.rows(inputs).items():
        if name not in outputs or outputs[name].shape != (RAGGED.batch, *row):
            width = f" of width {row[0]}" if row else ", one number for each light curve"
            raise BundleError(f"{bundle.path}: the graph does not answer {name}{width}")


BATCHES = (1, 4, 16)
LENGTHS = (16, 64, 256)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one run of ``batch`` light curves of ``length`` points."""

    batch: int
    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A bundle that passed: its golden error, its timings, and the operators that kernels of our own computed."""

    bundle: Bundle
    golden_error: float
    timings: tuple[Timing, ...]
    kernels: tuple[str, ...] = ()


def check_bundle(path: Path, provider: Provider, native: Native = "off") -> Checked:
    """Verify a bundle and time it.

    Raises
    ------
    BundleError, ProviderError
        When it must not be served, or not on this provider.
    """
    opened = open_model(path, provider, 1, native)
    timings = tuple(_timings(partial(run, opened.session), opened.program))
    return Checked(opened.bundle, opened.golden_error, timings, opened.kernels)


def _timings(graph: RunGraph, program: TaskProgram) -> Iterator[Timing]:
    for batch in BATCHES:
        for length in LENGTHS:
            inputs = program.assemble(probe(program, Shape(batch, length, others=length)))
            graph(inputs)  # the first run of a shape allocates
            yield Timing(batch, length, median(_run_seconds(graph, inputs) for _ in range(REPEATS)))


def _run_seconds(graph: RunGraph, inputs: Arrays) -> float:
    started = perf_counter()
    graph(inputs)
    return perf_counter() - started
