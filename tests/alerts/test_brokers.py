"""Packets as brokers pass them on: BOOM's, which Babamul streams, and Fink's; values worked out here by hand."""

import io
import math
from typing import Any

import fastavro
import numpy as np
import orjson
import pytest

from nightjar_alerts.alerts.documents import read_document
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import AbstainReason, Packet, ReadLimits
from nightjar_alerts.alerts.reader import build_packet
from nightjar_alerts.models.photometry import FILTERS

JD = 2_460_800.75
MJD = 60_800.25
TAI = 37.0 / 86_400.0
HALF = 15.0 / 86_400.0
BAND = {"type": "enum", "name": "Band", "symbols": ["g", "r", "i", "z", "y", "u"]}


def field(name: str, kind: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind] if nullable else kind}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def container(schema: dict[str, Any], packet: dict[str, Any]) -> bytes:
    """An Avro container of one record, snappy, as BOOM writes every message."""
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema), [packet], codec="snappy")
    return stream.getvalue()


def photometry(band: Any = "Band") -> dict[str, Any]:
    return record(
        "Photometry", field("jd", "double", False), field("magpsf", "double"), field("sigmapsf", "double"),
        field("diffmaglim", "double", False), field("psfFlux", "double"), field("psfFluxErr", "double", False),
        field("band", band, False), field("ra", "double"), field("dec", "double"), field("snr_psf", "double"),
    )  # fmt: skip


LSST = record(
    "EnrichedLsstAlert",
    field("candid", "long", False),
    field("objectId", "string", False),
    field(
        "candidate",
        record(
            "LsstCandidate", field("diaSourceId", "long", False), field("visit", "long", False),
            field("diaObjectId", "long"), field("ssObjectId", "long"), field("midpointMjdTai", "double", False),
            field("psfFlux", "float"), field("psfFluxErr", "float"), field("band", BAND),
            field("objectId", "string", False), field("jd", "double", False), field("magpsf", "float", False),
        ),
        False,
    ),
    field("prv_candidates", {"type": "array", "items": photometry()}, False),
    field("fp_hists", {"type": "array", "items": "Photometry"}, False),
    field("cutoutScience", "bytes"),
)  # fmt: skip

ZTF = record(
    "EnrichedZtfAlert",
    field("candid", "long", False),
    field("objectId", "string", False),
    field(
        "candidate",
        record(
            "ZtfCandidate", field("jd", "double", False), field("fid", "int", False),
            field("isdiffpos", "boolean", False), field("magpsf", "float", False),
            field("sigmapsf", "float", False), field("exptime", "float"),
            field("sgscore1", "float"), field("distpsnr1", "float"), field("psfFlux", "float", False),
            field("psfFluxErr", "float", False), field("band", BAND, False),
        ),
        False,
    ),
    field("prv_candidates", {"type": "array", "items": photometry()}, False),
    field("prv_nondetections", {"type": "array", "items": "Photometry"}, False),
    field("fp_hists", {"type": "array", "items": "Photometry"}, False),
)  # fmt: skip


def point(jd: float, flux: float | None, error: float, band: str, magnitude: float | None = None) -> dict[str, Any]:
    return {
        "jd": jd, "magpsf": magnitude, "sigmapsf": None, "diffmaglim": 20.5, "psfFlux": flux, "psfFluxErr": error,
        "band": band, "ra": None, "dec": None, "snr_psf": None,
    }  # fmt: skip


def lsst(**changes: Any) -> dict[str, Any]:
    candidate = {
        "diaSourceId": 170_000_000_000_000_001, "visit": 7, "diaObjectId": 169_298_433_216_610_349, "ssObjectId": None,
        "midpointMjdTai": MJD + TAI, "psfFlux": 4000.0, "psfFluxErr": 200.0, "band": "r",
        "objectId": "169298433216610349", "jd": JD, "magpsf": 22.4,
    }  # fmt: skip
    packet = {
        "candid": 170_000_000_000_000_001, "objectId": "169298433216610349", "candidate": candidate,
        "prv_candidates": [point(JD - 3, 3000.0, 150.0, "g", 22.7), point(JD, 4000.0, 200.0, "r", 22.4)],
        "fp_hists": [point(JD - 3, 3100.0, 140.0, "g"), point(JD - 9, -50.0, 120.0, "y")], "cutoutScience": b"x",
    }  # fmt: skip
    return packet | {"candidate": candidate | changes}


