"""ZTF alert archives (files, tar archives, folders; optionally compressed) as light curves of difference flux.

Alerts are read and converted by the code of the service (:mod:`alerts`): signs, zero points, times, and the row
for each exposure. This module joins alerts and counts skipped files.

An archive is read twice, first for the list of alerts. ``last`` makes a light curve from the last alert of each object,
with some 30 days of history; ``all`` joins the alerts of an object, and keeps its points in memory until its last alert
is read.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from nightjar_alerts.alerts import photometry
from nightjar_alerts.alerts.files import read_path
from nightjar_alerts.alerts.packet import PacketError, ReadLimits
from nightjar_alerts.alerts.photometry import Flaw, Photometry
from nightjar_alerts.alerts.reader import ArchiveAlert, ObservationList
from nightjar_alerts.alerts.reader import read_archive_alerts as alerts_of
from nightjar_alerts.alerts.surveys.ztf import MISSING_FLUX, SURVEY
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.tables import About, TableError, TableObject
from nightjar_alerts.tables.columns import object_column

RANKS: Final = {observations.path: rank for rank, observations in enumerate(SURVEY.layouts[-1].observations)}
"""Order of preference of the lists of observations, which have the same names in packets of brokers."""
UNLIMITED: Final = 1 << 40
LIMITS: Final = ReadLimits(
    max_record_bytes=UNLIMITED,
    max_document_bytes=UNLIMITED,
    max_decompressed_bytes=UNLIMITED,
    max_expansion=UNLIMITED,
    max_records=UNLIMITED,
    max_observations=UNLIMITED,
)
"""Local archives have no limits, unlike requests."""


class LeftOut(NamedTuple):
    """Skipped files of an archive: names and reasons."""

    unreadable: dict[str, str]
    other: dict[str, str]


class AlertRow(NamedTuple):
    """One converted row of an alert, with the rank of its list, its filter, and the reason if it has no flux."""

    mjd: float
    filter_name: str
    rank: int
    rows: Photometry
    position: int
    reason: str


@dataclass
class _Open:
    """Rows of an object so far, by time, filter and rank, and the number of remaining alerts."""

    remaining: int
    rows: dict[tuple[float, str, int], AlertRow] = field(default_factory=dict)


def read_alerts(
    source: Path,
    *,
    keep: Literal["last", "all"] = "last",
    about: Mapping[str, About] | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[TableObject]:
    """Yield one object for each ``objectId`` of an archive.

    Parameters
    ----------
    left_out : collects files that are damaged or have no alerts of ZTF.

    Raises
    ------
    TableError
        If there is no readable alert.
    """
    counts: Counter[str] = Counter()
    last: dict[str, tuple[float, int]] = {}
    for number, alert in enumerate(alerts_in(source, left_out)):
        name = alert.object_id
        counts[name] += 1
        time = -math.inf if alert.mjd is None else alert.mjd
        last[name] = max(last.get(name, (-math.inf, 0)), (time, number))
    final = {name: number for name, (_, number) in last.items()}
    opened: dict[str, _Open] = {}
    for number, alert in enumerate(alerts_in(source, left_out)):
        name = alert.object_id
        state = opened.setdefault(name, _Open(counts[name]))
        state.remaining -= 1
        if keep == "all" or final[name] == number:
            for row in rows_of(alert):
                state.rows.setdefault((row.mjd, row.filter_name, row.rank), row)
        if not state.remaining:
            yield _object(name, list(opened.pop(name).rows.values()), (about or {}).get(name, About()))


def alerts_in(source: Path, left_out: LeftOut | None = None) -> Iterator[ArchiveAlert]:
    """Yield every alert of a file, a tar archive, or the files and archives of a folder, in order of their names."""
    if not source.exists():
        raise TableError(f"{source} does not exist")
    left_out, count = LeftOut({}, {}) if left_out is None else left_out, 0
    for item in read_path(source):
        if item.kind != "packet":
            (left_out.unreadable if item.kind == "unreadable" else left_out.other)[item.name] = item.detail
            continue
        for alert in alerts_of(item.data, LIMITS):
            if (reason := _why_unreadable(alert)) or isinstance(alert, PacketError):
                left_out.unreadable.setdefault(item.name, reason)
            else:
                count += 1
                yield alert
    if not count:
        name, reason = next(iter({**left_out.other, **left_out.unreadable}.items()), ("", ""))
        raise TableError(f"{source} holds no alerts of ZTF" + (f"; {name}: {reason}" if name else ""))


def _why_unreadable(alert: ArchiveAlert | PacketError) -> str:
    if isinstance(alert, PacketError):
        return f"{alert.reason}: {alert}"
    if alert.survey != SURVEY.name:
        return f"an alert of {alert.survey}, not of ZTF"
    return "" if alert.object_id else "an alert without objectId"


def rows_of(alert: ArchiveAlert) -> Iterator[AlertRow]:
    """Yield the rows of one alert: forced photometry, its detection, its history."""
    for part in alert.parts:
        usable = np.isfinite(part.rows.flux) & np.isfinite(part.rows.flux_err)
        for index, mjd in enumerate(part.rows.mjd.tolist()):
            reason = "" if usable[index] else _reason(part, index)
            yield AlertRow(mjd, _filter(part, index), RANKS[part.path], part.rows, index, reason)


def _filter(part: ObservationList, index: int) -> str:
    band = int(part.rows.band[index])
    return FILTERS[band] if band >= 0 else f"fid {part.columns['band'][index]}"


def _reason(part: ObservationList, index: int) -> str:
    """Return the reason why a row has no flux."""
    values: Mapping[str, Any] = {role: column[index] for role, column in part.columns.items()}
    if "status" in values:
        whole = None not in (values["flux"], values["flux_err"], values["zero_point"])
        if not whole or values["flux"] in (0.0, MISSING_FLUX) or part.rows.flaw[index] != Flaw.FLAGGED:
            return "forced photometry without a flux"
        return "forced photometry with a warning"
    return "no sign of the difference" if part.rows.flaw[index] == Flaw.BAD_SIGN else "upper limit"


def _object(name: str, rows: list[AlertRow], about: About) -> TableObject:
    """Return the object with one point per exposure: the first row with a flux, detected if any row is."""
    rows = sorted(rows, key=lambda row: (row.rank, row.mjd))
    points = photometry.concatenate([row.rows.at(np.array([row.position])) for row in rows])
    detected, spare = _exposures(points)
    reasons = sorted({row.reason for row in rows if row.reason})
    rejected = {reason: np.array([row.reason == reason for row in rows]) for reason in reasons}
    return TableObject(
        object_id=name,
        mjd=points.mjd,
        flux=points.flux,
        flux_err=points.flux_err,
        band=object_column([row.filter_name for row in rows]),
        detected=detected,
        label=about.label,
        metadata=about.metadata,
        redshift=about.redshift,
        parent=about.parent,
        rejected={**rejected, "another row of the exposure": spare},
    )


def _exposures(points: Photometry) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return masks of detected rows, and of duplicate rows of an exposure; rows are in order of preference."""
    detected, spare = points.detected.copy(), np.zeros(len(points), dtype=np.bool_)
    placed = np.flatnonzero(photometry.has_band_and_time(points))
    if not len(placed):
        return detected, spare
    exposures = photometry.exposures(points.at(placed))
    exists = exposures.chosen < len(placed)
    chosen = placed[exposures.chosen[exists]]
    detected[chosen] = exposures.detected[exists]
    spare[placed] = exists[exposures.of_row]
    spare[chosen] = False
    return detected, spare
