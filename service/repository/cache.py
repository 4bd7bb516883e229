"""Results kept by what they are results of, so that what is asked twice is run once.

The key is the 256-bit BLAKE2b digest of everything that an answer depends on: the sha256 of the bundle (its manifest's,
which holds that of every other file), the execution provider, the task, and every array that the network is given, with
its length. An answer to another input, of another bundle, or of a graph that computes otherwise has another key; what a
request may choose about its reply (embedding, coverage, format) is applied afterwards and is no part of the answer.

Results live in memory, the least recently used go first, and where Redis is configured also there
(:mod:`service.repository.remote`), shared by replicas and restarts. A result is what the network gave once; in another
batch it might differ in the last bits, as it may anyway.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np

from models.bundle import Bundle
from models.runtime import Provider
from service.inference.batching import Question, Row
from service.metrics import Kept, Metrics

KEY_BYTES = 32
FORMAT = b"nightjar result 1"
FORECAST_OUTPUTS = {"forecast_flux", "forecast_flux_err"}
OVERHEAD_BYTES = 300
"""What a result takes besides its numbers: key, dictionary entries, array objects."""

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
        self._found = Kept(metrics.cache_answers)

    def __len__(self) -> int:
        """Return the number of results in memory."""
        return len(self._rows)

    def of(self, bundle: Bundle, provider: Provider) -> "ModelResults":
        """The results of one model."""
        return ModelResults(self, bundle, provider)

    async def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Results of keys, in order."""
        found = [self._recall(key) for key in keys]
        missing = [place for place, row in enumerate(found) if row is None]
        self._found["memory",].inc(len(keys) - len(missing))
        if missing and self._remote is not None:
            rows = await self._remote.find([keys[place] for place in missing])
            for place, row in zip(missing, rows, strict=True):
                if row is not None:
                    found[place] = row
                    self._hold(keys[place], row)
            self._found["redis",].inc(len(rows) - rows.count(None))
        self._found["none",].inc(found.count(None))
        return found

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
            self._base.update(struct.pack("<q", len(text)) + text.encode())

    def key(self, question: Question) -> bytes:
        """Digest of a question to this model."""
        tokens, queries = question.tokens, question.queries
        digest = self._base.copy()
        digest.update(struct.pack("<qqq", len(tokens), len(tokens.metadata), len(queries)))
        for name, dtype in _COLUMNS:
            digest.update(np.asarray(getattr(tokens, name), dtype).tobytes())
        digest.update(np.asarray(tokens.metadata, "<f4").tobytes())
        digest.update(np.asarray(queries.time, "<f4").tobytes())
        digest.update(np.asarray(queries.band, "<i8").tobytes())
        return digest.digest()

    async def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Results of keys of this model, in order; what is none that it could have given does not count."""
        return [row if row is None or self._fits(row) else None for row in await self._cache.find(keys)]

    def _fits(self, row: Row) -> bool:
        """Whether a result has the form of one of this model, wherever it came from."""
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
