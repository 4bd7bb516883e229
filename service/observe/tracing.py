"""Tracing: the trace that a request belongs to, what a sampled request spent its time on, and who is told of it.

W3C Trace Context: ``traceparent`` and ``tracestate`` are read as Level 2 of the specification has them. What is not
valid to the letter (upper case, an id of zeros, two ``traceparent`` headers) starts a new trace, as the specification
demands; a bad ``tracestate`` is dropped alone. Level 2 defines no header for the reply: the one it had,
``traceresponse``, moved to the draft of Level 3, and that is what :attr:`TraceContext.response` holds.

A stage is timed by whoever goes through it; what it was is added to the :class:`Recording` of the request whose task is
running, if there is one (:data:`RECORDING`). Without an exporter there never is: what remains is the look at that
variable. Times are ``time.monotonic()`` seconds until they are exported. A batch serves light curves of several
requests, so its span belongs to none of them: it has a trace of its own with a link to every request, and each request
has a ``run`` span with a link to it.

Spans are written by hand, so that nothing of OpenTelemetry is loaded, or runs on the hot path, without an exporter;
:class:`Tracer` is the one place that knows whether there is one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from time import monotonic, time_ns
from typing import Literal, NamedTuple, Protocol

SAMPLED, RANDOM = 0x01, 0x02
_KNOWN_FLAGS = SAMPLED | RANDOM  # others are reserved: they are not passed on

# Version 00 ends after the flags; a later one may append fields, but not ff, which is forbidden.
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16

_MOST_MEMBERS = 32
_MEMBER = re.compile(
    rb"([a-z0-9][a-z0-9_\-*/@]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)

Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values, as ASGI has them."""

_random = Random()  # seeded by the system; ids have to be different, not secret


class TraceContext(NamedTuple):
    """Position of a request in a trace.

    Attributes
    ----------
    trace_id, span_id : lower-case hex, 32 and 16 digits; the span is the request as this service sees it.
    parent_id : the caller's span, empty when the trace begins here.
    flags : :data:`SAMPLED` and :data:`RANDOM`.
    state : the caller's ``tracestate``, empty when there is none worth keeping.
    """

    trace_id: str
    span_id: str
    parent_id: str
    flags: int
    state: str

    @property
    def sampled(self) -> bool:
        """True when the request's spans are recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def response(self) -> bytes:
        """Value of ``traceresponse``: version, trace, this service's span and flags."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}".encode()


