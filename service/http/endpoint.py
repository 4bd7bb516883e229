"""What the handlers of requests for predictions share: description, options, body, timings and reply.

A handler reads top to bottom: parse the query, read the bounded body, decode it, choose the models, classify, encode. A
decode or encode that takes long runs in a thread. How long each stage took goes to the metrics, the trace and the
client (``Server-Timing``).

A deadline comes as an option of the body or address or as ``Nightjar-Deadline-Ms``; the earliest counts, and the
setting's where none is named. Requests with the same API key share one turn in the queue; where no keys are asked for,
those of one address do.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from fastapi import Request, Response

from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.dataplane import InferOptions, Outcome
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.curves import check_deadline
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import INVALID, Kind, ProblemError
from nightjar_alerts.service.http.edge.keys import ANONYMOUS
from nightjar_alerts.service.http.edge.receive import Body, Reservation, content_coding, inflate
from nightjar_alerts.service.http.lifecycle import Service, service_of
from nightjar_alerts.service.observe.metrics import STAGES, Metrics
from nightjar_alerts.service.registry.serving import ModelHandle
from nightjar_alerts.service.settings import Settings

DEADLINE_HEADER = "Nightjar-Deadline-Ms"
ROLE_HEADER = "Nightjar-Role"
_DEADLINE = DEADLINE_HEADER.lower()
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,9}")

INLINE_BYTES = 64 * 1024  # decoding more than this would keep the event loop from everybody else for over a millisecond
INLINE_ITEMS = 8  # so would building or encoding more light curves
LARGE_BYTES = 1024 * 1024  # a body of JSON takes up to sixteen times as much while it is decoded


def described(
    summary: str, body: openapi.Document, reply: openapi.Document, query: type | None = None, more: Sequence[Kind] = ()
) -> dict[str, Any]:
    """Return the arguments of a route that describe it in the OpenAPI document.

    Parameters
    ----------
    body, reply : as the document has them.
    query : struct of the query parameters.
    more : problems besides those of every such endpoint.
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


def infer_options(
    request: Request, settings: Settings, arrived: float, milliseconds: float | None = None, surveys: Any = "none"
) -> InferOptions:
    """Return the options of a request for the data plane.

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


def _header_deadline(request: Request, settings: Settings) -> int | None:
    values = request.headers.getlist(_DEADLINE)
    if not values:
        return None
    where = f"/headers/{_DEADLINE}"
    if len(values) > 1:
        raise ProblemError(INVALID, errors=[FieldError(pointer=where, reason="duplicate", detail="is given twice")])
    if not _MILLISECONDS.fullmatch(values[0].strip()):
        detail = "must be a whole number of milliseconds"
        raise ProblemError(INVALID, errors=[FieldError(pointer=where, reason="not_milliseconds", detail=detail)])
    check_deadline(int(values[0]), where, settings)
    return int(values[0])


def client_of(request: Request) -> str:
    """Return the client as queues distinguish them: by API key, and by address where no keys are required."""
    client_id: str = request.scope.get("state", {}).get("client_id", "")
    return client_id


def key_of(request: Request) -> str:
    """Return the name of the API key of a request."""
    key: str = request.scope.get("state", {}).get("key", "")
    return key or ANONYMOUS


async def charge(request: Request, service: Service, curves: int) -> None:
    """Count light curves that are about to be classified on account of the request's key."""
    key = key_of(request)
    service.metrics.key_curves.labels(key).inc(curves)
    request.scope["state"]["charged"] = curves  # refunded when there turns out to be no room
    if service.quotas is not None:
        await service.quotas.charge(key, curves)


async def read_body(request: Request, reservation: Reservation, limit: int) -> bytes:
    """Read a body of at most ``limit`` bytes, decompressed.

    Raises
    ------
    ProblemError
        413, 408, 429 or 400 as :meth:`Body.read`; 415 for another coding, 400 for data that does not decompress.
    """
    service = service_of(request)
    coding = content_coding(request)
    body = Body(request, reservation)
    data = await body.read(limit, service.settings.body_timeout)
    return await inflate(data, coding, limit, body.charge, service.run_in_thread) if coding else data


class Timings:
    """Durations of the stages of a request that its handler goes through; the data plane times the others.

    The first stage begins when it is made.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seconds: dict[str, float] = {}
        self.started = self._mark = monotonic()

    def start(self) -> None:
        """Begin a stage."""
        self._mark = monotonic()

    def stage(self, name: str) -> None:
        """End a stage, the next one begins."""
        now = monotonic()
        self._seconds[name] = now - self._mark
        self._metrics.record_stage(name, self._mark, now)
        self._mark = now

    def header(self, outcomes: Sequence[Outcome]) -> str:
        """Server-Timing of a request: milliseconds of each stage, of the slowest item where items went side by side.

        ``total`` is the time until now, hence also what lies between the stages, such as waiting for a thread.
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


def routing_key(request: Request, names: Iterable[str] = ()) -> str:
    """Return the key of a canary's share: the first object with a name, else the API key, else the request's id."""
    state = request.scope["state"]
    fallback: str = state.get("key", "") or state["request_id"]
    return next(filter(None, names), fallback)


def reply(
    request: Request,
    content: bytes,
    media_type: str,
    handles: Sequence[ModelHandle],
    outcomes: Sequence[Outcome],
    timings: Timings,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Make the reply of a request."""
    named = {"Server-Timing": timings.header(outcomes), **(headers or {})}
    metrics = service_of(request).metrics
    if roles := sorted({handle.role for handle in handles if handle.role}):
        for role in roles:
            metrics.substitutes.labels(role).inc()
        named[ROLE_HEADER] = ", ".join(roles)
    return Response(content, headers=named, media_type=media_type)
