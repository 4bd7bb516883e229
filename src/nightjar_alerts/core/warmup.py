"""Warm-up: runs of dummy light curves that allocate memory and measure the cost of a run on this machine.

cost = CostModel.fit(measure(graph, adapter, clock))
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np

from nightjar_alerts.core.adapter import Adapter, Arrays, Graph, ModelInput, padded_length
from nightjar_alerts.core.cost import RunSample
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import FILTERS


class BatchShape(NamedTuple):
    """A warm-up batch: one light curve of ``length`` points and ``batch - 1`` of ``others``."""

    batch: int
    length: int
    others: int


WARM_UP_SHAPES = (
    BatchShape(1, 4, 0),
    BatchShape(1, 128, 0),
    BatchShape(16, 32, 32),
    BatchShape(16, 64, 4),
    BatchShape(32, 8, 8),
    BatchShape(4, 192, 192),
    BatchShape(1, 384, 0),
    BatchShape(8, 192, 16),
    BatchShape(1, 32, 0),
    BatchShape(4, 48, 48),
    BatchShape(16, 4, 4),
    BatchShape(16, 64, 64),
)
"""Single light curves, uniform batches and ragged batches; the most informative ones first, as the time may run out."""

LONG_HISTORY = 512
LONGEST_DUMMY = 1024
"""A network that takes more than ``LONG_HISTORY`` points is also measured on a light curve of up to this length: the
shapes above do not determine the cost of attention, which grows with the square of the length."""

WARM_UP_SECONDS = 1.5
MIN_SAMPLES = 6  # one more than the cost model has terms
REPEATS = 3


def measure(
    graph: Graph,
    adapter: Adapter,
    clock: Callable[[], float] = monotonic,
    repeats: int = REPEATS,
    budget: float = WARM_UP_SECONDS,
) -> list[RunSample]:
    """Return the shortest measured duration of each warm-up shape.

    Once ``budget`` seconds are spent the remaining shapes are skipped, but the first :data:`MIN_SAMPLES` are always
    measured.

    Parameters
    ----------
    clock : seconds. Where the calling thread does all the work of a run, ``time.thread_time`` keeps other processes out
        of the fit: on a loaded machine they delay long runs more than short ones, so merging would seem to cost more.
    """
    end = monotonic() + budget
    samples: list[RunSample] = []
    for shape in warm_up_shapes(adapter.max_points):
        if monotonic() > end and len(samples) >= MIN_SAMPLES:
            break
        inputs = dummy_batch(adapter, shape)
        arrays = adapter.assemble(inputs)
        graph(arrays)  # untimed: the first run of a shape allocates
        # The minimum, not the mean: other load can only lengthen a run.
        seconds = min(time_run(graph, arrays, clock) for _ in range(repeats))
        samples.append(RunSample(len(inputs), padded_length(arrays), sum(map(len, inputs)), seconds))
    return samples


def warm_up_shapes(max_points: int) -> tuple[BatchShape, ...]:
    """Return the shapes to measure for a network that takes up to ``max_points`` points."""
    if max_points <= LONG_HISTORY:
        return WARM_UP_SHAPES
    return (*WARM_UP_SHAPES[:2], BatchShape(1, min(max_points, LONGEST_DUMMY), 0), *WARM_UP_SHAPES[2:])


def dummy_batch(adapter: Adapter, shape: BatchShape) -> list[ModelInput]:
    """Return dummy model inputs of a shape; the limits of the network may shorten them."""
    lengths = [shape.length] + [shape.others] * (shape.batch - 1)
    bands = np.flatnonzero(adapter.manifest.band_map.table() >= 0).tolist()
    inputs = {length: adapter.prepare(_dummy_curve(length, bands)) for length in set(lengths)}
    return [inputs[length] for length in lengths]


def _dummy_curve(length: int, bands: Sequence[int]) -> LightCurve:
    steps = np.arange(length)
    flux = 1000.0 * np.sin(0.1 * steps)
    band = [FILTERS[index] for index in np.resize(np.array(bands), length)]
    return LightCurve.from_columns(60_000.0 + steps, flux, np.full(length, 100.0), band, detected=np.zeros(length))


def time_run(graph: Graph, arrays: Arrays, clock: Callable[[], float]) -> float:
    """Return the seconds of one run, by a clock."""
    started = clock()
    graph(arrays)
    return clock() - started
