"""Cluster monitor: queries the brokers for topics, lag and end offsets on a separate thread.

A query may take seconds if a broker does not respond. The consumer therefore sends none and reads the responses of the
last round (:attr:`ClusterMonitor.view`), so that alerts never wait for a query.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.kafka.assignment import Partition
from nightjar_alerts.service.stream.kafka.client import ClientErrors, make_client

log = structlog.get_logger(__name__)

QUERY_SECONDS: Final = 5.0
"""Timeout of a query, and interval between two rounds of queries, in seconds."""
FAILING_SECONDS: Final = 1.0
"""Interval between two rounds while no broker responds, and timeout of a query for offsets, in seconds."""
NEW_CLIENTS_AFTER: Final = 2
"""Consecutive failed rounds after which new clients are created, as the old ones may have lost their brokers."""
EARLIEST: Final = OffsetSpec.earliest()
LATEST: Final = OffsetSpec.latest()

OffsetFutures = Mapping[TopicPartition, Future[Any]]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """State of the cluster after the last successful round.

    Attributes
    ----------
    error : error of brokers or topics; empty if there is none.
    lag : number of offsets between the committed one and the end, by partition.
    end_offsets : offset after the last stable record of those partitions: of transactions, once they have ended.
    """

    error: str = ""
    lag: Mapping[Partition, int] = field(default_factory=dict)
    end_offsets: Mapping[Partition, int] = field(default_factory=dict)


class ClusterMonitor:
    """Thread that queries the brokers every few seconds with its own clients.

    Parameters
    ----------
    config : librdkafka properties of a client of the consumer group that is not a member.
    topics : topics that the consumer subscribes to; names that start with ``^`` are patterns.
    on_topic_recreated : called on the monitor's thread with each topic that was deleted and created again.

    Attributes
    ----------
    view : state of the cluster as of the latest responses.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Iterable[str],
        client_errors: ClientErrors,
        on_topic_recreated: Callable[[str], None],
    ) -> None:
        self._on_topic_recreated = on_topic_recreated
        self._config = dict(config)
        # Ids of each topic since its assignment, the newest first: a recreated topic has another id.
        self._ids: dict[str, list[str]] = {}
        self._epochs: Counter[str] = Counter()
        self._names = tuple(topics)
        # Partitions that existed at the start and are not new to the group; None before the first response.
        self._begun_with: frozenset[Partition] | None = None
        read_uncommitted = config.get("isolation.level") == "read_uncommitted"  # else the end that the consumer reaches
        self._isolation = IsolationLevel.READ_UNCOMMITTED if read_uncommitted else IsolationLevel.READ_COMMITTED
        self._client_errors = client_errors
        self._make_clients()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._assigned: tuple[Partition, ...] = ()
        self._low_offsets: dict[Partition, int] = {}
        self._failures, self._due = 0, 0.0
        self._responding_since: float | None = None
        self._closing, self._first_round_done = threading.Event(), threading.Event()
        # Read by other threads without a lock: the view is immutable and replaced as a whole.
        self.view = ClusterView()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def _make_clients(self) -> None:
        self._admin = make_client(AdminClient, dict(self._config))
        # As Kafka's own tools: offsets that an open transaction is about to commit are not counted.
        self._client = make_client(Consumer, {**self._config, "isolation.level": "read_uncommitted"})

    @property
    def responding_seconds(self) -> float:
        """Seconds for which the brokers have responded in every round; 0 if they did not respond in the last one."""
        since = self._responding_since
        return 0.0 if since is None else monotonic() - since

    def wait_for_first_round(self, timeout: float) -> None:
        """Wait until the brokers have responded or rejected this client, for at most ``timeout`` seconds."""
        self._first_round_done.wait(timeout)

    def started_with(self, partition: Partition) -> bool | None:
        """Return whether a partition without a committed offset existed at the start; None while this is unknown.

        If the group has committed an offset of a topic or pattern, a partition of it without one is new to the group.
        """
        return None if self._begun_with is None else partition in self._begun_with

    def set_partitions(self, partitions: Iterable[Partition]) -> None:
        """Set the partitions to query."""
        self._assigned = tuple(partitions)

    def record_assigned(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions were assigned, and query the current ids of their topics."""
        topics = {topic for topic, _ in partitions}

        def update_ids() -> None:
            for topic in topics:
                self._ids.pop(topic, None)
                self._epochs[topic] += 1
            self._query_ids(topics)

        self._jobs.put(update_ids)

    def _query_ids(self, topics: set[str]) -> None:
        """Query the ids of topics without waiting for the responses."""
        for topic in topics:
            (future,) = self._admin.describe_topics(TopicCollection([topic]), request_timeout=QUERY_SECONDS).values()
            future.add_done_callback(partial(self._on_topic_id, topic, self._epochs[topic]))

    def _on_topic_id(self, topic: str, epoch: int, future: Future[Any]) -> None:
        # Called on a thread of librdkafka, while the ids are used on the monitor's thread only.
        self._jobs.put(lambda: self._record_id(topic, epoch, future))

    def _record_id(self, topic: str, epoch: int, future: Future[Any]) -> None:
        """Record the id of a topic; a new id means that it was recreated. Brokers that lag behind report an old id."""
        if future.exception() is not None or epoch != self._epochs[topic]:
            return  # queried before the current assignment: the id may be that of the former topic
        topic_id, ids = str(future.result().topic_id), self._ids.setdefault(topic, [])
        if topic_id not in ids:
            ids.insert(0, topic_id)
            if len(ids) > 1:
                self._on_topic_recreated(topic)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._run_next()
            except Exception:  # this thread must not end: it reports the errors of the cluster
                log.exception("broker query failed")
        self._client.close()

    def _run_next(self) -> None:
        """Run the next job, or a round of queries if one is due."""
        try:
            job = self._jobs.get(timeout=max(0.0, self._due - monotonic()))
        except Empty:
            try:
                self._query_round()
            finally:
                self._due = monotonic() + (FAILING_SECONDS if self._failures else QUERY_SECONDS)
        else:
            if job is not None:
                job()

    def _query_round(self) -> None:
        """Run one round of queries; the value of a failed query does not change."""
        try:
            partitions = self._partitions()
        except KafkaException as error:
            self._on_failed_round(error.args[0])
            return
        names = ", ".join(name for name, found in partitions.items() if found is None)
        missing = f"waiting for topics that do not exist: {names}" if names else ""
        if self._begun_with is None:
            with suppress(KafkaException):  # the coordinator of the group does not respond
                self._begun_with = self._unread(partitions)
        self._client_errors.record_response()
        self._failures = 0
        self._responding_since = self._responding_since or monotonic()
        self._client.poll(0)  # a client calls its error callback only while polled
        end_offsets = self._end_offsets()
        self.view = ClusterView(missing, self._lag(end_offsets), end_offsets)
        self._query_ids({topic for topic, _ in self._assigned})
        self._first_round_done.set()

    def _on_failed_round(self, error: KafkaError) -> None:
        self._failures += 1
        self._responding_since = None
        self._client.poll(0)
        view, reason = self.view, str(self._client_errors)
        if self._client_errors.refusal:
            self._first_round_done.set()
        if reason or self._failures > 1:  # a single failure may concern one broker only
            view = ClusterView(reason or f"no broker answers: {error.str()}", view.lag, view.end_offsets)
        self.view = view
        if self._failures % NEW_CLIENTS_AFTER == 0:
            former = self._client
            with suppress(AddressError):  # keep the old clients, e.g. while a certificate file is replaced
                self._make_clients()
                # Closing waits for the group coordinator, which may be silent. This thread must go on: a worker takes
                # its silence for an outage, and waits.
                threading.Thread(target=former.close, name="close", daemon=True).start()

    def _partitions(self) -> dict[str, list[Partition] | None]:
        """Return the partitions of each topic and pattern; None for one that does not exist. Raises KafkaException."""
        partitions: dict[str, list[Partition] | None] = {}
        for name in self._names:
            if name.startswith("^"):
                topics = self._client.list_topics(timeout=QUERY_SECONDS).topics
                found = [metadata for topic, metadata in topics.items() if re.match(name, topic)]
            else:
                metadata = self._client.list_topics(name, QUERY_SECONDS).topics[name]
                unknown = metadata.error is not None and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if metadata.error is not None and not unknown:
                    self._client_errors.record(metadata.error)
                found = [] if unknown else [metadata]
            numbers = [(str(metadata.topic), number) for metadata in found for number in metadata.partitions]
            partitions[name] = numbers if found else None
        return partitions

    def _unread(self, partitions: Mapping[str, list[Partition] | None]) -> frozenset[Partition]:
        """Return the partitions of topics and patterns without any committed offset. Raises KafkaException."""
        unread: set[Partition] = set()
        for found in filter(None, partitions.values()):
            committed = self._client.committed([TopicPartition(*partition) for partition in found], QUERY_SECONDS)
            if all(position.offset < 0 for position in committed):
                unread |= set(found)
        return frozenset(unread)

    def _end_offsets(self) -> dict[Partition, int]:
        """Return the end offset of each partition, except those whose leader does not respond."""
        rounds = [self._offsets(spec) for spec in (EARLIEST, LATEST)]
        low, high = (dict(_received_offsets(futures)) for futures in rounds)
        self._low_offsets |= low
        return {partition: end for partition, end in high.items() if partition in self._low_offsets}

    def _offsets(self, spec: Any) -> OffsetFutures:
        specs = {TopicPartition(*partition): spec for partition in self._assigned}
        if not specs:
            return {}
        futures: OffsetFutures = self._admin.list_offsets(
            specs, isolation_level=self._isolation, request_timeout=FAILING_SECONDS
        )
        return futures

    def _lag(self, end_offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the number of messages after the committed offset, or all messages of a partition without one."""
        if not end_offsets:
            return {}
        try:
            positions = self._client.committed([TopicPartition(*partition) for partition in end_offsets], QUERY_SECONDS)
        except KafkaException:
            return dict(self.view.lag)
        lag = {}
        for position in positions:
            partition = (str(position.topic), position.partition)
            start = position.offset if position.offset >= 0 else self._low_offsets[partition]
            lag[partition] = max(0, end_offsets[partition] - start)
        return lag

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(2 * QUERY_SECONDS)


def _received_offsets(futures: OffsetFutures) -> Iterator[tuple[Partition, int]]:
    """Wait for the responses; yield the offset of each partition whose leader has responded."""
    wait(futures.values(), QUERY_SECONDS)
    for partition, future in futures.items():
        if future.done() and future.exception() is None and future.result().offset >= 0:
            yield (str(partition.topic), partition.partition), int(future.result().offset)
