"""Results kept by what they are results of, so that what is asked twice is run once.

The key is the 256-bit BLAKE2b digest of everything that an answer depends on: the sha256 of the bundle (its manifest's,
which holds that of every other file), the execution provider, the task, and every array that the network is given, with
its length. An answer to another input, of another bundle, or of a graph that computes otherwise has another key; what a
request may choose about its reply (embedding, coverage, format) is applied afterwards and is no part of the answer.

Results live in memory, where the least recently used go first, and, where it is configured, in Redis
(:class:`RedisResults`), shared by replicas and kept through restarts. A result is what the network gave once; in
another batch it might differ in the last bits, as it may anyway.

Redis may be slow, full or gone: no request fails because of it, or waits longer than :data:`FIND_SECONDS`.

- A look-up has :data:`FIND_SECONDS`; what has not come by then counts as not there.
- After a failure Redis is left alone for a while, twice as long after each further one: an outage costs one look-up of
  that length now and then, not one for every request.
- Writing happens in the background, a bounded number of results at a time; what does not fit is not written.
- A value that is not what was stored under its key (cut short, written by somebody else, another format) is no result.
"""

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import structlog

from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.service.engine.batch import ModelInput, Row
from nightjar_alerts.service.observe.metrics import MetricChildren, Metrics

if TYPE_CHECKING:
    from redis.asyncio import Redis


KEY_BYTES = 32
FORMAT = b"nightjar result 1"
FORECAST_OUTPUTS = {"forecast_flux", "forecast_flux_err"}
OVERHEAD_BYTES = 300
"""Bytes of a result besides its numbers: key, dictionary entries, array objects."""

_COLUMNS = (("time", "<f4"), ("flux", "<f4"), ("flux_err", "<f4"), ("band", "<i8"), ("detected", "?"))


class Remote(Protocol):
    """A store of results outside the process. It answers in a moment or not at all, and never raises."""

    async def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Results of keys, in order, None where there is none, or no store to be reached."""

    def keep(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Store results some time soon, or not, as the store can take them."""

    async def close(self) -> None:
        """Let go of the store."""


