"""Clients of a running service, with the methods and results of :class:`nightjar_alerts.Classifier`.

    from nightjar_alerts import Client

    with Client("http://localhost:8080", api_key="...") as client:
        result = client.classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
        for result in client.stream(light_curves):
            ...

:class:`AsyncClient` has the same methods as coroutines. Inputs are sent in batches over several connections; only
batches in flight are in memory. Requests are retried after connection errors and after status 429, 502 and 503,
respecting ``Retry-After``. Requires httpx (the extra ``client``).
"""

import asyncio
import os
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache, partial
from itertools import repeat
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
import orjson
from msgspec.structs import replace

try:
    import httpx
except ImportError as error:
    from nightjar_alerts.models.common import how_to_install

    raise ImportError(f"httpx is not installed: {how_to_install('client')}") from error

from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.core.errors import InvalidLightCurve, light_curve_error
from nightjar_alerts.core.items import Read, curve_of, errors_of, identity_of, item_of, skipped_outcome
from nightjar_alerts.core.request import CALL_OPTIONS, Options
from nightjar_alerts.core.result import (
    AlertsReply,
    Classified,
    ClassifyReply,
    EvolutionFields,
    EvolutionReply,
    ResultFields,
)
from nightjar_alerts.core.serializer import RequestedPrior, failure
from nightjar_alerts.inputs import (
    CallInputs,
    Input,
    batches,
    call_options,
    decode_inputs,
    evolution_input,
    flatten,
    read_request,
    stream_inputs,
)
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.results import FORKED, Evolution, ModelNames, Result, Results, with_names

