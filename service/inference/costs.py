"""What a run costs on this machine: measured at warm-up, followed while serving."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np

from models.lightcurve import LightCurve, band_index
from service.inference.batching import Arrays, Question, RunGraph, padded_length
from service.inference.programs import TaskProgram
from service.inference.scheduling import CostModel, Sample


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
LIVE_WEIGHT = 0.02  # of one run in the live scale: a memory of about fifty runs
PLAUSIBLE = 10.0  # beyond this ratio of measured to predicted, a run was interrupted rather than slow


def warm_up(
    run: RunGraph,
    program: TaskProgram,
    repeats: int = 3,
    budget: float = WARM_UP_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> CostModel:
    """Run the graph on made-up light curves of several shapes and fit the cost model to the best duration of each.

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
        questions = probe(program, shape)
        inputs = program.assemble(questions)
        run(inputs)
        seconds = min(_timed(run, inputs, clock) for _ in range(repeats))
        samples.append(Sample(len(questions), padded_length(inputs), sum(map(len, questions)), seconds))
    return CostModel.fit(samples)


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


class LiveCost:
    """The fitted cost model, scaled by an exponential average of measured over predicted durations.

    The scale follows the machine: other processes, more workers sharing a cache, a clock that changes. It moves
    admission and deadlines; which items to merge does not depend on it.
    """

    def __init__(self, fitted: CostModel) -> None:
        self._fitted = fitted
        self._scale = 1.0
        self.model = fitted

    def update(self, seconds: float, predicted: float) -> None:
        """Learn from a run that took ``seconds`` where :attr:`model` predicted ``predicted``."""
        ratio = min(max(seconds / predicted, 1 / PLAUSIBLE), PLAUSIBLE)
        self._scale *= 1.0 + LIVE_WEIGHT * (ratio - 1.0)
        self.model = self._fitted.scaled(self._scale)
