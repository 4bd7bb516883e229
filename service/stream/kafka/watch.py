"""Answers of the brokers about the group's topics, asked by a client and a thread apart, never on the way of alerts.

A question may take seconds when a broker is silent. The consumer that takes alerts therefore asks none: it reads what
was answered last. Whoever owns a partition anew has its journal read here, too.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from service.stream.kafka.client import Complaints, made
from service.stream.kafka.offsets import Partition

ASK_SECONDS: Final = 5.0
"""Seconds that a broker may take to answer, and those between two rounds of questions."""
TROUBLED_SECONDS: Final = 1.0
"""The time between two rounds while nobody answers."""

log = structlog.get_logger(__name__)
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
    """

    def __init__(self, config: Mapping[str, Any], topics: Iterable[str], complaints: Complaints) -> None:
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._complaints = complaints
        # Offsets as the tools of Kafka tell them: also those that an open transaction is about to move.
        self._client = made(Consumer, {**config, "isolation.level": "read_uncommitted"})
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._assigned: tuple[Partition, ...] = ()
        self._lows: dict[Partition, int] = {}
        self._failures = 0
        self._closing, self._asked = threading.Event(), threading.Event()
        self.view = View()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def first_round(self, timeout: float) -> None:
        """Wait until the brokers have answered, or told that they never will, or some seconds have passed."""
        self._asked.wait(timeout)

    def look_at(self, partitions: Iterable[Partition]) -> None:
        """Ask about these partitions from now on."""
        self._assigned = tuple(partitions)

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
        due = 0.0
        while not self._closing.is_set():
            try:
                job = self._jobs.get(timeout=max(0.0, due - monotonic()))
            except Empty:
                self._ask()
                due = monotonic() + (TROUBLED_SECONDS if self._failures else ASK_SECONDS)
                continue
            if job is not None:
                job()
        self._client.close()

    def _ask(self) -> None:
        """Ask one round of questions; answers that do not come stay as they were told last."""
        try:
            trouble = self._missing_topics()
            self._complaints.answered()
            self._failures = 0
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
            return
        self._hear()
        ends = self._ends()
        self.view = View(trouble, self._lag(ends), ends)
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
        """Return the end of each partition; one whose leader is silent is left out, and the rest when it costs time."""
        ends: dict[Partition, int] = {}
        give_up = monotonic() + ASK_SECONDS
        for partition in self._assigned:
            if self._closing.is_set() or monotonic() > give_up or not self._jobs.empty():
                break
            try:
                low_high = self._client.get_watermark_offsets(TopicPartition(*partition), timeout=TROUBLED_SECONDS)
            except KafkaException:
                continue
            if low_high:
                ends[partition] = low_high[1]
                self._lows[partition] = low_high[0]
        return ends

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
