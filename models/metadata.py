"""Metadata of objects: input columns of networks, and context evidence that reweights their probabilities.

**Metadata** are the 64 columns of the ELAsTiCC ``diaObject``, in ATAT's order (alphabetical by SNANA name: second host,
first host, Milky Way dust, final redshift). Surveys write missing values as sentinels (-9 redshift, 999 magnitude,
-9999 shape ...); here missing values are absent, and NaN in arrays. Real Rubin and ZTF alerts have none of the 64
columns, so a light curve without metadata is ordinary input.

**Context.** Three kinds of evidence distinguish stars of our Galaxy from objects beyond it: a redshift, a parallax, and
a catalogue that classifies the source at this position as star or galaxy. Each reduces the probability of the classes
that it contradicts by a factor, which has a lower limit because associations and catalogues can be wrong. Only a
non-zero spectroscopic redshift of the object itself excludes classes.
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
"""Columns of the context: redshift of the object itself, which is spectroscopic if its error is missing or small, and
which networks see as ``z_final`` (`network_metadata`); parallax (mas); star-galaxy score of the catalogue source at
this position (0 galaxy, 1 star: ``sgscore`` of ZTF) and its distance (arcsec); distance of a known Solar System object
at the time of the alert (arcsec)."""

KNOWN_COLUMNS: Final = (*METADATA_COLUMNS, *CONTEXT_COLUMNS)

REDSHIFTS: Final = (
    "zspec",
    "z_final",
    *(f"{host}_{kind}" for host in ("hostgal", "hostgal2") for kind in ("zspec", "zphot")),
)
REDSHIFT_RANGE: Final = (-0.01, 12.0)
"""Plausible redshifts: blueshifts of nearby galaxies are above -0.002, before errors."""

LARGEST: Final = float(np.finfo(np.float32).max)
"""Largest absolute value of a metadata column, because networks use single precision."""
_BOUNDS: Final = {
    **dict.fromkeys(KNOWN_COLUMNS, (-LARGEST, LARGEST)),
    **{
        name: (0.0, LARGEST)
        for name in KNOWN_COLUMNS
        if name.endswith(("_err", "snsep", "_distance")) or "_magerr_" in name
    },
    **dict.fromkeys(REDSHIFTS, REDSHIFT_RANGE),
    "mwebv": (0.0, 200.0),  # above the maximum of maps of Milky Way dust
    "star_score": (0.0, 1.0),
}


def clean_metadata(values: Mapping[str, float | int | None]) -> dict[str, float]:
    """Return the known columns that have a value.

    Sentinels, null, NaN, values that overflow single precision and implausible values (:func:`implausible_metadata`)
    count as missing.
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
    """Return an error text for each implausible value, by column; sentinels count as missing."""
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
    """Return metadata as a row, shape ``(len(columns),)``, NaN where a column is missing."""
    return np.fromiter(map(values.get, columns, repeat(math.nan)), np.float32, len(columns))


def network_metadata(values: Mapping[str, float], columns: Sequence[str]) -> NDArray[np.float32]:
    """Return the metadata input of a network, shape ``(len(columns),)``, NaN where a column is missing.

    Networks use one redshift, ``z_final``. The object's own ``zspec``, if present, replaces it. If both are missing,
    the host's redshift is used: ``hostgal_zspec``, else ``hostgal_zphot`` with its error.
    """
    row = metadata_row(values, columns)
    redshift = _redshift_of(values)
    if redshift is not None and "z_final" in columns:
        row[columns.index("z_final")] = redshift.value
        if "z_final_err" in columns:
            row[columns.index("z_final_err")] = redshift.error
    return row


def _redshift_of(values: Mapping[str, float]) -> "Redshift | None":
    """Return the redshift to use in place of ``z_final``, None if there is none or ``z_final`` itself is used."""
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
"""Classes beyond our Galaxy that catalogues often classify as stars."""

STATED_ERROR: Final = 0.001  # of a spectroscopic redshift whose error is missing or 0
SPECTROSCOPIC_ERROR: Final = 0.005  # ELAsTiCC gives 0.001 to redshifts from spectra, and 0.05 or more to all others
NEAR_ZERO: Final = 0.003  # 900 km/s, faster than any star of our Galaxy and of the nearest ones
SIGMAS: Final = 5.0
HOST_BY_CHANCE: Final = 0.1
"""Lower limit of the factor of a host's redshift: rate of variable stars matched to a background galaxy, relative to
the rate of extragalactic objects matched to the right host."""
WRONG_SCORE: Final = 0.03
"""Lower limit of the factor of a catalogue star: galaxies that Tachibana & Miller (2018, PASP 130, 128001) score as
stars, and stars in front of galaxies."""
WRONG_GALAXY: Final = 0.2
"""Lower limit of the factor of a catalogue galaxy; faint and blended stars are misclassified more often."""
WRONG_PARALLAX: Final = 1e-3
"""Lower limit of the factor of a parallax: fraction of Gaia sources with a spurious parallax."""
PARALLAX_SIGMAS: Final = 3.0
MATCH_ARCSEC: Final = (1.0, 2.0)
"""A catalogue source up to the first distance is this object; beyond the second it is not."""


