"""Clients of Kafka: their properties, their errors, and one that monitors the cluster.

``kafka://host:9092,host:9092/topic,topic?group=nightjar``: every further parameter with a dot in its name is a property
of librdkafka (``security.protocol=SASL_SSL``); credentials belong into the file of the setting ``kafka_config``.

A client keeps trying by itself and reports an error at each failure, but never that it works again: whoever gets an
answer from a broker notes it (:meth:`ClientErrors.note_answer`). Each error is logged once a minute, however often it
comes, and the probes show what is wrong in words.

A question about the group's topics may take seconds when a broker is silent. The consumer that takes alerts therefore
asks none: separate clients on a separate thread do (:class:`ClusterMonitor`), so that alerts never wait for an answer,
and the consumer reads the last answers. The monitor also reads the journals of partitions that are newly assigned.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.kafka.offsets import Partition

log = structlog.get_logger(__name__)

LOG_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 15.0
"""Seconds that a refusal stands after it was heard last; the client tries again every ten seconds."""
REFUSALS: Final = {
    KafkaError._AUTHENTICATION: "authentication failed",
    KafkaError._SSL: "no TLS connection",
    KafkaError.SASL_AUTHENTICATION_FAILED: "authentication failed",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "authentication failed",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not authorised",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "not authorised",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "not authorised",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorised",
}
"""Errors that no patience mends: a password, a certificate or a right is wrong."""
AWAY: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})


@dataclass(slots=True)
class _LoggedError:
    logged_at: float
    repeats: int = 0


class ClientErrors:
    """Errors of the clients of one source or sink, and whether they still stand. Safe to use from several threads.

    Parameters
    ----------
    end : whose clients they are, for the log.

    Attributes
    ----------
    times_all_down : how often a client said that all its brokers are away; never falls.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._logged_by_name: dict[str, _LoggedError] = {}
        self._refusal, self._refused_at, self._answered_at = "", 0.0, 0.0
        self._away = ""
        self.times_all_down = 0

    def note(self, error: KafkaError) -> None:
        """Take in what a client says; log it unless the same was logged within a minute."""
        code, name, reason, now = error.code(), error.name(), error.str(), monotonic()
        with self._lock:
            if code in REFUSALS:
                self._refusal, self._refused_at = f"{REFUSALS[code]}: {reason}", now
            elif code in AWAY:
                self._away = f"no broker answers: {reason}"
                self.times_all_down += 1
            logged = self._logged_by_name.get(name)
            if logged is not None and now - logged.logged_at < LOG_SECONDS:
                logged.repeats += 1
                return
            times = 1 if logged is None else logged.repeats + 1
            self._logged_by_name[name] = _LoggedError(now)
        log.warning("Kafka", end=self._end, code=name, reason=reason, times=times)

    def note_answer(self) -> None:
        """Note that a broker answers."""
        with self._lock:
            self._away = ""
            self._answered_at = monotonic()

    @property
    def refusal(self) -> str:
        """Return why we are let in nowhere, in words; empty when we are, or nobody answers.

        A connection that stood before goes on answering while others are refused: a refusal ends when it has not been
        heard for a while and somebody has answered since it was.
        """
        with self._lock:
            quiet = monotonic() - self._refused_at > REFUSED_SECONDS
            return "" if quiet and self._answered_at > self._refused_at else self._refusal

    @property
    def away(self) -> bool:
        """Return whether all brokers were away, and none has answered since."""
        return bool(self._away)

    def __str__(self) -> str:
        """Return what is wrong now, in words; empty when nothing is."""
        return self.refusal or self._away


ClientT = TypeVar("ClientT")

GROUP: Final = "nightjar"
COMMON_PROPERTIES: Final[Mapping[str, Any]] = {
    "client.id": "nightjar",
    "log_level": 0,  # errors come by a callback
    "reconnect.backoff.max.ms": 2000,  # how much later than a broker's return it is noticed
}
MEMBER_PROPERTIES: Final = ("group.instance.id", "partition.assignment.strategy")
"""Properties of members of a group only."""
# Errors that may pass by themselves, besides those that librdkafka calls retriable.
_TRANSIENT: Final = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT,
    KafkaError._RESOLVE, KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT,
    KafkaError._AUTHENTICATION, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.POLICY_VIOLATION,
})  # fmt: skip


