"""``POST /v1/classify`` in every format over a real socket: the same results, errors and limits."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from nightjar_alerts.core.request import Options
from nightjar_alerts.core.result import AlertsReply, Classified, ClassifyReply
from nightjar_alerts.service import SAMPLES
from nightjar_alerts.service.http.formats import ARROW_TYPE, NDJSON_TYPE
from support import wire
from support.edge import Live, Network, curve, live, loader
from support.results import checked
from support.wire import (
    ENCODINGS,
    JSON_TYPE,
    MSGPACK_TYPE,
    packed,
    results_of,
)

BODIES = wire.BODIES | {
    MSGPACK_TYPE: ENCODINGS["msgpack-bytes"].encode,
    "application/vnd.msgpack": ENCODINGS["msgpack-lists"].encode,
}
LIMIT = 2_000_000


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), max_json_bytes=LIMIT, max_curves=100, max_points=5000) as edge:
        yield edge


def ask(edge: Live, sent: str, body: bytes, wanted: str = "", query: str = "") -> tuple[int, dict[str, str], bytes]:
    headers = {"Content-Type": sent} | ({"Accept": wanted} if wanted else {})
    return edge.ask("POST", f"/v1/classify{query}", body, headers)


def drawn(count: int) -> list[dict[str, Any]]:
    """Light curves with values exact in single precision, so that all formats have the same values."""
    rng = np.random.default_rng(1)
    found = []
    for index in range(count):
        points = int(rng.integers(1, 60))
        columns = {name: rng.uniform(1, 500, points).astype(np.float32).tolist() for name in ("flux", "flux_err")}
        metadata = {"mwebv": 0.125, "z_final": None, "hostgal_zphot": -9.0} if index % 2 else {}
        chosen: dict[str, Any] = columns | {"metadata": metadata, "object_id": str(index)}
        found.append(curve(points, detected=(rng.random(points) > 0.5).tolist(), **chosen))
    found[3]["flux_err"][0] = -1.0
    return found


@pytest.fixture(scope="module")
def expected(tiny_edge: Live) -> list[dict[str, Any]]:
    status, _, reply = ask(tiny_edge, JSON_TYPE, BODIES[JSON_TYPE](drawn(20)), query="?embedding=true")
    assert status == 200
    return results_of(JSON_TYPE, reply)


def numbers(result: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return all numbers of a result."""
    embedding = result["embedding"]
    values = np.frombuffer(embedding, "<f4") if isinstance(embedding, bytes) else embedding
    said = [result["confidence"], *result["probabilities"].values(), *result["hierarchy"].values(), *values]
    return np.array(said, np.float64)


@pytest.mark.parametrize("wanted", ["", JSON_TYPE, MSGPACK_TYPE, ARROW_TYPE, NDJSON_TYPE])
@pytest.mark.parametrize("sent", BODIES)
def test_classify_every_format_has_the_same_numbers(
    tiny_edge: Live, expected: list[dict[str, Any]], sent: str, wanted: str
) -> None:
    if sent == NDJSON_TYPE and wanted not in ("", NDJSON_TYPE):
        return
    status, headers, reply = ask(tiny_edge, sent, BODIES[sent](drawn(20)), wanted, "?embedding=true")
    assert (status, headers["content-type"]) == (200, wanted or sent)
    results = results_of(headers["content-type"], reply)
    for ours, theirs in zip(results, expected, strict=True):
        if theirs["status"] == "rejected":
            pointer = "/flux_err/0" if sent == NDJSON_TYPE else "/light_curves/3/flux_err/0"
            assert (ours["status"], ours["errors"][0]["pointer"]) == ("rejected", pointer)
            continue
        names = ("status", "object_id", "class", "class_id", "points_per_band", "truncated", "metadata_missing")
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
        # Batches differ from request to request, and with them the rounding of float32 sums.
        np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=1e-4, atol=1e-6)


def test_classify_json_and_msgpack_name_the_model(tiny_edge: Live) -> None:
    _, _, text = ask(tiny_edge, JSON_TYPE, BODIES[JSON_TYPE]([curve()]))
    _, _, data = ask(tiny_edge, MSGPACK_TYPE, BODIES[MSGPACK_TYPE]([curve()]))
    assert msgspec.msgpack.decode(data)["model"] == json.loads(text)["model"]


