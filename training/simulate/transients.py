"""Explosions at cosmological distances: parameters, and fluxes at visits.

The luminosity L(t) rises as a fireball, 1 - (t / rise)^2 before maximum (Riess+ 1999), and after it is a Gaussian drop,
optionally delayed by a fading plateau, over a slower tail (exponential, or a power law for fall-back and merger
ejecta). Spectra are blackbodies of cooling temperature normalised by their total light, so that
F_nu = L(t) B_nu(lambda, T) / T^4, times line blanketing in the ultraviolet, class-average and per-object departures,
and host dust. Bandwidth stretch (1+z), time dilation and luminosity distance are included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import njy_of_magnitude
from nightjar_alerts.training.simulate import photometry
from nightjar_alerts.training.simulate.cadence import Visits
from nightjar_alerts.training.simulate.photometry import (
    FAINTEST_PEAK,
    MILKY_WAY_DUST,
    WAVELENGTH,
    Floats,
    Ints,
    host_dust,
    planck,
)
from nightjar_alerts.training.simulate.transient_classes import SED_NODES, Spread, Subtype

NORMAL_WAVELENGTH = 4800.0  # rest Angstrom at which peak magnitudes are quoted
SED_SCATTER = 0.07  # mag, per node and object
SED_DRIFT = 0.07  # mag per 30 rest days, per node and object
BUMP_DAY, BUMP_WIDTH = 25.0, 6.5  # rest days after maximum, and Gaussian width
SHOCK_FADE = 2.2  # rest days
POOL = 4096  # events drawn at a time to find the detectable ones
PARAMETERS: dict[str, Callable[[Subtype], Spread]] = {
    "rise": lambda k: k.light.rise,
    "fall": lambda k: k.light.fall,
    "tail": lambda k: k.light.tail,
    "tail_time": lambda k: k.light.tail_time,
    "hot": lambda k: k.colour.hot,
    "cool": lambda k: k.colour.cool,
    "cooling": lambda k: k.colour.cooling,
    "plateau": lambda k: k.plateau.length,
    "slope": lambda k: k.plateau.slope,
    "blanketing": lambda k: k.colour.blanketing,
    "bump": lambda k: k.colour.bump,
}
STRETCHED = ("rise", "fall", "tail_time", "cooling", "plateau")


@dataclass(frozen=True, eq=False)
class Events:
    """Parameters of ``n`` explosions, one f64[n] each unless noted; times in rest-frame days.

    ``kind`` i64[n] index into the class's subtypes; ``peak_mjd`` observed; ``peak_flux`` nJy at rest 4800 Angstrom
    before all dust; ``a_v`` host dust; ``milky_way`` E(B-V); ``shape`` the drawn `PARAMETERS`; ``cut`` power of the
    ultraviolet cut, 0 for lines; ``sed`` f64[n, nodes] departures in magnitudes and ``sed_drift`` f64[n, nodes] their
    change per 30 days; ``shock`` relative strength of the early peak.
    """

    kind: Ints
    redshift: Floats
    peak_mjd: Floats
    peak_flux: Floats
    a_v: Floats
    milky_way: Floats
    shape: dict[str, Floats]
    tail_power: Floats
    cut: Floats
    sed: Floats
    sed_drift: Floats
    shock: Floats


def draw(
    rng: np.random.Generator, kinds: tuple[Subtype, ...], milky_way: Floats, first_mjd: float, last_mjd: float
) -> Events:
    """Draw a detectable event of a class with these subtypes for each entry of ``milky_way`` (E(B-V))."""
    n = len(milky_way)
    sample = _detectable(rng, kinds, n)
    shape = {key: _spread(rng, [pair(k) for k in kinds], sample.kind) for key, pair in PARAMETERS.items()}
    for key in STRETCHED:
        shape[key] *= sample.stretch
    nodes = (n, len(SED_NODES))
    shocked = rng.random(n) < np.array([k.light.shock for k in kinds])[sample.kind]
    return Events(
        kind=sample.kind,
        redshift=sample.redshift,
        peak_mjd=rng.uniform(first_mjd, last_mjd, n),
        peak_flux=njy_of_magnitude(sample.magnitude) * (1.0 + sample.redshift),
        a_v=sample.a_v,
        milky_way=milky_way,
        shape=shape,
        tail_power=np.array([k.light.tail_power for k in kinds])[sample.kind],
        cut=np.array([k.colour.slope for k in kinds])[sample.kind],
        sed=np.array([k.spectrum for k in kinds])[sample.kind] + SED_SCATTER * rng.standard_normal(nodes),
        sed_drift=SED_DRIFT * rng.standard_normal(nodes),
        shock=np.where(shocked, rng.uniform(0.3, 1.5, n), 0.0),
    )


def window(events: Events) -> tuple[Floats, Floats]:
    """Return the MJD range outside which the flux of each event is negligible, from 40 days before first light."""
    shape, dilation = events.shape, 1.0 + events.redshift
    fading = shape["plateau"] + 4.0 * shape["fall"] + 6.0 * shape["tail_time"]
    return events.peak_mjd - 40.0 - shape["rise"] * dilation, events.peak_mjd + fading * dilation


def flux(events: Events, visits: Visits) -> Floats:
    """Return true difference flux at each visit, f64[P] nJy."""
    own = visits.object_index
    dilation = 1.0 + events.redshift[own]
    phase = (visits.mjd - events.peak_mjd[own]) / dilation
    rest = WAVELENGTH[visits.band] / dilation
    shape = {key: values[own] for key, values in events.shape.items()}
    light = luminosity(phase, shape, events.tail_power[own])
    spectrum = _spectrum(rest, phase, shape, events.cut[own])
    light = light * (1.0 + shape["bump"] * _near_infrared(rest) * np.exp(-0.5 * ((phase - BUMP_DAY) / BUMP_WIDTH) ** 2))
    light = light * spectrum + events.shock[own] * _shock(phase + shape["rise"], rest)
    dimming = host_dust(rest, events.a_v[own]) + _departure(events, own, rest, phase)
    dimming += MILKY_WAY_DUST[visits.band] * events.milky_way[own]
    result: Floats = events.peak_flux[own] * light * 10.0 ** (-0.4 * dimming)
    return result


def luminosity(phase: Floats, shape: dict[str, Floats], tail_power: Floats) -> Floats:
    """Return L(t) / L(maximum) at rest days ``phase`` from maximum; zero before first light."""
    before = np.clip(1.0 - (phase / shape["rise"]) ** 2, 0.0, None)
    after = np.maximum(phase, 0.0)
    days_held = np.minimum(after, shape["plateau"])
    drop = np.exp(-0.5 * ((after - days_held) / shape["fall"]) ** 2) * 10.0 ** (-0.4 * shape["slope"] * days_held)
    tail = (1.0 + after / (tail_power * shape["tail_time"])) ** -tail_power
    share = np.minimum(shape["tail"], 0.95)
    return np.where(phase < 0.0, before * (phase > -shape["rise"]), (1.0 - share) * drop + share * tail)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Subtype, redshift, apparent peak magnitude, common factor of all time scales, host A_V: one entry per event."""

    kind: Ints
    redshift: Floats
    magnitude: Floats
    stretch: Floats
    a_v: Floats

    def take(self, rows: NDArray[np.bool_] | slice) -> "_Sample":
        return _Sample(self.kind[rows], self.redshift[rows], self.magnitude[rows], self.stretch[rows], self.a_v[rows])

    def joined(self, other: "_Sample") -> "_Sample":
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Sample(*(np.concatenate(pair) for pair in pairs))


