"""Results match their declaration."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.items import Outcome, Prediction
from nightjar_alerts.core.result import AlertsReply, Classified, ClassifyReply, Rejected, ResultFields, Status
from nightjar_alerts.core.serializer import ResultSerializer, encode_json
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.service.answers.models import ClassifierDescription, describe
from nightjar_alerts.service.http.endpoint import Timings
from nightjar_alerts.service.observe.metrics import Metrics
from support.edge import CLASSES
from support.graphs import echo_manifest
from support.results import checked

BUNDLE = Bundle(Path("echo"), echo_manifest(), "f" * 64)
SERIALIZER = ResultSerializer(BUNDLE)
PACKET = {"survey": "lsst", "schema_version": "10.0", "alert_id": str(2**63 - 1), "object_id": str(2**62 + 1)}


def write(results: list[ResultFields]) -> bytes:
    return encode_json({"model": SERIALIZER.provenance, "results": results})


def classified(weights: list[float], seconds: float = 0.001) -> Outcome:
    outputs = {"probabilities": np.array(weights, dtype=np.float32), "embedding": np.arange(3, dtype=np.float32)}
    prediction = Prediction(outputs, 1, seconds, 2 * seconds, 3 * seconds)
    return Outcome("classified", prediction=prediction, points_per_band=(1, 2, 3, 4, 5, 6), featurise_seconds=0.5)


@given(st.lists(st.floats(0, 1, width=32), min_size=CLASSES, max_size=CLASSES).filter(lambda w: sum(w) > 1e-3))
def test_serializer_probabilities_sum_to_one_and_roll_up(weights: list[float]) -> None:
    (result,) = SERIALIZER.results([classified(weights)], [{"object_id": "x"}], [()])
    document = checked(ClassifyReply, write([result])).results[0]
    assert isinstance(document, Classified)
    values = document.probabilities
    assert abs(sum(values.values()) - 1) < 1e-9
    assert document.confidence == max(values.values()) == values[document.class_name]
    assert document.class_id == ELASTICC.ids[ELASTICC.names.index(document.class_name)]
    assert document.hierarchy == pytest.approx(ELASTICC.rollup(list(values.values())))


def test_serializer_embedding_only_if_requested() -> None:
    outcome = classified([1.0] * CLASSES)
    assert "embedding" not in SERIALIZER.result(outcome, {"object_id": ""}).members()
    text = write([SERIALIZER.result(outcome, PACKET, embedding=True)])
    assert orjson.loads(text)["results"][0]["embedding"] == [0.0, 1.0, 2.0]


def test_serializer_experts_only_if_requested_and_returned_by_the_model() -> None:
    outcome = classified([1.0] * CLASSES)
    assert outcome.prediction is not None
    assert "experts" not in SERIALIZER.results([outcome], [{"object_id": ""}], [None], experts=True)[0].members()
    counts_SGX = np.zeros((2, 6, 3), np.float32)
    counts_SGX[:, 1] = [[2, 0, 2], [1, 3, 0]]
    outcome.prediction.outputs.update(experts_by_band=counts_SGX, router_entropy=np.array([0.5, 1], np.float32))
    assert "experts" not in SERIALIZER.result(outcome, {"object_id": ""}).members()
    text = write(SERIALIZER.results([outcome], [PACKET], [None], experts=True))
    assert orjson.loads(text)["results"][0]["experts"] == {
        "layers": [
            {"router_entropy": 0.5, "bands": {"g": [2, 0, 2]}},
            {"router_entropy": 1.0, "bands": {"g": [1, 3, 0]}},
        ]
    }


@pytest.mark.parametrize("status", ["abstained", "rejected", "failed"])
def test_serializer_packet_without_result_has_a_reason(status: Status) -> None:
    outcome = Outcome(status, reason="empty", detail="there are no bytes")
    reply = checked(AlertsReply, write([SERIALIZER.result(outcome, PACKET)]))
    (result,) = reply.results
    assert (result.status, result.object_id, result.alert_id) == (status, PACKET["object_id"], PACKET["alert_id"])


def test_serializer_light_curve_without_result_has_errors() -> None:
    fault = FieldError(pointer="/light_curves/3/flux/1", reason="not_finite", detail="must be finite")
    outcome = Outcome("rejected", reason=fault.reason, detail=fault.detail)
    reply = checked(ClassifyReply, write(SERIALIZER.results([outcome], [{"object_id": "x"}], [[fault]])))
    (result,) = reply.results
    assert isinstance(result, Rejected)
    assert result.errors == [fault]


def test_serializer_provenance_names_the_model() -> None:
    description = describe(BUNDLE, "cpu")
    assert isinstance(description, ClassifierDescription)
    assert description.model_dump().items() >= SERIALIZER.provenance.to_dict().items()
    assert [leaf.id for leaf in description.classes] == list(ELASTICC.ids)


def test_timings_header_has_the_stages_in_order() -> None:
    timings = Timings(Metrics())
    for stage in ("decode", "validate", "encode"):
        timings.stage(stage)
    header = timings.header([classified([1.0] * CLASSES, 0.001), classified([1.0] * CLASSES, 0.002)])
    stages = dict(part.split(";dur=") for part in header.split(", "))
    assert list(stages) == ["decode", "validate", "featurise", "queue", "assemble", "run", "encode", "total"]
    assert [float(stages[name]) for name in ("featurise", "queue", "assemble", "run")] == [1000, 2, 4, 6]
    assert "queue" not in timings.header([Outcome("rejected")])
