"""API keys and their rate limits: requests and light curves, per second and per day.

A key has a name and one or more digests, so that it can be rotated: add the new digest, distribute the new key, remove
the old digest. Without keys every client is :data:`ANONYMOUS`.

- Limits per second use the generic cell rate algorithm (GCRA), which stores the theoretical arrival time. A request is
  admitted if that time is at most one second ahead; each request or light curve advances it. A large request is
  therefore processed as a whole, and delays the next one. ``Retry-After`` is that delay in seconds.
- Days are UTC days.
- The number of light curves is known only after the body was read. It is charged then, and delays the next request.
- A request that is rejected because the service is full is refunded.

With ``limits_redis_url``, counts are in Redis, shared by all replicas and kept through restarts. Otherwise, and while
Redis does not respond, each process counts separately and loses its counts at a restart.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog
from starlette.types import Scope

from nightjar_alerts.service.http.edge.errors import RATE_LIMITED, UNAUTHORIZED, ProblemError
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import KeyLimits

if TYPE_CHECKING:
    from redis.asyncio import Redis

ANONYMOUS: Final = "anybody"
DEFAULT_LIMITS: Final = "*"
WINDOW_SECONDS: Final = 1.0
DAY_SECONDS: Final = 86_400
GRACE_SECONDS: Final = 1e-5  # a float of seconds since 1970 has a resolution of a microsecond
REDIS_SECONDS: Final = 0.05
REDIS_PAUSE_SECONDS: Final = 1.0
REDIS_PREFIX: Final = "nightjar:limits:"

Counted = Literal["requests", "curves"]

log = structlog.get_logger(__name__)


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


class Limit(NamedTuple):
    """Maximum number of requests or light curves, per day or (``day`` False) per second."""

    counted: Counted
    day: bool
    most: float

    @property
    def name(self) -> str:
        """Name in metric labels and problems, such as ``curves_per_day``."""
        return f"{self.counted}_per_{'day' if self.day else 'second'}"


def list_limits(limits: KeyLimits | None) -> tuple[Limit, ...]:
    """Return the limits that are set."""
    if limits is None:
        return ()
    every: tuple[tuple[Counted, bool, float | None], ...] = (
        ("requests", False, limits.requests_per_second),
        ("requests", True, limits.requests_per_day),
        ("curves", False, limits.curves_per_second),
        ("curves", True, limits.curves_per_day),
    )
    return tuple(Limit(counted, day, most) for counted, day, most in every if most is not None)


class Wait(NamedTuple):
    """The limit that a request exceeds, and the seconds until it would be admitted."""

    limit: Limit
    seconds: float


def _tolerance(rate: float) -> float:
    """Return the tolerance of the GCRA in seconds, so that the capacity of a second may be used at once."""
    return max(0.0, WINDOW_SECONDS - 1 / rate)


class Counts:
    """Counts of one process, by key and limit.

    Parameters
    ----------
    clock : seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._arrival_times: dict[tuple[str, str], float] = {}  # theoretical arrival times (GCRA)
        self._daily: dict[tuple[str, str], tuple[int, float]] = {}  # day and count

    def admit(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request if every limit allows it; else return the limit with the longest wait."""
        now = self._clock()
        waits = [Wait(limit, self._wait(key, limit, now)) for limit in limits]
        longest = max(waits, key=lambda wait: wait.seconds, default=None)
        if longest is not None and longest.seconds > GRACE_SECONDS:
            return longest
        self.charge(key, [limit for limit in limits if limit.counted == "requests"], 1)
        return None

    def charge(self, key: str, limits: Sequence[Limit], amount: int) -> None:
        """Add an amount to the count of each limit."""
        now = self._clock()
        for limit in limits:
            entry = key, limit.name
            if limit.day:
                # A refund after midnight belongs to the day before.
                self._daily[entry] = (_day(now), max(0.0, self._count(key, limit, now) + amount))
            else:
                self._arrival_times[entry] = max(self._arrival_times.get(entry, 0.0), now) + amount / limit.most

    def _wait(self, key: str, limit: Limit, now: float) -> float:
        if limit.day:
            full = self._count(key, limit, now) >= limit.most
            return (_day(now) + 1) * DAY_SECONDS - now if full else 0.0
        return self._arrival_times.get((key, limit.name), 0.0) - now - _tolerance(limit.most)

    def _count(self, key: str, limit: Limit, now: float) -> float:
        day, count = self._daily.get((key, limit.name), (0, 0.0))
        return count if day == _day(now) else 0.0


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)


# Counts in the Redis server, with its clock. ARGV: amount, whether to check the limits first, and for each key the
# limit, whether it is per day, and whether to add the amount. Returns the longest wait and the index of its limit.
_SCRIPT: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local day, amount, worst, which = math.floor(now / 86400), tonumber(ARGV[1]), 0.00001, 0
local held = {}
for i, key in ipairs(KEYS) do
  local most, wait = tonumber(ARGV[3 * i]), 0
  local fields = redis.call('HMGET', key, 'day', 'n')
  held[i] = tonumber(fields[2] or '0') or 0
  if ARGV[3 * i + 1] == '1' then
    if tonumber(fields[1] or '-1') ~= day then held[i] = 0 end
    if held[i] >= most then wait = (day + 1) * 86400 - now end
  else
    wait = held[i] - now - math.max(0, 1 - 1 / most)
  end
  if wait > worst then worst, which = wait, i end
end
if ARGV[2] == '1' and which > 0 then return {tostring(worst), which} end
for i, key in ipairs(KEYS) do
  if ARGV[3 * i + 2] == '1' then
    if ARGV[3 * i + 1] == '1' then
      redis.call('HSET', key, 'day', day, 'n', math.max(0, held[i] + amount))
      redis.call('EXPIRE', key, 172800)
    else
      local till = math.max(held[i], now) + amount / tonumber(ARGV[3 * i])
      redis.call('HSET', key, 'n', string.format('%.6f', till))
      redis.call('EXPIRE', key, math.ceil(till - now) + 2)
    end
  end
end
return {'0', 0}
"""


class RedisUnavailable(Exception):
    """Redis cannot be used: the library is not installed, or the URL is invalid."""


def _redis_client(url: str, seconds: float) -> "Redis":
    """Return a client with a timeout. Raises RedisUnavailable."""
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise RedisUnavailable("the package redis is not installed: pip install 'nightjar-alerts[serve]'") from None
    try:
        return Redis.from_url(url, socket_connect_timeout=seconds, socket_timeout=seconds)
    except ValueError:  # its message contains the URL, which may have a password
        raise RedisUnavailable("invalid URL of Redis: it must start with redis://, rediss:// or unix://") from None


class SharedCounts:
    """Counts in Redis, shared by all replicas. After an error, Redis is not used for a second.

    Raises
    ------
    RedisUnavailable
        If the library is missing or the URL is invalid; the server is not contacted.
    """

    def __init__(self, url: str) -> None:
        self._redis = _redis_client(url, REDIS_SECONDS)
        self._script = self._redis.register_script(_SCRIPT)
        self._retry_at = 0.0

    async def run(self, key: str, limits: Sequence[Limit], amount: int, check: bool) -> tuple[float, int] | None:
        """Count an amount; return the longest wait and the number of its limit from 1, or None without Redis.

        Parameters
        ----------
        check : True to count requests if no limit is exceeded, False to count light curves.
        """
        if time.monotonic() < self._retry_at:
            return None
        names = [f"{REDIS_PREFIX}{key}:{limit.name}" for limit in limits]
        arguments: list[Any] = [amount, int(check)]
        for limit in limits:
            arguments += [limit.most, int(limit.day), int(not check or limit.counted == "requests")]
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                seconds, which = await self._script(keys=names, args=arguments)
        except Exception as error:  # of the network, server or client
            log.warning("redis is not available for rate limits", error=type(error).__name__, pause=REDIS_PAUSE_SECONDS)
            self._retry_at = time.monotonic() + REDIS_PAUSE_SECONDS
            return None
        return float(seconds), int(which)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


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
        if (wait := await self._wait(key, limits)) is not None:
            self._metrics.key_refused.labels(key, wait.limit.name).inc()
            raise _to_problem(wait)

    async def charge(self, key: str, curves: int) -> None:
        """Count light curves that are about to be classified."""
        limits = [limit for limit in self._get_limits(key) if limit.counted == "curves"]
        if limits and not (self._shared and await self._shared.run(key, limits, curves, check=False)):
            self._local.charge(key, limits, curves)

    async def refund(self, key: str, curves: int) -> None:
        """Refund a request that was rejected after its admission because the service is full."""
        for counted, amount in (("requests", 1), ("curves", curves)):
            limits = [limit for limit in self._get_limits(key) if limit.counted == counted]
            if amount and limits and not (self._shared and await self._shared.run(key, limits, -amount, check=False)):
                self._local.charge(key, limits, -amount)

    async def throttle(self, key: str) -> None:
        """Wait until the limit of light curves per second admits more; used by streams between groups of lines.

        Raises
        ------
        ProblemError
            429 beyond the limit of a day.
        """
        limits = [limit for limit in self._get_limits(key) if limit.counted == "curves"]
        while limits and (wait := await self._wait(key, limits)):
            if wait.limit.day:
                self._metrics.key_refused.labels(key, wait.limit.name).inc()
                raise _to_problem(wait)
            await asyncio.sleep(wait.seconds)

    async def close(self) -> None:
        """Close the connection to Redis."""
        if self._shared is not None:
            await self._shared.close()

    async def _wait(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request, in Redis or locally, if the limits allow it; else return the limit that does not."""
        reply = await self._shared.run(key, limits, 1, check=True) if self._shared else None
        if reply is None:
            return self._local.admit(key, limits)
        seconds, number = reply
        return Wait(limits[number - 1], seconds) if number else None

    def _get_limits(self, key: str) -> tuple[Limit, ...]:
        return self._limits.get(key, self._limits.get(DEFAULT_LIMITS, ()))


def _to_problem(wait: Wait) -> ProblemError:
    what = wait.limit.name.replace("_", " ").replace("curves", "light curves")
    whole = int(wait.limit.most) if float(wait.limit.most).is_integer() else None
    detail = f"the limit of this API key is {wait.limit.most:g} {what}"
    return ProblemError(RATE_LIMITED, detail, limit=whole, retry_after=wait.seconds - GRACE_SECONDS)
