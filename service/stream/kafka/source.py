"""Kafka source that is a member of a consumer group.

One thread owns the consumer: only it calls ``poll``, ``heartbeat`` and ``close``, consumes, pauses and commits, and
runs the callbacks of the group. Other threads queue jobs for it (:meth:`KafkaSource.acknowledge`). The transactions'
thread calls :meth:`KafkaSource.prepare` for the positions to commit.

A partition is consumed from the stable committed offset that this member has read itself
(:mod:`service.stream.kafka.committed`), never from an offset that the client chooses. If the offset of the first
message is below the committed one, the partition is stopped.

Offsets are committed by the consumer or, for exactly-once delivery, in transactions only
(:mod:`service.stream.kafka.commits`). When a partition is revoked, messages in flight have :data:`REVOKE_SECONDS` to
finish. The next owner processes the remaining ones, and this member does not publish them (:meth:`KafkaSource.owns`).

Partitions are paused while the buffer between the client and the worker is full.

The client reports the end of the stable records of a partition. Once all messages before it are done, that offset is
committed: behind the last message there may be offsets without a record, which would otherwise count as lag for ever.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition, libversion

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.kafka.assignment import (
    AssignedPartition,
    Assignment,
    Partition,
    Position,
    Token,
)
from nightjar_alerts.service.stream.kafka.buffer import DeliveryBuffer, message_of, offset_of, partition_of
from nightjar_alerts.service.stream.kafka.client import GROUP, ClientErrors, make_client, properties, query_properties
from nightjar_alerts.service.stream.kafka.commits import Commits, ConsumerCommits, TransactionCommits
from nightjar_alerts.service.stream.kafka.committed import CommittedOffsets, member_name
from nightjar_alerts.service.stream.kafka.monitor import ClusterMonitor
from nightjar_alerts.service.stream.kafka.processed_messages import ProcessedMessages
from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions
from nightjar_alerts.service.stream.messages import PART_MESSAGES, FatalError, Message, SourceStatus, TransientError

log = structlog.get_logger(__name__)
REVOKE_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 5.0
CONSUME_SECONDS: Final = 0.05  # interval of the other work of this thread, such as commits
SHORT_CONSUME_SECONDS: Final = 0.005  # the same while buffered messages wait for a response of the broker
PAUSE_AFTER_SECONDS: Final = 0.5  # seconds of a full buffer; until then each call may add a message
LOST_SECONDS: Final = 75.0
"""Seconds without a response to the consumer, while brokers respond to other clients, after which the process ends."""
QUERY_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 5.0  # between two checks of the consumer of a member without partitions
CHECK_TIMEOUT_SECONDS: Final = 2.0
MAX_DELIVERIES: Final = 5
# Alerts could be lost with other values.
FIXED_PROPERTIES: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "partition.assignment.strategy": "cooperative-sticky",
}
DEFAULT_PROPERTIES: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": 32768,  # prefetched messages of all partitions
    "fetch.message.max.bytes": 4 << 20,
    "max.poll.interval.ms": 300_000,
    "topic.metadata.refresh.interval.ms": 30_000,  # finds nightly topics that are created while the worker waits
    "allow.auto.create.topics": False,
}
SKIPPED_SECONDS: Final = 1.0
"""Interval between two transactions that only commit offsets behind the last message, in seconds."""
_NO_GENERATION: Final = -1


class PreparedBatch(NamedTuple):
    """Part of a batch that a transaction may commit.

    Attributes
    ----------
    owned : messages whose partitions are still assigned; other messages are delivered again.
    positions : positions of those partitions after these messages.
    membership : group metadata: member and generation; the broker rejects a commit of an earlier generation.
    """

    owned: frozenset[Token]
    positions: list[Position]
    membership: object


class KafkaSource:
    """Source that is a member of a consumer group.

    Parameters
    ----------
    extra : librdkafka properties from the file of the setting ``kafka_config``.
    transactions : commits the offsets for exactly-once delivery; None for at-least-once delivery.
    max_deliveries : maximum number of deliveries of a message, which crash markers count.
    """

    finite = False

    def __init__(
        self,
        address: Address,
        extra: Mapping[str, Any],
        transactions: KafkaTransactions | None = None,
        max_deliveries: int = MAX_DELIVERIES,
        metrics: Metrics | None = None,
    ) -> None:
        group = address.check_options("group").options.get("group", GROUP)
        process = os.urandom(6).hex()
        # The name of a member shows the others in the group that this process is alive.
        own = {**DEFAULT_PROPERTIES, "group.id": group, "client.id": member_name(process)}
        config = properties(address, extra, own)
        if config.get("group.protocol", "classic") != "classic":  # librdkafka's own message does not help
            raise AddressError("Kafka: group.protocol must be classic: remove it (docs/stream.md)")
        reset = str(config["auto.offset.reset"])
        config |= FIXED_PROPERTIES
        if transactions is not None:  # reading a committed offset waits for the transaction that changes it
            config |= {"isolation.level": "read_committed"}
        self._metrics, self._names = metrics or Metrics(), address.names
        self._exactly_once = transactions is not None
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._assignment = Assignment(max_deliveries, self._exactly_once, process)
        self._buffer = DeliveryBuffer(self._assignment, self._metrics)
        self._processed = ProcessedMessages() if self._exactly_once else None
        self._skipped: set[Partition] = set()  # partitions with skipped offsets that no batch commits
        self._next_skipped = 0.0  # time of the next commit of these
        self._consumed: set[Partition] = set()  # partitions that the client consumes
        self._client_is_empty = False  # whether the last poll returned no message
        self._paused: set[Partition] = set()
        self._full_since: float | None = None
        self._membership: object = None  # group metadata, for transactions
        # Whether partitions, possibly none, were assigned since this member joined. A pattern may match no topic.
        self._joined = all(name.startswith("^") for name in self._names)
        self._unanswered_since: float | None = None
        self._next_check = monotonic() + CHECK_SECONDS
        self._closing = False
        self.client_errors = ClientErrors("source")
        config |= {"error_cb": self.client_errors.record}
        if transactions is None:
            commits = ConsumerCommits(self._assignment, self.client_errors)
            self._consumer = make_client(Consumer, {**config, "on_commit": commits.on_commit})
            commits.consumer = self._consumer
            self._commits: Commits = commits
        else:
            self._consumer = make_client(Consumer, config)
            check_group_metadata(self._consumer.consumer_group_metadata())
            self._commits = TransactionCommits(self._assignment, transactions, self._current_membership, self._jobs)
        query_config = query_properties(config, self.client_errors)
        self._monitor = ClusterMonitor(query_config, address.names, self.client_errors, self._on_topic_recreated)
        self._committed = CommittedOffsets(
            query_config, group, reset, self.client_errors, self._monitor.started_with, self._metrics,
            config.get("group.instance.id"),
        )  # fmt: skip
        self._consumer.subscribe(
            list(address.names), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    # On the owner's thread.

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages; waits only for the first. Raises TransientError and FatalError."""
        end = monotonic() + timeout
        while True:
            self._serve()
            if messages := self._buffer.deliver(limit):
                return messages
            if (remaining := end - monotonic()) <= 0:
                return []
            waiting = self._buffer.awaiting_commit or self._assignment.not_started
            self._fetch(
                max(1, limit - len(self._buffer)), min(remaining, SHORT_CONSUME_SECONDS if waiting else CONSUME_SECONDS)
            )

    def heartbeat(self, seconds: float) -> None:
        """Deliver nothing, but stay a member of the group, which removes a consumer that does not poll for minutes.

        Returns early after messages were acknowledged and committed, since there may be capacity again.
        """
        end = monotonic() + seconds
        self._serve_and_poll()
        while (remaining := end - monotonic()) > 0:
            # The response to a commit arrives only while the client is polled, and each poll may add a message to the
            # buffer.
            poll_often = self._commits.in_flight and not self._buffer.full
            try:
                job = self._jobs.get(timeout=min(remaining, SHORT_CONSUME_SECONDS) if poll_often else remaining)
            except Empty:
                self._serve_and_poll()
            else:
                job()
                self._serve_and_poll()
                return

    def _serve_and_poll(self) -> None:
        self._serve()
        with suppress(TransientError):
            self._fetch(1, 0)  # the client calls its callbacks only while polled

    def _serve(self) -> None:
        """Check the clients, run jobs, start partitions, commit, and pause or resume."""
        self._check_clients()
        self._record_membership()
        self._run_jobs()
        self._consume(self._committed.poll(self._assignment))
        self._assignment.forget_crashes(caught_up=self._client_is_empty and not len(self._buffer))
        self._commits.send(self._buffer.awaiting_commit | self._skipped_to_commit())
        self._pause_or_resume()

    def _skipped_to_commit(self) -> set[Partition]:
        """Return partitions whose offsets moved without a batch, once a second."""
        if not self._skipped or monotonic() < self._next_skipped:
            return set()
        self._skipped = {partition for partition in self._skipped if self._assignment.changed_positions([partition])}
        self._next_skipped = monotonic() + (0.0 if self._skipped else SKIPPED_SECONDS)
        return self._skipped

    def _run_jobs(self) -> None:
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()()

    def _check_clients(self) -> None:
        """Raise FatalError if a client cannot recover in this process."""
        self.client_errors.check()
        answering, now = self._monitor.responding_seconds, monotonic()
        self._commits.check(answering)
        if self._assignment.partitions or self._closing:
            self._unanswered_since = None
        elif now >= self._next_check:
            self._check_consumer(answering)
            self._next_check = monotonic() + CHECK_SECONDS

    def _check_consumer(self, answering: float) -> None:
        """Raise FatalError if brokers respond to other clients, but not to the consumer of a member without partitions.

        librdkafka forgets brokers that a metadata response does not list. A broker that has just restarted may list
        none, and the client then never connects again (librdkafka issue 5301). Brokers do respond to a client that only
        waits for its group.
        """
        topic = next((name for name in self._names if not name.startswith("^")), None)
        try:
            self._consumer.list_topics(topic, CHECK_TIMEOUT_SECONDS)
        except KafkaException as error:
            self._unanswered_since = self._unanswered_since or monotonic()
            waited = monotonic() - self._unanswered_since
            if min(answering, waited) > LOST_SECONDS:
                raise FatalError(f"Kafka source: the consumer has lost its brokers: {error.args[0].str()}") from None
        else:
            self._unanswered_since = None

    def _record_membership(self) -> None:
        """Record the group metadata for transactions, unless the client is closing."""
        if self._exactly_once and not self._closing:
            self._membership = self._consumer.consumer_group_metadata()

    def _fetch(self, limit: int, timeout: float) -> None:
        """Move messages from the client to the buffer; the client runs its callbacks meanwhile."""
        # Wait for the first message only: with a timeout, consume(limit) would wait for all of them.
        try:
            messages = self._consumer.consume(1, timeout)
            if messages and limit > 1:
                messages += self._consumer.consume(limit - 1, 0)
        except KafkaException as error:
            raise TransientError(str(error)) from error
        self._client_is_empty = True
        for message in messages:
            message_error = message.error()
            if message_error is None:
                self._client_is_empty = False
                self._buffer_message(message)
            elif message_error.code() == KafkaError._PARTITION_EOF:
                if self._assignment.reach_end(partition_of(message), offset_of(message)):
                    self._skipped.add(partition_of(message))
            elif message_error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._skip_gap(partition_of(message))
            else:
                self.client_errors.record(message_error)

    def _buffer_message(self, message: Any) -> None:
        """Add a message to the buffer, unless its partition was revoked, stopped or starts at a wrong offset."""
        partition, offset = partition_of(message), offset_of(message)
        assigned = self._assignment.get(partition)
        # A rebalance may have run during the call that returned the message.
        if assigned is None or assigned.guard is None or assigned.error:
            return
        start = assigned.committed_start
        if assigned.first_offset is None and start is not None and offset < start:
            self._stop(assigned, f"offset {offset} came first, below the committed {start}")
            return
        self._assignment.receive(partition, offset)
        done = self._processed
        if done is not None and (partition, offset) in done and done.has(partition, offset, message_of(message)):
            self._assignment.finish([self._assignment.deliver(partition, offset)])
            self._skipped.add(partition)  # no batch commits its offset
        else:
            self._buffer.add(message)

    def _stop(self, assigned: AssignedPartition, reason: str) -> None:
        """Stop consuming a partition, whose messages may have been processed before."""
        topic, number = assigned.partition
        assigned.error = f"{topic}/{number} was stopped: {reason}"
        self._metrics.stream_stopped.inc()
        log.error("partition stopped", topic=topic, partition=number, reason=reason)
        self._stop_consuming([assigned.partition])

    # Start and stop of partitions.

    def _consume(self, starts: list[TopicPartition]) -> None:
        if not starts:
            return
        self._consumer.incremental_assign(starts)
        partitions = {(str(start.topic), start.partition) for start in starts}
        self._consumed |= partitions
        # The client remembers a pause from an earlier assignment.
        self._apply(self._consumer.resume, partitions)
        self._paused -= partitions
        log.info("consuming", starts={f"{start.topic}/{start.partition}": start.offset for start in starts})

    def _stop_consuming(self, partitions: Iterable[Partition]) -> None:
        if consumed := self._consumed & set(partitions):
            self._consumed -= consumed
            with suppress(KafkaException):
                self._consumer.incremental_unassign([TopicPartition(*partition) for partition in consumed])

    def _skip_gap(self, partition: Partition) -> None:
        """Continue at the earliest message of a partition whose log no longer contains the next offset."""
        assigned = self._assignment.get(partition)
        if assigned is None or assigned.guard is None:
            return
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), QUERY_SECONDS)
        except KafkaException as error:
            self.client_errors.record(error.args[0])
            low, high = OFFSET_BEGINNING, -1
        expected = assigned.committed_start if assigned.progress is None else assigned.progress.last_delivered + 1
        lost = low - expected if expected is not None and expected < low else 0
        self._metrics.stream_gap_messages.inc(lost)
        log.error(
            "committed offset is not in the log, going on at the earliest",
            topic=partition[0], partition=partition[1], offset=expected, earliest=low, end=high, messages_lost=lost,
        )  # fmt: skip
        self._restart([partition])

    def _on_topic_recreated(self, topic: str) -> None:
        """Schedule the restart of a topic that was deleted and created again; called on the monitor's thread."""
        self._jobs.put(partial(self._restart_topic, topic))

    def _restart_topic(self, topic: str) -> None:
        """Read a recreated topic from its start.

        Otherwise the client would continue at its former offset, if the new topic has reached it, and skip messages.
        """
        self._restart([partition for partition in self._assignment.partitions if partition[0] == topic])
        log.warning("topic was created again and is read from its start", topic=topic)

    def _restart(self, partitions: Sequence[Partition]) -> None:
        """Consume partitions from their earliest message, without their previous crash marker."""
        self._drop(partitions)
        self._stop_consuming(partitions)
        self._assignment.add(partitions)
        for partition in partitions:
            self._assignment.start(partition, None, None)
        self._consume([TopicPartition(*partition, OFFSET_BEGINNING) for partition in partitions])

    def _current_membership(self) -> object:
        """Return the group metadata. Raises TransientError if this is not a member.

        Call it before the assignment is read: partitions that are lost later belong to a later generation, and the
        broker rejects offsets of an earlier one. A removed member has no generation, and the broker would accept its
        offsets without a check.
        """
        membership = self._membership
        if membership is None or _generation_of(membership) == _NO_GENERATION:
            raise TransientError("not a member of the group at the moment")
        return membership

    def close(self, clean: bool = True) -> None:
        """Commit finished messages and leave the group; a static member keeps its partitions until its session ends.

        Parameters
        ----------
        clean : False if an unfinished message may have caused the stop: the crash marker remains for the next owner.
        """
        end = monotonic() + CLOSE_SECONDS
        self._run_jobs()
        partitions = self._assignment.partitions
        with suppress(KafkaException):
            self._commits.send_final(partitions, clean, REVOKE_SECONDS)
            self._drop(partitions)
            while self._commits.in_flight and monotonic() < end:
                # The response to a commit arrives only while the client is polled.
                self._consumer.consume(1, CONSUME_SECONDS)
                self._run_jobs()
        self._closing = True
        self._monitor.close()
        # Closing waits for the group coordinator, which may be unreachable, hence a thread.
        closing = Thread(target=self._consumer.close, name="close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    # The buffer.

    def _pause_or_resume(self) -> None:
        """Pause all partitions once the buffer has been full for :data:`PAUSE_AFTER_SECONDS`, else resume them.

        A pause makes the client discard prefetched messages and fetch them again later. So a buffer that is full for a
        short time, as after each full batch, must not pause partitions: a backlog would be fetched many times.
        """
        if not self._buffer.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = monotonic()
        full = self._full_since is not None and monotonic() - self._full_since >= PAUSE_AFTER_SECONDS
        self._apply(self._consumer.pause, self._consumed - self._paused if full else set())
        self._apply(self._consumer.resume, set() if full else self._consumed & self._paused)
        self._paused = set(self._consumed) if full else set()

    def _apply(self, order: Callable[[list[TopicPartition]], None], partitions: set[Partition]) -> None:
        if partitions:
            with suppress(KafkaException):
                order([TopicPartition(*partition) for partition in partitions])

    # Callbacks of the group, which run inside consume().

    def _on_assign(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        consumer.incremental_assign([])  # each partition is added once its committed offset is known and stable
        self._joined = True
        self._committed.query_now()
        self._monitor.record_assigned(partitions)
        self._record_membership()
        self._assignment.add(partitions)
        self._report_rebalance("partitions assigned", partitions, began)

    def _on_revoke(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        self._buffer.discard(partitions)  # deliver no more of their messages
        # The group has a new generation: transactions of the previous one would be rejected during the wait below.
        self._record_membership()
        self._finish_in_flight(partitions, began + REVOKE_SECONDS)
        unfinished = self._assignment.unfinished(partitions)
        # While they are still assigned, since the broker rejects later commits.
        self._commits.send_final(partitions, clean=True, timeout=REVOKE_SECONDS)
        self._drop(partitions)
        self._unassign(consumer, partitions)
        self._report_rebalance("partitions revoked", partitions, began, given_back=unfinished)

    def _unassign(self, consumer: Consumer, partitions: Sequence[Partition]) -> None:
        """Confirm the revocation to the group; the client knows only the partitions that it has consumed."""
        consumed = self._consumed & set(partitions)
        self._consumed -= consumed
        with suppress(KafkaException):
            consumer.incremental_unassign([TopicPartition(*partition) for partition in consumed])

    def _finish_in_flight(self, partitions: Sequence[Partition], end: float) -> None:
        """Run jobs until all messages of these partitions are finished, the time is over or the commit window is full.

        The client is in a callback and does not report commits, so the window does not open again.
        """
        while (
            self._assignment.unfinished(partitions)
            and self._window_fits_part()
            and (remaining := end - monotonic()) > 0
        ):
            with suppress(Empty):
                self._jobs.get(timeout=remaining)()
        self._run_jobs()

    def _window_fits_part(self) -> bool:
        window = self.commit_window()
        return window is None or window >= PART_MESSAGES

    def _on_lost(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        """Drop partitions that other members may already have read."""
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        self._membership, self._joined = None, False
        # No final commit: it could overwrite a later commit of the new owner.
        self._drop(partitions)
        self._unassign(consumer, partitions)
        self._report_rebalance("partitions lost", partitions, began)

    def _drop(self, partitions: Sequence[Partition]) -> None:
        self._buffer.discard(partitions)
        self._paused.difference_update(partitions)
        self._assignment.remove(partitions)

    def _report_rebalance(self, what: str, partitions: Sequence[Partition], began: float, **facts: int) -> None:
        seconds = monotonic() - began
        self._monitor.set_partitions(self._assignment.partitions)
        self._metrics.stream_rebalances.observe(seconds)
        names = [f"{topic}/{number}" for topic, number in partitions]
        log.info(what, partitions=names, seconds=round(seconds, 3), **facts)

    # Called from other threads.

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Record that messages are done, and wake the owner, which commits."""
        self._assignment.finish(_tokens(messages))
        self._jobs.put(_wake_owner)

    def commit_window(self) -> int | None:
        """Return how many messages may be processed before the next commit; None with transactions."""
        return self._commits.window

    def owns(self, message: Message) -> bool:
        """Return whether the partition of a message has stayed assigned since its delivery."""
        return not isinstance(message.token, Token) or self._assignment.owns(message.token)

    def prepare(self, messages: Sequence[Message]) -> PreparedBatch:
        """Return the part of a batch to commit; called on the transactions' thread. Raises TransientError."""
        membership = self._current_membership()
        owned, positions = self._assignment.positions_after(_tokens(messages))
        return PreparedBatch(owned, positions, membership)

    def record_committed(self, messages: Sequence[Message], positions: Sequence[Position]) -> None:
        """Record a committed transaction; called on the transactions' thread, before the next one is prepared.

        The offsets of the next transaction start where this one ended.
        """
        self._assignment.finish(_tokens(messages))
        if self._processed is not None:
            self._processed.add(messages)
        self._jobs.put(partial(self._assignment.record_acknowledged, positions))

    def check_access(self) -> str:
        """Return why the cluster rejects this client; empty if it accepts it, or does not respond."""
        self._monitor.wait_for_first_round(REFUSAL_SECONDS)
        return self.client_errors.refusal

    def status(self) -> SourceStatus:
        """Return the status, as of the last responses of the brokers."""
        view, offsets = self._monitor.view, self._assignment.offsets()
        lag, waiting = {}, 0
        for (topic, number), (done, read) in offsets.items():
            if (count := view.lag.get((topic, number))) is None:
                continue
            end = view.end_offsets[topic, number]
            # What this worker knows is newer than the last query.
            lag[topic, str(number)] = count if done is None else min(count, max(0, end - done))
            waiting += count if read is None else max(0, end - read)
        stopped = "; ".join(self._assignment.errors)
        return SourceStatus(
            error=self.client_errors.refusal or view.error or stopped,
            assigned=len(offsets),
            lag=lag,
            waiting=waiting,
            member=self._joined,
        )


def _tokens(messages: Iterable[Message]) -> Iterator[Token]:
    return (message.token for message in messages if isinstance(message.token, Token))


def _wake_owner() -> None:
    """Do nothing: an empty job that wakes the owner."""


def check_group_metadata(of_no_member: object) -> None:
    """Warn if the group metadata of a consumer that has not joined cannot be read by :func:`_generation_of`."""
    if _generation_of(of_no_member) != _NO_GENERATION:
        log.warning(
            "group metadata of this librdkafka version not understood: a worker that the group has removed is not"
            " noticed before it commits; use an earlier version of confluent-kafka",
            librdkafka=libversion()[0],
        )


def _generation_of(membership: object) -> int:
    """Return the generation in the client's group metadata: the magic ``CGMD``, then a 32-bit integer.

    The layout is that of librdkafka 2, which has no function for it; :func:`check_group_metadata` warns of another one.
    """
    magic, _, rest = bytes(cast(bytes, membership)).partition(b":")
    if not magic.startswith(b"CGMD") or len(rest) < 4:
        return 0  # unknown layout: rely on the broker's check
    return int(struct.unpack_from("=i", rest)[0])
