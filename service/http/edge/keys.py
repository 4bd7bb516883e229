"""API keys and their limits: requests and light curves, in a second and in a day.

A key has a name and one or more digests, so that it can be exchanged: add the new digest, hand out the new key, take
the old digest away. Without keys every client is :data:`ANONYMOUS`, and nothing of this module runs.

- Limits per second are kept by one number, the time until which all that was asked has been paid (generic cell rate
  algorithm, GCRA): a request is admitted when that time is at most one second ahead, and each request or light curve
  moves it on. So a large request is answered whole, and the next one waits until it has been paid; ``Retry-After`` is
  that wait, in whole seconds.
- Days are UTC's, counted from midnight to midnight.
- The number of light curves is known only when the body has been read: it is charged then, and delays the next request.
- A request that is rejected for lack of room gets its charge back.

Counts live in Redis where ``limits_redis_url`` is set, shared by all replicas and kept through restarts. Else, and
while Redis does not answer, each process counts for itself and a restart forgets.
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
GRACE_SECONDS: Final = 1e-5  # seconds since 1970 are no more exact than a microsecond
REDIS_SECONDS: Final = 0.05
REDIS_PAUSE_SECONDS: Final = 1.0
REDIS_PREFIX: Final = "nightjar:limits:"

Counted = Literal["requests", "curves"]

log = structlog.get_logger(__name__)


class KeyRing:
    """The keys that are accepted, by the digests of their names."""

    def __init__(self, keys: Mapping[str, Sequence[str]]) -> None:
        self._digests = [(bytes.fromhex(digest), name) for name, digests in keys.items() for digest in digests]

    def __bool__(self) -> bool:
        """Return True when keys are asked for at all."""
        return bool(self._digests)

    def authenticate(self, scope: Scope) -> str:
        """Name of the key that a request shows, :data:`ANONYMOUS` where none is asked for.

        Every digest is compared, each in constant time, so that timing tells nothing about any of them.

        Raises
        ------
        ProblemError
            401 for a key that is not known.
        """
        if not self._digests:
            return ANONYMOUS
        presented_digest = hashlib.sha256(_presented_key(scope)).digest()
        matching = [name for digest, name in self._digests if hmac.compare_digest(presented_digest, digest)]
        if not matching:
            raise ProblemError(UNAUTHORIZED)
        return matching[0]


def _presented_key(scope: Scope) -> bytes:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


class Limit(NamedTuple):
    """One limit: how many of what, in a second (``day`` False) or a day."""

    counted: Counted
    day: bool
    most: float

    @property
    def name(self) -> str:
        """Name in labels of metrics and in problems: ``curves_per_day``."""
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
    """Seconds by which what was asked may be ahead of what is paid, so that a second's worth may come at once."""
    return max(0.0, WINDOW_SECONDS - 1 / rate)


class Counts:
    """Counts of this process, by key and limit.

    Parameters
    ----------
    clock : seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._paid: dict[tuple[str, str], float] = {}  # until when
        self._today: dict[tuple[str, str], tuple[int, float]] = {}  # the day, and how many

    def admit(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request where every limit allows one; else say which does not."""
        now = self._clock()
        waits = [Wait(limit, self._wait(key, limit, now)) for limit in limits]
        longest = max(waits, key=lambda wait: wait.seconds, default=None)
        if longest is not None and longest.seconds > GRACE_SECONDS:
            return longest
        self.charge(key, [limit for limit in limits if limit.counted == "requests"], 1)
        return None

    def charge(self, key: str, limits: Sequence[Limit], amount: int) -> None:
        """Count an amount against each of the limits."""
        now = self._clock()
        for limit in limits:
            place = key, limit.name
            if limit.day:
                self._today[place] = (_day(now), self._count(key, limit, now) + amount)
            else:
                self._paid[place] = max(self._paid.get(place, 0.0), now) + amount / limit.most

    def _wait(self, key: str, limit: Limit, now: float) -> float:
        if limit.day:
            full = self._count(key, limit, now) >= limit.most
            return (_day(now) + 1) * DAY_SECONDS - now if full else 0.0
        return self._paid.get((key, limit.name), 0.0) - now - _tolerance(limit.most)

    def _count(self, key: str, limit: Limit, now: float) -> float:
        day, count = self._today.get((key, limit.name), (0, 0.0))
        return count if day == _day(now) else 0.0


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)


# The same as Counts, at the server and on its clock. ARGV: amount, whether to ask first, then of each key: the limit's
# number, whether it is a day's, and whether the amount counts there. Replies with the longest wait and whose it is.
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
      redis.call('HSET', key, 'day', day, 'n', held[i] + amount)
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
    """Redis cannot be used: the library is not installed, or the address is not valid."""


