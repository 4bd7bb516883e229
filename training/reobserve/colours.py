"""Colours where an object was not observed: spectral series where there are some, slopes of the class otherwise.

A constant beyond the last filter makes grey supernovae, and a missing band a fingerprint. So the flux at a wavelength
outside is the flux at the edge times the ratio that a spectral template of the class has there at that phase; without
templates, a power law whose index the class has (`SLOPES`, of flux density per hertz, with its scatter), drawn once
for each view.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.taxonomy import ELASTICC

Float = NDArray[np.float64]

SLOPES: Final[dict[str, tuple[float, float]]] = {
    "AGN": (-0.3, 0.5), "Dwarf Novae": (-0.4, 0.4), "uLens": (1.2, 0.9), "M-dwarf Flare": (-1.8, 0.5),
    "TDE": (-1.3, 0.5), "SLSN": (0.0, 0.6), "KN": (2.0, 1.5),
}  # fmt: skip
"""d ln(F_nu) / d ln(wavelength): nuclei after Vanden Berk+ 2001, outbursts and flares of hot discs and plasma (6,000 to
15,000 K), lenses as their mostly late-type stars, TDEs of some 20,000 K (van Velzen+ 2021)."""
FURTHEST: Final = {True: 0.45, False: 0.30}
"""Of ln(wavelength): with a template (True) or a slope no flux is told further outside than this."""
ANYWHERE: Final = frozenset({"Dwarf Novae", "uLens", "M-dwarf Flare"})
"""Classes mostly seen in one band, whose colours are a slope everywhere."""

_FILES: Final = {
    "Ia": (("sed_ia_91bg.npz", "hsiao_v3", 0.0),),
    "Iax": (("sed_ia_91bg.npz", "hsiao_v3", 0.0),),
    "91bg": (("sed_ia_91bg.npz", "nugent_91bg", 14.0),),
    "Ib/c": tuple(
        ("sed_core_collapse_snsed.npz", name, 0.0)
        for name in ("CSP-2004fe", "CSP-2004gq", "SDSS-004012", "SDSS-013195", "SDSS-017548", "SNLS-04D4jv")
    ),
}
FAINTEST: Final = 3e-3
"""Of a spectrum's largest flux: below it a series tells nothing."""
_SMOOTHING: Final = 60
"""Samples of 10 A that a filter is taken to be wide."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """ln(F_nu) of a spectral series on a grid: days from peak in the rest frame, and ln(nm)."""

    days_D: Float
    log_wavelength_W: Float
    log_flux_DW: Float

    def at(self, days_Q: Float, log_wavelength_Q: Float) -> Float:
        """ln(F_nu), bilinear, the ends of the grid beyond them."""
        day = np.interp(days_Q, self.days_D, np.arange(len(self.days_D)))
        wave = np.interp(log_wavelength_Q, self.log_wavelength_W, np.arange(len(self.log_wavelength_W)))
        d, w = np.minimum(day.astype(int), len(self.days_D) - 2), np.minimum(wave.astype(int), self.width - 2)
        a, b = day - d, wave - w
        grid = self.log_flux_DW
        low = (1 - b) * grid[d, w] + b * grid[d, w + 1]
        high = (1 - b) * grid[d + 1, w] + b * grid[d + 1, w + 1]
        return np.asarray((1 - a) * low + a * high)

    @property
    def width(self) -> int:
        """Number of wavelengths."""
        return len(self.log_wavelength_W)


@dataclass(frozen=True, slots=True, eq=False)
class Colours:
    """Spectral series by class index; classes without one have a slope, or nothing."""

    series: dict[int, tuple[Series, ...]]

    def furthest(self, label: int) -> float:
        """Return how far outside the observed wavelengths an object of a class may be told."""
        return 1.5 if ELASTICC.names[label] in ANYWHERE else FURTHEST[label in self.series]

    def draw(self, label: int, rng: np.random.Generator) -> "Colour":
        """Return the colour of one view."""
        if label in self.series:
            choices = self.series[label]
            return Colour(choices[rng.integers(len(choices))], 0.0)
        centre, scatter = SLOPES.get(ELASTICC.names[label], (np.nan, 0.0))
        return Colour(None, float(rng.normal(centre, scatter)))


@dataclass(frozen=True, slots=True, eq=False)
class Colour:
    """Continuation of one view beyond the edges: by a series, by a slope, or (slope NaN) by the object's own slope."""

    series: Series | None
    slope: float

    def log_ratio(self, rest_days_Q: Float, inside_Q: Float, asked_Q: Float) -> Float:
        """Ln of the flux at ``asked_Q`` over that at ``inside_Q``, ln(nm) in the rest frame; NaN where unknown."""
        if self.series is not None:
            return self.series.at(rest_days_Q, asked_Q) - self.series.at(rest_days_Q, inside_Q)
        return self.slope * (asked_Q - inside_Q)


def no_templates() -> Colours:
    """Colours from the slopes of the classes alone."""
    return Colours({})


def read_colours(folder: Path | None) -> Colours:
    """Spectral series in ``folder`` (``real/templates``); what is not there is done without."""
    found: dict[int, tuple[Series, ...]] = {}
    if folder is not None:
        for name, files in _FILES.items():
            series = tuple(s for file, key, peak in files if (s := _read(folder / file, key, peak)) is not None)
            if series:
                found[ELASTICC.names.index(name)] = series
    return Colours(found)


def _read(path: Path, key: str, peak: float) -> Series | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        days = arrays[f"{key}|phase"].astype(np.float64) - peak
        angstrom = arrays[f"{key}|wave"].astype(np.float64)
        flux = arrays[f"{key}|flux"].astype(np.float64)
    box = np.ones(_SMOOTHING) / _SMOOTHING
    smooth = np.apply_along_axis(lambda spectrum: np.convolve(spectrum, box, mode="same"), 1, flux)
    density = smooth * angstrom**2  # per hertz
    lit = density.max(axis=1) > 0.0
    relative = density[lit] / density[lit].max(axis=1, keepdims=True)
    told = ((relative > FAINTEST).mean(axis=0) > 0.9) & (angstrom >= 2000.0) & (angstrom <= 11_500.0)
    columns = np.flatnonzero(told)[::10]
    log_flux = np.log(np.maximum(relative[:, columns], FAINTEST))
    return Series(days[lit], np.log(angstrom[columns] / 10.0), log_flux)
