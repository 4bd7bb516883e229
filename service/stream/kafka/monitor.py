"""Monitor of the cluster: queries the brokers for topics, lag and ends of partitions on a separate thread.

A query may take seconds if a broker does not respond. The consumer therefore sends none: it reads the responses of the
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
"""Timeout of a query, and the interval between two rounds of queries."""
FAILING_SECONDS: Final = 1.0
"""Seconds between two rounds while no broker responds, and timeout for the end offsets of a leader's partitions."""
NEW_CLIENTS_AFTER: Final = 2
"""Failed rounds in a row after which new clients are made: the old ones may have lost their brokers."""
EARLIEST: Final = OffsetSpec.earliest()
LATEST: Final = OffsetSpec.latest()

OffsetAnswers = Mapping[TopicPartition, Future[Any]]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Responses of the brokers in the last successful round.

    Attributes
    ----------
    error : error of brokers or topics; empty if there is none.
    lag : messages between the committed offset and the end, by partition.
    end_offsets : the offset after the last message of those partitions.
    """

    error: str = ""
    lag: Mapping[Partition, int] = field(default_factory=dict)
    end_offsets: Mapping[Partition, int] = field(default_factory=dict)


class ClusterMonitor:
    """Thread with its own clients that queries the brokers every few seconds.

    Parameters
    ----------
    config : properties of a client of the consumer's group that is not a member.
    topics : names that the consumer subscribes to; those that begin with ``^`` are patterns.
    on_topic_recreated : called on the monitor's thread with each topic that was deleted and created again.

    Attributes
    ----------
    view : the latest responses of the brokers.
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
        # Ids of assigned topics since their assignment, the newest first: a recreated topic has another id.
        self._ids: dict[str, list[str]] = {}
        self._epochs: Counter[str] = Counter()
        names = list(topics)
        self._topics = [name for name in names if not name.startswith("^")]
        self._patterns = [name for name in names if name.startswith("^")]
        self._client_errors = client_errors
        self._make_clients()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._assigned: tuple[Partition, ...] = ()
        self._lows: dict[Partition, int] = {}
        self._failures, self._due = 0, 0.0
        self._answering_since: float | None = None
        self._closing, self._first_round_done = threading.Event(), threading.Event()
        # Read by other threads without a lock: a view is replaced as a whole and never changed.
        self.view = ClusterView()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def _make_clients(self) -> None:
        self._admin = make_client(AdminClient, dict(self._config))
        # Offsets as Kafka's own tools report them: without those that an open transaction is about to commit.
        self._client = make_client(Consumer, {**self._config, "isolation.level": "read_uncommitted"})

    @property
    def answering_seconds(self) -> float:
        """Seconds for which the brokers have responded in every round; 0 while they do not."""
        since = self._answering_since
        return 0.0 if since is None else monotonic() - since

    def wait_for_first_round(self, timeout: float) -> None:
        """Wait until the brokers have responded or rejected this client, for at most ``timeout`` seconds."""
        self._first_round_done.wait(timeout)

    def set_partitions(self, partitions: Iterable[Partition]) -> None:
        """Set the partitions to query."""
        self._assigned = tuple(partitions)

    def note_assigned(self, partitions: Iterable[Partition]) -> None:
        """Record that partitions were assigned: the ids of their topics are those that exist now."""
        topics = {topic for topic, _ in partitions}

        def note() -> None:
            for topic in topics:
                self._ids.pop(topic, None)
                self._epochs[topic] += 1
            self._query_ids(topics)

        self._jobs.put(note)

    def _query_ids(self, topics: set[str]) -> None:
        """Query the ids of topics without waiting for the responses."""
        for topic in topics:
            (answer,) = self._admin.describe_topics(TopicCollection([topic]), request_timeout=QUERY_SECONDS).values()
            answer.add_done_callback(partial(self._on_topic_id, topic, self._epochs[topic]))

    def _on_topic_id(self, topic: str, epoch: int, answer: Future[Any]) -> None:
        # Called on a thread of librdkafka; the ids belong to the monitor's.
        self._jobs.put(lambda: self._note_id(topic, epoch, answer))

    def _note_id(self, topic: str, epoch: int, answer: Future[Any]) -> None:
        """Record the id of a topic; a recreated topic has another. Brokers that lag behind report the former id."""
        if answer.exception() is not None or epoch != self._epochs[topic]:
            return  # queried before the partitions were assigned again: the id may be the former topic's
        topic_id, ids = str(answer.result().topic_id), self._ids.setdefault(topic, [])
        if topic_id not in ids:
            ids.insert(0, topic_id)
            if len(ids) > 1:
                self._on_topic_recreated(topic)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._do_next()
            except Exception:  # without this thread no error would be reported
                log.exception("broker query failed")
        self._client.close()

    def _do_next(self) -> None:
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
        """Run one round of queries; values whose query fails stay as they were."""
        try:
            missing = self._missing_topics()
        except KafkaException as error:
            self._on_failed_round(error.args[0])
            return
        self._client_errors.note_answer()
        self._failures = 0
        self._answering_since = self._answering_since or monotonic()
        self._client.poll(0)  # a client calls its error callback only when it is polled
        end_offsets = self._end_offsets()
        self.view = ClusterView(missing, self._lag(end_offsets), end_offsets)
        self._query_ids({topic for topic, _ in self._assigned})
        self._first_round_done.set()

    def _on_failed_round(self, error: KafkaError) -> None:
        self._failures += 1
        self._answering_since = None
        self._client.poll(0)
        view, reason = self.view, str(self._client_errors)
        if self._client_errors.refusal:
            self._first_round_done.set()
        if reason or self._failures > 1:  # one failure may be one broker's
            view = ClusterView(reason or f"no broker answers: {error.str()}", view.lag, view.end_offsets)
        self.view = view
        if self._failures % NEW_CLIENTS_AFTER == 0:
            former = self._client
            with suppress(AddressError):  # a certificate file may be missing for a moment: the old clients go on
                self._make_clients()
                former.close()

    def _missing_topics(self) -> str:
        missing = []
        for topic in self._topics:
            metadata = self._client.list_topics(topic, QUERY_SECONDS).topics[topic]
            if metadata.error is None:
                continue
            if metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(topic)
            else:
                self._client_errors.note(metadata.error)
        if self._patterns:
            topics = self._client.list_topics(timeout=QUERY_SECONDS).topics
            missing += [one for one in self._patterns if not any(re.match(one, topic) for topic in topics)]
        return f"waiting for topics that do not exist: {', '.join(missing)}" if missing else ""

    def _end_offsets(self) -> dict[Partition, int]:
        """Return the end of each partition, from all leaders at once; those of unresponsive leaders are left out."""
        rounds = [self._offsets(spec) for spec in (EARLIEST, LATEST)]
        lows, highs = (dict(_answered_offsets(answers)) for answers in rounds)
        self._lows |= lows
        return {partition: end for partition, end in highs.items() if partition in self._lows}

    def _offsets(self, spec: Any) -> OffsetAnswers:
        specs = {TopicPartition(*partition): spec for partition in self._assigned}
        if not specs:
            return {}
        # As Kafka's own tools report them: with what open transactions wrote.
        answers: OffsetAnswers = self._admin.list_offsets(
            specs, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=FAILING_SECONDS
        )
        return answers

    def _lag(self, end_offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Count messages behind the committed offset; of a partition without one, all that it holds."""
        if not end_offsets:
            return {}
        try:
            positions = self._client.committed([TopicPartition(*partition) for partition in end_offsets], QUERY_SECONDS)
        except KafkaException:
            return dict(self.view.lag)
        lag = {}
        for position in positions:
            partition = (str(position.topic), position.partition)
            start = position.offset if position.offset >= 0 else self._lows[partition]
            lag[partition] = max(0, end_offsets[partition] - start)
        return lag

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(2 * QUERY_SECONDS)


def _answered_offsets(answers: OffsetAnswers) -> Iterator[tuple[Partition, int]]:
    """Yield the offset of each partition whose leader has responded."""
    wait(answers.values(), QUERY_SECONDS)
    for partition, answer in answers.items():
        if answer.done() and answer.exception() is None and answer.result().offset >= 0:
            yield (str(partition.topic), partition.partition), int(answer.result().offset)
