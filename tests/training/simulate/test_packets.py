"""Simulated packets: read by an independent Avro reader, they hold the same points in each survey's conventions."""

import io
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from nightjar_alerts.models.metadata import METADATA_COLUMNS, clean_metadata
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.dataset import LabelledObject
from nightjar_alerts.training.simulate.generate import simulate_class
from nightjar_alerts.training.simulate.packets import (
    SAMPLES,
    at_ztf_depth,
    elasticc_packet,
    fill,
    lsst_packet,
    main,
    read_schema,
    source_id,
    write_samples,
    ztf_packet,
)

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "models" / "alerts" / "schemas"
Point = tuple[float, str, float, float]


@pytest.fixture(scope="module")
def supernova() -> LabelledObject:
    """A supernova with history of both kinds, and a host."""
    return next(o for o in simulate_class("Ia", 40, seed=3) if o.detected.sum() > 10 and not o.detected.all())


@pytest.fixture(scope="module")
def variable() -> LabelledObject:
    """A bright variable of both signs, as ZTF sees it."""
    rng = np.random.default_rng(0)
    shallower = (at_ztf_depth(rng, o) for o in simulate_class("RR Lyrae", 40, seed=3))
    return next(o for o in shallower if o is not None and o.detected.sum() > 30 and (o.flux[o.detected] < 0).any())


def decode(packet: bytes, schema: str) -> dict[str, Any]:
    record = fastavro.schemaless_reader(stream := io.BytesIO(packet), json.loads((SCHEMAS / schema).read_text()), None)
    assert stream.read() == b"", "a record must use up its bytes"
    assert isinstance(record, dict)
    return record


def contained(packet: bytes) -> dict[str, Any]:
    (record,) = fastavro.reader(io.BytesIO(packet))
    assert isinstance(record, dict)
    return record


def last_alert(source: LabelledObject) -> int:
    return int(np.flatnonzero(source.detected)[-1])


def points(source: LabelledObject, rows: np.ndarray[Any, Any]) -> list[Point]:
    return [
        (float(source.mjd[i]), BANDS[source.band[i]], float(source.flux[i]), float(source.flux_err[i])) for i in rows
    ]


def rubin_points(rows: list[dict[str, Any]] | None, time: str, band: str, flux: str) -> list[Point]:
    return [(row[time], row[band], row[flux], row[flux + "Err"]) for row in rows or []]


def lower_case(rows: list[Point]) -> list[Point]:
    return [(mjd, band.lower(), flux, error) for mjd, band, flux, error in rows]


@pytest.mark.parametrize("version", ["9.0", "10.0", "11.0", "11.1"])
def test_lsst_holds_the_points_behind_a_big_endian_schema_id(supernova: LabelledObject, version: str) -> None:
    alert = last_alert(supernova)
    packet = lsst_packet(supernova, alert, read_schema(SCHEMAS / f"lsst/{version}.avsc"))
    major, minor = map(int, version.split("."))
    assert packet[:5] == b"\x00" + struct.pack(">I", 100 * major + minor)
    record = decode(packet[5:], f"lsst/{version}.avsc")
    names = ("midpointMjdTai", "band", "psfFlux")
    assert rubin_points([record["diaSource"]], *names) == lower_case(points(supernova, np.array([alert])))
    earlier = np.flatnonzero(supernova.detected[:alert])
    assert rubin_points(record["prvDiaSources"], *names) == lower_case(points(supernova, earlier))
    assert rubin_points(record["prvDiaForcedSources"], *names) == lower_case(points(supernova, np.arange(alert)))
    assert record["diaObject"]["diaObjectId"] == int(supernova.object_id)
    assert record["diaObject"]["nDiaSources"] == len(earlier) + 1
    assert record["diaSource"]["snr"] == pytest.approx(abs(supernova.flux[alert]) / supernova.flux_err[alert])
    assert record["ssSource"] is None
    assert record["cutoutDifference"] is None


def test_a_first_lsst_alert_has_no_history(supernova: LabelledObject) -> None:
    first = int(np.flatnonzero(supernova.detected)[0])
    packet = lsst_packet(supernova, first, read_schema(SCHEMAS / "lsst/10.0.avsc"))
    record = decode(packet[5:], "lsst/10.0.avsc")
    assert record["prvDiaSources"] is None
    assert record["prvDiaForcedSources"] is None
    assert record["diaObject"]["nDiaSources"] == 1