def test_classify_experts_are_the_same_in_every_format(tiny_edge: Live, edge: Live) -> None:
    body = {**drawn(4)[0], "options": {"prior": "uniform"}}
    _, _, reply = ask(tiny_edge, JSON_TYPE, json.dumps(body).encode(), query="?experts=true")
    (expected,) = checked(ClassifyReply, reply).results
    assert isinstance(expected, Classified)
    assert expected.experts is not None
    points = {band: number for band, number in expected.points_per_band.items() if number}
    for layer in expected.experts.layers:
        chosen = {band: sum(counts) / points[band] for band, counts in layer.bands.items()}
        assert chosen == dict.fromkeys(points, max(chosen.values()))
        experts = len(next(iter(layer.bands.values())))
        assert 0 < layer.router_entropy <= np.log(experts) * 1.000001
    for wanted in (MSGPACK_TYPE, ARROW_TYPE, NDJSON_TYPE):
        _, headers, reply = ask(tiny_edge, JSON_TYPE, json.dumps(body).encode(), wanted, "?experts=true")
        layers = results_of(headers["content-type"], reply)[0]["experts"]["layers"]
        found = [layer | {"bands": dict(layer["bands"])} for layer in layers]  # Arrow's maps are lists of pairs
        assert found == expected.experts.to_dict()["layers"], wanted
    _, _, reply = ask(edge, JSON_TYPE, json.dumps(body).encode(), query="?experts=true")
    assert "experts" not in results_of(JSON_TYPE, reply)[0], "the model has none"


def test_alerts_experts_are_in_the_result(tiny_edge: Live) -> None:
    packet = (SAMPLES / "lsst_9876522240000007.avro").read_bytes()
    status, reply = tiny_edge.post("/v1/alerts?experts=true", packet)
    (result,) = checked(AlertsReply, reply).results
    assert status == 200
    assert isinstance(result, Classified)
    assert result.experts is not None
    for layer in result.experts.layers:
        assert layer.bands.keys() == {band for band, number in result.points_per_band.items() if number}


def test_classify_embedding_options_select_type_and_encoding(edge: Live) -> None:
    body = {**curve(flux=[0.5] * 8), "options": {"embedding": True, "embedding_dtype": "float16"}}
    asked = {**body, "options": {**body["options"], "embedding_encoding": "base64"}}
    for sent, text in ((body, [0.5] * 4), (asked, base64.b64encode(np.full(4, 0.5, "<f2").tobytes()).decode())):
        (result,) = edge.classify(sent)[1]["results"]
        assert result["embedding"] == text
    _, _, reply = ask(edge, JSON_TYPE, json.dumps(body).encode(), MSGPACK_TYPE)
    assert results_of(MSGPACK_TYPE, reply)[0]["embedding"] == np.full(4, 0.5, "<f2").tobytes()


def test_classify_option_in_body_overrides_query(edge: Live) -> None:
    body = json.dumps({**curve(), "options": {"embedding": False}}).encode()
    _, _, reply = ask(edge, JSON_TYPE, body, query="?embedding=true&embedding_dtype=float16")
    assert "embedding" not in results_of(JSON_TYPE, reply)[0]


@pytest.mark.parametrize(
    "query",
    [
        "?embedding=perhaps",
        "?embedding_dtype=float8",
        "?deadline_ms=0",
        "?deadline_ms=9e9",
        "?deadline_ms=null",
        "?coverage=null",
    ],
)
def test_classify_invalid_query_parameter_is_named(edge: Live, query: str) -> None:
    status, _, reply = ask(edge, MSGPACK_TYPE, BODIES[MSGPACK_TYPE]([curve()]), query=query)
    (error,) = json.loads(reply)["errors"]
    assert (status, error["pointer"]) == (422, "/query/" + query[1:].partition("=")[0])


def test_classify_msgpack_single_light_curve_is_classified(edge: Live) -> None:
    body = msgspec.msgpack.encode({**packed(curve()), "options": {"deadline_ms": 5000}})
    status, _, reply = ask(edge, MSGPACK_TYPE, body)
    assert (status, results_of(MSGPACK_TYPE, reply)[0]["object_id"]) == (200, "SN 2099zz")
    status, headers, reply = ask(edge, MSGPACK_TYPE, msgspec.msgpack.encode(packed(curve(flux_err=[0.0] * 8))))
    assert (status, headers["content-type"]) == (422, "application/problem+json")
    assert json.loads(reply)["errors"][0]["pointer"] == "/flux_err/0"


@pytest.mark.parametrize("body", [b"\xdd\xff\xff\xff\xff" + b"\xc0" * 1000, b"\x91" * (LIMIT - 1)])
def test_classify_msgpack_bomb_is_malformed(edge: Live, body: bytes) -> None:
    assert ask(edge, MSGPACK_TYPE, body)[0] == 400


def test_classify_unsupported_accept_is_rejected_unread(edge: Live) -> None:
    status, _, reply = ask(edge, JSON_TYPE, b"{}", "image/png")
    assert (status, json.loads(reply)["type"]) == (406, "/problems/not-acceptable")


def test_openapi_classify_lists_every_format(edge: Live) -> None:
    document = json.loads(edge.ask("GET", "/openapi.json")[2])
    operation = document["paths"]["/v1/classify"]["post"]
    assert set(operation["requestBody"]["content"]) == {*BODIES, "application/x-msgpack"}
    assert set(operation["responses"]["200"]["content"]) == {*BODIES, "application/x-msgpack"}
    assert {each["name"] for each in operation["parameters"]} == {
        *(field.name for field in msgspec.structs.fields(Options)),
        "model",
    }
