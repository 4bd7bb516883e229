"""What a run costs on this machine, measured at warm-up: the samples of the cost model, and the widest batch worth it.

samples = measure(run, program)
cost = CostModel.fit(samples)
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np

from models.lightcurve import LightCurve, band_index
from service.inference.batching import Arrays, Question, RunGraph, padded_length
from service.inference.programs import TaskProgram
from service.inference.scheduling import Sample


class Shape(NamedTuple):
    """A warm-up batch: one light curve of ``length`` observations and ``batch - 1`` of ``others``."""

    batch: int
    length: int
    others: int


WARM_UP_SHAPES = (
    Shape(1, 4, 0),
    Shape(1, 128, 0),
    Shape(16, 32, 32),
    Shape(16, 64, 4),
    Shape(32, 8, 8),
    Shape(4, 192, 192),
    Shape(1, 384, 0),
    Shape(8, 192, 16),
    Shape(1, 32, 0),
    Shape(4, 48, 48),
    Shape(16, 4, 4),
    Shape(16, 64, 64),
)
"""From one faint transient to a full batch, even and ragged; in order of what they tell, should time run out."""

LONG_HISTORY = 512
LONGEST_PROBE = 1024
"""A network made for longer histories than ``LONG_HISTORY`` is also measured on one of up to this length: the shapes
above say little about attention, whose cost grows with the square."""

WARM_UP_SECONDS = 1.5
MIN_SAMPLES = 6  # one more than the cost model has terms

TYPICAL_LENGTH = 64
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
"""Padded observations in a batch that are tried, as light curves of the typical length."""
USUAL_WIDTH = 1024
SLACK = 1.05  # of seconds for each observation: less than this is noise
GAIN = 0.97  # what a batch wider than usual has to come down to: the others wait for its end, after all


def measure(
    run: RunGraph,
    program: TaskProgram,
    repeats: int = 3,
    budget: float = WARM_UP_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> list[Sample]:
    """Run the graph on made-up light curves of several shapes: the best duration of each.

    Every shape runs once untimed first, since the first run of a shape allocates. Once ``budget`` seconds are spent the
    remaining shapes are left out, but the first few are always measured.

    Parameters
    ----------
    clock : seconds. Where a run is the work of the calling thread alone, ``time.thread_time`` keeps other processes out
        of the fit: on a crowded machine they stretch long runs more than short ones, which would make merging look bad.
    """
    end = monotonic() + budget
    samples: list[Sample] = []
    for shape in warm_up_shapes(program.most_points):
        if monotonic() > end and len(samples) >= MIN_SAMPLES:
            break
        samples.append(measure_one(run, program, shape, repeats, clock))
    return samples


def measure_one(run: RunGraph, program: TaskProgram, shape: Shape, repeats: int, clock: Callable[[], float]) -> Sample:
    """The best duration of one shape."""
    questions = probe(program, shape)
    inputs = program.assemble(questions)
    run(inputs)
    seconds = min(_timed(run, inputs, clock) for _ in range(repeats))
    return Sample(len(questions), padded_length(inputs), sum(map(len, questions)), seconds)


def widest(run: RunGraph, program: TaskProgram, repeats: int = 3, clock: Callable[[], float] = monotonic) -> int:
    """Padded observations beyond which a batch has nothing to gain.

    The cost model is a straight line in their number, and says nothing of the point at which activations leave a cache
    or a memory. So batches of :data:`WIDTHS` are tried in turn, until an observation has become dearer, or, beyond the
    usual width, until it has stopped becoming cheaper.
    """
    length = min(TYPICAL_LENGTH, program.most_points)
    best, found = float("inf"), WIDTHS[0]
    for width in WIDTHS:
        sample = measure_one(run, program, Shape(max(1, width // length), length, length), repeats, clock)
        dearness = sample.seconds / (sample.batch * sample.length)
        if dearness > best * (SLACK if width <= USUAL_WIDTH else GAIN):
            break
        best, found = min(best, dearness), width
    return found


def warm_up_shapes(most_points: int) -> tuple[Shape, ...]:
    """Shapes to measure for a network that takes histories of up to ``most_points`` observations."""
    if most_points <= LONG_HISTORY:
        return WARM_UP_SHAPES
    return (*WARM_UP_SHAPES[:2], Shape(1, min(most_points, LONGEST_PROBE), 0), *WARM_UP_SHAPES[2:])


def probe(program: TaskProgram, shape: Shape) -> list[Question]:
    """Questions of a shape, about made-up light curves as long as the network's limits allow."""
    lengths = [shape.length] + [shape.others] * (shape.batch - 1)
    bands = [band_index(name) for name in program.manifest.bands]
    made_up = {length: program.made_up(_made_up(length, bands)) for length in set(lengths)}
    return [made_up[length] for length in lengths]


def _made_up(length: int, bands: Sequence[int]) -> LightCurve:
    steps = np.arange(length)
    flux = 1000.0 * np.sin(0.1 * steps)
    band = np.resize(np.array(bands), length)
    return LightCurve.from_columns(60_000.0 + steps, flux, np.full(length, 100.0), band, detected=np.zeros(length))


def _timed(run: RunGraph, inputs: Arrays, clock: Callable[[], float]) -> float:
    started = clock()
    run(inputs)
    return clock() - started
