"""Committed offsets of a group, at which its partitions start.

The client is not relied on for this. When the assignment changes while an offset is pending in a transaction,
librdkafka 2.16 puts the partition back into its queue without an offset and starts it by ``auto.offset.reset``
(``rd_kafka_assignment_handle_OffsetFetch``). So this module queries the stable offsets, and applies that property to
partitions without one.

The property applies to what existed at the start. Partitions and topics that appear later begin at their oldest record,
as nobody can have read it before.

A committed offset may have the crash marker of another process. Only a process that has died counts as crashed: one
that lost its partition, as brokers were silent or it was suspended, is a member of the group, or joins it again within
seconds. Each member has a name (``client.id``) with the id of its process, and the description of the group lists them.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.kafka.assignment import AssignedPartition, Assignment, Partition
from nightjar_alerts.service.stream.kafka.client import ClientErrors, make_client
from nightjar_alerts.service.stream.kafka.crash_marker import GIVEN_BACK, ISOLATE_AFTER_CRASHES, CrashMarker

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 0.25
"""Minimum interval between two queries, in seconds."""
TIMEOUT_SECONDS: Final = 60.0
"""Timeout of a query for all partitions, and of one for the members of the group, in seconds."""
ALONE_AFTER_SECONDS: Final = 1.0
"""Seconds without an answer to a query for all partitions after which a new client asks for each partition alone.

The client itself repeats a query until no offset in it is pending, and its answer would delay the other partitions.
"""
ALONE_TIMEOUT_SECONDS: Final = 0.25
"""Timeout of a query for one partition, in seconds."""
NEW_CLIENT_SECONDS: Final = 5.0
"""Seconds for which one client asks for partitions alone. Then a new one does, as this may have lost its brokers."""
ADMIN_TIMEOUT_SECONDS: Final = 3600.0
"""Timeout that the admin client must not reach: librdkafka ends the process if a query to a coordinator times out
before it is connected (issue 4605; 5397 has a fix)."""
REJOIN_SECONDS: Final = 10.0
"""Seconds from an assignment within which the former owner of a partition shows itself if it is alive.

