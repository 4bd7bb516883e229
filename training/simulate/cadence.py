"""Visits and fluxes of an LSST-like survey with difference images.

**Visits** (nights, bands, depths), for many objects at once. The simulation includes season gaps, weather, the moon (u
and g in dark time, z and Y in bright time), pairs of visits half an hour apart in the same or neighbouring bands,
nights with two pairs where fields overlap, rolling (a field has many visits in one year and few in the next), and deep
fields with five times the visits. The rate is 825 visits of the wide survey in ten years (LSST Science Requirements,
LPM-17) and overlaps; band pairs, visits per night and depths are close to those of 5,000 ELAsTiCC supernovae (depths to
0.1 mag). Visits do not depend on the class of the object.

**Measured flux and reported error.** The error includes the sky (from the visit's depth), the photon noise of all light
in the aperture (the source and the constant light that is subtracted) and a calibration error. The reported error is
accurate to some per cent, and one point in a thousand has three times its error.

**Detections and alert histories.** The detection probability is a logistic function of |S/N|, one half at 5, which
agrees with detections of the ELAsTiCC challenge to 3 % between S/N 3 and 12. An object is detected by the survey if it
has two detections. Its history is from 30 days before the first detection, when forced photometry starts, to the last
detection.

**Sources with constant light**: a difference image has their light minus that of the template. Templates are medians of
a few visits before the survey, at unknown phases of the variation, so each band has a different zero level, and
difference fluxes are as often negative as positive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import NJY_ZERO_POINT, njy_of_magnitude
from nightjar_alerts.training.data.dataset import LabelledObject
from nightjar_alerts.training.simulate.photometry import Floats, Ints

SURVEY_START = 60600.0  # MJD TAI
SURVEY_NIGHTS = 1095
DEEP_FRACTION = 0.05
MOON_PERIOD = 29.53
# share of each pair of bands among the pairs of visits, by band index in u g r i z Y
PAIRS: dict[tuple[int, int], float] = {
    (3, 4): 0.202, (2, 3): 0.185, (4, 5): 0.178, (1, 2): 0.159, (5, 5): 0.126, (0, 2): 0.075, (0, 1): 0.020,
    (2, 2): 0.019, (3, 3): 0.016, (4, 4): 0.014, (1, 1): 0.006,
}  # fmt: skip
PAIR_BANDS: Ints = np.array(list(PAIRS), dtype=np.int64)
PAIR_SHARE: Floats = np.array(list(PAIRS.values()))
BAND_SHARE: Floats = 0.5 * PAIR_SHARE @ (PAIR_BANDS[:, :, None] == np.arange(6)).sum(axis=1, dtype=np.float64)
# dark-time preference of each band: the share is multiplied by exp(tilt * darkness), darkness in [-1, 1]; the u filter
# is available for the half month around new moon only
DARK_TILT: Floats = np.array([4.0, 0.7, 0.15, 0.0, -0.45, -0.6])
VISITS_A_NIGHT: Floats = np.array([0.165, 0.53, 0.08, 0.225])  # chance of 1, 2, 3, 4
MEAN_VISITS_A_NIGHT = float(VISITS_A_NIGHT @ np.arange(1.0, 5.0))
VISITS_A_YEAR = 90.0  # of the wide survey, over all bands
BUSY, RESTING = 1.75, 0.25  # rolling: a field's rate in alternate years over its mean
# 5-sigma point-source depth of one 30 s visit at new moon, AB, before the losses of `_depths`
DEPTH: Floats = np.array([24.0, 24.9, 24.5, 23.9, 23.2, 22.6])
MOON_LOSS: Floats = np.array([0.6, 0.5, 0.3, 0.15, 0.05, 0.05])  # depth lost at full moon, mag
DEEP_GAP = 0.011  # days between bands of a deep field's sequence
SLOTS = 6  # maximum number of visits in one night


@dataclass(frozen=True, eq=False)
class Visits:
    """Visits of ``n`` objects, flat and sorted by (object_index, mjd).

    ``object_index`` i64[P], ``mjd`` f64[P] TAI days, ``band`` i64[P], ``depth`` f64[P] 5-sigma AB magnitude.
    """

    n: int
    object_index: Ints
    mjd: Floats
    band: Ints
    depth: Floats


def visits(
    rng: np.random.Generator,
    n: int,
    start: Floats | None = None,
    end: Floats | None = None,
    *,
    deep_fraction: float = DEEP_FRACTION,
) -> Visits:
    """Draw the visits of ``n`` positions over three years, limited to [start, end] (f64[n], MJD) if given.

    ``deep_fraction`` of the positions are in deep fields, the others in the wide survey.
    """
    deep = rng.random(n) < deep_fraction
    observed = _nights(rng, n, deep)
    day: Floats = SURVEY_START + np.arange(SURVEY_NIGHTS, dtype=np.float64)
    if start is not None:
        observed &= day[None, :] >= start[:, None]
    if end is not None:
        observed &= day[None, :] <= end[:, None]
    object_index, night = np.nonzero(observed)
    darkness = np.cos(2.0 * np.pi * (night + rng.uniform(0.0, MOON_PERIOD, n)[object_index]) / MOON_PERIOD)
    slot_band = _bands(rng, darkness, deep[object_index])
    slot_mjd = _times(rng, n, day[night], object_index, deep[object_index])
    night_depth = _depths(rng, n, object_index)
    row, slot = np.nonzero(slot_band >= 0)
    order = np.lexsort((slot_mjd[row, slot], object_index[row]))
    row, slot = row[order], slot[order]
    band = slot_band[row, slot]
    moon = 0.5 * (1.0 - darkness[row]) * MOON_LOSS[band]
    depth = DEPTH[band] + night_depth[row] - moon + 0.08 * rng.standard_normal(len(row))
    return Visits(n=n, object_index=object_index[row], mjd=slot_mjd[row, slot], band=band, depth=depth)


def _nights(rng: np.random.Generator, n: int, deep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the nights with a visit, bool[n, SURVEY_NIGHTS]: in season, clear, and scheduled."""
    day = np.arange(SURVEY_NIGHTS)[None, :]
    season_length = rng.uniform(150.0, 230.0, (n, 1))
    year, day_of_year = np.divmod(day + rng.uniform(0.0, 365.25, (n, 1)), 365.25)
    spells = rng.random((n, SURVEY_NIGHTS // 4 + 2), dtype=np.float32) < 0.8  # weather comes in spells of four nights
    clear = np.repeat(spells, 4, axis=1)[:, :SURVEY_NIGHTS]
    rolling = np.where((year + rng.integers(2, size=(n, 1))) % 2 == 0, BUSY, RESTING)
    rate = VISITS_A_YEAR / MEAN_VISITS_A_NIGHT / (0.8 * season_length) * np.exp(0.15 * rng.standard_normal((n, 1)))
    chance = np.where(deep[:, None], 0.6, np.minimum(rate * rolling, 0.9))
    return (day_of_year < season_length) & clear & (rng.random((n, SURVEY_NIGHTS), dtype=np.float32) < chance)


def _bands(rng: np.random.Generator, darkness: Floats, deep: NDArray[np.bool_]) -> Ints:
    """Return the band of each visit of each night, i64[nights, SLOTS], -1 for none: up to two pairs, more if deep."""
    n = len(darkness)
    tilt = DARK_TILT[PAIR_BANDS].mean(axis=1)
    weight = PAIR_SHARE * np.exp(tilt * darkness[:, None]) / np.i0(tilt)  # the mean over a month is the share
    cumulative = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    first, second = ((rng.random((n, 1)) > cumulative[:, :-1]).sum(axis=1) for _ in range(2))
    count = 1 + np.searchsorted(np.cumsum(VISITS_A_NIGHT)[:-1], rng.random(n), side="right")
    wide = np.full((n, SLOTS), -1, dtype=np.int64)
    wide[:, :4] = rng.permuted(np.stack([PAIR_BANDS[first], PAIR_BANDS[second]], axis=1), axis=2).reshape(n, 4)
    wide[np.arange(SLOTS) >= count[:, None]] = -1
    share = BAND_SHARE * np.exp(DARK_TILT * darkness[:, None])
    is_visited = rng.random((n, SLOTS)) < 0.9 * np.sqrt(share / share.max(axis=1, keepdims=True))
    sequence = np.where(is_visited | ~is_visited.any(axis=1, keepdims=True), np.arange(SLOTS), -1)
    return np.where(deep[:, None], sequence, wide)


def _times(rng: np.random.Generator, n: int, day: Floats, object_index: Ints, deep: NDArray[np.bool_]) -> Floats:
    """Return the MJD of each visit, f64[nights, SLOTS]; pairs are some 34 minutes apart."""
    begin: Floats = day + rng.uniform(0.05, 0.2, n)[object_index] + rng.uniform(0.0, 0.12, len(day))
    repeat, overlap = rng.uniform(0.0215, 0.0255, len(day)), rng.uniform(0.003, 0.014, len(day))
    zero = np.zeros(len(day))
    pairs = np.stack([zero, repeat, overlap, overlap + repeat, zero, zero], axis=1)
    sequence = DEEP_GAP * rng.random((len(day), SLOTS)).argsort(axis=1)
    mjd: Floats = begin[:, None] + np.where(deep[:, None], sequence, pairs)
    return mjd


def _depths(rng: np.random.Generator, n: int, object_index: Ints) -> Floats:
    """Return the change of depth of each night, f64[nights] mag: a template and blending loss per field, and seeing.

    The field loss of 0.3 to 0.9 mag is the range between nominal single-visit depths and those of difference images
    with shallow templates. The distribution of seeing has a long tail of bad seeing.
    """
    field_loss = rng.uniform(0.3, 0.9, n)[object_index]
    seeing = np.minimum(0.25 * rng.standard_normal(len(object_index)), 0.2) - 0.08 * rng.exponential(
        1.0, len(object_index)
    )
    gain: Floats = seeing - field_loss
    return gain


OUTLIER_FRACTION = 0.001


# of Rubin: photo-electrons per nJy in 30 s, from instrumental zero points in mag/(e/s); calibration error over total
# flux; scatter of the reported error about the true one, in e-folds
ELECTRONS: Floats = 30.0 * 10.0 ** (0.4 * (np.array([27.0, 28.4, 28.2, 27.9, 27.5, 26.7]) - NJY_ZERO_POINT))
FLOOR: Floats = np.array([0.010, 0.006, 0.006, 0.006, 0.008, 0.010])
MISJUDGED = 0.04


def observe(rng: np.random.Generator, visits: Visits, difference: Floats, steady: Floats) -> tuple[Floats, Floats]:
    """Draw measured difference flux and reported 1-sigma error, f64[P] nJy, for the true fluxes of the visits."""
    sky = njy_of_magnitude(visits.depth) / 5.0
    total = np.maximum(difference + steady, 0.0)
    photons = (total + steady) / ELECTRONS[visits.band]  # the template contributes its own photon noise
    floor = FLOOR[visits.band] * total
    sigma = np.sqrt(sky**2 + photons + floor**2)
    deviate = rng.standard_normal(len(sigma))
    tail = rng.random(len(sigma)) < OUTLIER_FRACTION
    flux = difference + sigma * np.where(tail, 3.0, 1.0) * deviate
    error: Floats = sigma * np.exp(MISJUDGED * rng.standard_normal(len(sigma)))
    return flux, error


HALF_EFFICIENCY_SNR = 5.0
EFFICIENCY_WIDTH = 1.0
MINIMUM_SNR = 3.0
MINIMUM_DETECTIONS = 2
PRE_TRIGGER_DAYS = 30.0


def detect(rng: np.random.Generator, flux: Floats, error: Floats) -> NDArray[np.bool_]:
    """Return the detection flag of each point, bool[P]; negative difference flux is detected like positive flux."""
    snr = np.abs(flux) / error
    exponent = np.clip((HALF_EFFICIENCY_SNR - snr) / EFFICIENCY_WIDTH, -50.0, 50.0)
    return (snr > MINIMUM_SNR) & (rng.random(len(snr)) < 1.0 / (1.0 + np.exp(exponent)))


def history(visits: Visits, detected: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Floats]:
    """Return the points of the last alert's history, bool[P], and the trigger MJD, f64[n] (+inf if not detected).

    Objects with fewer than two detections have no point.
    """
    first, last = np.full(visits.n, np.inf), np.full(visits.n, -np.inf)
    np.minimum.at(first, visits.object_index[detected], visits.mjd[detected])
    np.maximum.at(last, visits.object_index[detected], visits.mjd[detected])
    count = np.bincount(visits.object_index[detected], minlength=visits.n)
    inside = (visits.mjd >= first[visits.object_index] - PRE_TRIGGER_DAYS) & (visits.mjd <= last[visits.object_index])
    return inside & (count[visits.object_index] >= MINIMUM_DETECTIONS), first


TEMPLATE_VISITS = 7
TEMPLATE_SPAN = 365.0  # days before the survey

# (mjd f64[P], object_index i64[P], band i64[P]) -> total flux f64[P] in nJy
TotalFlux: TypeAlias = Callable[[Floats, Ints, Ints], Floats]


@dataclass(frozen=True, eq=False)
class Signal:
    """True fluxes of every visit: ``difference`` and ``steady`` (template) flux f64[P] nJy; ``redshift`` f64[n]."""

    difference: Floats
    steady: Floats
    redshift: Floats


def subtract_template(rng: np.random.Generator, visits: Visits, total: TotalFlux) -> Signal:
    """Return the difference flux of a source inside the Galaxy whose total flux is ``total``."""
    shape = (visits.n, 6, TEMPLATE_VISITS)
    epoch = SURVEY_START - rng.uniform(0.0, TEMPLATE_SPAN, shape)
    own, band, _ = np.broadcast_arrays(*np.ogrid[: shape[0], : shape[1], : shape[2]])
    template = total(epoch.ravel(), own.ravel(), band.ravel()).reshape(shape)
    steady = np.median(template, axis=2)[visits.object_index, visits.band]
    now = total(visits.mjd, visits.object_index, visits.band)
    return Signal(difference=now - steady, steady=steady, redshift=np.zeros(visits.n))


@dataclass(frozen=True, eq=False)
class MeasuredPoints:
    """Points of ``visits.n`` candidates of one class: ``flux``, ``error`` f64[P] nJy.

    ``detected``, ``is_published`` bool[P], ``trigger`` f64[n] MJD of the first detection, ``metadata`` f32[n, 64],
    ``redshift`` f64[n].
    """

    visits: Visits
    flux: Floats
    error: Floats
    detected: NDArray[np.bool_]
    is_published: NDArray[np.bool_]
    trigger: Floats
    metadata: NDArray[np.float32]
    redshift: Floats


def objects(name: str, first_id: int, points: MeasuredPoints) -> list[LabelledObject]:
    """Return the candidates with a published point, numbered from ``first_id``."""
    visits, rows_kept = points.visits, np.flatnonzero(points.is_published)
    edges = np.searchsorted(visits.object_index[rows_kept], np.arange(visits.n + 1))
    candidates: list[LabelledObject] = []
    for index in np.flatnonzero(np.diff(edges)):
        rows = rows_kept[edges[index] : edges[index + 1]]
        candidates.append(
            LabelledObject(
                object_id=str(first_id + len(candidates)),
                class_name=name,
                mjd=visits.mjd[rows],
                flux=points.flux[rows].astype(np.float32),
                flux_err=points.error[rows].astype(np.float32),
                band=visits.band[rows].astype(np.int8),
                detected=points.detected[rows],
                trigger_mjd=float(points.trigger[index]),
                metadata=points.metadata[index],
                redshift=float(points.redshift[index]),
            )
        )
    return candidates