BATCH_ITEMS: Final = 64
BATCH_BYTES: Final = 2 << 20
"""Maximum size of a batch: number of light curves or packets, and bytes."""
RETRIED_STATUSES: Final = frozenset({429, 502, 503})
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 30.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""Maximum ``Retry-After``; requests that the service asks to send later are not retried."""
BYTES_PER_POINT: Final = 20


class ClientError(Exception):
    """The service did not respond, or responded with an error.

    Attributes
    ----------
    status : HTTP status; None without a response.
    errors : invalid values of the request, each with ``pointer``, ``reason`` and ``detail``.
    """

    def __init__(self, message: str, status: int | None = None, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.errors = status, list(errors)


class DeadlineExceeded(ClientError, TimeoutError):
    """The deadline passed before there was a result."""


class _Options(Options, kw_only=True, frozen=True):
    """Options of a call; ``end`` is in ``time.monotonic()`` seconds."""

    end: float | None = None

    def remaining(self) -> float | None:
        """Return the seconds until the deadline. Raises DeadlineExceeded."""
        if self.end is None:
            return None
        if (seconds := self.end - time.monotonic()) <= 0:
            raise DeadlineExceeded("the deadline passed before there was a result")
        return seconds

    def members(self) -> dict[str, Any]:
        """Return the options of the request body that differ from the defaults."""
        remaining = self.remaining()
        members = {
            "embedding": self.embedding or None,
            "prior": self.prior,
            "coverage": self.coverage,
            "experts": self.experts or None,
            "deadline_ms": None if remaining is None else max(1, round(1000 * remaining)),
        }
        return {name: value for name, value in members.items() if value is not None}


T = TypeVar("T")


class _ModelsReply(msgspec.Struct):
    models: list[dict[str, Any]]


ReplyT = TypeVar("ReplyT", ClassifyReply, AlertsReply, EvolutionReply, _ModelsReply)
Exchange = Generator[httpx.Request | float, Any, T]
"""Generator of requests to send, each followed by the response or connection error, or seconds to wait; returns T."""


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Converts batches of inputs to requests and responses to results, without I/O."""

    http: httpx.Client | httpx.AsyncClient
    url: str
    timeout: float
    retries: int
    model: str

    def single(self, each: Input, options: _Options) -> Exchange[Result]:
        """Classify one light curve. Raises LightCurveError if it is invalid."""
        (read,) = decode_inputs([each])
        if isinstance(read, InvalidLightCurve):
            raise light_curve_error(read.errors)
        ((result,),) = yield from self._group([read], options)
        if result.status == "rejected":  # by a limit of the service
            raise light_curve_error(result.errors)
        return result

    def batch(
        self, inputs: Sequence[Input], options: _Options, start: int | None = None
    ) -> Exchange[list[list[Result]]]:
        """Classify inputs; return the results of each.

        Parameters
        ----------
        start : index of the first input in its list; None if error pointers are relative to each light curve.
        """
        results: list[list[Result]] = []
        # A request needs a body, so an empty packet is rejected here.
        reads = [read_packet(each)[0] if each == b"" else each for each in decode_inputs(inputs, start)]
        for group in _groups(reads):
            results += yield from self._group(group, options)
        return results

    def _group(self, group: Sequence[Read | bytes], options: _Options) -> Exchange[list[list[Result]]]:
        try:
            if isinstance(group[0], bytes):
                return (yield from self._packet(group[0], options))
            return (yield from self._light_curves(group, options))
        except ClientError as error:
            if error.status != 413 or len(group) == 1:
                raise
        middle = len(group) // 2  # the body was too large for this service
        first_half = yield from self._group(group[:middle], options)
        return first_half + (yield from self._group(group[middle:], options))

    def _light_curves(self, reads: Sequence[Any], options: _Options) -> Exchange[list[list[Result]]]:
        bodies = [_body(each) for each in reads]

        def content() -> tuple[bytes, str]:  # called for each attempt, because the remaining time changes
            return msgspec.msgpack.encode({"light_curves": bodies, "options": options.members()}), _MSGPACK

        reply = yield from self._exchange("/v1/classify", ClassifyReply, content, options)
        return [
            [Result(_with_local_counts(each, fields, index), fields.model or reply.model, curve_of(each))]
            for index, (each, fields) in enumerate(zip(reads, reply.results, strict=True))
        ]

    def _packet(self, packet: bytes, options: _Options) -> Exchange[list[list[Result]]]:
        reply = yield from self._exchange("/v1/alerts", AlertsReply, lambda: (packet, _BINARY), options, in_query=True)
        curves = cache(lambda: list(map(curve_of, read_packet(packet))))  # decoded on first access
        return [
            [
                Result(fields, fields.model or reply.model, partial(_item, curves, index))
                for index, fields in enumerate(reply.results)
            ]
        ]

    def models(self) -> Exchange[list[dict[str, Any]]]:
        """Return the descriptions of the served models."""
        reply = yield from self._exchange("/v1/models", _ModelsReply, None, _Options())
        return reply.models

    def evolution(self, inputs: Iterable[Input], options: _Options) -> Exchange[Evolution]:
        """Classify one light curve or alert after each of its detections."""
        curve, _ = evolution_input(inputs)
        content = msgspec.msgpack.encode(_body(curve)), _MSGPACK
        reply = yield from self._exchange("/v1/evolution", EvolutionReply, lambda: content, options, in_query=True)
        fields = msgspec.convert(reply, EvolutionFields, from_attributes=True)
        return Evolution(fields, reply.model, curve)

    def _exchange(
        self,
        path: str,
        kind: type[ReplyT],
        content: Callable[[], tuple[bytes, str]] | None,
        options: _Options,
        in_query: bool = False,
    ) -> Exchange[ReplyT]:
        """Send a request, retrying as configured; return its reply, of type ``kind``. GET if there is no content."""
        note = ""
        for attempt in range(self.retries + 1):
            remaining = options.remaining()
            query = {"model": self.model} if self.model else {}
            if in_query:
                query |= {name: _text(value) for name, value in options.members().items()}
            timeout = self.timeout if remaining is None else min(self.timeout, remaining)
            if content is None:
                response = yield self.http.build_request("GET", path, timeout=timeout)
            else:
                data, media_type = content()
                response = yield self.http.build_request(
                    "POST", path, content=data, params=query, headers={"Content-Type": media_type}, timeout=timeout
                )
            if isinstance(response, httpx.Response) and response.status_code not in RETRIED_STATUSES:
                return _reply(response, kind, self.url)
            if attempt == self.retries or isinstance(response, httpx.ReadTimeout):
                break
            pause = _pause(response, attempt)
            remaining = options.remaining()
            if pause > LONGEST_WAIT_SECONDS or (remaining is not None and pause >= remaining):
                limit = f"at most {LONGEST_WAIT_SECONDS:.0f} s" if remaining is None else "until the deadline"
                note = f"; not tried again: the next try would be in {pause:,.0f} s, and the client waits {limit}"
                break
            yield pause
        if isinstance(response, httpx.Response):
            return _reply(response, kind, self.url, note)
        if isinstance(response, httpx.TimeoutException):
            options.remaining()
            raise ClientError(f"{self.url} did not answer within {timeout:g} s") from response
        raise ClientError(f"{self.url} does not answer: {response or type(response).__name__}{note}") from response


