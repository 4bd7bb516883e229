"""A bundle that is ready to serve: hashes verified, golden outputs reproduced, session open, costs measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import onnxruntime as ort

from models.bundle import Bundle, BundleError, Task, load_bundle, verify_golden
from models.runtime import Provider, ProviderError, open_session, run
from service.inference.batching import Arrays, RunGraph
from service.inference.calibration import calibrate, clock_of
from service.inference.costs import USUAL_WIDTH, Shape, probe
from service.inference.layout import ONE_BY_ONE, Layout
from service.inference.measurements import Circumstances, Measurements, processor
from service.inference.programs import TaskProgram, program_of
from service.inference.scheduling import CostModel, Sample
from service.inference.sessions import SessionRun
from service.settings import usable_cores

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
    max_tokens : padded observations beyond which a batch has nothing to gain.
    layout : how the machine is best used for this model.
    keep : remembers what runs are known to take, for the next start; to be called off the event loop.
    """

    bundle: Bundle
    provider: Provider
    run: RunGraph
    cost: CostModel
    golden_error: float
    load_seconds: float
    samples: Sequence[Sample] = ()
    clock: Callable[[], float] = monotonic
    max_tokens: int = USUAL_WIDTH
    layout: Layout = ONE_BY_ONE
    keep: Callable[[Sequence[Sample]], None] = lambda _: None


class OpenModel(NamedTuple):
    """A bundle that is what it says: verified, and open on one execution provider."""

    bundle: Bundle
    session: ort.InferenceSession
    program: TaskProgram
    golden_error: float


def load_model(
    path: Path,
    provider: Provider = "cpu",
    threads: int = 1,
    task: Task = "classification",
    *,
    wish: Layout | None = None,
    folder: Path | None = None,
    tune: bool = False,
) -> LoadedModel:
    """Load, verify and warm up; seconds of work, so not for the event loop.

    Parameters
    ----------
    threads : of the runtime inside each run, where there is no ``wish``.
    wish : how the machine is to be used.
    folder : of what earlier starts have measured; None: everything is measured again.
    tune : whether to try out what the wish leaves open, rather than take what is usual.

    Raises
    ------
    BundleError
        When the bundle is missing, altered, made for another task, or gives other numbers on this provider.
    ProviderError
        When the provider is not available.
    """
    started, wish = monotonic(), wish or Layout(threads=threads)
    bundle, session, program, golden_error = open_model(path, provider, wish.threads or 1)
    if bundle.manifest.task != task:
        raise BundleError(f"{path}: made for {bundle.manifest.task}, not for {task}")
    first = SessionRun(session, partial(open_session, bundle.model, provider, wish.threads or 1))

    @cache
    def open_graph(threads: int) -> SessionRun:
        again = partial(open_session, bundle.model, provider, threads)
        return first if threads == (wish.threads or 1) else SessionRun(again(), again)

    store = Measurements(folder, _circumstances(bundle, provider, wish))
    measured = calibrate(open_graph, program, provider, wish, store.recall(), tune)
    store.keep(measured)
    layout = Layout(*measured.layout)
    if provider == "cpu":  # golden outputs and wide batches take ten times what requests do
        open_graph(layout.threads).trim(program.assemble(probe(program, RAGGED)))
    return LoadedModel(
        bundle,
        provider,
        open_graph(layout.threads),
        CostModel.fit(measured.samples),
        golden_error,
        monotonic() - started,
        samples=measured.samples,
        clock=clock_of(provider, layout.threads),
        max_tokens=measured.max_tokens,
        layout=layout,
        keep=lambda samples: store.keep(measured.model_copy(update={"runs": tuple(map(tuple, samples))})),
    )


def _circumstances(bundle: Bundle, provider: Provider, wish: Layout) -> Circumstances:
    return Circumstances(
        processor=processor(), cores=usable_cores(), provider=provider, bundle=bundle.sha256, wish=tuple(wish)
    )


def open_model(path: Path, provider: Provider = "cpu", threads: int = 1) -> OpenModel:
    """Load and verify a bundle; raises as :func:`load_model` does."""
    bundle = load_bundle(path)
    session = _open(bundle, provider, threads)
    golden_error = verify_golden(bundle, session)
    program = program_of(bundle.manifest)
    inputs = program.assemble(probe(program, RAGGED))
    _check_inputs(bundle, session, inputs)
    _check_outputs(bundle, session, inputs, program)
    return OpenModel(bundle, session, program, golden_error)


def _open(bundle: Bundle, provider: Provider, threads: int) -> ort.InferenceSession:
    try:
        return open_session(bundle.model, provider, threads)
    except ProviderError:
        raise
    except Exception as error:  # onnxruntime raises a family of its own that share no base class
        raise BundleError(f"{bundle.path}: the graph cannot be opened: {error}") from error


def _check_inputs(bundle: Bundle, session: ort.InferenceSession, inputs: Arrays) -> None:
    """What the graph takes must be what the service makes, and metadata it takes must have names."""
    taken = {node.name for node in session.get_inputs()}
    if unknown := taken - set(inputs):
        raise BundleError(f"{bundle.path}: the graph takes {', '.join(sorted(unknown))}, which nobody gives it")
    if ("metadata" in taken) != bool(bundle.manifest.metadata_columns):
        raise BundleError(f"{bundle.path}: the graph and the manifest disagree on whether metadata are taken")


def _check_outputs(bundle: Bundle, session: ort.InferenceSession, inputs: Arrays, program: TaskProgram) -> None:
    """What the graph answers must be what the manifest says, or every reply would be wrong or fail."""
    try:
        outputs = run(session, inputs)
    except Exception as error:  # onnxruntime raises a family of its own that share no base class
        raise BundleError(f"{bundle.path}: the graph does not run on what the manifest promises it: {error}") from error
    for name, row in program.rows(inputs).items():
        if name not in outputs or outputs[name].shape != (RAGGED.batch, *row):
            width = f" of width {row[0]}" if row else ", one number for each light curve"
            raise BundleError(f"{bundle.path}: the graph does not answer {name}{width}")
