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
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
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
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
import orjson

try:
    import httpx
except ImportError as error:
    raise ImportError("httpx is not installed: pip install 'nightjar-alerts[client]'") from error

from nightjar_alerts.inputs import Body, Input, decode_bodies, flatten, read_request
from nightjar_alerts.models.alerts.envelopes import read_packet
from nightjar_alerts.models.alerts.packet import Packet, PacketError
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.results import Evolution, Result, Results
from nightjar_alerts.service.answers.serializer import RequestedPrior, packet_identity
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


class _Options(NamedTuple):
    """Options of a call; ``end`` is in ``time.monotonic()`` seconds."""

    embedding: bool
    prior: RequestedPrior
    coverage: float | None
    end: float | None

    def remaining(self) -> float | None:
        """Return the seconds until the deadline. Raises DeadlineExceeded."""
        if self.end is None:
            return None
        if (seconds := self.end - time.monotonic()) <= 0:
            raise DeadlineExceeded("the deadline passed before there was a result")
        return seconds

    def members(self) -> dict[str, Any]:
        """Return the options that are not the defaults."""
        remaining = self.remaining()
        members = {
            "embedding": self.embedding or None,
            "prior": self.prior,
            "coverage": self.coverage,
            "deadline_ms": None if remaining is None else max(1, round(1000 * remaining)),
        }
        return {name: value for name, value in members.items() if value is not None}


class _Pause(NamedTuple):
    """A step of an exchange: wait."""

    seconds: float


class _Send(NamedTuple):
    """A step of an exchange: send a request and return the response, or the error of the connection."""

    path: str
    content: bytes
    media_type: str
    params: Mapping[str, str]
    timeout: float


