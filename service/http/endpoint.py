"""One declaration of an endpoint, and the one way of every request that asks a model.

    ENDPOINT = Endpoint("/v1/classify", "Classify light curves", CLASSIFY_BODY, CLASSIFY_REPLY)

    @ENDPOINT.on(router)
    async def classify(request: Request, query: Annotated[ClassifyQuery, Query()]) -> Response:
        return await ENDPOINT.answer(Call(request), understand)

The declaration is the route, its description in ``/docs``, the problems it may answer with and the limit of its body.
The way is receive, understand, admit, ask, encode, headers; what differs between endpoints is ``understand``, which
makes an :class:`Inquiry` of the body's bytes, and the function in it that writes the reply. A new endpoint is a file of
routes with these two, and the models of its body and reply.

Every request has a deadline and a client whose share of the engine it takes.

- A deadline comes as an option of the body or address or as ``Nightjar-Deadline-Ms``; the earliest counts, and the
  setting's where none is named.
- Requests with the same API key share one place among those who wait; where no keys are asked for, those of one
  address do.

How long each stage took is told to the metrics, the model's statistics, the trace, and the client.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.dataplane import InferOptions, Item, Outcome
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import INVALID, Kind, ProblemError
from nightjar_alerts.service.http.edge.keys import ANONYMOUS
from nightjar_alerts.service.http.edge.receive import Body, cancel_on_disconnect, content_coding, inflate
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.observe.metrics import STAGES, Metrics
from nightjar_alerts.service.registry.names import MOST_CHARACTERS
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many
from nightjar_alerts.service.settings import Settings

DEADLINE_HEADER = "Nightjar-Deadline-Ms"
_DEADLINE = DEADLINE_HEADER.lower()

_MILLISECONDS = re.compile(r"[1-9][0-9]{0,9}")


def terms_of(
    request: Request,
    settings: Settings,
    arrived: float,
    milliseconds: float | None = None,
    surveys: str | Sequence[str] = "none",
) -> InferOptions:
    """Terms of a request.

    Parameters
    ----------
    arrived : ``time.monotonic()`` seconds, from which deadlines count.
    milliseconds : deadline that its body or address names.

    Raises
    ------
    ProblemError
        422 for a deadline in a header that is not a number of milliseconds, or is too long.
    """
    named = [limit for limit in (milliseconds, _header_deadline(request, settings)) if limit is not None]
    allowed = min(named, default=settings.default_deadline_ms)
    return InferOptions(arrived + allowed / 1000, surveys, client=client_of(request))


def client_of(request: Request) -> str:
    """Return the client, as the engine tells them apart: by key, and by address where no keys are asked for."""
    client: str = request.scope.get("state", {}).get("share", "")
    return client


def key_of(request: Request) -> str:
    """Name of the key that a request shows."""
    key: str = request.scope.get("state", {}).get("key", ANONYMOUS)
    return key


async def charge(request: Request, service: Service, curves: int) -> None:
    """Count light curves that are about to be answered on account of the request's key."""
    key = key_of(request)
    service.metrics.key_curves.labels(key).inc(curves)
    request.scope["state"]["charged"] = curves  # taken back when there turns out to be no room
    if service.quotas is not None:
        await service.quotas.charge(key, curves)


def check_deadline(deadline_ms: int | None, pointer: str, settings: Settings) -> None:
    """Refuse a deadline beyond the longest one allowed. Raises ProblemError (422)."""
    if deadline_ms is not None and deadline_ms > settings.max_deadline_ms:
        detail = f"must be at most {settings.max_deadline_ms} milliseconds"
        raise ProblemError(INVALID, errors=[FieldError(pointer=pointer, reason="deadline_too_long", detail=detail)])


def _header_deadline(request: Request, settings: Settings) -> int | None:
    value = request.headers.get(_DEADLINE)
    if value is None:
        return None
    pointer = f"/headers/{DEADLINE_HEADER.lower()}"
    if not _MILLISECONDS.fullmatch(value.strip()):
        fault = FieldError(pointer=pointer, reason="not_milliseconds", detail="must be a whole number of milliseconds")
        raise ProblemError(INVALID, errors=[fault])
    check_deadline(int(value), pointer, settings)
    return int(value)


TOTAL = "total"
_HEADER_STAGES = (*STAGES, TOTAL)


class Stopwatch:
    """Times the stages that a transport goes through itself; the data plane times the others.

    The first stage begins when it is made.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seconds: dict[str, float] = {}
        self._started = self._mark = monotonic()

    def restart(self) -> None:
        """Begin a stage."""
        self._mark = monotonic()

    def lap(self, stage: str) -> None:
        """End a stage, the next one begins."""
        now = monotonic()
        self._seconds[stage] = now - self._mark
        self._metrics.record_stage(stage, self._mark, now)
        self._mark = now

    def header(self, outcomes: Sequence[Outcome]) -> str:
        """Server-Timing of a request: milliseconds of each stage, of the slowest item where items went side by side.

        ``total`` is the time until now, hence also what lies between the stages: threads that were waited for.
        """
        done = [outcome.prediction for outcome in outcomes if outcome.prediction is not None]
        seconds = self._seconds | {"featurise": sum(outcome.featurise_seconds for outcome in outcomes)}
        if done:
            seconds["queue"] = max(prediction.queue_seconds for prediction in done)
            seconds["assemble"] = max(prediction.assemble_seconds for prediction in done)
            seconds["run"] = max(prediction.run_seconds for prediction in done)
        seconds[TOTAL] = monotonic() - self._started
        return ", ".join([f"{stage};dur={1e3 * seconds[stage]:.3f}" for stage in _HEADER_STAGES if stage in seconds])


ROLE_HEADER = "Nightjar-Role"


class ModelQuery(BaseModel):
    """The parameter of an address that names a model."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field("", max_length=MOST_CHARACTERS, description="model to ask: `name`, `name@1.2.3` or an alias")


