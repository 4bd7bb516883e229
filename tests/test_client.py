"""The clients against real services, and against a server that answers as a script says."""

import asyncio
import json
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from nightjar_alerts import (
    AsyncClient,
    Classifier,
    Client,
    ClientError,
    Evolution,
    LightCurve,
    LightCurveError,
    Results,
    read_packet,
)
from nightjar_alerts.client import BATCH_ITEMS, DeadlineExceeded
from nightjar_alerts.core.result import ClassifyReply
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.service import SAMPLES
from support.alerts import container, ztf_alert
from support.children import assert_raises_in_child
from support.curves import NO_TABLES, close, rows, supernovae
from support.edge import HOST, Live, Network, live, loader
from support.results import MODEL, classified


@pytest.fixture
def client(edge: Live) -> Iterator[Client]:
    with Client(edge.url) as made:
        yield made


class Answer(NamedTuple):
    """Status, headers and JSON of a reply; status 0 closes the connection without one."""

    status: int
    headers: Mapping[str, str] = MappingProxyType({})
    body: Any = None


OK = Answer(200, {}, ClassifyReply(model=MODEL, results=[classified()]).to_dict())


class Scripted(NamedTuple):
    """A server that gives the answers of a list, the last one for ever, and remembers requests."""

    url: str
    requests: list[tuple[str, dict[str, str], bytes]]