_MSGPACK, _BINARY = "application/msgpack", "application/octet-stream"


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _pause(response: object, attempt: int) -> float:
    """Return the seconds before the next attempt: ``Retry-After``, or else exponential backoff."""
    backoff: float = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt) * random.uniform(0.5, 1.0)
    if not isinstance(response, httpx.Response):
        return backoff
    stated = response.headers.get("Retry-After", "")
    try:
        seconds = float(stated)
    except ValueError:
        try:
            seconds = max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
        except (ValueError, OverflowError):
            return backoff
    return seconds if seconds >= 0 else backoff


def _reply(response: httpx.Response, kind: type[ReplyT], url: str, note: str = "") -> ReplyT:
    """Return the decoded response. Raises ClientError or PriorError for an error response."""
    try:
        if response.status_code == 200:
            return msgspec.json.decode(response.content, type=kind)
        document: dict[str, Any] = orjson.loads(response.content)
    except msgspec.ValidationError as invalid:
        raise ClientError(f"{url} answered with results that this client cannot read: {invalid}", 200) from None
    except (msgspec.DecodeError, orjson.JSONDecodeError):
        raise ClientError(
            f"{url} answered {response.status_code} with something that is not JSON{note}", response.status_code
        ) from None
    errors = document.get("errors") or []
    for error in errors[:1]:
        pointer, reason, detail = (str(error.get(name, "")) for name in ("pointer", "reason", "detail"))
        for where in ("/options/prior", "/query/prior"):
            if pointer.startswith(where):
                raise PriorError(pointer.removeprefix(where), reason, detail)
    message = f"{response.status_code} {document.get('title')}: {document.get('detail')}"
    message += "".join(f"; {error.get('pointer')}: {error.get('detail')}" for error in errors)
    problem = DeadlineExceeded if response.status_code == 504 else ClientError
    raise problem(message + note, response.status_code, errors)


def _item(curves: Callable[[], Sequence[LightCurve | None]], index: int) -> LightCurve | None:
    """Return the light curve of an alert; None if only the service could read it."""
    return curves()[index] if index < len(curves()) else None


def _with_local_counts(each: Read, received: ResultFields, index: int) -> ResultFields:
    """Return the result of a light curve or alert that was decoded here, with its identity and the counts of decoding.

    Parameters
    ----------
    index : index of the light curve in the request.
    """
    item, _ = item_of(each)
    if not isinstance(item, LightCurve):
        return failure(skipped_outcome(item), identity_of(each), errors_of(each))
    changes: dict[str, Any] = {"filters": None, "warnings": None, **identity_of(each)}
    if isinstance(received, Classified):
        changes |= {
            "duplicates": item.duplicates or None,
            "dropped_points": dict(item.dropped) or None,
            "other_filters": {**item.unknown_filters, **(received.other_filters or {})} or None,
        }
    elif isinstance(each, Packet):
        changes["errors"] = None
    elif received.errors:
        inside = f"/light_curves/{index}"
        changes["errors"] = [replace(error, pointer=error.pointer.removeprefix(inside)) for error in received.errors]
    return replace(received, **changes)


def _groups(reads: Sequence[Read | bytes]) -> Iterator[list[Read | bytes]]:
    """Divide light curves into groups for one request each; each packet is a group of its own."""
    group: list[Read | bytes] = []
    size = 0
    for each in reads:
        curve = None if isinstance(each, bytes) else curve_of(each)
        points = BYTES_PER_POINT * (0 if curve is None else len(curve))
        if group and (isinstance(each, bytes) or isinstance(group[0], bytes) or size + points > BATCH_BYTES):
            yield group
            group, size = [], 0
        group.append(each)
        size += points
    if group:
        yield group


def _body(each: Read) -> dict[str, Any]:
    """Return the body of a light curve, or an empty one, which the service rejects and counts, if there is none."""
    curve = curve_of(each)
    if curve is None:
        return {}
    body = {
        "object_id": curve.object_id,
        "mjd": curve.mjd.astype("<f8").tobytes(),
        "flux": curve.flux.astype("<f4").tobytes(),
        "flux_err": curve.flux_err.astype("<f4").tobytes(),
        "band": [FILTERS[index] for index in curve.band.tolist()],
        "detected": curve.detected.astype(np.uint8).tobytes(),
        "survey": curve.survey,
        "ra": curve.ra,
        "dec": curve.dec,
    }
    return body | ({"metadata": dict(curve.metadata)} if curve.metadata else {})


def _base_url(url: str) -> str:
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ClientError(f"{url!r} is not an http or https address")
    return url.rstrip("/")


EvolutionT = TypeVar("EvolutionT")
StreamT = TypeVar("StreamT")