def routing_key(request: Request, names: Iterable[str] = ()) -> str:
    """Return the key of a canary's share: the first object with a name, else the API key, else the request's id."""
    state = request.scope["state"]
    asks: str = state.get("client", "") or state["request_id"]
    return next(filter(None, names), asks)


def role_header(handles: Iterable[ModelHandle], service: Service) -> dict[str, str]:
    """Return, and count, the header with the role of a model that answered in the place of the usual one, if any."""
    roles = sorted({handle.role for handle in handles if handle.role})
    for role in roles:
        service.metrics.substitutes.labels(role).inc()
    return {ROLE_HEADER: ", ".join(roles)} if roles else {}


T = TypeVar("T")
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Response]])

LARGE_BYTES = 1024 * 1024  # a body of JSON takes up to sixteen times as much while it is parsed
INLINE_ITEMS = 8  # writing the results of more would keep the event loop from everybody else for over a millisecond
INLINE_BYTES = 64 * 1024  # parsing more than this would keep the event loop from everybody else for over a millisecond
EVERY_PROBLEM = (
    errors.MALFORMED, errors.NOT_FOUND, errors.TIMEOUT, errors.TOO_LARGE, errors.UNSUPPORTED, errors.INVALID,
    errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE,
)  # fmt: skip


class EncodedReply(NamedTuple):
    """A body, its type, and headers of its own."""

    content: bytes
    media_type: str = JSON_TYPE
    headers: Mapping[str, str] = {}


class Inquiry(NamedTuple):
    """Items of a request and the models to ask about them, once its body is understood.

    Attributes
    ----------
    handles : the model to ask about each item.
    items : what to ask, or why it is not asked about.
    write : makes the reply of what became of the items.
    slow : whether the reply is written in a thread even for few items.
    """

    handles: Sequence[ModelHandle]
    items: Sequence[Item]
    terms: InferOptions
    write: Callable[[Sequence[Outcome]], EncodedReply]
    slow: bool = False


class Call:
    """One request on its way."""

    def __init__(self, request: Request) -> None:
        self.arrived = monotonic()
        self.request = request
        self.service: Service = request.app.state.service
        self.settings = self.service.settings
        self.stopwatch = Stopwatch(self.service.metrics)

    def terms(self, milliseconds: float | None = None, **more: Any) -> InferOptions:
        """Terms of the request: until when to answer, and for whom."""
        return terms_of(self.request, self.settings, self.arrived, milliseconds, **more)

    async def run_maybe_in_thread(self, work: Callable[[], T], thread: bool, large: bool = False) -> T:
        """Run ``work`` on the event loop or in a thread, alone if it is ``large``, and return its result."""
        return await self.service.run_in_thread(work, large) if thread else work()


Understand = Callable[[Call, bytes], Awaitable[Inquiry]]


class Endpoint:
    """A POST that asks a model.

    Parameters
    ----------
    body, reply : as the OpenAPI document has them.
    limit : bytes of a body, decompressed.
    more : problems besides those that every endpoint may answer with.
    """

    def __init__(
        self,
        path: str,
        summary: str,
        body: openapi.Document,
        reply: openapi.Document,
        limit: Callable[[Settings], int] = lambda settings: settings.max_json_bytes,
        more: Sequence[Kind] = (),
    ) -> None:
        self.path, self.limit = path, limit
        problems = sorted((*EVERY_PROBLEM, *more), key=lambda kind: kind.status)
        self.described: dict[str, Any] = {
            "summary": summary,
            "responses": {200: reply, **openapi.problems(*problems)},
            "openapi_extra": {"requestBody": body},
        }

    def on(self, router: APIRouter) -> Callable[[HandlerT], HandlerT]:
        """Register a handler, whose docstring is the description."""
        return router.post(self.path, response_class=Response, **self.described)

    async def answer(
        self, call: Call, understand: Understand, codings: Collection[str] = (), limit: int | None = None
    ) -> Response:
        """Answer one request.

        Parameters
        ----------
        understand : what the body asks, or raises ProblemError.
        codings : in which a body may be compressed.
        limit : bytes of this body, where a header decides that.
        """
        request, service, stopwatch = call.request, call.service, call.stopwatch
        limit = self.limit(call.settings) if limit is None else limit
        with service.budget.reserve(client_of(request)) as share:
            body = Body(request, share)
            data = await body.read(limit, call.settings.body_timeout)
            stopwatch.lap("receive")
            if coding := content_coding(request, codings):
                data = await inflate(data, coding, limit, body.charge, service.run_in_thread)
            inquiry = await understand(call, data)
            del data  # what was made of it stays charged, and is smaller
            await charge(request, service, len(inquiry.items))
            with acquired(dict.fromkeys(inquiry.handles)):
                outcomes = await cancel_on_disconnect(
                    request, infer_many(inquiry.handles, inquiry.items, inquiry.terms)
                )
        stopwatch.restart()
        slow = inquiry.slow or len(outcomes) > INLINE_ITEMS
        reply = await call.run_maybe_in_thread(partial(inquiry.write, outcomes), slow)
        stopwatch.lap("encode")
        headers = {
            **reply.headers,
            "Server-Timing": stopwatch.header(outcomes),
            **role_header(inquiry.handles, service),
        }
        return Response(reply.content, headers=headers, media_type=reply.media_type)