@contextmanager
def scripted(*answers: Answer) -> Iterator[Scripted]:
    requests: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), body))
            answer = answers[min(len(requests), len(answers)) - 1]
            if not answer.status:
                self.close_connection = True
                return
            data = json.dumps(answer.body or {"title": "problem", "detail": "scripted"}).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Scripted(f"http://{HOST}:{server.server_port}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CURVE = supernovae(1)[0]


@pytest.mark.parametrize(
    "troubles",
    [
        [Answer(429, {"Retry-After": "0"})],
        [Answer(503, {"Retry-After": formatdate(0, usegmt=True)}), Answer(502, {"Retry-After": "soon"})],
        [Answer(0), Answer(0)],
    ],
)
def test_client_after_a_passing_failure_tries_again(troubles: list[Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.client.FIRST_PAUSE_SECONDS", 0.001)
    with scripted(*troubles, OK) as server, Client(server.url) as client:
        assert client.classify(CURVE).class_name == "Ia"
        assert len(server.requests) == len(troubles) + 1
        assert len({body for _, _, body in server.requests}) == 1


def test_client_waits_as_long_as_retry_after_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("nightjar_alerts.client.time.sleep", pauses.append)
    with scripted(Answer(429, {"Retry-After": "17"}), OK) as server, Client(server.url) as client:
        client.classify(CURVE)
    assert pauses == [17.0]


def test_client_gives_up_after_its_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.client.FIRST_PAUSE_SECONDS", 0.001)
    with scripted(Answer(429, {"Retry-After": "0"})) as server, Client(server.url, retries=2) as client:
        with pytest.raises(ClientError, match="429") as caught:
            client.classify(CURVE)
        assert (caught.value.status, len(server.requests)) == (429, 3)
    with Client(f"http://{HOST}:9", retries=1) as client, pytest.raises(ClientError, match="does not answer"):
        client.classify(CURVE)


@pytest.mark.parametrize("stated", ["-5", "nan", "soon", "Wed, 99 Foo 2026", formatdate(0, usegmt=True)])
def test_client_with_a_retry_after_without_sense_tries_again_soon(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("nightjar_alerts.client.time.sleep", pauses.append)
    with scripted(Answer(503, {"Retry-After": stated}), OK) as server, Client(server.url) as client:
        client.classify(CURVE)
    assert 0 <= pauses[0] <= 0.25


@pytest.mark.parametrize("stated", ["inf", "1e300", "86400", formatdate(2**36, usegmt=True)])
@pytest.mark.parametrize(("deadline", "limit"), [(None, "waits at most 300 s"), (60.0, "waits until the deadline")])
def test_client_asked_to_wait_too_long_says_so(stated: str, deadline: float | None, limit: str) -> None:
    with scripted(Answer(503, {"Retry-After": stated})) as server, Client(server.url) as client:
        with pytest.raises(ClientError, match=rf"^503 .*the next try would be in .* s, and the client {limit}$"):
            client.classify(CURVE, deadline=deadline)
        assert len(server.requests) == 1


def test_client_sends_the_rest_of_its_deadline_and_stops_there() -> None:
    with scripted(Answer(429, {"Retry-After": "3600"})) as server, Client(server.url) as client:
        began = time.monotonic()
        with pytest.raises(ClientError):
            client.classify(CURVE, deadline=5.0)
        assert time.monotonic() - began < 3600
        assert len(server.requests) == 1
        assert b"deadline_ms" in server.requests[0][2]
    with scripted(Answer(504)) as server, Client(server.url) as client, pytest.raises(DeadlineExceeded):
        client.classify(CURVE, deadline=5.0)
    with scripted(OK) as server, Client(server.url) as client, pytest.raises(TimeoutError):
        client.classify(CURVE, deadline=-1.0)


def test_client_sends_key_model_and_prefix() -> None:
    with scripted(OK) as server, Client(f"{server.url}/nightjar/", api_key="secret", model="mine") as client:
        client.classify(CURVE)
        ((path, headers, _),) = server.requests
    assert path == "/nightjar/v1/classify?model=mine"
    assert {name.lower(): value for name, value in headers.items()}["x-api-key"] == "secret"


def test_client_sent_more_than_the_service_takes_divides_the_batch() -> None:
    with live(loader(Network()), max_curves=5) as small, Client(f"http://{HOST}:{small.port}") as client:
        results = client.classify(supernovae(23))
    assert [result.object_id for result in results] == [f"SN{number:04d}" for number in range(23)]
    assert {result.status for result in results} == {"classified"}


def test_client_errors_are_those_of_the_classifier(client: Client) -> None:
    with pytest.raises(LightCurveError) as caught:
        client.classify(CURVE | {"flux_err": [0.0] * len(CURVE["mjd"])})
    assert (caught.value.pointer, caught.value.reason) == ("/flux_err/0", "not_positive")
    with pytest.raises(PriorError, match="no-such"):
        client.classify(CURVE, prior="no-such")
    with Client(client.url, model="nothing") as other, pytest.raises(ClientError, match="404"):
        other.classify(CURVE)
    with pytest.raises(ClientError, match="ftp://x"):
        Client("ftp://x")


def test_client_one_invalid_light_curve_among_many_is_rejected(client: Client) -> None:
    sent = supernovae(2 * BATCH_ITEMS + 5)
    sent[100] = sent[100] | {"flux": [float("nan")] * len(sent[100]["mjd"])}
    results = client.classify(sent)
    assert isinstance(results, Results)
    assert [result.object_id for result in results] == [curve["object_id"] for curve in sent]
    assert [index for index, result in enumerate(results) if not result.classified] == [100]
    assert results[100].errors[0]["pointer"] == "/light_curves/100/flux/0"
    rejected = [result for result in client.stream(sent) if not result.classified]
    assert rejected[0].errors[0]["pointer"] == "/flux/0"


def test_client_result_of_a_packet_can_be_pickled(client: Client) -> None:
    (result,) = client.classify([next(SAMPLES.glob("ztf*.avro")).read_bytes()])
    again = pickle.loads(pickle.dumps(result))
    assert (again.to_dict(), len(again.light_curve)) == (result.to_dict(), len(result.light_curve or ()))


def test_client_can_be_pickled_with_its_settings(edge: Live) -> None:
    with Client(edge.url, api_key="k", timeout=7) as client, pickle.loads(pickle.dumps(client)) as copy:
        assert copy._settings == client._settings
        assert copy.classify(supernovae(1)[0]).classified


def test_client_deadline_that_is_no_number_is_a_sentence(client: Client) -> None:
    with pytest.raises(TypeError, match="deadline must be a number of seconds, not '5'"):
        client.classify(supernovae(1)[0], deadline="5")  # type: ignore[arg-type]  # what is tested


def failing(curves: list[Any]) -> Iterator[Any]:
    yield from curves
    raise OSError("disk")


def test_client_stream_yields_what_came_before_an_error_of_the_iterator(client: Client) -> None:
    results: list[Any] = []
    with pytest.raises(OSError, match="disk"):
        results.extend(client.stream(failing(supernovae(100))))
    assert len(results) == 100


async def test_async_client_stream_yields_what_came_before_an_error_of_the_iterator(edge: Live) -> None:
    async with AsyncClient(edge.url) as client:
        stream = client.stream(failing(supernovae(100)))
        assert len([await anext(stream) for _ in range(100)]) == 100
        with pytest.raises(OSError, match="disk"):
            await anext(stream)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: run on Linux or macOS")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_client_stream_continued_after_a_fork_raises(client: Client) -> None:
    stream = client.stream(supernovae(2000))
    next(stream)
    assert_raises_in_child(stream)
    assert sum(1 for _ in stream) == 1999


def test_client_results_of_a_folder_have_notes_and_names(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(supernovae(2)))
    (tmp_path / "b.tar.gz").write_bytes(b"\x1f\x8b nonsense")
    results = client.classify(tmp_path)
    assert [result.input for result in results] == ["a.json[0]", "a.json[1]"]
    assert results.notes[0].startswith("not read: b.tar.gz: ")


def test_client_empty_packet_is_rejected_alone(client: Client) -> None:
    empty, other = client.classify([b"", next(SAMPLES.glob("ztf*.avro")).read_bytes()])
    assert (empty.status, empty.reason, other.status) == ("rejected", "empty", "classified")


def test_client_packets_have_their_light_curves(client: Client) -> None:
    packets = [path.read_bytes() for path in sorted(SAMPLES.glob("*.avro"))]
    results = client.classify([*packets, b"nothing"])
    assert len(results) == 13
    assert results[-1].status == "rejected"
    assert results[-1].light_curve is None
    for result in results[:-1]:
        assert result.light_curve is not None
        assert result.light_curve.object_id == result.object_id


def test_client_stream_holds_few_inputs(client: Client) -> None:
    read = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal read
        while True:
            read += 1
            yield CURVE | {"object_id": str(read)}

    stream = client.stream(endless())
    names = [next(stream).object_id for _ in range(200)]
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert names == [str(number + 1) for number in range(200)]
    assert read <= 200 + 9 * BATCH_ITEMS


async def test_async_client_gives_what_the_client_gives(edge: Live, client: Client) -> None:
    sent = [*supernovae(150), next(SAMPLES.glob("*.avro")).read_bytes()]
    expected = await asyncio.to_thread(client.classify, sent)

    async def produce() -> AsyncIterator[Any]:
        for each in sent:
            yield each

    async with AsyncClient(edge.url) as asynchronous:
        assert list(await asynchronous.classify(sent)) == list(expected)
        assert [result async for result in asynchronous.stream(produce())] == list(expected)
        assert [result async for result in asynchronous.stream(iter(sent))] == list(expected)
        one = await asynchronous.classify(sent[0])
        assert one == expected[0]
        with pytest.raises(LightCurveError):
            await asynchronous.classify(CURVE | {"band": ["q"] * len(CURVE["mjd"])})


async def test_async_client_cancelled_leaves_no_task(edge: Live) -> None:
    async with AsyncClient(edge.url) as client:
        stream = client.stream(supernovae(1000))
        assert (await anext(stream)).classified
        await stream.aclose()  # type: ignore[attr-defined]  # a generator
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture(scope="module")
def local() -> Iterator[Classifier]:
    """The models of that service in this process."""
    with Classifier(native="off") as made:
        yield made


def odd_curves() -> list[Any]:
    """Light curves with everything that a result names: warnings, filters, upper limits, duplicates and errors."""
    curves = supernovae(12, seed=4)
    points = len(curves[0]["mjd"])
    curves[0] |= {"filters": {"F606W": {"wavelength_nm": 590.0}}, "band": ["F606W", *curves[0]["band"][1:]]}
    curves[1] |= {"flux": np.array(curves[1]["flux"]) * 1e-4, "flux_err": np.array(curves[1]["flux_err"]) * 1e-4}
    curves[2] |= {name: [*curves[2][name], curves[2][name][0]] for name in ("mjd", "band", "flux", "flux_err")}
    curves[3] |= {"upper_limit": [True] + [False] * (len(curves[3]["mjd"]) - 1)}
    curves[4] |= {"flux_err": [0.0, -1.0] + [1.0] * (len(curves[4]["mjd"]) - 2)}
    curves[5] |= {"survey": "ztf", "flux_unit": "uJy", "flux_kind": "total", "metadata": {"zspec": 0.1}}
    curves[6] |= {"band": ["V"] * len(curves[6]["mjd"])}
    curves[7] |= {"object_id": 2**60 + 1}
    curves[8] = {"object_id": "no band", "mjd": [60_000.0], "flux": [1.0], "flux_err": [1.0]}
    record = LightCurve.from_columns(*(curves[9][name] for name in ("mjd", "flux", "flux_err", "band")))
    return [*curves, record, {"mjd": [1e9] * points}]


def odd_packets() -> list[Any]:
    packets = [path.read_bytes() for path in sorted(SAMPLES.glob("*.avro"))]
    return [*packets, b"nothing", container("ztf/4.02", [ztf_alert(), ztf_alert()]), *read_packet(packets[0])]


def odd_table() -> Any:
    curves = supernovae(6, seed=9)
    curves[1] |= {"band": ["mystery", *curves[1]["band"][1:]]}
    curves[2] |= {"flux_err": [0.0, *curves[2]["flux_err"][1:]]}
    curves[3] |= {"band": ["mystery"] * len(curves[3]["band"])}
    return pytest.importorskip("pandas", reason=NO_TABLES).DataFrame(rows(curves))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (odd_curves, {}),
        (odd_curves, {"embedding": True, "experts": True, "coverage": 0.5, "prior": "uniform"}),
        (odd_packets, {}),
        (odd_packets, {"embedding": True, "experts": True, "coverage": 0.5, "prior": {"Ia": 1, "AGN": 2}}),
        (odd_table, {}),
        (odd_table, {"flux_unit": "nJy", "flux_kind": "total", "coverage": 0.5}),
    ],
)
def test_results_of_client_and_classifier_are_equal(
    default_edge: Live, local: Classifier, make: Callable[[], Any], options: Any
) -> None:
    with Client(default_edge.url) as client:
        remote = client.classify(make(), **options)
    results = local.classify(make(), **options)
    for here, there in zip(results, remote, strict=True):
        assert close(there.to_dict(), here.to_dict()), (there.to_dict(), here.to_dict())
        assert (here.model, repr(here)) == (there.model, repr(there))
        assert here.to_svg() == there.to_svg()
    assert results.notes == remote.notes


def test_client_and_classifier_are_exchangeable_for_one_light_curve(default_edge: Live, local: Classifier) -> None:
    body = odd_curves()[2]
    with Client(default_edge.url) as client:
        packet: Any = next(iter(read_packet(odd_packets()[0])))
        for data in (body, packet):
            assert close(client.classify(data).to_dict(), local.classify(data).to_dict())
        errors = []
        for engine in (client, local):
            with pytest.raises(LightCurveError) as caught:
                engine.classify(odd_curves()[8] | {"flux": ["x"]})
            errors.append((caught.value.pointer, caught.value.reason, str(caught.value), caught.value.__notes__))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "data", [supernovae(3)[2], sorted(SAMPLES.glob("*.avro"))[0].read_bytes()], ids=["light curve", "packet"]
)
def test_evolution_of_a_client_is_that_of_the_classifier(data: Any, default_edge: Live, local: Classifier) -> None:
    here = local.evolution(data, prior="uniform")
    with Client(default_edge.url) as client:
        there = client.evolution(data, prior="uniform")

        async def ask() -> Evolution:
            async with AsyncClient(client.url) as client_of_loop:
                return await client_of_loop.evolution(data, prior="uniform")

        for evolution in (there, asyncio.run(ask())):
            assert close(evolution.to_dict(), here.to_dict())
            assert (evolution.model, repr(evolution)) == (here.model, repr(here))
            assert evolution.light_curve is not None
            assert here.light_curve is not None
            assert evolution.light_curve.mjd.tolist() == here.light_curve.mjd.tolist()
