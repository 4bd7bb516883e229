"""Information on an object besides its light curve: metadata for networks, and context that weights their results.

**Metadata.** The 64 columns of the ELAsTiCC ``diaObject``. Column order follows ATAT (alphabetical by SNANA name:
second host, first host, Milky Way dust, final redshift). Surveys write missing values as sentinels (-9 redshift, 999
magnitude, -9999 shape ...); here missing means absent, and NaN in arrays. Real Rubin and ZTF alerts carry none of the
64: a light curve without metadata is ordinary input.

**Context.** Three things tell stars of our Galaxy from what lies beyond it: a redshift, a parallax, and a catalogue
that calls the source at this place a star or a galaxy. Each becomes a factor of the classes that it speaks against,
never below a floor that allows for wrong associations and wrong catalogues; only a spectroscopic redshift of the object
itself, away from zero, rules classes out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

SENTINELS = frozenset({-9.0, -99.0, -999.0, -9999.0, 999.0})

_HOST = (
    "ellipticity",
    *(f"mag_{band}" for band in "Ygiruz"),
    *(f"magerr_{band}" for band in "Ygiruz"),
    "snsep",
    "sqradius",
    "zphot",
    "zphot_err",
    *(f"zphot_q{quantile:03d}" for quantile in range(0, 101, 10)),
    "zspec",
    "zspec_err",
)

METADATA_COLUMNS: tuple[str, ...] = (
    *(f"hostgal2_{name}" for name in _HOST),
    *(f"hostgal_{name}" for name in _HOST),
    "mwebv",
    "mwebv_err",
    "z_final",
    "z_final_err",
)

CONTEXT_COLUMNS: Final = (
    "zspec",
    "zspec_err",
    "parallax",
    "parallax_err",
    "star_score",
    "star_distance",
    "solar_system_distance",
)
"""Columns of the context, which weigh the answer: the redshift of the object itself, spectroscopic without an error or
with a small one, which networks see as ``z_final`` (`network_metadata`); parallax (mas); how star-like the source is
that a catalogue has at this place (0 galaxy, 1 star: ``sgscore`` of ZTF) and its distance (arcsec); distance of a
known Solar System object at the time of the alert."""

KNOWN_COLUMNS: Final = (*METADATA_COLUMNS, *CONTEXT_COLUMNS)

REDSHIFTS: Final = (
    "zspec",
    "z_final",
    *(f"{host}_{kind}" for host in ("hostgal", "hostgal2") for kind in ("zspec", "zphot")),
)
REDSHIFT_RANGE: Final = (-0.01, 12.0)
"""Redshifts that objects can have: blueshifts of nearby galaxies are above -0.002, and errors are added to them."""

LARGEST: Final = float(np.finfo(np.float32).max)
"""Largest absolute value of a metadata column: networks see metadata in single precision, which ends here."""
_BOUNDS: Final = {
    **dict.fromkeys(KNOWN_COLUMNS, (-LARGEST, LARGEST)),
    **{
        name: (0.0, LARGEST)
        for name in KNOWN_COLUMNS
        if name.endswith(("_err", "snsep", "_distance")) or "_magerr_" in name
    },
    **dict.fromkeys(REDSHIFTS, REDSHIFT_RANGE),
    "mwebv": (0.0, 200.0),  # maps of the Milky Way's dust end below
    "star_score": (0.0, 1.0),
}


def clean_metadata(values: Mapping[str, float | int | None]) -> dict[str, float]:
    """Keep the known columns that hold a value.

    Sentinels, nulls, NaN, what is infinite to a network and values that :func:`implausible_metadata` names are missing.
    """
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None
        and (bounds := _BOUNDS.get(name)) is not None
        and bounds[0] <= value <= bounds[1]
        and value not in SENTINELS
    }


def implausible_metadata(values: Mapping[str, float]) -> dict[str, str]:
    """Return what is wrong with each value that no object can have, by column; sentinels are missing values."""
    return {
        name: f"must be {_limits(name)}, not {value:.6g}"
        for name, value in values.items()
        if name in _BOUNDS and value not in SENTINELS and (value < _BOUNDS[name][0] or value > _BOUNDS[name][1])
    }


def _limits(name: str) -> str:
    low, high = _BOUNDS[name]
    if low == 0 and high == LARGEST:
        return "zero or positive"
    return f"{'a redshift ' if name in REDSHIFTS else ''}from {low:g} to {high:g}"


def metadata_row(values: Mapping[str, float], columns: Sequence[str]) -> NDArray[np.float32]:
    """Metadata as a row, shape ``(len(columns),)``, NaN where a column is missing."""
    return np.fromiter(map(values.get, columns, repeat(math.nan)), np.float32, len(columns))


def network_metadata(values: Mapping[str, float], columns: Sequence[str]) -> NDArray[np.float32]:
    """Metadata as a network sees it, shape ``(len(columns),)``, NaN where a column is missing.

    Networks know one redshift, ``z_final``. It is the object's own ``zspec`` where there is one, and where ``z_final``
    is missing the host's: ``hostgal_zspec``, else ``hostgal_zphot`` with its error.
    """
    row = metadata_row(values, columns)
    redshift = _redshift_of(values)
    if redshift is not None and "z_final" in columns:
        row[columns.index("z_final")] = redshift.value
        if "z_final_err" in columns:
            row[columns.index("z_final_err")] = redshift.error
    return row


def _redshift_of(values: Mapping[str, float]) -> "Redshift | None":
    """Return what stands for ``z_final``, None where ``z_final`` itself does or nothing is known."""
    names = ("zspec",) if "z_final" in values else ("zspec", "hostgal_zspec", "hostgal_zphot")
    for name in names:
        error = values.get(f"{name}_err") or (math.nan if name == "hostgal_zphot" else STATED_ERROR)
        if name in values and error > 0:
            return Redshift(values[name], error)
    return None


Kind = Literal["redshift", "star"]

GALACTIC: Final = frozenset(
    {"Cepheid", "Delta Scuti", "Dwarf Novae", "EB", "M-dwarf Flare", "RR Lyrae", "uLens", "LPV", "LPV/Mira", "Mira"}
    | {"YSO", "CV", "Rotational", "Periodic/Other", "Nova"}
)
"""Classes of stars in our Galaxy and its satellites, by the names that taxonomies give them."""
POINT_LIKE: Final = frozenset({"AGN", "QSO", "Blazar"})
"""Classes beyond our Galaxy that catalogues take for stars as often as not."""

STATED_ERROR: Final = 0.001  # of a redshift from a spectrum that states none, or 0
SPECTROSCOPIC_ERROR: Final = 0.005  # ELAsTiCC gives 0.001 to redshifts from spectra, and 0.05 or more to all others
NEAR_ZERO: Final = 0.003  # 900 km/s: beyond any star of our Galaxy and of the nearest ones
SIGMAS: Final = 5.0
HOST_BY_CHANCE: Final = 0.1
"""Floor of a host's redshift: how often a star that varies is given a galaxy behind it, beside how often what lies in a
galaxy is given the right one."""
WRONG_SCORE: Final = 0.03
"""Floor of a catalogue's star: galaxies that Tachibana & Miller (2018, PASP 130, 128001) score as stars, and stars in
front of galaxies."""
WRONG_GALAXY: Final = 0.2
"""Floor of a catalogue's galaxy: faint and blended stars are taken for galaxies more often than the reverse."""
WRONG_PARALLAX: Final = 1e-3
"""Floor of a parallax: sources of Gaia whose parallax is spurious."""
PARALLAX_SIGMAS: Final = 3.0
MATCH_ARCSEC: Final = (1.0, 2.0)
"""Up to the first distance a catalogue's source is this object, beyond the second it is not."""


