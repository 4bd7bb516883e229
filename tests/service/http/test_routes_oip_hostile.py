"""Hostile requests to ``/v2``: inconsistent sizes, wrong lengths, bombs; the service stays available."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from nightjar_alerts.service.http.edge.errors import Problem
from support.edge import Live, Network, live, loader, raw_head, receive_all, wait_until
from support.oip import JSON_LENGTH, Arrays, binary_body, history, json_body, post

LIMIT = 200_000
BODY, LENGTH = binary_body(history(1.0, 2.0))
JSON = json.dumps(json_body(history(1.0, 2.0))).encode()


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    limits = {"max_tensor_bytes": LIMIT, "max_json_bytes": LIMIT // 2, "max_curves": 50, "body_timeout": 0.4}
    with live(loader(Network()), **limits) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _goes_on(edge: Live) -> Iterator[None]:
    yield
    edge.still_well()
    wait_until(lambda: edge.service.budget.held == 0)
    assert edge.metric("nightjar_rejected_total", reason="internal") == 0


def refusal(edge: Live, body: bytes, length: int | str | None, **headers: str) -> tuple[int, str]:
    """Return the status, and the first error or the detail, of a rejected request."""
    status, document = post(edge, body, length, **headers)
    problem = Problem.model_validate_json(json.dumps(document), strict=True)
    assert problem.error
    assert status >= 400
    return status, f"{problem.errors[0].pointer} {problem.errors[0].reason}" if problem.errors else problem.detail


def test_infer_valid_bodies_are_classified(edge: Live) -> None:
    assert post(edge, BODY, LENGTH)[0] == post(edge, JSON, None)[0] == post(edge, JSON, len(JSON))[0] == 200


SHORT, ZERO = np.zeros(3), np.array([0])

FITTING: dict[str, tuple[Arrays, str]] = {
    "flux too short": ({"flux": SHORT.astype("f4")}, "/inputs/1/shape/0 length_mismatch"),
    "band too short": ({"band": np.array([b"g"], dtype=object)}, "/inputs/3/shape/0 length_mismatch"),
    "detected too short": ({"detected": SHORT.astype("?")}, "/inputs/5/shape/0 length_mismatch"),
    "metadata of another batch": ({"metadata": np.zeros((3, 64), "f4")}, "/inputs/5/shape/0 length_mismatch"),
    "names of another batch": ({"object_id": np.array([b""], dtype=object)}, "/inputs/5/shape/0 length_mismatch"),
    "metadata of another model": ({"metadata": np.zeros((2, 63), "f4")}, "/inputs/5/shape wrong_shape"),
    "metadata without a batch": ({"metadata": np.zeros(128, "f4")}, "/inputs/5/shape wrong_shape"),
    "flux in two dimensions": ({"flux": np.zeros((2, 17), "f4")}, "/inputs/1/shape wrong_shape"),
    "flux without dimensions": ({"flux": np.zeros((), "f4")}, "/inputs/1/shape wrong_shape"),
    "times in single precision": ({"mjd": np.zeros(17, "f4")}, "/inputs/0/datatype wrong_datatype"),
    "fluxes as integers": ({"flux": np.zeros(17, "i4")}, "/inputs/1/datatype wrong_datatype"),
    "flags as integers": ({"detected": np.zeros(17, "u1")}, "/inputs/5/datatype wrong_datatype"),
    "an input of the graph": ({"time": np.zeros((1, 17), "f4")}, "/inputs/5/name unknown_input"),
    "offsets of nothing": ({"offsets": ZERO[:0]}, "/inputs/4/shape/0 empty"),
    "one offset": ({"offsets": ZERO}, "/inputs/4/shape/0 empty"),
    "offsets that begin late": ({"offsets": np.array([1, 8, 17])}, "/inputs/4 out_of_range"),
    "offsets that end early": ({"offsets": np.array([0, 8, 16])}, "/inputs/4 out_of_range"),
    "offsets that end late": ({"offsets": np.array([0, 8, 18])}, "/inputs/4 out_of_range"),
    "offsets that go back": ({"offsets": np.array([0, 9, 8, 17])}, "/inputs/4 not_monotone"),
    "offsets below zero": ({"offsets": np.array([0, -1, 17])}, "/inputs/4 not_monotone"),
    "offsets that overflow": ({"offsets": np.array([0, 2**63 - 1, -(2**63), 17])}, "/inputs/4 not_monotone"),
    "offsets beyond the data": ({"offsets": np.array([0, 2**62, 17])}, "/inputs/4 not_monotone"),
}  # fmt: skip


@pytest.mark.parametrize("name", FITTING)
def test_infer_tensors_that_do_not_fit_are_a_problem(edge: Live, name: str) -> None:
    changed, expected = FITTING[name]
    assert refusal(edge, *binary_body(history(1.0, 2.0) | dict(changed))) == (422, expected)


@pytest.mark.parametrize("missing", ["mjd", "flux", "flux_err", "band"])
def test_infer_missing_input_is_a_problem(edge: Live, missing: str) -> None:
    arrays = {name: array for name, array in history(1.0).items() if name != missing}
    assert refusal(edge, *binary_body(arrays)) == (422, "/inputs missing")


@pytest.mark.parametrize("name", ["band", "object_id"])
def test_infer_too_many_texts_are_rejected_unread(edge: Live, name: str) -> None:
    arrays = history(1.0, 2.0) | {"object_id": np.array([b"", b""], dtype=object)}
    place = list(arrays).index(name)
    body, length = binary_body(arrays, {name: {"shape": [51]}})  # more than are there, so that reading would tell
    assert refusal(edge, body, length) == (422, f"/inputs/{place}/shape/0 length_mismatch")


SHARED: dict[str, Any] = {"shared_memory_region": "mine", "shared_memory_byte_size": 8}
TOP = {"classification": 3}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"outputs": [{"name": "logits"}]}, "/outputs/0/name unknown_output"),
        ({"outputs": [{"name": "status"}, {"name": "status"}]}, "/outputs/1/name duplicate"),
        ({"outputs": [{"name": "status"}] * 17}, "/outputs too_long"),
        ({"outputs": [{"name": "status", "parameters": SHARED}]}, "/outputs/0/parameters unsupported"),
        ({"outputs": [{"name": "status", "parameters": TOP}]}, "/outputs/0/parameters/classification unexpected"),
        ({"parameters": {"timeout": -1}}, "/parameters/timeout too_small"),
        ({"parameters": {"timeout": 2**62}}, "/parameters/timeout deadline_too_long"),
        ({"parameters": {"timeout": 1000, "deadline_ms": 1}}, "/parameters/deadline_ms duplicate"),
        ({"parameters": {"deadline_ms": 10**9}}, "/parameters/deadline_ms deadline_too_long"),
        ({"parameters": {"flux_unit": "mag"}}, "/parameters/flux_unit not_one_of"),
        ({"parameters": {"binary_data_output": 1}}, "/parameters/binary_data_output not_a_boolean"),
        ({"parameters": {"flux_units": "uJy"}}, "/parameters unknown_field"),
        (
            {"outputs": [{"name": "status", "parameters": {"Classifications": 3}}]},
            "/outputs/0/parameters unknown_field",
        ),
        ({"parameters": {str(number): 1 for number in range(101)}}, "/parameters too_long"),
        ({"id": 7}, "/id not_a_string"),
        ({"id": "x" * 201}, "/id too_long"),
        ({"model_name": "other"}, "/model_name not_one_of"),
        ({"model_version": "2"}, "/model_version not_one_of"),
        ({"inputs": []}, "/inputs empty"),
        ({"inputs": {}}, "/inputs not_a_list"),
        ({"inputs": [1]}, "/inputs/0 not_an_object"),
        ({"surprise": 1}, " unknown_field"),
    ],
)
def test_infer_invalid_member_is_named(edge: Live, members: dict[str, Any], expected: str) -> None:
    body = json.dumps(json_body(history(1.0)) | members).encode()
    assert refusal(edge, body, None) == (422, expected)


@pytest.mark.parametrize(
    ("members", "expected"),
    [({"\ud800": 1}, " unknown_field"), ({"parameters": {"flux_unit\ud800": 1}}, "/parameters unknown_field")],
)
def test_infer_name_that_utf8_cannot_encode_is_a_problem(edge: Live, members: dict[str, Any], expected: str) -> None:
    arrays = history(1.0)
    arrays["flux"][0] = np.nan  # which lets unpaired surrogates in
    assert refusal(edge, json.dumps(json_body(arrays) | members).encode(), None) == (422, expected)


def test_infer_huge_timeout_is_a_problem(edge: Live) -> None:
    arrays = history(1.0)
    arrays["flux"][0] = np.nan  # which lets integers of any size in
    body = json.dumps(json_body(arrays, parameters={"timeout": 10**400})).encode()
    assert refusal(edge, body, None) == (422, "/parameters/timeout deadline_too_long")


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null"])
def test_infer_json_that_is_no_object_is_a_problem(edge: Live, body: bytes) -> None:
    assert refusal(edge, body, None) == (422, " not_an_object")


@pytest.mark.parametrize("length", [0, LENGTH - 1, LENGTH + 1, len(BODY), len(BODY) + 1, 10**11, "x", "-1", "1e3"])
def test_infer_wrong_header_length_is_malformed(edge: Live, length: int | str) -> None:
    assert refusal(edge, BODY, length)[0] == 400


def test_infer_missing_or_repeated_header_length_is_malformed(edge: Live) -> None:
    assert refusal(edge, BODY, None)[0] == 400
    with edge.connect() as connection:
        twice = [f"{JSON_LENGTH}: {LENGTH}"] * 2
        head = raw_head("/v2/models/echo/infer", "Connection: close", f"Content-Length: {len(BODY)}", *twice)
        connection.sendall(head + BODY)
        assert receive_all(connection).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("cut", [1, 8, 100, len(BODY) - LENGTH])
def test_infer_truncated_binary_part_is_malformed(edge: Live, cut: int) -> None:
    assert refusal(edge, BODY[:-cut], LENGTH)[0] == 400


def test_infer_disconnected_client_withdraws_its_work() -> None:
    network = Network()
    with live(loader(network), workers=1) as edge:
        network.hold()
        with edge.connect() as first, edge.connect() as second:
            lengths = f"Content-Length: {len(BODY)}", f"{JSON_LENGTH}: {LENGTH}"
            request = raw_head("/v2/models/echo/infer", *lengths) + BODY
            first.sendall(request)
            assert network.started.acquire(timeout=10)
            waiting = edge.metric("nightjar_queue_depth")  # the first may go in two runs
            second.sendall(request)
            wait_until(lambda: edge.metric("nightjar_queue_depth") == waiting + 2)
            second.close()
            wait_until(lambda: edge.metric("nightjar_withdrawn_total") == 2)
            network.release()
            assert first.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: edge.service.budget.held == 0)


def test_infer_bytes_after_the_last_tensor_are_malformed(edge: Live) -> None:
    assert refusal(edge, BODY + b"\0", LENGTH) == (400, "1 bytes follow the last tensor")


@pytest.mark.parametrize("shape", [[2**31 - 1], [2**31 - 1, 2**31 - 1], [2**63], [2**64], [-1], [1e9], [10**400]])
def test_infer_huge_shape_is_a_problem(edge: Live, shape: list[Any]) -> None:
    tracemalloc.start()
    assert refusal(edge, *binary_body(history(1.0), {"mjd": {"shape": shape}}))[0] == 422
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_infer_json_part_beyond_the_limit_is_a_problem(edge: Live) -> None:
    assert refusal(edge, bytes(LIMIT // 2 + 2), LIMIT // 2 + 1)[0] == 413


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_infer_corrupt_compression_is_malformed(edge: Live, pack: Any) -> None:
    coding = "gzip" if pack is gzip.compress else "deflate"
    packed = pack(BODY)
    assert post(edge, packed, LENGTH, Content_Encoding=coding)[0] == 200
    for spoiled in (packed[:-5], packed[:20], packed + b"x", BODY, packed[:30] + b"\xff" * 30, pack(b"")):
        assert refusal(edge, spoiled, LENGTH, Content_Encoding=coding)[0] == 400
    assert refusal(edge, pack(bytes(LIMIT + 1)), LENGTH, Content_Encoding=coding)[0] == 413
    assert refusal(edge, pack(bytes(20 * LIMIT)), LENGTH, Content_Encoding=coding)[0] == 413


def test_infer_compression_bomb_is_bounded() -> None:
    with live(loader(Network()), max_held_bytes=3_000_000) as edge:
        bomb = gzip.compress(bytes(10_000_000))
        assert refusal(edge, bomb, 100, Content_Encoding="gzip")[0] == 429
        wait_until(lambda: edge.service.budget.held == 0)


@pytest.mark.parametrize("coding", ["gzip, gzip", "compress"])
def test_infer_unsupported_content_encoding_is_415(edge: Live, coding: str) -> None:
    assert refusal(edge, BODY, LENGTH, Content_Encoding=coding)[0] == 415


@pytest.mark.parametrize("kind", ["application/msgpack", "multipart/form-data"])
def test_infer_unsupported_content_type_is_415(edge: Live, kind: str) -> None:
    assert refusal(edge, BODY, LENGTH, Content_Type=kind)[0] == 415


@given(data=st.data())
@effort(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_infer_corrupted_body_is_a_result_or_a_problem(edge: Live, data: st.DataObject) -> None:
    body, length = (BODY, LENGTH) if data.draw(st.booleans()) else (JSON, len(JSON))
    spoiled = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert post(edge, bytes(spoiled), length)[0] in (200, 400, 413, 422)