class _Base(ABC, Generic[EvolutionT, StreamT]):
    """Base class of the clients, without I/O."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str = "",
        model: str = "",
        timeout: float = 60.0,
        retries: int = 5,
        connections: int = 4,
    ) -> None:
        if connections < 1:
            raise ValueError("connections must be at least 1")
        self._connections = connections
        self.url = _base_url(url)
        self._settings: dict[str, Any] = {
            "api_key": api_key, "model": model, "timeout": timeout, "retries": retries, "connections": connections,
        }  # fmt: skip
        http = self._open(
            base_url=self.url,
            headers={"Accept": "application/json"} | ({"X-API-Key": api_key} if api_key else {}),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        self._exchanges = _Exchanges(http, self.url, timeout, retries, model)

    @abstractmethod
    def _open(self, **settings: Any) -> httpx.Client | httpx.AsyncClient:
        """Return an httpx client."""

    @abstractmethod
    def _run(self, exchange: Exchange[Any]) -> Any:
        """Send the requests of an exchange and return its result."""

    @abstractmethod
    def _classify(self, request: CallInputs, options: _Options) -> Any:
        """Classify the inputs of a call."""

    @abstractmethod
    def _stream(self, items: Any, options: _Options) -> StreamT:
        """Classify inputs as an iterator yields them."""

    def __repr__(self) -> str:
        """Return the address of the service."""
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings, the API key among them; another process opens its own connections."""
        return partial(type(self), self.url, **self._settings), ()

    def classify(
        self,
        data: Any = None,
        /,
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        experts: bool = False,
        deadline: float | None = None,
        **fields: Any,
    ) -> Any:
        """Classify light curves or alerts, as :meth:`nightjar_alerts.Classifier.classify` does.

        Parameters
        ----------
        deadline : seconds until a result is needed, including retries.

        Raises
        ------
        TypeError
            If the deadline is no number.
        ClientError
            If the service does not respond or responds with an error; :class:`DeadlineExceeded` after the deadline.
        LightCurveError, PriorError, TableError
            As in the classifier.
        """
        request = read_request(data, fields)
        options = _options(
            deadline, request.options, embedding=embedding, prior=prior, coverage=coverage, experts=experts
        )
        return self._classify(request, options)

    def models(self) -> Any:
        """Return the descriptions of the served models, as ``GET /v1/models`` sends them. Raises ClientError."""
        return self._run(self._exchanges.models())

    def evolution(
        self,
        data: Any = None,
        /,
        *,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        deadline: float | None = None,
        **fields: Any,
    ) -> EvolutionT:
        """Classify an object after each of its detections, as :meth:`nightjar_alerts.Classifier.evolution` does."""
        request = read_request(data, fields)
        options = _options(deadline, request.options, prior=prior, coverage=coverage)
        evolution: EvolutionT = self._run(self._exchanges.evolution(request.inputs, options))
        return evolution

    def stream(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        experts: bool = False,
        deadline: float | None = None,
    ) -> StreamT:
        """Yield the results of any number of light curves or alerts, in order, in bounded memory."""
        return self._stream(
            items, _options(deadline, {}, embedding=embedding, prior=prior, coverage=coverage, experts=experts)
        )


def _options(deadline: float | None, named: Mapping[str, Any], **default: Any) -> _Options:
    if deadline is not None and (isinstance(deadline, bool) or not isinstance(deadline, int | float)):
        raise TypeError(f"deadline must be a number of seconds, not {deadline!r}")
    return _until(call_options(named, **default), None if deadline is None else time.monotonic() + deadline)


def _until(options: Options, end: float | None) -> _Options:
    return _Options(**{name: getattr(options, name) for name in CALL_OPTIONS}, end=end)