def properties(address: Address, extra: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties for librdkafka: ours, those of the file, those of the address, each over those before."""
    from_address = {name: value for name, value in address.options.items() if "." in name}
    return {**COMMON_PROPERTIES, **own, **extra, **from_address, "bootstrap.servers": address.hosts}


def query_properties(config: Mapping[str, Any], client_errors: ClientErrors) -> dict[str, Any]:
    """Return properties of a client that asks questions about a consumer's group, and is no member of it."""
    common = {name: value for name, value in config.items() if name not in MEMBER_PROPERTIES}
    return common | {"error_cb": client_errors.note, "log_level": 0}


def make_client(factory: Callable[[dict[str, Any]], ClientT], config: dict[str, Any]) -> ClientT:
    """Make a client of librdkafka's. Raises AddressError where a property is wrong."""
    try:
        return factory(config)
    except KafkaException as error:
        raise AddressError(f"Kafka: {error.args[0].str()}") from None


def is_transient(error: KafkaError) -> bool:
    """Return whether the same record may be taken later."""
    return bool(error.retriable() or error.code() in _TRANSIENT)


ASK_SECONDS: Final = 5.0
"""Seconds that a broker may take to answer, and those between two rounds of questions."""
REPLACE_AFTER: Final = 2
"""Rounds in a row without an answer after which the monitor takes other clients: its own may be lost."""
TROUBLED_SECONDS: Final = 1.0
"""Seconds between two rounds while no broker answers, and that a leader has to tell where its partitions end."""
EARLIEST: Final = OffsetSpec.earliest()
LATEST: Final = OffsetSpec.latest()

OffsetAnswers = Mapping[TopicPartition, Future[Any]]
JournalsCallback = Callable[[Mapping[Partition, str | None]], None]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """View of the cluster: the answers of the brokers in the last round that they answered.

    Attributes
    ----------
    trouble : what is wrong with brokers or topics, in words; empty when nothing is.
    lag : messages between the committed offset and the end, by partition, of those that were asked for.
    end_offsets : the offset after the last message of those partitions.
    """

    trouble: str = ""
    lag: Mapping[Partition, int] = field(default_factory=dict)
    end_offsets: Mapping[Partition, int] = field(default_factory=dict)


class ClusterMonitor:
    """Thread with clients of its own that asks the brokers every few seconds, and whenever a journal is wanted.

    Parameters
    ----------
    config : properties of a client that asks for the consumer that takes the alerts.
    topics : names that the consumer subscribes to; those that begin with ``^`` are patterns, and not asked about.
    on_topic_recreated : is called, on the monitor's thread, with each topic of ours that was deleted and made again.

    Attributes
    ----------
    view : the answers of the brokers.
    answered_at : ``time.monotonic()`` of the last round in which they answered.
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
        # Ids of our topics since their partitions were assigned, the newest first: a topic made again has another one.
        self._ids: dict[str, list[str]] = {}
        self._epochs: Counter[str] = Counter()
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._client_errors = client_errors
        self._make_clients()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._assigned: tuple[Partition, ...] = ()
        self._lows: dict[Partition, int] = {}
        self._failures, self._due = 0, 0.0
        self._closing, self._first_round_done = threading.Event(), threading.Event()
        # Read by other threads without a lock: a view is replaced as a whole and never changed.
        self.view, self.answered_at = ClusterView(), 0.0
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def _make_clients(self) -> None:
        self._admin = make_client(AdminClient, dict(self._config))
        # Offsets as the tools of Kafka tell them: also those that an open transaction is about to move.
        self._client = make_client(Consumer, {**self._config, "isolation.level": "read_uncommitted"})

    def _replace_clients(self) -> None:
        """Take other clients; where none can be made, as a file of certificates is missing, those there are go on."""
        former = self._client
        try:
            self._make_clients()
        except AddressError as error:
            log.warning("no other client of Kafka can be made", end="source", reason=str(error))
        else:
            former.close()

    def wait_for_first_round(self, timeout: float) -> None:
        """Wait until the brokers have answered or refused us, or ``timeout`` seconds have passed."""
        self._first_round_done.wait(timeout)

    def set_partitions(self, partitions: Iterable[Partition]) -> None:
        """Ask about these partitions from now on."""
        self._assigned = tuple(partitions)

    def note_assigned(self, partitions: Iterable[Partition]) -> None:
        """Note that partitions were assigned: their topics are those that exist now."""
        topics = {topic for topic, _ in partitions}

        def note() -> None:
            for topic in topics:
                self._ids.pop(topic, None)
                self._epochs[topic] += 1
            self._ask_ids(topics)

        self._jobs.put(note)

    def _ask_ids(self, topics: set[str]) -> None:
        """Ask for the ids of topics without waiting: no journal is read later because a broker is silent."""
        for topic in topics:
            (answer,) = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ASK_SECONDS).values()
            answer.add_done_callback(partial(self._on_topic_id, topic, self._epochs[topic]))

    def _on_topic_id(self, topic: str, epoch: int, answer: Future[Any]) -> None:
        # Called on a thread of librdkafka's; the ids belong to the monitor's.
        self._jobs.put(lambda: self._note_id(topic, epoch, answer))

    def _note_id(self, topic: str, epoch: int, answer: Future[Any]) -> None:
        """Take in the id of a topic; one that was made again has another. Brokers that lag behind tell a former one."""
        if answer.exception() is not None or epoch != self._epochs[topic]:
            return  # asked before the partitions were assigned anew: the id may be the former topic's
        topic_id, ids = str(answer.result().topic_id), self._ids.setdefault(topic, [])
        if topic_id not in ids:
            ids.insert(0, topic_id)
            if len(ids) > 1:
                self._on_topic_recreated(topic)

    def read_journals(self, partitions: Iterable[Partition], answer: JournalsCallback) -> None:
        """Ask for the metadata of committed offsets; ``answer`` is called on another thread, once it is known."""
        assigned = tuple(partitions)
        self._jobs.put(lambda: self._read_journals(assigned, answer))

    def _read_journals(self, partitions: tuple[Partition, ...], answer: JournalsCallback) -> None:
        """Ask once; where nobody answers, the round that follows says so, and it is asked again after that."""
        try:
            positions = self._client.committed([TopicPartition(*partition) for partition in partitions], ASK_SECONDS)
        except KafkaException as error:
            self._client_errors.note(error.args[0])
            self._ask()
            self._closing.wait(TROUBLED_SECONDS)
            self.read_journals(partitions, answer)
        else:
            answer({(str(position.topic), position.partition): position.metadata for position in positions})

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._do_next()
            except Exception:  # without this thread no journal would be read, nor trouble told, and nobody would know
                log.exception("the monitor broke off a question")
        self._client.close()

    def _do_next(self) -> None:
        """Do what was handed over, or ask a round of questions when one is due."""
        try:
            job = self._jobs.get(timeout=max(0.0, self._due - monotonic()))
        except Empty:
            try:
                self._ask()
            finally:
                self._due = monotonic() + (TROUBLED_SECONDS if self._failures else ASK_SECONDS)
        else:
            if job is not None:
                job()

    def _ask(self) -> None:
        """Ask one round of questions; answers that do not come stay as they were told last."""
        try:
            trouble = self._missing_topics()
            self._client_errors.note_answer()
            self._failures, self.answered_at = 0, monotonic()
        except KafkaException as error:
            self._failures += 1
            self._poll_errors()
            view = self.view
            trouble = str(self._client_errors)
            if self._client_errors.refusal:
                self._first_round_done.set()
            if trouble or self._failures > 1:  # one failure may be one broker's
                view = ClusterView(trouble or f"no broker answers: {error.args[0].str()}", view.lag, view.end_offsets)
            self.view = view
            if self._failures % REPLACE_AFTER == 0:
                self._replace_clients()
            return
        self._poll_errors()
        end_offsets = self._end_offsets()
        self.view = ClusterView(trouble, self._lag(end_offsets), end_offsets)
        self._ask_ids({topic for topic, _ in self._assigned})
        self._first_round_done.set()

    def _poll_errors(self) -> None:
        """Let the client report its errors: it calls back only when it is asked for something."""
        self._client.poll(0)

    def _missing_topics(self) -> str:
        missing = []
        for topic in self._topics:
            metadata = self._client.list_topics(topic, ASK_SECONDS).topics[topic]
            if metadata.error is None:
                continue
            if metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(topic)
            else:
                self._client_errors.note(metadata.error)
        if not self._topics:
            self._client.list_topics(timeout=ASK_SECONDS)
        return f"waiting for topics that do not exist: {', '.join(missing)}" if missing else ""

    def _end_offsets(self) -> dict[Partition, int]:
        """Return the end of each partition, asked of all leaders at once; what a silent one leads is left out."""
        rounds = [self._offsets(spec) for spec in (EARLIEST, LATEST)]
        lows, highs = (dict(_answered_offsets(answers)) for answers in rounds)
        self._lows |= lows
        return {partition: end for partition, end in highs.items() if partition in self._lows}

    def _offsets(self, spec: Any) -> OffsetAnswers:
        specs = {TopicPartition(*partition): spec for partition in self._assigned}
        if not specs:
            return {}
        # As Kafka's tools tell them: with what open transactions wrote.
        answers: OffsetAnswers = self._admin.list_offsets(
            specs, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TROUBLED_SECONDS
        )
        return answers

    def _lag(self, end_offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Count messages behind the committed offset; of a partition without one, all that it holds."""
        if not end_offsets:
            return {}
        try:
            positions = self._client.committed([TopicPartition(*partition) for partition in end_offsets], ASK_SECONDS)
        except KafkaException:
            return dict(self.view.lag)
        lag = {}
        for position in positions:
            partition = (str(position.topic), position.partition)
            start = position.offset if position.offset >= 0 else self._lows[partition]
            lag[partition] = max(0, end_offsets[partition] - start)
        return lag

    def close(self) -> None:
        """Ask no more."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(2 * ASK_SECONDS)


def _answered_offsets(answers: OffsetAnswers) -> Iterator[tuple[Partition, int]]:
    """Yield the offset of each partition whose leader has answered."""
    wait(answers.values(), ASK_SECONDS)
    for partition, answer in answers.items():
        if answer.done() and answer.exception() is None and answer.result().offset >= 0:
            yield (str(partition.topic), partition.partition), int(answer.result().offset)
