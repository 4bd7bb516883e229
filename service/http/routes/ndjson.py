"""NDJSON requests to ``/v1/classify``: one light curve per line, with results sent while lines still arrive.

Results are sent in the order of the lines. A stream may be larger than memory:

- Lines, light curves in the engine and unsent results are bounded and charged to the memory budget of request bodies.
  Beyond the bound nothing is read, so that TCP makes the client wait. A client that does not read its results is
  disconnected (``stall_timeout``).
- A line that is not valid JSON, or an invalid light curve, gets the status ``rejected``.
- While the queue of the engine is full, the light curves of the stream wait, at most until their deadlines. The request
  is rejected (429) only if the queue is full when its first light curves arrive.
- If the client disconnects, its queued light curves are withdrawn.

An error that ends a stream early (a line that is too long, no line for ``body_timeout`` seconds, shutdown) is a problem
response before the first result was sent, and a last line ``{"problem": ...}`` after that.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final, cast

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from nightjar_alerts.core.decoding import decode_lines
from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.core.items import Item, Outcome
from nightjar_alerts.core.result import ClassifierProvenance
from nightjar_alerts.core.serializer import encode_json
from nightjar_alerts.core.validation import validate_light_curves
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.routing import DEFAULT
from nightjar_alerts.service.engine.errors import DeadlineExceeded, Overloaded
from nightjar_alerts.service.http.edge.body import ClientDisconnected, get_content_coding, replay
from nightjar_alerts.service.http.edge.budget import Reservation
from nightjar_alerts.service.http.edge.errors import ProblemError, problem_document, to_problem
from nightjar_alerts.service.http.edge.lines import LineBody
from nightjar_alerts.service.http.endpoint import (
    INLINE_BYTES,
    Timings,
    charge_quota,
    get_client_id,
    get_key_name,
    get_routing_key,
    infer_options,
    read_body,
)
from nightjar_alerts.service.http.formats import NDJSON_TYPE, encode_ndjson
from nightjar_alerts.service.http.lifecycle import get_service
from nightjar_alerts.service.http.query import ClassifyQuery
from nightjar_alerts.service.http.results import (
    ClassifyResults,
    build_curve_results,
    get_serializer,
    get_serializers,
    get_surveys,
)
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.registry.router import route_item
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many

GROUP_LINES: Final = 64
"""Maximum number of lines that are classified together: enough for a batch, few enough for early results."""
GROUP_BYTES: Final = 256 * 1024
MAX_PENDING: Final = 512
"""Maximum number of light curves of one stream in the engine."""


class StreamedResponse(Response, ABC):
    """NDJSON response that is sent while its request is processed.

    Once it has started, an error that ends it early is sent as a last line ``{"problem": ...}``. The error is also
    raised, so that the middleware counts it.
    """

    def __init__(self, request: Request, query: ClassifyQuery) -> None:
        self.request, self.service, self.query = request, get_service(request), query
        super().__init__(media_type=NDJSON_TYPE, headers={"X-Accel-Buffering": "no"})  # nginx would buffer results
        del self.headers["content-length"]  # 0 for a Response without content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request; all of it is classified by the same versions of the models."""
        client_id, started = get_client_id(self.request), False

        async def send_recorded(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self.service.streams.acquire(client_id)  # a separate limit, because streams last long
        try:
            key, name = get_routing_key(self.request), self.query.model
            if name:
                handles = {DEFAULT: self.service.select_model(name, routing_key=key)}
            else:
                handles = self.service.select_routed(routing_key=key)
            with acquired(handles.values()), self.service.budget.reserve(client_id) as reservation:
                classifier = LineClassifier(self.request, handles, self.query)
                self.headers["Nightjar-Model"] = classifier.model
                await self.run(classifier, reservation, receive, send_recorded)
        except ClientDisconnected:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if started:
                problem = problem_document(to_problem(error), scope["path"], scope["state"]["request_id"])
                await send(body_message(encode_json({"problem": problem}) + b"\n", more=False))
            raise
        finally:
            self.service.streams.release(client_id)

    @property
    def head(self) -> Message:
        """Message that starts the response."""
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

    @abstractmethod
    async def run(self, classifier: "LineClassifier", reservation: Reservation, receive: Receive, send: Send) -> None:
        """Read the request and send the whole response."""


class NdjsonResponse(StreamedResponse):
    """Response to an NDJSON request, which is read while the response is sent."""

    async def run(self, classifier: "LineClassifier", reservation: Reservation, receive: Receive, send: Send) -> None:
        """Classify the lines of the request."""
        settings = self.service.settings
        if get_content_coding(self.request):  # a compressed stream is read as a whole, within its limit
            receive = replay(await read_body(self.request, reservation, settings.max_json_bytes), receive)
        body, output = LineBody(receive, settings), _ResponseWriter(send, self.head)
        await _StreamLoop(body, output, classifier, settings.max_json_bytes).run(reservation)


class LineClassifier:
    """Classifies the lines of one stream, each with the model that it is routed to, as light curves of other requests.

    Parameters
    ----------
    handles : models by alias. The response names ``default``; results of other models have a member ``model``.

    Raises
    ------
    ProblemError
        422 for an invalid prior or deadline.
    """

    def __init__(self, request: Request, handles: Mapping[str, ModelHandle], query: ClassifyQuery) -> None:
        self._request, self._service = request, get_service(request)
        self._handles, self._handle, self._query = handles, handles[DEFAULT], query
        self._serializer = get_serializer(self._handle, query.prior, self._service.settings.prior)
        self._infer_options()

    @property
    def provenance(self) -> ClassifierProvenance:
        """Description of the model, as in other responses."""
        return self._serializer.provenance

    @property
    def model(self) -> str:
        """Name, version and hash of the model, for a header."""
        name = "{name}/{version}; sha256={sha256}".format_map(self.provenance)
        return f"{name}; role={self._handle.role}" if self._handle.role else name

    async def classify(self, lines: Sequence[bytes], wait: bool) -> bytes:
        """Return one result line for each line, in order.

        Parameters
        ----------
        wait : if True, wait while the queue of the engine is full instead of raising Overloaded.
        """
        await self.charge(len(lines))
        options = self._infer_options()
        timings = Timings(self._service.metrics)
        read = partial(self._read, lines)
        curves = await self._service.run_maybe_in_thread(read, sum(map(len, lines)) > INLINE_BYTES)
        timings.stage("decode")
        return encode_ndjson(await self._classify(curves, options, wait))

    async def charge(self, curves: int) -> None:
        """Wait until the quota of the API key admits light curves, and charge them."""
        if self._service.quotas is not None:
            await self._service.quotas.throttle(get_key_name(self._request))
        await charge_quota(self._request, self._service, curves)

    async def classify_curves(
        self, curves: Sequence[LightCurve | InvalidLightCurve], options: InferOptions
    ) -> ClassifyResults:
        """Return the results of light curves, in order; waits while the queue of the engine is full."""
        return await self._classify(curves, options, wait=True)

    async def _classify(
        self, curves: Sequence[LightCurve | InvalidLightCurve], options: InferOptions, wait: bool
    ) -> ClassifyResults:
        routed = [self._route(curve) for curve in curves]
        handles, items = [handle for handle, _ in routed], [item for _, item in routed]
        serializers = get_serializers(handles, self._query.prior, self._service.settings.prior)
        outcomes = await self._infer(handles, items, options, wait)
        timings = Timings(self._service.metrics)
        results = build_curve_results(serializers, outcomes, curves, self._query)
        for result, serializer in zip(results.results, serializers, strict=True):
            result.model = None if serializer.provenance == self.provenance else serializer.provenance
        if self._service.live is not None:
            self._service.live.publish(results.results, get_surveys(curves))
        timings.stage("encode")
        return results

    def _read(self, lines: Sequence[bytes]) -> list[LightCurve | InvalidLightCurve]:
        return validate_light_curves(decode_lines(lines), self._service.settings.max_points, binary_columns=False)

    def _infer_options(self) -> InferOptions:
        """Return the inference options of light curves that arrive now."""
        return infer_options(self._request, self._service.settings, monotonic(), self._query.deadline_ms)

    def _route(self, curve: LightCurve | InvalidLightCurve) -> tuple[ModelHandle, Item]:
        """Return the model for a light curve, and the item to classify."""
        if self._query.model:
            return self._handle, curve
        return route_item(curve, self._handles.get, lambda: self._handle)

    async def _infer(
        self, handles: Sequence[ModelHandle], items: Sequence[Item], options: InferOptions, wait: bool
    ) -> list[Outcome]:
        while True:
            try:
                return await infer_many(handles, items, options)
            except DeadlineExceeded as error:
                return await self._fail(items, error)
            except Overloaded as error:
                if not wait:
                    raise
                if (seconds := (options.deadline or 0.0) - monotonic()) <= 0:
                    return await self._fail(items, DeadlineExceeded())
                await asyncio.sleep(min(error.retry_after, seconds))

    async def _fail(self, items: Sequence[Item], error: DeadlineExceeded) -> list[Outcome]:
        """Return outcomes of items whose deadline has passed; invalid light curves keep their errors."""
        failed = Outcome("failed", reason=error.reason, detail=str(error))
        others = iter(await self._handle.infer([item for item in items if not isinstance(item, LightCurve)]))
        return [failed if isinstance(item, LightCurve) else next(others) for item in items]


class _ResponseWriter:
    """Sends the response, one message at a time; further results are buffered meanwhile."""

    def __init__(self, send: Send, head: Message) -> None:
        self._send, self._head = send, head
        self._pending: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self.held = 0
        self._sending = 0
        self.started = False

    def add(self, data: bytes) -> None:
        self._pending.append(data)
        self.held += len(data)

    def flush(self) -> None:
        """Send pending data unless a message is being sent. Raises errors of the previous send."""
        if self.task is not None and self.task.done():
            self.task.result()
            self.held -= self._sending
            self.task = None
        if self.task is None and self._pending:
            data = b"".join(self._pending)
            self._pending, self._sending = [], len(data)
            self.task = asyncio.create_task(self._send_body(data))

    async def _send_body(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._send(self._head)
        await self._send(body_message(data, more=True))

    async def end(self) -> None:
        await self._send(body_message(b"", more=False))


def body_message(data: bytes, more: bool) -> Message:
    """Return a message with a part of the body."""
    return {"type": "http.response.body", "body": data, "more_body": more}


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Lines that are classified together."""

    count: int
    size: int
    results: asyncio.Task[bytes]


class _StreamLoop:
    """Reads lines until ``max_held`` bytes are held, classifies them in groups, and sends the results in order.

    Parameters
    ----------
    max_held : number of held bytes beyond which nothing is read.
    """

    def __init__(self, body: LineBody, output: _ResponseWriter, classifier: LineClassifier, max_held: int) -> None:
        self._body, self._output, self._classifier = body, output, classifier
        self._max_held = max_held
        self._groups: deque[_Group] = deque()
        self._reading: asyncio.Task[list[bytes] | None] = self._read_group()
        self._ended = False
        self._error: ProblemError | None = None  # of the body or a group; raised after the results of all lines before
        self._dropped: list[asyncio.Task[bytes]] = []

    async def run(self, reservation: Reservation) -> None:
        """Classify until the end of the body. Raises ClientDisconnected and other errors that end it early."""
        try:
            while not self._step():
                reservation.resize(self._held)
                await asyncio.wait(self._next_tasks(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reservation.resize(0)
            await self._cancel()
        if self._error is not None:
            raise self._error
        await self._output.end()

    def _step(self) -> bool:
        """Do all work that needs no waiting; return True at the end of the stream."""
        while self._groups and self._groups[0].results.done():
            results = self._groups[0].results
            if isinstance(results.exception(), ProblemError) and (self._output.started or self._output.held):
                self._end_early()
                break
            self._output.add(results.result())
            self._groups.popleft()
        self._output.flush()
        if self._reading.done() and (self._reading.exception() or (self._has_room() and not self._ended)):
            self._start_group()
        return self._ended and not self._groups and self._output.task is None

    def _end_early(self) -> None:
        """End with the error of the first group, such as an exhausted quota, after the results of earlier groups."""
        self._dropped = [group.results for group in self._groups]
        self._groups.clear()
        self._ended, self._error = True, cast(ProblemError, self._dropped[0].exception())

    def _start_group(self) -> None:
        """Start classifying the lines that were read, and reading the next ones."""
        try:
            lines = self._reading.result()
        except ProblemError as error:
            self._error, lines = self._error or error, None
        if lines is None:
            self._ended = True
            self._reading = asyncio.create_task(self._body.watch())
            return
        wait = self._output.started or bool(self._groups)
        results = asyncio.create_task(self._classifier.classify(lines, wait))
        self._groups.append(_Group(len(lines), sum(map(len, lines)), results))
        self._reading = self._read_group()

    def _read_group(self) -> asyncio.Task[list[bytes] | None]:
        return asyncio.create_task(self._body.group(GROUP_LINES, GROUP_BYTES))

    @property
    def _held(self) -> int:
        return self._body.held + sum(group.size for group in self._groups) + self._output.held

    def _has_room(self) -> bool:
        if not self._groups and not self._output.held:
            return True
        return sum(group.count for group in self._groups) < MAX_PENDING and self._held < self._max_held

    def _tasks(self) -> list[asyncio.Task[Any]]:
        """Return all tasks; those of :meth:`_next_tasks` come first."""
        tasks: list[asyncio.Task[Any] | None] = [self._reading, self._output.task]
        groups = (group.results for group in self._groups)
        return [*(task for task in tasks if task is not None), *groups, *self._dropped]

    def _next_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks for which the next step waits."""
        return [task for task in islice(self._tasks(), 3) if not task.done()]

    async def _cancel(self) -> None:
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
