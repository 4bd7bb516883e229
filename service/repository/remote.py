"""Results in Redis, shared by replicas and restarts. Redis may be slow, full or gone: no request fails or waits for it.

- A look-up has :data:`FIND_SECONDS`; what has not come by then counts as not there.
- After a failure Redis is left alone for a while, twice as long after each further one: an outage costs one look-up of
  that length now and then, not one for every request.
- Writing happens in the background, a bounded number of results at a time; what does not fit is not written.
- A value that is not what was stored under its key (cut short, written by somebody else, another format) is no result.
"""

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import structlog

from service.inference.batching import Row
from service.metrics import Metrics

if TYPE_CHECKING:
    from redis.asyncio import Redis

FIND_SECONDS = 0.025
KEEP_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
MOST_WAITING = 4096
"""Results waiting to be written."""

PREFIX = b"nightjar:result:"
_CHECK_BYTES = 16

log = structlog.get_logger(__name__)


class RedisUnavailable(Exception):
    """Redis cannot be used at all: the library is not installed, or the address is none."""


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


_DECODER = msgspec.msgpack.Decoder(dict[str, _Array])


class RedisResults:
    """A :class:`service.repository.cache.Remote`.

    Parameters
    ----------
    keep_seconds : after which Redis forgets a result.

    Raises
    ------
    RedisUnavailable
        When nothing of it can work; that the server answers is not asked.
    """

    def __init__(self, url: str, keep_seconds: int, metrics: Metrics) -> None:
        self._redis = _client(url)
        self._keep_seconds, self._metrics = keep_seconds, metrics
        self._waiting: dict[bytes, bytes] = {}
        self._writer: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Future[Any]] = set()
        self._pause, self._again = FIRST_PAUSE, 0.0

    async def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Results of keys, in order, None where there is none, or no Redis to be reached."""
        if monotonic() < self._again:
            return [None] * len(keys)
        values = await self._ask(keys)
        return [unpack(key, value) for key, value in zip(keys, values, strict=True)]

    async def _ask(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Values of keys; nothing but None when Redis does not give them in time."""
        asking = asyncio.ensure_future(self._redis.mget([PREFIX + key for key in keys]))
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        try:
            await asyncio.wait({asking}, timeout=FIND_SECONDS)
        finally:
            asking.cancel()  # what the client then does about its connection can take longer than we have
        if asking.done() and not asking.cancelled() and asking.exception() is None:
            self._pause = FIRST_PAUSE
            return asking.result()
        self._failed(asking.exception() if asking.done() and not asking.cancelled() else TimeoutError())
        return [None] * len(keys)

    def _asked(self, asking: asyncio.Future[Any]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # looked at, lest the event loop complain that nobody did

    def keep(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Store results in the background."""
        if monotonic() < self._again:
            return
        room = MOST_WAITING - len(self._waiting)
        self._waiting |= {key: pack(key, row) for key, row in results[:room]}
        if self._waiting and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Let go of the connections; what waits is not written."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._redis.aclose()

    async def _write(self) -> None:
        try:
            while self._waiting:
                values, self._waiting = self._waiting, {}
                async with asyncio.timeout(KEEP_SECONDS):
                    pipeline = self._redis.pipeline(transaction=False)
                    for key, value in values.items():
                        pipeline.set(PREFIX + key, value, ex=self._keep_seconds)
                    await pipeline.execute()
        except Exception as error:
            self._waiting.clear()
            self._failed(error)

    def _failed(self, error: BaseException | None) -> None:
        self._metrics.cache_errors.inc()
        if monotonic() >= self._again:  # of several look-ups that failed together, the first counts
            log.warning("redis does not answer", error=type(error).__name__, pause=self._pause)
            self._again = monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)


def _client(url: str) -> "Redis":
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise RedisUnavailable("the redis extra is not installed: pip install 'nightjar-alerts[redis]'") from None
    try:
        return Redis.from_url(url, socket_connect_timeout=KEEP_SECONDS, socket_timeout=KEEP_SECONDS)
    except ValueError as error:
        raise RedisUnavailable(f"no address of Redis: {error}") from None


def pack(key: bytes, row: Row) -> bytes:
    """A result as a value, with a digest that ties it to its key."""
    arrays = {name: _Array(values.dtype.str, values.shape, values.tobytes()) for name, values in row.items()}
    data = msgspec.msgpack.encode(arrays)
    return _check(key, data) + data


def unpack(key: bytes, value: Any) -> Row | None:
    """The inverse of :func:`pack`; None when it is not that."""
    if not isinstance(value, bytes) or value[:_CHECK_BYTES] != _check(key, value[_CHECK_BYTES:]):
        return None
    try:
        arrays = _DECODER.decode(value[_CHECK_BYTES:])
        return {name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for name, each in arrays.items()}
    except (msgspec.MsgspecError, ValueError, TypeError):
        return None


def _check(key: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECK_BYTES, key=key).digest()
