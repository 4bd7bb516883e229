"""The table of survey layouts: which fields hold what, under every name a version has given them.

LSST 4 to 11 and ELAsTiCC share one layout whose fields were renamed over the years; ZTF 3 and 4 are the other. A new
version that renames a field is one more alias here. Aliases are tried in order against the schema the packet was
written with, once for each schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.alerts.photometry import Convert, rubin, ztf_counts, ztf_magnitudes

Aliases = Mapping[str, tuple[str, ...]]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observations:
    """One place in the packet that holds observations: a record or a list of records.

    Attributes
    ----------
    path : field of the packet.
    detections : whether the rows are detections (of the survey's pipeline), as opposed to forced photometry.
    required, optional : role to aliases.
    convert : turns the columns, by role, into photometry.
    """

    path: str
    detections: bool
    required: Aliases
    optional: Aliases
    convert: Convert


@dataclass(frozen=True, slots=True)
class Layout:
    """One family of packets.

    Attributes
    ----------
    marks : top-level fields by which a packet of the family is known.
    observations : in order of preference for one exposure: forced photometry, the alert's own detection, history.
    alert_id, source_id, object_id, moving_id : where an id may stand (of the alert, of the detection that caused it, of
        its object); the first that is neither null, 0 nor empty counts. A packet with a moving id and no object id
        belongs to the solar system.
    version : fields that state the schema version, for packets that brokers rewrote under another record name.
    metadata : record that holds metadata columns.
    """

    marks: tuple[str, ...]
    observations: tuple[Observations, ...]
    alert_id: tuple[Path, ...]
    source_id: tuple[Path, ...]
    object_id: tuple[Path, ...]
    moving_id: tuple[Path, ...] = ()
    version: tuple[Path, ...] = ()
    metadata: str | None = None


_RUBIN_ROW: Final[Aliases] = {
    "time": ("midpointMjdTai", "midPointTai"),
    "band": ("band", "filterName"),
    "flux": ("psfFlux", "psFlux"),
    "flux_err": ("psfFluxErr", "psFluxErr"),
}
_RUBIN_EXTRA: Final[Aliases] = {"visit": ("visit",), "withdrawn": ("timeWithdrawnMjdTai",)}

RUBIN: Final = Layout(
    marks=("diaSource",),
    observations=(
        Observations("prvDiaForcedSources", False, _RUBIN_ROW, _RUBIN_EXTRA, rubin),
        Observations("diaSource", True, _RUBIN_ROW, _RUBIN_EXTRA, rubin),
        Observations("prvDiaSources", True, _RUBIN_ROW, _RUBIN_EXTRA, rubin),
    ),
    alert_id=(("alertId",), ("diaSourceId",), ("diaSource", "diaSourceId")),
    source_id=(("diaSource", "diaSourceId"),),
    object_id=(("diaObject", "diaObjectId"), ("diaSource", "diaObjectId")),
    moving_id=(("diaSource", "ssObjectId"), ("ssSource", "ssObjectId"), ("ssObject", "ssObjectId")),
    version=(("lsst_schema_version",),),
    metadata="diaObject",
)

_ZTF_ROW: Final[Aliases] = {
    "time": ("jd",),
    "band": ("fid",),
    "flux": ("magpsf",),
    "flux_err": ("sigmapsf",),
    "sign": ("isdiffpos",),
}
_ZTF_FORCED_ROW: Final[Aliases] = {
    "time": ("jd",),
    "band": ("fid",),
    "flux": ("forcediffimflux",),
    "flux_err": ("forcediffimfluxunc",),
    "zero_point": ("magzpsci",),
    "status": ("procstatus",),
}
_ZTF_EXTRA: Final[Aliases] = {"exposure": ("exptime",)}

ZTF: Final = Layout(
    marks=("candidate", "objectId"),
    observations=(
        Observations("fp_hists", False, _ZTF_FORCED_ROW, _ZTF_EXTRA, ztf_counts),
        Observations("candidate", True, _ZTF_ROW, _ZTF_EXTRA, ztf_magnitudes),
        Observations("prv_candidates", True, _ZTF_ROW, _ZTF_EXTRA, ztf_magnitudes),
    ),
    alert_id=(("candid",), ("candidate", "candid")),
    source_id=(("candid",), ("candidate", "candid")),
    object_id=(("objectId",),),
    version=(("schemavsn",),),
)

LAYOUTS: Final = (RUBIN, ZTF)
TEXT_ROLES: Final = frozenset({"sign", "status"})
WHOLE_NUMBER_ROLES: Final = frozenset({"visit"})
