"""Light curves to measure with: lengths as a survey's alerts have them, fixed by a seed.

Lengths are lognormal (median 50, mean about 65, 95th percentile about 170) and at most 390 points, spread evenly over
the six bands. Half of the curves carry the 64 metadata columns, half carry none, as real LSST alerts do. Every point
survives the service's window: the first one is a detection. :func:`alert_mix` draws lengths as the simulation of the
engine does instead, with one curve in a hundred from a deep field.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.bench.simulation.traffic import draw_lengths
from models.bands import BANDS
from models.bundle import Manifest
from models.lightcurve import LightCurve, RaggedBatch, featurise
from models.metadata import METADATA_COLUMNS

MEDIAN_LENGTH = 50
LOG_SIGMA = 0.745
LONGEST = 390
SPAN_DAYS = 300.0

Columns = dict[str, Any]


def lengths(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Shape (count,): number of points of each curve."""
    drawn = np.rint(rng.lognormal(np.log(MEDIAN_LENGTH), LOG_SIGMA, count))
    return np.clip(drawn, 1, LONGEST).astype(np.int64)


def columns(count: int, seed: int) -> list[Columns]:
    """`count` light curves in the form of the JSON interface (MJD, nJy)."""
    rng = np.random.default_rng(seed)
    return [_curve(index, int(length), rng) for index, length in enumerate(lengths(count, rng))]


def alert_mix(count: int, seed: int) -> list[Columns]:
    """Draw curves as long as real alerts: lognormal, and a tail of deep fields cut at what a network takes."""
    rng = np.random.default_rng(seed)
    return [_curve(index, int(length), rng) for index, length in enumerate(draw_lengths(count, LONGEST, rng))]


def _curve(index: int, length: int, rng: np.random.Generator) -> Columns:
    days = np.sort(rng.uniform(0, SPAN_DAYS, length))
    error = rng.lognormal(np.log(300.0), 0.4, length)
    rise_and_fall = (days / 20.0) * np.exp(1.0 - days / 20.0)
    flux = rng.lognormal(np.log(8000.0), 0.8) * rise_and_fall + rng.normal(0.0, error)
    flux[0] = 10.0 * error[0]  # the detection that makes it an alert
    return {
        "object_id": f"bench-{index}",
        "mjd": (60_000.0 + days).round(6).tolist(),
        "flux": flux.round(2).tolist(),
        "flux_err": error.round(2).tolist(),
        "band": [BANDS[band] for band in rng.permutation(np.arange(length) % len(BANDS))],
        "metadata": _metadata(rng) if index % 2 else {},
    }


def _metadata(rng: np.random.Generator) -> dict[str, float]:
    return dict(zip(METADATA_COLUMNS, rng.uniform(0.01, 25.0, len(METADATA_COLUMNS)).round(3).tolist(), strict=True))


def graph_inputs(curve: Columns, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Make the graph's inputs of one light curve, a batch of one, in the service's own way."""
    record = LightCurve.from_columns(
        curve["mjd"], curve["flux"], curve["flux_err"], curve["band"], metadata=curve["metadata"]
    )
    tokens = featurise(record, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.bands)
    return RaggedBatch.collate([tokens]).padded()
