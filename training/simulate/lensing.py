"""Microlensing by one star or a pair of stars, and of one or two sources; without parallax.

Class uLens. A single lens follows Paczynski 1986 (eq. 1). A binary lens follows the lens equation of two point masses,
solved as the complex quintic of Witt & Mao 1995 at every point within a few Einstein radii: its light curves have
several peaks and the sharp rises and falls of caustic crossings. Blended light that is not lensed is added; colours
are constant. Events happen at a uniform time with a log-normal Einstein time about 25 days (Wyrzykowski+ 2015).
Notable: the source is a point, so at a caustic its magnification is cut at what a disc of finite size would reach.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from training.simulate.cadence import SURVEY_NIGHTS, SURVEY_START, Visits
from training.simulate.periodic import star_magnitudes
from training.simulate.photometry import Floats, Ints, magnitude_to_njy
from training.simulate.signal import Signal, subtract_template

Complexes: TypeAlias = NDArray[np.complex128]

BINARY_SOURCES, BINARY_LENSES = 0.1, 0.3  # shares of the events
FAR = 3.5  # Einstein radii beyond which two lenses act as one, to better than 2 %
RESIDUAL = 1e-4  # a root of the quintic is an image if it solves the lens equation this well


@dataclass(frozen=True, eq=False)
class _Lenses:
    """The lenses of ``n`` events: ``paired`` bool[n], mass ``ratio``, ``separation``, ``angle`` of the track in rad.

    ``limit`` is the magnification that the source's size allows.
    """

    paired: NDArray[np.bool_]
    ratio: Floats
    separation: Floats
    angle: Floats
    limit: Floats


def microlensing(rng: np.random.Generator, visits: Visits, milky_way: Floats) -> Signal:
    """Stars magnified by a passing mass; three in ten lenses and one in ten sources are double."""
    n = visits.n
    star = magnitude_to_njy(
        star_magnitudes(rng, rng.uniform(16.5, 23.0, n), np.exp(rng.normal(np.log(4700.0), 0.15, n)), milky_way)
    )
    crossing = np.exp(rng.normal(np.log(25.0), 0.9, n)).clip(2.0, 400.0)  # Einstein time, days
    peak = rng.uniform(SURVEY_START, SURVEY_START + SURVEY_NIGHTS, n)
    nearest = rng.uniform(0.0, 1.0, (2, n)) + 0.003
    offset = crossing * rng.normal(0.0, 1.2, n)
    kind = rng.random(n)
    share = np.where(kind < BINARY_SOURCES, rng.uniform(0.1, 0.5, n), 0.0)
    lenses = _pairs(rng, kind > 1.0 - BINARY_LENSES)
    source = rng.beta(2.5, 1.0, n)  # the rest is blended light that is not lensed

    def total(mjd: Floats, own: Ints, band: Ints) -> Floats:
        first = _gain((mjd - peak[own]) / crossing[own], nearest[0, own], lenses, own)
        second = magnification((mjd - peak[own] - offset[own]) / crossing[own], nearest[1, own])
        gain = (1.0 - share[own]) * first + share[own] * second
        return star[own, band] * (1.0 + source[own] * (gain - 1.0))

    return subtract_template(rng, visits, total)


def magnification(time: Floats, nearest: Floats) -> Floats:
    """Point-lens magnification at ``time`` Einstein times from closest approach ``nearest`` (Paczynski 1986, eq. 1)."""
    u2 = time**2 + nearest**2
    gain: Floats = (u2 + 2.0) / np.sqrt(u2 * (u2 + 4.0))
    return gain


def binary_magnification(source: Complexes, ratio: Floats, separation: Floats) -> Floats:
    """Magnification of point sources by two masses of sum 1, f64[P].

    Parameters
    ----------
    source : positions in Einstein radii of the total mass, from the midpoint of the lenses, which lie on the real axis.
    ratio : mass of the lens at +separation / 2 over that of the lens at -separation / 2.
    """
    right = ratio / (1.0 + ratio)
    masses = np.stack([right, 1.0 - right], axis=-1)[:, None, :]
    places = (0.5 * separation)[:, None, None] * np.array([1.0, -1.0])
    companion = np.zeros((len(source), 5, 5), dtype=np.complex128)
    companion[:, 1:, :-1] = np.eye(4)
    coefficients = _quintic(source, 0.5 * separation, 0.5 - right)
    companion[:, :, -1] = -coefficients[:, :5] / coefficients[:, 5:]
    image = np.linalg.eigvals(companion)
    distance = image.conj()[..., None] - places
    solved = image - (masses / distance).sum(axis=-1)
    shear = np.abs((masses / distance**2).sum(axis=-1)) ** 2
    real = np.abs(solved - source[:, None]) < RESIDUAL
    gain: Floats = np.where(real, 1.0 / np.maximum(np.abs(1.0 - shear), 1e-9), 0.0).sum(axis=1)
    return gain


def _pairs(rng: np.random.Generator, paired: NDArray[np.bool_]) -> _Lenses:
    n = len(paired)
    return _Lenses(
        paired=paired,
        ratio=10.0 ** rng.uniform(-1.5, 0.0, n),
        separation=10.0 ** rng.uniform(-0.25, 0.3, n),
        angle=rng.uniform(0.0, 2.0 * np.pi, n),
        limit=10.0 ** rng.uniform(0.9, 1.7, n),
    )


def _gain(time: Floats, nearest: Floats, lenses: _Lenses, own: Ints) -> Floats:
    """Magnification of the first source of each event, by one lens or two."""
    gain = magnification(time, nearest)
    rows = np.flatnonzero(lenses.paired[own] & (np.hypot(time, nearest) < FAR))
    which = own[rows]
    track = (time[rows] + 1j * nearest[rows]) * np.exp(1j * lenses.angle[which])
    # events are aimed at the centre of mass, which is right of the midpoint by this much of the separation
    ratio, separation = lenses.ratio[which], lenses.separation[which]
    track += 0.5 * separation * (ratio - 1.0) / (ratio + 1.0)
    gain[rows] = np.minimum(binary_magnification(track, ratio, separation), lenses.limit[which])
    return gain


def _quintic(source: Complexes, half: Floats, imbalance: Floats) -> Complexes:
    """Coefficients, lowest first, of the polynomial whose roots hold the images (Witt & Mao 1995, with total mass 1).

    The lenses are at +``half`` and -``half`` with masses 1/2 -+ ``imbalance``.
    """
    w, v, z, d = source, source.conj(), half, imbalance
    return np.stack(
        [
            z**2
            * (4 * d**2 * w + 2 * d * z + 4 * d * w * v * z + v * z**2 + w * v**2 * z**2 - 2 * d * z**3 - w * z**4),
            -4 * d * w * z - 4 * d**2 * z**2 - z**2 - 2 * w * v * z**2 - 4 * d * v * z**3 - v**2 * z**4 + z**6,
            w + 2 * d * z - 4 * d * w * v * z - 2 * w * v**2 * z**2 + 4 * d * z**3 + 2 * w * z**4,
            2 * w * v + 4 * d * v * z + 2 * v**2 * z**2 - 2 * z**4,
            -v + w * v**2 - 2 * d * z - w * z**2,
            z**2 - v**2,
        ],
        axis=1,
    )
