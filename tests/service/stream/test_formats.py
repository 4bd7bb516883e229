"""Output formats match the schemas of their consumers, decoded by fastavro."""

import io
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import fastavro
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import AbstainReason, Packet
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.items import Outcome, Prediction
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.taxonomy import ELASTICC, MALLORN, ZTF_SUPERNOVAE
from nightjar_alerts.service.registry.serving import ModelHandle, ServedModel
from nightjar_alerts.service.settings import SinkFormat
from nightjar_alerts.service.stream.formats import (
    ALERCE_OUTPUT,
    ELASTICC_REPLY,
    NOT_CLASSIFIED,
    RESIDUAL,
    STREAM_RESULT,
    encode_record,
)
from nightjar_alerts.service.stream.messages import AlertResult, Message, PermanentError, Record
from support import alerts
from support.graphs import EchoGraph, echo_manifest
from support.shared import needs_shared, shared

BIG = 2**61 + 1


def handle(taxonomy: Any = ELASTICC) -> ModelHandle:
    manifest = echo_manifest().model_copy(update={"taxonomy": taxonomy})
    loaded = LoadedModel(Bundle(Path("echo"), manifest, "0" * 64), "cpu", EchoGraph(), CostModel(1, 1, 1), 0.0, 0.0)
    return ModelHandle(ServedModel(loaded, cast(Any, None), cast(Any, None), cast(Any, None)))


def packet() -> Packet:
    decoded = read_packet(alerts.bare("elasticc/0.9.1", alerts.elasticc_alert()))[0]
    assert isinstance(decoded, Packet)
    return decoded


def prediction(probabilities: NDArray[np.float32]) -> Prediction:
    outputs = {"probabilities": probabilities, "embedding": np.arange(4, dtype=np.float32)}
    return Prediction(outputs, 1, 0.0, 0.0, 0.0)


def classified(probabilities: NDArray[np.float32] | None = None, taxonomy: Any = ELASTICC) -> AlertResult:
    shares = np.linspace(0.01, 0.09, 20, dtype=np.float32) if probabilities is None else probabilities
    outcome = Outcome("classified", prediction=prediction(shares), points_per_band=(1,) * 6)
    message = Message("alerts-wfd", "3:14", b"...", timestamp_ms=1_690_000_000_123)
    return AlertResult(message, 0, packet(), outcome, handle(taxonomy), 1_690_000_001_456)


def abstained() -> AlertResult:
    outcome = Outcome("abstained", AbstainReason.NO_USABLE_POINTS, "none", points_per_band=(0,) * 6)
    return replace(classified(), outcome=outcome)


def written(result: AlertResult, form: SinkFormat) -> bytes:
    record = encode_record(result, form)
    assert isinstance(record, Record)
    assert record.key == b"alerts-wfd/%d/echo-0.0.1" % BIG
    return record.value


def reply(result: AlertResult) -> dict[str, Any]:
    stream = io.BytesIO(written(result, "elasticc"))
    record = cast("dict[str, Any]", fastavro.schemaless_reader(stream, ELASTICC_REPLY, None))
    assert not stream.read()
    return record


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_elasticc_record_has_the_expected_fields() -> None:
    record = reply(classified())
    assert (record["alertId"], record["diaSourceId"]) == (BIG, BIG)
    assert milliseconds(record["elasticcPublishTimestamp"]) == 1_690_000_000_123
    assert milliseconds(record["brokerIngestTimestamp"]) == 1_690_000_001_456
    assert (record["brokerName"], record["classifierName"]) == ("Nightjar", "echo 0.0.1")
    ids = [one["classId"] for one in record["classifications"]]
    assert ids == [*ELASTICC.ids, RESIDUAL]


@given(st.lists(st.floats(0, 1, width=32), min_size=20, max_size=20).filter(lambda values: sum(values) > 1e-3))
def test_elasticc_probabilities_sum_to_one(values: list[float]) -> None:
    weights = np.array(values, dtype=np.float64)
    record = reply(classified((weights / weights.sum()).astype(np.float32)))
    assert abs(sum(one["probability"] for one in record["classifications"]) - 1) < 1e-6
    assert all(0 <= one["probability"] <= 1 for one in record["classifications"])


def test_elasticc_abstention_is_not_classified() -> None:
    assert reply(abstained())["classifications"] == [{"classId": NOT_CLASSIFIED, "probability": 1.0}]


def test_elasticc_class_ids_are_those_of_the_bundle() -> None:
    record = reply(classified(np.full(5, 0.2, dtype=np.float32), MALLORN))
    assert [one["classId"] for one in record["classifications"]] == [*MALLORN.ids, RESIDUAL]


def test_elasticc_alert_without_a_numeric_id_raises() -> None:
    nameless = replace(classified(), packet=replace(packet(), alert_id=""))
    with pytest.raises(PermanentError, match="numeric alert id"):
        encode_record(nameless, "elasticc")
    assert nameless.key == "alerts-wfd/3:14+0/echo-0.0.1"