def ztf(unit: float) -> dict[str, Any]:
    """Fluxes in nJy times ``unit``; the candidate has 18.9 mag, 1e5 nJy, and is negative."""
    candidate = {
        "jd": JD, "fid": 2, "isdiffpos": False, "magpsf": 18.9, "sigmapsf": 0.05, "exptime": 30.0, "sgscore1": 0.98,
        "distpsnr1": 0.4, "psfFlux": -1e5 * unit, "psfFluxErr": 5e3 * unit, "band": "r",
    }  # fmt: skip
    return {
        "candid": 1234, "objectId": "ZTF21abcdefg", "candidate": candidate,
        "prv_candidates": [point(JD - 2, 8e4 * unit, 4e3 * unit, "g", 31.4 - 2.5 * math.log10(8e4))],
        "prv_nondetections": [point(JD - 4, None, 6e3 * unit, "g")],
        "fp_hists": [point(JD - 6, 100.0 * unit, 3e3 * unit, "i")],
    }  # fmt: skip


def only(data: bytes) -> Packet:
    (packet,) = read_packet(data)
    assert isinstance(packet, Packet), packet
    return packet


def test_babamul_s_lsst_alerts() -> None:
    packet = only(container(LSST, lsst()))
    assert (packet.survey, packet.alert_id) == ("lsst", "170000000000000001")
    assert packet.object_id == "169298433216610349"
    assert packet.mjd == pytest.approx(MJD + TAI, abs=1e-9)
    curve = packet.curve
    assert curve is not None
    assert curve.survey == "lsst"
    by_time = np.argsort(curve.mjd)
    np.testing.assert_allclose(curve.mjd[by_time], np.array([MJD - 9, MJD - 3, MJD]) + TAI, rtol=0, atol=1e-8)
    assert [FILTERS[index] for index in curve.band[by_time]] == ["Y", "g", "r"]
    assert curve.flux[by_time].tolist() == [-50.0, 3100.0, 4000.0]  # the forced point stands for its exposure
    assert curve.detected[by_time].tolist() == [False, True, True]


def test_a_moving_object_of_babamul_is_told() -> None:
    packet = only(container(LSST, lsst(diaObjectId=None, ssObjectId=42, objectId="sso42") | {"objectId": "sso42"}))
    assert packet.reason is AbstainReason.SOLAR_SYSTEM_OBJECT
    assert packet.object_id == "42"


@pytest.mark.parametrize("unit", [1e6, 1.0])  # as BOOM writes them (1e-15 Jy), and as it calls them (nJy)
def test_babamul_s_ztf_alerts(unit: float) -> None:
    packet = only(container(ZTF, ztf(unit)))
    assert (packet.survey, packet.alert_id, packet.object_id) == ("ztf", "1234", "ZTF21abcdefg")
    curve = packet.curve
    assert curve is not None
    by_time = np.argsort(curve.mjd)
    expected = np.array([MJD - 6, MJD - 2, MJD]) + TAI + HALF
    np.testing.assert_allclose(curve.mjd[by_time], expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(curve.flux[by_time], [100.0, 8e4, -1e5], rtol=1e-5)
    np.testing.assert_allclose(curve.flux_err[by_time], [3e3, 4e3, 5e3], rtol=1e-5)
    assert curve.detected[by_time].tolist() == [False, True, True]
    assert curve.metadata == {"star_score": pytest.approx(0.98), "star_distance": pytest.approx(0.4)}


@pytest.mark.parametrize("packet", [lsst() | {"cutoutScience": None}, ztf(1e6)])
def test_the_same_as_json(packet: dict[str, Any]) -> None:
    record_, plan = read_document(orjson.loads(orjson.dumps(packet)), ReadLimits())
    from_json = build_packet(record_, plan, ReadLimits())
    from_avro = only(container(LSST if "cutoutScience" in packet else ZTF, packet))
    assert from_json.survey == from_avro.survey
    assert from_json.curve is not None
    assert from_avro.curve is not None
    order, other = np.argsort(from_json.curve.mjd), np.argsort(from_avro.curve.mjd)
    np.testing.assert_allclose(from_json.curve.mjd[order], from_avro.curve.mjd[other], rtol=0, atol=1e-9)
    np.testing.assert_allclose(from_json.curve.flux[order], from_avro.curve.flux[other], rtol=1e-6)


def test_an_empty_history_is_no_other_layout() -> None:
    packet = {**lsst(), "prv_candidates": [], "fp_hists": [], "cutoutScience": None}
    record_, plan = read_document(orjson.loads(orjson.dumps(packet)), ReadLimits())
    read = build_packet(record_, plan, ReadLimits())
    assert read.curve is not None
    assert len(read.curve) == 1


def test_rows_of_unknown_filters_are_counted_by_name() -> None:
    packet = ztf(1.0)
    packet["fp_hists"] = [point(JD - 6, 100.0, 3e3, "w"), point(JD - 7, 100.0, 3e3, "w"), point(JD - 8, 1.0, 1.0, "é")]
    packet["fp_hists"].append({**point(JD - 9, 1.0, 1.0, "g"), "band": None})
    record_, plan = read_document(orjson.loads(orjson.dumps(packet)), ReadLimits())
    read = build_packet(record_, plan, ReadLimits())
    assert read.curve is not None
    assert read.curve.unknown_filters == {"w": 2, "other": 1, "null": 1}
