"""Clients of Kafka: their properties, what they complain of, and one that asks the brokers how things stand.

``kafka://host:9092,host:9092/topic,topic?group=nightjar``: every further parameter with a dot in its name is a property
of librdkafka (``security.protocol=SASL_SSL``); credentials belong into the file of the setting ``kafka_config``.

A client tries on by itself and says each time that it failed, but never that it works again: who has an answer of a
broker says so (:meth:`Complaints.answered`). Complaints stand in the log once a minute, whatever their number, and are
told in words to the probes.

A question about the group's topics may take seconds when a broker is silent. The consumer that takes alerts therefore
asks none: a client and a thread apart do (:class:`Watch`), never on the way of alerts, and it reads what was answered
last. Whoever owns a partition anew has its journal read there, too.
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

from service.stream.addresses import Address, AddressError
from service.stream.kafka.offsets import Partition

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
class _Told:
    at: float
    since: int = 0


class Complaints:
    """Complaints of the clients of one end. Safe to use from several threads.

    Parameters
    ----------
    end : whose clients they are, for the log.

    Attributes
    ----------
    times_away : how often a client said that all its brokers are away; never falls.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._told: dict[str, _Told] = {}
        self._refusal, self._refused_at, self._answered_at = "", 0.0, 0.0
        self._away = ""
        self.times_away = 0

    def note(self, error: KafkaError) -> None:
        """Take in what a client says; log it unless the same was logged within a minute."""
        code, name, reason, now = error.code(), error.name(), error.str(), monotonic()
        with self._lock:
            if code in REFUSALS:
                self._refusal, self._refused_at = f"{REFUSALS[code]}: {reason}", now
            elif code in AWAY:
                self._away = f"no broker answers: {reason}"
                self.times_away += 1
            told = self._told.get(name)
            if told is not None and now - told.at < LOG_SECONDS:
                told.since += 1
                return
            times = 1 if told is None else told.since + 1
            self._told[name] = _Told(now)
        log.warning("Kafka", end=self._end, code=name, reason=reason, times=times)

    def answered(self) -> None:
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
COMMON: Final[Mapping[str, Any]] = {
    "client.id": "nightjar",
    "log_level": 0,  # errors come by a callback
    "reconnect.backoff.max.ms": 2000,  # how much later than a broker's return it is noticed
}
MEMBER: Final = ("group.instance.id", "partition.assignment.strategy")
"""Properties that are a member's alone."""
# What stops being true by itself. Everything that librdkafka calls retriable is added to it.
_TRANSIENT: Final = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT,
    KafkaError._RESOLVE, KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT,
    KafkaError._AUTHENTICATION, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.POLICY_VIOLATION,
})  # fmt: skip


def properties(address: Address, extra: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties for librdkafka: ours, those of the file, those of the address, each over those before."""
    given = {name: value for name, value in address.options.items() if "." in name}
    return {**COMMON, **own, **extra, **given, "bootstrap.servers": address.hosts}


def asking(config: Mapping[str, Any], complaints: Complaints) -> dict[str, Any]:
    """Return properties of a client that asks questions about a consumer's group, and is no member of it."""
    kept = {name: value for name, value in config.items() if name not in MEMBER}
    return kept | {"error_cb": complaints.note, "log_level": 0}


def made(client: Callable[[dict[str, Any]], ClientT], config: dict[str, Any]) -> ClientT:
    """Make a client of librdkafka's; AddressError where a property is wrong."""
    try:
        return client(config)
    except KafkaException as error:
        raise AddressError(f"Kafka: {error.args[0].str()}") from None


def is_transient(error: KafkaError) -> bool:
    """Return whether the same record may be taken later."""
    return bool(error.retriable() or error.code() in _TRANSIENT)


ASK_SECONDS: Final = 5.0
"""Seconds that a broker may take to answer, and those between two rounds of questions."""
RENEW_AFTER: Final = 2
"""Rounds in a row without an answer after which the watch takes other clients: its own may be lost."""
TROUBLED_SECONDS: Final = 1.0
"""Seconds between two rounds while no broker answers, and that a leader has to tell where its partitions end."""
EARLIEST: Final = OffsetSpec.earliest()
LATEST: Final = OffsetSpec.latest()

Answers = Mapping[TopicPartition, Future[Any]]
Journals = Callable[[Mapping[Partition, str | None]], None]


@dataclass(frozen=True, slots=True)
class View:
    """Answers of the brokers in the last round that they answered.

    Attributes
    ----------
    trouble : what is wrong with brokers or topics, in words; empty when nothing is.
    lag : messages between the committed offset and the end, by partition, of those that were asked for.
    ends : the offset after the last message of those partitions.
    """

    trouble: str = ""
    lag: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)


