"""In-memory cache of network outputs, so that the network runs once for an alert that arrives twice.

The key is a 256-bit BLAKE2b digest of everything that an output depends on: the sha256 of the bundle (of its manifest,
which contains the hash of every other file), the execution provider, the task, and every input array of the network
with its length. Options of the response (embedding, prior, format) are applied later and are not part of the key.

An entry is never replaced: another batch may give outputs that differ in the last bits, and a client that sends the
same light curve twice should get the same result.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from nightjar_alerts.core.adapter import ModelInput, Row
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.service.observe.metrics import Metrics

if TYPE_CHECKING:  # importing onnxruntime is slow
    from nightjar_alerts.models.runtime import Provider

KEY_BYTES = 32
FORMAT = b"nightjar result 1"
OVERHEAD_BYTES = 300
"""Size of an entry without its array data: key, dictionary entry, array objects."""

_COLUMNS = (("time", "<f4"), ("flux", "<f4"), ("flux_err", "<f4"), ("band", "<i8"), ("detected", "?"))


class ResultCache:
    """Least-recently-used cache shared by all models of a process. Call every method on the event loop.

    Attributes
    ----------
    size_bytes : total size of the entries.

    Parameters
    ----------
    max_bytes : maximum of ``size_bytes``.
    """

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._max_bytes = max_bytes
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self.size_bytes = 0
        self._metrics = metrics
        metrics.watch_cache(lambda: self.size_bytes)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._rows)

    def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Return the entry of each key, or None."""
        rows = [self._find_one(key) for key in keys]
        misses = rows.count(None)
        self._metrics.record_cache_lookup(len(rows) - misses, misses)
        return rows

    def add(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Add entries and make their arrays read-only; an entry larger than the cache is not added."""
        for key, row in results:
            if key in self._rows or _size(row) > self._max_bytes:
                continue
            for values in row.values():
                values.flags.writeable = False  # requests share them
            self._rows[key] = row
            self.size_bytes += _size(row)
        while self.size_bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self.size_bytes -= _size(oldest)

    def _find_one(self, key: bytes) -> Row | None:
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row


class ModelCache:
    """Entries of one model in a :class:`ResultCache`."""

    def __init__(self, cache: ResultCache, bundle: Bundle, provider: "Provider") -> None:
        self._cache = cache
        self._base = blake2b(FORMAT, digest_size=KEY_BYTES)
        for text in (bundle.sha256, provider, bundle.manifest.task):
            # With its length, as "ab", "c" and "a", "bc" must give different digests.
            self._base.update(struct.pack("<q", len(text)) + text.encode())

    def key(self, model_input: ModelInput) -> bytes:
        """Return the key of a model input. May be called in any thread."""
        tokens = model_input.tokens
        digest = self._base.copy()
        # With the lengths, as other columns must not give the same bytes.
        digest.update(struct.pack("<qq", len(tokens), len(tokens.metadata)))
        for name, dtype in _COLUMNS:
            digest.update(np.asarray(getattr(tokens, name), dtype).tobytes())
        digest.update(np.asarray(tokens.metadata, "<f4").tobytes())
        return digest.digest()

    def find(self, keys: Sequence[bytes]) -> list[Row | None]:
        """Return the entry of each key, or None."""
        return self._cache.find(keys)

    def add(self, results: Sequence[tuple[bytes, Row]]) -> None:
        """Add entries."""
        self._cache.add(results)


def _size(row: Row) -> int:
    return OVERHEAD_BYTES + sum(values.nbytes for values in row.values())
