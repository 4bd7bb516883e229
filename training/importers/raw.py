"""What a reader hands over: one object as its source has it, in nJy and MJD TAI but not yet checked.

Notable: readers convert units, because only they know them, and never drop a point: they name a reason in
``rejected``, so that the report of `training.importers.convert` can count it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Float64


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
