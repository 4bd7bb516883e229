"""Light curves of no known class, for fitting novelty: real objects of other classes, and unphysical light curves.

Legend: N light curves, C classes.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from nightjar_alerts.models.lightcurve import Bool, Int64, RaggedBatch
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.drawn import PARTS, draw_curves, drawn_sample, join_drawn, network_inputs
from nightjar_alerts.training.data.mixture import with_all_metadata
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.data.surveys import as_observed
from nightjar_alerts.training.recipes.schema import Recipe


def synthetic_outliers(light_curves: Sample, seed: int) -> Sample:
    """Return unphysical light curves: fluxes shuffled in time, or the second half replaced by the mirrored first half.

    They are made from light curves with five detections or more, since others could not be distinguished.
    """
    rng = np.random.default_rng(seed)
    good = np.flatnonzero(light_curves.detections >= 5)
    half = len(good) // 2
    shuffled, mirrored = rng.permutation(good)[:half], rng.permutation(good)[:half]
    return join_drawn([_shuffled(light_curves, shuffled, rng), _doubled(light_curves, mirrored, rng)])


def _shuffled(light_curves: Sample, rows: Int64, rng: np.random.Generator) -> Sample:
    """Return light curves with fluxes and errors shuffled in time."""
    curves = network_inputs(light_curves, rows)
    order = np.arange(int(curves.offsets[-1]))
    for start, stop in zip(curves.offsets[:-1], curves.offsets[1:], strict=True):
        order[start:stop] = start + rng.permutation(int(stop - start))
    changed = replace(curves, flux=curves.flux[order], flux_err=curves.flux_err[order], detected=curves.detected[order])
    return _outliers(changed, "shuffled", rows)


def _doubled(light_curves: Sample, rows: Int64, rng: np.random.Generator) -> Sample:
    """Return light curves whose second half is the first half mirrored and scaled by a factor of 1/4 to 4."""
    curves = network_inputs(light_curves, rows)
    flux = curves.flux.copy()
    for start, stop in zip(curves.offsets[:-1], curves.offsets[1:], strict=True):
        half = (int(stop) - int(start)) // 2
        factor = np.float32(4.0 ** rng.uniform(-1, 1))
        flux[stop - half : stop] = factor * flux[start : start + half][::-1]
    changed = replace(curves, flux=flux, detected=np.abs(flux) >= 5 * curves.flux_err)
    return _outliers(changed, "doubled", rows)


def _outliers(curves: RaggedBatch, kind: str, rows: Int64) -> Sample:
    return drawn_sample(curves, np.full(len(rows), -1, np.int64), np.full(len(rows), kind), rows)


OTHER: Final = "other"  # quality of real objects of no known class
MAX_PER_LABEL: Final = 80
_NOT_SUPERNOVAE: Final = [
    index
    for index, leaf in enumerate(ELASTICC.classes)
    if leaf.path[-1] in ("Periodic", "Non-Periodic", "Fast") or leaf.name == "TDE"
]


COPIES: Final = 6  # samples of each real outlier
SYNTHETIC_OUTLIERS: Final = 3_000
MIN_POINTS: Final = 8  # minimum number of points of a real outlier
MIN_DETECTIONS: Final = 3


def real_outliers(sample: Sample, recipe: Recipe, classes: tuple[str, ...], seed: int) -> Sample:
    """Draw light curves of real training objects outside the known classes; ``source`` is the kind of object."""
    outlier = sample.quality == OTHER
    if classes != ELASTICC.names:  # outliers of the six types of supernovae include other transients and variables
        outlier |= _sample_of_each(np.where(np.isin(sample.label, _NOT_SUPERNOVAE), sample.label, -1), seed)
    usable = outlier & (sample.part == 0) & (sample.lengths >= MIN_POINTS)
    chosen = as_observed(sample.take(usable & (sample.detections >= MIN_DETECTIONS)))
    names = np.where(chosen.label < 0, chosen.raw_label, np.array(ELASTICC.names)[chosen.label])
    kinds = replace(with_all_metadata(chosen), source=names)
    rows: Int64 = np.repeat(np.arange(len(kinds)), COPIES)
    return draw_curves(kinds, rows, recipe, np.random.default_rng((seed, len(PARTS))))


def _sample_of_each(label_N: Int64, seed: int) -> Bool:
    """Return a mask of at most `MAX_PER_LABEL` random objects of each label that is not negative."""
    order = np.random.default_rng(seed).permutation(len(label_N))
    flags = np.zeros(len(label_N), dtype=np.bool_)
    for label in np.unique(label_N[label_N >= 0]):
        flags[order[label_N[order] == label][:MAX_PER_LABEL]] = True
    return flags
