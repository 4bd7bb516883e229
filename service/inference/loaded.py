"""A bundle that is ready to serve: hashes verified, golden outputs reproduced, session open, costs measured."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, thread_time
from typing import NamedTuple

import onnxruntime as ort

from models.bundle import Bundle, BundleError, Task, load_bundle, verify_golden
from models.runtime import Provider, open_session, run
from service.inference.batching import Arrays, RunGraph
from service.inference.costs import Shape, probe, warm_up
from service.inference.programs import TaskProgram, program_of
from service.inference.scheduling import CostModel

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
    """

    bundle: Bundle
    provider: Provider
    run: RunGraph
    cost: CostModel
    golden_error: float
    load_seconds: float


class OpenModel(NamedTuple):
    """A bundle that is what it says: verified, and open on one execution provider."""

    bundle: Bundle
    session: ort.InferenceSession
    program: TaskProgram
    golden_error: float


def load_model(path: Path, provider: Provider = "cpu", threads: int = 1, task: Task = "classification") -> LoadedModel:
    """Load, verify and warm up; seconds of work, so not for the event loop.

    Raises
    ------
    BundleError
        When the bundle is missing, altered, made for another task, or gives other numbers on this provider.
    ProviderError
        When the provider is not available.
    """
    started = monotonic()
    bundle, session, program, golden_error = open_model(path, provider, threads)
    if bundle.manifest.task != task:
        raise BundleError(f"{path}: made for {bundle.manifest.task}, not for {task}")
    run_graph: RunGraph = partial(run, session)
    cost = warm_up(run_graph, program, clock=thread_time if provider == "cpu" and threads == 1 else monotonic)
    return LoadedModel(bundle, provider, run_graph, cost, golden_error, monotonic() - started)


def open_model(path: Path, provider: Provider = "cpu", threads: int = 1) -> OpenModel:
    """Load and verify a bundle; raises as :func:`load_model` does."""
    bundle = load_bundle(path)
    session = open_session(bundle.model, provider, threads)
    golden_error = verify_golden(bundle, session)
    program = program_of(bundle.manifest)
    inputs = program.assemble(probe(program, RAGGED))
    _check_inputs(bundle, session, inputs)
    _check_outputs(bundle, session, inputs, program)
    return OpenModel(bundle, session, program, golden_error)


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
