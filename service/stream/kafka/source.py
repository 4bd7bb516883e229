"""Alerts from Kafka, as a member of a consumer group.

One thread owns the consumer: it alone calls ``poll``, ``heartbeat`` and ``close``, consumes, pauses and commits, and
runs the callbacks of the group. Other threads give it jobs (:meth:`KafkaSource.acknowledge`). The transactions' thread
calls :meth:`KafkaSource.prepare` to learn what it may commit.

A partition is consumed from the stable committed offset that this member has read itself
(:mod:`service.stream.kafka.committed`), never from an offset that the client chooses. If the first message has an
offset below the committed one, the partition is stopped.

Offsets are committed by the consumer or, for exactly-once delivery, in transactions only
(:mod:`service.stream.kafka.commits`). When a partition is revoked, messages in flight have :data:`REVOKE_SECONDS` to
finish. The next owner processes the others, and this member publishes nothing more of them (:meth:`KafkaSource.owns`).

Partitions are paused while the buffer between the client's queue and the worker is full.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.addresses import Address
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
from nightjar_alerts.service.stream.kafka.committed import CommittedOffsets
from nightjar_alerts.service.stream.kafka.monitor import ClusterMonitor
from nightjar_alerts.service.stream.kafka.processed_messages import ProcessedMessages
from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions
from nightjar_alerts.service.stream.messages import PART_MESSAGES, FatalError, Message, SourceStatus, TransientError

log = structlog.get_logger(__name__)
REVOKE_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 5.0
CONSUME_SECONDS: Final = 0.05  # between two runs of the other work of this thread, such as commits
SHORT_CONSUME_SECONDS: Final = 0.005  # while messages in the buffer wait for a response of the broker
PAUSE_AFTER_SECONDS: Final = 0.5  # of a full buffer; until then it grows by a message for each call
LOST_SECONDS: Final = 30.0
"""Seconds without a response to the consumer, while brokers respond to other clients, after which the process ends."""
QUERY_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 5.0  # between two checks whether a broker answers the consumer of a member without partitions
CHECK_TIMEOUT_SECONDS: Final = 2.0
MAX_DELIVERIES: Final = 5
# No alert is lost only if these have these values.
FIXED_PROPERTIES: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "partition.assignment.strategy": "cooperative-sticky",
}
DEFAULT_PROPERTIES: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": 32768,  # all partitions together: what waits in memory, whatever the lag
    "fetch.message.max.bytes": 4 << 20,
    "max.poll.interval.ms": 300_000,
    "enable.partition.eof": False,
    "topic.metadata.refresh.interval.ms": 30_000,  # a nightly topic begins to exist while the worker waits for it
    "allow.auto.create.topics": False,
}
_NO_GENERATION: Final = -1


class PreparedBatch(NamedTuple):
    """Part of a batch that a transaction may hold.

    Attributes
    ----------
    owned : messages whose partitions are still assigned; the others are delivered again.
    positions : offsets of those partitions after these messages.
    membership : the member and its generation; the broker refuses a commit in the name of a former one.
    """

    owned: frozenset[Token]
    positions: list[Position]
    membership: object


class KafkaSource:
    """Source that is a member of a consumer group.

    Parameters
    ----------
    extra : properties of librdkafka from the file of the setting ``kafka_config``.
    transactions : commit the offsets, where results are exactly once.
    max_deliveries : deliveries that a message may have had; crash markers count them.
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
        group = address.only("group").options.get("group", GROUP)
        config = properties(address, extra, {**DEFAULT_PROPERTIES, "group.id": group})
        reset = str(config["auto.offset.reset"])
        config |= FIXED_PROPERTIES
        if transactions is not None:  # committed offsets are read only after the transaction that is about to move them
            config |= {"isolation.level": "read_committed"}
        self._metrics, self._names = metrics or Metrics(), address.names
        self._exactly_once = transactions is not None
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._assignment = Assignment(max_deliveries, self._exactly_once)
        self._buffer = DeliveryBuffer(self._assignment)
        self._processed = ProcessedMessages() if self._exactly_once else None
        self._skipped: set[Partition] = set()  # partitions with messages that were skipped: processed before
        self._consumed: set[Partition] = set()  # partitions that the client fetches
        self._client_is_empty = False  # whether the client's queue was when it was polled last
        self._paused: set[Partition] = set()
        self._full_since: float | None = None
        self._membership: object = None  # for transactions
        # Whether the group has assigned partitions, or none, since this member joined. A pattern may match nothing.
        self._joined = all(name.startswith("^") for name in self._names)
        self._unanswered_since: float | None = None
        self._next_check = monotonic() + CHECK_SECONDS
        self._closing = False
        self.client_errors = ClientErrors("source")
        config |= {"error_cb": self.client_errors.note}
        if transactions is None:
            commits = ConsumerCommits(self._assignment, self.client_errors)
            self._consumer = make_client(Consumer, {**config, "on_commit": commits.on_commit})
            commits.consumer = self._consumer
            self._commits: Commits = commits
        else:
            self._consumer = make_client(Consumer, config)
            self._commits = TransactionCommits(self._assignment, transactions, self._current_membership, self._jobs)
        query_config = query_properties(config, self.client_errors)
        self._committed = CommittedOffsets(query_config, group, reset, self.client_errors)
        self._monitor = ClusterMonitor(query_config, address.names, self.client_errors, self._on_topic_recreated)
        self._consumer.subscribe(
            list(address.names), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    # On the owner's thread.

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages, waiting only for the first. Raises TransientError and FatalError."""
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
        """Deliver nothing, but stay a member of the group, which expels a consumer that does not poll for minutes.

        Returns early once messages are acknowledged, which are committed at once: there may be capacity for more.
        """
        end = monotonic() + seconds
        self._serve_and_poll()
        while (remaining := end - monotonic()) > 0:
            # The response to a commit arrives only while the client is polled, and each poll may add a message to the
            # buffer.
            hurry = self._commits.in_flight and not self._buffer.full
            try:
                job = self._jobs.get(timeout=min(remaining, SHORT_CONSUME_SECONDS) if hurry else remaining)
            except Empty:
                self._serve_and_poll()
            else:
                job()
                self._serve_and_poll()
                return

    def _serve_and_poll(self) -> None:
        self._serve()
        with suppress(TransientError):
            self._fetch(1, 0)  # the client calls its callbacks only when it is polled

    def _serve(self) -> None:
        """Check the clients, run jobs, start partitions, commit, and pause or resume."""
        self._check_clients()
        self._note_membership()
        self._run_jobs()
        self._consume(self._committed.poll(self._assignment))
        self._assignment.forget_crashes(caught_up=self._client_is_empty and not len(self._buffer))
        self._skipped = {partition for partition in self._skipped if self._assignment.moved([partition])}
        self._commits.send(self._buffer.awaiting_commit | self._skipped)
        self._pause_or_resume()

    def _run_jobs(self) -> None:
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()()

    def _check_clients(self) -> None:
        """Raise FatalError where only a new process helps."""
        self.client_errors.check()
        answering, now = self._monitor.answering_seconds, monotonic()
        self._commits.check(answering)
        if self._assignment.partitions or self._closing:
            self._unanswered_since = None
        elif now >= self._next_check:
            self._check_consumer(answering)
            self._next_check = monotonic() + CHECK_SECONDS

    def _check_consumer(self, answering: float) -> None:
        """Raise FatalError where brokers answer other clients, but not the consumer of a member without partitions.

        librdkafka forgets every broker that a metadata response does not name. A broker that has just restarted may
        name none, and the client then never connects again (its issue 5301). A client that only waits for its group is
        answered.
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

    def _note_membership(self) -> None:
        """Record the membership for transactions; a client that is closing has none."""
        if self._exactly_once and not self._closing:
            self._membership = self._consumer.consumer_group_metadata()

    def _fetch(self, limit: int, timeout: float) -> None:
        """Take messages from the client into the buffer; the client runs its callbacks meanwhile."""
        # The first is waited for, the others are not: asked for many with a timeout, the client would wait for all.
        try:
            messages = self._consumer.consume(1, timeout)
            if messages and limit > 1:
                messages += self._consumer.consume(limit - 1, 0)
        except KafkaException as error:
            raise TransientError(str(error)) from error
        self._client_is_empty = not messages
        for message in messages:
            message_error = message.error()
            if message_error is None:
                self._buffer_message(message)
            elif message_error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._skip_gap(partition_of(message))
            else:
                self.client_errors.note(message_error)

    def _buffer_message(self, message: Any) -> None:
        """Put a message into the buffer, unless its partition was revoked, stopped or begins at a wrong offset."""
        partition, offset = partition_of(message), offset_of(message)
        assigned = self._assignment.get(partition)
        # A rebalance may have run inside the very call that returned it.
        if assigned is None or assigned.guard is None or assigned.error:
            return
        if assigned.first_offset is None:
            if assigned.committed_start is not None and offset < assigned.committed_start:
                self._stop(assigned, f"offset {offset} came first, below the committed {assigned.committed_start}")
                return
            assigned.first_offset = offset
        recent = self._processed
        if recent is not None and (partition, offset) in recent and recent.has(partition, offset, message_of(message)):
            self._assignment.finish([self._assignment.deliver(partition, offset)])
            self._skipped.add(partition)  # no batch commits the offset behind it
        else:
            self._buffer.add(message)

    def _stop(self, assigned: AssignedPartition, reason: str) -> None:
        """Consume nothing more of a partition: its messages may have been processed before."""
        topic, number = assigned.partition
        assigned.error = f"{topic}/{number} was stopped: {reason}"
        self._metrics.stream_stopped.inc()
        log.error("partition stopped", topic=topic, partition=number, reason=reason)
        self._consume_no_more([assigned.partition])

    # Where a partition starts.

    def _consume(self, starts: list[TopicPartition]) -> None:
        if not starts:
            return
        self._consumer.incremental_assign(starts)
        partitions = {(str(one.topic), one.partition) for one in starts}
        self._consumed |= partitions
        # The client remembers pauses of a partition's former assignment.
        self._order(self._consumer.resume, partitions)
        self._paused -= partitions
        log.info("consuming", starts={f"{one.topic}/{one.partition}": one.offset for one in starts})

    def _consume_no_more(self, partitions: Iterable[Partition]) -> None:
        if consumed := self._consumed & set(partitions):
            self._consumed -= consumed
            with suppress(KafkaException):
                self._consumer.incremental_unassign([TopicPartition(*partition) for partition in consumed])

    def _skip_gap(self, partition: Partition) -> None:
        """Go on at the earliest message where the log does not hold the next offset of a partition."""
        assigned = self._assignment.get(partition)
        if assigned is None or assigned.guard is None:
            return
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), QUERY_SECONDS)
        except KafkaException as error:
            self.client_errors.note(error.args[0])
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
        """Read a topic that was created again from its start.

        The client goes on at its former offset where the new topic already reaches that far, and skips what is before.
        """
        self._restart([partition for partition in self._assignment.partitions if partition[0] == topic])
        log.warning("topic was created again and is read from its start", topic=topic)

    def _restart(self, partitions: Sequence[Partition]) -> None:
        """Consume partitions from their earliest message; the crash marker of a former log is not theirs."""
        self._drop(partitions)
        self._consume_no_more(partitions)
        self._assignment.add(partitions)
        for partition in partitions:
            self._assignment.start(partition, None, None)
        self._consume([TopicPartition(*partition, OFFSET_BEGINNING) for partition in partitions])

    def _current_membership(self) -> object:
        """Return the membership. Raises TransientError while this is no member.

        It is read before the assignment is: partitions that are lost after that are lost to a later generation, and the
        broker refuses offsets in the name of one that is over. An expelled member has no generation, and the broker
        would take its offsets without a check.
        """
        membership = self._membership
        if membership is None or _generation_of(membership) == _NO_GENERATION:
            raise TransientError("not a member of the group at the moment")
        return membership

    def close(self, clean: bool = True) -> None:
        """Commit what is done and leave the group; a static member keeps its partitions until its session is over.

        Parameters
        ----------
        clean : False when what is not done may be what made the worker end: the marker stays for the next owner.
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
        # Closing waits for the group coordinator, which may be unreachable; the process does not wait for it.
        closing = Thread(target=self._consumer.close, name="close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    # The buffer.

    def _pause_or_resume(self) -> None:
        """Pause everything once the buffer has been full for a while, nothing otherwise.

        A pause makes the client discard the messages that it has fetched ahead, and fetch them again later. So a buffer
        that is full for a moment only, as after each full batch, must not pause anything: a backlog would be fetched
        many times over.
        """
        if not self._buffer.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = monotonic()
        full = self._full_since is not None and monotonic() - self._full_since >= PAUSE_AFTER_SECONDS
        self._order(self._consumer.pause, self._consumed - self._paused if full else set())
        self._order(self._consumer.resume, set() if full else self._consumed & self._paused)
        self._paused = set(self._consumed) if full else set()

    def _order(self, order: Callable[[list[TopicPartition]], None], partitions: set[Partition]) -> None:
        if partitions:
            with suppress(KafkaException):
                order([TopicPartition(*partition) for partition in partitions])

    # Callbacks of the group, which run inside consume().

    def _on_assign(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        consumer.incremental_assign([])  # each is added once its committed offset is known and stable
        self._joined = True
        self._committed.hurry()
        self._monitor.note_assigned(partitions)
        self._note_membership()
        self._assignment.add(partitions)
        self._report_rebalance("partitions assigned", partitions, began)

    def _on_revoke(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        self._buffer.discard(partitions)  # deliver nothing more of these
        # The group has a new generation by now: transactions of the former one would be refused during the wait below.
        self._note_membership()
        self._finish_in_flight(partitions, began + REVOKE_SECONDS)
        unfinished = self._assignment.unfinished(partitions)
        # While they are still assigned: the broker refuses later commits.
        self._commits.send_final(partitions, clean=True, timeout=REVOKE_SECONDS)
        self._drop(partitions)
        self._unassign(consumer, partitions)
        self._report_rebalance("partitions revoked", partitions, began, given_back=unfinished)

    def _unassign(self, consumer: Consumer, partitions: Sequence[Partition]) -> None:
        """Confirm to the group that partitions are given back; the client only knows those that it has consumed."""
        consumed = self._consumed & set(partitions)
        self._consumed -= consumed
        with suppress(KafkaException):
            consumer.incremental_unassign([TopicPartition(*partition) for partition in consumed])

    def _finish_in_flight(self, partitions: Sequence[Partition], end: float) -> None:
        """Run jobs until nothing of these partitions is unfinished, or the time is over or the commit window full.

        The client is inside a callback and reports no commit meanwhile, so that the window does not open again.
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
        """Forget partitions that other members may have read already."""
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        self._membership, self._joined = None, False
        # No final commit: it would come after those of the new owner and, if accepted, set the group back.
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

    # For all other threads.

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Record that messages need not be delivered again, and wake the owner, which commits."""
        self._assignment.finish(_tokens(messages))
        self._jobs.put(_wake)

    def commit_window(self) -> int | None:
        """Return how many messages may be processed before anything is committed; None in transactions."""
        return self._commits.window

    def owns(self, message: Message) -> bool:
        """Return whether the partition of a message has been assigned ever since the message was delivered."""
        return not isinstance(message.token, Token) or self._assignment.owns(message.token)

    def prepare(self, messages: Sequence[Message]) -> PreparedBatch:
        """Return what a transaction may commit of a batch; on the transactions' thread. Raises TransientError."""
        membership = self._current_membership()
        owned, positions = self._assignment.positions_after(_tokens(messages))
        return PreparedBatch(owned, positions, membership)

    def note_committed(self, messages: Sequence[Message], positions: Sequence[Position]) -> None:
        """Record what a transaction has committed; on the transactions' thread, before the next one is prepared.

        The offsets of the next transaction begin where this one has ended.
        """
        self._assignment.finish(_tokens(messages))
        if self._processed is not None:
            self._processed.add(messages)
        self._jobs.put(partial(self._assignment.note_acknowledged, positions))

    def check_access(self) -> str:
        """Return why the cluster rejects this client; empty if it accepts it, or does not respond."""
        self._monitor.wait_for_first_round(REFUSAL_SECONDS)
        return self.client_errors.refusal

    def status(self) -> SourceStatus:
        """Return the status with the brokers, as of their last responses."""
        view, partitions = self._monitor.view, self._assignment.partitions
        lag = {partition: count for partition, count in view.lag.items() if partition in partitions}
        stopped = "; ".join(self._assignment.errors)
        return SourceStatus(
            error=self.client_errors.refusal or view.error or stopped,
            assigned=len(partitions),
            lag={(topic, str(number)): count for (topic, number), count in lag.items()},
            waiting=sum(lag.values()) - self._assignment.unfinished() - len(self._buffer),
            member=self._joined,
        )


def _tokens(messages: Iterable[Message]) -> Iterator[Token]:
    return (message.token for message in messages if isinstance(message.token, Token))


def _wake() -> None:
    """Do nothing: the job only wakes the owner."""


def _generation_of(membership: object) -> int:
    """Return the generation in the client's group metadata: a sign, then a number of 32 bits."""
    sign, _, rest = bytes(cast(bytes, membership)).partition(b":")
    if not sign.startswith(b"CGMD") or len(rest) < 4:
        return 0  # an unknown format, of a later client: the broker decides
    return int(struct.unpack_from("=i", rest)[0])
