"""Redis streams as source, by a consumer group, and as sink.

An entry has the fields ``value`` and, optionally, ``key``, ``timestamp`` and headers as ``h:<name>``. Entries that a
dead worker had read are claimed by another one after ``idle`` seconds. An entry that was in flight when two workers
died is isolated: delivered with nothing else in flight. If workers that fetch it keep dying, it becomes a dead letter
without its bytes. Entries that a graceful stop gives back are claimed at once, and this delivery does not count.
Finished entries are acknowledged and, with ``delete=yes``, deleted; use this only if no other group reads the stream.

Redis cannot limit the size of a reply in bytes, so the number of requested entries is adapted to the size of previous
replies (:class:`FetchSize`).
"""

import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.broker_errors import redis_report, redis_text
from nightjar_alerts.service.stream.messages import (
    DeliveryReport,
    FiniteSource,
    Headers,
    Message,
    Record,
    SourceStatus,
    TransientError,
)

GROUP: Final = "nightjar"
RETURNED: Final = "returned"
"""Consumer to which a graceful stop assigns unfinished entries, until another consumer claims them."""
LAST_ID: Final = f"{2**64 - 1}-{2**64 - 2}"
"""Id after which no entry is pending, so reading from it delivers nothing. The next id means ``>``, new entries."""
IDLE_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 10.0
ISOLATE_AFTER_DELIVERIES: Final = 2
"""Number of unfinished deliveries after which an entry is isolated."""
READ_FOR_DEAD_LETTER: Final = 2
"""Number of deliveries beyond the maximum in which an entry is still fetched, so that its dead letter has the bytes."""
FIRST_ENTRIES: Final = 4
REPLY_BYTES: Final = 16 << 20
"""Size of a reply in bytes beyond which half as many entries are requested next."""
WAIT_SECONDS: Final = 0.01
HEADER: Final = b"h:"
DEFAULT_PORT: Final = 6379
CUT_CONNECTION: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
CONNECTION_OPTIONS: Final = ("db", "cluster", "sentinel", "sentinel_auth", *TLS_FILES)
"""Options of every Redis address, named as in redis-py."""
ERRORS: Final = (RedisError, RedisClusterException)
Entries = Sequence[tuple[bytes, dict[bytes, bytes] | None]]


def connect(address: Address) -> Callable[[], Any]:
    """Check the options of a connection; return a function that creates the client.

    The client of a single server or of Sentinel connects when first used, that of Redis Cluster when created. It does
    not retry: its callers do, and report that no server responds, which retries of the client would delay by most of a
    minute. It does not send PING, for which a user may have no permission.
    """
    files = {name: address.options[name] for name in TLS_FILES if name in address.options}
    for name, path in files.items():
        if not address.tls:
            raise AddressError(f"{name} needs TLS: write rediss://")
        if not Path(path).is_file():
            raise AddressError(f"{name}: {path} is not a file")
    hosts, name = address.host_ports(DEFAULT_PORT), address.options.get("sentinel", "")
    login: dict[str, Any] = {"password": address.password, "username": address.user}
    if name and address.flag("cluster"):
        raise AddressError("an address has cluster=yes or sentinel=NAME, not both")
    common: dict[str, Any] = {
        "protocol": 2, "socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS,
        "health_check_interval": 0, "retry": Retry(NoBackoff(), 0),
    }  # fmt: skip
    tls: dict[str, Any] = {"ssl": True, **files} if address.tls else {}
    if address.flag("cluster"):
        if address.integer("db", 0):
            raise AddressError("Redis Cluster has only database 0")
        node: Any = ClusterNode
        nodes = [node(host, port) for host, port in hosts]
        return lambda: RedisCluster(startup_nodes=nodes, **login, **common, **tls)
    if name:
        sentinels: Any = Sentinel
        sentinel_login = login if address.flag("sentinel_auth") else {}
        sentinel = sentinels(hosts, sentinel_kwargs={**common, **tls, **sentinel_login}, **common, **tls)
        return lambda: sentinel.master_for(name, db=address.integer("db", 0), **login)
    if len(hosts) > 1:
        raise AddressError("several hosts of Redis need cluster=yes or sentinel=NAME")
    ((host, port),) = hosts
    return lambda: redis.Redis(host, port, address.integer("db", 0), **login, **common, **tls)


