"""Zwicky Transient Facility: packets of versions 3 and 4, also as brokers distribute them.

The conventions are those of ZTF's alert documentation: ``jd`` is UTC at the *start* of the exposure, ``magpsf`` is the
AB magnitude of the absolute difference flux with the sign ``isdiffpos``, and ``forcediffimflux`` is in counts (DN) with
the zero point ``magzpsci``. Fink adds Gaia's parallax. BOOM, whose public streams are Babamul's, adds fluxes and names
bands; its flux unit is derived from the magnitudes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.alerts.layouts import Aliases, Observations, PacketLayout, Path, Survey
from nightjar_alerts.alerts.photometry import (
    Bands,
    Flaw,
    Float64,
    Photometry,
    PhotometryColumns,
    filters_of,
    in_njy,
    no_flaws,
    numbers,
)
from nightjar_alerts.models.photometry import mjd_tai_of_jd, njy_of_magnitude, njy_with_error

EXPOSURE_SECONDS: Final = 30.0
MISSING_FLUX: Final = -99999.0
NO_WARNING: Final = frozenset({"0", "0.0"})
SIGN: Final = {"t": 1.0, "1": 1.0, "+": 1.0, "f": -1.0, "0": -1.0, "-": -1.0}
"""Sign of the difference flux by the first character of ``isdiffpos`` (t, f, 1, 0, true, false, 1.0, -1 and others)."""
MAGNITUDES: Final = (0.0, 35.0)
LARGEST_MAGNITUDE_ERROR: Final = 5.0
"""Magnitudes and errors outside these limits are sentinels: -999, -99, 0, 99, 99.99."""


@np.errstate(over="ignore", invalid="ignore")  # extreme values become infinite or NaN, and are dropped as unusable
def magnitudes(columns: PhotometryColumns, detection: bool, bands: Bands) -> Photometry:
    """Convert ZTF candidates; rows without a magnitude are upper limits, which are not used."""
    sign = np.array([_sign(flag) for flag in columns["sign"]])
    magnitude, error = numbers(columns["flux"]), numbers(columns["flux_err"])
    magnitude[(magnitude <= MAGNITUDES[0]) | (magnitude > MAGNITUDES[1])] = np.nan
    error[error > LARGEST_MAGNITUDE_ERROR] = np.nan
    limit = np.isnan(magnitude)
    flux, error = njy_with_error(magnitude, error)
    rows = _rows(columns, flux * sign, error, detection & ~limit & np.isfinite(sign), bands)
    flaw = np.where(limit, Flaw.UPPER_LIMIT.value, np.where(np.isnan(sign), Flaw.BAD_SIGN.value, 0))
    return replace(rows, flaw=flaw.astype(np.int8))


def _sign(flag: Any) -> float:
    found = SIGN.get(flag) if isinstance(flag, str) else None
    return SIGN.get(str(flag).strip().lower()[:1], np.nan) if found is None else found


@np.errstate(over="ignore", invalid="ignore")
def forced(columns: PhotometryColumns, detection: bool, bands: Bands) -> Photometry:
    """Convert ZTF forced photometry; rows with a warning, without a zero point or with a sentinel flux are dropped."""
    counts = numbers(columns["flux"])
    clean = np.array(
        [status == "0" or str(status).strip() in NO_WARNING for status in columns["status"]], dtype=np.bool_
    )
    filler = (counts == MISSING_FLUX) | (counts == 0.0)
    zero_point = numbers(columns["zero_point"])
    zero_point[(zero_point <= MAGNITUDES[0]) | (zero_point > MAGNITUDES[1])] = np.nan
    scale = njy_of_magnitude(zero_point)
    flux = np.where(clean & ~filler, counts * scale, np.nan)
    rows = _rows(columns, flux, numbers(columns["flux_err"]) * scale, np.full(len(flux), detection), bands)
    return replace(rows, flaw=np.where(clean, 0, Flaw.FLAGGED.value).astype(np.int8))


def _rows(
    columns: PhotometryColumns, flux: Float64, error: Float64, detected: NDArray[np.bool_], bands: Bands
) -> Photometry:
    band, visit = filters_of(columns["band"], bands), np.zeros(len(flux), dtype=np.int64)
    return Photometry(_middle(columns), flux, error, band, detected, visit, no_flaws(len(flux)))


def _middle(columns: PhotometryColumns) -> Float64:
    """Return the middle of the exposure, MJD (TAI), from its start, JD (UTC)."""
    start = numbers(columns["time"])
    exposure = np.full(len(start), np.nan)
    if "exposure" in columns:
        exposure = numbers(columns["exposure"])
    return mjd_tai_of_jd(start, np.where(exposure > 0, exposure, EXPOSURE_SECONDS) / 2)


_ROW: Final[Aliases] = {
    "time": ("jd",),
    "band": ("fid",),
    "flux": ("magpsf",),
    "flux_err": ("sigmapsf",),
    "sign": ("isdiffpos",),
}
_FORCED_ROW: Final[Aliases] = {
    "time": ("jd",),
    "band": ("fid",),
    "flux": ("forcediffimflux",),
    "flux_err": ("forcediffimfluxunc",),
    "zero_point": ("magzpsci",),
    "status": ("procstatus",),
}
_EXTRA: Final[Aliases] = {"exposure": ("exptime",)}
_IDS: Final[tuple[Path, ...]] = (("candid",), ("candidate", "candid"))
_MOVING_NAME: Final[tuple[Path, ...]] = (("candidate", "ssnamenr"), ("extra_fields", "ssnamenr"))
_MOVING_DISTANCE: Final[tuple[Path, ...]] = (("candidate", "ssdistnr"), ("extra_fields", "ssdistnr"))
_CONTEXT: Final[dict[str, tuple[Path, ...]]] = {
    "star_score": (("candidate", "sgscore1"),),
    "star_distance": (("candidate", "distpsnr1"),),
    "parallax": (("Plx",),),
    "parallax_err": (("e_Plx",),),
}
_POSITION: Final = ((("candidate", "ra"), ("candidate", "dec")),)

ZTF: Final = PacketLayout(
    marks=(("candidate",), ("objectId",)),
    observations=(
        Observations("fp_hists", False, _FORCED_ROW, _EXTRA, forced),
        Observations("candidate", True, _ROW, _EXTRA, magnitudes),
        Observations("prv_candidates", True, _ROW, _EXTRA, magnitudes),
    ),
    alert_id=_IDS,
    source_id=_IDS,
    object_id=(("objectId",),),
    moving_name=_MOVING_NAME,
    moving_distance=_MOVING_DISTANCE,
    moving_flags=((("roid",), (3,)),),  # Fink's: a known object of the Minor Planet Center
    version=(("schemavsn",),),
    context=_CONTEXT,
    position=_POSITION,
)


def boom(columns: PhotometryColumns, detection: bool, bands: Bands) -> Photometry:
    """Convert ZTF photometry of BOOM: Julian dates (UTC) at the start of the exposure, signed fluxes."""
    rows = in_njy(columns, detection, bands, _middle(columns))
    return replace(rows, detected=rows.detected & np.isfinite(rows.flux))


def boom_unit(lists: Sequence[PhotometryColumns]) -> float:
    """Return nJy per unit of BOOM's ZTF fluxes, derived from the magnitudes.

    BOOM documents the unit as nJy, but its fluxes are in uJy (zero point 23.9) times 1e9, which is 1e-15 Jy. Without
    magnitudes nJy is assumed.
    """
    ratios = []
    for columns in lists:
        if "magnitude" in columns:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                ratio = np.abs(numbers(columns["flux"])) / njy_of_magnitude(numbers(columns["magnitude"]))
            ratios += ratio[np.isfinite(ratio) & (ratio > 0)].tolist()
    return 1e-6 if ratios and float(np.median(ratios)) > 1e3 else 1.0


_BOOM_ROW: Final[Aliases] = {"time": ("jd",), "band": ("band",), "flux": ("psfFlux",), "flux_err": ("psfFluxErr",)}
_BOOM_EXTRA: Final[Aliases] = {"exposure": ("exptime",), "magnitude": ("magpsf",)}

BOOM: Final = PacketLayout(
    marks=(("objectId",), ("candidate", "psfFlux"), ("candidate", "jd")),
    observations=(
        Observations("fp_hists", False, _BOOM_ROW, _BOOM_EXTRA, boom),
        Observations("candidate", True, _BOOM_ROW, _BOOM_EXTRA, boom),
        Observations("prv_candidates", True, _BOOM_ROW, _BOOM_EXTRA, boom),
    ),
    alert_id=_IDS,
    source_id=_IDS,
    object_id=(("objectId",),),
    moving_name=_MOVING_NAME,
    moving_distance=_MOVING_DISTANCE,
    moving_flags=((("properties", "rock"), (True,)),),
    context=_CONTEXT,
    position=_POSITION,
    njy_per_unit=boom_unit,
)

SURVEY: Final = Survey(
    name="ztf",
    title="ZTF",
    # These filters differ slightly from LSST's with the same names.
    bands={1: "g", 2: "r", 3: "i", "g": "g", "r": "r", "i": "i"},
    layouts=(BOOM, ZTF),
    bundle="astro-moe-ztf/2.1.1",
)