def continued(headers: Headers, ratio: float = 0.0) -> TraceContext:
    """Read the context of a request: its caller's trace where one is named, else a new one.

    Parameters
    ----------
    ratio : share of new traces that are sampled; for a caller's trace the caller has decided.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    parsed = _parsed(parents[0]) if len(parents) == 1 else None
    if parsed is None:
        sampled = SAMPLED if ratio > 0 and _random.random() < ratio else 0
        return TraceContext(new_trace_id(), new_span_id(), "", RANDOM | sampled, "")
    trace_id, parent_id, flags = parsed
    return TraceContext(trace_id, new_span_id(), parent_id, flags, _checked(states) if states else "")


def new_trace_id() -> str:
    """Thirty-two hex digits, not all of them zero."""
    return f"{_nonzero(128):032x}"


def new_span_id() -> str:
    """Sixteen hex digits, not all of them zero."""
    return f"{_nonzero(64):016x}"


def _nonzero(bits: int) -> int:
    return _random.getrandbits(bits) or 1


def _parsed(value: bytes) -> tuple[str, str, int] | None:
    match = _PARENT.fullmatch(value)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if trace_id == _NO_TRACE or parent_id == _NO_SPAN or (version == b"00" and more is not None):
        return None
    # Of a later version nothing is certain but the sampled bit.
    flag_mask = _KNOWN_FLAGS if version == b"00" else SAMPLED
    return str(trace_id, "ascii"), str(parent_id, "ascii"), int(flags, 16) & flag_mask


def _checked(values: Iterable[bytes]) -> str:
    """Members of all the headers in one list; empty when any of them is not valid."""
    members = [member for value in values for part in value.split(b",") if (member := part.strip(b" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > _MOST_MEMBERS or len(keys) < len(members):  # one is malformed, or two have the same key
        return ""
    return str(b",".join(members), "ascii")


MOST_SPANS = 256  # of one request: a stream of a million light curves must not fill the memory

Attributes = Mapping[str, str | int | float | bool]


class SpanRef(NamedTuple):
    """A span, by its ids in hex."""

    trace_id: str
    span_id: str


class Span(NamedTuple):
    """A stretch of work inside a request."""

    name: str
    started: float
    ended: float
    attributes: Attributes
    link: SpanRef | None = None


class Finished(NamedTuple):
    """A span as it is exported: times in nanoseconds since 1970, ``flags`` and ``state`` as in the trace's context."""

    name: str
    kind: Literal["server", "internal"]
    ref: SpanRef
    parent: SpanRef | None
    flags: int
    state: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: tuple[SpanRef, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TracedRun:
    """A batch with light curves of sampled requests: its own span, when the run began, and those requests' spans."""

    ref: SpanRef
    began: float
    members: tuple[SpanRef, ...]


@dataclass(slots=True, eq=False)
class Recording:
    """Spans of one sampled request; ``dropped`` counts those beyond :data:`MOST_SPANS`."""

    context: TraceContext
    spans: list[Span] = field(default_factory=list)
    dropped: int = 0

    @property
    def ref(self) -> SpanRef:
        """The request's own span."""
        return SpanRef(self.context.trace_id, self.context.span_id)

    def add(self, span: Span) -> None:
        """Keep a span while there is room."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)
        else:
            self.dropped += 1


RECORDING: ContextVar[Recording | None] = ContextVar("recording", default=None)
"""Record of the request at hand, if it is sampled."""


@contextmanager
def recording(context: TraceContext) -> Iterator[Recording]:
    """Collect what this task, and the tasks and threads it starts, go through."""
    collected = Recording(context)
    token = RECORDING.set(collected)
    try:
        yield collected
    finally:
        RECORDING.reset(token)


class stage:  # a context manager; as a generator it would cost ten times as much where nothing is traced
    """A span around a ``with`` block, also one that raises."""

    __slots__ = ("_attributes", "_name", "_recording", "_started")

    def __init__(self, name: str, **attributes: str | int | float | bool) -> None:
        self._name, self._attributes = name, attributes

    def __enter__(self) -> None:
        """Begin."""
        self._recording, self._started = RECORDING.get(), monotonic()

    def __exit__(self, *_: object) -> None:
        """End."""
        if self._recording is not None:
            self._recording.add(Span(self._name, self._started, monotonic(), self._attributes))


def traced_run(members: Iterable[SpanRef | None], began: float) -> TracedRun | None:
    """Open a span for a batch whose run began then, if any of its light curves is of a sampled request."""
    refs = tuple(dict.fromkeys(ref for ref in members if ref is not None))
    return TracedRun(SpanRef(new_trace_id(), new_span_id()), began, refs) if refs else None


class RunFacts(Protocol):
    """Part of a prediction that :func:`add_runs` reads."""

    @property
    def traced(self) -> TracedRun | None:
        """The batch that gave it."""

    @property
    def batch_size(self) -> int:
        """Light curves in the batch."""

    @property
    def queue_seconds(self) -> float:
        """Wait for a worker."""

    @property
    def assemble_seconds(self) -> float:
        """Padding the batch."""

    @property
    def run_seconds(self) -> float:
        """Inference of the batch."""


def add_runs(predictions: Iterable[RunFacts]) -> None:
    """Spans ``queue``, ``assemble`` and ``run`` of the request at hand, for each batch that its light curves went with.

    Their lengths are exact. A light curve waits for its batch, and the batch for its turn: both are ``queue``.
    """
    collected = RECORDING.get()
    if collected is None:
        return
    batches: dict[SpanRef, list[RunFacts]] = {}
    for prediction in predictions:
        if prediction.traced is not None:
            batches.setdefault(prediction.traced.ref, []).append(prediction)
    for predictions in batches.values():
        _add_run(collected, predictions)


def _add_run(collected: Recording, predictions: Sequence[RunFacts]) -> None:
    first, count = predictions[0], {"nightjar.light_curves": len(predictions)}
    assert first.traced is not None
    began = first.traced.began
    assembling = began - first.assemble_seconds
    collected.add(Span("queue", assembling - max(ran.queue_seconds for ran in predictions), assembling, count))
    collected.add(Span("assemble", assembling, began, count))
    size = {"nightjar.batch.size": first.batch_size}
    collected.add(Span("run", began, began + first.run_seconds, count | size, first.traced.ref))


class BatchRun(Protocol):
    """Facts of a batch that a trace needs, as :class:`service.engine.batch.RunReport` holds them."""

    @property
    def traced(self) -> TracedRun | None:
        """Requests that it is to be traced for."""

    @property
    def size(self) -> int:
        """Number of light curves."""

    @property
    def length(self) -> int:
        """Points that each was padded to."""

    @property
    def tokens(self) -> int:
        """Points and queries, without padding."""

    @property
    def assemble_seconds(self) -> float:
        """Time that making the inputs took."""

    @property
    def run_seconds(self) -> float:
        """Time that the graph took."""


class SpanSink(Protocol):
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

    Attributes
    ----------
    exports : whether spans are exported at all; where not, nothing but :meth:`context` needs to be called.
    """

    def __init__(self, sink: SpanSink | None = None, ratio: float = 1.0) -> None:
        self._sink, self._ratio = sink, ratio
        self.exports = sink is not None

    def context(self, headers: Headers) -> TraceContext:
        """Return the trace that a request belongs to; not sampled where nothing would be recorded."""
        if self._sink is not None:
            return continued(headers, self._ratio)
        context = continued(headers)
        return context._replace(flags=context.flags & ~SAMPLED)

    def recording(self, context: TraceContext, has_spans: bool) -> AbstractContextManager[Recording | None]:
        """Collect the spans of a request inside a ``with`` block, if it is sampled and of a kind that has them."""
        return recording(context) if has_spans and context.sampled else nullcontext()

    def request(self, recorded: Recording | None, answered: Answered) -> None:
        """Export the spans of a request that has ended, if it was recorded."""
        if recorded is not None and self._sink is not None:
            self._sink.export(_request_spans(recorded, answered))

    def run(self, task: str, report: BatchRun, predicted_seconds: float) -> None:
        """Export the span of a batch, if it holds light curves of recorded requests."""
        if report.traced is not None and self._sink is not None:
            self._sink.export(_batch_span(task, report, predicted_seconds))

    def close(self) -> None:
        """Send what is left; may take seconds, so not for the event loop."""
        if self._sink is not None:
            self._sink.close()


def _epoch() -> float:
    """Nanoseconds since 1970 at which the monotonic clock read zero; taken anew each time, as clocks may be set."""
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
    attributes: dict[str, str | int | float | bool] = {
        "http.request.method": answered.method,
        "http.route": answered.route,
        "http.response.status_code": answered.status,
        "url.path": answered.path,
        "url.scheme": "http",
        "nightjar.request_id": answered.request_id,
    }
    return attributes | {"nightjar.dropped_spans": recorded.dropped} if recorded.dropped else attributes


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


def _batch_span(task: str, report: BatchRun, predicted_seconds: float) -> Iterator[Finished]:
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
