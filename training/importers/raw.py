"""What a reader hands over: one object as its source has it, in nJy and MJD TAI but not yet checked.

Notable: readers convert units, because only they know them, and never drop a point: they name a reason in
``rejected``, so that the report of `training.importers.convert` can count it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Float64

NJY_ZERO_POINT = 31.4
JD_MINUS_MJD = 2_400_000.5

FluxUnit = Literal["nJy", "uJy", "mJy", "Jy", "FLUXCAL"]
# 1 Jy is 1e9 nJy; FLUXCAL is the SNANA unit of zero point 27.5. AB zero is 3631 Jy = 10**(0.4 * 31.4) nJy (Oke & Gunn
# 1983, ApJ 266, 713), to the 0.01 per cent by which the two round numbers disagree.
NJY_PER_UNIT: Mapping[FluxUnit, float] = {
    "nJy": 1.0,
    "uJy": 1e3,
    "mJy": 1e6,
    "Jy": 1e9,
    "FLUXCAL": 10 ** (0.4 * (NJY_ZERO_POINT - 27.5)),
}


class ImportFormatError(ValueError):
    """The source is not what its format promises; the message names the file and, where there is one, the option."""


@dataclass(frozen=True, slots=True, eq=False)
class RawObject:
    """One object of a source, its points in any order.

    ``mjd`` f64[n] days; ``flux``, ``flux_err`` f64[n] nJy; ``band`` n names as the source spells them; ``detected``
    bool[n], or None for the 5 sigma rule; ``rejected``: reason to bool[n], points that the source itself marks as
    unusable; ``label`` as the source spells it, empty when unlabelled; ``metadata`` by the names of
    `models.metadata.METADATA_COLUMNS`, sentinels included; ``redshift`` the truth, NaN when unknown; ``parent`` what it
    shares with objects that must not be on another side of a split, empty when the source knows of none.
    """

    object_id: str
    mjd: Float64
    flux: Float64
    flux_err: Float64
    band: Sequence[str] | NDArray[np.object_]
    detected: NDArray[np.bool_] | None = None
    label: str = ""
    metadata: Mapping[str, float] = field(default_factory=dict)
    redshift: float = float("nan")
    rejected: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    parent: str = ""


@np.errstate(over="ignore", invalid="ignore")  # absurd magnitudes become infinite, and are dropped as not finite
def flux_of(magnitude: Float64, error: Float64) -> tuple[Float64, Float64]:
    """Flux and its error in nJy from AB magnitudes: ``F = 10**(-0.4 (m - 31.4))``, ``dF = 0.4 ln(10) F dm``."""
    flux = np.asarray(np.power(10.0, -0.4 * (magnitude - NJY_ZERO_POINT)), dtype=np.float64)
    return flux, flux * error * (0.4 * np.log(10.0))


def per_zero_point(zero_point: float) -> float:
    """NJy of one unit of flux whose AB zero point is ``zero_point``."""
    return float(10 ** (0.4 * (NJY_ZERO_POINT - zero_point)))
