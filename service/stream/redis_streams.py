"""Alerts from Redis streams by a consumer group, and records to a stream.

An entry has the fields ``value`` and, if need be, ``key``, ``timestamp`` and headers as ``h:<name>``. Entries that a
worker had taken when it died are claimed by another after ``idle`` seconds. One with which two workers died is
delivered alone, with nothing else in flight; one that goes on killing whoever fetches it is given up by its id, unread.
Done entries are acknowledged and, with ``delete=yes``, deleted, which is right only where no other group reads the
stream.

Redis bounds no reply in bytes: how many entries are asked for at once follows the size of those before
(:class:`FetchSize`).
"""

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Any, Final, cast

import redis
import structlog
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.messages import (
    FiniteSource,
    Headers,
    Message,
    PermanentError,
    Record,
    SourceStatus,
    TransientError,
)

log = structlog.get_logger(__name__)

GROUP: Final = "nightjar"
IDLE_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 10.0
ALONE_AFTER_DELIVERIES: Final = 2
"""Deliveries without an end after which an entry is delivered alone."""
READ_FOR_DEAD_LETTER: Final = 2
"""Deliveries beyond the allowed ones by which an entry is still fetched, so that its dead letter has the bytes."""
FIRST_ENTRIES: Final = 4
REPLY_BYTES: Final = 16 << 20
"""Size of a reply beyond which half as many entries are asked for."""
WAIT_SECONDS: Final = 0.01
HEADER: Final = b"h:"
_TRANSIENT: Final = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError)
Entries = Sequence[tuple[bytes, dict[bytes, bytes] | None]]


def connect(address: Address) -> redis.Redis:
    """Make a client; it connects when first used.

    It does not retry by itself: its callers do, and tell the probes meanwhile that nobody answers. Retries of the
    client's own would hide that for most of a minute.
    """
    host, _, port = address.hosts.rpartition(":") if ":" in address.hosts else (address.hosts, "", "6379")
    return redis.Redis(
        host, int(port), int(address.number("db", 0)), password=address.password, username=address.user,
        ssl=address.tls, protocol=2, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS,
        health_check_interval=30, retry=Retry(NoBackoff(), 0),
    )  # fmt: skip


def refusal_of(client: redis.Redis) -> str:
    """Return why a server refuses us, in words; empty when it does not, or does not answer."""
    try:
        client.ping()
    except (AuthenticationError, NoPermissionError) as error:
        return f"authentication failed: {error}"
    except RedisError:
        pass
    return ""


