"""Alert packets of simulated objects, and the sample alerts that ship with the service: LSST, ELAsTiCC and ZTF.

    python -m nightjar_alerts.training.simulate.packets --schemas models/alerts/schemas --out service/samples

writes the samples: a dozen packets, four per survey layout, byte for byte the shipped files on one machine. The objects
come from a seed that no training set uses; its ids also exceed 2^53, which a careless reader would round.

Records are made by walking a survey's own schema, so that no field list is repeated in this package: a field without a
given value becomes null where the schema allows and zero or empty elsewhere. An alert is what the survey knew at one
detection: that detection and the history before it. Conventions are theirs:

- LSST: MJD TAI, nJy, lower-case y, Confluent framing (zero byte, big-endian id = 100 major + minor), a year of history,
  none of the 64 metadata;
- ELAsTiCC: MJD TAI, nJy, the whole history, the 64 metadata with the survey's sentinels for missing values; one bare
  record as on the challenge's stream, or an object container. In both, forced photometry appears only once the first
  detection is a day old; it then holds the detected visits too;
- ZTF: JD UTC at the start of the exposure, magnitudes with a sign flag, upper limits in the history, forced photometry
  in counts, 30 days of history, g r i only, a snappy container. LSST's sky is some four magnitudes deeper, so an object
  is first re-observed by `at_ztf_depth`; few are detected.
"""

import argparse
import hashlib
import io
import json
import math
import string
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import numpy as np

from nightjar_alerts.models.alerts.surveys import ztf
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import (
    BANDS,
    DETECTION_SNR,
    JD_MINUS_MJD,
    NJY_ZERO_POINT,
    SECONDS_PER_DAY,
    njy_of_magnitude,
    tai_minus_utc,
)
from nightjar_alerts.training.data.dataset import LabelledObject
from nightjar_alerts.training.simulate.cadence import FORCED_DELAY_DAYS
from nightjar_alerts.training.simulate.generate import simulate_class
from nightjar_alerts.training.simulate.host import sentinel

Schema: TypeAlias = Any  # Avro schemas are JSON: names, unions (lists) and records (dicts), nested
Record: TypeAlias = dict[str, Any]

