"""``GET /live/events`` over a real socket."""

import hashlib
import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from starlette.requests import Request

from nightjar_alerts.service.http.routes.live import stream_events
from nightjar_alerts.service.observe.live import MAX_READERS, LiveFeed
from support import alerts
from support.edge import Live, Network, live, loader

KEY = "the key of the live view"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
API_KEY = "a client's key"
CURVE = {"mjd": [60_000.0, 60_003.0], "flux": [900.0, 2000.0], "flux_err": [50.0, 50.0], "band": ["g", "r"]}


@pytest.fixture
def edge() -> Iterator[Live]:
    keys = (hashlib.sha256(API_KEY.encode()).hexdigest(),)
    with live(loader(Network()), live_key=DIGEST, api_keys=keys, drain_timeout=5) as edge:
        yield edge


def open_events(edge: Live, query: str = "", key: str = KEY) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", edge.port, timeout=60)
    connection.request("GET", f"/live/events{query}", headers={"Authorization": f"Bearer {key}"})
    return connection, connection.getresponse()


def next_results(response: HTTPResponse) -> dict[str, Any]:
    while True:
        line = response.readline()
        assert line, "the stream ended"
        if line == b"event: results\n":
            document: dict[str, Any] = json.loads(response.readline().removeprefix(b"data: "))
            return document


def classify(edge: Live, object_id: str) -> None:
    body = json.dumps({**CURVE, "object_id": object_id, "survey": "atlas"}).encode()
    headers = {"Content-Type": "application/json", "X-API-Key": API_KEY}
    assert edge.ask("POST", "/v1/classify", body, headers)[0] == 200


def test_live_events_show_results_of_every_route(edge: Live) -> None:
    connection, response = open_events(edge)
    assert (response.status, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    classify(edge, "first")
    packet = alerts.container("ztf/4.02", [alerts.ztf_alert()])
    edge.ask("POST", "/v1/alerts", packet, {"Content-Type": "application/octet-stream", "X-API-Key": API_KEY})
    lines = json.dumps({**CURVE, "object_id": "line"}).encode() + b"\n"
    edge.ask("POST", "/v1/classify", lines, {"Content-Type": "application/x-ndjson", "X-API-Key": API_KEY})
    seen: list[tuple[str, str]] = []
    while len(seen) < 3:
        seen += [(each["survey"], each["object_id"]) for each in next_results(response)["results"]]
    assert (seen[0], seen[2]) == (("atlas", "first"), ("", "line"))
    assert seen[1][0] == "ztf"
    connection.close()


@pytest.mark.parametrize("key", ["", API_KEY, DIGEST])
def test_live_events_without_the_key_are_rejected(edge: Live, key: str) -> None:
    connection, response = open_events(edge, key=key)
    assert response.status == 401
    connection.close()


def test_live_events_with_a_wrong_parameter_name_it(edge: Live) -> None:
    connection, response = open_events(edge, "?min_novelty=2")
    assert response.status == 422
    assert json.loads(response.read())["errors"][0]["pointer"] == "/query/min_novelty"
    connection.close()


def test_live_events_are_filtered(edge: Live) -> None:
    connection, response = open_events(edge, "?survey=ztf")
    classify(edge, "atlas")
    while next_results(response)["count"] < 1:
        pass
    connection.close()
    again, response = open_events(edge, "?survey=ztf")
    assert next_results(response)["results"] == []
    again.close()


def test_live_events_for_too_many_readers_are_rejected_until_one_leaves(edge: Live) -> None:
    readers = [open_events(edge) for _ in range(MAX_READERS)]
    assert {response.status for _, response in readers} == {200}
    connection, response = open_events(edge)
    assert response.status == 429
    connection.close()
    readers[0][0].close()
    readers[0][1].close()
    while True:  # the service notices at the next event
        connection, response = open_events(edge)
        connection.close()
        if response.status == 200:
            break
    for connection, response in readers[1:]:
        connection.close()
        response.close()


def test_live_events_response_that_is_never_sent_takes_no_reader() -> None:
    feed = LiveFeed()
    request = Request({"type": "http", "headers": [(b"x-api-key", KEY.encode())], "query_string": b""})
    for _ in range(MAX_READERS + 1):
        stream_events(request, feed, DIGEST, lambda: False)
    assert feed.add_reader()


def test_live_events_end_when_the_service_stops(edge: Live) -> None:
    connection, response = open_events(edge)
    next_results(response)
    edge.service.begin_drain()
    while response.readline():
        pass
    connection.close()


def test_live_events_without_a_key_in_the_settings_do_not_exist() -> None:
    with live(loader(Network())) as edge:
        connection, response = open_events(edge)
        assert response.status == 404
        connection.close()
