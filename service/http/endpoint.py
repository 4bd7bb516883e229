"""One declaration of an endpoint, and the one way of every request that asks a model.

    ENDPOINT = Endpoint("/v1/classify", "Classify light curves", CLASSIFY_BODY, CLASSIFY_REPLY)

    @ENDPOINT.on(router)
    async def classify(request: Request, query: Annotated[ClassifyQuery, Query()]) -> Response:
        return await ENDPOINT.answer(request, understand)

The declaration is the route, its description in ``/docs``, the problems it may answer with and the limit of its body.
The way is receive, understand, admit, ask, encode, headers; what differs between endpoints is ``understand``, which
makes an :class:`Inquiry` of the body's bytes, and the function in it that writes the reply. A new endpoint is a file of
routes with these two, and the models of its body and reply.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Sized
from functools import partial
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from fastapi import APIRouter, Request, Response

from models.lightcurve import LightCurveError
from service.dataplane import AskOptions, Outcome, Refusal
from service.http import openapi
from service.http.choosing import cache_status, role_header
from service.http.edge import errors
from service.http.edge.compression import inflate
from service.http.edge.errors import Kind
from service.http.edge.receive import Body, content_coding, unless_gone
from service.http.edge.timing import Stopwatch
from service.http.lifecycle import service_of
from service.http.terms import key_of, terms_of
from service.registry.live import Lease, ask_each, held
from service.settings import Settings

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Sized)
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Response]])

INLINE_BYTES = 64 * 1024  # parsing more than this would keep the event loop from everybody else for over a millisecond
EVERY_PROBLEM = (
    errors.MALFORMED, errors.NOT_FOUND, errors.TIMEOUT, errors.TOO_LARGE, errors.UNSUPPORTED, errors.INVALID,
    errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE,
)  # fmt: skip


class Reply(NamedTuple):
    """A body, its type, and headers of its own."""

    content: bytes
    media_type: str = openapi.JSON_TYPE
    headers: Mapping[str, str] = {}


class Inquiry(NamedTuple, Generic[ItemT]):
    """What a request asks, once its body is understood.

    Attributes
    ----------
    leases : the model to ask about each item.
    items : what to ask, or why it is not asked about.
    write : makes the reply of what became of the items.
    slow : whether writing is for a thread.
    """

    leases: Sequence[Lease[ItemT]]
    items: Sequence[ItemT | LightCurveError | Refusal]
    terms: AskOptions
    write: Callable[[Sequence[Outcome]], Reply]
    slow: bool = False


class Call:
    """One request on its way."""

    def __init__(self, request: Request) -> None:
        self.arrived = monotonic()
        self.request, self.service = request, service_of(request)
        self.settings = self.service.settings
        self.stopwatch = Stopwatch(self.service.metrics)

    def terms(self, milliseconds: float | None = None, **more: Any) -> AskOptions:
        """Until when and how urgently, as :func:`service.http.terms.terms_of`."""
        return terms_of(self.request, self.settings, self.arrived, milliseconds, **more)

    async def here_or_there(self, work: Callable[[], T], there: bool) -> T:
        """Result of ``work``, done on the event loop or in a thread."""
        return await self.service.off_loop(work) if there else work()


Understand = Callable[[Call, bytes], Awaitable[Inquiry[ItemT]]]


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
        self, request: Request, understand: Understand[ItemT], codings: Collection[str] = (), limit: int | None = None
    ) -> Response:
        """Answer one request.

        Parameters
        ----------
        understand : what the body asks, or raises ProblemError.
        codings : in which a body may be compressed.
        limit : bytes of this body, where a header decides that.
        """
        call = Call(request)
        service, stopwatch = call.service, call.stopwatch
        limit = self.limit(call.settings) if limit is None else limit
        with Body(request, service.budget) as body:
            data = await body.read(limit, call.settings.body_timeout)
            stopwatch.lap("receive")
            if coding := content_coding(request, codings):
                data = await inflate(data, coding, limit, body.charge, service.off_loop)
            inquiry = await understand(call, data)
            await service.quotas.charge(key_of(request), len(inquiry.items))
            with held(dict.fromkeys(inquiry.leases)):
                outcomes = await unless_gone(request, ask_each(inquiry.leases, inquiry.items, inquiry.terms))
        stopwatch.restart()
        reply = await call.here_or_there(partial(inquiry.write, outcomes), inquiry.slow)
        stopwatch.lap("encode")
        for lease in dict.fromkeys(inquiry.leases):
            stopwatch.tell(lease.served.plane.statistics)
        headers = {
            **reply.headers,
            "Server-Timing": stopwatch.header(outcomes),
            **cache_status(outcomes, service),
            **role_header(inquiry.leases, service),
        }
        return Response(reply.content, media_type=reply.media_type, headers=headers)
