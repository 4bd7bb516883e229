"""How a machine is used: runs at the same time, threads inside each, and batches bound ahead. Tried out at first start.

A run with one thread on each core is the best start on a CPU, and often the end: threads inside a run of a small
network wait for each other more than they work. What can be gained is what happens between runs. Assembling a batch and
copying its answers out is work of the interpreter, a twentieth of a run or so, during which its core has no run. Two
ways to fill the gap are tried: more groups in flight than runs, so that the inputs of the next run are ready when a
slot comes free; and more runs than cores, which leaves it to the operating system. A network too large for one core's
cache, or a GPU, may prefer few runs with many threads; so that is tried too.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from time import monotonic
from typing import NamedTuple

from service.inference.batching import Question, RunGraph
from service.inference.costs import Shape, probe
from service.inference.programs import TaskProgram

SECONDS_EACH = 0.2  # of each layout in each round
ROUNDS = 2  # each layout once in every round, so that a machine that gets slower meanwhile favours none
TUNE_SECONDS = 2.5  # after which no other layout is tried
WORTH_IT = 1.05  # times as much as the simplest layout, or it stays

MIX = (Shape(16, 48, 48), Shape(8, 96, 96), Shape(24, 24, 24), Shape(3, 256, 200), Shape(12, 64, 64))
"""Batches as a long queue gives them, of about as many observations each."""


class Layout(NamedTuple):
    """How a machine is used; as a wish, 0 leaves the choice open.

    Attributes
    ----------
    runs : at the same time.
    threads : of the runtime inside each run.
    groups : batches bound at the same time, those that wait for their run included.
    """

    runs: int = 0
    threads: int = 0
    groups: int = 0

    @property
    def is_open(self) -> bool:
        """Whether there is anything to choose."""
        return not all(self)


ONE_BY_ONE = Layout(1, 1, 1)


def usual(wish: Layout, cores: int) -> Layout:
    """What a wish amounts to when nothing is measured: runs of one thread, as many as there are cores."""
    threads = wish.threads or 1
    runs = wish.runs or max(1, cores // threads)
    return Layout(runs, threads, max(runs, wish.groups))


def candidates(wish: Layout, cores: int, on_gpu: bool) -> list[Layout]:
    """Layouts that fulfil a wish, the simplest first."""
    half = max(1, cores // 2)
    ideas = [usual(wish, cores)]
    if on_gpu:
        ideas += [Layout(1, 1, 1), Layout(1, 1, 2), Layout(2, 1, 2), Layout(2, 1, 4)]
    else:
        ideas += [Layout(cores, 1, 2 * cores), Layout(2 * cores, 1, 2 * cores), Layout(half, 2, 2 * half)]
        ideas += [Layout(1, cores, 2)]
    granted = [
        layout
        for layout in dict.fromkeys(ideas)
        if all(wanted in (0, given) for wanted, given in zip(wish, layout, strict=True)) and layout.threads <= cores
    ]
    return granted or [usual(wish, cores)]


def tune(layouts: Sequence[Layout], open_graph: Callable[[int], RunGraph], program: TaskProgram) -> tuple[Layout, bool]:
    """The layout that gets most done in a second, the first unless another is clearly better; whether all were tried.

    Parameters
    ----------
    open_graph : a graph whose runs have so many threads.
    """
    if len(layouts) == 1:
        return layouts[0], True
    end = monotonic() + TUNE_SECONDS
    graphs = {threads: open_graph(threads) for threads in {layout.threads for layout in layouts}}
    groups = [probe(program, shape) for shape in MIX]
    for graph in graphs.values():
        for group in groups:
            graph(program.assemble(group))  # the first run of a shape allocates
    best = dict.fromkeys(layouts, 0.0)
    for layout in [*layouts] * ROUNDS:
        if monotonic() < end:
            rate = throughput(layout, graphs[layout.threads], program, groups, SECONDS_EACH)
            best[layout] = max(best[layout], rate)
    winner = max(layouts, key=lambda layout: best[layout])
    return winner if best[winner] > WORTH_IT * best[layouts[0]] else layouts[0], all(best.values())


def throughput(
    layout: Layout, run: RunGraph, program: TaskProgram, groups: Sequence[Sequence[Question]], seconds: float
) -> float:
    """Observations looked at in a second, by a layout that never runs out of work."""
    slot = threading.Semaphore(layout.runs) if layout.groups > layout.runs else nullcontext()
    turns, done, started = count(), list[int](), monotonic()

    def work() -> None:
        while monotonic() < started + seconds:
            group = groups[next(turns) % len(groups)]
            inputs = program.assemble(group)
            with slot:
                outputs = run(inputs)
            program.split(outputs, group)
            done.append(sum(map(len, group)))

    threads = [threading.Thread(target=work, name=f"tune-{number}") for number in range(layout.groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (monotonic() - started)
