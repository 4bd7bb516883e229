"""Simulated objects as LSST and ELAsTiCC alert packets.

An alert is what the survey knew at one detection: that detection and the history before it. Conventions are theirs:

- LSST: MJD TAI, nJy, lower-case y, Confluent framing (zero byte, big-endian id = 100 major + minor), a year of history,
  none of the 64 metadata;
- ELAsTiCC: MJD TAI, nJy, the whole history, the 64 metadata with the survey's sentinels for missing values; one bare
  record as on the challenge's stream, or an object container.

Notable: in both, forced photometry appears only once the first detection is a day old; it then holds the detected
visits too.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Sequence

import numpy as np

from models.lightcurve import BANDS
from models.metadata import METADATA_COLUMNS
from training.data.dataset import LabelledObject
from training.simulate.avro import Record, Schema, bare, container, fill
from training.simulate.host import sentinel

FORCED_DELAY_DAYS = 1.0
LSST_HISTORY_DAYS = 365.0
PROCESSING_DAYS = 60.0 / 86400.0  # an alert follows its visit within a minute


def lsst_packet(source: LabelledObject, point: int, schema: Schema) -> bytes:
    """Confluent-framed alert of the detection at ``point``; ``schema`` may be any version from v9 on."""
    record = {
        "diaSourceId": source_id(source, point),
        "diaSource": _lsst_source(source, point),
        **_history(source, point, LSST_HISTORY_DAYS, _lsst_source, _lsst_forced),
        "diaObject": _lsst_object(source, point),
    }
    major, minor = schema["name"].split(".")[1].removeprefix("v").split("_")
    return struct.pack(">bI", 0, 100 * int(major) + int(minor)) + bare(fill(schema, record), schema)


def elasticc_packet(source: LabelledObject, point: int, schema: Schema, contained: bool = False) -> bytes:
    """Alert of the detection at ``point`` as one bare record, or in an object container."""
    ra, dec = position(source)
    metadata = {
        column: float(value) if math.isfinite(value) else sentinel(column)
        for column, value in zip(METADATA_COLUMNS, source.metadata, strict=True)
    }
    values = {
        "alertId": source_id(source, point),
        "diaSource": _elasticc_source(source, point),
        **_history(source, point, math.inf, _elasticc_source, _elasticc_forced),
        "diaObject": {"diaObjectId": int(source.object_id), "ra": ra, "decl": dec, **metadata},
    }
    record = fill(schema, values)
    return container(record, schema, "null") if contained else bare(record, schema)


def source_id(source: LabelledObject, point: int) -> int:
    """A 63-bit id for one observation, the same whenever it is written."""
    digest = hashlib.sha256(f"{source.object_id}/{point}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def position(source: LabelledObject) -> tuple[float, float]:
    """Right ascension and declination in degrees, somewhere in the wide survey; the simulator itself has no sky."""
    digest = hashlib.sha256(source.object_id.encode()).digest()
    first, second = (int.from_bytes(digest[start : start + 4], "big") / 2.0**32 for start in (0, 4))
    return 360.0 * first, math.degrees(math.asin(-0.95 + 0.98 * second))


Row = Callable[[LabelledObject, int], Record]


def _history(source: LabelledObject, point: int, days: float, detection: Row, forced: Row) -> Record:
    """Observations before ``point``: the detected ones, and forced photometry of all once the object is a day old."""
    earlier = [index for index in range(point) if source.mjd[index] >= source.mjd[point] - days]
    seen = [detection(source, index) for index in earlier if source.detected[index]]
    old = source.mjd[point] - source.trigger_mjd >= FORCED_DELAY_DAYS
    return {
        "prvDiaSources": seen or None,
        "prvDiaForcedSources": [forced(source, index) for index in earlier] if old else None,
    }


def _lsst_forced(source: LabelledObject, point: int) -> Record:
    ra, dec = position(source)
    return {
        "diaForcedSourceId": source_id(source, point) ^ 1,
        "diaObjectId": int(source.object_id),
        "ra": ra,
        "dec": dec,
        **_lsst_measurement(source, point),
    }


def _lsst_source(source: LabelledObject, point: int) -> Record:
    ra, dec = position(source)
    flux, error = float(source.flux[point]), float(source.flux_err[point])
    return {
        "diaSourceId": source_id(source, point),
        "diaObjectId": int(source.object_id),
        "ra": ra,
        "dec": dec,
        "snr": abs(flux) / error,
        "isNegative": flux < 0.0,
        **_lsst_measurement(source, point),
    }


def _lsst_measurement(source: LabelledObject, point: int) -> Record:
    mjd = float(source.mjd[point])
    return {
        "visit": round(1e4 * mjd),
        "detector": 94,
        "band": BANDS[source.band[point]].lower(),
        "midpointMjdTai": mjd,
        "psfFlux": float(source.flux[point]),
        "psfFluxErr": float(source.flux_err[point]),
        "timeProcessedMjdTai": mjd + PROCESSING_DAYS,
    }


def _lsst_object(source: LabelledObject, point: int) -> Record:
    ra, dec = position(source)
    seen = [index for index in range(point + 1) if source.detected[index]]
    record = {
        "diaObjectId": int(source.object_id),
        "validityStartMjdTai": float(source.mjd[point]) + PROCESSING_DAYS,
        "ra": ra,
        "dec": dec,
        "firstDiaSourceMjdTai": float(source.mjd[seen[0]]),
        "lastDiaSourceMjdTai": float(source.mjd[point]),
        "nDiaSources": len(seen),
    }
    for band, name in enumerate(BANDS):
        record |= _band_summary(name.lower(), [float(source.flux[i]) for i in seen if source.band[i] == band])
    return record


def _band_summary(band: str, flux: Sequence[float]) -> Record:
    if not flux:
        return {f"{band}_psfFluxNdata": 0}
    return {
        f"{band}_psfFluxNdata": len(flux),
        f"{band}_psfFluxMean": float(np.mean(flux)),
        f"{band}_psfFluxMin": min(flux),
        f"{band}_psfFluxMax": max(flux),
    }


def _elasticc_source(source: LabelledObject, point: int) -> Record:
    ra, dec = position(source)
    return {
        "diaSourceId": source_id(source, point),
        "diaObjectId": int(source.object_id),
        "ra": ra,
        "decl": dec,
        "snr": abs(float(source.flux[point])) / float(source.flux_err[point]),
        **_elasticc_measurement(source, point),
    }


def _elasticc_forced(source: LabelledObject, point: int) -> Record:
    return {
        "diaForcedSourceId": source_id(source, point) ^ 1,
        "diaObjectId": int(source.object_id),
        **_elasticc_measurement(source, point),
    }


def _elasticc_measurement(source: LabelledObject, point: int) -> Record:
    return {
        "midPointTai": float(source.mjd[point]),
        "filterName": BANDS[source.band[point]],
        "psFlux": float(source.flux[point]),
        "psFluxErr": float(source.flux_err[point]),
    }
