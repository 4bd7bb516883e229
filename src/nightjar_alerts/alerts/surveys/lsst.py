"""Legacy Survey of Space and Time of Rubin Observatory: packets of versions 4 to 11, also as brokers distribute them.

Fields were renamed over the years. Fink adds catalogue matches (``xm``). BOOM, whose public streams are Babamul's,
changes the packets: times are Julian dates (UTC) at mid-exposure, and ids are names. Lasair sends different lists.
"""

import re
from typing import Final

import numpy as np

from nightjar_alerts.alerts.layouts import Aliases, Observations, PacketLayout, Survey
from nightjar_alerts.alerts.photometry import (
    Bands,
    Flaw,
    Photometry,
    PhotometryColumns,
    filters_of,
    in_njy,
    is_mjd,
    no_flaws,
    numbers,
    whole_numbers,
)
from nightjar_alerts.models.photometry import BANDS, mjd_tai_of_jd


def rubin(columns: PhotometryColumns, detection: bool, bands: Bands) -> Photometry:
    """Convert LSST and ELAsTiCC photometry (MJD TAI at mid-visit, nJy).

    Withdrawn rows lose flux and detection; a row is not withdrawn if its time of withdrawal is not an MJD, such as 0.
    Rows with a flag of :data:`FLAGS` lose their flux.
    """
    mjd, flux = numbers(columns["time"]), numbers(columns["flux"])
    detected, flaw = np.full(len(mjd), detection), no_flaws(len(mjd))
    withdrawn = is_mjd(numbers(columns.get("withdrawn", ())))
    if withdrawn.any():
        flux[withdrawn], detected[withdrawn], flaw[withdrawn] = np.nan, False, Flaw.WITHDRAWN
    flagged = np.zeros(len(mjd), dtype=np.bool_)
    for name in FLAGS & columns.keys():
        flagged |= np.array([value is True or value in ("true", 1) for value in columns[name]], dtype=np.bool_)
    flux[flagged], flaw[flagged & (flaw == 0)] = np.nan, Flaw.FLAGGED
    return Photometry(
        mjd=mjd,
        flux=flux,
        flux_err=numbers(columns["flux_err"]),
        band=filters_of(columns["band"], bands),
        detected=detected,
        visit=whole_numbers(columns["visit"]) if "visit" in columns else np.zeros(len(mjd), dtype=np.int64),
        flaw=flaw,
    )


ROW: Final[Aliases] = {
    "time": ("midpointMjdTai", "midPointTai"),
    "band": ("band", "filterName"),
    "flux": ("psfFlux", "psFlux"),
    "flux_err": ("psfFluxErr", "psFluxErr"),
}
FLAGS: Final = frozenset(
    {
        *("psfFlux_flag", "psfFlux_flag_edge", "psfFlux_flag_noGoodPixels"),
        *(
            "pixelFlags",
            "pixelFlags_bad",
            "pixelFlags_cr",
            "pixelFlags_crCenter",
            "pixelFlags_edge",
            "pixelFlags_nodata",
        ),
        *("pixelFlags_nodataCenter", "pixelFlags_interpolated", "pixelFlags_interpolatedCenter", "pixelFlags_offimage"),
        *("pixelFlags_saturated", "pixelFlags_saturatedCenter", "pixelFlags_suspect", "pixelFlags_suspectCenter"),
        *("pixelFlags_streak", "pixelFlags_streakCenter", "pixelFlags_injected", "pixelFlags_injectedCenter"),
        *("pixelFlags_injected_template", "pixelFlags_injected_templateCenter"),
    }
)
"""Flags of bad PSF fluxes and pixels (sdm-schemas.lsst.io/apdb.html), as in the table reader."""
EXTRA: Final[Aliases] = {
    "visit": ("visit",),
    "withdrawn": ("timeWithdrawnMjdTai",),
    **{name: (name,) for name in sorted(FLAGS)},
}

_OBJECT_POSITION: Final = (
    (("diaObject", "ra"), ("diaObject", "dec")),
    (("diaObject", "ra"), ("diaObject", "decl")),
)

