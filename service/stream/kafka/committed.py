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

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    ConsumerGroupTopicPartitions,
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
"""Interval between two queries while offsets are pending, in seconds."""
QUERY_SECONDS: Final = 5.0
"""Seconds without a response after which a new client sends the next query, as the old one may have lost its brokers.

The old client is kept until it has its response, and its query has no shorter timeout: librdkafka ends the process if a
query to a coordinator times out before it is connected (issue 4605; 5397 has a fix).
"""
MAX_QUERIES: Final = 4
"""Queries without a response, after which a further one replaces the oldest, if that has waited for a minute."""
OLD_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 3600.0
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


class _Query(NamedTuple):
    """Query without a response yet.

    Attributes
    ----------
    client : client that must live as long as its query.
    queried : partitions that it was sent for; the response is stale for later assignments.
    undecided : offsets with the marker of another process, if the query is for the description of the group.
    """

    client: AdminClient
    response: "Future[Any]"
    sent_at: float
    queried: Mapping[Partition, AssignedPartition]
    undecided: Sequence[TopicPartition] = ()


class CommittedOffsets:
    """Queries the stable committed offsets of assigned partitions. Non-blocking; used on the consumer's thread only.

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
        answered = [query for query in self._queries if query.response.done()]
        self._queries = [query for query in self._queries if query not in answered]
        for query in answered:
            if query.undecided:
                starts += self._decide(assignment, query)
            else:
                starts += self._start_own(assignment, query)
        missing, now = assignment.not_started, monotonic()
        waiting = bool(self._queries) and now - self._queries[-1].sent_at < QUERY_SECONDS
        if len(self._queries) == MAX_QUERIES and now - self._queries[0].sent_at > OLD_SECONDS:
            del self._queries[0]
        if missing and not waiting and len(self._queries) < MAX_QUERIES and now >= self._next_query:
            self._send(assignment, missing)
        return starts

    def _send(self, assignment: Assignment, partitions: tuple[Partition, ...]) -> None:
        self._next_query = monotonic() + RETRY_SECONDS
        request = ConsumerGroupTopicPartitions(self._group, [TopicPartition(*partition) for partition in partitions])
        client = make_client(AdminClient, dict(self._config))
        responses = client.list_consumer_group_offsets([request], require_stable=True, request_timeout=TIMEOUT_SECONDS)
        queried = {partition: state for partition in partitions if (state := assignment.get(partition)) is not None}
        self._queries.append(_Query(client, responses[self._group], monotonic(), queried))

    def _start_own(self, assignment: Assignment, query: _Query) -> list[TopicPartition]:
        """Start partitions without the marker of another process; ask for the members of the group for the rest."""
        try:
            offsets: list[TopicPartition] = query.response.result().topic_partitions
        except KafkaException as error:
            self._client_errors.record(error.args[0])
            return []
        starts, undecided = [], []
        for offset in offsets:
            marker = CrashMarker.parse(offset.metadata)
            if marker is not None and marker.process not in (GIVEN_BACK, assignment.process):
                undecided.append(offset)
            elif (start := self._start(assignment, query, offset, crashed=False)) is not None:
                starts.append(start)
        if undecided:
            descriptions = query.client.describe_consumer_groups([self._group], request_timeout=TIMEOUT_SECONDS)
            self._queries.append(
                query._replace(response=descriptions[self._group], sent_at=monotonic(), undecided=undecided)
            )
        return starts

    # Was the former owner killed?

    def _alive(self, description: "Future[Any]") -> frozenset[str] | None:
        """Return the names of the members of the group; None if it could not be described."""
        try:
            members = description.result().members
        except KafkaException as error:
            self._client_errors.record(error.args[0])
            return None
        # A static member keeps the name under which it first joined, also when another process takes its place.
        return frozenset(
            member.client_id
            for member in members
            if self._instance is None or member.group_instance_id != self._instance
        )

    def _decide(self, assignment: Assignment, query: _Query) -> list[TopicPartition]:
        """Start partitions whose former owner is alive, or can be counted as crashed."""
        alive, starts = self._alive(query.response), []
        for offset in query.undecided:
            marker, assigned = CrashMarker.parse(offset.metadata), query.queried.get(_partition(offset))
            if marker is None or assigned is None:
                continue
            is_alive = alive is not None and member_name(marker.process) in alive
            harmless = marker.crashes + 1 < ISOLATE_AFTER_CRASHES
            if is_alive or harmless or monotonic() - assigned.added_at > REJOIN_SECONDS:
                start = self._start(assignment, query, offset, not is_alive)
                starts += [] if start is None else [start]
        return starts

    def _start(
        self, assignment: Assignment, query: _Query, answer: TopicPartition, crashed: bool
    ) -> TopicPartition | None:
        partition = _partition(answer)
        assigned = assignment.get(partition)
        if assigned is None or assigned is not query.queried.get(partition) or assigned.guard is not None:
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


def _partition(offset: TopicPartition) -> Partition:
    return str(offset.topic), offset.partition
