"""The 64 metadata columns of the ELAsTiCC ``diaObject`` and the survey's ways of saying "missing".

Column order follows ATAT (alphabetical by SNANA name: second host, first host, Milky Way dust, final redshift). Surveys
write missing values as sentinels (-9 redshift, 999 magnitude, -9999 shape ...); here missing means absent, and NaN in
arrays. Real Rubin and ZTF alerts carry none of the 64: a light curve without metadata is ordinary input.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

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

CONTEXT_COLUMNS: Final = ("zspec", "zspec_err", "parallax", "parallax_err", "star_score", "star_distance")
"""Columns of :mod:`models.context`, which weigh the answer and are given to no network: the redshift of the object
itself, spectroscopic without an error or with a small one; parallax (mas); how star-like the source is that a catalogue
has at this place (0 galaxy, 1 star: ``sgscore`` of ZTF) and its distance (arcsec)."""

KNOWN_COLUMNS: Final = (*METADATA_COLUMNS, *CONTEXT_COLUMNS)

_KNOWN = frozenset(KNOWN_COLUMNS)


def clean_metadata(values: Mapping[str, float | int | None]) -> dict[str, float]:
    """Keep the known columns that hold a value; sentinels, nulls, NaN and infinities are missing, hence absent."""
    return {
        name: float(value)
        for name, value in values.items()
        if name in _KNOWN and value is not None and math.isfinite(value) and float(value) not in SENTINELS
    }


def metadata_row(values: Mapping[str, float], columns: Sequence[str]) -> NDArray[np.float32]:
    """Metadata as a row, shape ``(len(columns),)``, NaN where a column is missing."""
    return np.array([values.get(column, math.nan) for column in columns], dtype=np.float32)
