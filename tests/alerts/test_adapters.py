import json
import math
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.alerts import plans
from nightjar_alerts.alerts.packet import AbstainReason, Packet, PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.reader import build_packet
from support import alerts

LSST_NAMES = ["lsst/7.0", "lsst/7.4", "lsst/8.0", "lsst/9.0", "lsst/10.0", "lsst/11.0", "lsst/11.1"]


def build(name: str, alert: dict[str, Any], limits: ReadLimits | None = None) -> Packet:
    """Encode and decode through the plan, then adapt."""
    plan = plans.for_name(name)
    record, _ = plan.decoder.read(alerts.bare(name, alert))
    return build_packet(record, plan, limits or ReadLimits())


@pytest.mark.parametrize("name", LSST_NAMES)
def test_an_lsst_alert(name: str) -> None:
    packet = build(name, alerts.lsst_alert(name))
    assert (packet.survey, packet.schema_version) == ("lsst", name.removeprefix("lsst/"))
    assert (packet.alert_id, packet.object_id) == ("170094456272322680", "170028485706776685")
    assert packet.curve is not None
    assert packet.reason is None
    order = np.argsort(packet.curve.mjd)
    assert packet.curve.mjd[order].tolist() == [61000.0 + i for i in range(6)]
    assert packet.curve.band[order].tolist() == [0, 1, 2, 3, 4, 5]
    assert packet.curve.flux[order].tolist() == [100.0 * i - 50.0 for i in range(6)]
    assert packet.curve.detected[order].tolist() == [True, False] * 3
    assert packet.curve.metadata == {}
    assert packet.curve.object_id == packet.object_id


@pytest.mark.parametrize("name", ["elasticc/0.9", "elasticc/0.9.1"])
def test_an_elasticc_alert(name: str) -> None:
    packet = build(name, alerts.elasticc_alert(name))
    assert (packet.survey, packet.schema_version) == ("elasticc", name.removeprefix("elasticc/"))
    assert (packet.alert_id, packet.object_id) == (str(2**61 + 1), str(2**60 + 1))
    assert packet.curve is not None
    assert packet.curve.flux.tolist() == [-5.0, 880.0]
    assert packet.curve.detected.tolist() == [False, True]
    assert packet.curve.band.tolist() == [1, 5]
    assert packet.curve.metadata == pytest.approx({"z_final": 0.31, "mwebv": 0.02})


def test_impossible_redshift_of_a_packet_is_missing() -> None:
    alert = alerts.elasticc_alert("elasticc/0.9")
    alert["diaObject"]["z_final"] = 20.0
    packet = build("elasticc/0.9", alert)
    assert packet.curve is not None
    assert packet.curve.metadata == pytest.approx({"mwebv": 0.02})


def test_elasticc_visit_numbers_do_not_merge_points() -> None:
    alert = alerts.elasticc_alert("elasticc/0.9")
    rows = [{"midPointTai": 60400.0 + 0.001 * i, "filterName": "r", "psFlux": 9.0, "psFluxErr": 1.0} for i in range(5)]
    alert["prvDiaSources"] = [alerts.row("elasticc/0.9", "diaSource", ccdVisitId=111111, **values) for values in rows]
    packet = build("elasticc/0.9", alert)
    assert packet.curve is not None
    assert len(packet.curve) == 7


def test_a_ztf_alert() -> None:
    packet = build("ztf/4.02", alerts.ztf_alert())
    assert (packet.survey, packet.schema_version, packet.object_id) == ("ztf", "4.02", "ZTF24abcdefg")
    assert packet.alert_id == "2695378462115010012"
    assert packet.curve is not None
    assert packet.curve.band.tolist() == [1, 1, 2]
    expected = [120.0 * 10 ** (0.4 * (31.4 - 26.2)), 10 ** (0.4 * (31.4 - 18.4)), -(10 ** (0.4 * (31.4 - 18.4)))]
    np.testing.assert_allclose(packet.curve.flux, expected, rtol=1e-6)
    assert packet.curve.detected.tolist() == [False, True, True]
    assert packet.curve.dropped == {"upper_limit": 1}
    assert packet.curve.mjd[1] == pytest.approx(2460449.8 - 2400000.5 + 52 / 86400, abs=1e-8)


