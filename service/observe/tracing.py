"""Tracing with OpenTelemetry: spans of requests, of their stages and of batches.

OpenTelemetry's propagator reads the W3C Trace Context. Every response has the header ``traceresponse`` (draft of Trace
Context Level 3), even if nothing is recorded. A batch contains light curves of several requests, so its span is the
root of a separate trace with a link to the span of each request; each request has a ``run`` span with a link to the
batch. Times are ``time.monotonic()`` seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import getrandbits
from time import monotonic, time_ns

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    get_current_span,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from nightjar_alerts.core.items import Prediction
from nightjar_alerts.models.common import how_to_install
from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.process import VERSION

RANDOM_TRACE_ID = 0x02  # flag of Trace Context Level 2: the trace id is random
_PROPAGATOR = TraceContextTextMapPropagator()

Headers = Iterable[tuple[bytes, bytes]]
"""Header names in lower case, and values, as in ASGI."""


class TracingError(RuntimeError):
    """The package for sending traces is not installed."""


class RequestTrace:
    """Trace context of one request, and its span."""

    __slots__ = ("_context", "span")

    def __init__(self, span: Span) -> None:
        self.span, self._context = span, span.get_span_context()

    @property
    def trace_id(self) -> str:
        """Trace id, 32 hex digits."""
        return f"{self._context.trace_id:032x}"

    @property
    def response(self) -> bytes:
        """Value of the ``traceresponse`` header."""
        return f"00-{self.trace_id}-{self._context.span_id:016x}-{self._context.trace_flags:02x}".encode()

    def active(self) -> AbstractContextManager[object]:
        """Return a context manager that makes the span the current one, if it is recorded."""
        return use_span(self.span) if self.span.is_recording() else nullcontext()

    def end(self, method: str, path: str, route: str, status: int, ended: float, request_id: str) -> None:
        """End the span of a request, with the attributes of OpenTelemetry's HTTP conventions."""
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "url.path": path,
            "url.scheme": "http",
            "nightjar.request_id": request_id,
        }
        self._end(f"{method} {route}", attributes, status, ended)

    def end_call(self, method: str, code: int, status: int, ended: float, request_id: str) -> None:
        """End the span of a gRPC call, with the attributes of OpenTelemetry's RPC conventions.

        Parameters
        ----------
        method : path of the method, as ``/package.Service/Method``.
        code, status : status code of gRPC, and the HTTP status of the same kind.
        """
        service, _, name = method.strip("/").partition("/")
        attributes: dict[str, AttributeValue] = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": name,
            "rpc.grpc.status_code": code,
            "nightjar.request_id": request_id,
        }
        self._end(method.strip("/"), attributes, status, ended)

    def _end(self, name: str, attributes: Mapping[str, AttributeValue], status: int, ended: float) -> None:
        if not self.span.is_recording():
            return
        self.span.update_name(name)
        self.span.set_attributes(attributes)
        if status >= 500:
            self.span.set_status(StatusCode.ERROR)
        self.span.end(_epoch_ns(ended))