class FetchSize:
    """Number of entries to ask for at once: few at first, more while replies are full and small.

    A reply is read whole before anybody sees how large it is, and an entry may have half a gigabyte.
    """

    def __init__(self) -> None:
        self._count = FIRST_ENTRIES

    def at_most(self, limit: int) -> int:
        """Return how many to ask for, at most ``limit``."""
        return min(limit, self._count)

    def learn(self, requested: int, entries: Entries) -> None:
        """Learn from a reply."""
        size = sum(len(name) + len(value) for _, fields in entries if fields for name, value in fields.items())
        if size > REPLY_BYTES:
            self._count = max(1, requested // 2)
        elif len(entries) >= requested and 2 * size <= REPLY_BYTES:  # one that is not full says nothing about more
            self._count = max(self._count, 2 * requested)

    def reset(self) -> None:
        """Begin anew with few: a reply did not arrive, and may have been too large to."""
        self._count = min(self._count, FIRST_ENTRIES)


class RedisSource:
    """Source that is a member of a consumer group of one or several streams.

    Parameters
    ----------
    max_deliveries : deliveries of an entry beyond which it is a dead letter.
    """

    finite = False

    def __init__(self, address: Address, max_deliveries: int = 5) -> None:
        options = address.only("group", "db", "idle", "delete", "consumer").options
        self._client, self._streams = connect(address), [name.encode() for name in address.names]
        self._group = options.get("group", GROUP)
        self._consumer = options.get("consumer", f"{socket.gethostname()}-{os.getpid()}")
        self._unread_from = max_deliveries + READ_FOR_DEAD_LETTER
        self._fetch_size = FetchSize()
        self._idle_ms = int(1000 * address.number("idle", IDLE_SECONDS))
        self._delete = options.get("delete") == "yes"
        self._in_flight: set[tuple[bytes, bytes]] = set()  # stream and id of what is in flight here
        self._ready, self._claimed_at = False, 0.0
        self._alone = False  # whether what comes next, or is in flight, is to be alone
        self._scan_starts: dict[bytes, str] = {}

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Claim messages of consumers that died, else read new ones."""
        try:
            self._prepare()
            # A message that may have killed workers is to be alone in the process: if it dies, this one was it.
            if self._alone and self._in_flight:
                sleep(WAIT_SECONDS)
                return []
            self._alone = False
            if messages := self._claim(self._fetch_size.at_most(limit)):
                return self._note_in_flight(messages)
            if self._alone:  # once what is in flight has ended
                return []
            return self._note_in_flight(self._read(self._fetch_size.at_most(limit), timeout))
        except ResponseError as error:
            self._ready = False  # NOGROUP: the stream was deleted, or the server lost it
            raise TransientError(str(error)) from error
        except RedisError as error:
            self._fetch_size.reset()
            raise TransientError(str(error)) from error

    def _read(self, count: int, timeout: float) -> list[Message]:
        """Read new entries, so many of each stream."""
        streams = cast(Any, dict.fromkeys(self._streams, ">"))
        reply = self._client.xreadgroup(self._group, self._consumer, streams, count, max(1, int(1000 * timeout)))
        entries_by_stream = cast("list[tuple[bytes, Entries]]", reply or [])
        self._fetch_size.learn(count, [one for _, entries in entries_by_stream for one in entries])
        return [
            message_of(stream, entry, fields)
            for stream, entries in entries_by_stream
            for entry, fields in entries
            if fields
        ]

    def _note_in_flight(self, messages: list[Message]) -> list[Message]:
        """Remember what is delivered, so that we do not claim it from ourselves."""
        self._in_flight.update(cast("tuple[bytes, bytes]", message.token) for message in messages)
        return messages

    def _prepare(self) -> None:
        if self._ready:
            return
        for stream in self._streams:
            with contextlib.suppress(ResponseError):  # BUSYGROUP: it is there
                self._client.xgroup_create(stream, self._group, "0", mkstream=True)
        self._ready = True

    def _claim(self, limit: int) -> list[Message]:
        """Claim entries that their owner has not finished for ``idle`` seconds, with the number of their deliveries."""
        if monotonic() - self._claimed_at < self._idle_ms / 2000:  # twice in the time that an entry may lie idle
            return []
        messages: list[Message] = []
        for stream in self._streams:
            start = self._scan_starts.get(stream, "-")
            pending = self._idle_entries(stream, limit)
            unread = {entry: pending.pop(entry) for entry in list(pending) if pending[entry] >= self._unread_from}
            messages += self._claim_unread(stream, unread)
            suspects = [entry for entry, deliveries in pending.items() if deliveries >= ALONE_AFTER_DELIVERIES]
            if suspects:  # the next look sees the others of these
                self._scan_starts[stream] = start
            if suspects and not messages:
                self._alone = True
                return [] if self._in_flight else self._claim_entries(stream, {suspects[0]: pending[suspects[0]]})
            messages += self._claim_entries(stream, pending if not suspects else {})
        if not messages and not self._scan_starts:
            self._claimed_at = monotonic()
        return messages

    def _idle_entries(self, stream: bytes, limit: int) -> dict[bytes, int]:
        """Return entries that nobody has touched for long, with their numbers of deliveries; some at each call."""
        start = self._scan_starts.pop(stream, "-")
        pending = cast(
            "list[dict[str, Any]]",
            self._client.xpending_range(stream, self._group, start, "+", limit, idle=self._idle_ms),
        )
        if len(pending) == limit:
            # There may be more: the next look begins behind the last one ("(" excludes it).
            self._scan_starts[stream] = f"({pending[-1]['message_id'].decode()}"
        return {
            one["message_id"]: int(one["times_delivered"])
            for one in pending
            if (stream, one["message_id"]) not in self._in_flight
        }

    def _claim_entries(self, stream: bytes, pending: Mapping[bytes, int]) -> list[Message]:
        """Claim entries, those of them that nobody has claimed meanwhile."""
        if not pending:
            return []
        # With the idle time once more: of several consumers that have seen an entry the first one to claim it gets it.
        entries = cast(Entries, self._client.xclaim(stream, self._group, self._consumer, self._idle_ms, list(pending)))
        self._fetch_size.learn(len(pending), entries)
        return [message_of(stream, entry, fields, pending[entry] + 1) for entry, fields in entries if fields]

    def _claim_unread(self, stream: bytes, pending: Mapping[bytes, int]) -> list[Message]:
        """Claim entries without their bytes, which were fetched for a dead letter already and never came to one."""
        if not pending:
            return []
        ids = cast(
            "list[bytes]",
            self._client.xclaim(stream, self._group, self._consumer, self._idle_ms, list(pending), justid=True),
        )
        found = [message_of(stream, entry, {}, pending[entry]) for entry in ids]
        return [replace(message, unread=True, tombstone=False) for message in found]

    def keep_alive(self, seconds: float) -> None:
        """Sleep: Redis wants nothing of a consumer that is busy."""
        sleep(seconds)

    def commit_window(self) -> None:
        """Return no bound: what is done is acknowledged at once."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Acknowledge, stream by stream. What was not read, or has no `value`, stays: its dead letter has no copy."""
        by_stream = _by_stream(messages)
        read_by_stream = _by_stream([message for message in messages if message.value])
        try:
            for stream, entries in by_stream.items():
                self._client.xack(stream, self._group, *entries)
                if self._delete and stream in read_by_stream:
                    self._client.xdel(stream, *read_by_stream[stream])
        except RedisError as error:
            raise TransientError(str(error)) from error
        # Only now: an entry whose acknowledgement failed is not to be claimed from ourselves.
        self._in_flight.difference_update((stream, entry) for stream, entries in by_stream.items() for entry in entries)

    def refusal(self) -> str:
        """Check whether the server takes our password."""
        return refusal_of(self._client)

    def owns(self, message: Message) -> bool:
        """Return True: entries are ours until done; who stalls is not told that others have claimed them."""
        return True

    def status(self) -> SourceStatus:
        """Count entries not yet handed to the group, where the server (7.0 and later) counts them."""
        lags: dict[tuple[str, str], int] = {}
        with contextlib.suppress(RedisError):
            for stream in self._streams:
                for group in self._client.xinfo_groups(stream):
                    if group["name"] == self._group.encode() and group.get("lag") is not None:
                        lags[stream.decode(errors="replace"), ""] = int(group["lag"])
        return SourceStatus(lag=lags, waiting=sum(lags.values()))

    def close(self, clean: bool = True) -> None:
        """Leave; what is unfinished stays pending, is claimed by others, and counts as delivered once more."""
        with contextlib.suppress(RedisError):
            self._client.close()


def _by_stream(messages: Sequence[Message]) -> dict[bytes, list[bytes]]:
    entries: dict[bytes, list[bytes]] = {}
    for message in messages:
        stream, entry = cast("tuple[bytes, bytes]", message.token)
        entries.setdefault(stream, []).append(entry)
    return entries


def message_of(stream: bytes, entry: bytes, fields: Mapping[bytes, bytes], deliveries: int = 1) -> Message:
    """Return the message that an entry holds."""
    timestamp_ms = milliseconds(fields.get(b"timestamp", b""))
    headers: Headers = tuple(
        (name.removeprefix(HEADER).decode(errors="replace"), value)
        for name, value in fields.items()
        if name.startswith(HEADER)
    )
    return Message(
        topic=stream.decode(errors="replace"),
        place=entry.decode(),
        value=fields.get(b"value", b""),
        key=fields.get(b"key"),
        headers=headers,
        timestamp_ms=milliseconds(entry.partition(b"-")[0]) if timestamp_ms is None else timestamp_ms,
        deliveries=deliveries,
        token=(stream, entry),
        tombstone=all(name in (b"key", b"timestamp") or name.startswith(HEADER) for name in fields),
    )


class RedisSink:
    """One stream, with ``maxlen`` trimmed to about that many entries."""

    trouble = ""

    def __init__(self, address: Address) -> None:
        self._stream = address.only("db", "maxlen").name
        self._client = connect(address)
        self._maxlen = int(address.number("maxlen", 0)) or None

    def refusal(self) -> str:
        """Check whether the server takes our password."""
        return refusal_of(self._client)

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        """Append all records in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for record in records:
            headers = {HEADER + name.encode(): value for name, value in record.headers}
            fields: dict[Any, Any] = {b"key": record.key, b"value": record.value, **headers}
            # Trimmed by whole blocks of entries: exactly would cost Redis more at each.
            pipeline.xadd(self._stream, fields, maxlen=self._maxlen, approximate=True)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except RedisError as error:  # what was written before the connection broke is written again, with the same key
            return [TransientError(str(error)) for _ in records]
        return [_verdict(answer) for answer in answers]

    def close(self) -> None:
        """Let go of the server."""
        self._client.close()


def _verdict(answer: object) -> PermanentError | TransientError | None:
    if isinstance(answer, _TRANSIENT):
        return TransientError(str(answer))
    return PermanentError(str(answer)) if isinstance(answer, Exception) else None


class RedisRange(FiniteSource):
    """Entries of streams from ``since`` to ``until``; a dead letter that has been answered is deleted."""

    def __init__(self, address: Address) -> None:
        options = address.only("db", "since", "until").options
        self._client, self._fetch_size = connect(address), FetchSize()
        since = str(address.moment("since")) if "since" in options else "-"
        try:
            self._ranges = [(name.encode(), since, self._end(name, address)) for name in address.names]
        except RedisError as error:
            raise AddressError(f"redis://{address.hosts}: {error}") from None

    def _end(self, stream: str, address: Address) -> str:
        if "until" in address.options:
            return str(address.moment("until"))
        last = cast("list[tuple[bytes, Any]]", self._client.xrevrange(stream, count=1))
        return last[0][0].decode() if last else "0-0"

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next entries, stream after stream."""
        while self._ranges:
            stream, start, end = self._ranges[0]
            count = self._fetch_size.at_most(limit)
            try:
                entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", self._client.xrange(stream, start, end, count))
            except RedisError as error:
                self._fetch_size.reset()
                raise TransientError(str(error)) from error
            self._fetch_size.learn(count, entries)
            if entries:
                self._ranges[0] = (stream, f"({entries[-1][0].decode()}", end)
                return [message_of(stream, entry, fields) for entry, fields in entries]
            self._ranges.pop(0)
        return []

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Delete dead letters; alerts stay."""
        try:
            for message in messages:
                stream, entry = cast("tuple[bytes, bytes]", message.token)
                if message.topic != stream.decode(errors="replace"):  # that of its message has been restored
                    self._client.xdel(stream, entry)
        except RedisError as error:
            raise TransientError(str(error)) from error

    def close(self, clean: bool = True) -> None:
        """Let go of the server."""
        self._client.close()
