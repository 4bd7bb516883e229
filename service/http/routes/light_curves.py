"""``POST /v1/classify``: light curves in any of the formats.

As a stream, ``/v1/classify`` takes a light curve in every line that comes, and writes a result in every line that goes.
Results go out in order while light curves still come in, so a stream may be longer than memory:

- what is held (lines, light curves being answered, results not yet sent) is bounded and charged to the budget of all
  bodies. Beyond the bound nothing more is read, and TCP tells the client to wait; a client that leaves its results
  unread is disconnected (``stall_timeout``);
- a line that is not JSON, or no good light curve, is answered alone;
- while the engine is full the stream waits, each light curve until its deadline. Only when there is no room for the
  first of them is the request refused (429);
- a client that goes away takes its waiting light curves with it.

What ends a stream early (a line too long, none for ``body_timeout`` seconds, a service that stops) is a problem like
any other before the first result is out, and ``{"problem": ...}`` in a last line after.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.answers.serializer import encode_json
from nightjar_alerts.service.dataplane import FAILURE_REASONS, InferOptions, Outcome, Skipped
from nightjar_alerts.service.engine.batch import DeadlineExceeded, Overloaded
from nightjar_alerts.service.http import openapi
from nightjar_alerts.service.http.curves import (
    InvalidCurve,
    Item,
    NotWhole,
    ParsedBody,
    check_bare,
    check_deadline,
    classify_results,
    light_curves_of,
    merged_options,
    parse_lines,
    read_query,
    result_serializers,
    serializer_for,
)
from nightjar_alerts.service.http.edge import errors
from nightjar_alerts.service.http.edge.errors import ProblemError, problem_document, problem_of
from nightjar_alerts.service.http.edge.receive import (
    ClientDisconnected,
    LineBody,
    Reservation,
    cancel_on_disconnect,
    content_coding,
    media_type,
)
from nightjar_alerts.service.http.endpoint import (
    INLINE_BYTES,
    INLINE_ITEMS,
    LARGE_BYTES,
    Timings,
    charge,
    client_of,
    described,
    infer_options,
    key_of,
    read_body,
    reply,
    routing_key,
)
from nightjar_alerts.service.http.formats import (
    FORMATS,
    LINES_TYPE,
    Format,
    body_format,
    reply_format,
    write_lines,
)
from nightjar_alerts.service.http.forms import ClassifyQuery, Options
from nightjar_alerts.service.http.lifecycle import Service, service_of
from nightjar_alerts.service.registry.router import outside_domain
from nightjar_alerts.service.registry.serving import ModelHandle, acquired, infer_many

router = APIRouter()


@router.post(
    "/v1/classify",
    **described(
        "Classify light curves",
        openapi.CLASSIFY_BODY,
        openapi.CLASSIFY_REPLY,
        ClassifyQuery,
        more=(errors.NOT_ACCEPTABLE, errors.UNAVAILABLE),
    ),
)
async def classify(request: Request) -> Response:
    """Send one light curve, or many under `light_curves`.

    A single invalid light curve is a problem (422) whose `errors` point at the invalid values. In a batch, an invalid
    light curve gets the status `rejected` and the others are classified. A light curve without observations in the
    model's bands is `abstained`. Observations may be in any order.

    Light curves can also be sent as msgpack (`application/msgpack`), where a column may be the bytes of its
    little-endian values: `mjd` float64, `flux`, `flux_err` and `metadata` float32, `band` and `detected` one byte each;
    as an Arrow IPC stream with one row for each light curve; or as NDJSON (`application/x-ndjson`), one light curve per
    line, with results returned while more lines are sent. `Accept` selects the format of the reply, by default that of
    the request. Options are in the body or, in formats without a place for them, query parameters. Where a JSON object
    repeats a name, its last value counts.
    """
    service, settings = service_of(request), service_of(request).settings
    timings = Timings(service.metrics)
    query = read_query(request, ClassifyQuery)
    if query.model or not service.models.started:
        service.select_model(query.model)  # an unknown model is an error before anything is read
    body_form = body_format(media_type(request, FORMATS))
    reply_form = reply_format(request.headers.get("accept", ""), body_form)
    check_deadline(query.deadline_ms, "/query/deadline_ms", settings)
    if body_form.read is None:
        return CurveStream(request, query)
    with service.budget.reserve(client_of(request)) as reservation:
        data = await read_body(request, reservation, settings.max_json_bytes)
        timings.stage("receive")
        body = await _decode(data, body_form, service)
        del data  # what was made of it stays charged, and is smaller
        timings.stage("decode")
        build = partial(light_curves_of, body, settings)
        curves = await service.run_maybe_in_thread(build, len(body.forms) > INLINE_ITEMS)
        timings.stage("validate")
        options = merged_options(body, query)
        handles, items = _choose_models(request, service, query.model, curves, single_model=reply_form.single_model)
        if options.prior is not None:  # unknown class shares are an error before anything is classified
            result_serializers(handles, options.prior, settings.prior)
        terms = infer_options(request, settings, timings.started, options.deadline_ms)
        await charge(request, service, len(items))
        with acquired(dict.fromkeys(handles)):
            outcomes = await cancel_on_disconnect(request, infer_many(handles, items, terms))
    timings.start()
    check_bare(body, outcomes)
    encode = partial(_encode, reply_form, handles, settings.prior, curves, outcomes, options)
    content = await service.run_maybe_in_thread(encode, len(outcomes) > INLINE_ITEMS or reply_form.in_thread)
    timings.stage("encode")
    return reply(request, content, reply_form.media_type, handles, outcomes, timings)


async def _decode(data: bytes, form: Format, service: Service) -> ParsedBody:
    """Decode a body, on the event loop if it is small and valid."""
    assert form.read is not None
    if len(data) <= INLINE_BYTES and not form.in_thread:
        try:
            return form.read(data, service.settings, True)
        except NotWhole:
            pass
    return await service.run_in_thread(partial(form.read, data, service.settings, False), len(data) > LARGE_BYTES)


def _choose_models(
    request: Request, service: Service, model: str, curves: Sequence[Item], single_model: bool
) -> tuple[list[ModelHandle], list[Any]]:
    """Choose the model of each light curve; returns those and the items for them."""
    key = ""
    if service.models.router.canaries:  # else no key is needed
        key = routing_key(request, (curve.object_id for curve in curves))
    choices = [service.route(curve, model, routing_key=key, substitute=not single_model) for curve in curves]
    return [handle for handle, _ in choices], [item for _, item in choices]


def _encode(
    form: Format,
    handles: Sequence[ModelHandle],
    prior: str,
    curves: Sequence[Item],
    outcomes: Sequence[Outcome],
    options: Options,
) -> bytes:
    return form.write(classify_results(result_serializers(handles, options.prior, prior), curves, outcomes, options))


class LineAnswerer:
    """Answers the lines of one stream."""

    def __init__(self, request: Request, handle: ModelHandle, options: ClassifyQuery) -> None:
        self._request, self._service = request, service_of(request)
        self._handle, self._options = handle, options
        self._serializer = serializer_for(handle, options.prior, self._service.settings.prior)
        self._terms()  # raises for a wrong deadline in a header

    @property
    def model_name(self) -> str:
        """Name, version and hash of the network that answers, as a header says them."""
        network = "{name}/{version}; sha256={sha256}".format_map(self._serializer.provenance)
        return f"{network}; role={self._handle.role}" if self._handle.role else network

    async def answer(self, lines: Sequence[bytes], patient: bool) -> bytes:
        """One line for each, in order.

        Parameters
        ----------
        patient : wait while the engine is full instead of raising Overloaded.
        """
        if self._service.quotas is not None:
            await self._service.quotas.throttle(key_of(self._request))
        await charge(self._request, self._service, len(lines))
        terms = self._terms()
        timings = Timings(self._service.metrics)
        parse = partial(parse_lines, lines, self._service.settings)
        items = await self._service.run_maybe_in_thread(parse, sum(map(len, lines)) > INLINE_BYTES)
        timings.stage("decode")
        outcomes = await self._ask(items, terms, patient)
        timings.start()
        written = write_lines(classify_results([self._serializer] * len(items), items, outcomes, self._options))
        timings.stage("encode")
        return written

    def _terms(self) -> InferOptions:
        """Terms of light curves that come now."""
        return infer_options(self._request, self._service.settings, monotonic(), self._options.deadline_ms)

    async def _ask(self, items: Sequence[Item], terms: InferOptions, patient: bool) -> list[Outcome]:
        while True:
            try:
                return await self._handle.infer([self._item_or_refusal(item) for item in items], terms)
            except DeadlineExceeded as late:
                return await self._too_late(items, late)
            except Overloaded as full:
                if not patient:
                    raise
                if (seconds := (terms.deadline or 0.0) - monotonic()) <= 0:
                    return await self._too_late(items, DeadlineExceeded())
                await asyncio.sleep(min(full.retry_after, seconds))

    def _item_or_refusal(self, item: Item) -> Item | Skipped:
        """Refuse what lies outside the model's domain: a stream has one model, and nothing is led to another."""
        if self._options.model or not isinstance(item, LightCurve):
            return item
        return outside_domain(item, self._handle.bundle.manifest) or item

    async def _too_late(self, items: Sequence[Item], late: DeadlineExceeded) -> list[Outcome]:
        """Answer light curves whose time has passed; bad ones are told what is wrong all the same."""
        failed = Outcome("failed", reason=FAILURE_REASONS[DeadlineExceeded], detail=str(late))
        bad = iter(await self._handle.infer([item for item in items if isinstance(item, InvalidCurve)]))
        return [next(bad) if isinstance(item, InvalidCurve) else failed for item in items]


