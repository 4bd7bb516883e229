"""Shared steps of the handlers of inference requests: body, deadline, quota, timings, response and documentation.

A handler reads the query and the body, decodes the body, chooses the models, classifies and encodes. Slow decoding and
encoding run in a thread. The duration of each stage is reported in metrics, traces and the header ``Server-Timing``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from fastapi import Request, Response

from nightjar_alerts.core.items import Item, Outcome
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.bodies import RequestBody
from nightjar_alerts.service.http.deadlines import read_deadline_header
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.body import Body, cancel_on_disconnect, get_content_coding
from nightjar_alerts.service.http.edge.budget import Reservation
from nightjar_alerts.service.http.edge.decompression import inflate
from nightjar_alerts.service.http.edge.errors import MALFORMED, ProblemError, ProblemKind
from nightjar_alerts.service.http.edge.keys import ANONYMOUS
from nightjar_alerts.service.http.formats import RequestFormat
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.observe.metrics import STAGES, Metrics
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many
from nightjar_alerts.service.settings import Settings

T = TypeVar("T")

ROLE_HEADER: Final = "Nightjar-Role"

INLINE_BYTES: Final = 64 * 1024
"""Maximum size of a body that is decoded on the event loop, which takes about a millisecond."""
INLINE_ITEMS: Final = 8
"""Maximum number of light curves that are validated or encoded on the event loop."""


def route_docs(
    summary: str,
    body: openapi.Document,
    reply: openapi.Document,
    query: type | None = None,
    more: Sequence[ProblemKind] = (),
) -> dict[str, Any]:
    """Return the arguments of a route decorator that describe an inference endpoint in the OpenAPI document.

    Parameters
    ----------
    body, reply : request body and response 200, as in the document.
    query : struct of the query parameters; None without.
    more : problems in addition to those of every inference endpoint.
    """
    kinds = (
        errors.MALFORMED, errors.NOT_FOUND, errors.TIMEOUT, errors.TOO_LARGE, errors.UNSUPPORTED, errors.INVALID,
        errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE, errors.DEADLINE, *more,
    )  # fmt: skip
    extra = {"requestBody": body} | ({} if query is None else {"parameters": openapi.query_parameters(query)})
    return {
        "summary": summary,
        "response_class": Response,
        "responses": {200: reply, **openapi.problems(*sorted(kinds, key=lambda kind: kind.status))},
        "openapi_extra": extra,
    }


def get_client_id(request: Request) -> str:
    """Return the client for fair queueing: the name of its API key or, without required keys, its address."""
    client_id: str = request.scope.get("state", {}).get("client_id", "")
    return client_id


def get_key_name(request: Request) -> str:
    """Return the name of the API key of a request."""
    key: str = request.scope.get("state", {}).get("key", "")
    return key or ANONYMOUS


def get_routing_key(request: Request, object_ids: Iterable[str] = ()) -> str:
    """Return the routing key for canaries: the first object id, else the API key, else the request id."""
    state = request.scope["state"]
    fallback: str = state.get("key", "") or state["request_id"]
    return next(filter(None, object_ids), fallback)


def infer_options(
    request: Request, settings: Settings, arrived: float, deadline_ms: float | None = None
) -> InferOptions:
    """Return the options of a request for the predictor, with its earliest deadline.

    Parameters
    ----------
    arrived : ``time.monotonic()`` seconds from which deadlines count.
    deadline_ms : deadline in the body or query, in milliseconds.

    Raises
    ------
    ProblemError
        422 for an invalid deadline in the header.
    """
    milliseconds = requested_deadline_ms(request, settings, deadline_ms)
    milliseconds = settings.default_deadline_ms if milliseconds is None else milliseconds
    return InferOptions(arrived + milliseconds / 1000, client=get_client_id(request))


def requested_deadline_ms(request: Request, settings: Settings, deadline_ms: float | None) -> float | None:
    """Return the earliest deadline that a request asks for, in milliseconds; None without.

    Raises ProblemError (422) for an invalid deadline in the header.
    """
    deadlines = [value for value in (deadline_ms, read_deadline_header(request, settings)) if value is not None]
    return min(deadlines, default=None)


async def read_body(request: Request, reservation: Reservation, limit: int) -> bytes:
    """Read and decompress a body of at most ``limit`` bytes.

    Raises
    ------
    ProblemError
        413, 408, 429 or 400 as :meth:`Body.read`; 415 for an unsupported coding, 400 for data that cannot be
        decompressed.
    """
    service = get_service(request)
    coding = get_content_coding(request)
    body = Body(request.receive, reservation, request.headers.get("content-length", ""))
    data = await body.read(limit, service.settings.body_timeout)
    if not data:
        raise ProblemError(MALFORMED, "the body is empty")
    return await inflate(data, coding, limit, body.charge, service.run_in_thread) if coding else data


async def decode_body(request: Request, data: bytes, request_format: RequestFormat) -> RequestBody:
    """Decode a body on the event loop if it is small and valid, else in a thread."""
    service = get_service(request)
    decode = request_format.decode
    if len(data) <= INLINE_BYTES and request_format.decode_valid is not None:
        body = request_format.decode_valid(data, service.settings)
        if body is not None:
            return body
        decode = request_format.diagnose
    return await decode_in_thread(request, partial(decode, data, service.settings), len(data))


async def decode_in_thread(request: Request, decode: Callable[[], T], size: int) -> T:
    """Decode a body in a thread; if it is large, when it is the turn of the client."""
    return await get_service(request).decode(decode, size, get_client_id(request))


async def charge_quota(request: Request, service: Service, curves: int) -> None:
    """Charge light curves to the API key of a request, whether they are valid or not: all of them were decoded."""
    await service.admission.charge(request.scope["state"], curves)


async def classify_items(
    request: Request, handles: Sequence[ModelHandle], items: Sequence[Item], options: InferOptions
) -> list[Outcome]:
    """Charge the quota, classify each item by its model, and return one outcome per item, in order."""
    # Acquired first, as a model could be unloaded while the quota is charged in Redis.
    with acquired(handles):
        await charge_quota(request, get_service(request), len(items))
        return await cancel_on_disconnect(request, infer_many(handles, items, options))


class Timings:
    """Durations of the stages of a request in its handler; the predictor measures the other stages.

    The first stage starts when the object is created.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seconds: dict[str, float] = {}
        self.started = self._mark = monotonic()

    def start(self) -> None:
        """Start a stage."""
        self._mark = monotonic()

    def stage(self, name: str) -> None:
        """End a stage and start the next one."""
        now = monotonic()
        self._seconds[name] = now - self._mark
        self._metrics.record_stage(name, self._mark, now)
        self._mark = now

    def header(self, outcomes: Sequence[Outcome]) -> str:
        """Return the ``Server-Timing`` header: milliseconds of each stage, of the slowest item if they run in parallel.

        ``total`` is the time since the start, including time between stages, such as waiting for a thread.
        """
        done = [outcome.prediction for outcome in outcomes if outcome.prediction is not None]
        seconds = self._seconds | {"featurise": sum(outcome.featurise_seconds for outcome in outcomes)}
        if done:
            seconds["queue"] = max(prediction.queue_seconds for prediction in done)
            seconds["assemble"] = max(prediction.assemble_seconds for prediction in done)
            seconds["run"] = max(prediction.run_seconds for prediction in done)
        seconds["total"] = monotonic() - self.started
        return ", ".join(
            [f"{stage};dur={1e3 * seconds[stage]:.3f}" for stage in (*STAGES, "total") if stage in seconds]
        )


def make_response(
    request: Request,
    content: bytes,
    media_type: str,
    handles: Sequence[ModelHandle],
    outcomes: Sequence[Outcome],
    timings: Timings,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Create the response of a request, with its timings and the roles of the models used."""
    named = {**response_headers(get_service(request).metrics, handles, outcomes, timings), **(headers or {})}
    return Response(content, headers=named, media_type=media_type)


def response_headers(
    metrics: Metrics, handles: Sequence[ModelHandle], outcomes: Sequence[Outcome], timings: Timings
) -> dict[str, str]:
    """Return the headers with the timings of a request and the roles of the models used, and count those."""
    named = {"Server-Timing": timings.header(outcomes)}
    if roles := sorted({handle.role for handle in handles if handle.role}):
        for role in roles:
            metrics.substitutes.labels(role).inc()
        named[ROLE_HEADER] = ", ".join(roles)
    return named
