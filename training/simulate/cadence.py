"""When an LSST-like survey looks at one position: nights, bands and depths of its visits, for many objects at once.

Notable: what is imitated is what a classifier can trip over: season gaps, weather, moon (u and g in dark time, z and
Y in bright time), pairs of visits in two bands within half an hour, and deep fields with five times the visits. Rates
follow the wide survey's 56/80/184/184/160/160 visits in u g r i z Y over ten years (LSST Science Requirements, LPM-17).
Nothing here knows the class of the object.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.simulate.photometry import Floats, Ints

SURVEY_START = 60600.0  # MJD TAI
SURVEY_NIGHTS = 1095
DEEP_FRACTION = 0.1
MOON_PERIOD = 29.53
VISIT_SHARE: Floats = np.array([56.0, 80.0, 184.0, 184.0, 160.0, 160.0]) / 824.0
# dark-time preference of each band: the share is multiplied by exp(tilt * darkness), darkness in [-1, 1]
DARK_TILT: Floats = np.array([1.6, 0.7, 0.15, 0.0, -0.45, -0.6])
# 5-sigma point-source depth of one 30 s visit, AB (Ivezic et al. 2019, ApJ 873, 111, table 2, rounded)
DEPTH: Floats = np.array([23.9, 25.0, 24.7, 24.0, 23.3, 22.1])
MOON_LOSS: Floats = np.array([0.6, 0.5, 0.3, 0.15, 0.05, 0.05])  # depth lost at full moon, mag
VISIT_GAP = 0.011  # days between consecutive visits of one night


@dataclass(frozen=True, eq=False)
class Visits:
    """Visits of ``n`` objects, flat and sorted by (owner, mjd).

    ``owner`` i64[P] object number, ``mjd`` f64[P] TAI days, ``band`` i64[P], ``depth`` f64[P] 5-sigma AB magnitude.
    """

    n: int
    owner: Ints
    mjd: Floats
    band: Ints
    depth: Floats


def visits(rng: np.random.Generator, n: int, start: Floats | None = None, end: Floats | None = None) -> Visits:
    """Draw the visits of ``n`` positions over three years, kept to [start, end] (f64[n], MJD) where given."""
    deep = rng.random(n) < DEEP_FRACTION
    observed = _nights(rng, n, deep)
    day: Floats = SURVEY_START + np.arange(SURVEY_NIGHTS, dtype=np.float64)
    if start is not None:
        observed &= day[None, :] >= start[:, None]
    if end is not None:
        observed &= day[None, :] <= end[:, None]
    owner, night = np.nonzero(observed)
    darkness = np.cos(2.0 * np.pi * (night + rng.uniform(0.0, MOON_PERIOD, n)[owner]) / MOON_PERIOD)
    chosen = _bands(rng, darkness, deep[owner])
    mjd = _times(rng, n, day[night], owner, chosen)
    depth = _depths(rng, n, owner, darkness)
    row, band = np.nonzero(chosen)
    order = np.lexsort((mjd[row, band], owner[row]))
    row, band = row[order], band[order]
    return Visits(n=n, owner=owner[row], mjd=mjd[row, band], band=band.astype(np.int64), depth=depth[row, band])


def _nights(rng: np.random.Generator, n: int, deep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Nights with at least one visit, bool[n, SURVEY_NIGHTS]: in season, clear, and scheduled."""
    day = np.arange(SURVEY_NIGHTS)[None, :]
    season_length = rng.uniform(150.0, 230.0, (n, 1))
    in_season = (day + rng.uniform(0.0, 365.25, (n, 1))) % 365.25 < season_length
    spells = rng.random((n, SURVEY_NIGHTS // 4 + 2)) < 0.8  # weather comes in spells of four nights
    clear = np.repeat(spells, 4, axis=1)[:, :SURVEY_NIGHTS]
    # 82 visits a year in pairs over ~190 nights, 80 % of them clear, is one night in 3.7; fields differ by a third
    wide = 41.0 / (0.8 * season_length) * np.exp(0.3 * rng.standard_normal((n, 1)))
    chance = np.where(deep[:, None], 0.6, np.minimum(wide, 0.9))
    return in_season & clear & (rng.random((n, SURVEY_NIGHTS)) < chance)


def _bands(rng: np.random.Generator, darkness: Floats, deep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Bands of each night, bool[nights, 6]: a first band and usually its neighbour, or most bands in deep fields."""
    weight = VISIT_SHARE * np.exp(DARK_TILT * darkness[:, None])
    cumulative = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    first = (rng.random((len(darkness), 1)) > cumulative[:, :5]).sum(axis=1)
    step = np.where(rng.random(len(darkness)) < 0.5, 1, -1)
    step = np.where(first == 0, 1, np.where(first == 5, -1, step))
    second = np.where(rng.random(len(darkness)) < 0.88, first + step, first)
    rows = np.arange(len(darkness))
    chosen = np.zeros((len(darkness), 6), dtype=bool)
    chosen[rows, first] = True
    chosen[rows, second] = True
    every = rng.random(chosen.shape) < 0.8 * weight / weight.max(axis=1, keepdims=True)
    return np.where(deep[:, None], every | chosen, chosen)


def _times(rng: np.random.Generator, n: int, day: Floats, owner: Ints, chosen: NDArray[np.bool_]) -> Floats:
    """MJD of each (night, band): the field's time of night, then visits some 16 to 30 minutes apart."""
    begin: Floats = day + rng.uniform(0.05, 0.2, n)[owner] + rng.uniform(0.0, 0.12, len(day))
    sequence = rng.random(chosen.shape).argsort(axis=1)
    mjd: Floats = begin[:, None] + VISIT_GAP * (1.0 + rng.random((len(day), 1))) * sequence
    return mjd


def _depths(rng: np.random.Generator, n: int, owner: Ints, darkness: Floats) -> Floats:
    """5-sigma depth f64[nights, 6]: nominal, less a template and blending loss per field, moon, and seeing per night.

    The field loss of 0.2 to 1 mag spans what separates nominal single-visit depths from those measured on difference
    images with shallow templates.
    """
    field_loss = rng.uniform(0.2, 1.0, n)[owner]
    seeing = np.minimum(0.25 * rng.standard_normal(len(owner)), 0.4) - 0.1 * rng.exponential(1.0, len(owner))
    moon = 0.5 * (1.0 - darkness)[:, None] * MOON_LOSS
    depth: Floats = DEPTH - (field_loss - seeing)[:, None] - moon + 0.08 * rng.standard_normal((len(owner), 6))
    return depth
