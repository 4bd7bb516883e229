"""Admission, deadlines, cancellation, shutdown and records of calls over gRPC, on a real service."""

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.edge import HOST, Network, curve, live, loader, settings, started, wait_until
from support.oip import history

pytest.importorskip("grpc_health", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
pytest.importorskip("opentelemetry.proto", reason="opentelemetry is missing: pip install '.[otel]'")
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from nightjar_alerts.service.grpc import SERVICE, GrpcError
from nightjar_alerts.service.grpc.calls import Receiving
from nightjar_alerts.service.grpc.messages import ServerReadyRequest
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.server import Server
from support.collector import attributes, collector
from support.rpc import Client, client, grpc_port, infer_request, refused

KEY, OTHER = "correct horse", "battery staple"
DIGESTS = {name: [hashlib.sha256(key.encode()).hexdigest()] for name, key in (("fink", KEY), ("lasair", OTHER))}
INFER = f"/{SERVICE}/ModelInfer"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Paths of a certificate of this host, and of its key."""
    certificate, key = folder / "chain.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", f"subjectAltName=IP:{HOST}"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return certificate, key


def keyed(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_call_without_a_known_key_is_unauthenticated() -> None:
    with live(loader(Network()), grpc_port=0, named_keys=DIGESTS) as edge, client(edge) as rpc:
        for key in ({}, {"x-api-key": "x"}):
            with refused("UNAUTHENTICATED"):
                rpc.start("ModelInfer", infer_request(history(3.0)), key).result()
        assert rpc.call("ServerReady").ready
        for key in (keyed(KEY), {"x-api-key": OTHER}):
            rpc.start("ModelInfer", infer_request(history(3.0)), key).result()
        assert edge.metric("nightjar_key_requests_total", key="fink") == 1


def test_quota_is_shared_with_http() -> None:
    limits = {"*": {"curves_per_day": 3}}
    with live(loader(Network()), grpc_port=0, key_limits=limits) as edge, client(edge) as rpc:
        rpc.infer(history(1.0, 2.0, 3.0))
        assert edge.classify(curve())[0] == 429
        with refused("RESOURCE_EXHAUSTED") as refusal:
            rpc.infer(history(1.0))
    assert refusal.metadata["problem"] == "/problems/rate-limited"
    assert refusal.metadata["grpc-retry-pushback-ms"] == refusal.metadata["retry-after"] + "000"


def test_places_are_shared_fairly_between_clients_of_both_protocols() -> None:
    network = Network()
    with live(loader(network), grpc_port=0, max_requests=2, named_keys=DIGESTS) as edge, client(edge) as rpc:
        network.hold()
        first = [rpc.start("ModelInfer", infer_request(history(3.0)), keyed(KEY)) for _ in range(2)]
        wait_until(lambda: edge.service.metrics.in_progress == 2)
        status, _, _ = edge.ask("POST", "/v1/classify", json.dumps(curve()).encode(), keyed(KEY))
        with refused("RESOURCE_EXHAUSTED") as refusal:
            rpc.start("ModelInfer", infer_request(history(3.0)), keyed(KEY)).result()
        other = rpc.start("ModelInfer", infer_request(history(5.0)), keyed(OTHER))
        wait_until(lambda: edge.service.metrics.in_progress == 3)
        network.release()
        assert [future.result().model_name for future in (*first, other)] == ["echo"] * 3
    assert (status, refusal.metadata["retry-after"]) == (429, "1")


def test_memory_budget_is_charged_for_messages() -> None:
    with live(loader(Network()), grpc_port=0, max_held_bytes=500) as edge, client(edge) as rpc:
        with refused("RESOURCE_EXHAUSTED") as refusal:
            rpc.infer(history(*[3.0] * 50))
        assert edge.service.budget.held == 0
    assert refusal.metadata["problem"] == "/problems/overloaded"


def test_deadline_of_the_client_withdraws_its_light_curves() -> None:
    network = Network()
    with live(loader(network), grpc_port=0, workers=1) as edge, client(edge) as rpc:
        network.hold()
        running = rpc.start("ModelInfer", infer_request(history(3.0)))
        assert network.started.acquire(timeout=20)
        mate = rpc.start("ModelInfer", infer_request(history(5.0)))
        late = rpc.start("ModelInfer", infer_request(history(7.0)), timeout=2)
        wait_until(lambda: edge.service.metrics.in_progress == 3)
        with refused("DEADLINE_EXCEEDED"):
            late.result()
        wait_until(lambda: edge.service.metrics.in_progress == 2)
        network.release()
        assert [running.result().model_name, mate.result().model_name] == ["echo", "echo"]
        assert 7.0 not in network.seen


def test_deadline_in_the_request_counts_as_over_http() -> None:
    network = Network()
    with live(loader(network), grpc_port=0) as edge, client(edge) as rpc:
        network.hold()
        with refused("DEADLINE_EXCEEDED") as refusal:
            rpc.infer(history(3.0), parameters={"timeout": {"int64_param": 100_000}})
        network.release()
    assert refusal.metadata["problem"] == "/problems/deadline"


def test_cancelled_call_frees_its_place_and_harms_no_mate() -> None:
    network = Network()
    with live(loader(network), grpc_port=0, workers=1, max_requests=3) as edge, client(edge) as rpc:
        network.hold()
        running, mate, leaving = (rpc.start("ModelInfer", infer_request(history(flux))) for flux in (3.0, 5.0, 7.0))
        wait_until(lambda: edge.service.metrics.in_progress == 3)
        leaving.cancel()
        wait_until(lambda: edge.service.metrics.in_progress == 2)
        newcomer = rpc.start("ModelInfer", infer_request(history(9.0)))
        wait_until(lambda: edge.service.metrics.in_progress == 3)
        network.release()
        assert [call.result().model_name for call in (running, mate, newcomer)] == ["echo"] * 3
        assert edge.metric("nightjar_requests_total", route=INFER, code="499") == 1


def test_calls_that_are_cancelled_at_any_time_are_no_errors() -> None:
    with live(loader(Network()), grpc_port=0) as edge, client(edge) as rpc:
        request = infer_request(history(*[3.0] * 50))
        for place in range(300):
            call = rpc.start("ModelInfer", request)
            time.sleep(place * 3e-5)
            call.cancel()
        wait_until(lambda: edge.service.metrics.in_progress == 0)
        assert edge.service.budget.held == 0
        assert edge.metric("nightjar_rejected_total", reason="internal") == 0
        edge.still_well()


def test_shutdown_finishes_running_calls_and_refuses_new_ones() -> None:
    network = Network()
    with live(loader(network), grpc_port=0) as edge, client(edge) as rpc:
        network.hold()
        running = rpc.start("ModelInfer", infer_request(history(3.0)))
        assert network.started.acquire(timeout=20)
        edge.server.should_exit = True
        wait_until(lambda: edge.service.ending is not None)
        with client(edge) as late, refused("UNAVAILABLE"):
            late.call("ServerReady")
        network.release()
        assert running.result().model_name == "echo"


def test_shutdown_does_not_wait_for_a_client_that_answers_no_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.service.grpc.server.QUIET_SECONDS", 0.2)
    with (
        live(loader(Network()), grpc_port=0, drain_timeout=60) as edge,
        socket.create_connection((HOST, grpc_port(edge))) as silent,
    ):
        silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")  # preface, empty settings
        assert silent.recv(9)
        edge.server.should_exit = True
        wait_until(lambda: edge.service.ending is not None and edge.service.ending.done(), 10)  # gRPC waits for 20 s


def test_draining_service_is_not_ready_and_still_answers() -> None:
    with live(loader(Network()), grpc_port=0) as edge, client(edge) as rpc:
        health = health_pb2_grpc.HealthStub(rpc.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        edge.service.begin_drain()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not rpc.call("ServerReady").ready
        assert not rpc.call("ModelReady", name="echo").ready
        assert rpc.infer(history(3.0)).model_name == "echo"


def test_starting_service_is_unavailable() -> None:
    loading = threading.Event()

    def load(*arguments: Any) -> Any:
        assert loading.wait(60)
        return loader(Network())(*arguments)

    with started(load, grpc_port=0) as edge:
        with client(edge) as rpc:
            assert not rpc.call("ServerReady").ready
            with refused("UNAVAILABLE") as refusal:
                rpc.infer(history(3.0))
        loading.set()
    assert refusal.metadata["retry-after"] == "5"


def test_message_that_does_not_arrive_ends_the_call() -> None:
    with live(loader(Network()), grpc_port=0, body_timeout=0.2) as edge, client(edge) as rpc:
        release = threading.Event()

        def requests() -> Any:
            release.wait(60)
            yield b""

        call = rpc.channel.stream_unary(INFER)
        with refused("DEADLINE_EXCEEDED") as refusal:
            call(requests())
        release.set()
    assert refusal.metadata["problem"] == "/problems/request-timeout"


async def test_receiving_client_waits_for_its_places_and_others_do_not() -> None:
    receiving, order = Receiving(2), list[str]()

    async def receive(client: str) -> None:
        async with receiving.place(client):
            order.append(client)

    async with receiving.place("a"), receiving.place("a"):
        waiting = asyncio.create_task(receive("a"))
        await receive("b")
        assert not waiting.done()
    await waiting
    assert order == ["b", "a"]


def test_compressed_message_beyond_the_limit_is_refused() -> None:
    with live(loader(Network()), grpc_port=0) as edge:
        options = [("grpc.max_send_message_length", -1)]
        address = f"{HOST}:{grpc_port(edge)}"
        channel = grpc.insecure_channel(address, options, grpc.Compression.Gzip)
        with channel, refused("RESOURCE_EXHAUSTED"):
            channel.unary_unary(INFER)(bytes(100_000_000))
        edge.still_well()


def test_metadata_beyond_the_limit_is_refused() -> None:
    with live(loader(Network()), grpc_port=0) as edge, client(edge) as rpc, refused("RESOURCE_EXHAUSTED"):
        rpc.start("ServerReady", ServerReadyRequest(), {"x-large": "x" * 40_000}).result()


def test_connections_beyond_the_limit_are_refused() -> None:
    with live(loader(Network()), grpc_port=0, max_connections=2) as edge, ExitStack() as stack:
        first, second, third = (stack.enter_context(client(edge)) for _ in range(3))
        assert first.call("ServerReady").ready
        assert second.call("ServerReady").ready
        with refused("UNAVAILABLE"):
            third.call("ServerReady")


def test_records_of_a_call_are_those_of_a_request() -> None:
    with capture_logs() as lines, live(loader(Network()), grpc_port=0) as edge, client(edge) as rpc:
        future = rpc.start("ModelInfer", infer_request(history(3.0)), {"x-request-id": "mine"})
        metadata = dict(future.trailing_metadata())
        with refused("NOT_FOUND"):
            rpc.infer(history(3.0), model="nothing")
        assert edge.metric("nightjar_requests_total", route=INFER, code="200") == 1
        assert edge.metric("nightjar_rejected_total", reason="not-found") == 1
    assert metadata["x-request-id"] == "mine"
    assert "run;dur=" in metadata["server-timing"]
    (logged,) = [line for line in lines if line.get("route") == INFER and line["status"] == 404]
    assert (logged["method"], logged["client"], logged["reason"]) == ("gRPC", HOST, "not-found")


def test_span_of_a_call_has_its_method_and_stages() -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with collector() as target:
        with live(loader(Network()), grpc_port=0, otlp_endpoint=target.endpoint) as edge, client(edge) as rpc:
            request = infer_request(history(3.0))
            rpc.start("ModelInfer", request, {"traceparent": f"00-{trace}-{parent}-01"}).result()
        spans = target.of(trace)
    (call,) = spans[INFER.strip("/")]
    assert call.parent_span_id.hex() == parent
    assert attributes(call)["rpc.method"] == "ModelInfer"
    assert attributes(call)["rpc.grpc.status_code"] == 0
    assert {"receive", "decode", "run", "encode"} <= spans.keys()


def test_client_address_comes_from_a_trusted_proxy() -> None:
    for trusted, expected in ((HOST, "192.0.2.7"), ("192.0.2.1", HOST)):
        with capture_logs() as lines, ExitStack() as stack:
            edge = stack.enter_context(live(loader(Network()), grpc_port=0, forwarded_allow_ips=trusted))
            rpc = stack.enter_context(client(edge, {"x-forwarded-for": "192.0.2.7"}))
            with refused("NOT_FOUND"):
                rpc.infer(history(3.0), model="nothing")
        assert [line["client"] for line in lines if line.get("route") == INFER] == [expected]


def test_tls_serves_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with live(loader(Network()), grpc_port=0, grpc_certificate=certificate, grpc_certificate_key=key) as edge:
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with Client(grpc_port(edge), credentials=credentials).opened() as rpc:
            assert rpc.call("ServerReady").ready
        with client(edge) as plain, refused("UNAVAILABLE"):
            plain.call("ServerReady")


def test_certificate_that_cannot_be_used_ends_the_service_and_is_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    key.write_text("not a key")
    with capture_logs() as lines:
        server = Server(
            Service(settings(grpc_port=0, grpc_certificate=certificate, grpc_certificate_key=key), loader(Network()))
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        thread.join(60)
    assert server.exit_status == 1
    assert [str(key) in line["reason"] for line in lines if line["event"] == "cannot listen for gRPC"] == [True]


def test_settings_certificate_without_its_key_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grpc_certificate_key"):
        settings(grpc_certificate=tmp_path)


def test_port_that_is_taken_ends_the_service() -> None:
    with socket.create_server((HOST, 0)) as taken:
        server = Server(Service(settings(grpc_port=taken.getsockname()[1]), loader(Network())))
        thread = threading.Thread(target=server.run)
        thread.start()
        thread.join(60)
    assert server.exit_status == 1


def test_server_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nightjar_alerts.service.grpc.server", None)
    with pytest.raises(GrpcError, match=r"\[grpc\]"):
        Server(Service(settings(grpc_port=0), loader(Network())))