class Context(BaseModel):
    """A bundle's knowledge of redshifts and stars.

    Attributes
    ----------
    learned : what the network was trained with, so that its likelihood factors would count it twice.
    galactic : classes of our Galaxy, where their names are not among :data:`GALACTIC`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learned: tuple[Kind, ...] = ()
    galactic: tuple[str, ...] | None = None


class Factors(NamedTuple):
    """Logarithms of likelihood factors by class, shape (C,), and what they come from, for people."""

    log_C: NDArray[np.float64]
    texts: tuple[str, ...]


class Evidence:
    """Turns what is known of an object into factors of the classes of one taxonomy."""

    def __init__(self, classes: Sequence[str], context: Context) -> None:
        galactic = GALACTIC if context.galactic is None else frozenset(context.galactic)
        self._galactic_C = np.array([name in galactic for name in classes])
        self._beyond_C = ~self._galactic_C
        self._extended_C = self._beyond_C & np.array([name not in POINT_LIKE for name in classes])
        self._soft: list[Callable[[Mapping[str, float], NDArray[np.float64]], str]] = []
        if "redshift" not in context.learned:
            self._soft.append(self._host)
        if "star" not in context.learned:
            self._soft += [self._star, self._parallax]

    def factors(self, metadata: Mapping[str, float]) -> Factors | None:
        """Return the factors of an object, None where its metadata do not distinguish classes."""
        if not metadata:
            return None
        log_C = np.zeros(len(self._galactic_C))
        texts = [_crossing(metadata)]
        if self._galactic_C.any() and not self._galactic_C.all():
            texts += [self._spectrum(metadata, log_C), *(factor(metadata, log_C) for factor in self._soft)]
        evidence = tuple(text for text in texts if text)
        return Factors(log_C, evidence) if evidence else None

    def _spectrum(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Rule out stars where a spectroscopic redshift of the object is not near zero."""
        redshift = spectroscopic_redshift(metadata)
        if redshift is None or redshift.value <= max(NEAR_ZERO, SIGMAS * redshift.error):
            return ""
        log_C[self._galactic_C] = -math.inf
        return f"spectroscopic redshift {redshift.value:.4g} excludes classes of our Galaxy"

    def _host(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Weigh stars down where a photometric or a host's redshift is away from zero by more than its error."""
        redshift = host_redshift(metadata)
        if redshift is None or spectroscopic_redshift(metadata) is not None:
            return ""
        error = max(redshift.error, SPECTROSCOPIC_ERROR)
        sigmas = redshift.value / error
        # A product of floats that is too large is infinite; ``**`` would raise OverflowError.
        at_zero = math.exp(-0.5 * sigmas * sigmas) / (error * math.sqrt(2 * math.pi))
        fits = min(1.0, at_zero / _galaxies(redshift.value))
        factor = HOST_BY_CHANCE + (1 - HOST_BY_CHANCE) * fits
        log_C[self._galactic_C] += math.log(factor)
        return f"redshift {redshift.value:.3g} of the host: classes of our Galaxy times {factor:.3g}"

    def _star(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Weigh galaxies' events down at a catalogue's star, and stars at a catalogue's galaxy."""
        score, distance = metadata.get("star_score"), metadata.get("star_distance", 0.0)
        if score is None or not 0 <= score <= 1 or distance < 0:
            return ""
        near, far = MATCH_ARCSEC
        matched = min(1.0, max(0.0, (far - distance) / (far - near)))
        if not matched:
            return ""
        if score >= 0.5:
            factor = WRONG_SCORE + (1 - WRONG_SCORE) * (1 - (2 * score - 1) * matched)
            log_C[self._extended_C] += math.log(factor)
            return f"a catalogue's star (score {score:.2g}): events in galaxies times {factor:.3g}"
        factor = WRONG_GALAXY + (1 - WRONG_GALAXY) * (1 - (1 - 2 * score) * matched)
        log_C[self._galactic_C] += math.log(factor)
        return f"a catalogue's galaxy (score {score:.2g}): classes of our Galaxy times {factor:.3g}"

    def _parallax(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Weigh everything beyond our Galaxy down where the parallax is significant."""
        parallax, error = metadata.get("parallax"), metadata.get("parallax_err")
        if parallax is None or error is None or error <= 0 or parallax < PARALLAX_SIGMAS * error:
            return ""
        sigmas = parallax / error  # squared as a product: a tiny error makes it infinite, where ``**`` would raise
        factor = max(WRONG_PARALLAX, math.exp(max(-50.0, -0.5 * sigmas * sigmas)))
        log_C[self._beyond_C] += math.log(factor)
        text = f"parallax {parallax:.3g} +- {error:.2g} mas: classes beyond our Galaxy times {factor:.3g}"
        excluded = np.isneginf(log_C[self._galactic_C]).all()  # by `_spectrum`: then no class fits both
        return f"{text}; it contradicts the redshift" if excluded else text


def _crossing(metadata: Mapping[str, float]) -> str:
    """Report a Solar System object that passes; it changes no probability, as the history is that of the place."""
    distance = metadata.get("solar_system_distance")
    if distance is None:
        return ""
    passing = f"passed at {distance:.1f} arcsec" if distance else "is at this place"
    return f"a known Solar System object {passing}: the newest detection may be its"


class Redshift(NamedTuple):
    """A redshift and its standard error."""

    value: float
    error: float


def spectroscopic_redshift(metadata: Mapping[str, float]) -> Redshift | None:
    """Return the redshift from a spectrum of the object: ``zspec``, or ``z_final`` where its error is as small.

    ``z_final`` is the photometric redshift of the host where there is no spectrum.
    """
    for name, without_error in (("zspec", 0.0), ("z_final", math.inf)):
        if name in metadata:
            error = metadata.get(f"{name}_err", without_error)
            if 0 <= error <= SPECTROSCOPIC_ERROR:
                return Redshift(metadata[name], error)
    return None


def host_redshift(metadata: Mapping[str, float]) -> Redshift | None:
    """Return the best redshift that is not of a spectrum of the object, with its error; the host's in most cases."""
    for name, without_error in (
        ("zspec", None),
        ("hostgal_zspec", SPECTROSCOPIC_ERROR),
        ("z_final", None),
        ("hostgal_zphot", None),
    ):
        error = metadata.get(f"{name}_err", without_error)
        if name in metadata and error is not None and error > 0:
            return Redshift(metadata[name], error)
    return None


def _galaxies(redshift: float) -> float:
    """Density of redshifts of what surveys find beyond our Galaxy, broad on purpose: 1 / (z + 0.1) up to 3."""
    return 1.0 / ((min(max(redshift, 0.0), 3.0) + 0.1) * math.log(31.0))
