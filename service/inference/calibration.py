"""What a model costs on this machine, and how the machine is best used for it: recalled, or measured.

Measuring takes one to three seconds. What is recalled is held against two quick measurements first: a processor that
was throttled then, or is now, would make every prediction wrong.
"""

from collections.abc import Callable
from time import monotonic, thread_time

from models.runtime import Provider
from service.inference import layout as layouts
from service.inference.batching import RunGraph
from service.inference.costs import Shape, measure, measure_one, widest
from service.inference.layout import Layout
from service.inference.measurements import Measured
from service.inference.programs import TaskProgram
from service.inference.scheduling import CostModel
from service.settings import usable_cores

CHECKED = (Shape(1, 32, 0), Shape(16, 64, 64))
STILL_TRUE = 2.0
"""Ratio of measured to recalled, either way, up to which the earlier measurements hold."""

OpenGraph = Callable[[int], RunGraph]
"""A graph whose runs have so many threads."""


def calibrate(
    open_graph: OpenGraph, program: TaskProgram, provider: Provider, wish: Layout, known: Measured | None, tune: bool
) -> Measured:
    """What is known, if it still holds, else what is measured now.

    Parameters
    ----------
    known : under the same circumstances.
    tune : whether to try out what the wish leaves open; that takes every core for a second or two.
    """
    tune = tune and wish.is_open
    if known is not None and (known.tuned or not tune) and _holds(known, open_graph, program, provider):
        return known
    cores = usable_cores()
    layout, tuned = layouts.usual(wish, cores), False
    if tune:
        layout, tuned = layouts.tune(layouts.candidates(wish, cores, provider == "cuda"), open_graph, program)
    graph, clock = open_graph(layout.threads), clock_of(provider, layout.threads)
    samples, width = measure(graph, program, clock=clock), widest(graph, program, clock=clock)
    return Measured(runs=tuple(map(tuple, samples)), max_tokens=width, layout=tuple(layout), tuned=tuned)


def clock_of(provider: Provider, threads: int) -> Callable[[], float]:
    """What tells the work of a run: where that is the work of the calling thread alone, the time that it was given."""
    return thread_time if provider == "cpu" and threads == 1 else monotonic


def _holds(known: Measured, open_graph: OpenGraph, program: TaskProgram, provider: Provider) -> bool:
    threads = Layout(*known.layout).threads
    graph, clock, cost = open_graph(threads), clock_of(provider, threads), CostModel.fit(known.samples)
    for shape in CHECKED:
        run = measure_one(graph, program, shape, 2, clock)
        ratio = run.seconds / cost.seconds(run.batch, run.length, run.tokens)
        if not 1 / STILL_TRUE <= ratio <= STILL_TRUE:
            return False
    return True
