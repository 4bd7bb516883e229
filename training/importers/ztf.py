"""ZTF alert archives (tar, tar.gz, folders of Avro files) as difference fluxes of whole light curves.

Notable:

- magnitudes have a sign, ``isdiffpos``; without it a dimming would become a brightening. Upper limits hold no flux and
  are left out; forced photometry (``fp_hists``, from schema 4.01 on) is preferred to the magnitude of an exposure;
- ``jd`` is UTC at the start of the exposure, our times are TAI at its middle (TAI - UTC is 37 s for all of ZTF);
- an archive is read twice, first for which alerts there are. ``last`` makes a light curve of each object's last alert,
  some 30 days of history; ``all`` joins the alerts of an object, and holds the points of an object until its last
  alert has come by;
- the same rows are kept as when alerts of this survey are classified, which is why the rules are the same.
"""

import gzip
import io
import math
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import fastavro
import numpy as np

from training.importers.raw import JD_MINUS_MJD, NJY_ZERO_POINT, ImportFormatError, RawObject, per_zero_point
from training.importers.tables import About

BANDS: Final = {1: "g", 2: "r", 3: "i"}
SIGN: Final = {"t": 1.0, "1": 1.0, "f": -1.0, "0": -1.0}
TAI_MINUS_UTC: Final = 37.0
EXPOSURE_SECONDS: Final = 30.0
SECONDS_PER_DAY: Final = 86_400.0
TAR_END: Final = 1024  # bytes
SAME_EXPOSURE_DAYS: Final = 10.0 / SECONDS_PER_DAY
FILLERS: Final = frozenset({0.0, -99999.0})  # what the survey writes for no forced flux

Alert = Mapping[str, Any]


class Row(NamedTuple):
    """One row of an alert: fluxes in nJy, NaN with the ``reason`` why there is none; ``rank`` 0 is preferred."""

    mjd: float
    band: str
    flux: float
    flux_err: float
    detected: bool
    rank: int
    reason: str = ""


@dataclass
class _Open:
    """Rows of an object so far, by what makes them the same row, and the alerts that are still to come."""

    left: int
    rows: dict[tuple[float, str, int], Row] = field(default_factory=dict)


def read_alerts(
    source: Path, *, keep: Literal["last", "all"] = "last", about: Mapping[str, About] | None = None
) -> Iterator[RawObject]:
    """One object for each ``objectId`` of an archive.

    Raises
    ------
    ImportFormatError
        When there is no alert, or one is damaged or not of ZTF.
    """
    counts: Counter[str] = Counter()
    last: dict[str, tuple[float, int]] = {}
    for number, alert in enumerate(alerts_in(source)):
        name = str(alert["objectId"])
        counts[name] += 1
        last[name] = max(last.get(name, (-math.inf, 0)), (float(alert["candidate"]["jd"]), number))
    final = {name: number for name, (_, number) in last.items()}
    opened: dict[str, _Open] = {}
    for number, alert in enumerate(alerts_in(source)):
        name = str(alert["objectId"])
        state = opened.setdefault(name, _Open(counts[name]))
        state.left -= 1
        if keep == "all" or final[name] == number:
            for row in rows_of(alert):
                state.rows.setdefault((row.mjd, row.band, row.rank), row)
        if not state.left:
            yield _object(name, list(opened.pop(name).rows.values()), (about or {}).get(name, About()))


def alerts_in(source: Path) -> Iterator[Alert]:
    """Every alert of a file, a tar or the files and tars below a folder, in the order of their names."""
    if not source.exists():
        raise ImportFormatError(f"{source} does not exist")
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    found = 0
    for path in paths:
        for origin, data in _documents(path):
            for alert in _decode(origin, data):
                found += 1
                yield alert
    if not found:
        raise ImportFormatError(f"{source} holds no alerts")


def _documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Avro containers with the names they are reported under."""
    if path.suffix == ".avro":
        yield str(path), path.read_bytes()
    elif path.name.endswith((".tar", ".tar.gz", ".tgz")):
        try:
            yield from _members(path)
        except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
            raise ImportFormatError(f"{path} is truncated or not a tar archive: {error}") from error


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Avro members of a tar, which is read forwards.

    A tar that is cut between two members reads like a shorter one: `gzip` notices, and a plain one must end with the
    two empty blocks of every archive.
    """
    opener: Any = open if path.suffix == ".tar" else gzip.open
    with opener(path, "rb") as file, tarfile.open(fileobj=file, mode="r|") as archive:
        if path.suffix == ".tar" and _tail(path) != bytes(TAR_END):
            raise tarfile.ReadError("it has no end")
        for member in archive:
            if member.isfile() and member.name.endswith(".avro"):
                content = archive.extractfile(member)
                yield f"{path}:{member.name}", content.read() if content else b""


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-min(TAR_END, path.stat().st_size), io.SEEK_END)
        return file.read()


