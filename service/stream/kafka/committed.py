"""Committed offsets of a group, at which its partitions start.

The client is not relied on for this. When the assignment changes while an offset is pending in a transaction,
librdkafka 2.16 puts the partition back into its queue without an offset and starts it by ``auto.offset.reset``
(``rd_kafka_assignment_handle_OffsetFetch``). So this module queries the stable offsets, and applies that property to
partitions without one.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.kafka.assignment import AssignedPartition, Assignment, Partition
from nightjar_alerts.service.stream.kafka.client import ClientErrors, make_client

RETRY_SECONDS: Final = 0.25
"""Interval between two queries while offsets are pending, in seconds."""
QUERY_SECONDS: Final = 5.0
RESETS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), OFFSET_BEGINNING),
    **dict.fromkeys(("latest", "largest", "end"), OFFSET_END),
}


class CommittedOffsets:
    """Queries the stable committed offsets of assigned partitions. Non-blocking; used on the consumer's thread only.

    Parameters
    ----------
    config : librdkafka properties of a client of the group that is not a member.
    reset : value of ``auto.offset.reset``; raises AddressError if it is invalid.
    """

    def __init__(self, config: Mapping[str, Any], group: str, reset: str, client_errors: ClientErrors) -> None:
        if reset not in RESETS:
            raise AddressError(f"Kafka: auto.offset.reset is one of {', '.join(RESETS)}; not {reset[:20]!r}")
        self._config, self._group, self._reset = dict(config), group, RESETS[reset]
        self._client_errors = client_errors
        self._client: AdminClient | None = None
        # The running query, and the partitions that it was sent for: its response is stale for later assignments.
        self._query: tuple[Future[Any], Mapping[Partition, AssignedPartition]] | None = None
        self._next_query = 0.0

    def query_now(self) -> None:
        """Send the next query at once."""
        self._next_query = 0.0

    def poll(self, assignment: Assignment) -> list[TopicPartition]:
        """Record received offsets, query missing ones, and return the partitions to start with their offsets.

        Partitions whose offsets are pending in a transaction are queried again until they are stable.
        """
        starts: list[TopicPartition] = []
        if self._query is not None and self._query[0].done():
            (query, queried), self._query = self._query, None
            try:
                answers: list[TopicPartition] = query.result().topic_partitions
            except KafkaException as error:
                self._client_errors.record(error.args[0])
            else:
                starts = [
                    start for answer in answers if (start := self._start(assignment, queried, answer)) is not None
                ]
        missing = assignment.not_started
        if missing and self._query is None and monotonic() >= self._next_query:
            self._send(assignment, missing)
        return starts

    def _send(self, assignment: Assignment, partitions: tuple[Partition, ...]) -> None:
        self._next_query = monotonic() + RETRY_SECONDS
        request = ConsumerGroupTopicPartitions(self._group, [TopicPartition(*partition) for partition in partitions])
        # A new client for each query, as an old one may have lost its brokers.
        self._client = make_client(AdminClient, dict(self._config))
        queries = self._client.list_consumer_group_offsets(
            [request], require_stable=True, request_timeout=QUERY_SECONDS
        )
        queried = {partition: state for partition in partitions if (state := assignment.get(partition)) is not None}
        self._query = queries[self._group], queried

    def _start(
        self, assignment: Assignment, queried: Mapping[Partition, AssignedPartition], answer: TopicPartition
    ) -> TopicPartition | None:
        partition = (str(answer.topic), answer.partition)
        assigned = assignment.get(partition)
        if assigned is None or assigned is not queried.get(partition) or assigned.guard is not None:
            return None
        if answer.error is not None:
            if answer.error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                self._client_errors.record(answer.error)
            return None
        committed = answer.offset if answer.offset >= 0 else None
        assignment.start(partition, committed, answer.metadata)
        return TopicPartition(*partition, self._reset if committed is None else committed)
