"""The same alert as a packet, a row of Parquet, and a long table gives the same points."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.tables import TableObject, read_table
from support.shared import SHARED

fastavro = pytest.importorskip("fastavro")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "service" / "samples").glob("*.avro"))
LSST = ROOT / "src" / "nightjar_alerts" / "alerts" / "schemas" / "lsst" / "10.0.avsc"


def record_of(path: Path) -> dict[str, Any]:
    """Return the record of a packet without its images."""
    data = path.read_bytes()
    if data.startswith(b"Obj\x01"):
        record = next(fastavro.reader(io.BytesIO(data)))
    elif path.name.startswith("lsst"):
        record = fastavro.schemaless_reader(
            io.BytesIO(data[5:]), fastavro.parse_schema(json.loads(LSST.read_text())), None
        )
    else:
        record = fastavro.schemaless_reader(io.BytesIO(data), avro.load("elasticc/0.9.1").parsed, None)
    assert isinstance(record, dict)
    return {
        name: value for name, value in record.items() if not isinstance(value, bytes | dict) or "cutout" not in name
    }


def points_of(curve: LightCurve | None) -> list[tuple[float, str, float, float, bool]]:
    assert curve is not None
    detected = np.zeros(len(curve), np.bool_) if curve.detected is None else curve.detected
    columns = zip(curve.mjd, curve.band, curve.flux, curve.flux_err, detected, strict=True)
    return sorted(
        (round(float(t), 5), FILTERS[b], round(float(f), 1), round(float(e), 1), bool(d)) for t, b, f, e, d in columns
    )


def parquet(*records: Mapping[str, Any]) -> list[TableObject]:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(records)), buffer)
    return list(read_table(buffer.getvalue(), name="alerts.parquet"))


def packet_of(data: bytes) -> Packet:
    (packet,) = read_packet(data)
    assert isinstance(packet, Packet)
    return packet


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_alert_in_every_form_gives_the_points_of_the_packet(path: Path) -> None:
    record, packet = record_of(path), packet_of(path.read_bytes())
    assert_same(record, packet)
    assert [item.object_id for item in parquet(record)] == [packet.object_id]


def assert_same(record: dict[str, Any], packet: Packet) -> None:
    """Compare a packet with its record as JSON, as a row of Parquet, and as a table with a row for each point."""
    expected = points_of(packet.curve)
    as_json = packet_of(json.dumps(record, default=str).encode())
    assert points_of(as_json.curve) == expected
    (row,) = parquet(record)
    assert points_of(row.light_curve()) == expected
    if not record.get("fp_hists"):  # whose rows have other columns than those of detections
        (long,) = read_table(rows_of(record, packet.object_id))
        assert (long.object_id, points_of(long.light_curve())) == (packet.object_id, expected)


def rows_of(record: dict[str, Any], object_id: str) -> list[dict[str, Any]]:
    """Return detections and forced photometry of an alert as the rows of one table."""
    if "candidate" in record:
        return [{"objectId": object_id, **row} for row in (*(record["prv_candidates"] or []), record["candidate"])]
    forced = record.get("prvDiaForcedSources") or []
    rows = [*(record["prvDiaSources"] or []), record["diaSource"], *forced]
    return [{**row, "diaObjectId": int(object_id)} for row in rows]


NEWEST = [
    max(folder.glob("*.avro"), key=lambda path: path.name)
    for folder in ([] if SHARED is None else sorted((SHARED / "data" / "alerts").glob("*/*")))
    if any(folder.glob("*.avro"))
]


@pytest.mark.parametrize("path", NEWEST, ids=lambda path: path.parent.name)
def test_newest_alert_of_a_real_sample_gives_the_same_points_in_every_form(path: Path) -> None:
    packets = [packet for packet in read_packet(path.read_bytes()) if isinstance(packet, Packet)]
    if not path.read_bytes().startswith(b"Obj\x01") or packets[-1].curve is None:
        pytest.skip("the file has no schema, or no light curve")
    *_, record = fastavro.reader(io.BytesIO(path.read_bytes()))
    assert_same({name: value for name, value in record.items() if "utout" not in name}, packets[-1])


DETECTIONS = [
    {"midpointMjdTai": 61_220.1, "band": "r", "psfFlux": 900.0, "psfFluxErr": 110.0},
    {"midpointMjdTai": 61_222.2, "band": "g", "psfFlux": 1500.0, "psfFluxErr": 100.0},
]
FORCED = [
    {"midpointMjdTai": 61_215.1, "band": "r", "psfFlux": 0.0, "psfFluxErr": 110.0},
    {"midpointMjdTai": 61_222.2, "band": "g", "psfFlux": 1480.0, "psfFluxErr": 90.0},
]
OWN = {"midpointMjdTai": 61_228.4, "band": "r", "psfFlux": 4000.0, "psfFluxErr": 120.0}


def alert(diaObjectId: int, ssObjectId: int = 0, **lists: Any) -> dict[str, Any]:  # names of the survey
    ids = {"diaObjectId": diaObjectId, "ssObjectId": ssObjectId}
    return {"diaSource": OWN | ids, "prvDiaSources": DETECTIONS, "prvDiaForcedSources": FORCED} | lists


def test_forced_point_of_an_exposure_stands_for_its_detection() -> None:
    joined, alone = parquet(alert(1), alert(2, prvDiaForcedSources=None))
    assert sorted(joined.flux.tolist()) == [0.0, 900.0, 1480.0, 4000.0]
    assert joined.detected is not None
    assert dict(zip(joined.flux.tolist(), joined.detected.tolist(), strict=True))[1480.0]
    assert sorted(alone.flux.tolist()) == [900.0, 1500.0, 4000.0]


def test_alerts_of_solar_system_objects_are_no_object_and_counted() -> None:
    buffer = io.BytesIO()
    rows = [alert(5), *(alert(0, ssObjectId=21_163_615_805_847_120 + k, prvDiaSources=None) for k in range(2))]
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    table = read_table(buffer.getvalue(), name="alerts.parquet")
    assert [item.object_id for item in table] == ["5"]
    assert table.report.unused["Solar System object"] > 1


def test_alerce_reply_with_forced_photometry_keeps_the_detections() -> None:
    row = {"oid": "ZTF1", "fid": 1, "isdiffpos": 1}
    reply = {
        "detections": [{**row, "mjd": 60_310.1 + k, "mag": 19.2, "e_mag": 0.05} for k in range(3)],
        "non_detections": [{"oid": "ZTF1", "mjd": 60_301.1, "fid": 1, "diffmaglim": 20.4}],
        "forced_photometry": [
            {**row, "mjd": 60_305.1, "mag": 20.9, "e_mag": 0.4, "isdiffpos": -1},
            {**row, "mjd": 60_306.1, "mag": 100, "e_mag": 100},
        ],
    }
    table = read_table(json.dumps(reply).encode(), name="reply.json")
    (item,) = table
    assert item.usable().sum() == 4
    assert table.report.unused == {"upper limit": 1, "magnitude is not plausible": 1}
    assert (item.flux[item.usable()] < 0).sum() == 1


FLAGGED = {
    **DETECTIONS[0],
    "midpointMjdTai": 61_226.3,
    "psfFlux": 9e6,
    "psfFlux_flag": True,
    "pixelFlags_saturated": True,
}


def test_row_with_a_flag_of_rubin_is_left_out_of_packet_and_table() -> None:
    clean = {"psfFlux_flag": False, "pixelFlags_saturated": False}
    history = [*({**row, **clean} for row in DETECTIONS), FLAGGED]
    record = alert(7, prvDiaSources=history, prvDiaForcedSources=None)
    record |= {"diaSourceId": 1, "diaSource": {**record["diaSource"], **clean, "diaSourceId": 1}}
    packet = packet_of(json.dumps(record).encode())
    (item,) = parquet(record)
    assert packet.curve is not None
    assert packet.curve.dropped == {"flagged": 1}
    assert item.rejected["flagged by the survey"].sum() == 1
    assert points_of(item.light_curve()) == points_of(packet.curve)
