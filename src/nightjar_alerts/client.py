"""Clients of a running service, with the methods and the results of :class:`nightjar_alerts.Classifier`.

    from nightjar_alerts import Client

    with Client("http://localhost:8080", api_key="...") as client:
        result = client.classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
        for result in client.stream(light_curves):
            ...

:class:`AsyncClient` has the same methods as coroutines. Inputs are sent in batches over several connections, and only
so many are in memory as are on their way. A request is sent again after a lost connection, and after 429, 502 and 503,
as late as ``Retry-After`` says. httpx is needed: ``pip install 'nightjar-alerts[client]'``.
"""

import asyncio
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
    Sized,
)
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
import orjson

try:
    import httpx
except ImportError as error:
    raise ImportError("httpx is not installed: pip install 'nightjar-alerts[client]'") from error

from nightjar_alerts.inputs import (
    Body,
    CallOptions,
    Input,
    Request,
    decode_bodies,
    errors_of,
    flatten,
    identity_of,
    item_of,
    read_request,
    to_error,
)
from nightjar_alerts.models.alerts.envelopes import read_packet
from nightjar_alerts.models.alerts.packet import Packet
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.results import Evolution, Result, Results, Source
from nightjar_alerts.service.answers.serializer import RequestedPrior, failure_document, packet_identity
from nightjar_alerts.service.inference import skipped_outcome
from nightjar_alerts.service.lightcurves.errors import InvalidLightCurve

BATCH_ITEMS: Final = 64
BATCH_BYTES: Final = 2 << 20
"""Largest batch: light curves or packets, and bytes."""
RETRIED_STATUSES: Final = frozenset({429, 502, 503})
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 30.0
BYTES_PER_POINT: Final = 40