RUBIN: Final = PacketLayout(
    marks=(("diaSource",),),
    observations=(
        Observations("prvDiaForcedSources", False, ROW, EXTRA, rubin),
        Observations("diaSource", True, ROW, EXTRA, rubin),
        Observations("prvDiaSources", True, ROW, EXTRA, rubin),
    ),
    alert_id=(("alertId",), ("diaSourceId",), ("diaSource", "diaSourceId")),
    source_id=(("diaSource", "diaSourceId"),),
    object_id=(("diaObject", "diaObjectId"), ("diaSource", "diaObjectId")),
    moving_id=(
        ("diaSource", "ssObjectId"),
        ("ssSource", "ssObjectId"),
        ("ssObject", "ssObjectId"),
        ("MPCORB", "ssObjectId"),
    ),
    moving_flags=((("pred", "is_sso"), (True,)), (("properties", "rock"), (True,))),
    version=(("lsst_schema_version",),),
    metadata="diaObject",
    context={
        "zspec": (("xm", "tns_redshift"),),
        "hostgal_zphot": (("xm", "legacydr8_zphot"),),
        "hostgal_zphot_err": (("xm", "legacydr8_e_zphot"),),
        "parallax": (("xm", "gaiadr3_Plx"),),
        "parallax_err": (("xm", "gaiadr3_e_Plx"),),
        "star_score": (("xm", "legacydr8_pstar"),),
    },
    position=_OBJECT_POSITION,
)


def boom(columns: PhotometryColumns, detection: bool, bands: Bands) -> Photometry:
    """Convert LSST photometry of BOOM: Julian dates (UTC) at mid-exposure, nJy."""
    return in_njy(columns, detection, bands, mjd_tai_of_jd(numbers(columns["time"])))


_BOOM_ROW: Final[Aliases] = {"time": ("jd",), "band": ("band",), "flux": ("psfFlux",), "flux_err": ("psfFluxErr",)}

BOOM: Final = PacketLayout(
    marks=(("objectId",), ("candidate", "midpointMjdTai")),
    observations=(
        Observations("fp_hists", False, _BOOM_ROW, {}, boom),
        Observations("candidate", True, {**_BOOM_ROW, "time": ("midpointMjdTai",)}, {}, rubin),
        Observations("prv_candidates", True, _BOOM_ROW, {}, boom),
    ),
    alert_id=(("candid",), ("candidate", "diaSourceId")),
    source_id=(("candidate", "diaSourceId"), ("candid",)),
    object_id=(("candidate", "diaObjectId"), ("objectId",)),
    moving_id=(("candidate", "ssObjectId"),),
    moving_flags=((("properties", "rock"), (True,)),),
    position=((("candidate", "ra"), ("candidate", "dec")),),
)

LASAIR: Final = PacketLayout(
    marks=(("diaSourcesList",),),
    observations=(
        Observations("diaForcedSourcesList", False, ROW, EXTRA, rubin),
        Observations("diaSourcesList", True, ROW, EXTRA, rubin),
    ),
    alert_id=(("alertId",), ("diaSourceId",), ("newest", "diaSourceId")),
    source_id=(("diaSourceId",), ("newest", "diaSourceId")),
    object_id=(("diaObject", "diaObjectId"), ("diaObjectId",), ("objectId",), ("newest", "diaObjectId")),
    moving_id=(("newest", "ssObjectId"), ("ssSource", "ssObjectId"), ("ssObject", "ssObjectId"), ("ssObjectId",)),
    newest_of="diaSourcesList",
    position=_OBJECT_POSITION,
)

SURVEY: Final = Survey(
    name="lsst",
    title="LSST (Rubin Observatory)",
    bands={**{name: name for name in BANDS}, "y": "Y"},
    layouts=(RUBIN, BOOM, LASAIR),
    record_name=re.compile(r"lsst\.v(\d{1,3}(?:_\d{1,3}){1,2})\.alert"),
    framed=True,
)