def access_error(client: Callable[[], Any], commands: Sequence[tuple[Any, ...]]) -> str:
    """Return why a server rejects this client or a command that it needs; empty if it accepts them or does not respond.

    Parameters
    ----------
    commands : methods of the client with their arguments; they must not change anything.
    """
    cut = 0
    for method, *arguments in commands:
        try:
            getattr(client(), method)(*arguments)
        except (AuthenticationError, AuthorizationError) as error:
            return f"authentication failed: {error}"
        except NoPermissionError as error:
            if method != "xgroup_create":  # not needed if the group exists, which the next command checks
                return f"not authorised: {error}"
        except ERRORS as error:
            tls_error = _tls_error(error)
            if isinstance(tls_error, CUT_CONNECTION):
                cut += 1
            elif tls_error is not None:
                return f"no TLS connection: {tls_error}"
    if cut == len(commands) > 0:  # TLS 1.3 rejects a client after the handshake, and its alert can be lost
        return "no TLS connection: the server cuts it, perhaps for want of a client certificate"
    return ""


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error among the causes of an error; None if there is none."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


class FetchSize:
    """Number of entries per request: few at first, more while replies are full and small.

    A reply is read as a whole before its size is known, and an entry may have half a gigabyte.
    """

    def __init__(self) -> None:
        self._count = FIRST_ENTRIES

    def at_most(self, limit: int) -> int:
        """Return the number of entries to request, at most ``limit``."""
        return min(limit, self._count)

    def update(self, requested: int, entries: Entries) -> None:
        """Adapt the number to the size of a reply."""
        size = sum(len(name) + len(value) for _, fields in entries if fields for name, value in fields.items())
        if size > REPLY_BYTES:
            self._count = max(1, requested // 2)
        elif (
            len(entries) >= requested and 2 * size <= REPLY_BYTES
        ):  # a partial reply does not show how large a full one is
            self._count = max(self._count, 2 * requested)

    def reset(self) -> None:
        """Restart with few entries after a reply did not arrive, perhaps because it was too large."""
        self._count = min(self._count, FIRST_ENTRIES)


class RedisSource:
    """Source that is a member of a consumer group of one or several streams.

    Parameters
    ----------
    max_deliveries : number of deliveries beyond which an entry becomes a dead letter.
    """

    finite = False

    def __init__(self, address: Address, max_deliveries: int = 5) -> None:
        options = address.check_options("group", "idle", "delete", "consumer", *CONNECTION_OPTIONS).options
        self._connect, self._streams = connect(address), [name.encode() for name in address.names]
        # In a cluster, streams may be in different hash slots.
        self._one_call = len(self._streams) == 1 or not address.flag("cluster")
        self._group = options.get("group", GROUP)
        self._consumer = options.get("consumer", f"{socket.gethostname()}-{os.getpid()}")
        self._unread_from = max_deliveries + READ_FOR_DEAD_LETTER
        self._fetch_size = FetchSize()
        self._idle_ms = int(1000 * address.number("idle", IDLE_SECONDS))
        self._delete = address.flag("delete")
        self._in_flight: dict[tuple[bytes, bytes], int] = {}  # deliveries by stream and id
        self._ready, self._claimed_at = False, 0.0
        self._isolating = False  # whether the next message, or the one in flight, is isolated
        self._scan_starts: dict[bytes, str] = {}

    @cached_property
    def _client(self) -> Any:
        return self._connect()

    # Poll.

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Claim entries of consumers that died or stopped; if there are none, read new entries."""
        try:
            self._create_groups()
            # Nothing else is in flight while a possible poison message is isolated: if the process dies, that message
            # is the cause.
            if self._isolating and self._in_flight:
                sleep(WAIT_SECONDS)
                return []
            self._isolating = False
            if messages := self._claim(self._fetch_size.at_most(limit)):
                return self._record_in_flight(messages)
            if self._isolating:  # delivered once nothing else is in flight
                return []
            return self._record_in_flight(self._read(self._fetch_size.at_most(limit), timeout))
        except ResponseError as error:
            self._ready = False  # NOGROUP: the stream was deleted, or the server lost it
            raise self._transient(error) from error
        except ERRORS as error:
            self._fetch_size.reset()
            raise self._transient(error) from error

    def _transient(self, error: Exception) -> TransientError:
        return TransientError(f"stream {','.join(stream.decode() for stream in self._streams)}: {redis_text(error)}")

    def _create_groups(self) -> None:
        if self._ready:
            return
        for stream in self._streams:
            with suppress(ResponseError):  # BUSYGROUP: it exists; NOPERM: reading fails if it does not
                self._client.xgroup_create(stream, self._group, "0", mkstream=True)
        self._ready = True

    def _read(self, count: int, timeout: float) -> list[Message]:
        """Read up to ``count`` new entries of each stream."""
        milliseconds_each = max(1, int(1000 * timeout))
        if self._one_call:
            return self._read_streams(self._streams, count, milliseconds_each)
        milliseconds_each = max(1, milliseconds_each // len(self._streams))
        return [
            message for stream in self._streams for message in self._read_streams([stream], count, milliseconds_each)
        ]

    def _read_streams(self, streams: Sequence[bytes], count: int, block_ms: int) -> list[Message]:
        new = cast(Any, dict.fromkeys(streams, ">"))
        reply = self._client.xreadgroup(self._group, self._consumer, new, count, block_ms)
        entries_by_stream = cast("list[tuple[bytes, Entries]]", reply or [])
        self._fetch_size.update(count, [entry for _, entries in entries_by_stream for entry in entries])
        return [
            to_message(stream, entry, fields)
            for stream, entries in entries_by_stream
            for entry, fields in entries
            if fields
        ]

    def _record_in_flight(self, messages: list[Message]) -> list[Message]:
        """Record delivered messages, so that this source does not claim its own entries."""
        # Claiming an unread entry did not count as a delivery, so none is to be subtracted later.
        self._in_flight |= {
            cast("tuple[bytes, bytes]", message.token): message.deliveries + message.unread for message in messages
        }
        return messages

    def _claim(self, limit: int) -> list[Message]:
        """Claim entries that their consumer has not finished for ``idle`` seconds, with their number of deliveries."""
        if monotonic() - self._claimed_at < self._idle_ms / 2000:  # two scans per idle time
            return []
        messages: list[Message] = []
        for stream in self._streams:
            start = self._scan_starts.get(stream, "-")
            pending = self._idle_entries(stream, limit)
            unread = {entry: pending.pop(entry) for entry in list(pending) if pending[entry] >= self._unread_from}
            messages += self._claim_unread(stream, unread)
            candidates = [entry for entry, deliveries in pending.items() if deliveries >= ISOLATE_AFTER_DELIVERIES]
            if candidates:  # the next scan finds the remaining ones
                self._scan_starts[stream] = start
            if candidates and not messages:
                self._isolating = True
                return [] if self._in_flight else self._claim_entries(stream, {candidates[0]: pending[candidates[0]]})
            messages += self._claim_entries(stream, pending if not candidates else {})
        if not messages and not self._scan_starts:
            self._claimed_at = monotonic()
        return messages

    def _idle_entries(self, stream: bytes, limit: int) -> dict[bytes, int]:
        """Return up to ``limit`` idle entries with their number of deliveries; the next call continues after them."""
        start = self._scan_starts.pop(stream, "-")
        pending = cast(
            "list[dict[str, Any]]",
            self._client.xpending_range(stream, self._group, start, "+", limit, idle=self._idle_ms),
        )
        if len(pending) == limit:
            # There may be more: the next scan starts after the last entry ("(" excludes it).
            self._scan_starts[stream] = f"({pending[-1]['message_id'].decode()}"
        return {
            entry["message_id"]: int(entry["times_delivered"])
            for entry in pending
            if (stream, entry["message_id"]) not in self._in_flight
        }

    def _claim_entries(self, stream: bytes, pending: Mapping[bytes, int]) -> list[Message]:
        """Claim entries, except those that another consumer has claimed meanwhile."""
        if not pending:
            return []
        # With the idle time, so that only the first of several consumers that have seen an entry claims it.
        entries = cast(Entries, self._client.xclaim(stream, self._group, self._consumer, self._idle_ms, list(pending)))
        self._fetch_size.update(len(pending), entries)
        return [to_message(stream, entry, fields, pending[entry] + 1) for entry, fields in entries if fields]

    def _claim_unread(self, stream: bytes, pending: Mapping[bytes, int]) -> list[Message]:
        """Claim entries without their bytes, as fetching them has failed before."""
        if not pending:
            return []
        ids = cast(
            "list[bytes]",
            self._client.xclaim(stream, self._group, self._consumer, self._idle_ms, list(pending), justid=True),
        )
        found = [to_message(stream, entry, {}, pending[entry]) for entry in ids]
        return [replace(message, unread=True, tombstone=False) for message in found]

    # Acknowledge.

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages. ``delete=yes`` keeps unread entries, whose dead letters do not have the bytes."""
        by_stream = _by_stream(messages)
        read_by_stream = _by_stream([message for message in messages if message.value])
        try:
            for stream, entries in by_stream.items():
                self._client.xack(stream, self._group, *entries)
                if self._delete and stream in read_by_stream:
                    self._client.xdel(stream, *read_by_stream[stream])
        except ERRORS as error:
            raise self._transient(error) from error
        # Last, so that this source does not claim an entry whose acknowledgement failed.
        for stream, entries in by_stream.items():
            for entry in entries:
                self._in_flight.pop((stream, entry), None)

    # Give back.

    def close(self, clean: bool = True) -> None:
        """Give back unfinished entries, and disconnect.

        After a graceful stop they can be claimed at once, and this delivery does not count. Otherwise they stay
        pending, can be claimed after ``idle`` seconds, and the delivery counts.
        """
        with suppress(*ERRORS):
            if clean:
                self._give_back()
            self._remove_consumer()
        with suppress(*ERRORS):
            self._client.close()

    def _give_back(self) -> None:
        by_deliveries: dict[tuple[bytes, int], list[bytes]] = {}
        for (stream, entry), deliveries in self._in_flight.items():
            by_deliveries.setdefault((stream, deliveries), []).append(entry)
        for (stream, deliveries), entries in by_deliveries.items():
            self._client.xclaim(
                stream, self._group, RETURNED, 0, entries, idle=self._idle_ms, retrycount=deliveries - 1, justid=True
            )

    def _remove_consumer(self) -> None:
        """Remove this consumer from groups in which it has no pending entries, which Redis would drop."""
        for stream in self._streams:
            if not self._client.xpending_range(stream, self._group, "-", "+", 1, consumername=self._consumer):
                self._client.xgroup_delconsumer(stream, self._group, self._consumer)

    # State.

    def heartbeat(self, seconds: float) -> None:
        """Sleep: Redis needs no heartbeat."""
        sleep(seconds)

    def commit_window(self) -> None:
        """Return None: finished messages are acknowledged at once."""

    def check_access(self) -> str:
        """Return why the server rejects this client or a command that it needs; empty if it accepts them."""
        commands: list[tuple[Any, ...]] = []
        for stream in self._streams:
            commands += [
                ("xgroup_create", stream, self._group, "0", True),
                ("xreadgroup", self._group, self._consumer, {stream: LAST_ID}, 1),
                ("xpending", stream, self._group),
                ("xclaim", stream, self._group, self._consumer, 0, ["0-0"]),
                ("xack", stream, self._group, "0-0"),
            ]
            if self._delete:
                commands.append(("xdel", stream, "0-0"))
        return access_error(lambda: self._client, commands)

    def owns(self, message: Message) -> bool:
        """Return True: Redis does not notify a consumer when another claims its entries."""
        return True

    def status(self) -> SourceStatus:
        """Return the lag of the group, if the server reports it (Redis 7.0 and later)."""
        lags: dict[tuple[str, str], int] = {}
        with suppress(*ERRORS):
            for stream in self._streams:
                for group in self._client.xinfo_groups(stream):
                    if group["name"] == self._group.encode() and group.get("lag") is not None:
                        lags[stream.decode(errors="replace"), ""] = int(group["lag"])
        return SourceStatus(lag=lags, waiting=sum(lags.values()))


def _by_stream(messages: Sequence[Message]) -> dict[bytes, list[bytes]]:
    entries: dict[bytes, list[bytes]] = {}
    for message in messages:
        stream, entry = cast("tuple[bytes, bytes]", message.token)
        entries.setdefault(stream, []).append(entry)
    return entries


def to_message(stream: bytes, entry: bytes, fields: Mapping[bytes, bytes], deliveries: int = 1) -> Message:
    """Convert an entry to a message."""
    timestamp_ms = milliseconds(fields.get(b"timestamp", b""))
    headers: Headers = tuple(
        (name.removeprefix(HEADER).decode(errors="replace"), value)
        for name, value in fields.items()
        if name.startswith(HEADER)
    )
    return Message(
        topic=stream.decode(errors="replace"),
        message_id=entry.decode(),
        value=fields.get(b"value", b""),
        key=fields.get(b"key"),
        headers=headers,
        timestamp_ms=milliseconds(entry.partition(b"-")[0]) if timestamp_ms is None else timestamp_ms,
        deliveries=deliveries,
        token=(stream, entry),
        tombstone=all(name in (b"key", b"timestamp") or name.startswith(HEADER) for name in fields),
    )


class RedisSink:
    """Sink that writes to one stream; with ``maxlen`` trimmed to about that many entries."""

    error = ""

    def __init__(self, address: Address) -> None:
        self._stream = address.check_options("maxlen", *CONNECTION_OPTIONS).name
        self._connect = connect(address)
        self._maxlen = address.integer("maxlen", 0) or None

    @cached_property
    def _client(self) -> Any:
        return self._connect()

    def check_access(self) -> str:
        """Return why the server rejects this client or a command that it needs; empty if it accepts them."""
        # The invalid id prevents that an entry is added; permissions are checked first.
        return access_error(lambda: self._client, [("execute_command", "XADD", self._stream, "none", "key", "")])

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Append all records in one round trip."""
        try:
            pipeline = self._client.pipeline(transaction=False)
            for record in records:
                headers = {HEADER + name.encode(): value for name, value in record.headers}
                fields: dict[Any, Any] = {b"key": record.key, b"value": record.value, **headers}
                # Approximate trimming removes whole blocks of entries, which is cheaper for Redis.
                pipeline.xadd(self._stream, fields, maxlen=self._maxlen, approximate=True)
            replies = pipeline.execute(raise_on_error=False)
        except ERRORS as error:  # records written before the error are written again with the same key
            return [redis_report(error, self._stream) for _ in records]
        return [redis_report(reply, self._stream) if isinstance(reply, Exception) else None for reply in replies]

    def close(self) -> None:
        """Close the connection."""
        with suppress(*ERRORS):
            self._client.close()


class RedisRange(FiniteSource):
    """Finite source: entries of streams at or after ``since`` and before ``until`` (ISO 8601 times).

    Processed dead letters are deleted.
    """

    def __init__(self, address: Address) -> None:
        options = address.check_options("since", "until", *CONNECTION_OPTIONS).options
        self._since = str(address.timestamp_ms("since")) if "since" in options else "-"
        self._until = f"({address.timestamp_ms('until')}-0" if "until" in options else "+"
        self.ranges: dict[str, str] = {}
        self.unmatched: list[str] = []
        try:
            self._client, self._fetch_size = connect(address)(), FetchSize()
            self._ranges = [found for name in address.names if (found := self._range(name)) is not None]
        except ERRORS as error:
            raise AddressError(redis_text(error)) from None
        if self.ranges and not self._ranges and (self._since, self._until) != ("-", "+"):
            self.unmatched.append(f"no entry of {', '.join(self.ranges)} is in the range")

    def _range(self, stream: str) -> tuple[bytes, str, str] | None:
        """Return the stream with the first and last id in the range now; later entries are not read."""
        first = self._client.xrange(stream, self._since, self._until, 1)
        if not first:
            self.ranges[stream] = "no entries"
            if (self._since, self._until) == ("-", "+"):
                self.unmatched.append(f"no stream {stream}, or it is empty")
            return None
        last = self._client.xrevrange(stream, self._until, self._since, 1)
        start, end = first[0][0].decode(), last[0][0].decode()
        self.ranges[stream] = f"entries {start} to {end}"
        return stream.encode(), start, end

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next entries, one stream after another."""
        while self._ranges:
            stream, start, end = self._ranges[0]
            count = self._fetch_size.at_most(limit)
            try:
                entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", self._client.xrange(stream, start, end, count))
            except ERRORS as error:
                self._fetch_size.reset()
                raise TransientError(f"stream {stream.decode()}: {redis_text(error)}") from error
            self._fetch_size.update(count, entries)
            if entries:
                self._ranges[0] = (stream, f"({entries[-1][0].decode()}", end)
                return [to_message(stream, entry, fields) for entry, fields in entries]
            self._ranges.pop(0)
        return []

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Delete dead letters; alerts are kept."""
        try:
            for message in messages:
                stream, entry = cast("tuple[bytes, bytes]", message.token)
                if message.topic != stream.decode(errors="replace"):  # restored from a dead letter
                    self._client.xdel(stream, entry)
        except ERRORS as error:
            raise TransientError(redis_text(error)) from error

    def close(self, clean: bool = True) -> None:
        """Close the connection."""
        self._client.close()