class Client(_Base[Evolution, Iterator[Result]]):
    """Client of a running service. Thread-safe; can be pickled.

    Parameters
    ----------
    url : address of the service, with its path prefix if it has one.
    api_key : sent as ``X-API-Key``.
    model : name of the model that classifies everything; by default the service chooses.
    timeout : seconds to wait for a response.
    retries : maximum number of retries of a request.
    connections : maximum number of concurrent requests.
    """

    def _open(self, **settings: Any) -> httpx.Client:
        self._http = httpx.Client(**settings)
        return self._http

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def classify_each(self, inputs: Iterable[Input], options: Options) -> Iterator[list[Result]]:
        """Yield the results of each input, in order; a packet with several alerts has several results."""
        return self._each(inputs, _until(options, None))

    def _each(self, inputs: Iterable[Input], options: _Options, indexed: bool = False) -> Iterator[list[Result]]:
        remaining, start, names = batches(inputs, repeat(BATCH_ITEMS)), 0, ModelNames()
        process = os.getpid()
        waiting: deque[Future[list[list[Result]]]] = deque()
        failure: Exception | None = None  # of the inputs: the results of those before come first
        with ThreadPoolExecutor(self._connections, "nightjar-client") as pool:
            try:
                while True:
                    while failure is None and len(waiting) < 2 * self._connections:
                        try:
                            batch = next(remaining, None)
                        except Exception as error:
                            failure = error
                            break
                        if batch is None:
                            break
                        exchange = self._exchanges.batch(batch, options, start if indexed else None)
                        waiting.append(pool.submit(self._run, exchange))
                        start += len(batch)
                    if failure is not None and not waiting:
                        raise failure
                    if not waiting:
                        return
                    for results in waiting.popleft().result():
                        yield list(map(names, results))
                        if os.getpid() != process:
                            waiting.clear()  # a lock of a future may be held
                            raise RuntimeError(FORKED)
            finally:
                for future in waiting:
                    future.cancel()

    def _classify(self, request: CallInputs, options: _Options) -> Result | Results:
        if request.single:
            result: Result = self._run(self._exchanges.single(next(iter(request.inputs)), options))
            return result
        each = self._each(request.inputs, options, request.indexed)
        return Results(with_names(each, request.names), request.notes)

    def _stream(self, items: Iterable[Any], options: _Options) -> Iterator[Result]:
        for results in self._each(stream_inputs(items), options):
            yield from results

    def _run(self, exchange: Exchange[Any]) -> Any:
        """Send the requests of an exchange and return its result."""
        answer: object = None
        while True:
            try:
                step = exchange.send(answer)
            except StopIteration as end:
                return end.value
            try:
                if isinstance(step, float):
                    time.sleep(step)
                else:
                    answer = self._http.send(step)
            except httpx.TransportError as error:
                answer = error


class AsyncClient(_Base[Awaitable[Evolution], AsyncIterator[Result]]):
    """Asyncio client of a running service, with the methods of :class:`Client` as coroutines."""

    def _open(self, **settings: Any) -> httpx.AsyncClient:
        self._http = httpx.AsyncClient(**settings)
        return self._http

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _classify(self, request: CallInputs, options: _Options) -> Result | Results:
        if request.single:
            result: Result = await self._run(self._exchanges.single(next(iter(request.inputs)), options))
            return result
        each = [results async for results in self._each(request.inputs, options, request.indexed)]
        return Results(with_names(each, request.names), request.notes)

    async def _stream(self, items: Iterable[Any] | AsyncIterable[Any], options: _Options) -> AsyncIterator[Result]:
        async with aclosing(self._each(items, options)) as each:
            async for results in each:
                for result in results:
                    yield result

    async def _each(
        self, items: Iterable[Any] | AsyncIterable[Any], options: _Options, indexed: bool = False
    ) -> AsyncGenerator[list[Result], None]:
        remaining, start, names = _batches(items), 0, ModelNames()
        waiting: deque[asyncio.Task[list[list[Result]]]] = deque()
        failure: Exception | None = None  # of the inputs: the results of those before come first
        try:
            while True:
                while failure is None and len(waiting) < self._connections:
                    try:
                        batch = await anext(remaining, None)
                    except Exception as error:
                        failure = error
                        break
                    if batch is None:
                        break
                    exchange = self._exchanges.batch(batch, options, start if indexed else None)
                    waiting.append(asyncio.create_task(self._run(exchange)))
                    start += len(batch)
                if failure is not None and not waiting:
                    raise failure
                if not waiting:
                    return
                for results in await waiting.popleft():
                    yield list(map(names, results))
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await remaining.aclose()

    async def _run(self, exchange: Exchange[Any]) -> Any:
        """Send the requests of an exchange and return its result."""
        answer: object = None
        while True:
            try:
                step = exchange.send(answer)
            except StopIteration as end:
                return end.value
            try:
                answer = await (asyncio.sleep(step) if isinstance(step, float) else self._http.send(step))
            except httpx.TransportError as error:
                answer = error


async def _batches(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[list[Input], None]:
    """Yield the inputs in lists, as :func:`nightjar_alerts.inputs.batches` does."""
    if not isinstance(items, AsyncIterable):
        for batch in batches(stream_inputs(items), repeat(BATCH_ITEMS)):
            yield batch
        return
    taken: list[Input] = []
    try:
        async for item in items:
            taken.extend(flatten([item]))
            if len(taken) >= BATCH_ITEMS:
                yield taken
                taken = []
    except Exception:
        if taken:
            yield taken
        raise
    if taken:
        yield taken