def test_an_older_ztf_alert_has_no_forced_photometry() -> None:
    packet = build("ztf/3.3", alerts.ztf_alert("ztf/3.3"))
    assert packet.schema_version == "3.3"
    assert packet.curve is not None
    assert len(packet.curve) == 2


def moving(name: str, nothing: int | None) -> dict[str, Any]:
    alert = alerts.lsst_alert(name)
    ids = {"diaObjectId": nothing, "ssObjectId": 21163624629350741}
    return {**alert, "diaSource": {**alert["diaSource"], **ids}, "diaObject": None, "prvDiaSources": None}


@pytest.mark.parametrize("name", ["lsst/7.4", "lsst/10.0", "lsst/11.1"])
@pytest.mark.parametrize("nothing", [None, 0])
def test_a_solar_system_object_is_not_answered(name: str, nothing: int | None) -> None:
    packet = build(name, moving(name, nothing))
    assert packet.curve is None
    assert packet.reason is AbstainReason.SOLAR_SYSTEM_OBJECT
    assert (packet.alert_id, packet.object_id) == ("170094456272322680", "21163624629350741")


def test_a_fixed_object_near_a_moving_one_is_answered() -> None:
    alert = alerts.lsst_alert()
    alert["diaSource"]["ssObjectId"] = 21163624629350741
    assert build("lsst/10.0", alert).curve is not None


def test_ids_fall_back_to_the_source() -> None:
    alert = {**alerts.lsst_alert(), "diaSourceId": 0, "diaObject": None}
    packet = build("lsst/10.0", alert)
    assert (packet.alert_id, packet.object_id) == ("170094456272322680", "170028485706776685")


def test_a_source_without_any_object_is_answered_without_an_id() -> None:
    alert = {**alerts.lsst_alert(), "diaObject": None}
    alert["diaSource"]["diaObjectId"] = None
    packet = build("lsst/10.0", alert)
    assert packet.object_id == ""
    assert packet.curve is not None


@pytest.mark.parametrize("flux", [None, math.nan, math.inf])
def test_no_usable_point_is_a_reason(flux: float | None) -> None:
    alert = {**alerts.lsst_alert(), "prvDiaSources": None, "prvDiaForcedSources": []}
    alert["diaSource"]["psfFlux"] = flux
    packet = build("lsst/10.0", alert)
    assert (packet.curve, packet.reason) == (None, AbstainReason.NO_USABLE_POINTS)
    assert packet.detail.startswith("of 1 observations 0 have no known band")


@pytest.mark.parametrize("object_id", ["ZTF 1", "a" * 65, "ZTF\n1", "ZTF\x1b[31m", "ゼット"])
def test_an_id_no_survey_would_send_is_refused(object_id: str) -> None:
    with pytest.raises(PacketError) as caught:
        build("ztf/4.02", {**alerts.ztf_alert(), "objectId": object_id})
    assert caught.value.reason is RejectReason.MALFORMED_AVRO
    assert object_id not in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "version"), [("4.02", "4.02"), ("", "unknown"), ("4.02\n", "unknown"), ("x" * 999, "unknown")]
)
def test_a_version_is_a_version(stated: str, version: str) -> None:
    assert build("ztf/4.02", {**alerts.ztf_alert(), "schemavsn": stated}).schema_version == version


def test_more_observations_than_allowed_are_refused() -> None:
    assert build("lsst/10.0", alerts.lsst_alert(), ReadLimits(max_observations=6)).curve is not None
    with pytest.raises(PacketError) as caught:
        build("lsst/10.0", alerts.lsst_alert(), ReadLimits(max_observations=5))
    assert caught.value.reason is RejectReason.TOO_MANY_OBSERVATIONS


def test_null_rows_in_a_list_are_skipped() -> None:
    text = json.dumps(alerts.schema("lsst/10.0"))
    rows = '"prvDiaSources", "type": ["null", {"type": "array", "items": '
    assert rows + '"lsst.v10_0.diaSource"' in text
    schema = json.loads(text.replace(rows + '"lsst.v10_0.diaSource"', rows + '["null", "lsst.v10_0.diaSource"]'))
    alert = alerts.lsst_alert()
    data = alerts.bare(schema, {**alert, "prvDiaSources": [None, *alert["prvDiaSources"], None]})
    plan = plans.for_text(json.dumps(schema).encode())
    packet = build_packet(plan.decoder.read(data)[0], plan, ReadLimits())
    assert packet.curve is not None
    assert len(packet.curve) == 6