EMPTY: Record = {"boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}
SYNC_MARKER = b"nightjar-samples"  # 16 bytes, fixed: containers are reproducible byte for byte


def read_schema(path: Path) -> Schema:
    """Return the Avro schema in one JSON file, record types nested where they are first used."""
    return json.loads(path.read_text(encoding="utf-8"))


def fill(schema: Schema, values: Mapping[str, Any]) -> Record:
    """Return a complete record of ``schema`` with ``values`` where given, else null, else zero or empty.

    Raises ValueError for a value that the schema has no field for.
    """
    return _fill_record(schema, values, dict(_named(schema)))


def _fill_record(schema: Schema, values: Mapping[str, Any], named: Mapping[str, Schema]) -> Record:
    fields = {field["name"]: field["type"] for field in schema["fields"]}
    if unknown := sorted(values.keys() - fields.keys()):
        raise ValueError(f"{schema['name']} has no fields {', '.join(unknown)}")
    return {name: _fill_value(kind, values.get(name), named) for name, kind in fields.items()}


def _fill_value(kind: Schema, value: Any, named: Mapping[str, Schema]) -> Any:
    if isinstance(kind, list):
        if value is None and "null" in kind:
            return None
        kind = next(branch for branch in kind if branch != "null")
    if isinstance(kind, str) and kind in named:
        kind = named[kind]
    if isinstance(kind, dict) and kind["type"] == "record":
        return _fill_record(kind, value or {}, named)
    if isinstance(kind, dict) and kind["type"] == "array":
        return [_fill_value(kind["items"], item, named) for item in value or []]
    return EMPTY[kind["type"] if isinstance(kind, dict) else kind] if value is None else value


def _named(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every record type in ``schema`` by name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema["name"], schema
        for part in [field["type"] for field in schema.get("fields", ())] + [schema.get("items")]:
            yield from _named(part)


def bare(record: Record, schema: Schema) -> bytes:
    """Return the record alone, without schema or framing."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


def container(record: Record, schema: Schema, codec: str) -> bytes:
    """Return an object container of one record; ``codec`` null, deflate or snappy."""
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [record], codec=codec, sync_marker=SYNC_MARKER)
    return stream.getvalue()


LSST_HISTORY_DAYS = 365.0
PROCESSING_DAYS = 60.0 / SECONDS_PER_DAY  # an alert follows its visit within a minute


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
    """Return a 63-bit id for one observation, the same whenever it is written."""
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
    detections = [detection(source, index) for index in earlier if source.detected[index]]
    old = source.mjd[point] - source.trigger_mjd >= FORCED_DELAY_DAYS
    return {
        "prvDiaSources": detections or None,
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
    detections = [index for index in range(point + 1) if source.detected[index]]
    record = {
        "diaObjectId": int(source.object_id),
        "validityStartMjdTai": float(source.mjd[point]) + PROCESSING_DAYS,
        "ra": ra,
        "dec": dec,
        "firstDiaSourceMjdTai": float(source.mjd[detections[0]]),
        "lastDiaSourceMjdTai": float(source.mjd[point]),
        "nDiaSources": len(detections),
    }
    for band, name in enumerate(BANDS):
        record |= _band_summary(name.lower(), [float(source.flux[i]) for i in detections if source.band[i] == band])
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


BAND_NUMBER = {name: value for value, name in ztf.SURVEY.bands.items() if isinstance(value, int)}
DEPTH = {"g": 20.8, "r": 20.6, "i": 19.9}  # 5 sigma in one exposure (Bellm+ 2019, PASP 131, 018002)
FLOOR = 0.01  # of the flux
ZERO_POINT = 26.3  # magzpsci, AB magnitude of one count
HISTORY_DAYS = 30.0


def at_ztf_depth(rng: np.random.Generator, source: LabelledObject) -> LabelledObject | None:
    """Show the object as ZTF would on the same nights, cut after the last detection; None if nothing is detected."""
    is_ztf = np.array([BANDS[band] in BAND_NUMBER for band in source.band], dtype=np.bool_)
    depth = np.array([DEPTH[BANDS[band]] for band in source.band[is_ztf]]) - 0.3 * np.abs(
        rng.standard_normal(is_ztf.sum())
    )
    sky = njy_of_magnitude(depth) / 5.0
    flux = source.flux[is_ztf] + sky * rng.standard_normal(len(sky))
    error = np.hypot(np.hypot(source.flux_err[is_ztf], sky), FLOOR * flux)
    detected = np.abs(flux) >= DETECTION_SNR * error
    if not detected.any():
        return None
    points = slice(0, int(np.flatnonzero(detected)[-1]) + 1)
    mjd = source.mjd[is_ztf][points]
    return LabelledObject(
        object_id=source.object_id,
        class_name=source.class_name,
        mjd=mjd,
        flux=flux[points].astype(np.float32),
        flux_err=error[points].astype(np.float32),
        band=source.band[is_ztf][points],
        detected=detected[points],
        trigger_mjd=float(mjd[detected[points]][0]),
        metadata=source.metadata,
        redshift=source.redshift,
    )


def ztf_packet(source: LabelledObject, point: int, schema: Schema) -> bytes:
    """Alert of the detection at ``point``; ``source`` must hold g, r and i only (see `at_ztf_depth`)."""
    recent = [index for index in range(point) if source.mjd[index] >= source.mjd[point] - HISTORY_DAYS]
    detections = [index for index in range(point + 1) if source.detected[index]]
    candidate = _detection(source, point) | {
        "ndethist": len(detections),
        "ncovhist": point + 1,
        "jdstarthist": _jd(source, detections[0]),
        "jdendhist": _jd(source, point),
        "exptime": ztf.EXPOSURE_SECONDS,
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
    """Return a name of ZTF's form (ZTF, two digits, seven letters) for an object id."""
    number = int.from_bytes(hashlib.sha256(object_id.encode()).digest()[:8], "big")
    return "ZTF26" + "".join(string.ascii_lowercase[number // 26**place % 26] for place in range(7))


def _jd(source: LabelledObject, point: int) -> float:
    middle = float(source.mjd[point])  # TAI; a leap second within the half minute that it is off makes no alert here
    return middle + JD_MINUS_MJD - (float(tai_minus_utc(middle)) + ztf.EXPOSURE_SECONDS / 2.0) / SECONDS_PER_DAY


def _exposure(source: LabelledObject, point: int) -> Record:
    limit = NJY_ZERO_POINT - 2.5 * math.log10(DETECTION_SNR * float(source.flux_err[point]))
    return {
        "jd": _jd(source, point),
        "fid": BAND_NUMBER[BANDS[source.band[point]]],
        "programid": 1,
        "diffmaglim": limit,
        "magzpsci": ZERO_POINT,
    }


def _candidate(source: LabelledObject, point: int) -> Record:
    """Return an entry of the history: a detection, or an upper limit at ``diffmaglim``."""
    return _detection(source, point) if source.detected[point] else _exposure(source, point)


def _detection(source: LabelledObject, point: int) -> Record:
    ra, dec = position(source)
    flux, error = float(source.flux[point]), float(source.flux_err[point])
    return _exposure(source, point) | {
        "candid": source_id(source, point),
        "ra": ra,
        "dec": dec,
        "magpsf": NJY_ZERO_POINT - 2.5 * math.log10(abs(flux)),
        "sigmapsf": 2.5 / math.log(10.0) * error / abs(flux),
        "isdiffpos": "t" if flux > 0.0 else "f",
        "ssdistnr": -999.0,  # ZTF's way of saying that no solar-system object is near
        "ssmagnr": -999.0,
        "ssnamenr": "null",
    }


def _forced(source: LabelledObject, point: int) -> Record:
    counts = 10.0 ** (0.4 * (ZERO_POINT - NJY_ZERO_POINT))
    return _exposure(source, point) | {
        "forcediffimflux": float(source.flux[point]) * counts,
        "forcediffimfluxunc": float(source.flux_err[point]) * counts,
        "exptime": ztf.EXPOSURE_SECONDS,
        "procstatus": "0",
    }


SEED = 98_765
CANDIDATES = 512  # objects of a class to choose from

Packet: TypeAlias = Callable[[LabelledObject, int, Schema], bytes]


@dataclass(frozen=True)
class PacketSample:
    """One packet: the alert of detection number ``alert`` (from 1) of the first object with ``points`` before it."""

    class_name: str
    alert: int
    points: int


SAMPLES: dict[str, tuple[PacketSample, ...]] = {
    "lsst": (
        PacketSample("Ia", 1, 0),
        PacketSample("II", 12, 25),
        PacketSample("SLSN", 20, 40),
        PacketSample("AGN", 150, 400),
    ),
    "elasticc": (
        PacketSample("KN", 2, 5),
        PacketSample("Ib/c", 8, 20),
        PacketSample("TDE", 25, 50),
        PacketSample("EB", 60, 80),
    ),
    "ztf": (
        PacketSample("Ia", 3, 4),
        PacketSample("Dwarf Novae", 4, 8),
        PacketSample("RR Lyrae", 12, 20),
        PacketSample("uLens", 8, 12),
    ),
}
SCHEMAS = {"lsst": "lsst/10.0.avsc", "elasticc": "elasticc/0.9.1.avsc", "ztf": "ztf/4.02.avsc"}


def write_samples(schemas: Path, out: Path) -> list[Path]:
    """Write every sample to ``out`` as ``<survey>_<object>.avro`` and return the paths.

    Raises LookupError when no simulated object fits a sample.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for survey, samples in SAMPLES.items():
        schema = read_schema(schemas / SCHEMAS[survey])
        for number, sample in enumerate(samples):
            source, point = _choose(survey, sample)
            name = ztf_name(source.object_id) if survey == "ztf" else source.object_id
            path = out / f"{survey}_{name}.avro"
            path.write_bytes(_writer(survey, number)(source, point, schema))
            written.append(path)
    return written


def _writer(survey: str, number: int) -> Packet:
    """Return the packet writer of a survey; every second ELAsTiCC sample is in a container."""
    if survey == "elasticc":
        return partial(elasticc_packet, contained=number % 2 == 1)
    return lsst_packet if survey == "lsst" else ztf_packet


def _choose(survey: str, sample: PacketSample) -> tuple[LabelledObject, int]:
    for source in _candidates(survey, sample.class_name):
        alerts = np.flatnonzero(source.detected)
        if len(alerts) >= sample.alert and (point := int(alerts[sample.alert - 1])) >= sample.points:
            return source, point
    raise LookupError(f"no simulated {sample.class_name} has {sample.alert} detections and {sample.points} points")


def _candidates(survey: str, class_name: str) -> Iterator[LabelledObject]:
    rng = np.random.default_rng(SEED)
    for source in simulate_class(class_name, CANDIDATES, SEED):
        shallower = at_ztf_depth(rng, source) if survey == "ztf" else source
        if shallower is not None:
            yield shallower


def main() -> None:
    """Command line: where the schemas are, where the packets go."""
    parser = argparse.ArgumentParser(description="Write the sample alerts.")
    parser.add_argument(
        "--schemas", type=Path, required=True, help="folder with lsst/, elasticc/ and ztf/ schema files"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the packets")
    arguments = parser.parse_args()
    write_samples(arguments.schemas, arguments.out)


if __name__ == "__main__":
    main()
