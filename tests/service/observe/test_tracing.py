"""End-to-end tracing: request and response headers, log lines, and spans at a real collector."""

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Any, NoReturn

import pytest
import structlog
from structlog.testing import capture_logs

from nightjar_alerts.service.observe.metrics import STAGES
from nightjar_alerts.service.observe.tracing import TracingError, tracing_to
from support.edge import Live, Network, curve, live, loader, wait_until

pytest.importorskip("opentelemetry.proto", reason="opentelemetry is missing: pip install '.[otel]'")
from support.collector import Collector, attributes, collector

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, INTERNAL = 2, 1  # span kinds of OTLP


def traced(edge: Live, trace: str = TRACE, flags: str = "01", **headers: str) -> dict[str, str]:
    """Return the response headers of a classification in a trace."""
    sent = {"traceparent": f"00-{trace}-{PARENT}-{flags}", "Content-Type": "application/json"} | headers
    status, answered, _ = edge.ask("POST", "/v1/classify", json.dumps(curve()).encode(), sent)
    assert status == 200
    return answered


def test_without_an_exporter_a_reply_names_the_trace_all_the_same(edge: Live) -> None:
    version, trace, span, flags = traced(edge)["traceresponse"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "00")  # nothing is recorded here, and the reply says so
    assert span != PARENT
    _, headers, _ = edge.ask("GET", "/nowhere")
    assert headers["traceresponse"].split("-")[1] not in (TRACE, "0" * 32)
    assert headers["traceresponse"].split("-")[3] == "02"


def test_log_lines_have_request_and_trace_ids() -> None:
    """Log lines of the decoding thread have them as well."""

    lines: list[dict[str, Any]] = []

    def hear(_: object, __: str, event: MutableMapping[str, Any]) -> NoReturn:
        lines.append(dict(event))
        raise structlog.DropEvent

    class Standard(logging.Handler):
        """Handler of standard library logging, which the inference modules use."""

        def emit(self, record: logging.LogRecord) -> None:
            lines.append({"event": record.getMessage(), **structlog.contextvars.get_contextvars()})

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, hear])
    handler = Standard()
    logging.getLogger("nightjar_alerts").addHandler(handler)
    network = Network()
    network.on_marker[7.0] = lambda: 1 / 0
    try:
        with live(loader(network)) as edge:
            said = {"X-Request-ID": "my-id", "traceparent": f"00-{TRACE}-{PARENT}-01"}
            edge.ask("POST", "/v1/classify", json.dumps(curve(flux=[7.0] * 8)).encode(), said)

            async def in_a_thread() -> None:
                with structlog.contextvars.bound_contextvars(request_id="mine"):
                    await edge.service.run_in_thread(lambda: structlog.get_logger().info("from a thread"))

            loop = edge.server.servers[0].get_loop()
            asyncio.run_coroutine_threadsafe(in_a_thread(), loop).result(10)
    finally:
        logging.getLogger("nightjar_alerts").removeHandler(handler)
        structlog.configure(processors=before)
    of_request = [line for line in lines if line.get("request_id") == "my-id"]
    assert {line["event"] for line in of_request} == {"inference failed", "unexpected exception", "request"}
    assert {line["trace_id"] for line in of_request} == {TRACE}
    assert [line["request_id"] for line in lines if line["event"] == "from a thread"] == ["mine"]


def collected(
    body: object = None, network: Network | None = None, **settings: object
) -> tuple[Collector, dict[str, str]]:
    """Return the spans of one traced request at a collector, and the response headers."""
    with collector() as target:
        with live(loader(Network()), otlp_endpoint=target.endpoint) as edge:
            headers = traced(edge, tracestate="vendor=opaque")
        return target, headers