def _redis_client(url: str, seconds: float) -> "Redis":
    """Make a client with a time limit. Raises RedisUnavailable."""
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise RedisUnavailable("the package redis is not installed: pip install 'nightjar-alerts[serve]'") from None
    try:
        return Redis.from_url(url, socket_connect_timeout=seconds, socket_timeout=seconds)
    except ValueError:  # its text repeats the address, which may hold a password
        raise RedisUnavailable("not an address of Redis: it has to begin with redis://, rediss:// or unix://") from None


class SharedCounts:
    """Counts in Redis, for all replicas. After a failure it is left alone for a moment.

    Raises
    ------
    RedisUnavailable
        When the library is missing or the address is not valid; whether the server answers is not checked.
    """

    def __init__(self, url: str) -> None:
        self._redis = _redis_client(url, REDIS_SECONDS)
        self._script = self._redis.register_script(_SCRIPT)
        self._retry_at = 0.0

    async def run(self, key: str, limits: Sequence[Limit], amount: int, ask: bool) -> tuple[float, int] | None:
        """Count an amount; return the longest wait and the number of its limit, from 1 on, None without an answer.

        Parameters
        ----------
        ask : whether the amount is of requests, counted only where no limit is exceeded; else it is of light curves.
        """
        if time.monotonic() < self._retry_at:
            return None
        names = [f"{REDIS_PREFIX}{key}:{limit.name}" for limit in limits]
        arguments: list[Any] = [amount, int(ask)]
        for limit in limits:
            arguments += [limit.most, int(limit.day), int(not ask or limit.counted == "requests")]
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                seconds, which = await self._script(keys=names, args=arguments)
        except Exception as error:  # of the network, the server or the client: all mean the same here
            log.warning("redis does not count requests", error=type(error).__name__, pause=REDIS_PAUSE_SECONDS)
            self._retry_at = time.monotonic() + REDIS_PAUSE_SECONDS
            return None
        return float(seconds), int(which)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._redis.aclose()


class Quotas:
    """The limits of every key, and what was asked of them.

    Parameters
    ----------
    limits : by name of the key; :data:`DEFAULT_LIMITS` stands for those without limits of their own.
    """

    def __init__(self, limits: Mapping[str, KeyLimits], metrics: Metrics, shared: SharedCounts | None = None) -> None:
        self._limits = {name: list_limits(each) for name, each in limits.items()}
        self._metrics, self._shared = metrics, shared
        self._local = Counts()

    async def admit(self, key: str) -> None:
        """Count a request.

        Raises
        ------
        ProblemError
            429 beyond a limit, with the time after which it would not be.
        """
        if not (limits := self._of(key)):
            return
        if (wait := await self._wait(key, limits)) is not None:
            self._metrics.key_refused.labels(key, wait.limit.name).inc()
            raise _refusal(wait)

    async def charge(self, key: str, curves: int) -> None:
        """Count light curves that are about to be answered."""
        limits = [limit for limit in self._of(key) if limit.counted == "curves"]
        if limits and not (self._shared and await self._shared.run(key, limits, curves, ask=False)):
            self._local.charge(key, limits, curves)

    async def refund(self, key: str, curves: int) -> None:
        """Take back the charge of a request that was admitted and then rejected for lack of room."""
        for counted, amount in (("requests", 1), ("curves", curves)):
            limits = [limit for limit in self._of(key) if limit.counted == counted]
            if amount and limits and not (self._shared and await self._shared.run(key, limits, -amount, ask=False)):
                self._local.charge(key, limits, -amount)

    async def throttle(self, key: str) -> None:
        """Wait until the light curves asked for have been paid for, as a stream does between two groups of them.

        Raises
        ------
        ProblemError
            429 when the key has asked for a day's worth.
        """
        limits = [limit for limit in self._of(key) if limit.counted == "curves"]
        while limits and (wait := await self._wait(key, limits)):
            if wait.limit.day:
                self._metrics.key_refused.labels(key, wait.limit.name).inc()
                raise _refusal(wait)
            await asyncio.sleep(wait.seconds)

    async def close(self) -> None:
        """Let go of Redis."""
        if self._shared is not None:
            await self._shared.close()

    async def _wait(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request where the limits allow one, here or in Redis; else say which does not."""
        reply = await self._shared.run(key, limits, 1, ask=True) if self._shared else None
        if reply is None:
            return self._local.admit(key, limits)
        seconds, number = reply
        return Wait(limits[number - 1], seconds) if number else None

    def _of(self, key: str) -> tuple[Limit, ...]:
        return self._limits.get(key, self._limits.get(DEFAULT_LIMITS, ()))


def _refusal(wait: Wait) -> ProblemError:
    what = wait.limit.name.replace("_", " ").replace("curves", "light curves")
    whole = int(wait.limit.most) if float(wait.limit.most).is_integer() else None
    detail = f"this key may ask for {wait.limit.most:g} {what}"
    return ProblemError(RATE_LIMITED, detail, limit=whole, retry_after=wait.seconds - GRACE_SECONDS)
