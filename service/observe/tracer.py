"""Tracing of requests: the one place that knows whether there is an exporter.

Spans are written by hand, so that nothing of OpenTelemetry is loaded, or runs on the hot path, without an exporter.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from time import monotonic, time_ns
from typing import NamedTuple, Protocol

from service.engine.batch import RunReport
from service.observe.spans import (
    SAMPLED,
    Attributes,
    Finished,
    Headers,
    Recording,
    Span,
    SpanRef,
    TraceContext,
    continued,
    new_span_id,
    recording,
)


class TracingError(RuntimeError):
    """Traces were asked for and cannot be sent from this installation."""


class Sink(Protocol):
    """Receiver of finished spans."""

    def export(self, spans: Iterator[Finished]) -> None:
        """Take spans, from any thread; never waits."""

    def close(self) -> None:
        """Send what is left."""


class Answered(NamedTuple):
    """A request when it has ended; times are ``time.monotonic()`` seconds."""

    method: str
    path: str
    route: str
    status: int
    request_id: str
    started: float
    ended: float


class Tracer:
    """Traces the requests of one service.

    Parameters
    ----------
    sink : None traces nothing.
    ratio : share of the requests traced whose caller has not decided.
    """

    def __init__(self, sink: Sink | None = None, ratio: float = 1.0) -> None:
        self._sink, self._ratio = sink, ratio

    def context(self, headers: Headers) -> TraceContext:
        """Return the trace that a request belongs to; not sampled where nothing would be recorded."""
        if self._sink is not None:
            return continued(headers, self._ratio)
        context = continued(headers)
        return context._replace(flags=context.flags & ~SAMPLED)

    def recording(self, context: TraceContext, wanted: bool) -> AbstractContextManager[Recording | None]:
        """Collect the spans of a request inside a ``with`` block, if it is sampled and they are wanted."""
        return recording(context) if wanted and context.sampled else nullcontext()

    def request(self, recorded: Recording | None, answered: Answered) -> None:
        """Tell of a request that has ended, if it was recorded."""
        if recorded is not None and self._sink is not None:
            self._sink.export(_request_spans(recorded, answered))

    def run(self, task: str, report: RunReport, predicted_seconds: float) -> None:
        """Tell of a batch, if it holds light curves of requests that are recorded."""
        if report.traced is not None and self._sink is not None:
            self._sink.export(_batch_span(task, report, predicted_seconds))

    def close(self) -> None:
        """Send what is left; may take seconds, so not for the event loop."""
        if self._sink is not None:
            self._sink.close()


def tracer_of(endpoint: str, ratio: float, version: str) -> Tracer:
    """Make the tracer that the settings ask for. Raises TracingError when the ``otel`` extra is missing."""
    if not endpoint:
        return Tracer()
    try:
        from service.observe.trace_exporter import (
            Exporter,  # not installed, nor worth 100 ms of start-up, where none is used
        )
    except ImportError as error:
        raise TracingError("sending traces needs the otel extra: pip install 'nightjar-alerts[otel]'") from error
    return Tracer(Exporter(endpoint, version), ratio)


def _epoch() -> float:
    """Nanoseconds since 1970 at which the monotonic clock read zero; taken anew each time, for clocks are set."""
    return time_ns() - monotonic() * 1e9


def _request_spans(recorded: Recording, answered: Answered) -> Iterator[Finished]:
    context, epoch = recorded.context, _epoch()
    yield Finished(
        name=f"{answered.method} {answered.route}",
        kind="server",
        ref=recorded.ref,
        parent=SpanRef(context.trace_id, context.parent_id) if context.parent_id else None,
        flags=context.flags,
        state=context.state,
        start_ns=round(epoch + answered.started * 1e9),
        end_ns=round(epoch + answered.ended * 1e9),
        attributes=_attributes(recorded, answered),
        links=(),
        failed=answered.status >= 500,
    )
    for span in recorded.spans:
        yield _stage_span(recorded, span, epoch)


def _attributes(recorded: Recording, answered: Answered) -> Attributes:
    """Names of the semantic conventions for HTTP, and our own."""
    told: dict[str, str | int | float | bool] = {
        "http.request.method": answered.method,
        "http.route": answered.route,
        "http.response.status_code": answered.status,
        "url.path": answered.path,
        "url.scheme": "http",
        "nightjar.request_id": answered.request_id,
    }
    return told | {"nightjar.dropped_spans": recorded.dropped} if recorded.dropped else told


def _stage_span(recorded: Recording, span: Span, epoch: float) -> Finished:
    return Finished(
        name=span.name,
        kind="internal",
        ref=SpanRef(recorded.context.trace_id, new_span_id()),
        parent=recorded.ref,
        flags=recorded.context.flags,
        state=recorded.context.state,
        start_ns=round(epoch + span.started * 1e9),
        end_ns=round(epoch + span.ended * 1e9),
        attributes=span.attributes,
        links=(span.link,) if span.link else (),
    )


def _batch_span(task: str, report: RunReport, predicted_seconds: float) -> Iterator[Finished]:
    traced, epoch = report.traced, _epoch()
    assert traced is not None
    assembling = traced.began - report.assemble_seconds
    yield Finished(
        name=f"batch {task}",
        kind="internal",
        ref=traced.ref,
        parent=None,
        flags=SAMPLED,
        state="",
        start_ns=round(epoch + assembling * 1e9),
        end_ns=round(epoch + (traced.began + report.run_seconds) * 1e9),
        attributes={
            "nightjar.task": task,
            "nightjar.batch.size": report.size,
            "nightjar.batch.padded_length": report.length,
            "nightjar.batch.observations": report.tokens,
            "nightjar.batch.assemble_seconds": report.assemble_seconds,
            "nightjar.batch.run_seconds": report.run_seconds,
            "nightjar.batch.predicted_seconds": predicted_seconds,
        },
        links=traced.members,
    )