def test_forced_photometry_comes_a_day_after_the_first_detection(supernova: LabelledObject) -> None:
    schema = read_schema(SCHEMAS / "lsst/10.0.avsc")
    for alert in np.flatnonzero(supernova.detected):
        record = decode(lsst_packet(supernova, int(alert), schema)[5:], "lsst/10.0.avsc")
        young = supernova.mjd[alert] - supernova.trigger_mjd < 1.0
        assert (record["prvDiaForcedSources"] is None) == young


def test_lsst_history_is_a_year(supernova: LabelledObject) -> None:
    slow = replace(supernova, mjd=supernova.mjd + 20.0 * (supernova.mjd - supernova.trigger_mjd))
    alert = last_alert(slow)
    record = decode(lsst_packet(slow, alert, read_schema(SCHEMAS / "lsst/10.0.avsc"))[5:], "lsst/10.0.avsc")
    times = [row["midpointMjdTai"] for row in record["prvDiaForcedSources"]]
    assert min(times) >= slow.mjd[alert] - 365.0
    assert len(times) < alert


@pytest.mark.parametrize("container", [False, True])
def test_elasticc_holds_points_and_metadata(supernova: LabelledObject, container: bool) -> None:
    alert = last_alert(supernova)
    schema = "elasticc/0.9.1.avsc"
    packet = elasticc_packet(supernova, alert, read_schema(SCHEMAS / schema), contained=container)
    record = contained(packet) if container else decode(packet, schema)
    names = ("midPointTai", "filterName", "psFlux")
    earlier = np.flatnonzero(supernova.detected[:alert])
    assert rubin_points([record["diaSource"]], *names) == points(supernova, np.array([alert]))
    assert rubin_points(record["prvDiaSources"], *names) == points(supernova, earlier)
    assert rubin_points(record["prvDiaForcedSources"], *names) == points(supernova, np.arange(alert))
    present = {name: float(v) for name, v in zip(METADATA_COLUMNS, supernova.metadata, strict=True) if np.isfinite(v)}
    assert 0 < len(present) < len(METADATA_COLUMNS)
    assert clean_metadata({name: record["diaObject"][name] for name in METADATA_COLUMNS}) == present
    missing = next(name for name in METADATA_COLUMNS if name not in present)
    assert record["diaObject"][missing] in (-9.0, -999.0, -9999.0, 999.0)


def ztf_flux(row: dict[str, Any]) -> float:
    return float((1 if row["isdiffpos"] == "t" else -1) * 10.0 ** (-0.4 * (row["magpsf"] - 31.4)))


def test_ztf_holds_the_points_as_magnitudes_limits_and_counts(variable: LabelledObject) -> None:
    detections = np.flatnonzero(variable.detected).tolist()
    alert = max(detections, key=lambda point: int((variable.mjd[:point] >= variable.mjd[point] - 30.0).sum()))
    record = contained(ztf_packet(variable, alert, read_schema(SCHEMAS / "ztf/4.02.avsc")))
    recent = [i for i in range(alert) if variable.mjd[i] >= variable.mjd[alert] - 30.0]
    history, forced = record["prv_candidates"], record["fp_hists"]
    assert len(history) == len(forced) == len(recent)
    for index, row, counts in zip([*recent, alert], [*history, record["candidate"]], [*forced, None], strict=True):
        mjd = row["jd"] - 2400000.5 + (37.0 + 15.0) / 86400.0  # UTC start of a 30 s exposure to TAI middle
        assert mjd == pytest.approx(variable.mjd[index], abs=1e-8)
        assert " gri"[row["fid"]] == BANDS[variable.band[index]]
        if variable.detected[index]:
            assert ztf_flux(row) == pytest.approx(variable.flux[index], rel=1e-5)
            error = abs(ztf_flux(row)) * row["sigmapsf"] * 0.4 * np.log(10.0)
            assert error == pytest.approx(variable.flux_err[index], rel=1e-5)
        else:
            assert row["magpsf"] is None
            assert row["candid"] is None
            assert 10.0 ** (-0.4 * (row["diffmaglim"] - 31.4)) == pytest.approx(
                5.0 * variable.flux_err[index], rel=1e-5
            )
        if counts is not None:
            scale = 10.0 ** (-0.4 * (counts["magzpsci"] - 31.4))
            assert counts["forcediffimflux"] * scale == pytest.approx(variable.flux[index], rel=1e-5)
            assert counts["procstatus"] == "0"


