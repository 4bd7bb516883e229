"""The real engine under the traffic of a simulation, in this process: what the simulation is held against.

Light curves are made up, at the lengths of the trace, before the clock starts; each is given to the engine at its
arrival, whether or not earlier ones have been answered, and its latency counts from the arrival intended, so that a
late event loop hides nothing.

What a run costs is measured first, by as many threads at once as the engine has workers: assembling, the graph and
copying the answers out, all by the clock on the wall. That is what the simulation takes for the time of a run; what the
policy believes is the fit of the warm-up, which times the graph alone on an idle machine.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import fmean
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from service.inference.batching import Prediction, Question, RunReport, padded_length
from service.inference.costs import Shape, probe, warm_up_shapes
from service.inference.engine import Engine
from service.inference.failures import DeadlineExceeded
from service.inference.loaded import LoadedModel
from service.inference.programs import TaskProgram, program_of
from service.inference.scheduling import BatchLimits, CostModel, Sample
from service.simulation.events import Outcome, Run
from service.simulation.traffic import Trace

REPEATS = 7
ROOM = 10**9  # of the queue: a replay refuses nothing


def occupation(model: LoadedModel, workers: int, repeats: int = REPEATS) -> CostModel:
    """How long a worker is busy with a run while the others are too, from the means of the shapes of the warm-up.

    Means, not medians: interruptions by other processes add to a queue too.
    """
    program = program_of(model.bundle.manifest)
    samples = []
    with ThreadPoolExecutor(workers) as threads:
        for shape in warm_up_shapes(program.most_points):
            questions = probe(program, shape)
            work = [threads.submit(_busy_seconds, model, program, questions, repeats) for _ in range(workers)]
            seconds = fmean(second for done in work for second in done.result())
            length = padded_length(program.assemble(questions))
            samples.append(Sample(len(questions), length, sum(map(len, questions)), seconds))
    return CostModel.fit(samples)


def _busy_seconds(model: LoadedModel, program: TaskProgram, questions: Sequence[Question], repeats: int) -> list[float]:
    seconds = []
    for _ in range(1 + repeats):
        started = perf_counter()
        program.split(model.run(program.assemble(questions)), questions)
        seconds.append(perf_counter() - started)
    return seconds[1:]  # the first run of a shape allocates


def fitted(runs: Sequence[Run]) -> CostModel:
    """What runs took, with the sum of all of them right.

    Held against a replay, a simulation with this model shows what is wrong with its queue and its policy; one with
    :func:`occupation` also shows how much the machine had changed since.
    """
    samples = [Sample(len(run.items), run.length, run.tokens, run.ended - run.started) for run in runs]
    model = CostModel.fit(samples)
    predicted = sum(model.seconds(batch, length, tokens) for batch, length, tokens, _ in samples)
    return model.scaled(sum(sample.seconds for sample in samples) / predicted)


async def replay(
    trace: Trace, model: LoadedModel, workers: int, limits: BatchLimits, deadline: float | None = None
) -> Outcome:
    """Drive an engine of its own with a trace, in real time.

    Parameters
    ----------
    deadline : seconds after its arrival at which a light curve's answer is worth nothing; None: never.
    """
    questions = _questions(program_of(model.bundle.manifest), trace)
    runs: list[Run] = []
    engine = Engine(
        model.run,
        program_of(model.bundle.manifest),
        model.cost,
        workers=workers,
        limits=limits,
        samples=model.samples,
        clock=model.clock,
        max_queued_seconds=ROOM,
        max_queued_items=ROOM,
        on_run=lambda report, _: runs.append(_as_run(report)),
    )
    await engine.start()
    try:
        return await _drive(engine, trace, questions, deadline, runs)
    finally:
        await engine.stop()


async def _drive(
    engine: Engine, trace: Trace, questions: Sequence[Question], deadline: float | None, runs: list[Run]
) -> Outcome:
    loop = asyncio.get_running_loop()
    answered = np.full(len(questions), np.nan)
    futures = []
    sent, peak, start = 0, 0, loop.time() - float(trace.arrival[0])
    while sent < len(questions):
        due = int(np.searchsorted(trace.arrival, loop.time() - start, side="right"))
        for first, last in _together(trace, sent, due):
            end = None if deadline is None else start + float(trace.arrival[first]) + deadline
            for number, entry in enumerate(engine.enqueue(questions[first:last], end), start=first):
                entry.future.add_done_callback(_clock(answered, number, loop, start))
                futures.append(entry.future)
        sent, peak = due, max(peak, engine.depth)
        if sent < len(questions):
            await asyncio.sleep(max(0.0, float(trace.arrival[sent]) - (loop.time() - start)))
    results = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, DeadlineExceeded):
            raise result
    return Outcome(trace, answered, runs, peak)


def _together(trace: Trace, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges of light curves between ``first`` and ``last`` that arrive at one moment, as one request would."""
    cuts = [first + 1 + int(n) for n in np.flatnonzero(np.diff(trace.arrival[first:last]))]
    edges = [first, *cuts, last]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _clock(
    answered: NDArray[np.float64], number: int, loop: asyncio.AbstractEventLoop, start: float
) -> Callable[[asyncio.Future[Prediction]], None]:
    def note(future: asyncio.Future[Prediction]) -> None:
        if not future.cancelled() and future.exception() is None:
            answered[number] = loop.time() - start

    return note


def _as_run(report: RunReport) -> Run:
    """Who was in the run and when it was is not known here; how many, how long, and for what time is."""
    seconds = report.assemble_seconds + report.run_seconds + report.split_seconds
    return Run(tuple(range(report.size)), report.length, report.tokens, 0.0, seconds)


def _questions(program: TaskProgram, trace: Trace) -> list[Question]:
    made = {length: probe(program, Shape(1, length, 0))[0] for length in set(trace.length.tolist())}
    return [made[length] for length in trace.length.tolist()]
