"""Records to Kafka, acknowledged by every in-sync replica.

The producer is idempotent: its own retries never write a record twice. A worker that dies between the acknowledgement
and its commit publishes again; the record's key is then the same, so a compacted topic keeps one.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from service.stream.addresses import Address
from service.stream.kafka.client import Complaints, is_transient, made, properties
from service.stream.messages import PermanentError, Record, TransientError

Verdict = PermanentError | TransientError | None
Answered = Callable[[int, KafkaError | None], None]
OWN: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    "message.timeout.ms": 30_000,
    "queue.buffering.max.kbytes": 65_536,
    "message.max.bytes": (4 << 20)
    + (64 << 10),  # a letter is what the source takes, and headers; brokers may take less
}
SLACK_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 3.0


class DefunctError(TransientError):
    """The producer takes nothing any more; another one may."""


class KafkaSink:
    """One topic."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self._topic = address.only().name
        self.complaints = Complaints("sink")
        self._config = {**properties(address, extra, OWN), "error_cb": self.complaints.note}
        self._producer = made(Producer, self._config)
        self._return = Return(self.complaints)

    def publish(self, records: Sequence[Record]) -> list[Verdict]:
        """Hand over and wait until each record is acknowledged, refused or too late."""
        verdicts = hand_over(self._producer, self._topic, records, patience(self._config))
        if any(isinstance(verdict, DefunctError) for verdict in verdicts):
            self._producer = Producer(self._config)
        if any(verdict is None for verdict in verdicts):
            self.complaints.answered()
        return verdicts

    def refusal(self) -> str:
        """Return why the cluster lets us in nowhere, in words."""
        return refusal_of(self._producer, self._topic, self.complaints)

    @property
    def trouble(self) -> str:
        """Complaints of the client since a broker answered last."""
        self._return.look(self._producer, self._topic)
        return str(self.complaints)

    def close(self) -> None:
        """Let go of the broker."""
        self._producer.flush(SLACK_SECONDS)


class Return:
    """Return of brokers that were away, asked for by a thread: a producer that writes nothing never learns of it."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._asking = threading.Lock()

    def look(self, producer: Producer, topic: str) -> None:
        """Ask, without waiting, where brokers are away and nobody asks already."""
        if self._complaints.away and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, args=(producer, topic), name="sink", daemon=True).start()

    def _ask(self, producer: Producer, topic: str) -> None:
        try:
            producer.list_topics(topic, REFUSAL_SECONDS)
            self._complaints.answered()
        except KafkaException:
            pass  # it is asked again when somebody wants to know
        finally:
            self._asking.release()


def refusal_of(producer: Producer, topic: str, complaints: Complaints) -> str:
    """Return why a cluster lets us in nowhere, in words; empty when it does, or nobody answers."""
    end = monotonic() + REFUSAL_SECONDS
    while not complaints.refusal and monotonic() < end:
        try:
            producer.list_topics(topic, 1.0)
        except KafkaException:
            producer.poll(0)  # lets the client say why
        else:
            break
    return complaints.refusal


def patience(config: Mapping[str, Any]) -> float:
    """Return seconds after which every record has been answered."""
    return float(config["message.timeout.ms"]) / 1000 + SLACK_SECONDS


def hand_over(producer: Producer, topic: str, records: Sequence[Record], timeout: float) -> list[Verdict]:
    """Hand records over and wait for the verdict on each."""
    verdicts: list[Verdict] = [TransientError("no answer in time") for _ in records]
    left = set(range(len(records)))

    def answered(number: int, error: KafkaError | None) -> None:  # in whichever thread polls
        verdicts[number] = None if error is None else verdict_of(error)
        left.discard(number)

    for number, record in enumerate(records):
        if (refusal := _produce(producer, topic, (number, record), answered, timeout)) is not None:
            verdicts[number] = refusal
            left.discard(number)
    end = monotonic() + timeout
    while left and monotonic() < end:
        producer.poll(0.1)
    return verdicts


def _produce(
    producer: Producer, topic: str, numbered: tuple[int, Record], answered: Answered, timeout: float
) -> Verdict:
    """Hand over one record; what comes back at once is a refusal."""
    (number, record), end = numbered, monotonic() + timeout
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers),
                on_delivery=lambda error, _: answered(number, error),
            )  # fmt: skip
        except BufferError:  # the queue is full: let it empty
            if monotonic() > end:
                return TransientError("the producer's queue is full")
            producer.poll(0.1)
        except KafkaException as error:
            return verdict_of(error.args[0])
        else:
            return None


def verdict_of(error: KafkaError) -> TransientError | PermanentError:
    """Return what an error of the broker or the client says about a record."""
    if error.fatal():
        return DefunctError(error.str())
    return (TransientError if is_transient(error) else PermanentError)(error.str())
