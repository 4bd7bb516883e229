"""``POST /v1/alerts`` over a real socket: packets in every envelope, alone and together."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nightjar_alerts.core.result import AlertsReply
from nightjar_alerts.models.limits import MAX_NEW_SCHEMAS
from nightjar_alerts.service.http.routes.alerts import CHUNK_BYTES, _chunks
from support import alerts
from support.edge import Live, Network, live, loader
from support.results import checked

OCTETS = {"Content-Type": "application/octet-stream"}
BOUNDARY = "frontier"


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), max_packets=4, max_alert_bytes=1_000_000) as edge:
        yield edge


def post(edge: Live, body: bytes, query: str = "", headers: dict[str, str] | None = None) -> tuple[int, Any]:
    status, _, text = edge.ask("POST", f"/v1/alerts{query}", body, OCTETS if headers is None else headers)
    document = json.loads(text)
    if status == 200:
        checked(AlertsReply, document)
    return status, document


def form(packets: list[bytes], kind: str = "form-data") -> tuple[bytes, dict[str, str]]:
    parts = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="packet"; filename="{i}.avro"\r\n\r\n'.encode() + data
        for i, data in enumerate(packets)
    )
    body = b"\r\n".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    return body, {"Content-Type": f"multipart/{kind}; boundary={BOUNDARY}"}


OLD_ELASTICC = alerts.elasticc_alert("elasticc/0.9")
PACKETS = {
    "lsst framed": (alerts.confluent(1000, alerts.lsst_alert("lsst/10.0")), "lsst", "10.0"),
    "lsst 7.4 framed": (alerts.confluent(704, alerts.lsst_alert("lsst/7.4")), "lsst", "7.4"),
    "elasticc bare": (alerts.bare("elasticc/0.9.1", alerts.elasticc_alert()), "elasticc", "0.9.1"),
    "elasticc container": (
        alerts.container("elasticc/0.9", [OLD_ELASTICC]),
        "elasticc",
        "0.9",
    ),
    "ztf container": (alerts.container("ztf/4.02", [alerts.ztf_alert()]), "ztf", "4.02"),
}


@pytest.mark.parametrize("name", PACKETS)
def test_alerts_packet_in_every_envelope_is_classified(edge: Live, name: str) -> None:
    data, survey, version = PACKETS[name]
    status, reply = post(edge, data)
    (result,) = reply["results"]
    assert (status, result["status"], result["survey"], result["schema_version"]) == (
        200,
        "classified",
        survey,
        version,
    )
    assert result["alert_id"]
    assert result["object_id"]
    assert sum(result["points_per_band"].values()) > 0


@pytest.mark.parametrize("kind", ["form-data", "mixed"])
def test_alerts_multipart_packets_are_classified_one_by_one(edge: Live, kind: str) -> None:
    packets = [PACKETS["ztf container"][0], b"\x00nonsense", PACKETS["lsst framed"][0]]
    body, headers = form(packets, kind)
    status, reply = post(edge, body, headers=headers)
    assert (status, [result["status"] for result in reply["results"]]) == (
        200,
        ["classified", "rejected", "classified"],
    )
    assert edge.metric("nightjar_outcomes_total", survey="ztf", status="classified", reason="") >= 1


def test_alerts_container_of_several_records_has_several_results(edge: Live) -> None:
    data = alerts.container("ztf/4.02", [alerts.ztf_alert(), alerts.ztf_alert()])
    status, reply = post(edge, data)
    assert (status, len(reply["results"])) == (200, 2)


def test_alerts_solar_system_object_is_abstained(edge: Live) -> None:
    alert = alerts.lsst_alert()
    ids = {"diaObjectId": None, "ssObjectId": 21163624629350741}
    moving = {**alert, "diaSource": {**alert["diaSource"], **ids}, "diaObject": None, "prvDiaSources": None}
    status, reply = post(edge, alerts.confluent(1000, moving))
    (result,) = reply["results"]
    assert (status, result["status"], result["reason"]) == (200, "abstained", "solar_system_object")


@pytest.mark.parametrize("headers", [OCTETS, {"Content-Type": "application/json"}])
def test_alerts_json_list_has_a_result_for_each(edge: Live, headers: dict[str, str]) -> None:
    packets = [alerts.plain_json(alerts.lsst_alert()), "null", alerts.plain_json(alerts.ztf_alert())]
    status, reply = post(edge, f"[{','.join(packets)}]".encode(), headers=headers)
    found = [(result["status"], result["survey"]) for result in reply["results"]]
    assert (status, found) == (200, [("classified", "lsst"), ("rejected", "unknown"), ("classified", "ztf")])


def test_alerts_object_and_solar_system_object_has_evidence(edge: Live) -> None:
    alert = alerts.lsst_alert(points=9)
    both = {**alert, "diaSource": {**alert["diaSource"], "ssObjectId": 21163624629350741}}
    status, reply = post(edge, alerts.confluent(1000, both))
    (result,) = reply["results"]
    assert (status, result["status"]) == (200, "classified")
    assert "known Solar System object is at this place" in result["evidence"][0]


@pytest.mark.parametrize("cut", [1, 4, 5, 60, 200])
def test_alerts_truncated_packet_is_rejected(edge: Live, cut: int) -> None:
    status, reply = post(edge, PACKETS["lsst framed"][0][:cut])
    (result,) = reply["results"]
    assert (status, result["status"]) == (200, "rejected")
    assert result["reason"]


def test_alerts_schema_parameter_is_used(edge: Live) -> None:
    status, reply = post(edge, PACKETS["elasticc bare"][0], "?schema=elasticc/0.9.1&embedding=true")
    (result,) = reply["results"]
    assert (status, result["survey"], len(result["embedding"])) == (200, "elasticc", 4)


@pytest.mark.parametrize(
    ("query", "pointer", "reason"),
    [
        ("?schema=elasticc/9.9", "/query/schema", "unknown_schema"),
        ("?schema=../../etc/passwd", "/query/schema", "unknown_schema"),
        ("?schema=" + "x" * 50, "/query/schema", "too_long"),
        ("?embedding=perhaps", "/query/embedding", "not_a_boolean"),
        ("?deadline_ms=soon", "/query/deadline_ms", "not_an_integer"),
        ("?deadline_ms=null", "/query/deadline_ms", "not_an_integer"),
        ("?deadline_ms=0", "/query/deadline_ms", "too_small"),
        ("?deadline_ms=999999999", "/query/deadline_ms", "deadline_too_long"),
        ("?shema=x", "/query/shema", "unknown_field"),
    ],
)
def test_alerts_invalid_parameter_is_named(edge: Live, query: str, pointer: str, reason: str) -> None:
    status, problem = post(edge, b"x", query)
    assert (status, problem["errors"][0]["pointer"], problem["errors"][0]["reason"]) == (422, pointer, reason)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Content-Type": "avro/binary"}, 200),
        ({"Content-Type": "application/avro"}, 200),
        ({"Content-Type": "application/json"}, 200),  # whatever the type, the bytes say what they are
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data"}, 400),
        ({"Content-Type": f"multipart/mixed; boundary={'x' * 71}"}, 400),
    ],
)
def test_alerts_content_types_are_accepted(edge: Live, headers: dict[str, str], status: int) -> None:
    assert post(edge, PACKETS["ztf container"][0], headers=headers)[0] == status


def test_alerts_with_too_many_records_in_all_packets_is_a_problem(edge: Live) -> None:
    records = alerts.container("ztf/4.02", [alerts.ztf_alert()] * 3)
    body, headers = form([records, records])
    status, problem = post(edge, body, headers=headers)
    assert (status, problem["limit"]) == (413, 4)


def test_alerts_packets_are_decoded_in_chunks() -> None:
    big, small = b"b" * (CHUNK_BYTES + 1), b"s" * 10
    assert [len(chunk) for chunk in _chunks([small, small, big, small, small])] == [2, 1, 2]
    assert _chunks([]) == [[]]


def test_alerts_json_packet_is_read_as_in_a_stream(edge: Live) -> None:
    row = {"midpointMjdTai": 60_000.0, "band": "r", "psfFlux": 1000.0, "psfFluxErr": 100.0, "diaSourceId": 7}
    document = json.dumps({"alertId": 2**62 + 1, "diaSource": row, "prvDiaSources": []}).encode()
    for kind in ("application/json", "application/octet-stream"):
        status, _, text = edge.ask("POST", "/v1/alerts", document, {"Content-Type": kind})
        (result,) = json.loads(text)["results"]
        assert (status, result["status"], result["alert_id"]) == (200, "classified", str(2**62 + 1))


def test_alerts_many_new_schemas_are_bounded() -> None:
    """Each schema took 43 ms to compile, so a body of 2 MB blocked one of two threads for 43 s."""
    parts = []
    for number in range(60):
        schema = json.loads(json.dumps(alerts.schema("ztf/4.02"))) | {"doc": f"in time {number}"}
        parts.append(alerts.header(schema) + alerts.block(1, alerts.bare("ztf/4.02", alerts.ztf_alert())))
    body, headers = form(parts)
    with live(loader(Network())) as edge:
        status, reply = post(edge, body, headers=headers)
    told = [(result["status"], result.get("reason")) for result in reply["results"]]
    assert status == 200
    assert told[:MAX_NEW_SCHEMAS] == [("classified", None)] * MAX_NEW_SCHEMAS
    assert told[MAX_NEW_SCHEMAS:] == [("rejected", "too_many_schemas")] * (60 - MAX_NEW_SCHEMAS)
