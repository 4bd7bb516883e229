"""Alerts from Kafka, by a consumer group; and messages of its topics for a replay.

One thread owns the consumer, that of ``poll``, ``keep_alive`` and ``close``: it alone takes, pauses, commits and
answers the group's callbacks. The client lets one thread in at a time and is fair to none: whoever else calls it waits
until the owner happens to be outside, which may be seconds. So other threads give the owner a job
(:meth:`KafkaSource.acknowledge`), read what it noted last (:meth:`KafkaSource.transaction_offsets`) or ask by another
client (:meth:`KafkaSource.is_committed`). The owner waits for nobody, except at a revocation, for
:data:`REVOKE_SECONDS` at most, for what is about to be done. What is not done by then is the next owner's, and nothing
that is published later can be ours by mistake (:meth:`KafkaSource.owns`).

A client of librdkafka's can lose all its brokers for ever. While no partition is ours the owner therefore checks that
a broker still answers the client that takes the alerts, and takes another client where none does although the brokers
answer the monitor (:meth:`KafkaSource._check_client`).

Partitions are paused while the buffer between the client's queue and the worker is full, also those that are assigned
meanwhile. In transactions the producer commits the offsets (:meth:`KafkaSource.transaction_offsets`),
and the consumer commits for the sake of the journal alone.

:class:`KafkaRange` is the source of a replay: messages between two offsets or two moments. Nothing is committed and no
group is joined, so a replay disturbs nobody. It ends where the topic ended when it began.
"""

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.kafka import commits
from nightjar_alerts.service.stream.kafka.buffer import DeliveryBuffer, message_of, offset_of, partition_of
from nightjar_alerts.service.stream.kafka.client import (
    GROUP,
    ClientErrors,
    ClusterMonitor,
    make_client,
    properties,
    query_properties,
)
from nightjar_alerts.service.stream.kafka.commits import CommitGate, Commits
from nightjar_alerts.service.stream.kafka.offsets import Offsets, Partition, RecentAnswers, Token
from nightjar_alerts.service.stream.messages import PART_MESSAGES, FiniteSource, Message, SourceStatus, TransientError

log = structlog.get_logger(__name__)
REVOKE_SECONDS: Final = 1.0
COMMITTED_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 5.0
CONSUME_SECONDS: Final = 0.05  # before other work is looked at; commits and journals come by this way
SHORT_CONSUME_SECONDS: Final = 0.005  # while messages in the buffer wait for an answer of the broker
PAUSE_AFTER_SECONDS: Final = 0.5  # of a full buffer; until then it grows by a message for each call
CLIENT_CHECK_SECONDS: Final = 2.0  # between two checks of the client of a member without partitions
CLIENT_ANSWER_SECONDS: Final = 2.0  # for the broker then, which may wait for messages for ``fetch.wait.max.ms``
MAX_UNANSWERED_CHECKS: Final = 2  # in a row, while brokers answer the monitor, before another client is taken
MAX_DELIVERIES: Final = 5
# The promise to lose nothing rests on the fixed ones.
DEFAULT_PROPERTIES: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "partition.assignment.strategy": "cooperative-sticky",
    "queued.max.messages.kbytes": 32768,  # all partitions together: what waits in memory, whatever the lag
    "fetch.message.max.bytes": 4 << 20,
    "max.poll.interval.ms": 300_000,
    "enable.partition.eof": False,
    "topic.metadata.refresh.interval.ms": 30_000,  # a nightly topic begins to exist while we wait for it
    "allow.auto.create.topics": False,
}
FIXED_PROPERTIES: Final = ("enable.auto.commit", "enable.auto.offset.store", "partition.assignment.strategy")
_NO_GENERATION: Final = -1


class TransactionOffsets(NamedTuple):
    """Messages that a transaction may hold, and offsets that it commits.

    Attributes
    ----------
    owned : messages whose partitions are still this member's.
    positions : where those partitions are to be read on from.
    membership : the member and its generation; the broker refuses a commit in the name of a former one.
    """

    owned: frozenset[Token]
    positions: list[TopicPartition]
    membership: object


