"""Every limit on what may be sent, in every format in which it can be sent, at a real service."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nightjar_alerts.service.http.endpoint import LARGE_BYTES
from nightjar_alerts.service.http.formats import ARROW_TYPE, NDJSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.lightcurves.schemas import MAX_ID_LENGTH
from support.edge import Live, Network, curve, live, loader, wait_until

pytest.importorskip("pyarrow", reason="the [arrow] extra")
from support.wire import (
    JSON_TYPE,
    MSGPACK_TYPE,
    Curve,
    arrow_stream,
    arrow_table,
    lines_body,
    msgpack_body,
    packed,
    results_of,
)

POINTS, CURVES, BYTES = 20, 3, 30_000

Encode = Callable[[Sequence[Curve]], bytes]
FORMATS: dict[str, tuple[str, Encode]] = {
    "json": (JSON_TYPE, lambda curves: json.dumps({"light_curves": curves}).encode()),
    "msgpack lists": (MSGPACK_TYPE, msgpack_body),
    "msgpack bytes": (MSGPACK_TYPE, lambda curves: msgpack_body([packed(each) for each in curves])),
    "arrow": (ARROW_TYPE, lambda curves: arrow_stream(arrow_table(curves))),
    "lines": (NDJSON_TYPE, lines_body),
}
WHOLE = [name for name in FORMATS if name != "lines"]  # a stream is read piece by piece and has limits of its own


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    limits = {"max_points": POINTS, "max_curves": CURVES, "max_stream_curves": CURVES, "max_json_bytes": BYTES}
    with live(loader(Network()), **limits) as edge:
        yield edge


@pytest.fixture(autouse=True)
def _nothing_is_left_held(edge: Live) -> Iterator[None]:
    yield
    wait_until(lambda: edge.service.budget.held == 0)
    edge.still_well()


def send(edge: Live, name: str, curves: Sequence[Curve]) -> tuple[int, str, bytes]:
    kind, encode = FORMATS[name]
    status, headers, body = edge.ask("POST", "/v1/classify", encode(curves), {"Content-Type": kind})
    return status, headers["content-type"], body


def answers(edge: Live, name: str, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    status, kind, body = send(edge, name, curves)
    assert status == 200
    return results_of(kind, body)


def refused(edge: Live, kind: str, body: bytes, status: int) -> dict[str, Any]:
    told, headers, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": kind})
    problem: dict[str, Any] = json.loads(reply)
    assert (told, headers["content-type"]) == (status, "application/problem+json")
    return problem


@pytest.mark.parametrize("name", FORMATS)
def test_observations_in_a_light_curve(edge: Live, name: str) -> None:
    most, one_more, good = answers(edge, name, [curve(POINTS), curve(POINTS + 1), curve(1)])
    assert [most["status"], one_more["status"], good["status"]] == ["classified", "rejected", "classified"]
    assert one_more["reason"] == "too_many_points"


@pytest.mark.parametrize("name", FORMATS)
def test_characters_of_a_name(edge: Live, name: str) -> None:
    longest = "ä" * (MAX_ID_LENGTH // 2)
    most, one_more = answers(edge, name, [curve(object_id=longest), curve(object_id="x" * (MAX_ID_LENGTH + 1))])
    assert (most["status"], most["object_id"]) == ("classified", longest)
    assert (one_more["status"], one_more["reason"], one_more["object_id"]) == ("rejected", "too_long", "")


@pytest.mark.parametrize("name", WHOLE)
def test_light_curves_in_a_request(edge: Live, name: str) -> None:
    assert len(answers(edge, name, [curve(1)] * CURVES)) == CURVES
    kind, encode = FORMATS[name]
    assert refused(edge, kind, encode([curve(1)] * (CURVES + 1)), 413)["limit"] == CURVES


def test_light_curves_in_a_stream(edge: Live) -> None:
    *results, last = answers(edge, "lines", [curve(1)] * (CURVES + 1))
    assert [result["status"] for result in results] == ["classified"] * CURVES
    assert (last["problem"]["status"], last["problem"]["limit"]) == (413, CURVES)


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_a_body_or_a_line(edge: Live, name: str) -> None:
    kind = FORMATS[name][0]
    assert refused(edge, kind, b"x" * (BYTES + 1), 413)["limit"] == BYTES


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_a_body_that_comes_in_chunks(edge: Live, name: str) -> None:
    """Nobody says beforehand how long it will be."""
    head = f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: {FORMATS[name][0]}\r\n"
    with edge.connect() as connection:
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"".join(b"400\r\n%s\r\n" % (b"x" * 1024) for _ in range(BYTES // 1024 + 2)))
        assert connection.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_all_bodies_at_once(name: str) -> None:
    kind, encode = FORMATS[name]
    body = encode([curve(POINTS)] * CURVES)
    with live(loader(Network()), max_held_bytes=len(body) // 4) as edge:
        problem = refused(edge, kind, body, 429)
        assert problem["retry_after"] >= 1
        assert edge.service.budget.held == 0


@pytest.mark.parametrize("path", ["/v1/classify", "/v2/models/echo/infer"])
def test_large_bodies_are_parsed_one_at_a_time(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once would take twice the memory and, as parsing holds the interpreter's lock, no less time."""
    used: list[bool] = []
    run_in_thread = Service.run_in_thread

    async def watched(self: Service, work: Any, large: bool = False) -> Any:
        used.append(large)
        return await run_in_thread(self, work, large)

    monkeypatch.setattr(Service, "run_in_thread", watched)
    body = b"{" + b" " * LARGE_BYTES + b"}"
    with live(loader(Network())) as edge:
        assert edge.ask("POST", path, body, {"Content-Type": JSON_TYPE})[0] >= 400
        assert edge.service._large_decoder.total_tokens == 1
    assert True in used


DEEP = {
    JSON_TYPE: b'{"light_curves":' * 1500,
    MSGPACK_TYPE: b"\x81\xa1a" * 1500,
}


@pytest.mark.parametrize("kind", DEEP)
def test_depth(edge: Live, kind: str) -> None:
    refused(edge, kind, DEEP[kind], 400)


def test_depth_of_a_line(edge: Live) -> None:
    body = b'{"a":' * 2000 + b"\n" + json.dumps(curve()).encode() + b"\n"
    status, headers, reply = edge.ask("POST", "/v1/classify", body, {"Content-Type": NDJSON_TYPE})
    deep, good = results_of(headers["content-type"], reply)
    assert (status, deep["status"], deep["errors"][0]["reason"], good["status"]) == (
        200, "rejected", "malformed", "classified"
    )  # fmt: skip


@pytest.mark.parametrize("number", ["1e400", "9" * 400, "-" + "9" * 400, "1" + "0" * 309 + ".0"])
def test_numbers_too_large_for_a_double(edge: Live, number: str) -> None:
    """However they are spelt; a good light curve beside them is answered."""
    good, spoilt = json.dumps(curve(1)), json.dumps(curve(1)).replace("1000.0", number)
    status, reply = edge.classify(f'{{"light_curves": [{spoilt}, {good}]}}'.encode())
    if status == 200:
        assert [result["status"] for result in reply["results"]] == ["rejected", "classified"]
    else:
        assert status in (400, 422)


@pytest.mark.parametrize("deadline", [0, -1, 1e300, 2**63, 2**4096, "1000", 1.5, True])
def test_deadlines_out_of_range(edge: Live, deadline: object) -> None:
    status, problem = edge.classify({"light_curves": [curve(1)], "options": {"deadline_ms": deadline}})
    assert status in (400, 422)
    assert problem["type"] in ("/problems/invalid", "/problems/malformed")
