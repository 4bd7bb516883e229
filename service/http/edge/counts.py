"""Counts of the rate limits of API keys: the algorithm, and its two implementations.

A limit stores one number, and is a rule of two functions of it: how long a request has to wait, and how an amount of
requests or light curves changes it.

- A limit per second uses the generic cell rate algorithm (GCRA). The number is the theoretical arrival time: the time
  until which the rate is used up. A request waits until this time is at most one second ahead, so that the capacity of
  a second may be used at once, and a large request is processed as a whole and delays the next one.
- A limit per day stores the count of a UTC day, which is 0 on any other day. A request waits until midnight once the
  count has reached the limit. A refund after midnight belongs to the day before, so no count goes below 0.

A request is admitted if no limit makes it wait for more than :data:`GRACE_SECONDS`. It is then counted by the limits of
requests; those of light curves are charged once the body was read. A rejected request is not counted.

:func:`held`, :func:`seconds_to_wait` and :func:`add` state these rules for the counts of one process; the functions of
the same names in :data:`SCRIPT` state them for counts in Redis. A test compares the two on random requests.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import structlog

from nightjar_alerts.models.common import how_to_install
from nightjar_alerts.service.settings import KeyLimits

if TYPE_CHECKING:
    from redis.asyncio import Redis

WINDOW_SECONDS: Final = 1.0
DAY_SECONDS: Final = 86_400
GRACE_SECONDS: Final = 1e-5  # a float of seconds since 1970 has a resolution of a microsecond
REDIS_SECONDS: Final = 0.05
REDIS_PAUSE_SECONDS: Final = 1.0
REDIS_PREFIX: Final = "nightjar:limits:"

Counted = Literal["requests", "curves"]

log = structlog.get_logger(__name__)


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


class Stored(NamedTuple):
    """What is stored for a limit: its number, and the UTC day when it was changed."""

    day: int = 0
    number: float = 0.0


def held(limit: Limit, stored: Stored, now: float) -> float:
    """Return the number of a limit as of now."""
    return 0.0 if limit.day and stored.day != day_of(now) else stored.number


def seconds_to_wait(limit: Limit, number: float, now: float) -> float:
    """Return the seconds until a request would be admitted; 0 or less if it is admitted now."""
    if limit.day:
        return (day_of(now) + 1) * DAY_SECONDS - now if number >= limit.most else 0.0
    return number - now - max(0.0, WINDOW_SECONDS - 1 / limit.most)


def add(limit: Limit, number: float, amount: int, now: float) -> float:
    """Return the number of a limit after an amount, which is negative for a refund."""
    if limit.day:
        return max(0.0, number + amount)
    return round(max(number, now) + amount / limit.most, 6)


def day_of(now: float) -> int:
    """Return the UTC day of a time in seconds since 1970."""
    return int(now // DAY_SECONDS)


class Counts:
    """Counts of one process, by key and limit.

    Parameters
    ----------
    clock : seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._stored: dict[tuple[str, str], Stored] = {}

    def admit(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request if every limit allows it; else return the limit with the longest wait."""
        now = self._clock()
        waits = [Wait(limit, seconds_to_wait(limit, self._held(key, limit, now), now)) for limit in limits]
        longest = max(waits, key=lambda wait: wait.seconds, default=None)
        if longest is not None and longest.seconds > GRACE_SECONDS:
            return longest
        self.charge(key, [limit for limit in limits if limit.counted == "requests"], 1)
        return None

    def charge(self, key: str, limits: Sequence[Limit], amount: int) -> None:
        """Add an amount to each limit."""
        now = self._clock()
        for limit in limits:
            number = add(limit, self._held(key, limit, now), amount, now)
            self._stored[key, limit.name] = Stored(day_of(now), number)

    def _held(self, key: str, limit: Limit, now: float) -> float:
        return held(limit, self._stored.get((key, limit.name), Stored()), now)


REDIS_CLOCK: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
"""
# ARGV: amount, whether to admit a request or to charge, and for each key the limit, whether it is per day, and whether
# to add the amount. Returns the longest wait, and the index of its limit or 0.
SCRIPT: Final = (
    REDIS_CLOCK
    + """
local day, amount, admit = math.floor(now / 86400), tonumber(ARGV[1]), ARGV[2] == '1'

local function held(limit, stored_day, number)
  if limit.day and tonumber(stored_day or '-1') ~= day then return 0 end
  return tonumber(number or '0')
end

local function seconds_to_wait(limit, number)
  if limit.day then
    if number >= limit.most then return (day + 1) * 86400 - now end
    return 0
  end
  return number - now - math.max(0, 1 - 1 / limit.most)
end

local function add(limit, number)
  if limit.day then return math.max(0, number + amount) end
  return math.max(number, now) + amount / limit.most
end

local limits, numbers, longest, which = {}, {}, 0.00001, 0
for i, key in ipairs(KEYS) do
  limits[i] = {most = tonumber(ARGV[3 * i]), day = ARGV[3 * i + 1] == '1', counts = ARGV[3 * i + 2] == '1'}
  local stored = redis.call('HMGET', key, 'day', 'n')
  numbers[i] = held(limits[i], stored[1], stored[2])
  local wait = seconds_to_wait(limits[i], numbers[i])
  if wait > longest then longest, which = wait, i end
end
if admit and which > 0 then return {tostring(longest), which} end
for i, key in ipairs(KEYS) do
  if limits[i].counts then
    local number = add(limits[i], numbers[i])
    redis.call('HSET', key, 'day', day, 'n', string.format('%.6f', number))
    redis.call('EXPIRE', key, limits[i].day and 172800 or math.max(1, math.ceil(number - now) + 2))
  end
end
return {'0', 0}
"""
)


class RedisUnavailable(Exception):
    """Redis cannot be used: the library is not installed, the URL is invalid, or the server does not respond."""


def _redis_client(url: str, seconds: float) -> "Redis":
    """Return a client with a timeout. Raises RedisUnavailable."""
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise RedisUnavailable(f"the package redis is not installed: {how_to_install('serve')}") from None
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
        self._script = self._redis.register_script(SCRIPT)
        self._retry_at = 0.0

    async def admit(self, key: str, limits: Sequence[Limit]) -> Wait | None:
        """Count a request, as :meth:`Counts.admit`. Raises RedisUnavailable."""
        seconds, number = await self._run(key, limits, 1, admit=True)
        return Wait(limits[int(number) - 1], float(seconds)) if int(number) else None

    async def charge(self, key: str, limits: Sequence[Limit], amount: int) -> None:
        """Add an amount to each limit. Raises RedisUnavailable."""
        await self._run(key, limits, amount, admit=False)

    async def _run(self, key: str, limits: Sequence[Limit], amount: int, admit: bool) -> tuple[Any, Any]:
        if time.monotonic() < self._retry_at:
            raise RedisUnavailable
        names = [f"{REDIS_PREFIX}{key}:{limit.name}" for limit in limits]
        arguments: list[Any] = [amount, int(admit)]
        for limit in limits:
            arguments += [limit.most, int(limit.day), int(not admit or limit.counted == "requests")]
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                seconds, which = await self._script(keys=names, args=arguments)
        except Exception as error:  # of the network, server or client
            log.warning("redis is not available for rate limits", error=type(error).__name__, pause=REDIS_PAUSE_SECONDS)
            self._retry_at = time.monotonic() + REDIS_PAUSE_SECONDS
            raise RedisUnavailable from None
        return seconds, which

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
