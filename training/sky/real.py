"""Bands of the networks that the filters of surveys count as.

A network knows u g r i z Y of LSST. Filters near them (SDSS, Pan-STARRS, DECam, MegaCam, ZTF, Kepler-cam, CSP) carry
their letter already; others would be lost, so the nearest band stands in, in log wavelength, and the point is marked
as foreign. No colour term is applied: a `V` seen as `g` is redder than a `g` would be, and training must see that it
can be so. Ultraviolet filters beyond `U`, and everything redder than `Y`, stay out.

An object never mixes two filters in one band: native points win, else the first letter of `FOREIGN` that has points.

The real sets that share one schema: one row per object and survey, points in lists (``real/*.parquet``).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.bands import BANDS, FILTERS
from training.sky.record import LABELS, UNLABELLED, SkyObject

WAVELENGTH: Final = {"u": 368.0, "g": 480.0, "r": 622.0, "i": 754.0, "z": 869.0, "Y": 971.0}
"""Effective wavelengths of the LSST filters, nm."""

FOREIGN: Final[dict[str, tuple[tuple[str, float], ...]]] = {
    "u": (("U", 360.0),),
    "g": (("B", 436.0), ("c", 533.0), ("V", 545.0), ("gr", 560.0)),
    "r": (("R", 641.0), ("Rs", 641.0), ("F625W", 625.0), ("G", 622.0), ("o", 679.0), ("w", 610.0), ("C", 600.0),
          ("clear", 600.0)),
    "i": (("I", 798.0), ("F775W", 775.0)),
}  # fmt: skip
"""Letters that stand in for a band, the preferred first, with their effective wavelengths in nm."""

STAND_INS: Final = {letter: band for band, found in FOREIGN.items() for letter, _ in found if letter in FILTERS}
"""Filters that a request may name, and the band that each counted as in training: a bundle's ``band_groups``."""


def assign(letters_P: NDArray[np.str_]) -> tuple[NDArray[np.int8], NDArray[np.bool_], NDArray[np.float32]]:
    """Band, foreign flag and wavelength of the points of one object; band -1 where a point is to be left out."""
    band_P = np.full(len(letters_P), -1, dtype=np.int8)
    foreign_P = np.zeros(len(letters_P), dtype=np.bool_)
    wavelength_P = np.full(len(letters_P), np.nan, dtype=np.float32)
    for number, name in enumerate(BANDS):
        choices = ((name, WAVELENGTH[name]), *FOREIGN.get(name, ()))
        for place, (letter, nanometres) in enumerate(choices):
            found_P = letters_P == letter
            if found_P.any():
                band_P[found_P], wavelength_P[found_P], foreign_P[found_P] = number, nanometres, place > 0
                break
    return band_P, foreign_P, wavelength_P


OTHER_SCHEMA: Final = frozenset({"lclib_mdwarf"})
MEASURE_ONLY: Final = frozenset({"tdecat"})
"""Sets whose licence lets nobody train on them: they are scored, never trained, calibrated or chosen on."""

CONFLICTS: Final = frozenset({
    "SN2019dwa", "SN2019ieh", "SN2018hsf", "SN2020wnt", "AT2020yue", "SN2020abku", "SN2020acct", "SN2020acun",
    "SN2020esm", "SN2020fhs", "CSS110329:133902-240114", "Gaia19awv", "Gaia21fjv",
    "ZTF19aarfyvc", "ZTF19abauylg", "ZTF18acbvpzj", "ZTF20acjeflr", "ZTF20acnznms",
})  # fmt: skip
"""Objects that two sources type differently: left out."""

_POINTS: Final = ("mjd", "band", "flux", "flux_err", "total_flux", "detected")
_ROW: Final = ("source", "object_id", "label", "raw_label", "label_quality", "z", "z_err", "z_phot", "z_phot_err",
               "mwebv", "period_d", "aliases", "also_in")  # fmt: skip


def read_real(folder: Path) -> Iterator[SkyObject]:
    """Every object of every file of ``folder`` that has a usable point; nothing where there is no such folder.

    ``other_types`` (no label) come out unlabelled with quality ``other``.
    """
    for path in sorted(folder.glob("*.parquet")):
        if path.stem not in OTHER_SCHEMA:
            yield from _read_file(path)


def _read_file(path: Path) -> Iterator[SkyObject]:
    table = pq.read_table(path, columns=[*_ROW, *_POINTS]).combine_chunks()
    rows = table.select(_ROW).to_pylist()
    lists = {name: table.column(name).combine_chunks() for name in _POINTS}
    for number, row in enumerate(rows):
        if row["object_id"] in CONFLICTS:
            continue
        points = {name: _numpy(column[number].values) for name, column in lists.items()}
        if points["total_flux"] is None or not len(points["total_flux"]):
            points["total_flux"] = np.full(len(points["mjd"]), np.nan)
        found = _object(row, points)
        if found is not None:
            if path.stem == "other_types":
                found.quality = "other"
            yield found


def _numpy(values: Any) -> Any:
    """Return the values of a list as an array, None where the row has no list."""
    return None if values is None else values.to_numpy(zero_copy_only=False)


def _object(row: dict[str, Any], points: dict[str, NDArray[Any]]) -> SkyObject | None:
    flux, error = points["flux"], points["flux_err"]
    band, foreign, wavelength = assign(points["band"].astype(np.str_))
    ok = (band >= 0) & np.isfinite(flux) & np.isfinite(error) & (error > 0)
    if not ok.any():
        return None
    return SkyObject(
        source=row["source"],
        object_id=row["object_id"],
        mjd=points["mjd"][ok],
        flux=flux[ok],
        flux_err=error[ok],
        band=band[ok],
        detected=points["detected"][ok].astype(np.bool_),
        foreign=foreign[ok],
        wavelength=wavelength[ok],
        total_flux=points["total_flux"][ok],
        label=LABELS.get(row["label"] or "", UNLABELLED),
        raw_label=row["raw_label"] or "",
        quality=row["label_quality"] or "",
        names=_names(row),
        z=_number(row["z"]),
        z_err=_number(row["z_err"]),
        z_phot=_number(row["z_phot"]),
        z_phot_err=_number(row["z_phot_err"]),
        mwebv=_number(row["mwebv"]),
        period=_number(row["period_d"]),
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _names(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the object's id, aliases and stated matches. OGLE field and star are no names of their own."""
    aliases = "" if row["source"].startswith("ogle") else row["aliases"] or ""
    return (row["object_id"], *aliases.split(";"), *(row["also_in"] or "").split(";"))
