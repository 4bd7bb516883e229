"""The Zwicky Transient Facility: its packets of versions 3 and 4, as brokers pass them on.

Conventions are those of its alert documentation (:mod:`models.alerts.photometry`). Fink adds Gaia's parallax. BOOM,
whose public streams are Babamul's, adds fluxes and names bands; its unit of flux is told by the magnitudes beside them.
"""

from typing import Final

from models.alerts.layouts import Aliases, Observations, PacketLayout, Path, Survey
from models.alerts.photometry import boom_ztf, boom_ztf_unit, ztf_counts, ztf_magnitudes

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
_CONTEXT: Final[dict[str, tuple[Path, ...]]] = {
    "star_score": (("candidate", "sgscore1"),),
    "star_distance": (("candidate", "distpsnr1"),),
    "parallax": (("Plx",),),
    "parallax_err": (("e_Plx",),),
}

ZTF: Final = PacketLayout(
    marks=(("candidate",), ("objectId",)),
    observations=(
        Observations("fp_hists", False, _FORCED_ROW, _EXTRA, ztf_counts),
        Observations("candidate", True, _ROW, _EXTRA, ztf_magnitudes),
        Observations("prv_candidates", True, _ROW, _EXTRA, ztf_magnitudes),
    ),
    alert_id=_IDS,
    source_id=_IDS,
    object_id=(("objectId",),),
    version=(("schemavsn",),),
    context=_CONTEXT,
)

_BOOM_ROW: Final[Aliases] = {"time": ("jd",), "band": ("band",), "flux": ("psfFlux",), "flux_err": ("psfFluxErr",)}
_BOOM_EXTRA: Final[Aliases] = {"exposure": ("exptime",), "magnitude": ("magpsf",)}

BOOM: Final = PacketLayout(
    marks=(("objectId",), ("candidate", "psfFlux"), ("candidate", "jd")),
    observations=(
        Observations("fp_hists", False, _BOOM_ROW, _BOOM_EXTRA, boom_ztf),
        Observations("candidate", True, _BOOM_ROW, _BOOM_EXTRA, boom_ztf),
        Observations("prv_candidates", True, _BOOM_ROW, _BOOM_EXTRA, boom_ztf),
    ),
    alert_id=_IDS,
    source_id=_IDS,
    object_id=(("objectId",),),
    context=_CONTEXT,
    njy_per_unit=boom_ztf_unit,
)

SURVEY: Final = Survey(
    name="ztf",
    title="ZTF",
    bands={1: "g", 2: "r", 3: "i", "g": "g", "r": "r", "i": "i"},
    layouts=(BOOM, ZTF),
    bundle="astro-moe-ztf/2.0.0",
)
