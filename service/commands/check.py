"""Checking a bundle without serving it: hashes, golden vectors, its graph, and what a run costs on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from models.bundle import Bundle
from models.runtime import Provider, run
from service.engine.batch import Arrays, RunGraph
from service.engine.load import open_model
from service.engine.machine import Shape, probe
from service.engine.programs import TaskProgram

BATCHES = (1, 4, 16)
LENGTHS = (16, 64, 256)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one run of ``batch`` light curves of ``length`` observations."""

    batch: int
    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """A bundle that passed: its golden error and its timings."""

    bundle: Bundle
    golden_error: float
    timings: tuple[Timing, ...]


def check(path: Path, provider: Provider, threads: int = 1) -> Report:
    """Verify a bundle and time it.

    Raises
    ------
    BundleError, ProviderError
        When it must not be served, or not on this provider.
    """
    bundle, session, program, error = open_model(path, provider, threads)
    return Report(bundle, error, tuple(_timings(partial(run, session), program)))


def _timings(graph: RunGraph, program: TaskProgram) -> Iterator[Timing]:
    for batch in BATCHES:
        for length in LENGTHS:
            inputs = program.assemble(probe(program, Shape(batch, length, others=length)))
            graph(inputs)  # the first run of a shape allocates
            yield Timing(batch, length, median(_seconds(graph, inputs) for _ in range(REPEATS)))


def _seconds(graph: RunGraph, inputs: Arrays) -> float:
    started = perf_counter()
    graph(inputs)
    return perf_counter() - started
