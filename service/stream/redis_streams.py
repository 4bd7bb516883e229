"""Alerts from Redis streams by a consumer group, and records to a stream.

An entry has the fields ``value`` and, if need be, ``key``, ``timestamp`` and headers as ``h:<name>``. What a worker
that died had taken is claimed by another after ``idle`` seconds. Done entries are acknowledged and, with
``delete=yes``, deleted: right where this group is the stream's only reader.
"""

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final, cast

import redis
import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.stream.addresses import Address
from service.stream.messages import Headers, Message, PermanentError, Record, TransientError

log = structlog.get_logger(__name__)

GROUP: Final = "nightjar"
IDLE_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 10.0
HEADER: Final = b"h:"
_TRANSIENT: Final = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError)
Entries = list[tuple[bytes, dict[bytes, bytes] | None]]


def connect(address: Address) -> redis.Redis:
    """A client; connects when first used."""
    host, _, port = address.hosts.rpartition(":") if ":" in address.hosts else (address.hosts, "", "6379")
    return redis.Redis(
        host, int(port), int(address.number("db", 0)), password=address.password, username=address.user,
        protocol=2, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, health_check_interval=30,
    )  # fmt: skip


class RedisSource:
    """A member of a consumer group of one or several streams."""

    finite = False

    def __init__(self, address: Address) -> None:
        options = address.only("group", "db", "idle", "delete", "consumer").options
        self._client, self._streams = connect(address), [name.encode() for name in address.names]
        self._group = options.get("group", GROUP)
        self._consumer = options.get("consumer", f"{socket.gethostname()}-{os.getpid()}")
        self._idle_ms = int(1000 * address.number("idle", IDLE_SECONDS))
        self._delete = options.get("delete") == "yes"
        self._held: set[tuple[bytes, bytes]] = set()  # stream and id of what is under way here
        self._ready, self._claimed_at = False, 0.0
        self._cursors: dict[bytes, bytes] = {}

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """What others left behind, else what is new."""
        try:
            self._prepare()
            if claimed := self._claim(limit):
                return self._hold(claimed)
            streams = cast(Any, dict.fromkeys(self._streams, ">"))
            reply = self._client.xreadgroup(self._group, self._consumer, streams, limit, max(1, int(1000 * timeout)))
        except ResponseError as error:
            self._ready = False  # NOGROUP: the stream was deleted, or the server lost it
            raise TransientError(str(error)) from error
        except RedisError as error:
            raise TransientError(str(error)) from error
        found = cast("list[tuple[bytes, Entries]]", reply or [])
        return self._hold(
            [message_of(stream, entry, fields) for stream, entries in found for entry, fields in entries if fields]
        )

    def _hold(self, messages: list[Message]) -> list[Message]:
        """Remember what is handed out, so that it is not claimed from ourselves."""
        self._held.update(cast("tuple[bytes, bytes]", message.token) for message in messages)
        return messages

    def _prepare(self) -> None:
        if self._ready:
            return
        for stream in self._streams:
            with contextlib.suppress(ResponseError):  # BUSYGROUP: it is there
                self._client.xgroup_create(stream, self._group, "0", mkstream=True)
        self._ready = True

    def _claim(self, limit: int) -> list[Message]:
        """Entries that their owner has not finished for ``idle`` seconds, with the number of their deliveries."""
        if monotonic() - self._claimed_at < self._idle_ms / 2000:
            return []
        claimed: list[Message] = []
        for stream in self._streams:
            start = self._cursors.get(stream, b"0-0")  # a call looks at some entries only: go on where the last ended
            reply: Any = self._client.xautoclaim(stream, self._group, self._consumer, self._idle_ms, start, limit)
            self._cursors[stream] = reply[0]
            entries = [(entry, fields) for entry, fields in reply[1] if fields]
            entries = [(entry, fields) for entry, fields in entries if (stream, entry) not in self._held]
            claimed += [message_of(stream, *entry, self._deliveries(stream, entry[0])) for entry in entries]
        if not claimed and all(cursor == b"0-0" for cursor in self._cursors.values()):
            self._claimed_at = monotonic()
        return claimed

    def _deliveries(self, stream: bytes, entry: bytes) -> int:
        pending = cast("list[dict[str, Any]]", self._client.xpending_range(stream, self._group, entry, entry, 1))
        return int(pending[0]["times_delivered"]) if pending else 1

    def rest(self) -> None:
        """Redis wants nothing of a consumer that is busy."""

    def done(self, messages: Sequence[Message]) -> None:
        """Acknowledge, stream by stream."""
        by_stream: dict[bytes, list[bytes]] = {}
        for message in messages:
            stream, entry = cast("tuple[bytes, bytes]", message.token)
            by_stream.setdefault(stream, []).append(entry)
        try:
            for stream, entries in by_stream.items():
                self._client.xack(stream, self._group, *entries)
                if self._delete:
                    self._client.xdel(stream, *entries)
        except RedisError as error:
            raise TransientError(str(error)) from error
        self._held.difference_update((stream, entry) for stream, entries in by_stream.items() for entry in entries)

    def lag(self) -> dict[str, int]:
        """Entries not yet handed to the group, where the server (7.0 and later) counts them."""
        lags: dict[str, int] = {}
        with contextlib.suppress(RedisError):
            for stream in self._streams:
                for group in self._client.xinfo_groups(stream):
                    if group["name"] == self._group.encode() and group.get("lag") is not None:
                        lags[stream.decode(errors="replace")] = int(group["lag"])
        return lags

    def close(self) -> None:
        """Leave; what is unfinished stays pending and is claimed by others."""
        with contextlib.suppress(RedisError):
            self._client.close()


def message_of(stream: bytes, entry: bytes, fields: Mapping[bytes, bytes], deliveries: int = 1) -> Message:
    """The message that an entry holds."""
    stated = fields.get(b"timestamp", b"")
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
        timestamp_ms=int(stated) if stated.isdigit() else int(entry.partition(b"-")[0]),
        deliveries=deliveries,
        token=(stream, entry),
    )


class RedisSink:
    """One stream, with ``maxlen`` trimmed to about that many entries."""

    def __init__(self, address: Address) -> None:
        self._stream = address.only("db", "maxlen").name
        self._client = connect(address)
        self._maxlen = int(address.number("maxlen", 0)) or None

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        """Append all records in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for record in records:
            headers = {HEADER + name.encode(): value for name, value in record.headers}
            fields: dict[Any, Any] = {b"key": record.key, b"value": record.value, **headers}
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
