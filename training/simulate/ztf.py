"""Simulated objects as ZTF alert packets: the same nights at ZTF's depth, in ZTF's conventions.

JD UTC at the start of the exposure, magnitudes with a sign flag, upper limits in the history, forced photometry in
counts, 30 days of history, g r i only, a snappy container.

Notable: LSST's sky is some four magnitudes deeper, so an object is first observed anew by `at_ztf_depth`; few survive.
"""

import hashlib
import math
import string

import numpy as np

from models.lightcurve import BANDS
from training.data.dataset import LabelledObject
from training.simulate.avro import Record, Schema, container, fill
from training.simulate.packets import position, source_id
from training.simulate.photometry import ZERO_POINT_NJY

BAND_NUMBER = {"g": 1, "r": 2, "i": 3}
DEPTH = {"g": 20.8, "r": 20.6, "i": 19.9}  # 5 sigma in one exposure (Bellm+ 2019, PASP 131, 018002)
FLOOR = 0.01  # of the flux
DETECTION_SNR = 5.0
ZERO_POINT = 26.3  # magzpsci, AB magnitude of one count
EXPOSURE_SECONDS = 30.0
HISTORY_DAYS = 30.0
TAI_MINUS_UTC = 37.0  # seconds, since 2017
JD_MINUS_MJD = 2400000.5


def at_ztf_depth(rng: np.random.Generator, source: LabelledObject) -> LabelledObject | None:
    """The object as ZTF would see it on the same nights, cut after the last detection; None if it detects nothing."""
    kept = np.array([BANDS[band] in BAND_NUMBER for band in source.band], dtype=np.bool_)
    depth = np.array([DEPTH[BANDS[band]] for band in source.band[kept]]) - 0.3 * np.abs(rng.standard_normal(kept.sum()))
    sky = 10.0 ** (0.4 * (ZERO_POINT_NJY - depth)) / 5.0
    flux = source.flux[kept] + sky * rng.standard_normal(len(sky))
    error = np.hypot(np.hypot(source.flux_err[kept], sky), FLOOR * flux)
    detected = np.abs(flux) >= DETECTION_SNR * error
    if not detected.any():
        return None
    points = slice(0, int(np.flatnonzero(detected)[-1]) + 1)
    mjd = source.mjd[kept][points]
    return LabelledObject(
        object_id=source.object_id,
        class_name=source.class_name,
        mjd=mjd,
        flux=flux[points].astype(np.float32),
        flux_err=error[points].astype(np.float32),
        band=source.band[kept][points],
        detected=detected[points],
        trigger_mjd=float(mjd[detected[points]][0]),
        metadata=source.metadata,
        redshift=source.redshift,
    )


def ztf_packet(source: LabelledObject, point: int, schema: Schema) -> bytes:
    """Alert of the detection at ``point``; ``source`` must hold g, r and i only (see `at_ztf_depth`)."""
    recent = [index for index in range(point) if source.mjd[index] >= source.mjd[point] - HISTORY_DAYS]
    seen = [index for index in range(point + 1) if source.detected[index]]
    candidate = _detection(source, point) | {
        "ndethist": len(seen),
        "ncovhist": point + 1,
        "jdstarthist": _jd(source, seen[0]),
        "jdendhist": _jd(source, point),
        "exptime": EXPOSURE_SECONDS,
    }
    record = {
        "schemavsn": "4.02",
        "publisher": "Nightjar simulator",
        "objectId": ztf_name(source.object_id),
        "candid": source_id(source, point),
        "candidate": candidate,
        "prv_candidates": [_candidate(source, index) for index in recent] or None,
        "fp_hists": [_forced(source, index) for index in recent] or None,
    }
    return container(fill(schema, record), schema, "snappy")


def ztf_name(object_id: str) -> str:
    """A name of ZTF's form (ZTF, two digits, seven letters) for an object id."""
    number = int.from_bytes(hashlib.sha256(object_id.encode()).digest()[:8], "big")
    return "ZTF26" + "".join(string.ascii_lowercase[number // 26**place % 26] for place in range(7))


def _jd(source: LabelledObject, point: int) -> float:
    return float(source.mjd[point]) + JD_MINUS_MJD - (TAI_MINUS_UTC + EXPOSURE_SECONDS / 2.0) / 86400.0


def _exposure(source: LabelledObject, point: int) -> Record:
    limit = ZERO_POINT_NJY - 2.5 * math.log10(DETECTION_SNR * float(source.flux_err[point]))
    return {
        "jd": _jd(source, point),
        "fid": BAND_NUMBER[BANDS[source.band[point]]],
        "programid": 1,
        "diffmaglim": limit,
        "magzpsci": ZERO_POINT,
    }


def _candidate(source: LabelledObject, point: int) -> Record:
    """An entry of the history: a detection, or an upper limit at ``diffmaglim``."""
    return _detection(source, point) if source.detected[point] else _exposure(source, point)


def _detection(source: LabelledObject, point: int) -> Record:
    ra, dec = position(source)
    flux, error = float(source.flux[point]), float(source.flux_err[point])
    return _exposure(source, point) | {
        "candid": source_id(source, point),
        "ra": ra,
        "dec": dec,
        "magpsf": ZERO_POINT_NJY - 2.5 * math.log10(abs(flux)),
        "sigmapsf": 2.5 / math.log(10.0) * error / abs(flux),
        "isdiffpos": "t" if flux > 0.0 else "f",
        "ssdistnr": -999.0,  # ZTF's way of saying that no solar-system object is near
        "ssmagnr": -999.0,
        "ssnamenr": "null",
    }


def _forced(source: LabelledObject, point: int) -> Record:
    counts = 10.0 ** (0.4 * (ZERO_POINT - ZERO_POINT_NJY))
    return _exposure(source, point) | {
        "forcediffimflux": float(source.flux[point]) * counts,
        "forcediffimfluxunc": float(source.flux_err[point]) * counts,
        "exptime": EXPOSURE_SECONDS,
        "procstatus": "0",
    }