def test_request_spans_have_the_stages() -> None:
    target, headers = collected()
    trace = target.of(TRACE)
    (request,) = trace["POST /v1/classify"]
    assert (request.kind, request.parent_span_id.hex(), request.trace_state) == (SERVER, PARENT, "vendor=opaque")
    assert headers["traceresponse"] == f"00-{TRACE}-{request.span_id.hex()}-01"
    assert attributes(request) | {"nightjar.request_id": ""} == {
        "http.request.method": "POST",
        "http.route": "/v1/classify",
        "http.response.status_code": 200,
        "url.path": "/v1/classify",
        "url.scheme": "http",
        "nightjar.request_id": "",
    }
    assert attributes(request)["nightjar.request_id"] == headers["x-request-id"]
    stages = [span for name, spans in trace.items() for span in spans if span is not request]
    assert sorted(span.name for span in stages) == sorted(STAGES)
    for span in stages:
        assert (span.kind, span.parent_span_id) == (INTERNAL, request.span_id)
        assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= request.end_time_unix_nano
    assert abs(request.end_time_unix_nano - time.time_ns()) < 60e9
    resource = {pair.key: pair.value.string_value for pair in target.requests[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["service.version"] != "") == ("nightjar", True)


def test_batch_and_request_spans_are_linked() -> None:
    """Two requests that are queued behind a third share a run."""
    network = Network()
    traces = [f"{number:032x}" for number in (1, 2, 3)]
    with collector() as target:
        with live(loader(network), otlp_endpoint=target.endpoint, workers=1) as edge:
            network.hold()
            clients = [threading.Thread(target=traced, args=(edge, traces[0]))]
            clients[0].start()
            assert network.started.acquire(timeout=10)
            clients += [threading.Thread(target=traced, args=(edge, trace)) for trace in traces[1:]]
            for client in clients[1:]:
                client.start()
            (engine,) = edge.service.models.engines
            wait_until(lambda: engine.depth == 2)
            network.release()
            for client in clients:
                client.join(10)
        batches = {span.span_id: span for span in target.spans if span.name == "batch"}
        runs = {trace: target.of(trace)["run"][0] for trace in traces}
        requests = {trace: target.of(trace)["POST /v1/classify"][0] for trace in traces}
    assert len(batches) == 2
    shared = batches[runs[traces[1]].links[0].span_id]
    assert runs[traces[2]].links[0].span_id == shared.span_id != runs[traces[0]].links[0].span_id
    assert {(link.trace_id.hex(), link.span_id) for link in shared.links} == {
        (trace, requests[trace].span_id) for trace in traces[1:]
    }
    told = attributes(shared)
    assert (told["nightjar.batch.size"], told["nightjar.batch.observations"]) == (2, 16)
    assert (shared.trace_id.hex() in traces, shared.parent_span_id) == (False, b"")
    waited = target.of(traces[1])["queue"][0]
    assert waited.end_time_unix_nano - waited.start_time_unix_nano > 0


def test_requests_that_are_not_sampled_are_not_sent() -> None:
    with collector() as target:
        with live(loader(Network()), otlp_endpoint=target.endpoint, trace_ratio=0.0) as edge:
            assert traced(edge, flags="00")["traceresponse"].endswith("-00")
            edge.still_well()  # without a trace of its own
            for probe in ("/healthz", "/readyz", "/metrics"):
                edge.ask("GET", probe, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert target.spans == []


def test_request_span_of_an_error_is_marked() -> None:
    network = Network()
    network.on_marker[7.0] = lambda: 1 / 0
    with collector() as target:
        with live(loader(network), otlp_endpoint=target.endpoint) as edge:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            edge.ask("POST", "/v1/classify", json.dumps(curve(flux=[7.0] * 8)).encode(), headers)
            edge.ask("POST", "/v1/classify", b"{", headers)
        failed, refused = target.of(TRACE)["POST /v1/classify"]
    assert (attributes(failed)["http.response.status_code"], failed.status.code) == (500, 2)
    assert (attributes(refused)["http.response.status_code"], refused.status.code) == (400, 0)


def test_unreachable_collector_does_not_affect_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service stops once the last export has failed, which is tried for OTEL_EXPORTER_OTLP_TIMEOUT seconds."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with capture_logs(), live(loader(Network()), otlp_endpoint="http://127.0.0.1:9/v1/traces") as edge:
        for _ in range(20):
            traced(edge)


def test_headers_and_name_come_from_the_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-alerts")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
    target, _ = collected()
    resource = {pair.key: pair.value.string_value for pair in target.requests[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "my-alerts"
    assert {name.lower(): value for name, value in target.headers[0].items()}["authorization"] == "Bearer token"


def test_nothing_is_imported_when_nothing_is_sent() -> None:
    """The service imports no exporter; FastAPI itself imports the OpenTelemetry API."""
    program = """
import sys
from nightjar_alerts.service.http.server import create_app
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.settings import Settings
create_app(Service(Settings()))
behind = ("opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf")
print([name for name in sys.modules if name.startswith(behind)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_tracing_to_without_the_otel_extra_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nightjar_alerts.service.observe.trace_exporter", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingError, match=r"pip install '.\[otel\]'"):
        tracing_to("http://localhost:4318/v1/traces", 1.0)
