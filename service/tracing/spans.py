"""What a sampled request spent its time on, collected while it is answered.

A stage is timed by whoever goes through it; what it was is added to the :class:`Recording` of the request whose task is
running, if there is one. Without an exporter there never is: what remains is the look at one context variable. Times
are ``time.monotonic()`` seconds until they are exported.

A batch serves light curves of several requests, so its span belongs to none of them: it has a trace of its own with a
link to every request, and each request has a ``run`` span with a link to it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, NamedTuple, Protocol

from service.tracing.context import TraceContext, new_span_id, new_trace_id

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


_CURRENT: ContextVar[Recording | None] = ContextVar("recording", default=None)


@contextmanager
def recording(context: TraceContext) -> Iterator[Recording]:
    """Collect what this task, and the tasks and threads it starts, go through."""
    collected = Recording(context)
    token = _CURRENT.set(collected)
    try:
        yield collected
    finally:
        _CURRENT.reset(token)


def current() -> Recording | None:
    """What is being collected for the request at hand."""
    return _CURRENT.get()


def current_ref() -> SpanRef | None:
    """Span of the request at hand, when it is sampled."""
    collected = _CURRENT.get()
    return None if collected is None else collected.ref


class stage:  # a context manager; as a generator it would cost ten times as much where nothing is traced
    """A span around a ``with`` block, also one that raises."""

    __slots__ = ("_attributes", "_name", "_recording", "_started")

    def __init__(self, name: str, **attributes: str | int | float | bool) -> None:
        self._name, self._attributes = name, attributes

    def __enter__(self) -> None:
        """Begin."""
        self._recording, self._started = _CURRENT.get(), monotonic()

    def __exit__(self, *_: object) -> None:
        """End."""
        if self._recording is not None:
            self._recording.add(Span(self._name, self._started, monotonic(), self._attributes))


def traced_run(members: Iterable[SpanRef | None], began: float) -> TracedRun | None:
    """A span for a batch whose run began then, if any of its light curves is of a sampled request."""
    refs = tuple(dict.fromkeys(ref for ref in members if ref is not None))
    return TracedRun(SpanRef(new_trace_id(), new_span_id()), began, refs) if refs else None


class Ran(Protocol):
    """What :func:`add_runs` needs to know of a prediction."""

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


def add_runs(predictions: Iterable[Ran]) -> None:
    """Spans ``queue``, ``assemble`` and ``run`` of the request at hand, for each batch that its light curves went with.

    Their lengths are exact. A light curve waits for its batch, and the batch for its turn: both are ``queue``.
    """
    collected = _CURRENT.get()
    if collected is None:
        return
    batches: dict[SpanRef, list[Ran]] = {}
    for prediction in predictions:
        if prediction.traced is not None:
            batches.setdefault(prediction.traced.ref, []).append(prediction)
    for group in batches.values():
        _add_run(collected, group)


def _add_run(collected: Recording, group: Sequence[Ran]) -> None:
    first, count = group[0], {"nightjar.light_curves": len(group)}
    assert first.traced is not None
    began = first.traced.began
    assembling = began - first.assemble_seconds
    collected.add(Span("queue", assembling - max(ran.queue_seconds for ran in group), assembling, count))
    collected.add(Span("assemble", assembling, began, count))
    size = {"nightjar.batch.size": first.batch_size}
    collected.add(Span("run", began, began + first.run_seconds, count | size, first.traced.ref))