class Watch:
    """Client that asks the brokers every few seconds, and whenever a journal is wanted.

    Parameters
    ----------
    config : properties of a client that asks for the consumer that takes the alerts.
    topics : what it subscribes to; names that begin with ``^`` are patterns, of which nothing is asked.
    made_again : is told, on another thread, each topic of our partitions that was deleted and made again.

    Attributes
    ----------
    view : the answers of the brokers.
    answered_at : ``time.monotonic()`` of the last round in which they answered.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Iterable[str],
        complaints: Complaints,
        made_again: Callable[[str], None],
    ) -> None:
        self._made_again = made_again
        self._config = dict(config)
        self._ids: dict[str, list[str]] = {}  # of the topics of our partitions since these became ours, the last first
        self._lives: Counter[str] = Counter()
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._complaints = complaints
        self._begin_clients()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._assigned: tuple[Partition, ...] = ()
        self._lows: dict[Partition, int] = {}
        self._failures, self._due = 0, 0.0
        self._closing, self._asked = threading.Event(), threading.Event()
        self.view, self.answered_at = View(), 0.0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _begin_clients(self) -> None:
        self._admin = made(AdminClient, dict(self._config))
        # Offsets as the tools of Kafka tell them: also those that an open transaction is about to move.
        self._client = made(Consumer, {**self._config, "isolation.level": "read_uncommitted"})

    def _renew(self) -> None:
        """Take other clients; where none can be made, as a file of certificates is missing, those there are go on."""
        former = self._client
        try:
            self._begin_clients()
        except AddressError as error:
            log.warning("no other client of Kafka can be made", end="source", reason=str(error))
        else:
            former.close()

    def first_round(self, timeout: float) -> None:
        """Wait until the brokers have answered, or told that they never will, or some seconds have passed."""
        self._asked.wait(timeout)

    def look_at(self, partitions: Iterable[Partition]) -> None:
        """Ask about these partitions from now on."""
        self._assigned = tuple(partitions)

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Note that partitions are ours anew: what their topics are now is what is read."""
        topics = {topic for topic, _ in partitions}

        def note() -> None:
            for topic in topics:
                self._ids.pop(topic, None)
                self._lives[topic] += 1
            self._ask_ids(topics)

        self._jobs.put(note)

    def _ask_ids(self, topics: set[str]) -> None:
        """Ask for the ids of topics without waiting: no journal is read later because a broker is silent."""
        for topic in topics:
            (asked,) = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ASK_SECONDS).values()
            asked.add_done_callback(partial(self._told_id, topic, self._lives[topic]))

    def _told_id(self, topic: str, life: int, told: Future[Any]) -> None:
        self._jobs.put(lambda: self._note_id(topic, life, told))

    def _note_id(self, topic: str, life: int, told: Future[Any]) -> None:
        """Take in the id of a topic; one that was made again has another. Brokers that lag behind tell a former one."""
        if told.exception() is not None or life != self._lives[topic]:
            return
        found, known = str(told.result().topic_id), self._ids.setdefault(topic, [])
        if found not in known:
            known.insert(0, found)
            if len(known) > 1:
                self._made_again(topic)

    def read_journals(self, partitions: Iterable[Partition], answer: Journals) -> None:
        """Ask for the metadata of committed offsets; ``answer`` is called on another thread, once it is known."""
        wanted = tuple(partitions)
        self._jobs.put(lambda: self._read_journals(wanted, answer))

    def _read_journals(self, partitions: tuple[Partition, ...], answer: Journals) -> None:
        """Ask once; where nobody answers, the round that follows says so, and it is asked again after that."""
        try:
            found = self._client.committed([TopicPartition(*partition) for partition in partitions], ASK_SECONDS)
        except KafkaException as error:
            self._complaints.note(error.args[0])
            self._ask()
            self._closing.wait(TROUBLED_SECONDS)
            self.read_journals(partitions, answer)
        else:
            answer({(str(one.topic), one.partition): one.metadata for one in found})

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._do_next()
            except Exception:  # without this thread no journal would be read, nor trouble told, and nobody would know
                log.exception("the watch broke off a question")
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
            self._complaints.answered()
            self._failures, self.answered_at = 0, monotonic()
        except KafkaException as error:
            self._failures += 1
            self._hear()
            told = self.view
            heard = str(self._complaints)
            if self._complaints.refusal:
                self._asked.set()
            if heard or self._failures > 1:  # one failure may be one broker's
                told = View(heard or f"no broker answers: {error.args[0].str()}", told.lag, told.ends)
            self.view = told
            if self._failures % RENEW_AFTER == 0:
                self._renew()
            return
        self._hear()
        ends = self._ends()
        self.view = View(trouble, self._lag(ends), ends)
        self._ask_ids({topic for topic, _ in self._assigned})
        self._asked.set()

    def _hear(self) -> None:
        """Let the client say what it has to complain of."""
        self._client.poll(0)

    def _missing_topics(self) -> str:
        missing = []
        for topic in self._topics:
            described = self._client.list_topics(topic, ASK_SECONDS).topics[topic]
            if described.error is None:
                continue
            if described.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(topic)
            else:
                self._complaints.note(described.error)
        if not self._topics:
            self._client.list_topics(timeout=ASK_SECONDS)
        return f"waiting for topics that do not exist: {', '.join(missing)}" if missing else ""

    def _ends(self) -> dict[Partition, int]:
        """Return the end of each partition, asked of all leaders at once; what a silent one leads is left out."""
        asked = [self._offsets(spec) for spec in (EARLIEST, LATEST)]
        lows, ends = (dict(_told(answers)) for answers in asked)
        self._lows |= lows
        return {partition: end for partition, end in ends.items() if partition in self._lows}

    def _offsets(self, spec: Any) -> Answers:
        wanted = {TopicPartition(*partition): spec for partition in self._assigned}
        if not wanted:
            return {}
        answers: Answers = self._admin.list_offsets(  # as Kafka's tools tell them: with what open transactions wrote
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TROUBLED_SECONDS
        )
        return answers

    def _lag(self, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Count messages behind the committed offset; of a partition without one, all that it holds."""
        if not ends:
            return {}
        try:
            found = self._client.committed([TopicPartition(*partition) for partition in ends], ASK_SECONDS)
        except KafkaException:
            return dict(self.view.lag)
        lag = {}
        for one in found:
            partition = (str(one.topic), one.partition)
            lag[partition] = max(0, ends[partition] - (one.offset if one.offset >= 0 else self._lows[partition]))
        return lag

    def close(self) -> None:
        """Ask no more."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join(2 * ASK_SECONDS)


def _told(answers: Answers) -> Iterator[tuple[Partition, int]]:
    """Yield the offset of each partition whose leader has answered."""
    wait(answers.values(), ASK_SECONDS)
    for asked, answer in answers.items():
        if answer.done() and answer.exception() is None and answer.result().offset >= 0:
            yield (str(asked.topic), asked.partition), int(answer.result().offset)