A process that has lost its membership learns it with its next heartbeat (every three seconds by default), and joins
again. Only a verdict that leads to isolation waits for it.
"""
RESETS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), OFFSET_BEGINNING),
    **dict.fromkeys(("latest", "largest", "end"), OFFSET_END),
}


def member_name(process: str) -> str:
    """Return the ``client.id`` that shows a process in the description of its group."""
    return f"nightjar-{process}"


Queried = Mapping[Partition, AssignedPartition]
"""Partitions that a query was sent for; the answer is stale for later assignments."""


class _Query(NamedTuple):
    """Running query.

    Attributes
    ----------
    next_at : time at which the next one is sent if partitions still wait.
    """

    thread: Thread
    next_at: float


class _Answer(NamedTuple):
    """Committed offsets.

    Attributes
    ----------
    has_foreign_markers : whether the offsets have crash markers of other processes.
    members : names of the members of the group, for these; None if it could not be described.
    """

    queried: Queried
    offsets: Sequence[TopicPartition]
    has_foreign_markers: bool = False
    members: frozenset[str] | None = None


class CommittedOffsets:
    """Queries the stable committed offsets of assigned partitions. Non-blocking; used on the consumer's thread only.

    Each query has its own thread and client, which end with it. It is sent by a consumer, which is no member of the
    group: ``AdminClient.list_consumer_group_offsets`` ends the process with a segmentation fault if the group has moved
    to another coordinator, as it does while brokers are silent or restarted (librdkafka issue 5040).

    Parameters
    ----------
    config : librdkafka properties of a client of the group that is not a member.
    reset : value of ``auto.offset.reset``; raises AddressError if it is invalid.
    started_with : whether a partition that has no committed offset existed at the start; None while this is unknown.
    instance : ``group.instance.id`` of this member, if it is static.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        group: str,
        reset: str,
        client_errors: ClientErrors,
        started_with: Callable[[Partition], bool | None],
        metrics: Metrics,
        instance: str | None = None,
    ) -> None:
        if reset not in RESETS:
            raise AddressError(f"Kafka: auto.offset.reset is one of {', '.join(RESETS)}; not {reset[:20]!r}")
        self._config, self._group, self._reset = dict(config), group, RESETS[reset]
        self._client_errors, self._started_with = client_errors, started_with
        self._metrics, self._instance = metrics, instance
        self._queries: list[_Query] = []
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._next_query = 0.0

    def query_now(self) -> None:
        """Send the next query at once."""
        self._next_query = 0.0

    def poll(self, assignment: Assignment) -> list[TopicPartition]:
        """Record received offsets, query missing ones, and return the partitions to start with their offsets.

        Partitions whose offsets are pending in a transaction, or whose former owner may show itself yet, are queried
        again until they are decided.
        """
        starts: list[TopicPartition] = []
        self._queries = [query for query in self._queries if query.thread.is_alive()]
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            if answer.has_foreign_markers:
                starts += self._decide(assignment, answer)
            else:
                own = (self._start(assignment, answer.queried, offset, crashed=False) for offset in answer.offsets)
                starts += [start for start in own if start is not None]
        missing, now = assignment.not_started, monotonic()
        if missing and now >= self._next_query and all(now >= query.next_at for query in self._queries):
            self._send(assignment, missing)
        return starts

    def _send(self, assignment: Assignment, partitions: tuple[Partition, ...]) -> None:
        now = monotonic()
        self._next_query = now + RETRY_SECONDS
        queried = {partition: state for partition in partitions if (state := assignment.get(partition)) is not None}
        alone = bool(self._queries)
        # Only the thread has a reference to the client: destroying it may wait.
        arguments = self._make_consumer(), queried, alone, assignment.process
        thread = Thread(target=self._run, args=arguments, name="committed", daemon=True)
        del arguments
        self._queries.append(_Query(thread, now + (NEW_CLIENT_SECONDS if alone else ALONE_AFTER_SECONDS)))
        thread.start()

    def _make_consumer(self) -> Consumer:
        # Of read-committed consumers only, the client asks for stable offsets.
        return make_client(Consumer, {**self._config, "group.id": self._group, "isolation.level": "read_committed"})

    # On a query's thread.

    def _run(self, client: Consumer, queried: Queried, alone: bool, process: str) -> None:
        """Queue the offsets, and the members of the group with those that have the marker of another process."""
        parts = [[partition] for partition in random.sample(list(queried), len(queried))] if alone else [list(queried)]
        timeout = ALONE_TIMEOUT_SECONDS if alone else TIMEOUT_SECONDS
        end, foreign = monotonic() + (NEW_CLIENT_SECONDS if alone else TIMEOUT_SECONDS), []
        while parts and monotonic() < end:
            offsets = self._fetch(client, parts.pop(), timeout)
            foreign += [offset for offset in offsets if _is_foreign(offset, process)]
            self._answers.put(_Answer(queried, [offset for offset in offsets if not _is_foreign(offset, process)]))
        if foreign:
            self._describe(queried, foreign)

    def _fetch(self, client: Consumer, partitions: Sequence[Partition], timeout: float) -> list[TopicPartition]:
        """Return stable committed offsets; none after an error."""
        try:
            offsets: list[TopicPartition] = client.committed([TopicPartition(*one) for one in partitions], timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:  # an offset is pending, or brokers are silent
                self._client_errors.record(error.args[0])
            return []
        return offsets

    def _describe(self, queried: Queried, foreign: Sequence[TopicPartition]) -> None:
        """Queue offsets with the members of the group, unless the brokers are silent."""
        try:
            client = make_client(AdminClient, dict(self._config))
            futures = client.describe_consumer_groups([self._group], request_timeout=ADMIN_TIMEOUT_SECONDS)
            # Raised here, the error would refer to this frame, and with it to the client, until a garbage collection.
            error = futures[self._group].exception(TIMEOUT_SECONDS)
        except (AddressError, TimeoutError):  # e.g. while a certificate file is replaced
            return  # the offsets are queried again
        members = None
        if isinstance(error, KafkaException):
            self._client_errors.record(error.args[0])
        else:
            members = self._members(futures[self._group].result())
        self._answers.put(_Answer(queried, foreign, True, members))

    def _members(self, description: Any) -> frozenset[str]:
        # A static member keeps the name under which it first joined, also when another process takes its place.
        return frozenset(
            member.client_id
            for member in description.members
            if self._instance is None or member.group_instance_id != self._instance
        )

    # Was the former owner killed?

    def _decide(self, assignment: Assignment, answer: _Answer) -> list[TopicPartition]:
        """Start partitions whose former owner is alive, or can be counted as crashed."""
        starts = []
        for offset in answer.offsets:
            marker, assigned = CrashMarker.parse(offset.metadata), answer.queried.get(_partition(offset))
            if marker is None or assigned is None:
                continue
            is_alive = answer.members is not None and member_name(marker.process) in answer.members
            harmless = marker.crashes + 1 < ISOLATE_AFTER_CRASHES
            if is_alive or harmless or monotonic() - assigned.added_at > REJOIN_SECONDS:
                start = self._start(assignment, answer.queried, offset, not is_alive)
                starts += [] if start is None else [start]
        return starts

    def _start(
        self, assignment: Assignment, queried: Queried, answer: TopicPartition, crashed: bool
    ) -> TopicPartition | None:
        partition = _partition(answer)
        assigned = assignment.get(partition)
        if assigned is None or assigned is not queried.get(partition) or assigned.guard is not None:
            return None
        if answer.error is not None:
            if answer.error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                self._client_errors.record(answer.error)
            return None
        offset = answer.offset if answer.offset >= 0 else self._first_offset(partition)
        if offset is None:
            return None
        assignment.start(partition, answer.offset if answer.offset >= 0 else None, answer.metadata, crashed)
        return TopicPartition(*partition, offset)

    def _first_offset(self, partition: Partition) -> int | None:
        """Return where a partition without a committed offset begins; None while this is unknown."""
        started_with = self._started_with(partition)
        if started_with is None:
            return None
        if started_with:
            return self._reset
        self._metrics.stream_appeared.inc()
        topic, number = partition
        log.info("partition appeared after the start, reading its oldest record", topic=topic, partition=number)
        return RESETS["beginning"]


def _is_foreign(offset: TopicPartition, process: str) -> bool:
    marker = CrashMarker.parse(offset.metadata)
    return marker is not None and marker.process not in (GIVEN_BACK, process)


def _partition(offset: TopicPartition) -> Partition:
    return str(offset.topic), offset.partition
