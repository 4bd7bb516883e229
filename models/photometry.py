"""Photometric conventions: filters of surveys and bands of networks, units of flux, zero points, time scales.

**Filters and bands.** A light curve stores the filter of each point as an index into :data:`FILTERS`. A network knows a
few bands, each by an integer; its bundle lists them (``bands``, ``band_indices``) and the filters used as substitutes
(``band_groups``, by ``survey:filter`` or ``filter``). Points in filters that belong to no band of a network are left
out and counted.

**Units** of light curves, and conversions to them. Flux is in nJy: AB zero is 3631 Jy = 10**(0.4 * 31.4) nJy (Oke &
Gunn 1983, ApJ 266, 713), within 0.01 per cent. FLUXCAL is the unit of SNANA, with zero point 27.5. Time is MJD (TAI) in
days.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

BANDS: Final = ("u", "g", "r", "i", "z", "Y")
"""Bands of LSST, in the order of the band integers of networks trained on them."""

FILTERS: Final = (*BANDS, "c", "o", "G", "BP", "RP", "U", "B", "V", "R", "I", "w", "C")
"""Names of all filters: LSST and similar surveys, ATLAS (c, o), Gaia (G, BP, RP), Johnson and Cousins (U, B, V, R, I),
wide filter of Pan-STARRS (w), unfiltered (C)."""

NAMES: Final[Mapping[str, int]] = {**{name: index for index, name in enumerate(FILTERS)}, "y": FILTERS.index("Y")}
"""Index into :data:`FILTERS` of every name; ``y`` and ``Y`` are the same filter."""

EFFECTIVE_WAVELENGTHS_NM: Final = (371.0, 477.0, 619.0, 754.0, 867.0, 974.0)
"""Effective wavelength of each of :data:`BANDS`, nm: Rubin throughputs 1.9, airmass 1.2, photon-weighted."""
WAVELENGTH_TOLERANCE_NM: Final = 75.0
"""Maximum distance between a described filter and its band; half the widest gap between bands is 71 nm, so every filter
between u and Y has a band."""
FILTER_WIDTHS_NM: Final = (20.0, 500.0)
"""Smallest and largest width of a described filter."""

UNKNOWN: Final = -1

Int64 = NDArray[np.int64]


def filter_index(name: str) -> int:
    """Return the index of a filter in :data:`FILTERS`. Raises ValueError if it is unknown."""
    try:
        return NAMES[name]
    except KeyError:
        raise ValueError(f"unknown band {name!r}; known bands are {', '.join(FILTERS)}") from None


def nearest_band(wavelength_nm: float) -> str:
    """Return the band of :data:`BANDS` with the nearest effective wavelength.

    Raises
    ------
    ValueError
        If it is more than :data:`WAVELENGTH_TOLERANCE_NM` away.
    """
    offsets = [abs(wavelength_nm - centre) for centre in EFFECTIVE_WAVELENGTHS_NM]
    nearest = offsets.index(min(offsets))
    if not offsets[nearest] <= WAVELENGTH_TOLERANCE_NM:
        known = ", ".join(f"{name} {centre:.0f}" for name, centre in zip(BANDS, EFFECTIVE_WAVELENGTHS_NM, strict=True))
        raise ValueError(f"no band within {WAVELENGTH_TOLERANCE_NM:.0f} nm of {wavelength_nm:g} nm; bands are {known}")
    return BANDS[nearest]


class BandMap:
    """Map from the filters of light curves to the band integers of a network.

    Parameters
    ----------
    bands : names of the network's bands.
    indices : integer of each band; by default its index in :data:`BANDS` if all are among them, else in ``bands``.
    groups : ``survey:filter`` or ``filter`` to the band that it is used for; an entry with the survey takes precedence,
        and a filter without an entry is used for the band of its name.

    Attributes
    ----------
    labels : name of the band of every integer, empty if no band has it.

    Raises
    ------
    ValueError
        If a band is not a filter, bands or indices repeat, their numbers differ, or a group refers to an unknown band
        or filter.
    """

    def __init__(
        self, bands: Sequence[str], indices: Sequence[int] | None = None, groups: Mapping[str, str] | None = None
    ) -> None:
        self.bands = tuple(bands)
        self.groups = {_canonical(name): band for name, band in (groups or {}).items()}
        self._surveys = {name.partition(":")[0] for name in self.groups if ":" in name}
        self.indices = tuple(_usual_indices(self.bands) if indices is None else indices)
        self._check()
        usual = indices is None and set(self.bands) <= set(BANDS)
        self.labels = BANDS if usual else _labels(self.bands, self.indices)
        self._tables: dict[str, Int64] = {}
        self._substitutes: dict[str, NDArray[np.bool_]] = {}
        self._chosen: dict[tuple[tuple[str, ...], str], tuple[int, ...]] = {}

    def _check(self) -> None:
        if not self.bands or len(set(self.bands)) < len(self.bands) or not set(self.bands) <= set(FILTERS):
            raise ValueError(f"bands must be different ones of {', '.join(FILTERS)}")
        if len(self.indices) != len(self.bands) or len(set(self.indices)) < len(self.indices) or min(self.indices) < 0:
            raise ValueError("every band needs an index of its own, 0 or more")
        if unknown := sorted(set(self.groups.values()) - set(self.bands)):
            raise ValueError(f"band_groups: {unknown[0]!r} is none of the bands")

    def table(self, survey: str = "") -> Int64:
        """Return the network's band integer for each of :data:`FILTERS`, :data:`UNKNOWN` if there is none."""
        table_name = survey if survey in self._surveys else ""  # clients choose the name, so others share one table
        if table_name not in self._tables:
            self._tables[table_name] = np.array([self._index(table_name, name) for name in FILTERS], dtype=np.int64)
        return self._tables[table_name]

    def substitutes(self, survey: str = "") -> NDArray[np.bool_]:
        """Return whether each of :data:`FILTERS` is used as a band of another name, shape (filters,)."""
        table_name = survey if survey in self._surveys else ""
        if table_name not in self._substitutes:
            own = dict(zip(self.bands, self.indices, strict=True))
            self._substitutes[table_name] = np.array(
                [
                    index not in (UNKNOWN, own.get(name))
                    for name, index in zip(FILTERS, self.table(survey).tolist(), strict=True)
                ]
            )
        return self._substitutes[table_name]

    def chosen(self, names: tuple[str, ...], survey: str = "") -> tuple[int, ...]:
        """Return the network's band integer for each of :data:`FILTERS`, :data:`UNKNOWN` if not among ``names``."""
        table = self.table(survey)
        key = (names, survey if survey in self._surveys else "")
        if key not in self._chosen:
            indices = {self.indices[self.bands.index(name)] for name in names}
            self._chosen[key] = tuple(index if index in indices else UNKNOWN for index in table.tolist())
        return self._chosen[key]

    def _index(self, survey: str, name: str) -> int:
        band = self.groups.get(f"{survey}:{name}", self.groups.get(name, name))
        return self.indices[self.bands.index(band)] if band in self.bands else UNKNOWN