class KafkaSource:
    """Source that is a member of a consumer group.

    Parameters
    ----------
    extra : properties of librdkafka from the file of the setting ``kafka_config``.
    transactional : whether a producer commits the offsets.
    max_deliveries : deliveries that a message may have had; the journal counts them.
    on_rebalance : is called with the seconds for which a change of the assignment kept the worker from taking anything.
    """

    finite = False

    def __init__(
        self,
        address: Address,
        extra: Mapping[str, Any],
        transactional: bool = False,
        max_deliveries: int = MAX_DELIVERIES,
        on_rebalance: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        group = address.only("group").options.get("group", GROUP)
        config = properties(address, extra, {**DEFAULT_PROPERTIES, "group.id": group})
        config |= {name: DEFAULT_PROPERTIES[name] for name in FIXED_PROPERTIES}
        if transactional:  # committed offsets are read only after the transaction that is about to move them
            config |= {"isolation.level": "read_committed"}
        self._on_rebalance, self._names = on_rebalance, address.names
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._client_is_empty = False  # whether the client's queue was when it was asked last
        self._paused: set[Partition] = set()
        self._full_since: float | None = None
        self._recent_answers = RecentAnswers() if transactional else None
        self._skipped: set[Partition] = set()  # partitions of which messages were answered before they came again
        self._offsets = Offsets(transactional=transactional)
        self._gate = CommitGate() if transactional else None
        self._closing = False
        self._membership: object = None  # as the owner noted it last, for transactions
        self._commits = Commits(self._offsets, max_deliveries, self._gate)
        self._buffer = DeliveryBuffer(self._offsets, self._commits)
        self.client_errors = ClientErrors("source")
        self._config, self._clients = {**config, "error_cb": self.client_errors.note}, 0
        self._consumer = self._make_client()
        self._query_properties = query_properties(config, self.client_errors)
        self._monitor = ClusterMonitor(
            self._query_properties, address.names, self.client_errors, self._on_topic_recreated
        )

    def _make_client(self) -> Consumer:
        """Make the client that takes the alerts; it asks to be let into the group. Raises AddressError."""
        # Whether the group has given us partitions, or none, since we joined it or lost those we had. The generation
        # does not tell: a client that finds no broker any more keeps its last. A pattern may match nothing for long.
        self._joined = all(name.startswith("^") for name in self._names)
        self._silent_since: float | None = None
        self._unanswered, self._next_check = 0, monotonic() + CLIENT_CHECK_SECONDS
        number = self._clients + 1

        def unless_replaced(callback: Callable[..., None]) -> Callable[..., None]:
            """Ignore callbacks of a client that another has replaced: its partitions are not ours any more."""
            return lambda *arguments: callback(*arguments) if number == self._clients else None

        client = make_client(Consumer, {**self._config, "on_commit": unless_replaced(self._on_commit)})
        client.subscribe(
            list(self._names),
            on_assign=unless_replaced(self._on_assign),
            on_revoke=unless_replaced(self._on_revoke),
            on_lost=unless_replaced(self._on_lost),
        )
        self._clients = number
        return client

    # For the owner, the source's one thread.

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages, waiting only for the first."""
        end = monotonic() + timeout
        while True:
            self._run_jobs()
            if messages := self._buffer.deliver(limit):
                return messages
            if (remaining := end - monotonic()) <= 0:
                return []
            self._fetch(
                max(1, limit - len(self._buffer)),
                min(remaining, SHORT_CONSUME_SECONDS if self._buffer.awaiting_commit else CONSUME_SECONDS),
            )

    def keep_alive(self, seconds: float) -> None:
        """Deliver nothing, but stay a member of the group: one that does not poll for minutes is expelled.

        What has been done meanwhile is committed at once, and ends the wait: there may be room for more.
        """
        end = monotonic() + seconds
        self._run_jobs_and_fetch()
        while (remaining := end - monotonic()) > 0:
            # The answer to a commit comes only when messages are asked for, and the buffer may grow by one each time.
            hurry = self._commits.commit_in_flight and not self._buffer.full
            try:
                job = self._jobs.get(timeout=min(remaining, SHORT_CONSUME_SECONDS) if hurry else remaining)
            except Empty:
                self._run_jobs_and_fetch()
            else:
                job()
                self._run_jobs_and_fetch()
                return

    def _run_jobs_and_fetch(self) -> None:
        """Run jobs and let the client call its callbacks, for which it has to be asked for a message."""
        self._run_jobs()
        with suppress(TransientError):
            self._fetch(1, 0)

    def close(self, clean: bool = True) -> None:
        """Commit what is done and leave the group; a static member keeps its partitions until its time is over.

        Parameters
        ----------
        clean : False when what is not done may be what made us end: the next owner shall know (the journal stays).
        """
        end = monotonic() + CLOSE_SECONDS
        self._run_jobs()
        partitions = self._commits.partitions
        self._commits.commit_final(self._consumer, partitions, clean, REVOKE_SECONDS)
        self._drop(partitions)
        while self._commits.commit_in_flight and monotonic() < end:
            with suppress(KafkaException):  # the answer to a commit comes only when messages are asked for
                self._consumer.consume(1, CONSUME_SECONDS)
        self._monitor.close()
        self._closing = True
        self._consumer.close()

    def _run_jobs(self) -> None:
        """Run the jobs of other threads, commit, and pause or resume."""
        self._check_client()
        self._note_membership()
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()()
        self._commits.forget_crashes(caught_up=self._client_is_empty and not len(self._buffer))
        self._skipped = {partition for partition in self._skipped if self._commits.is_behind(partition)}
        self._commits.send(self._consumer, self._buffer.awaiting_commit | self._skipped)
        self._pause_or_resume()

    def _check_client(self) -> None:
        """Take another client where ours knows no broker any more although the brokers answer others.

        From 2.10 on librdkafka forgets every broker that an answer about the cluster does not name. One that has just
        come back names none, itself included, and the client never connects again (its issue 5301). It then answers no
        question; one that only waits for its group does.
        """
        if self._commits.partitions or self._closing:
            self._silent_since = None
            return
        if (now := monotonic()) < self._next_check:
            return
        is_answered = self._is_answered()
        self._next_check = monotonic() + CLIENT_CHECK_SECONDS
        if is_answered:
            self._silent_since = None
            return
        if self._silent_since is None:
            self._silent_since, self._unanswered = now, 0
        self._unanswered += self._monitor.answered_at > self._silent_since
        if self._unanswered >= MAX_UNANSWERED_CHECKS:
            log.warning("the client of Kafka has lost its brokers: another one begins", end="source")
            self._replace_client()

    def _replace_client(self) -> None:
        """Take another client; where none can be made, as certificates are missing, the next check tries again."""
        try:
            client = self._make_client()
        except AddressError as error:
            log.warning("no other client of Kafka can be made", end="source", reason=str(error))
            return
        self._commits.abandon_commit()
        former, self._consumer = self._consumer, client
        # Closing it may wait for a coordinator that it cannot reach.
        threading.Thread(target=former.close, name="former client", daemon=True).start()

    def _is_answered(self) -> bool:
        """Return whether a broker answers the client that takes the alerts."""
        topic = next((name for name in self._names if not name.startswith("^")), None)
        try:
            self._consumer.list_topics(topic, CLIENT_ANSWER_SECONDS)
        except KafkaException:
            return False
        return True

    def _note_membership(self) -> None:
        """Note our membership; costs microseconds, as the client asks nobody. A client that is closing has none."""
        if self._gate is not None and not self._closing:
            self._membership = self._consumer.consumer_group_metadata()

    def _fetch(self, limit: int, timeout: float) -> None:
        """Take messages of the client's into the buffer; this is where its callbacks run."""
        # The first is waited for, the others are not: asked for many with a timeout, the client would wait for all.
        try:
            messages = self._consumer.consume(1, timeout)
            if messages and limit > 1:
                messages += self._consumer.consume(limit - 1, 0)
        except KafkaException as error:
            raise TransientError(str(error)) from error
        self._client_is_empty = not messages
        for message in messages:
            if (fault := message.error()) is not None:
                self.client_errors.note(fault)
            # A rebalance may have run inside of this very call: what came before it may not be ours any more.
            elif self._commits.owns(partition := partition_of(message)):
                if self._commits.note_message(partition, offset_of(message)):
                    self._monitor.read_journals([partition], self._on_journals)
                if self._recent_answers is not None and self._recent_answers.has(
                    partition, offset_of(message), message_of(message)
                ):
                    # Part of no transaction again: the consumer itself commits the offset behind it.
                    self._offsets.finish([self._offsets.take(partition, offset_of(message))])
                    self._skipped.add(partition)
                else:
                    self._buffer.add(message)

    def _on_journals(self, metadata_by_partition: Mapping[Partition, str | None]) -> None:
        """Give the owner what the journals say; called by the monitor's thread."""
        for partition, metadata in metadata_by_partition.items():
            self._jobs.put(partial(self._commits.open_journal, partition, metadata))

    def _on_topic_recreated(self, topic: str) -> None:
        """Have the owner restart a topic that was made again; called by the monitor's thread."""
        self._jobs.put(partial(self._restart_topic, topic))

    def _restart_topic(self, topic: str) -> None:
        """Read a topic that was made again from its start.

        The client goes on at its former offset where the new topic already reaches that far, and jumps over the rest.
        """
        partitions = [partition for partition in self._commits.partitions if partition[0] == topic]
        self._drop(partitions)
        self._commits.assign(partitions)
        for partition in partitions:
            # What is beside the former offset says nothing of the new topic.
            self._commits.open_journal(partition, None)
            with suppress(KafkaException):  # not ours any more, which we are about to hear
                self._consumer.seek(TopicPartition(*partition, OFFSET_BEGINNING))
        log.warning("a topic was made again and is read from its start", topic=topic)

    def _pause_or_resume(self) -> None:
        """Pause everything once the buffer has been full for a while, nothing otherwise.

        A pause makes the client throw away what it has fetched ahead and ask for it again. So a buffer that is emptied
        at once, as it is after each full batch, must not pause anything: a backlog would be fetched many times over.
        """
        if not self._buffer.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = monotonic()
        full = self._full_since is not None and monotonic() - self._full_since >= PAUSE_AFTER_SECONDS
        assigned = set(self._commits.partitions)
        self._order(self._consumer.pause, assigned - self._paused if full else set())
        self._order(self._consumer.resume, set() if full else assigned & self._paused)
        self._paused = assigned if full else set()

    def _order(self, order: Callable[[list[TopicPartition]], None], partitions: set[Partition]) -> None:
        if partitions:
            with suppress(KafkaException):
                order([TopicPartition(*partition) for partition in partitions])

    # Callbacks of the group, which run inside of consume().

    def _on_assign(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        consumer.incremental_assign(topic_partitions)
        self._joined = True
        self._monitor.note_assigned(partitions)
        self._note_membership()
        self._commits.assign(partitions)
        self._paused.difference_update(partitions)
        # The client remembers pauses of a partition's former assignment: each begins with an order of its own.
        self._order(consumer.resume, set(partitions))
        self._report_rebalance("partitions assigned", topic_partitions, began)

    def _on_revoke(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        began = monotonic()
        partitions = [(str(p.topic), p.partition) for p in topic_partitions]
        self._buffer.discard(partitions)  # nothing more of these is begun
        # The group has a new generation by now: in the name of the former one no transaction would end while we wait.
        self._note_membership()
        self._finish_in_flight(partitions, began + REVOKE_SECONDS)
        unfinished = self._offsets.unfinished(partitions)
        # Sent while they are still ours: the broker refuses what comes after they were given back.
        self._commits.commit_final(consumer, partitions, clean=True, timeout=REVOKE_SECONDS / 2)
        self._drop(partitions)
        consumer.incremental_unassign(topic_partitions)
        self._report_rebalance("partitions taken away", topic_partitions, began, given_back=unfinished)

    def _finish_in_flight(self, partitions: Sequence[Partition], end: float) -> None:
        """Run jobs until nothing of these partitions is unfinished, or the time is over or the commit window full.

        The client is inside of a callback and tells of no commit meanwhile, so that the window does not open again.
        """
        while (
            self._offsets.unfinished(partitions) and self._window_fits_part() and (remaining := end - monotonic()) > 0
        ):
            with suppress(Empty):
                self._jobs.get(timeout=remaining)()
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()()

    def _window_fits_part(self) -> bool:
        window = self.commit_window()
        return window is None or window >= PART_MESSAGES

    def _on_lost(self, consumer: Consumer, topic_partitions: list[TopicPartition]) -> None:
        """Forget partitions that others may have read already: nothing of theirs counts any more."""
        began = monotonic()
        self._membership, self._joined = None, False
        # No final commit: it would come after those of the new owner, and set the group back if it were taken.
        self._drop([(str(p.topic), p.partition) for p in topic_partitions])
        with suppress(KafkaException):
            consumer.incremental_unassign(topic_partitions)
        self._report_rebalance("partitions lost", topic_partitions, began)

    def _drop(self, partitions: Sequence[Partition]) -> None:
        self._buffer.discard(partitions)
        self._paused.difference_update(partitions)
        self._offsets.drop(partitions)
        self._commits.unassign(partitions)

    def _report_rebalance(
        self, what: str, topic_partitions: Sequence[TopicPartition], began: float, **facts: int
    ) -> None:
        seconds = monotonic() - began
        self._monitor.set_partitions(self._commits.partitions)
        self._on_rebalance(seconds)
        names = [f"{p.topic}/{p.partition}" for p in topic_partitions]
        log.info(what, partitions=names, seconds=round(seconds, 3), **facts)

    def _on_commit(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        if error is None:
            self.client_errors.note_answer()
        self._commits.on_commit(error, positions)

    # For all other threads.

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Note that messages need not be delivered again, and wake the owner, which commits.

        It is noted before this returns: the offsets of the next transaction must begin where this one has ended.
        """
        self._offsets.finish(message.token for message in messages if isinstance(message.token, Token))
        if self._recent_answers is not None:
            self._recent_answers.add(messages)
        self._jobs.put(_wake)

    def commit_window(self) -> int | None:
        """Return how many messages may be answered before anything is committed; None in transactions."""
        return None if self._gate is not None else commits.MAX_UNCOMMITTED - self._offsets.uncommitted()

    def owns(self, message: Message) -> bool:
        """Return whether a message's partition has been ours ever since it was taken."""
        return not isinstance(message.token, Token) or self._offsets.owns(message.token)

    def acquire_commit_gate(self, timeout: float) -> bool:
        """Enter the commit gate, behind which no journal is written; returns whether that was possible."""
        return self._gate is None or self._gate.acquire_for_transaction(timeout)

    def release_commit_gate(self) -> None:
        """Leave the commit gate."""
        if self._gate is not None:
            self._gate.release()

    def transaction_offsets(self, messages: Sequence[Message]) -> TransactionOffsets:
        """Return the offsets that may be committed with these messages. Raises TransientError when we are no member.

        The generation is looked at first: partitions that are lost after that are lost to a later one, and the broker
        refuses offsets in the name of one that is over. A member that was expelled has none, and the broker would take
        its offsets without a question.
        """
        membership = self._membership
        if membership is None or _generation_of(membership) == _NO_GENERATION:
            raise TransientError("not a member of the group at the moment")
        owned, ahead = self._offsets.committable_after(m.token for m in messages if isinstance(m.token, Token))
        positions = []
        for partition, offset in ahead.items():
            journal = self._commits.journal(partition)
            positions.append(TopicPartition(*partition, offset, "" if journal is None else str(journal.entry)))
        return TransactionOffsets(owned, positions, membership)

    def is_committed(self, offsets: TransactionOffsets) -> bool:
        """Return whether the group already reads on from these offsets. Raises TransientError.

        Rarely asked, and by a client for this one question: it waits for transactions that are about to move offsets,
        which the monitor's does not.
        """
        partitions = [TopicPartition(p.topic, p.partition) for p in offsets.positions]
        if not partitions:
            return False
        client = make_client(Consumer, self._query_properties | {"isolation.level": "read_committed"})
        try:
            group_positions = client.committed(partitions, COMMITTED_SECONDS)
        except KafkaException as error:
            raise TransientError(str(error)) from error
        finally:
            client.close()
        return [p.offset for p in group_positions] == [p.offset for p in offsets.positions]

    def refusal(self) -> str:
        """Return why the cluster lets us in nowhere, in words; empty when it does, or nobody answers."""
        self._monitor.wait_for_first_round(REFUSAL_SECONDS)
        return self.client_errors.refusal

    def status(self) -> SourceStatus:
        """Return the status with the brokers, as far as they told it; asks nobody."""
        view, partitions = self._monitor.view, self._commits.partitions
        lag = {partition: count for partition, count in view.lag.items() if partition in partitions}
        return SourceStatus(
            trouble=self.client_errors.refusal or view.trouble,
            assigned=len(partitions),
            lag={(topic, str(number)): count for (topic, number), count in lag.items()},
            waiting=sum(lag.values()) - self._offsets.unfinished() - len(self._buffer),
            member=self._joined,
        )


def _wake() -> None:
    """Do nothing: a job that only wakes the owner."""


def _generation_of(membership: object) -> int:
    """Return the generation in what the client says of its membership: a sign, then a number of 32 bits."""
    sign, _, rest = bytes(cast(bytes, membership)).partition(b":")
    if not sign.startswith(b"CGMD") or len(rest) < 4:
        return 0  # another form of a later client; the broker judges
    return int(struct.unpack_from("=i", rest)[0])


TIMEOUT_SECONDS: Final = 30.0
RANGE_OPTIONS: Final = ("since", "until", "from", "to", "partition")


class KafkaRange(FiniteSource):
    """Messages of topics from ``since`` to ``until`` (ISO times), or of one partition from offset to offset."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        address.only("group", *RANGE_OPTIONS)
        own = {"group.id": "nightjar-replay", "enable.auto.commit": False, "queued.max.messages.kbytes": 32768}
        self._consumer = make_client(Consumer, properties(address, extra, own))
        self._end_offsets: dict[tuple[str, int], int] = {}
        try:
            self._start(address)
        except KafkaException as error:
            raise AddressError(f"kafka://{address.hosts}: {error.args[0].str()}") from None

    def _start(self, address: Address) -> None:
        assigned = []
        for topic, partition in self._partitions(address):
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_SECONDS)
            start = self._bound(address, "from", "since", topic, partition, low)
            end = self._bound(address, "to", "until", topic, partition, high)
            start, end = max(start, low), min(end, high)
            if start < end:
                self._end_offsets[topic, partition] = end
                assigned.append(TopicPartition(topic, partition, start))
        self._consumer.assign(assigned)

    def _partitions(self, address: Address) -> list[tuple[str, int]]:
        only_number = int(address.number("partition", -1))
        if only_number < 0 and {"from", "to"} & set(address.options):
            raise AddressError("offsets (`from`, `to`) belong to a `partition`")
        partitions = []
        for topic in address.names:
            metadata = self._consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
            partitions += [(topic, number) for number in metadata.partitions if only_number in (-1, number)]
        return partitions

    def _bound(self, address: Address, offset: str, moment: str, topic: str, partition: int, default: int) -> int:
        if offset in address.options:
            return int(address.number(offset, default))
        if moment not in address.options:
            return default
        query = TopicPartition(topic, partition, address.moment(moment))
        answer = self._consumer.offsets_for_times([query], TIMEOUT_SECONDS)[0].offset
        return default if answer == OFFSET_END else answer

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next messages; none when every partition has been read to its end."""
        while self._end_offsets:
            try:
                batch = self._consumer.consume(limit, timeout)
            except KafkaException as error:
                raise TransientError(str(error)) from error
            messages = [message for one in batch if (message := self._message(one)) is not None]
            if messages:
                return messages
            self._forget_read()
        return []

    def _message(self, one: Any) -> Message | None:
        place = (one.topic(), one.partition())
        if one.error() is not None or one.offset() >= self._end_offsets.get(place, 0):
            return None
        message = message_of(one)
        if one.offset() + 1 >= self._end_offsets[place]:
            del self._end_offsets[place]
        return message

    def _forget_read(self) -> None:
        """Tell the end by the position: a last offset may be no message (transactions, compaction)."""
        for position in self._consumer.position(self._consumer.assignment()):
            place = (str(position.topic), position.partition)
            if place in self._end_offsets and position.offset >= self._end_offsets[place]:
                del self._end_offsets[place]

    def close(self, clean: bool = True) -> None:
        """Let go of the broker."""
        self._consumer.close()