def _decode(origin: str, data: bytes) -> Iterator[Alert]:
    try:
        records = list(fastavro.reader(io.BytesIO(data)))
    except (ValueError, EOFError, IndexError, KeyError, StopIteration, OverflowError) as error:
        raise ImportFormatError(f"{origin} is truncated or not an Avro container: {error}") from error
    for record in records:
        if not isinstance(record, dict) or "objectId" not in record or "jd" not in (record.get("candidate") or {}):
            raise ImportFormatError(f"{origin} is not a ZTF alert")
        yield record


def rows_of(alert: Alert) -> Iterator[Row]:
    """Rows of one alert: forced photometry, its own detection, its history."""
    for entry in alert.get("fp_hists") or ():
        yield _forced(entry)
    yield _magnitude(alert["candidate"], 1)
    for entry in alert.get("prv_candidates") or ():
        yield _magnitude(entry, 2)


def _magnitude(entry: Alert, rank: int) -> Row:
    magnitude, error, sign = entry.get("magpsf"), entry.get("sigmapsf"), SIGN.get(str(entry.get("isdiffpos")))
    place = (_middle(entry), _band(entry))
    if magnitude is None or error is None:
        return Row(*place, math.nan, math.nan, False, rank, "upper limit")
    if sign is None:
        return Row(*place, math.nan, math.nan, False, rank, "no sign of the difference")
    flux = 10.0 ** (-0.4 * (magnitude - NJY_ZERO_POINT))
    return Row(*place, sign * flux, flux * error * 0.4 * math.log(10.0), True, rank)


def _forced(entry: Alert) -> Row:
    counts, error, zero_point = (entry.get(name) for name in ("forcediffimflux", "forcediffimfluxunc", "magzpsci"))
    place = (_middle(entry), _band(entry))
    if counts is None or counts in FILLERS or error is None or zero_point is None:
        return Row(*place, math.nan, math.nan, False, 0, "forced photometry without a flux")
    if str(entry.get("procstatus")) != "0":
        return Row(*place, math.nan, math.nan, False, 0, "forced photometry with a warning")
    scale = per_zero_point(zero_point)
    return Row(*place, float(counts) * scale, error * scale, False, 0)


def _middle(entry: Alert) -> float:
    exposure = entry.get("exptime")
    middle = (exposure if exposure and exposure > 0 else EXPOSURE_SECONDS) / 2
    return float(entry["jd"]) - JD_MINUS_MJD + (TAI_MINUS_UTC + middle) / SECONDS_PER_DAY


def _band(entry: Alert) -> str:
    return BANDS.get(entry["fid"], f"fid {entry['fid']}")


def _object(name: str, rows: list[Row], about: About) -> RawObject:
    """Rows of one exposure become one point: the first with a flux, detected when any of them was."""
    rows = sorted(rows, key=lambda row: (row.band, row.mjd, row.rank))
    detected, spare = _exposures(rows)
    reasons = sorted({row.reason for row in rows if row.reason})
    rejected = {reason: np.array([row.reason == reason for row in rows]) for reason in reasons}
    return RawObject(
        object_id=name,
        mjd=np.array([row.mjd for row in rows], dtype=np.float64),
        flux=np.array([row.flux for row in rows], dtype=np.float64),
        flux_err=np.array([row.flux_err for row in rows], dtype=np.float64),
        band=[row.band for row in rows],
        detected=np.array(detected, dtype=np.bool_),
        label=about.label,
        metadata=about.metadata,
        redshift=about.redshift,
        parent=about.parent,
        rejected={**rejected, "another row of the exposure": np.array(spare, dtype=np.bool_)},
    )


def _exposures(rows: list[Row]) -> tuple[list[bool], list[bool]]:
    """For rows sorted by band and time: whether the exposure was detected, and whether another row stands for it."""
    detected, spare = [False] * len(rows), [False] * len(rows)
    start = 0
    for end in range(1, len(rows) + 1):
        together = end < len(rows) and rows[end].band == rows[end - 1].band
        if together and rows[end].mjd - rows[end - 1].mjd < SAME_EXPOSURE_DAYS:
            continue
        usable = [n for n in range(start, end) if not rows[n].reason and rows[n].flux_err > 0]
        chosen = min(usable, key=lambda n: (rows[n].rank, n)) if usable else start
        for n in range(start, end):
            detected[n] = any(row.detected for row in rows[start:end])
            spare[n] = n != chosen
        start = end
    return detected, spare
