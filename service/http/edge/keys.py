"""API keys and their rate limits: requests and light curves, per second and per day.

A key has a name and one or more digests, so that it can be rotated: add the new digest, distribute the new key, remove
the old digest. Without keys every client is :data:`ANONYMOUS`.

- :mod:`service.http.edge.counts` states when a request is admitted. ``Retry-After`` is the wait in seconds.
- The number of light curves is known only after the body was read. It is charged then, and delays the next request.
- A request that is rejected because the service is full is refunded.

With ``limits_redis_url``, counts are in Redis, shared by all replicas and kept through restarts. Otherwise, and while
Redis does not respond, each process counts separately and loses its counts at a restart.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from starlette.types import Scope

from nightjar_alerts.service.http.edge.counts import (
    GRACE_SECONDS,
    Counted,
    Counts,
    Limit,
    RedisUnavailable,
    SharedCounts,
    Wait,
    list_limits,
)
from nightjar_alerts.service.http.edge.errors import RATE_LIMITED, UNAUTHORIZED, ProblemError
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import KeyLimits

ANONYMOUS: Final = "anonymous"
DEFAULT_LIMITS: Final = "*"


class KeyRing:
    """Accepted API keys, stored as digests."""

    def __init__(self, keys: Mapping[str, Sequence[str]]) -> None:
        self._digests = [(bytes.fromhex(digest), name) for name, digests in keys.items() for digest in digests]

    def __bool__(self) -> bool:
        """Return True if keys are required."""
        return bool(self._digests)

    def authenticate(self, scope: Scope) -> str:
        """Return the name of the API key of a request; :data:`ANONYMOUS` if none is required.

        All digests are compared in constant time, to prevent timing attacks.

        Raises
        ------
        ProblemError
            401 for an unknown key.
        """
        if not self._digests:
            return ANONYMOUS
        key = _read_key(scope)
        digest_of_key = hashlib.sha256(key).digest()
        matching = [name for digest, name in self._digests if hmac.compare_digest(digest_of_key, digest)]
        if not key or not matching:
            raise ProblemError(UNAUTHORIZED)
        return matching[0]


def _read_key(scope: Scope) -> bytes:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


class Quotas:
    """Rate limits of all keys, and their counts.

    Parameters
    ----------
    limits : limits by name of the key; those of :data:`DEFAULT_LIMITS` apply to all other keys.
    """

    def __init__(self, limits: Mapping[str, KeyLimits], metrics: Metrics, shared: SharedCounts | None = None) -> None:
        self._limits = {name: list_limits(key_limits) for name, key_limits in limits.items()}
        self._metrics, self._shared = metrics, shared
        self._local = Counts()

    async def admit(self, key: str) -> None:
        """Count a request.

        Raises
        ------
        ProblemError
            429 beyond a limit, with the time to wait.
        """
        if not (limits := self._get_limits(key)):
            return
        if (wait := await self._admit(key, limits)) is not None:
            self._metrics.key_refused.labels(key, wait.limit.name).inc()
            raise _to_problem(wait)

    async def charge(self, key: str, curves: int) -> None:
        """Count light curves that are about to be classified."""
        await self._charge(key, "curves", curves)

    async def refund(self, key: str, curves: int) -> None:
        """Refund a request that was rejected after its admission because the service is full."""
        await self._charge(key, "requests", -1)
        await self._charge(key, "curves", -curves)

    async def throttle(self, key: str) -> None:
        """Wait until the limit of light curves per second admits more; used by streams between groups of lines.

        Raises
        ------
        ProblemError
            429 beyond the limit of a day.
        """
        limits = [limit for limit in self._get_limits(key) if limit.counted == "curves"]
        while limits and (wait := await self._admit(key, limits)):
            if wait.limit.day:
                self._metrics.key_refused.labels(key, wait.limit.name).inc()
                raise _to_problem(wait)
            await asyncio.sleep(wait.seconds)

    async def close(self) -> None:
        """Close the connection to Redis."""
        if self._shared is not None:
            await self._shared.close()

    async def _admit(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request, in Redis or locally, if the limits allow it; else return the limit that does not."""
        if self._shared is not None:
            with suppress(RedisUnavailable):
                return await self._shared.admit(key, limits)
        return self._local.admit(key, limits)

    async def _charge(self, key: str, counted: Counted, amount: int) -> None:
        limits = [limit for limit in self._get_limits(key) if limit.counted == counted]
        if not limits or not amount:
            return
        if self._shared is not None:
            with suppress(RedisUnavailable):
                return await self._shared.charge(key, limits, amount)
        self._local.charge(key, limits, amount)

    def _get_limits(self, key: str) -> tuple[Limit, ...]:
        return self._limits.get(key, self._limits.get(DEFAULT_LIMITS, ()))


def _to_problem(wait: Wait) -> ProblemError:
    what = wait.limit.name.replace("_", " ").replace("curves", "light curves")
    whole = int(wait.limit.most) if float(wait.limit.most).is_integer() else None
    detail = f"the limit of this API key is {wait.limit.most:g} {what}"
    return ProblemError(RATE_LIMITED, detail, limit=whole, retry_after=wait.seconds - GRACE_SECONDS)
