"""Results of the HTTP service and the stream worker match the published schemas."""

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pytest
from jsonschema import Draft202012Validator

from deploy.pages import RESULT_TYPES, SCHEMAS, result_schema, stream_schema
from nightjar_alerts.core.schemas import fields_of
from nightjar_alerts.service.settings import SinkFormat
from nightjar_alerts.service.stream.files import read_record
from support.edge import Live
from support.results import check
from support.stream import alert, chosen, results, running, solar_system_alert

PUBLISHED = "e24c3dfd0f488b01c928145546a0957126adccb7363a2eba564ccd1d3d54f2cf"
AVRO: Any = fastavro.schema.load_schema(str(SCHEMAS / "stream-result-1.avsc"))
CURVE = {"object_id": "a", "mjd": [60310.0, 60311.0], "band": ["g", "r"], "flux": [9.0, 11.0], "flux_err": [1.0, 1.0]}


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def classify_stream(folder: Path, form: SinkFormat, **changes: Any) -> None:
    """Run a worker over two classified alerts, one abstained and one unreadable."""
    packets = folder / "alerts"
    packets.mkdir()
    for number, data in enumerate([alert(1), alert(2), solar_system_alert(), b"junk"]):
        (packets / f"{number}.avro").write_bytes(data)
    with running(chosen(folder, source=f"file:{packets}", sink_format=form, **changes)) as worker:
        assert worker.join() == 3


def ask(edge: Live, path: str, body: bytes, content_type: str) -> bytes:
    status, _, text = edge.ask("POST", path, body, {"Content-Type": content_type})
    assert status == 200, text
    return bytes(text)


@pytest.mark.parametrize("name", RESULT_TYPES)
def test_json_schema_file_equals_declaration(name: str) -> None:
    assert (SCHEMAS / f"{name}.schema.json").read_text() == result_schema(name), "run python -m deploy.pages"


def test_avro_schema_has_the_members_of_the_declaration() -> None:
    assert {field["name"] for field in AVRO["fields"]} == {"status", *fields_of("StreamResult", "StreamFailure")}


def test_avro_schema_file_is_the_published_one() -> None:
    assert (SCHEMAS / "stream-result-1.avsc").read_text() == stream_schema(), "run python -m deploy.pages"
    fingerprint = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(AVRO), "SHA-256")
    assert fingerprint == PUBLISHED, "a published version never changes: make stream-result-2"


def test_http_results_are_valid_under_the_schema(edge: Live) -> None:
    curves = [CURVE, CURVE | {"flux_err": [-1.0, 1.0]}, CURVE | {"band": ["w", "w"]}]
    body = json.dumps({"light_curves": curves, "options": {"embedding": True}}).encode()
    found = json.loads(ask(edge, "/v1/classify", body, "application/json"))["results"]
    lines = b"\n".join(json.dumps(curve).encode() for curve in curves)
    found += map(json.loads, ask(edge, "/v1/classify", lines, "application/x-ndjson").splitlines())
    for packet in (alert(1), solar_system_alert(), b"junk"):
        found += json.loads(ask(edge, "/v1/alerts?embedding=true", packet, "application/octet-stream"))["results"]
    curve_statuses, packet_statuses = ["classified", "rejected", "abstained"], ["classified", "abstained", "rejected"]
    assert [one["status"] for one in found] == [*curve_statuses, *curve_statuses, *packet_statuses]
    for result in found:
        validator("result-1").validate(result)


def test_stream_json_records_are_valid_under_the_schema(tmp_path: Path) -> None:
    classify_stream(tmp_path, "nightjar")
    records = results(tmp_path)
    assert sorted(one["status"] for one in records) == ["abstained", "classified", "classified"]
    for record in records:
        validator("stream-result-1").validate(record)
        check("StreamResult" if record["status"] == "classified" else "StreamFailure", record)


def test_stream_records_with_evolution_have_the_classification_after_each_detection(tmp_path: Path) -> None:
    classify_stream(tmp_path, "nightjar", sink_evolution=True)
    for record in results(tmp_path):
        validator("stream-result-1").validate(record)
        if record["status"] == "abstained":
            assert "evolution" not in record
            continue
        check("StreamResult", record)
        evolution = record["evolution"]
        mjd = [step["mjd"] for step in evolution["steps"]]
        assert mjd == sorted(set(mjd))
        assert evolution["steps"][-1]["class"] == record["class"]
        tops = [step["class"] for step in evolution["steps"]]
        assert evolution["class_changes"] == sum(a != b for a, b in pairwise(tops))


@pytest.mark.parametrize("evolution", [False, True])
def test_stream_avro_records_equal_json_records(tmp_path: Path, evolution: bool) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "avro").mkdir()
    classify_stream(tmp_path / "json", "nightjar", sink_evolution=evolution)
    place = f"file:{tmp_path}/avro/results/"
    classify_stream(tmp_path / "avro", "nightjar-avro", sink=place, sink_evolution=evolution)
    decoded = {}
    for path in (tmp_path / "avro" / "results").iterdir():
        message = read_record(path)
        assert dict(message.headers)["nightjar-schema"] == b"stream-result-1"
        stream = io.BytesIO(message.value)
        record: Any = fastavro.schemaless_reader(stream, AVRO, None)
        assert not stream.read()
        record["model"] = {name: value for name, value in record["model"].items() if value is not None}
        decoded[record["key"]] = {name: value for name, value in record.items() if value is not None or name == "mjd"}
    expected = {one["key"]: one for one in results(tmp_path / "json")}
    assert len(decoded) == 3
    for key, record in decoded.items():
        assert record.keys() == expected[key].keys()
        for name, value in expected[key].items():
            assert record[name] == (pytest.approx(value, rel=1e-6) if name == "embedding" else value)


@pytest.mark.parametrize("form", ["nightjar", "nightjar-avro"])
def test_sink_embedding_false_omits_only_the_embedding(tmp_path: Path, form: SinkFormat) -> None:
    classify_stream(tmp_path, form, sink=f"file:{tmp_path}/results/", sink_embedding=False)
    for path in (tmp_path / "results").iterdir():
        value = read_record(path).value
        record: Any = (
            json.loads(value) if form == "nightjar" else fastavro.schemaless_reader(io.BytesIO(value), AVRO, None)
        )
        assert record.get("embedding") is None
        if form == "nightjar":
            validator("stream-result-1").validate(record)
        assert record["status"] == "abstained" or record["probabilities"]