class Tracing:
    """Tracing of one process. Safe to use from any thread.

    Parameters
    ----------
    tracer : creates the spans; None records nothing.
    close : sends the remaining spans.
    """

    def __init__(self, tracer: Tracer | None = None, close: Callable[[], None] = lambda: None) -> None:
        self._tracer, self._close = tracer, close

    def start_request(self, name: str, headers: Headers, started: float, record: bool = True) -> RequestTrace:
        """Start the span of a request, in the trace of its caller or in a new trace.

        Parameters
        ----------
        record : if False, the request is not recorded, whatever the caller's sampling decision.
        """
        carrier = {key.decode(): value.decode("latin-1") for key, value in headers if key in _TRACE_HEADERS}
        parent = _PROPAGATOR.extract(carrier, Context()) if carrier else Context()
        if self._tracer is not None and record:
            return RequestTrace(self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=_epoch_ns(started)))
        caller = get_current_span(parent).get_span_context()
        trace_id = caller.trace_id if caller.is_valid else getrandbits(128) or 1
        flags = TraceFlags((caller.trace_flags & RANDOM_TRACE_ID) if caller.is_valid else RANDOM_TRACE_ID)
        return RequestTrace(NonRecordingSpan(SpanContext(trace_id, getrandbits(64) or 1, False, flags)))

    def current_span(self) -> SpanContext | None:
        """Return the span of the current request; None if it is not recorded."""
        if self._tracer is None:
            return None
        span = get_current_span()
        return span.get_span_context() if span.is_recording() else None

    def record_stage(self, name: str, started: float, ended: float) -> None:
        """Add a span to the current request, if it is recorded."""
        if self._tracer is not None and get_current_span().is_recording():
            self._span(self._tracer, name, started, ended, {}, ())

    def record_batch(
        self, entries: Sequence[QueueEntry], started: float, began: float, ended: float
    ) -> SpanContext | None:
        """Add a span for a batch, with links to the requests in it, and return its context.

        Parameters
        ----------
        started, began, ended : start of assembling the batch, start and end of the run.
        """
        if self._tracer is None:
            return None
        spans = [entry.span for entry in entries if isinstance(entry.span, SpanContext)]
        members = {(span.trace_id, span.span_id): span for span in spans}
        attributes: dict[str, AttributeValue] = {
            "nightjar.batch.size": len(entries),
            "nightjar.batch.padded_length": max(entry.length for entry in entries),
            "nightjar.batch.observations": sum(entry.length for entry in entries),
            "nightjar.batch.assemble_seconds": began - started,
            "nightjar.batch.run_seconds": ended - began,
        }
        links = [Link(member) for member in members.values()]
        return self._span(self._tracer, "batch", started, ended, attributes, links, Context())

    def record_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Add spans ``queue``, ``assemble`` and ``run`` to the current request for each batch.

        ``queue`` lasts from the arrival of the first light curve to the start of assembling the batch.
        """
        if self._tracer is None or not get_current_span().is_recording():
            return
        batches: dict[int, list[Prediction]] = {}
        for prediction in predictions:
            if isinstance(prediction.run_span, SpanContext):
                batches.setdefault(prediction.run_span.span_id, []).append(prediction)
        for members in batches.values():
            first, count = members[0], {"nightjar.light_curves": len(members)}
            began, assembling = first.run_started, first.run_started - first.assemble_seconds
            queued = assembling - max(member.queue_seconds for member in members)
            size = count | {"nightjar.batch.size": first.batch_size}
            links = [Link(first.run_span)] if isinstance(first.run_span, SpanContext) else []
            self._span(self._tracer, "queue", queued, assembling, count, ())
            self._span(self._tracer, "assemble", assembling, began, count, ())
            self._span(self._tracer, "run", began, began + first.run_seconds, size, links)

    def close(self) -> None:
        """Send the remaining spans. May take seconds: do not call it on the event loop."""
        self._close()

    @staticmethod
    def _span(
        tracer: Tracer,
        name: str,
        started: float,
        ended: float,
        attributes: dict[str, AttributeValue] | dict[str, int],
        links: Sequence[Link],
        context: Context | None = None,
    ) -> SpanContext:
        span = tracer.start_span(name, context, attributes=dict(attributes), links=links, start_time=_epoch_ns(started))
        span.end(_epoch_ns(ended))
        return span.get_span_context()


_TRACE_HEADERS = (b"traceparent", b"tracestate")


def _epoch_ns(timestamp: float) -> int:
    """Convert ``time.monotonic()`` seconds to nanoseconds since 1970; compares the clocks at each call."""
    return time_ns() - round((monotonic() - timestamp) * 1e9)


def tracing_to(endpoint: str, ratio: float) -> Tracing:
    """Return tracing to an OTLP endpoint; an empty one disables it. Raises TracingError without the ``otel`` extra."""
    if not endpoint:
        return Tracing()
    try:  # optional, and importing it takes 100 ms
        from nightjar_alerts.service.observe.trace_exporter import NAME, exporting_provider
    except ImportError as error:
        raise TracingError(f"sending traces needs the otel extra: {how_to_install('otel')}") from error
    provider = exporting_provider(endpoint, ratio, VERSION)
    return Tracing(provider.get_tracer(NAME, VERSION), provider.shutdown)