class Context(BaseModel):
    """Context evidence that a bundle's network has already learned, and its Galactic classes.

    Attributes
    ----------
    learned : evidence that the network was trained with; applying it as factors would count it twice.
    galactic : classes of our Galaxy; None for those in :data:`GALACTIC`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learned: tuple[Kind, ...] = ()
    galactic: tuple[str, ...] | None = None


class Factors(NamedTuple):
    """Logarithms of likelihood factors by class, shape (C,), and descriptions of the evidence for people."""

    log_C: NDArray[np.float64]
    texts: tuple[str, ...]


class Evidence:
    """Converts metadata of an object to likelihood factors of the classes of one taxonomy."""

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
        """Return the factors of an object, None if its metadata do not distinguish classes."""
        if not metadata:
            return None
        log_C = np.zeros(len(self._galactic_C))
        texts = [_passing_object(metadata)]
        if self._galactic_C.any() and not self._galactic_C.all():
            texts += [self._spectrum(metadata, log_C), *(factor(metadata, log_C) for factor in self._soft)]
        evidence = tuple(text for text in texts if text)
        return Factors(log_C, evidence) if evidence else None

    def _spectrum(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Exclude stars if a spectroscopic redshift of the object is not near zero."""
        redshift = spectroscopic_redshift(metadata)
        if redshift is None or redshift.value <= max(NEAR_ZERO, SIGMAS * redshift.error):
            return ""
        log_C[self._galactic_C] = -math.inf
        return f"spectroscopic redshift {redshift.value:.4g} excludes classes of our Galaxy"

    def _host(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Reduce the weight of stars if a photometric or host redshift differs from zero by more than its error."""
        redshift = host_redshift(metadata)
        if redshift is None or spectroscopic_redshift(metadata) is not None:
            return ""
        error = max(redshift.error, SPECTROSCOPIC_ERROR)
        sigmas = redshift.value / error
        # A product overflows to infinity; ``**`` would raise OverflowError.
        at_zero = math.exp(-0.5 * sigmas * sigmas) / (error * math.sqrt(2 * math.pi))
        fits = min(1.0, at_zero / _redshift_density(redshift.value))
        factor = HOST_BY_CHANCE + (1 - HOST_BY_CHANCE) * fits
        log_C[self._galactic_C] += math.log(factor)
        return f"redshift {redshift.value:.3g} of the host: classes of our Galaxy times {factor:.3g}"

    def _star(self, metadata: Mapping[str, float], log_C: NDArray[np.float64]) -> str:
        """Reduce the weight of events in galaxies at a catalogue star, and of stars at a catalogue galaxy."""
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
        """Reduce the weight of classes beyond our Galaxy if the parallax is significant."""
        parallax, error = metadata.get("parallax"), metadata.get("parallax_err")
        if parallax is None or error is None or error <= 0 or parallax < PARALLAX_SIGMAS * error:
            return ""
        sigmas = parallax / error  # squared as a product, which overflows to infinity; ``**`` would raise
        factor = max(WRONG_PARALLAX, math.exp(max(-50.0, -0.5 * sigmas * sigmas)))
        log_C[self._beyond_C] += math.log(factor)
        text = f"parallax {parallax:.3g} +- {error:.2g} mas: classes beyond our Galaxy times {factor:.3g}"
        excluded = np.isneginf(log_C[self._galactic_C]).all()  # by `_spectrum`, so that no class fits both
        return f"{text}; it contradicts the redshift" if excluded else text


def _passing_object(metadata: Mapping[str, float]) -> str:
    """Report a passing Solar System object; it changes no probability, because the light curve is of the position."""
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
    """Return the redshift from a spectrum of the object: ``zspec``, or ``z_final`` if its error is as small.

    Without a spectrum, ``z_final`` is the photometric redshift of the host.
    """
    for name, without_error in (("zspec", 0.0), ("z_final", math.inf)):
        if name in metadata:
            error = metadata.get(f"{name}_err", without_error)
            if 0 <= error <= SPECTROSCOPIC_ERROR:
                return Redshift(metadata[name], error)
    return None


def host_redshift(metadata: Mapping[str, float]) -> Redshift | None:
    """Return the best redshift with an error, other than that of a spectrum of the object; usually the host's."""
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


def _redshift_density(redshift: float) -> float:
    """Return a broad probability density of the redshifts of extragalactic objects: 1 / (z + 0.1) up to 3."""
    return 1.0 / ((min(max(redshift, 0.0), 3.0) + 0.1) * math.log(31.0))