class ResultCache:
    """Results of all models of a process. Every method is called on the event loop.

    Parameters
    ----------
    max_bytes : of results in memory.
    """

    def __init__(self, max_bytes: int, metrics: Metrics, remote: Remote | None = None) -> None:
        self._max_bytes, self._remote = max_bytes, remote
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self.held_bytes = 0
        self._answers_from = MetricChildren(metrics.cache_answers)

    def __len__(self) -> int:
        """Return the number of results in memory."""
        return len(self._rows)

    def of(self, bundle: Bundle, provider: Provider) -> "ModelResults":
        """Return the view of one model's results."""
        return ModelResults(self, bundle, provider)

    async def find(self, keys: Sequence[bytes], fits: Callable[[Row], bool] = lambda _: True) -> list[Row | None]:
        """Results of keys, in order.

        Parameters
        ----------
        fits : whether a result from the remote store has the form of the model's own; others count as missing.
        """
        rows = [self._recall(key) for key in keys]
        missing = [place for place, row in enumerate(rows) if row is None]
        self._answers_from["memory",].inc(len(keys) - len(missing))
        if missing and self._remote is not None:
            stored = await self._remote.find([keys[place] for place in missing])
            for place, row in zip(missing, stored, strict=True):
                if row is not None and fits(row):
                    rows[place] = row
                    self._hold(keys[place], row)
                    self._answers_from["redis",].inc()
        self._answers_from["none",].inc(rows.count(None))
        return rows

    def keep(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Remember results."""
        for key, row in results:
            self._hold(key, row)
        if self._remote is not None and results:
            self._remote.keep(results)

    async def close(self) -> None:
        """Let go of everything."""
        self._rows.clear()
        self.held_bytes = 0
        if self._remote is not None:
            await self._remote.close()

    def _recall(self, key: bytes) -> Row | None:
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def _hold(self, key: bytes, row: Row) -> None:
        # The first answer stays: the same question in another batch comes out different in the last digits, and whoever
        # asks twice should not see that.
        if key in self._rows or _size(row) > self._max_bytes:
            return
        for values in row.values():
            values.flags.writeable = False  # it will be the answer of several requests
        self._rows[key] = row
        self.held_bytes += _size(row)
        while self.held_bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self.held_bytes -= _size(oldest)


class ModelResults:
    """The results of one model: its part of the cache."""

    def __init__(self, cache: ResultCache, bundle: Bundle, provider: Provider) -> None:
        self._cache = cache
        self._shapes = _row_shapes(bundle)
        self._base = blake2b(FORMAT, digest_size=KEY_BYTES)
        for text in (bundle.sha256, provider, bundle.manifest.task):
            # With its length, or "ab" and "c" would make the same bytes as "a" and "bc".
            self._base.update(struct.pack("<q", len(text)) + text.encode())

    def key(self, question: ModelInput) -> bytes:
        """Digest of a question to this model."""
        tokens, queries = question.tokens, question.queries
        query_count = 0 if queries is None else len(queries)
        digest = self._base.copy()
        # Lengths first, so that no other division into columns makes the same bytes.
        digest.update(struct.pack("<qqq", len(tokens), len(tokens.metadata), query_count))
        for name, dtype in _COLUMNS:
            digest.update(np.asarray(getattr(tokens, name), dtype).tobytes())
        digest.update(np.asarray(tokens.metadata, "<f4").tobytes())
        if queries is not None:
            digest.update(np.asarray(queries.time, "<f4").tobytes())
            digest.update(np.asarray(queries.band, "<i8").tobytes())
        return digest.digest()

    async def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Results of keys of this model, in order; one that the model could not have given counts as missing."""
        rows = await self._cache.find(keys, self._fits)
        return [row if row is None or self._fits(row) else None for row in rows]

    def _fits(self, row: Row) -> bool:
        """Return True if a result has the form of this model's, wherever it came from."""
        shapes = {name: values.shape for name, values in row.items()}
        if any(values.dtype != np.float32 for values in row.values()):
            return False
        return shapes == self._shapes if self._shapes else shapes.keys() == FORECAST_OUTPUTS

    def keep(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Remember results."""
        self._cache.keep(results)


def _row_shapes(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    """Shapes of a classifier's results; those of a forecaster depend on what it is asked."""
    manifest = bundle.manifest
    if manifest.taxonomy is None:
        return {}
    shapes: dict[str, tuple[int, ...]] = {
        "probabilities": (len(manifest.taxonomy.names),),
        "embedding": (manifest.embedding_dim,),
    }
    return shapes if manifest.novelty is None else shapes | {"novelty": ()}


def _size(row: Row) -> int:
    return OVERHEAD_BYTES + sum(values.nbytes for values in row.values())


FIND_SECONDS = 0.025
KEEP_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
MOST_WAITING = 4096
"""Results waiting to be written."""

PREFIX = b"nightjar:result:"
_CHECK_BYTES = 16
_SECRET_BYTES = 32

log = structlog.get_logger(__name__)


class RedisUnavailable(Exception):
    """Redis cannot be used at all: the library is not installed, or the address is not valid."""


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


_DECODER = msgspec.msgpack.Decoder(dict[str, _Array])


class RedisResults:
    """Results in Redis, as a :class:`Remote`.

    Parameters
    ----------
    keep_seconds : after which Redis forgets a result.
    secret : with which values are authenticated. Whoever sends a question can compute its key, so without a secret
        anybody who may write to this Redis can forge answers.

    Raises
    ------
    RedisUnavailable
        When the library is missing or the address is not valid; whether the server answers is not checked.
    """

    def __init__(self, url: str, keep_seconds: int, metrics: Metrics, secret: str = "") -> None:
        self._redis = client_of(url, KEEP_SECONDS)
        self._keep_seconds, self._metrics = keep_seconds, metrics
        self._secret = blake2b(secret.encode(), digest_size=_SECRET_BYTES).digest() if secret else b""
        self._waiting: dict[bytes, bytes] = {}
        self._writer: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Future[Any]] = set()
        self._pause, self._retry_at = FIRST_PAUSE, 0.0

    async def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Results of keys, in order, None where there is none, or no Redis to be reached."""
        if monotonic() < self._retry_at:
            return [None] * len(keys)
        values = await self._ask(keys)
        return [unpack(key, value, self._secret) for key, value in zip(keys, values, strict=True)]

    async def _ask(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Values of keys; nothing but None when Redis does not give them in time."""
        asking = asyncio.ensure_future(self._redis.mget([PREFIX + key for key in keys]))
        self._asking.add(asking)
        asking.add_done_callback(self._asking_ended)
        try:
            # Not a timeout around the request itself, which would wait for the request's end after its cancellation:
            # what the client then does about its connection can take longer than we have.
            await asyncio.wait({asking}, timeout=FIND_SECONDS)
        finally:
            asking.cancel()
        if asking.done() and not asking.cancelled() and asking.exception() is None:
            self._pause = FIRST_PAUSE
            return asking.result()
        self._failed(asking.exception() if asking.done() and not asking.cancelled() else TimeoutError())
        return [None] * len(keys)

    def _asking_ended(self, asking: asyncio.Future[Any]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # marked as seen, or asyncio would log an error that nobody took

    def keep(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Store results in the background."""
        if monotonic() < self._retry_at:
            return
        room = MOST_WAITING - len(self._waiting)
        self._waiting |= {key: pack(key, row, self._secret) for key, row in results[:room]}
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
                values, self._waiting = self._waiting, {}  # what comes while these are written waits for the next round
                async with asyncio.timeout(KEEP_SECONDS):
                    pipeline = self._redis.pipeline(transaction=False)  # each result stands for itself
                    for key, value in values.items():
                        pipeline.set(PREFIX + key, value, ex=self._keep_seconds)
                    await pipeline.execute()
        except Exception as error:
            self._waiting.clear()
            self._failed(error)

    def _failed(self, error: BaseException | None) -> None:
        self._metrics.cache_errors.inc()
        if monotonic() >= self._retry_at:  # of several look-ups that failed together, the first counts
            log.warning("redis does not answer", error=type(error).__name__, pause=self._pause)
            self._retry_at = monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)


def client_of(url: str, seconds: float) -> "Redis":
    """Make a client with a time limit: ``redis://`` or, with TLS, ``rediss://``. Raises RedisUnavailable."""
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise RedisUnavailable("the redis extra is not installed: pip install 'nightjar-alerts[redis]'") from None
    try:
        return Redis.from_url(url, socket_connect_timeout=seconds, socket_timeout=seconds)
    except ValueError:  # its text repeats the address, which may hold a password
        raise RedisUnavailable("not an address of Redis: it has to begin with redis://, rediss:// or unix://") from None


def pack(key: bytes, row: Row, secret: bytes = b"") -> bytes:
    """Serialise a result, with a digest that ties it to its key, keyed with the secret."""
    arrays = {name: _Array(values.dtype.str, values.shape, values.tobytes()) for name, values in row.items()}
    data = msgspec.msgpack.encode(arrays)
    return _check(key, data, secret) + data


def unpack(key: bytes, value: Any, secret: bytes = b"") -> Row | None:
    """Parse a value that :func:`pack` made for this key; None when it is not one."""
    if not isinstance(value, bytes):
        return None
    # In constant time: how long a comparison takes must not tell a writer how much of a forged digest is right.
    if not compare_digest(value[:_CHECK_BYTES], _check(key, value[_CHECK_BYTES:], secret)):
        return None
    try:
        arrays = _DECODER.decode(value[_CHECK_BYTES:])
        return {name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for name, each in arrays.items()}
    except (msgspec.MsgspecError, ValueError, TypeError):
        return None


def _check(key: bytes, data: bytes, secret: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECK_BYTES, key=key + secret).digest()  # at most 64 bytes of key
