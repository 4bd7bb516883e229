"""Supernovae as ZTF's Bright Transient Survey collects them: six spectroscopic classes, g and r, detections alone.

What a network sees before it is shown the few thousand real ones: near objects (redshift below 0.2, superluminous ones
to 0.6), at maximum brighter than about magnitude 19, at least eight detections, no metadata.

Notable: the physics is that of the deep survey (`training.simulate.transients`); what is another is who is out there,
when ZTF looks, how deep, and what gets a spectrum. Cadence, depths, errors and the selection were set by eye against
6,082 typed ZTF supernovae: medians of peak, colour, duration and number of points agree to 0.2 mag, 0.15 mag and 30 %,
except that real IIn and II last longer and fade from their maximum sooner. No object of that set is in this one, but
it is no independent check of it either. Survey: Fremling+ 2020, Perley+ 2020 (ApJ 904, 35); depths: Bellm+ 2019.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.metadata import METADATA_COLUMNS
from models.units import NJY_ZERO_POINT
from training.data.dataset import LabelledObject
from training.simulate import cadence, photometry, transient_classes, transients
from training.simulate.cadence import MOON_PERIOD, SURVEY_NIGHTS, SURVEY_START, Measured, Visits, objects
from training.simulate.photometry import Floats, Ints
from training.simulate.transient_classes import Kind, Plateau, Spread

CANDIDATES = 128
FAINTEST_PEAK = 19.8  # AB; hardly anything fainter has eight detections
MIN_DETECTIONS = 8
G, R = 1, 2
DEPTH: Floats = np.array([0.0, 20.1, 20.0, 0.0, 0.0, 0.0])  # 5 sigma in difference images, half moon
MOON_GAIN: Floats = np.array([0.0, 0.3, 0.18, 0.0, 0.0, 0.0])  # magnitudes gained at new moon and lost at full
SPECTRUM_LIMIT, SPECTRUM_WIDTH = 18.9, 0.2  # peak magnitude at which half of the objects get a spectrum
SUPERLUMINOUS_LIMIT = 19.3  # rare ones are followed deeper


def _near(kind: Kind, share: float, farthest: float) -> Kind:
    return replace(kind, population=replace(kind.population, share=share, redshift=(0.003, farthest)))


def _paced(kind: Kind, rise: Spread, fall: Spread, tail_time: Spread) -> Kind:
    return replace(kind, light=replace(kind.light, rise=rise, fall=fall, tail_time=tail_time))


def _luminous(kind: Kind, magnitude: Spread) -> Kind:
    return replace(kind, population=replace(kind.population, magnitude=magnitude))


def _bluer(kind: Kind, cooling: float, slope: Spread) -> Kind:
    """Slower cooling and a steeper plateau than the deep survey's, as the ZTF set has them in g - r."""
    plateau = Plateau(kind.plateau.length, slope)
    return replace(kind, colour=replace(kind.colour, cooling=(cooling, 0.3)), plateau=plateau)


def _kinds() -> dict[str, tuple[Kind, ...]]:
    t = transient_classes
    return {
        "Ia": (_near(t.NORMAL_IA, 0.90, 0.17), _near(t.LIKE_1991BG, 0.05, 0.1), _near(t.LIKE_2002CX, 0.05, 0.12)),
        "II": (
            _bluer(_near(t.IIP, 0.55, 0.1), 30.0, (0.012, 0.6)),
            _bluer(_near(t.IIL, 0.3, 0.12), 25.0, (0.024, 0.35)),
            _near(t.IIB, 0.15, 0.1),
        ),
        "Ibc": (_near(t.IB, 0.45, 0.1), _near(t.IC, 0.35, 0.1), _near(t.IC_BROAD_LINED, 0.2, 0.15)),
        "IIn": (_luminous(_near(t.IIN, 1.0, 0.2), (-18.8, 0.9)),),
        "SLSN-I": (_paced(_near(t.SUPERLUMINOUS, 1.0, 0.6), (27.0, 0.35), (26.0, 0.35), (50.0, 0.35)),),
        "SLSN-II": (
            _paced(_luminous(_near(t.IIN, 0.6, 0.45), (-20.6, 0.6)), (35.0, 0.4), (35.0, 0.4), (60.0, 0.4)),
            _luminous(_near(t.SUPERLUMINOUS, 0.4, 0.45), (-20.8, 0.6)),
        ),
    }


KINDS = _kinds()
"""Subtypes of each class of `models.taxonomy.ZTF_SUPERNOVAE`."""