GROUP_LINES = 64  # answered together: enough for the engine to choose among, few enough that the first is soon out
GROUP_BYTES = 256 * 1024
MOST_WAITING = 512
"""Light curves of one stream in the engine at a time."""

MODEL_HEADER = "Nightjar-Model"


class CurveStream(Response):
    """The reply to a stream, which reads the request while it is sent.

    What ends the stream early is raised as well, after the client has been told: the middleware counts it.
    """

    def __init__(self, request: Request, query: ClassifyQuery) -> None:
        self._request, self._service = request, service_of(request)
        self._query, self._key = query, routing_key(request)
        super().__init__(media_type=LINES_TYPE, headers={"X-Accel-Buffering": "no"})  # nginx would hold results back
        del self.headers["content-length"]  # 0 for a Response without content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, all of it with the same version of the model."""
        client_id = client_of(self._request)
        self._service.streams.acquire(client_id)  # fewer than requests: streams last, and others must get in meanwhile
        try:
            with self._service.select_model(self._query.model, routing_key=self._key) as handle:
                await self._converse(LineAnswerer(self._request, handle, self._query), scope, receive, send)
        finally:
            self._service.streams.release(client_id)

    async def _converse(self, answerer: LineAnswerer, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers[MODEL_HEADER] = answerer.model_name
        settings, head = self._service.settings, {"status": self.status_code, "headers": self.raw_headers}
        output = _Output(send, {"type": "http.response.start", **head})
        try:
            with self._service.budget.reserve(client_of(self._request)) as reservation:
                if content_coding(self._request):  # a compressed stream is read as a whole, within its limit
                    receive = _received(await read_body(self._request, reservation, settings.max_json_bytes), receive)
                conversation = _Conversation(LineBody(receive, settings), output, answerer, settings.max_json_bytes)
                await conversation.run(reservation)
        except ClientDisconnected:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if output.started:
                problem = problem_document(problem_of(error), scope["path"], scope["state"]["request_id"])
                await send(_part(encode_json({"problem": problem}) + b"\n", more=False))
            raise


def _received(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body that is there already, and then what the connection says."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return messages.pop() if messages else await receive()

    return receive_next


class _Output:
    """The way out: at most one part of the reply is being sent, the rest waits here."""

    def __init__(self, send: Send, head: Message) -> None:
        self._send, self._head = send, head
        self._waiting: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self.held = 0
        self._sent_next = 0
        self.started = False

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self.held += len(data)

    def push(self) -> None:
        """Send what waits, unless something is still on its way; raises what sending raised."""
        if self.task is not None and self.task.done():
            self.task.result()
            self.held -= self._sent_next
            self.task = None
        if self.task is None and self._waiting:
            data = b"".join(self._waiting)
            self._waiting, self._sent_next = [], len(data)
            self.task = asyncio.create_task(self._put(data))

    async def _put(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._send(self._head)
        await self._send(_part(data, more=True))

    async def end(self) -> None:
        await self._send(_part(b"", more=False))


def _part(data: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Light curves being answered together."""

    count: int
    size: int
    results: asyncio.Task[bytes]


class _Conversation:
    """Reads lines while there is room, has groups of them answered, sends results in order: one loop over three waits.

    Parameters
    ----------
    most_held : bytes held beyond which nothing more is read.
    """

    def __init__(self, body: LineBody, output: _Output, answerer: LineAnswerer, most_held: int) -> None:
        self._body, self._output, self._answerer = body, output, answerer
        self._most_held = most_held
        self._groups: deque[_Group] = deque()
        self._reading: asyncio.Task[list[bytes] | None] = self._read_on()
        self._ended = False
        self._fault: ProblemError | None = None  # of the body; told when everything before it has been answered

    async def run(self, reservation: Reservation) -> None:
        """Read and answer until the end; raises ClientDisconnected and whatever else ends it early."""
        try:
            while not self._turn():
                reservation.hold(self._held)
                await asyncio.wait(self._pending(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reservation.hold(0)
            await self._stop()
        if self._fault is not None:
            raise self._fault
        await self._output.end()

    def _turn(self) -> bool:
        """Do what can be done without waiting; return True when the conversation is over."""
        while self._groups and self._groups[0].results.done():
            self._output.add(self._groups.popleft().results.result())
        self._output.push()
        if self._reading.done() and (self._has_room() or self._reading.exception()):
            self._read()
        return self._ended and not self._groups and self._output.task is None

    def _read(self) -> None:
        try:
            lines = self._reading.result()
        except ProblemError as fault:
            self._fault, lines = fault, None
        if lines is None:
            self._ended = True
            self._reading = asyncio.create_task(self._body.watch())
            return
        patient = self._output.started or bool(self._groups)
        work = asyncio.create_task(self._answerer.answer(lines, patient))
        self._groups.append(_Group(len(lines), sum(map(len, lines)), work))
        self._reading = self._read_on()

    def _read_on(self) -> asyncio.Task[list[bytes] | None]:
        return asyncio.create_task(self._body.group(GROUP_LINES, GROUP_BYTES))

    @property
    def _held(self) -> int:
        return self._body.held + sum(group.size for group in self._groups) + self._output.held

    def _has_room(self) -> bool:
        if not self._groups and not self._output.held:
            return True
        return sum(group.count for group in self._groups) < MOST_WAITING and self._held < self._most_held

    def _tasks(self) -> list[asyncio.Task[Any]]:
        """Every task under way; of the groups the first is the next to be sent."""
        tasks: list[asyncio.Task[Any] | None] = [self._reading, self._output.task]
        return [*(task for task in tasks if task is not None), *(group.results for group in self._groups)]

    def _pending(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that the next turn has to wait for."""
        return [task for task in islice(self._tasks(), 3) if not task.done()]

    async def _stop(self) -> None:
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