def _detectable(rng: np.random.Generator, kinds: tuple[Subtype, ...], n: int) -> _Sample:
    """Draw ``n`` events of a volume-limited population that are bright enough at maximum to be detected."""
    sample = _bright(_volume(rng, kinds, POOL))
    while len(sample.kind) < n:
        sample = sample.joined(_bright(_volume(rng, kinds, POOL)))
    return sample.take(slice(n))


def _bright(sample: _Sample) -> _Sample:
    return sample.take(sample.magnitude + 0.8 * sample.a_v < FAINTEST_PEAK)


def _volume(rng: np.random.Generator, kinds: tuple[Subtype, ...], n: int) -> _Sample:
    people = [k.population for k in kinds]
    kind = rng.choice(len(kinds), n, p=[p.share for p in people])
    redshift = np.empty(n)
    for index, p in enumerate(people):
        mine = kind == index
        redshift[mine] = photometry.redshifts(rng, int(mine.sum()), *p.redshift, p.rate_index)
    centre, scatter = np.array([p.magnitude for p in people])[kind].T
    log_stretch = np.array([k.light.stretch for k in kinds])[kind] * rng.standard_normal(n)
    absolute = centre + scatter * rng.standard_normal(n)
    absolute += np.array([k.light.stretch_slope for k in kinds])[kind] * log_stretch
    a_v = np.array([p.dust for p in people])[kind] * rng.exponential(1.0, n)
    magnitude = absolute + photometry.distance_modulus(redshift)
    return _Sample(kind.astype(np.int64), redshift, magnitude, np.exp(log_stretch), a_v)