def _canonical(name: str) -> str:
    survey, colon, filter_name = name.rpartition(":")
    if filter_name not in NAMES:
        raise ValueError(f"band_groups: {name!r} names no known filter; they are {', '.join(FILTERS)}")
    return f"{survey}{colon}{FILTERS[NAMES[filter_name]]}"


def _usual_indices(bands: Sequence[str]) -> tuple[int, ...]:
    if set(bands) <= set(BANDS):
        return tuple(BANDS.index(name) for name in bands)
    return tuple(range(len(bands)))


def _labels(bands: Sequence[str], indices: Sequence[int]) -> tuple[str, ...]:
    named = dict(zip(indices, bands, strict=True))
    return tuple(named.get(index, "") for index in range(max(indices) + 1))


NJY_ZERO_POINT: Final = 31.4
FLUXCAL_ZERO_POINT: Final = 27.5

FluxUnit = Literal["nJy", "uJy", "FLUXCAL"]
"""Units that requests and networks may use."""
SourceUnit = Literal["nJy", "uJy", "mJy", "Jy", "FLUXCAL"]
"""Units that an archive may use."""

NJY_PER_UNIT: Final[dict[SourceUnit, float]] = {
    "nJy": 1.0,
    "uJy": 1e3,
    "mJy": 1e6,
    "Jy": 1e9,
    "FLUXCAL": 10 ** (0.4 * (NJY_ZERO_POINT - FLUXCAL_ZERO_POINT)),
}