class ClientError(Exception):
    """The service does not answer, or answered with an error.

    Attributes
    ----------
    status : HTTP status; None without a reply.
    errors : invalid values of the request, each with ``pointer``, ``reason`` and ``detail``.
    """

    def __init__(self, message: str, status: int | None = None, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.errors = status, list(errors)


class DeadlineExceeded(ClientError, TimeoutError):
    """The deadline passed before there was a result."""


@dataclass(frozen=True, slots=True)
class _Options(CallOptions):
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
        """Return the options that are not the defaults, as the service takes them."""
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
Exchange = Generator[httpx.Request | float, Any, T]
"""Requests to send, each answered by the response or the error of the connection, and seconds to wait; returns T."""


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Batches of inputs to requests, and responses to results; carries out no request itself."""

    http: httpx.Client | httpx.AsyncClient
    url: str
    timeout: float
    retries: int
    model: str

    def single(self, each: Input, options: _Options) -> Exchange[Result]:
        """Classify one light curve. Raises LightCurveError if it is invalid."""
        if isinstance(each, InvalidLightCurve):
            raise each
        ((result,),) = yield from self._group([each], options, single=True)
        return result

    def batch(
        self, inputs: Sequence[Input], options: _Options, start: int | None = None
    ) -> Exchange[list[list[Result]]]:
        """Classify inputs; return the results of each.

        Parameters
        ----------
        start : index of the first input in its list; None if errors point into each light curve.
        """
        results: list[list[Result]] = []
        for group in _groups(inputs):
            results += yield from self._group(group, options)
        if start is not None:
            for index, (each, found) in enumerate(zip(inputs, results, strict=True), start):
                if isinstance(each, Mapping):
                    found[0].prefix_errors(f"/light_curves/{index}")
        return results

    def _group(self, group: Sequence[Input], options: _Options, single: bool = False) -> Exchange[list[list[Result]]]:
        first = group[0]
        if (skipped := _skipped(first)) is not None:
            return [[skipped]]
        try:
            if isinstance(first, bytes):
                return (yield from self._packet(first, options))
            return (yield from self._light_curves(group, options, single))
        except ClientError as error:
            if error.status != 413 or len(group) == 1:
                raise
        middle = len(group) // 2  # too much for this service
        first_half = yield from self._group(group[:middle], options, single)
        return first_half + (yield from self._group(group[middle:], options, single))

    def _light_curves(self, group: Sequence[Any], options: _Options, single: bool) -> Exchange[list[list[Result]]]:
        bodies = [_body(each) for each in group]
        form: Callable[[], Any] = lambda: (  # noqa: E731  # anew for each try: the deadline comes closer
            {**bodies[0], "options": options.members()}
            if single
            else {"light_curves": bodies, "options": options.members()}
        )
        reply = yield from self._exchange(
            "/v1/classify", lambda: (msgspec.msgpack.encode(form()), _MSGPACK), options, single
        )
        results = []
        for index, (each, body, document) in enumerate(zip(group, bodies, reply["results"], strict=True)):
            for error in document.get("errors", ()):
                error["pointer"] = error["pointer"].removeprefix(f"/light_curves/{index}")
            if isinstance(each, Packet):
                document = {"status": document["status"], **packet_identity(each), **document}
            results.append([_result(document, reply, _source(each, body))])
        return results

    def _packet(self, packet: bytes, options: _Options) -> Exchange[list[list[Result]]]:
        if options.coverage is not None:
            raise TypeError("the service has no option `coverage` for alert packets")
        reply = yield from self._exchange("/v1/alerts", lambda: (packet, _BINARY), options, in_query=True)
        curves = _PacketCurves(packet)
        return [[_result(document, reply, partial(curves.get, i)) for i, document in enumerate(reply["results"])]]

    def evolution(self, each: Input, options: _Options) -> Exchange[Evolution]:
        """Classify one light curve or alert after each of its detections."""
        if not isinstance(each, bytes | Mapping) and not isinstance(item := item_of(each)[0], LightCurve):
            raise to_error(item)
        body = {} if isinstance(each, bytes) else _body(each)  # type: ignore[arg-type]  # the rest raised above
        content = (each, _BINARY) if isinstance(each, bytes) else (msgspec.msgpack.encode(body), _MSGPACK)
        source = _PacketCurves(each).get(0) if isinstance(each, bytes) else _source(each, body)
        document = yield from self._exchange("/v1/evolution", lambda: content, options, True, in_query=True)
        return Evolution(document, document.pop("model"), source() if callable(source) else source)

    def _exchange(
        self,
        path: str,
        content: Callable[[], tuple[bytes, str]],
        options: _Options,
        single: bool = False,
        in_query: bool = False,
    ) -> Exchange[dict[str, Any]]:
        """Send a request until there is a reply that is worth no other try; return its JSON."""
        for attempt in range(self.retries + 1):
            remaining = options.remaining()
            query = {"model": self.model} if self.model else {}
            if in_query:
                query |= {name: _text(value) for name, value in options.members().items()}
            timeout = self.timeout if remaining is None else min(self.timeout, remaining)
            data, media_type = content()
            response = yield self.http.build_request(
                "POST", path, content=data, params=query, headers={"Content-Type": media_type}, timeout=timeout
            )
            if isinstance(response, httpx.Response) and response.status_code not in RETRIED_STATUSES:
                return _reply(response, self.url, single)
            if attempt == self.retries or isinstance(response, httpx.ReadTimeout):
                break
            pause = _pause(response, attempt)
            if options.end is not None and time.monotonic() + pause >= options.end:
                break
            yield pause
        if isinstance(response, httpx.Response):
            return _reply(response, self.url, single)
        if isinstance(response, httpx.TimeoutException):
            options.remaining()
            raise ClientError(f"{self.url} did not answer within {timeout:g} s") from response
        raise ClientError(f"{self.url} does not answer: {response or type(response).__name__}") from response


_MSGPACK, _BINARY = "application/msgpack", "application/octet-stream"


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _pause(response: object, attempt: int) -> float:
    """Return the seconds before the next try: those of ``Retry-After``, or more with every try."""
    backoff: float = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt) * random.uniform(0.5, 1.0)
    if not isinstance(response, httpx.Response):
        return backoff
    stated = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(stated))
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
        except ValueError:
            return backoff


def _reply(response: httpx.Response, url: str, single: bool) -> dict[str, Any]:
    """Return the JSON of a reply. Raises ClientError, LightCurveError or PriorError for a problem."""
    try:
        document: dict[str, Any] = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        raise ClientError(
            f"{url} answered {response.status_code} with something that is not JSON", response.status_code
        ) from None
    if response.status_code == 200:
        return document
    errors = document.get("errors") or []
    if errors and response.status_code == 422:
        pointer, reason, detail = (str(errors[0].get(name, "")) for name in ("pointer", "reason", "detail"))
        for where in ("/options/prior", "/query/prior"):
            if pointer.startswith(where):
                raise PriorError(pointer.removeprefix(where), reason, detail)
        if single and not pointer.startswith(("/options", "/query")):
            raise LightCurveError(pointer, reason, f"{pointer.lstrip('/')}: {detail}")
    message = f"{response.status_code} {document.get('title')}: {document.get('detail')}"
    if errors:
        message += "".join(f"; {error.get('pointer')}: {error.get('detail')}" for error in errors)
    kind = DeadlineExceeded if response.status_code == 504 else ClientError
    raise kind(message, response.status_code, errors)


def _result(document: dict[str, Any], reply: Mapping[str, Any], source: Any) -> Result:
    return Result(document, document.get("model") or reply["model"], source)


def _skipped(each: Input) -> Result | None:
    """Return the result of what is known to be unfit before it is sent; None for what is sent."""
    if isinstance(each, bytes | Mapping):
        return None
    item, _ = item_of(each)
    if isinstance(item, LightCurve):
        return None
    return Result(failure_document(skipped_outcome(item), identity_of(each), errors_of(each)), {})


def _source(each: Input, body: Body) -> Source:
    if isinstance(each, Packet):
        return each.curve
    return each if isinstance(each, LightCurve) else partial(_decoded, body)


def _decoded(body: Body) -> LightCurve | None:
    curve = decode_bodies([body])[0]
    return curve if isinstance(curve, LightCurve) else None


class _PacketCurves:
    """Light curves of the alerts in a packet, which is decoded when the first is looked at."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._curves: list[LightCurve | None] | None = None

    def get(self, index: int) -> LightCurve | None:
        """Return the light curve of an alert; None if it has none."""
        if self._curves is None:
            self._curves = [each.curve if isinstance(each, Packet) else None for each in read_packet(self._packet)]
        return self._curves[index] if index < len(self._curves) else None


def _size(each: Input) -> int:
    if isinstance(each, Mapping):
        mjd = each.get("mjd")
        return BYTES_PER_POINT * len(mjd) if isinstance(mjd, Sized) else 0
    return BYTES_PER_POINT * len(each) if isinstance(each, LightCurve) else 0


def _groups(inputs: Sequence[Input]) -> Iterator[list[Input]]:
    """Divide inputs into groups for one request: light curves in batches, each packet alone."""
    group: list[Input] = []
    size = 0
    for each in inputs:
        alone = isinstance(each, bytes) or _skipped(each) is not None
        if group and (alone or len(group) == BATCH_ITEMS or size + _size(each) > BATCH_BYTES):
            yield group
            group, size = [], 0
        if alone:
            yield [each]
            continue
        group.append(each)
        size += _size(each)
    if group:
        yield group


def _body(each: LightCurve | Packet | Body) -> dict[str, Any]:
    """Return the body of a light curve; msgpack has NaN, so that the service names it."""
    if isinstance(each, Packet):
        assert each.curve is not None
        each = each.curve
    if isinstance(each, LightCurve):
        body = {
            "object_id": each.object_id,
            "mjd": each.mjd.astype("<f8").tobytes(),
            "flux": each.flux.astype("<f4").tobytes(),
            "flux_err": each.flux_err.astype("<f4").tobytes(),
            "band": [FILTERS[index] for index in each.band.tolist()],
            "detected": each.detected.astype(np.uint8).tobytes(),
            "survey": each.survey,
        }
        return body | ({"metadata": dict(each.metadata)} if each.metadata else {})
    return {name: _plain(value) for name, value in each.items() if name != "options"}


def _plain(value: Any) -> Any:
    """Return a value as plain objects, arrays and columns of tables as lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, str | bytes | int | float | bool) or value is None:
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, list | tuple):
        return [each.item() if isinstance(each, np.generic) else each for each in value]
    return np.asarray(value).tolist()


def _base_url(url: str) -> str:
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ClientError(f"{url!r} is not an http or https address")
    return url.rstrip("/")


EvolutionT = TypeVar("EvolutionT")
StreamT = TypeVar("StreamT")


class _Base(ABC, Generic[EvolutionT, StreamT]):
    """What the clients share: everything but waiting."""

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
        http = self._open(
            base_url=self.url,
            headers={"Accept": "application/json"} | ({"X-API-Key": api_key} if api_key else {}),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        self._exchanges = _Exchanges(http, self.url, timeout, retries, model)

    @abstractmethod
    def _open(self, **settings: Any) -> httpx.Client | httpx.AsyncClient:
        """Return a client of httpx."""

    @abstractmethod
    def _run(self, exchange: Exchange[Any]) -> Any:
        """Carry out an exchange."""

    @abstractmethod
    def _classify(self, request: Request, options: _Options) -> Any:
        """Classify what a call asks for."""

    @abstractmethod
    def _stream(self, items: Any, options: _Options, indexed: bool = False) -> StreamT:
        """Classify inputs as they come."""

    def __repr__(self) -> str:
        """Return the address of the service."""
        return f"{type(self).__name__}({self.url!r})"

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
        deadline : seconds after which a result is worthless, all tries included.

        Raises
        ------
        ClientError
            If the service does not answer, or answers with an error; :class:`DeadlineExceeded` after the deadline.
        LightCurveError, PriorError, TableError
            As the classifier does.
        """
        request = read_request(data, fields)
        options = _options(
            deadline, request.options, embedding=embedding, prior=prior, coverage=coverage, experts=experts
        )
        return self._classify(request, options)

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
        inputs = list(request.inputs)
        if len(inputs) != 1:
            raise ValueError(f"evolution takes one light curve or alert, not {len(inputs)}")
        options = _options(deadline, request.options, prior=prior, coverage=coverage)
        evolution: EvolutionT = self._run(self._exchanges.evolution(inputs[0], options))
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
    given = CallOptions.of(named, **default)
    end = None if deadline is None else time.monotonic() + deadline
    return _Options(given.embedding, given.prior, given.coverage, given.experts, end)


class Client(_Base[Evolution, Iterator[Result]]):
    """Client of a running service. Thread-safe.

    Parameters
    ----------
    url : address of the service, with its path prefix if it has one.
    api_key : sent as ``X-API-Key``.
    model : name of the model that classifies everything; by default the service chooses.
    timeout : seconds to wait for a reply.
    retries : tries after the first one that fails.
    connections : requests at the same time.
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

    def classify_each(self, inputs: Iterable[Input], options: CallOptions) -> Iterator[list[Result]]:
        """Yield the results of each input, in order: several where it is a packet of several alerts."""
        return self._each(inputs, _Options(options.embedding, options.prior, options.coverage, options.experts))

    def _each(self, inputs: Iterable[Input], options: _Options, indexed: bool = False) -> Iterator[list[Result]]:
        remaining, start = iter(inputs), 0
        waiting: deque[Future[list[list[Result]]]] = deque()
        with ThreadPoolExecutor(self._connections, "nightjar-client") as pool:
            try:
                while True:
                    while len(waiting) < 2 * self._connections and (batch := list(islice(remaining, BATCH_ITEMS))):
                        exchange = self._exchanges.batch(batch, options, start if indexed else None)
                        waiting.append(pool.submit(self._run, exchange))
                        start += len(batch)
                    if not waiting:
                        return
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _classify(self, request: Request, options: _Options) -> Result | Results:
        if request.single:
            result: Result = self._run(self._exchanges.single(next(iter(request.inputs)), options))
            return result
        return Results(self._stream(request.inputs, options, request.indexed), request.notes)

    def _stream(self, items: Iterable[Any], options: _Options, indexed: bool = False) -> Iterator[Result]:
        for results in self._each(flatten(items), options, indexed):
            yield from results

    def _run(self, exchange: Exchange[Any]) -> Any:
        """Carry out an exchange."""
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
    """Client of a running service for asyncio; see :class:`Client`, whose methods are coroutines here."""

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

    async def _classify(self, request: Request, options: _Options) -> Result | Results:
        if request.single:
            result: Result = await self._run(self._exchanges.single(next(iter(request.inputs)), options))
            return result
        results = [each async for each in self._stream(request.inputs, options, request.indexed)]
        return Results(results, request.notes)

    async def _stream(
        self, items: Iterable[Any] | AsyncIterable[Any], options: _Options, indexed: bool = False
    ) -> AsyncIterator[Result]:
        inputs, start = _aiter(items), 0
        waiting: deque[asyncio.Task[list[list[Result]]]] = deque()
        try:
            while True:
                while len(waiting) < self._connections and (batch := await _take(inputs, BATCH_ITEMS)):
                    exchange = self._exchanges.batch(batch, options, start if indexed else None)
                    waiting.append(asyncio.create_task(self._run(exchange)))
                    start += len(batch)
                if not waiting:
                    return
                for result in chain.from_iterable(await waiting.popleft()):
                    yield result
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await inputs.aclose()

    async def _run(self, exchange: Exchange[Any]) -> Any:
        """Carry out an exchange."""
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


async def _aiter(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def _take(items: AsyncIterator[Any], count: int) -> list[Input]:
    """Return the next inputs, at least so many if there are as many."""
    taken: list[Input] = []
    async for item in items:
        taken += flatten([item])
        if len(taken) >= count:
            break
    return taken
