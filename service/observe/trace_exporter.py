"""Spans to an OpenTelemetry collector, by OTLP over HTTP. Importing this module needs the ``otel`` extra.

Spans are made when a request has ended, of what was collected on the way, and handed to the SDK's batch processor: a
thread of its own sends them, a full queue drops them, and a collector that does not answer costs no request anything.
No global provider is set. Headers for the collector, the name of the service, attributes of the resource and the size
of batches come from the usual ``OTEL_`` variables.
"""

import threading
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from nightjar_alerts.service.observe.tracing import SAMPLED, Finished, SpanRef

NAME = "nightjar"
_KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}


class _AssignedIds(IdGenerator, threading.local):
    """Ids that were given out long before their span is made: in the reply, in the log, in links."""

    next = SpanRef("0", "0")

    def generate_trace_id(self) -> int:
        return int(self.next.trace_id, 16)

    def generate_span_id(self) -> int:
        return int(self.next.span_id, 16)

    def is_trace_id_random(self) -> bool:
        return True


class Exporter:
    """Sends finished spans. Safe to use from any thread.

    Parameters
    ----------
    endpoint : the collector's address for traces, in full.
    version : of the service.
    """

    def __init__(self, endpoint: str, version: str) -> None:
        named = Resource({"service.name": NAME, "service.version": version})
        self._ids = _AssignedIds()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # who gets here has been sampled
            resource=named.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer(NAME, version)

    def export(self, spans: Iterable[Finished]) -> None:
        """Queue spans for sending; never waits."""
        for span in spans:
            self._ids.next = span.ref
            otlp_span = self._tracer.start_span(
                span.name,
                _parent(span),
                _KINDS[span.kind],
                span.attributes,
                [Link(_context(ref, SAMPLED)) for ref in span.links],
                span.start_ns,
            )
            if span.failed:
                otlp_span.set_status(StatusCode.ERROR)
            otlp_span.end(span.end_ns)

    def close(self) -> None:
        """Send what is queued, or give up on it; may take seconds, so not for the event loop."""
        self._provider.shutdown()


def _parent(span: Finished) -> Context:
    if span.parent is None:
        return Context()
    remote = span.kind == "server"
    return set_span_in_context(NonRecordingSpan(_context(span.parent, span.flags, span.state, remote)), Context())


def _context(ref: SpanRef, flags: int, state: str = "", remote: bool = False) -> SpanContext:
    trace_state = TraceState.from_header([state]) if state else TraceState()
    return SpanContext(int(ref.trace_id, 16), int(ref.span_id, 16), remote, TraceFlags(flags), trace_state)
