"""Model selection by name, survey and canary, and cached results."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nightjar_alerts.core.result import AlertsReply
from nightjar_alerts.service import SAMPLES
from nightjar_alerts.service.http.formats import NDJSON_TYPE
from nightjar_alerts.service.registry.loader import load_one
from nightjar_alerts.service.registry.names import Reference
from support import oip
from support.edge import Live, Network, curve, live, loader
from support.graph_bundles import classifier_bundle
from support.repository import version
from support.results import checked
from support.wire import MSGPACK_TYPE, lines_body, msgpack_body

ZTF = next(iter(sorted(SAMPLES.glob("ztf_*.avro")))).read_bytes()
LSST = next(iter(sorted(SAMPLES.glob("lsst_*7.avro")))).read_bytes()
NAMES = [f"object {i}" for i in range(20)]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("names")
    version(folder / "bundles", "1.0.0", 1.0)
    version(folder / "bundles", "0.9.0", 3.0)
    bundle = classifier_bundle(folder / "default", name="first").path
    chosen = {"bundle": bundle, "repository": folder / "bundles", "aliases": {"ztf": "mine", "old": "mine@0.9.0"}}
    with live(load_one, workers=1, **chosen) as running:
        yield running


def answered_by(edge: Live, path: str, body: bytes, content_type: str) -> dict[str, Any]:
    status, headers, reply = edge.ask("POST", path, body, {"Content-Type": content_type})
    assert status == 200, reply
    if content_type == NDJSON_TYPE:
        name, found = headers["nightjar-model"].split(";")[0].split("/")
        return {"name": name, "version": found}
    document = msgspec.msgpack.decode(reply) if content_type == MSGPACK_TYPE else json.loads(reply)
    model: dict[str, Any] = document["model"]
    return model


@pytest.mark.parametrize(
    ("asked", "name", "number"),
    [
        ("", "first", "0.0.1"),
        ("default", "first", "0.0.1"),
        ("mine", "mine", "1.0.0"),
        ("mine@1.0.0", "mine", "1.0.0"),
        ("ztf", "mine", "1.0.0"),
        ("old", "mine", "0.9.0"),
        ("mine@0.9.0", "mine", "0.9.0"),
    ],
)
def test_classify_model_parameter_selects_the_model(edge: Live, asked: str, name: str, number: str) -> None:
    bodies = {
        "application/json": json.dumps(curve()).encode(),
        MSGPACK_TYPE: msgpack_body([curve()]),
        NDJSON_TYPE: lines_body([curve()]),
    }
    for content_type, body in bodies.items():
        model = answered_by(edge, f"/v1/classify?model={asked}", body, content_type)
        assert (model["name"], model["version"]) == (name, number)
    if asked and "@" not in asked:
        assert oip.client(edge).infer(asked, oip.inputs(oip.history(1.0))).get_response()["model_version"] == number


@pytest.mark.parametrize("asked", ["nobody", "mine@9.9.9", "mine@1", "..", "%00", "x" * 100])
@pytest.mark.parametrize("path", ["classify", "alerts"])
def test_classify_unknown_model_is_not_found(edge: Live, path: str, asked: str) -> None:
    status, problem = edge.post(f"/v1/{path}?model={asked}", curve())
    assert (status, problem["type"]) == (404, "/problems/not-found")


def test_alerts_use_the_model_of_their_survey(edge: Live) -> None:
    def parts(*packets: bytes) -> tuple[bytes, dict[str, str]]:
        between = [b'--x\r\nContent-Disposition: form-data; name="p"\r\n\r\n' + packet + b"\r\n" for packet in packets]
        return b"".join(between) + b"--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}

    def ask(*packets: bytes, model: str = "") -> list[tuple[str, str]]:
        body, headers = parts(*packets)
        status, _, text = edge.ask("POST", f"/v1/alerts?model={model}", body, headers)
        assert status == 200, text
        reply = checked(AlertsReply, text)
        return [(str(result.survey), (result.model or reply.model).name) for result in reply.results]

    assert ask(ZTF) == [("ztf", "mine")]
    assert ask(LSST, ZTF, LSST) == [("lsst", "first"), ("ztf", "mine"), ("lsst", "first")]
    assert ask(LSST, ZTF, model="default") == [("lsst", "first"), ("ztf", "first")]
    assert ask(b"nonsense", ZTF) == [("unknown", "first"), ("ztf", "mine")]


def test_canary_role_is_in_every_format(edge: Live) -> None:
    loop = edge.server.servers[0].get_loop()

    def change(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(20)

    version(edge.service.settings.repository or Path(), "1.1.0", 2.0)
    change(edge.service.models.set_canary("mine", "1.1.0", 50.0))
    roles: dict[str, list[object]] = {"json": [], "msgpack": [], "alerts": []}
    for name in NAMES:
        one, many = json.dumps(curve(object_id=name)).encode(), msgpack_body([curve(object_id=name)])
        roles["json"].append(answered_by(edge, "/v1/classify?model=mine", one, "application/json").get("role"))
        roles["msgpack"].append(answered_by(edge, "/v1/classify?model=mine", many, MSGPACK_TYPE).get("role"))
    assert roles["json"] == roles["msgpack"]
    assert {*roles["json"]} == {None, "canary"}
    found = {
        oip.client(edge).infer("mine", oip.inputs(oip.history(1.0))).get_response()["model_version"] for _ in NAMES
    }
    assert found == {"1.0.0", "1.1.0"}
    metadata = oip.client(edge).get_model_metadata("mine")
    assert metadata["versions"] == ["0.9.0", "1.0.0", "1.1.0"]
    streams = [
        edge.ask("POST", "/v1/classify?model=mine", lines_body([curve()]), {"Content-Type": NDJSON_TYPE}) for _ in NAMES
    ]
    assert {"role=canary" in headers["nightjar-model"] for _, headers, _ in streams} == {True, False}
    change(edge.service.models.delete_canary("mine"))


def test_cache_repeated_light_curve_is_not_run_again() -> None:
    network = Network()
    with live(loader(network), cache_bytes=1_000_000) as edge:
        first = edge.classify(curve())
        assert edge.classify(curve()) == first
        assert (
            edge.classify(curve(object_id="another name"))[1]["results"][0]["confidence"]
            == first[1]["results"][0]["confidence"]
        )
        assert len(network.seen) == 1
        for curves in ([curve()], [curve(), curve(flux=[1.0] * 8)], [curve(flux=[2.0] * 8)], [curve(band=["?"] * 8)]):
            assert edge.classify({"light_curves": curves})[0] == 200
        embedded = edge.classify(curve() | {"options": {"embedding": True}})[1]["results"][0]
        assert embedded["embedding"] == [1000.0] * 4, "options of a reply do not change what is kept"
        assert len(network.seen) == 3
        assert edge.metric("nightjar_cache_answers_total", found="memory") == 5
        assert edge.metric("nightjar_cache_answers_total", found="none") == 3
        assert edge.metric("nightjar_cache_bytes") > 0
        edge.still_well()


def test_cache_failures_are_not_kept() -> None:
    network = Network()
    with live(loader(network), cache_bytes=1_000_000) as edge:
        failing = curve(flux=[13.0] * 8)

        def fail() -> None:
            raise ZeroDivisionError

        network.on_marker[13.0] = fail
        assert edge.classify(failing)[0] >= 500
        del network.on_marker[13.0]
        assert edge.classify(failing)[0] == 200


def test_cache_keys_differ_between_bundles(tmp_path: Path) -> None:
    """Two versions with different results share a cache and get the same requests in turn."""
    version(tmp_path / "bundles", "1.0.0", 1.0)
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    with live(load_one, bundle=bundle, repository=tmp_path / "bundles", cache_bytes=1_000_000, workers=1) as edge:
        loop = edge.server.servers[0].get_loop()
        version(tmp_path / "bundles", "2.0.0", 5.0)
        asyncio.run_coroutine_threadsafe(edge.service.models.load(Reference("mine")), loop).result(20)
        asyncio.run_coroutine_threadsafe(edge.service.models.load(Reference("mine", "1.0.0")), loop).result(20)
        for _ in range(2):
            found = [
                edge.post(f"/v1/classify?model=mine@{v}", curve())[1]["results"][0]["confidence"]
                for v in ("1.0.0", "2.0.0")
            ]
            assert abs(found[0] - found[1]) > 0.01
        assert edge.metric("nightjar_cache_answers_total", found="memory") == 2


def test_canary_object_without_id_is_routed_by_api_key(tmp_path: Path) -> None:
    keys = [f"key {place}" for place in range(12)]
    digests = tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys)
    version(tmp_path / "bundles", "1.0.0", 1.0)
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    with live(load_one, bundle=bundle, repository=tmp_path / "bundles", api_keys=digests, workers=1) as edge:
        version(tmp_path / "bundles", "1.1.0", 2.0)
        work, loop = edge.service.models.set_canary("mine", "1.1.0", 50.0), edge.server.servers[0].get_loop()
        asyncio.run_coroutine_threadsafe(work, loop).result(20)

        def asked_by(key: str) -> str:
            body, headers = json.dumps(oip.json_body(oip.history(1.0))).encode(), {"X-API-Key": key}
            _, _, text = edge.ask("POST", "/v2/models/mine/infer", body, headers | {"Content-Type": "application/json"})
            found: str = json.loads(text)["model_version"]
            return found

        first = [asked_by(key) for key in keys]
        assert set(first) == {"1.0.0", "1.1.0"}
        assert [asked_by(key) for key in keys] == first