def test_ztf_writes_a_dimming_with_its_flag(variable: LabelledObject) -> None:
    dim = int(np.flatnonzero(variable.detected & (variable.flux < 0))[0])
    record = contained(ztf_packet(variable, dim, read_schema(SCHEMAS / "ztf/4.02.avsc")))
    assert record["candidate"]["isdiffpos"] == "f"
    assert record["candidate"]["ndethist"] == int(variable.detected[: dim + 1].sum())
    assert record["objectId"].startswith("ZTF26")
    assert len(record["objectId"]) == 12


def test_ztf_sees_less_than_lsst(supernova: LabelledObject) -> None:
    bright = replace(supernova, flux=supernova.flux * np.float32(100.0))
    faint = replace(supernova, flux=supernova.flux * np.float32(0.01))
    shallower = at_ztf_depth(np.random.default_rng(0), bright)
    assert shallower is not None
    assert {BANDS[band] for band in shallower.band} <= {"g", "r", "i"}
    assert np.median(shallower.flux_err) > 5.0 * np.median(supernova.flux_err)
    assert shallower.trigger_mjd == shallower.mjd[shallower.detected][0]
    assert shallower.detected[-1]
    assert at_ztf_depth(np.random.default_rng(0), faint) is None


def test_ids_differ_between_points_and_fit_a_long(supernova: LabelledObject) -> None:
    ids = [source_id(supernova, point) for point in range(2000)]
    assert len(set(ids)) == 2000
    assert 0 <= min(ids) < max(ids) < 2**63


INNER = {"type": "record", "name": "inner", "fields": [{"name": "flag", "type": "boolean"}]}
SCHEMA = {
    "type": "record",
    "name": "outer",
    "fields": [
        {"name": "count", "type": "long"},
        {"name": "text", "type": "string"},
        {"name": "maybe", "type": ["null", "double"]},
        {"name": "one", "type": INNER},
        {"name": "many", "type": ["null", {"type": "array", "items": "inner"}]},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def test_filling_follows_the_schema() -> None:
    empty = {"count": 0, "text": "", "maybe": None, "one": {"flag": False}, "many": None, "when": 0}
    assert fill(SCHEMA, {}) == empty
    filled = fill(SCHEMA, {"count": 7, "many": [{"flag": True}, {}]})
    assert filled == {**empty, "count": 7, "many": [{"flag": True}, {"flag": False}]}


@pytest.mark.parametrize("values", [{"colour": 1}, {"one": {"colour": 1}}, {"many": [{"colour": 1}]}])
def test_a_value_without_a_field_is_an_error(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no fields colour"):
        fill(SCHEMA, values)


def any_packet(name: str, packet: bytes) -> dict[str, Any]:
    if packet.startswith(b"Obj"):
        return contained(packet)
    return decode(packet[5:], "lsst/10.0.avsc") if name.startswith("lsst") else decode(packet, "elasticc/0.9.1.avsc")


def alike(left: Any, right: Any) -> bool:
    """Equal, but for the last bits of numbers: exponentials differ by a rounding between processors."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(alike, left, right))
    return bool(left == pytest.approx(right, rel=1e-6, abs=1e-3)) if isinstance(left, float) else bool(left == right)


def test_the_shipped_samples_are_what_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["samples", "--schemas", str(SCHEMAS), "--out", str(tmp_path)])
    main()
    packets = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shipped = {path.name: path.read_bytes() for path in (ROOT / "service" / "samples").glob("*.avro")}
    assert sorted(packets) == sorted(shipped)
    assert sum(map(len, packets.values())) < 300_000
    assert len(packets) == sum(map(len, SAMPLES.values())) == 12
    for name in packets:
        assert alike(any_packet(name, packets[name]), any_packet(name, shipped[name])), name


def test_a_sample_nobody_fits_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sample, *_), *_ = SAMPLES.values()
    monkeypatch.setitem(SAMPLES, "lsst", (replace(sample, alert=100_000),))
    with pytest.raises(LookupError, match="100000 detections"):
        write_samples(SCHEMAS, tmp_path)
