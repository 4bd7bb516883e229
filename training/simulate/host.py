"""The 64 metadata columns: two nearby galaxies (photometry, shape, photo-z), Galactic dust, a final redshift.

Notable:

- missing values are NaN; in ELAsTiCC alerts they are -9, -999, -9999 or 999;
- the catalogue has errors: 3 to 13 % of the photo-z are outliers, one host in twenty is the wrong galaxy, faint hosts
  are missing, and some Galactic objects have a chance galaxy nearby;
- ``z_final`` is the host's spectroscopic redshift if known, or else its photo-z, with the matching error;
- ranges are those of ELAsTiCC (magnitude errors of at least 0.0155, 12 % second hosts, 6 % spectroscopic redshifts).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.simulate import photometry
from nightjar_alerts.training.simulate.photometry import MILKY_WAY_DUST, WAVELENGTH, Floats

CATALOGUE_DEPTH: Floats = np.array([24.2, 25.8, 25.7, 25.1, 24.6, 23.8])  # 5 sigma for an extended source
MAG_ERROR_FLOOR = 0.0155
CATALOGUE_LIMIT = 26.5  # r
SED_AT: Floats = np.array([900.0, 1500.0, 2500.0, 3600.0, 4770.0, 6230.0, 7620.0, 9130.0, 12000.0])  # rest Angstrom
BLUE_GALAXY: Floats = np.array(
    [4.0, 2.5, 2.0, 1.45, 0.35, 0.0, -0.15, -0.25, -0.35]
)  # AB magnitudes relative to r (Scd)
RED_GALAXY: Floats = np.array([7.0, 5.8, 4.4, 2.6, 0.78, 0.0, -0.38, -0.68, -1.1])  # (elliptical)
# photo-z quantiles 0, 10 ... 100 % in units of their spread: Gaussian with heavy tails
QUANTILES: Floats = np.array([-3.3, -1.35, -0.86, -0.53, -0.25, 0.0, 0.25, 0.53, 0.86, 1.35, 4.5])


@dataclass(frozen=True)
class Galaxies:
    """Host galaxies of a class: absolute r magnitude, share of red ones, offset in units of size, hostless share."""

    absolute: tuple[float, float]
    red: float
    offset: float
    hostless: float = 0.01


HOSTS: dict[str, Galaxies] = {
    "AGN": Galaxies((-23.7, 1.1), 0.25, 0.02),  # catalogue light includes the nucleus
    "CART": Galaxies((-20.8, 1.1), 0.75, 2.8, 0.06),
    "ILOT": Galaxies((-20.0, 1.1), 0.15, 0.9),
    "KN": Galaxies((-20.6, 1.1), 0.50, 1.3, 0.05),
    "PISN": Galaxies((-19.0, 1.4), 0.05, 0.7, 0.10),
    "SLSN": Galaxies((-19.0, 1.5), 0.05, 0.6, 0.15),
    "91bg": Galaxies((-21.2, 0.8), 0.85, 1.1),
    "Ia": Galaxies((-20.8, 1.1), 0.40, 0.8),
    "Iax": Galaxies((-19.8, 1.1), 0.10, 0.8),
    "Ib/c": Galaxies((-20.2, 1.2), 0.12, 0.65),
    "II": Galaxies((-20.0, 1.3), 0.12, 0.8),
    "SN-like/Other": Galaxies((-19.9, 1.3), 0.12, 0.8),
    "TDE": Galaxies((-20.2, 0.9), 0.55, 0.02),
}
FIELD = Galaxies((-20.3, 1.3), 0.3, 1.0)  # any galaxy: chance neighbours
CHANCE_NEIGHBOUR = 0.07  # of Galactic objects
SECOND_HOST = 0.115
WRONG_HOST = 0.05


def metadata(rng: np.random.Generator, name: str, redshift: Floats, milky_way: Floats) -> NDArray[np.float32]:
    """Draw the metadata of ``n`` objects of a class, f32[n, 64] in the order of `METADATA_COLUMNS`, NaN = missing."""
    n = len(redshift)
    host = HOSTS.get(name)
    wrong = rng.random(n) < WRONG_HOST
    own = _galaxy(
        rng, host or FIELD, np.where((redshift > 0.0) & ~wrong, redshift, _field_redshifts(rng, n)), milky_way
    )
    neighbour = _galaxy(rng, FIELD, _field_redshifts(rng, n), milky_way)
    own["snsep"] = np.where(wrong | (host is None), _chance_separation(rng, n), own["snsep"])
    neighbour["snsep"] = _chance_separation(rng, n)
    linked = rng.random(n) < (CHANCE_NEIGHBOUR if host is None else 1.0 - host.hostless)
    linked &= own["mag_r"] < CATALOGUE_LIMIT
    columns = _block(
        "hostgal2", neighbour, linked & (rng.random(n) < SECOND_HOST) & (neighbour["mag_r"] < CATALOGUE_LIMIT)
    )
    columns |= _block("hostgal", own, linked)
    measured = milky_way * np.exp(0.05 * rng.standard_normal(n))
    columns |= {"mwebv": measured, "mwebv_err": 0.05 * measured}
    spectroscopic = np.isfinite(columns["hostgal_zspec"])
    for suffix in ("", "_err"):
        columns["z_final" + suffix] = np.where(
            spectroscopic, columns["hostgal_zspec" + suffix], columns["hostgal_zphot" + suffix]
        )
    return np.stack([columns[column] for column in METADATA_COLUMNS], axis=1).astype(np.float32)


def _block(prefix: str, galaxy: dict[str, Floats], present: NDArray[np.bool_]) -> dict[str, Floats]:
    return {f"{prefix}_{name}": np.where(present, values, np.nan) for name, values in galaxy.items()}


def _field_redshifts(rng: np.random.Generator, n: int) -> Floats:
    return photometry.redshifts(rng, n, 0.02, 1.6, 0.0) * rng.uniform(0.2, 1.0, n)


def _chance_separation(rng: np.random.Generator, n: int) -> Floats:
    """Draw separations in arcsec of unrelated galaxies, uniform over a disc of 6 arcsec."""
    separation: Floats = 6.0 * np.sqrt(rng.uniform(0.003, 1.0, n))
    return separation


def _galaxy(rng: np.random.Generator, kind: Galaxies, redshift: Floats, milky_way: Floats) -> dict[str, Floats]:
    """Draw the catalogue entry of one galaxy per redshift, with the names of the metadata without prefix."""
    n = len(redshift)
    absolute = rng.normal(*kind.absolute, n)
    magnitude = _magnitudes(rng, kind, redshift, absolute, milky_way)
    snr = 5.0 * 10.0 ** (0.4 * (CATALOGUE_DEPTH - magnitude))
    error = np.sqrt(MAG_ERROR_FLOOR**2 + np.minimum(1.0857 / snr, 3.0) ** 2)
    magnitude = magnitude + error * rng.standard_normal(magnitude.shape)
    kpc = 4.0 * 10.0 ** (-0.12 * (absolute + 20.5)) * np.exp(0.35 * rng.standard_normal(n))
    distance = photometry.comoving_distance(redshift) / (1.0 + redshift)  # angular diameter, Mpc
    radius = np.minimum(kpc / distance * 206.265, 40.0)  # arcsec
    entry = {
        "ellipticity": rng.beta(1.0, 2.2, n),
        "sqradius": 9.0 * radius**1.2 * np.exp(0.2 * rng.standard_normal(n)),
        "snsep": np.hypot(radius * kind.offset * rng.gamma(1.6, 0.45, n), 0.05 * rng.standard_normal(n)),
    }
    for index, band in enumerate(BANDS):
        entry[f"mag_{band}"], entry[f"magerr_{band}"] = magnitude[:, index], error[:, index]
    return entry | _redshift_estimates(rng, redshift, magnitude[:, 2])


def _magnitudes(
    rng: np.random.Generator, kind: Galaxies, redshift: Floats, absolute: Floats, milky_way: Floats
) -> Floats:
    """Return true AB magnitudes [n, 6] from a mixture of a red and a blue template, reddened."""
    red = np.where(
        rng.random(len(redshift)) < kind.red, rng.beta(6.0, 1.5, len(redshift)), rng.beta(1.5, 5.0, len(redshift))
    )
    rest = WAVELENGTH / (1.0 + redshift[:, None])
    blue_sed, red_sed = np.interp(rest, SED_AT, BLUE_GALAXY), np.interp(rest, SED_AT, RED_GALAXY)
    spectrum = blue_sed + red[:, None] * (red_sed - blue_sed)
    apparent = absolute + photometry.distance_modulus(redshift) - 2.5 * np.log10(1.0 + redshift)
    scatter = 0.06 * rng.standard_normal(spectrum.shape)
    magnitudes: Floats = apparent[:, None] + spectrum + scatter + MILKY_WAY_DUST * milky_way[:, None]
    return magnitudes


def _redshift_estimates(rng: np.random.Generator, redshift: Floats, r: Floats) -> dict[str, Floats]:
    """Draw photo-z with eleven quantiles, and spectroscopic redshifts for some, mostly bright, galaxies."""
    n = len(redshift)
    spread = (0.025 + 0.012 * np.clip(r - 20.0, 0.0, 6.0)) * (1.0 + redshift) * np.exp(0.3 * rng.standard_normal(n))
    outlier = rng.random(n) < 0.03 + 0.02 * np.clip(r - 21.0, 0.0, 5.0)
    centre = np.where(outlier, rng.uniform(0.0, 2.0, n), redshift + spread * rng.standard_normal(n))
    spread = np.where(outlier, np.maximum(spread, rng.uniform(0.1, 0.5, n)), spread)
    lopsided = np.where(QUANTILES > 0.0, 1.0, np.exp(0.3 * rng.standard_normal((n, 1))))
    quantiles = np.maximum(centre[:, None] + spread[:, None] * QUANTILES * lopsided, 0.0015 * np.arange(1, 12))
    has_spectrum = rng.random(n) < 0.25 / (1.0 + np.exp((r - 19.5) / 0.7)) + 0.02
    estimates = {
        "zphot": quantiles[:, 5],
        "zphot_err": 0.5 * (quantiles[:, 8] - quantiles[:, 2]) / 0.84,
        "zspec": np.where(has_spectrum, redshift + 0.0003 * rng.standard_normal(n), np.nan),
        "zspec_err": np.where(has_spectrum, rng.choice([0.0005, 0.001], n), np.nan),
    }
    return estimates | {f"zphot_q{10 * k:03d}": quantiles[:, k] for k in range(11)}
