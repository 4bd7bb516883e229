"""An OpenTelemetry collector for tests: a real HTTP endpoint that parses what it is sent."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """All spans and resources that were sent to ``endpoint``."""

    endpoint: str
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        """Every span, in the order of arrival."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def of(self, trace_id: str) -> dict[str, list[Span]]:
        """Spans of a trace by name."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            if span.trace_id.hex() == trace_id:
                found.setdefault(span.name, []).append(span)
        return found


def attributes(span: Span) -> dict[str, object]:
    """Attributes of a span as plain values."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that listens on a port of its own inside a ``with`` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            data = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            collected.requests.append(ExportTraceServiceRequest.FromString(data))
            collected.headers.append(dict(self.headers))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