SECONDS_PER_DAY: Final = 86_400.0
JD_MINUS_MJD: Final = 2_400_000.5
MAX_ABS_MJD: Final = 200_000.0  # detects Julian dates, which are near 2,460,000
# TAI - UTC in seconds from an MJD (UTC) on (IERS Bulletin C); no leap second since 2017.
LEAP_SECONDS: Final = ((-math.inf, 34.0), (56109.0, 35.0), (57204.0, 36.0), (57754.0, 37.0))

DETECTION_SNR: Final = 5.0
"""Minimum signal-to-noise ratio of a detection if the survey does not flag detections."""

Float64 = NDArray[np.float64]

MagSystem = Literal["AB", "Vega"]
VEGA_AB_OFFSETS: Final[Mapping[str, float]] = {
    "u": 0.91,
    "g": -0.08,
    "r": 0.16,
    "i": 0.37,
    "z": 0.54,
    "Y": 0.634,
    "G": 0.114,
    "BP": 0.016,
    "RP": 0.356,
    "U": 0.79,
    "B": -0.09,
    "V": 0.02,
    "R": 0.21,
    "I": 0.45,
    "C": 0.02,
}
"""AB magnitude of Vega by filter, to be added to Vega magnitudes to get AB magnitudes. ugriz and UBVRI: Blanton &
Roweis 2007 (AJ 133, 734); Y: Hewett+ 2006 (MNRAS 367, 454); Gaia: Riello+ 2021 (A&A 649, A3); unfiltered magnitudes, on
the V scale: V."""


def flux_to_njy(flux: ArrayLike, unit: SourceUnit) -> Float64:
    """Convert a flux or flux error in ``unit`` to nJy."""
    return np.asarray(flux, dtype=np.float64) * NJY_PER_UNIT[unit]


def njy_to(flux: ArrayLike, unit: SourceUnit) -> Float64:
    """Convert a flux or flux error in nJy to ``unit``."""
    return np.asarray(flux, dtype=np.float64) / NJY_PER_UNIT[unit]


@np.errstate(over="ignore", invalid="ignore")  # absurd magnitudes become infinite or NaN, and are dropped as unusable
def njy_of_magnitude(magnitude: ArrayLike) -> Float64:
    """Return the flux in nJy of an AB magnitude, ``10**(-0.4 (m - 31.4))``; or nJy per unit for a zero point."""
    return np.asarray(np.power(10.0, -0.4 * (np.asarray(magnitude, dtype=np.float64) - NJY_ZERO_POINT)))


@np.errstate(over="ignore", invalid="ignore")
def njy_with_error(magnitude: ArrayLike, error: ArrayLike) -> tuple[Float64, Float64]:
    """Convert an AB magnitude and its error to flux and error in nJy: ``dF = 0.4 ln(10) F dm``."""
    flux = njy_of_magnitude(magnitude)
    return flux, np.asarray(flux * np.asarray(error, dtype=np.float64) * (0.4 * math.log(10.0)))


@np.errstate(divide="ignore", invalid="ignore")
def magnitude_of(flux_njy: ArrayLike) -> Float64:
    """Return the AB magnitude of a flux in nJy; infinite at 0 and NaN below."""
    return np.asarray(NJY_ZERO_POINT - 2.5 * np.log10(flux_njy))


def tai_minus_utc(mjd_utc: ArrayLike) -> Float64:
    """Return TAI - UTC in seconds at MJD (UTC); constant (34 s) before July 2012."""
    starts, seconds = np.array(LEAP_SECONDS).T
    return np.asarray(seconds[np.searchsorted(starts, mjd_utc, side="right") - 1])


def mjd_tai_of_mjd(mjd_utc: ArrayLike, middle_seconds: ArrayLike = 0.0) -> Float64:
    """Convert an MJD (UTC) to MJD (TAI), ``middle_seconds`` later: from the start of an exposure to its middle."""
    mjd = np.asarray(mjd_utc, dtype=np.float64)
    return np.asarray(mjd + (tai_minus_utc(mjd) + np.asarray(middle_seconds)) / SECONDS_PER_DAY)


def mjd_tai_of_jd(jd_utc: ArrayLike, middle_seconds: ArrayLike = 0.0) -> Float64:
    """Convert a Julian date (UTC) to MJD (TAI), ``middle_seconds`` later."""
    return mjd_tai_of_mjd(np.asarray(jd_utc, dtype=np.float64) - JD_MINUS_MJD, middle_seconds)