T = TypeVar("T")
Exchange = Generator["_Send | _Pause", Any, T]
"""Steps of an exchange, which the synchronous and the asynchronous client carry out, and what they return."""
Steps = Exchange[list[list[Result]]]
"""Steps that return the results of each input."""


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Batches of inputs to requests, and responses to results; carries out no request itself."""

    url: str
    timeout: float
    retries: int
    model: str

    def batch(
        self, inputs: Sequence[Input], options: _Options, single: bool = False, start: int | None = None
    ) -> Steps:
        """Classify inputs; the steps return the results of each.

        Parameters
        ----------
        start : index of the first input in its list; None if errors point into each light curve.
        """
        results: list[list[Result]] = []
        for group in _groups(inputs):
            results += yield from self._group(group, options, single)
        if start is not None:
            for index, (each, found) in enumerate(zip(inputs, results, strict=True), start):
                if isinstance(each, Mapping):
                    found[0].prefix_errors(f"/light_curves/{index}")
        return results

    def _group(self, group: Sequence[Input], options: _Options, single: bool) -> Steps:
        first = group[0]
        if isinstance(first, InvalidLightCurve):
            return [[_rejected(each)] for each in group if isinstance(each, InvalidLightCurve)]
        if isinstance(first, PacketError):
            return [[_unreadable(each)] for each in group if isinstance(each, PacketError)]
        if isinstance(first, Packet) and first.curve is None:
            return [[_abstained(each)] for each in group if isinstance(each, Packet)]
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

    def _light_curves(self, group: Sequence[Any], options: _Options, single: bool) -> Steps:
        bodies = [_body(each) for each in group]
        params = {"model": self.model} if self.model else {}
        form: Callable[[], Any] = lambda: (  # noqa: E731  # anew for each try: the deadline comes closer
            {**bodies[0], "options": options.members()}
            if single
            else {"light_curves": bodies, "options": options.members()}
        )
        reply = yield from self._exchange(
            "/v1/classify", lambda: (msgspec.msgpack.encode(form()), "application/msgpack"), params, options, single
        )
        results = []
        for index, (each, body, document) in enumerate(zip(group, bodies, reply["results"], strict=True)):
            for error in document.get("errors", ()):
                error["pointer"] = error["pointer"].removeprefix(f"/light_curves/{index}")
            if isinstance(each, Packet):
                document = {"status": document["status"], **packet_identity(each), **document}
            source = each if isinstance(each, LightCurve) else partial(_decoded, body)
            results.append([_result(document, reply, each.curve if isinstance(each, Packet) else source)])
        return results

    def _packet(self, packet: bytes, options: _Options) -> Steps:
        if options.coverage is not None:
            raise TypeError("the service has no option `coverage` for alert packets")
        params = {"model": self.model} if self.model else {}
        body = (packet, "application/octet-stream")
        reply = yield from self._exchange("/v1/alerts", lambda: body, params, options, in_query=True)
        curves = _PacketCurves(packet)
        return [[_result(document, reply, partial(curves.get, i)) for i, document in enumerate(reply["results"])]]

    def evolution(self, each: Input, options: _Options) -> Exchange[Evolution]:
        """Classify one light curve or alert after each of its detections."""
        params = {"model": self.model} if self.model else {}
        if isinstance(each, InvalidLightCurve):
            raise each
        if isinstance(each, PacketError) or (isinstance(each, Packet) and each.curve is None):
            raise LightCurveError("", str(each.reason or ""), each.detail or str(each.reason))
        if isinstance(each, bytes):
            content, source = (each, "application/octet-stream"), _PacketCurves(each).get(0)
        else:
            body = _body(each)
            content = msgspec.msgpack.encode(body), "application/msgpack"
            source = (
                each.curve if isinstance(each, Packet) else each if isinstance(each, LightCurve) else _decoded(body)
            )
        document = yield from self._exchange("/v1/evolution", lambda: content, params, options, True, in_query=True)
        model = document.pop("model")
        return Evolution(document, model, source)

    def _exchange(
        self,
        path: str,
        content: Callable[[], tuple[bytes, str]],
        params: Mapping[str, str],
        options: _Options,
        single: bool = False,
        in_query: bool = False,
    ) -> Exchange[dict[str, Any]]:
        """Send a request until there is a reply that is worth no other try; return its JSON."""
        for attempt in range(self.retries + 1):
            remaining = options.remaining()
            query = dict(params)
            if in_query:
                query |= {name: _text(value) for name, value in options.members().items()}
            timeout = self.timeout if remaining is None else min(self.timeout, remaining)
            response = yield _Send(path, *content(), query, timeout)
            if isinstance(response, httpx.Response) and response.status_code not in RETRIED_STATUSES:
                return _reply(response, self.url, single)
            if attempt == self.retries or isinstance(response, httpx.ReadTimeout):
                break
            pause = _pause(response, attempt)
            if options.end is not None and time.monotonic() + pause >= options.end:
                break
            yield _Pause(pause)
        if isinstance(response, httpx.Response):
            return _reply(response, self.url, single)
        if isinstance(response, httpx.TimeoutException):
            options.remaining()
            raise ClientError(f"{self.url} did not answer within {timeout:g} s") from response
        raise ClientError(f"{self.url} does not answer: {response or type(response).__name__}") from response


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


def _rejected(error: InvalidLightCurve) -> Result:
    """Return the result of a light curve that is known to be invalid before it is sent."""
    errors = [each.model_dump() for each in error.errors]
    document = {"status": "rejected", "object_id": error.object_id, "reason": error.reason, "detail": str(error)}
    return Result(document | {"errors": errors}, {})


def _unreadable(error: PacketError) -> Result:
    identity = {"survey": error.survey or "unknown", "schema_version": "unknown", "alert_id": "", "object_id": ""}
    return Result({"status": "rejected", **identity, "reason": str(error.reason), "detail": error.detail}, {})


def _abstained(packet: Packet) -> Result:
    reason = {"reason": str(packet.reason or ""), "detail": packet.detail}
    return Result({"status": "abstained", **packet_identity(packet), **reason}, {})


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


def _kind(each: Input) -> object:
    if isinstance(each, Packet):
        return Packet, each.curve is None
    return "light curve" if isinstance(each, LightCurve | Mapping) else type(each)


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
        full = len(group) == BATCH_ITEMS or isinstance(each, bytes) or size + _size(each) > BATCH_BYTES
        if group and (full or _kind(each) != _kind(group[0])):
            yield group
            group, size = [], 0
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


class _Base:
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
        self._exchanges = _Exchanges(self.url, timeout, retries, model)
        self._settings: dict[str, Any] = {
            "base_url": self.url,
            "headers": {"Accept": "application/json"} | ({"X-API-Key": api_key} if api_key else {}),
            "limits": httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        }

    def __repr__(self) -> str:
        """Return the address of the service."""
        return f"{type(self).__name__}({self.url!r})"


def _request_arguments(step: _Send) -> dict[str, Any]:
    return {
        "url": step.path,
        "content": step.content,
        "params": dict(step.params),
        "headers": {"Content-Type": step.media_type},
        "timeout": step.timeout,
    }


class Client(_Base):
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

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._http = httpx.Client(**self._settings)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def classify(
        self,
        data: Any = None,
        /,
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
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
        options = _options(embedding, prior, coverage, deadline, request.options)
        if request.single:
            return self._run(self._exchanges.batch(list(request.inputs), options, single=True))[0][0]
        results = list(self._stream(iter(request.inputs), options, request.indexed))
        return Results(results, request.notes)

    def evolution(
        self,
        data: Any = None,
        /,
        *,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        deadline: float | None = None,
        **fields: Any,
    ) -> Evolution:
        """Classify an object after each of its detections, as :meth:`nightjar_alerts.Classifier.evolution` does."""
        each, options = _single(data, fields, prior, coverage, deadline)
        return self._run(self._exchanges.evolution(each, options))

    def stream(
        self,
        items: Iterable[Any],
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        deadline: float | None = None,
    ) -> Iterator[Result]:
        """Yield the results of any number of light curves or alerts, in order, in bounded memory."""
        return self._stream(flatten(items), _options(embedding, prior, coverage, deadline))

    def classify_each(self, inputs: Sequence[Input], options: Mapping[str, Any]) -> list[list[Result]]:
        """Return the results of each input, several where it is a packet of several alerts."""
        named = _options(False, None, None, None, options)
        groups = [inputs[first : first + BATCH_ITEMS] for first in range(0, len(inputs), BATCH_ITEMS)]
        with ThreadPoolExecutor(self._connections, "nightjar-client") as pool:
            runs = pool.map(lambda group: self._run(self._exchanges.batch(group, named)), groups)
            return list(chain.from_iterable(runs))

    def _stream(self, inputs: Iterator[Input], options: _Options, indexed: bool = False) -> Iterator[Result]:
        waiting: deque[Future[list[list[Result]]]] = deque()
        start = 0
        with ThreadPoolExecutor(self._connections, "nightjar-client") as pool:
            try:
                while True:
                    while len(waiting) < 2 * self._connections and (batch := list(islice(inputs, BATCH_ITEMS))):
                        steps = self._exchanges.batch(batch, options, start=start if indexed else None)
                        waiting.append(pool.submit(self._run, steps))
                        start += len(batch)
                    if not waiting:
                        return
                    yield from chain.from_iterable(waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()

    def _run(self, steps: Exchange[T]) -> T:
        """Carry out the steps of an exchange."""
        answer: object = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, _Pause):
                    time.sleep(step.seconds)
                    answer = None
                    continue
                try:
                    answer = self._http.post(**_request_arguments(step))
                except httpx.TransportError as error:
                    answer = error
        except StopIteration as end:
            result: T = end.value
            return result


class AsyncClient(_Base):
    """Client of a running service for asyncio; see :class:`Client` for the parameters."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._http = httpx.AsyncClient(**self._settings)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def classify(
        self,
        data: Any = None,
        /,
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        deadline: float | None = None,
        **fields: Any,
    ) -> Any:
        """Classify light curves or alerts; see :meth:`Client.classify`."""
        request = read_request(data, fields)
        options = _options(embedding, prior, coverage, deadline, request.options)
        if request.single:
            return (await self._run(self._exchanges.batch(list(request.inputs), options, single=True)))[0][0]
        results = [each async for each in self._stream(_aiter(request.inputs), options, request.indexed)]
        return Results(results, request.notes)

    async def evolution(
        self,
        data: Any = None,
        /,
        *,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        deadline: float | None = None,
        **fields: Any,
    ) -> Evolution:
        """Classify an object after each of its detections; see :meth:`Client.evolution`."""
        each, options = _single(data, fields, prior, coverage, deadline)
        return await self._run(self._exchanges.evolution(each, options))

    def stream(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        embedding: bool = False,
        prior: RequestedPrior = None,
        coverage: float | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[Result]:
        """Yield the results of any number of light curves or alerts, in order, in bounded memory."""
        return self._stream(_aiter(items), _options(embedding, prior, coverage, deadline))

    async def _stream(
        self, inputs: AsyncGenerator[Any, None], options: _Options, indexed: bool = False
    ) -> AsyncIterator[Result]:
        waiting: deque[asyncio.Task[list[list[Result]]]] = deque()
        start = 0
        try:
            while True:
                while len(waiting) < self._connections and (batch := await _take(inputs, BATCH_ITEMS)):
                    steps = self._exchanges.batch(batch, options, start=start if indexed else None)
                    waiting.append(asyncio.create_task(self._run(steps)))
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

    async def _run(self, steps: Exchange[T]) -> T:
        """Carry out the steps of an exchange."""
        answer: object = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, _Pause):
                    await asyncio.sleep(step.seconds)
                    answer = None
                    continue
                try:
                    answer = await self._http.post(**_request_arguments(step))
                except httpx.TransportError as error:
                    answer = error
        except StopIteration as end:
            result: T = end.value
            return result


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


def _single(
    data: Any, fields: Mapping[str, Any], prior: RequestedPrior, coverage: float | None, deadline: float | None
) -> tuple[Input, _Options]:
    """Return the only input of a call, and its options. Raises ValueError for several."""
    request = read_request(data, fields)
    inputs = list(request.inputs)
    if len(inputs) != 1:
        raise ValueError(f"evolution takes one light curve or alert, not {len(inputs)}")
    return inputs[0], _options(False, prior, coverage, deadline, request.options)


def _options(
    embedding: bool,
    prior: RequestedPrior,
    coverage: float | None,
    deadline: float | None,
    named: Mapping[str, Any] | None = None,
) -> _Options:
    values = {"embedding": embedding, "prior": prior, "coverage": coverage}
    if unknown := set(named or {}) - set(values):
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    return _Options(**(values | dict(named or {})), end=None if deadline is None else time.monotonic() + deadline)
