"""What a run costs on this machine: measured at warm-up, followed while serving."""

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

import numpy as np

from models.bundle import Manifest
from models.lightcurve import BANDS, LightCurve, RaggedBatch, featurise
from service.inference.batching import Arrays, RunGraph
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

WARM_UP_SECONDS = 1.5
MIN_SAMPLES = 6  # one more than the cost model has terms
LIVE_WEIGHT = 0.02  # of one run in the live scale: a memory of about fifty runs
PLAUSIBLE = 10.0  # beyond this ratio of measured to predicted, a run was interrupted rather than slow


def warm_up(
    run: RunGraph,
    manifest: Manifest,
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
    for shape in WARM_UP_SHAPES:
        if monotonic() > end and len(samples) >= MIN_SAMPLES:
            break
        inputs = probe(manifest, shape)
        run(inputs)
        seconds = min(_timed(run, inputs, clock) for _ in range(repeats))
        batch, length = inputs["mask"].shape
        samples.append(Sample(batch, length, int(inputs["mask"].sum()), seconds))
    return CostModel.fit(samples)


def probe(manifest: Manifest, shape: Shape) -> Arrays:
    """Graph inputs of a shape, from made-up light curves as long as the network's limits allow."""
    lengths = [shape.length] + [shape.others] * (shape.batch - 1)
    tokens = {
        length: featurise(_made_up(length), manifest.limits, manifest.flux_unit, manifest.metadata_columns)
        for length in set(lengths)
    }
    return RaggedBatch.collate([tokens[length] for length in lengths]).padded()


def _made_up(length: int) -> LightCurve:
    steps = np.arange(length)
    flux = 1000.0 * np.sin(0.1 * steps)
    return LightCurve.from_columns(
        60_000.0 + steps, flux, np.full(length, 100.0), steps % len(BANDS), detected=np.zeros(length)
    )


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