@pytest.mark.parametrize("form", ["alerce-avro", "alerce-json"])
def test_alerce_records_have_the_expected_fields(form: SinkFormat) -> None:
    data = written(classified(), form)
    if form == "alerce-avro":
        (record,) = cast("list[dict[str, Any]]", list(fastavro.reader(io.BytesIO(data))))
    else:
        record = orjson.loads(data)
    assert record["oid"] == str(2**60 + 1)
    vector = record["lc_classification"]["probabilities"]
    assert list(vector) == list(ELASTICC.names)
    assert sum(vector.values()) == pytest.approx(1, abs=1e-6)
    assert record["lc_classification"]["class"] == ELASTICC.names[-1]
    top, children = (record["lc_classification"]["hierarchical"][level] for level in ("top", "children"))
    assert sum(top.values()) == pytest.approx(1, abs=1e-6)
    for family, leaves in children.items():
        assert sum(leaves.values()) == pytest.approx(1, abs=1e-6)
        for name, share in leaves.items():
            assert share * top[family] == pytest.approx(vector[name], abs=1e-6)


def test_lasair_annotation_has_the_arguments_of_its_client() -> None:
    record = orjson.loads(written(classified(), "lasair"))
    arguments = ["topic", "objectId", "classification", "version", "explanation", "classdict", "url"]
    assert list(record) == arguments
    assert record["classification"] == "uLens"
    assert record["classdict"]["alert_id"] == str(BIG)


def test_nightjar_format_has_all_fields() -> None:
    record = orjson.loads(written(classified(), "nightjar"))
    assert (record["alert_id"], record["object_id"]) == (str(BIG), str(2**60 + 1))  # text: JSON numbers lose digits
    assert record["model"]["taxonomy"] == "elasticc-20/1"
    assert record["embedding"] == [0, 1, 2, 3]
    assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-12)
    silent = orjson.loads(written(abstained(), "nightjar"))
    assert (silent["status"], silent["reason"]) == ("abstained", "no_usable_points")


@pytest.mark.parametrize("form", ["alerce-avro", "alerce-json", "lasair"])
def test_formats_without_abstentions_publish_nothing(form: SinkFormat) -> None:
    assert encode_record(abstained(), form) is None


@pytest.mark.parametrize("form", ["nightjar", "elasticc", "alerce-avro", "alerce-json", "lasair"])
def test_encode_record_is_deterministic(form: SinkFormat) -> None:
    assert encode_record(classified(), form) == encode_record(classified(), form)


def shape(kind: Any) -> Any:
    """Return an Avro type without documentation, inner type names and other parts that do not affect the encoding."""
    if isinstance(kind, list):
        return [shape(branch) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "record":
        return [(field["name"], shape(field["type"])) for field in kind["fields"]]
    inner = {key: shape(kind[key]) for key in ("items", "values") if key in kind}
    return {"type": kind["type"], "logicalType": kind.get("logicalType"), **inner}


@needs_shared
def test_avro_schemas_equal_those_of_the_consumers() -> None:
    folder = shared("data", "schemas")
    theirs = json.loads((folder / "elasticc" / "elasticc.v0_9_1.brokerClassification.avsc").read_text())
    assert shape(ELASTICC_REPLY) == shape(theirs)
    assert cast(Any, ELASTICC_REPLY)["name"] == f"{theirs['namespace']}.{theirs['name']}"
    theirs = json.loads((folder / "alerce" / "output_ztf.avsc").read_text())
    assert shape(ALERCE_OUTPUT) == shape(theirs)


@pytest.mark.parametrize("form", ["nightjar", "elasticc", "alerce-json", "lasair"])
def test_prior_of_the_settings_applies_to_every_format(form: SinkFormat) -> None:
    """The prior ztf-bright has no stars; an unknown prior falls back to that of the model."""
    plain, bright = classified(), replace(classified(), prior="ztf-bright")
    star, transient = ELASTICC.names.index("RR Lyrae"), ELASTICC.names.index("Ia")
    assert probability(bright, form, star) == 0.0
    assert probability(bright, form, transient) > probability(plain, form, transient)
    assert written(replace(classified(), prior="of-another-model"), form) == written(plain, form)


def probability(result: AlertResult, form: SinkFormat, place: int) -> float:
    name = ELASTICC.names[place]
    if form == "elasticc":
        return float(reply(result)["classifications"][place]["probability"])
    document = orjson.loads(written(result, form))
    if form == "nightjar":
        return float(document["probabilities"][name])
    inner = document["lc_classification"] if form == "alerce-json" else document["classdict"]
    return float(inner["probabilities"][name])


def test_record_of_a_supernova_has_its_subtype() -> None:
    shares = np.full(20, 0.01, np.float32)
    shares[ELASTICC.names.index("II")] = 0.81
    types = Outcome("classified", prediction=prediction(np.array([0.1, 0.2, 0.1, 0.5, 0.05, 0.05], np.float32)))
    result = classified(shares)
    both = replace(
        result,
        outcome=replace(result.outcome, subtype=types),
        handle=replace(result.handle, subtypes=handle(ZTF_SUPERNOVAE)),
    )
    subtype = orjson.loads(written(both, "nightjar"))["subtype"]
    assert (subtype["class"], subtype["confidence"]) == ("IIn", pytest.approx(0.5))
    record = cast("Any", fastavro.schemaless_reader(io.BytesIO(written(both, "nightjar-avro")), STREAM_RESULT, None))
    assert record["class"] == "II"
    assert record["subtype"]["probabilities"] == subtype["probabilities"]
    assert record["subtype"]["model"]["taxonomy"] == subtype["model"]["taxonomy"]
    assert "subtype" not in orjson.loads(written(result, "nightjar"))