def candidates(rng: np.random.Generator, name: str, first_id: int) -> list[LabelledObject]:
    """Draw `CANDIDATES` explosions of class ``name`` and return those that the survey would have classified."""
    milky_way = photometry.milky_way_dust(rng, CANDIDATES, galactic=False)
    first, last = SURVEY_START - 30.0, SURVEY_START + SURVEY_NIGHTS
    events = transients.draw(rng, KINDS[name], milky_way, first, last, faintest=FAINTEST_PEAK)
    seen = visits(rng, CANDIDATES, *transients.window(events))
    true = transients.flux(events, seen)
    flux, error = cadence.observe(rng, seen, true, np.zeros_like(true), cadence.ZTF)
    alerted = _alerted(rng, flux / error)
    kept = alerted & _classified(rng, name, seen, np.where(alerted, flux, 0.0))[seen.owner]
    trigger = np.full(CANDIDATES, np.inf)
    np.minimum.at(trigger, seen.owner[kept], seen.mjd[kept])
    missing = np.full((CANDIDATES, len(METADATA_COLUMNS)), np.nan, np.float32)
    points = Measured(seen, flux, error, alerted & (flux > 4.2 * error), kept, trigger, missing, events.redshift)
    return objects(name, first_id, points)


def _alerted(rng: np.random.Generator, snr: Floats) -> NDArray[np.bool_]:
    """Draw which points became alerts: most images ask for a signal to noise of 4.5, one in five for less."""
    threshold = np.where(rng.random(len(snr)) < 0.8, 4.5, 3.3) + 0.4 * rng.standard_normal(len(snr))
    return snr > threshold


def _classified(rng: np.random.Generator, name: str, seen: Visits, flux: Floats) -> NDArray[np.bool_]:
    """Draw which candidates got a spectrum and enough detections, bool[n]; ``flux`` is 0 where nothing was alerted."""
    brightest = np.full(seen.n, 1e-3)
    np.maximum.at(brightest, seen.owner, flux)
    peak = NJY_ZERO_POINT - 2.5 * np.log10(brightest)
    limit = SUPERLUMINOUS_LIMIT if name.startswith("SLSN") else SPECTRUM_LIMIT
    chance = 1.0 / (1.0 + np.exp(np.clip((peak - limit) / SPECTRUM_WIDTH, -50.0, 50.0)))
    enough = np.bincount(seen.owner[flux > 0.0], minlength=seen.n) >= MIN_DETECTIONS
    classified: NDArray[np.bool_] = enough & (rng.random(seen.n) < chance)
    return classified


def visits(rng: np.random.Generator, n: int, start: Floats, end: Floats) -> Visits:
    """ZTF's visits in g and r to ``n`` positions within [start, end] (f64[n], MJD).

    A field has its turn every night, every second or every third, is now and then visited between, and on many nights
    in both bands.
    """
    night_of = np.arange(SURVEY_NIGHTS)
    day: Floats = SURVEY_START + night_of.astype(np.float64)
    observed = _nights(rng, n, night_of) & (day >= start[:, None]) & (day <= end[:, None])
    owner, night = np.nonzero(observed)
    count = len(owner)
    first = np.where(rng.random(count) < rng.uniform(0.35, 0.5, n)[owner], G, R)
    second = rng.random(count) < rng.uniform(0.25, 0.75, n)[owner]
    third = rng.random(count) < 0.08
    row = np.concatenate([np.arange(count), np.flatnonzero(second), np.flatnonzero(third)])
    hour = np.concatenate([np.full(count, 0.2), np.full(second.sum(), 0.36), np.full(third.sum(), 0.46)])
    band = np.concatenate([first, (G + R) - first[second], first[third]]).astype(np.int64)
    mjd = day[night[row]] + hour + rng.uniform(-0.05, 0.05, len(row))
    order = np.lexsort((mjd, owner[row]))
    return _exposures(rng, n, owner[row][order], mjd[order], band[order])


def _exposures(rng: np.random.Generator, n: int, owner: Ints, mjd: Floats, band: Ints) -> Visits:
    moon = np.cos(2.0 * np.pi * (mjd + rng.uniform(0.0, MOON_PERIOD, n)[owner]) / MOON_PERIOD)
    scatter = 0.12 * rng.standard_normal(n)[owner] + 0.25 * rng.standard_normal(len(owner))
    return Visits(n, owner, mjd, band, DEPTH[band] + MOON_GAIN[band] * moon + scatter)


def _nights(rng: np.random.Generator, n: int, night: Ints) -> NDArray[np.bool_]:
    """Nights on which each position is observed, bool[n, nights]: in season, clear, and in its turn."""
    day_of_year = np.mod(night + rng.uniform(0.0, 365.25, (n, 1)), 365.25)
    spells = rng.random((n, len(night) // 3 + 2)) < 0.8  # weather comes in spells of three nights
    clear = np.repeat(spells, 3, axis=1)[:, : len(night)]
    every = rng.choice([1, 2, 3], p=[0.25, 0.5, 0.25], size=(n, 1))
    turn = np.mod(night + rng.integers(0, 3, (n, 1)), every) == 0
    visited = rng.random((n, len(night))) < np.where(turn, 0.75, 0.12)
    return (day_of_year < rng.uniform(190.0, 300.0, (n, 1))) & clear & visited