def _spread(rng: np.random.Generator, pairs: Sequence[Spread], kind: Ints) -> Floats:
    """Return a parameter of each event, log-normal about its subtype's centre."""
    centre, scatter = np.array(pairs)[kind].T
    spread: Floats = centre * np.exp(scatter * rng.standard_normal(len(kind)))
    return spread


def _spectrum(rest: Floats, phase: Floats, shape: dict[str, Floats], cut: Floats) -> Floats:
    """Return the blanketed blackbody at ``phase`` per unit total light, relative to maximum and 4800 Angstrom.

    A ``cut`` attenuates the ultraviolet by that power of the wavelength.
    """
    cooled = np.exp(-np.maximum(phase, -0.7 * shape["cooling"]) / shape["cooling"])
    temperature = shape["cool"] + (shape["hot"] - shape["cool"]) * cooled
    reference = planck(np.full_like(rest, NORMAL_WAVELENGTH), shape["hot"]) / shape["hot"] ** 4
    lines = 1.0 / (1.0 + (shape["blanketing"] / rest) ** 10)
    blanketing = np.where(cut > 0.0, np.minimum(rest / shape["blanketing"], 1.0) ** cut, lines)
    spectrum: Floats = planck(rest, temperature) / temperature**4 / reference * blanketing
    return spectrum


def _near_infrared(rest: Floats) -> Floats:
    """Return the strength of the second maximum at rest wavelength: 0 in B, 1 beyond i (Kasen 2006)."""
    share: Floats = 1.0 / (1.0 + np.exp((6900.0 - rest) / 350.0))
    return share


def _shock(age: Floats, rest: Floats) -> Floats:
    """Return the flux of the cooling envelope relative to the main maximum: blue, fading within days."""
    light: Floats = np.where(age > 0.0, np.exp(-np.maximum(age, 0.0) / SHOCK_FADE), 0.0) * (rest / 4800.0) ** -1.5
    return light


def _departure(events: Events, own: Ints, rest: Floats, phase: Floats) -> Floats:
    """Return the difference in magnitudes of each event's spectrum from the blackbody, linear in nodes and phase."""
    position = np.interp(rest, SED_NODES, np.arange(len(SED_NODES)))
    low = np.minimum(position.astype(np.int64), len(SED_NODES) - 2)
    part = position - low
    age = np.clip(phase / 30.0, -1.0, 3.0)
    left = events.sed[own, low] + age * events.sed_drift[own, low]
    right = events.sed[own, low + 1] + age * events.sed_drift[own, low + 1]
    departure: Floats = left + part * (right - left)
    return departure
