"""Records to Kafka, acknowledged by every in-sync replica.

The producer is idempotent: its own retries never write a record twice. A worker that dies between the acknowledgement
and its commit publishes again; the record's key is then the same, so a compacted topic keeps one.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.broker_errors import kafka_report
from nightjar_alerts.service.stream.kafka.client import (
    REACHABLE_SECONDS,
    ClientErrors,
    is_reachable,
    make_client,
    properties,
    query_properties,
)
from nightjar_alerts.service.stream.messages import (
    DeliveryReport,
    FatalError,
    PermanentError,
    Record,
    TransientError,
)

log = structlog.get_logger(__name__)

DeliveryCallback = Callable[[int, KafkaError | None], None]
PRODUCER_PROPERTIES: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    "message.timeout.ms": 30_000,
    "queue.buffering.max.kbytes": 65_536,
    # Larger than any topic takes by default: a record is refused by its topic, and not by its producer.
    "message.max.bytes": 64 << 20,
}
SLACK_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
"""Seconds that a producer is polled at a time for delivery reports, unless some come before."""
LOCK_WAIT_SECONDS: Final = 0.005
"""Seconds after which a thread that waits for delivery reports checks whether another one still polls."""
REFUSAL_SECONDS: Final = 3.0
CLOSE_SECONDS: Final = 1.0
RECHECK_SECONDS: Final = 1.0
"""Seconds after which topics that do not exist are checked again."""
UNKNOWN_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
LOST_SECONDS: Final = 75.0
"""Seconds without a delivered record, while brokers respond to other clients, after which the process ends."""


class KafkaSink:
    """Sink that writes to one topic."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self._topic = address.only().name
        self.client_errors = ClientErrors("sink")
        self._config = {**properties(address, extra, PRODUCER_PROPERTIES), "error_cb": self.client_errors.note}
        self._producer = make_client(Producer, self._config)
        self._poll_lock, self._closing = threading.Lock(), threading.Event()
        self._topic_probe = TopicProbe(self._config, [self._topic], self.client_errors)
        self._undelivered_since: float | None = None

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Hand over and wait until each record is acknowledged, refused or too late. Raises FatalError."""
        numbered = [(self._topic, record) for record in records]
        started = monotonic()
        timeout = delivery_timeout(self._config)
        reports = produce_and_wait(self._producer, numbered, timeout, self._poll_lock, self._closing)
        self.client_errors.check()
        if not reports or any(report is None for report in reports):
            self._undelivered_since = None
            self.client_errors.note_answer()
        else:
            self._check_undelivered(started)
        return reports

    def _check_undelivered(self, started: float) -> None:
        """Raise FatalError when only this client has been unable to reach the brokers for a while."""
        self._undelivered_since = self._undelivered_since or started
        waited = monotonic() - self._undelivered_since
        if waited > LOST_SECONDS and not self.client_errors.refusal:
            if is_reachable(self._config, self._topic, self.client_errors):
                raise FatalError(f"the producer has delivered nothing for {waited:.0f} s although the brokers answer")
            self._undelivered_since = None  # an outage: the time is measured again after it

    def check_access(self) -> str:
        """Return the reason for which the cluster refuses this client."""
        return access_error(self._producer, self._topic, self.client_errors)

    @property
    def error(self) -> str:
        """Errors of the client since the last response of a broker; topics that do not exist."""
        self._topic_probe.start()
        return str(self.client_errors) or self._topic_probe.missing

    def close(self) -> None:
        """Discard undelivered records: their batches were given back, and will be published again."""
        self._closing.set()
        self._producer.purge()
        self._producer.flush(CLOSE_SECONDS)


class TopicProbe:
    """Probe that checks, on a thread, whether brokers answer and topics exist: an idle producer does not notice it.

    The first check is made at the first call of :meth:`start`, further ones while something is wrong. Where brokers
    create topics automatically, the first check does so.

    Attributes
    ----------
    missing : names the topics that do not exist; empty if all do.
    """

    def __init__(self, config: Mapping[str, Any], topics: Sequence[str], client_errors: ClientErrors) -> None:
        self._config, self._topics, self._client_errors = config, topics, client_errors
        self._running, self._checked, self.missing = threading.Lock(), False, ""

    def start(self) -> None:
        """Check, without waiting, where something is or may be wrong and no check runs."""
        wrong = not self._checked or self.missing or self._client_errors.unreachable
        if wrong and self._running.acquire(blocking=False):
            threading.Thread(target=self._check, name="sink", daemon=True).start()

    def _check(self) -> None:
        try:
            client = make_client(AdminClient, query_properties(self._config, self._client_errors))
            unknown = _unknown_topics(client, self._topics)
            if unknown:  # one that is created automatically exists soon
                sleep(RECHECK_SECONDS)
                unknown = _unknown_topics(client, self._topics)
            self._client_errors.note_answer()
            self.missing = f"waiting for topics that do not exist: {', '.join(unknown)}" if unknown else ""
            self._checked = True
        except (KafkaException, AddressError):
            pass  # as before: the client's errors say what is wrong
        finally:
            self._running.release()


def _unknown_topics(client: AdminClient, topics: Sequence[str]) -> list[str]:
    """Return topics that do not exist; brokers that may create topics create them. Raises KafkaException."""
    found = [client.list_topics(topic, REACHABLE_SECONDS).topics[topic] for topic in topics]
    return [str(one.topic) for one in found if one.error is not None and one.error.code() in UNKNOWN_TOPIC]


def access_error(producer: Producer, topic: str, client_errors: ClientErrors) -> str:
    """Return why a cluster rejects a client; empty if it accepts it, or no broker responds."""
    end = monotonic() + REFUSAL_SECONDS
    while not client_errors.refusal and monotonic() < end:
        try:
            producer.list_topics(topic, 1.0)
        except KafkaException:
            producer.poll(0)  # a client calls its error callback only when it is polled
        else:
            break
    return client_errors.refusal


def delivery_timeout(config: Mapping[str, Any]) -> float:
    """Return seconds after which every record has been delivered or refused."""
    return float(config["message.timeout.ms"]) / 1000 + SLACK_SECONDS


def produce_and_wait(
    producer: Producer,
    records: Sequence[tuple[str, Record]],
    timeout: float,
    poll_lock: threading.Lock,
    closing: threading.Event | None = None,
) -> list[DeliveryReport]:
    """Hand records over, each with its topic, and wait for the delivery report of each, or until ``closing`` is set.

    Of several threads that wait, the one that holds ``poll_lock`` polls the producer for all of them. The producer
    hands a delivery report to whichever thread polls: if all polled, one might go on polling for a report that another
    was given.
    """
    reports: list[DeliveryReport] = [TransientError("no answer in time") for _ in records]
    unanswered, all_answered = set(range(len(records))), threading.Event()

    # Called in whichever thread polls; each statement is one step of the interpreter, so that no lock is needed.
    def on_delivery(number: int, error: KafkaError | None) -> None:
        reports[number] = None if error is None else delivery_report(error, records[number][0])
        unanswered.discard(number)
        if not unanswered:
            all_answered.set()

    for number, (topic, record) in enumerate(records):
        if (refusal := _produce(producer, topic, (number, record), on_delivery, timeout)) is not None:
            reports[number] = refusal
            unanswered.discard(number)
    end = monotonic() + timeout
    while unanswered and monotonic() < end and not (closing is not None and closing.is_set()):
        if poll_lock.acquire(blocking=False):
            try:
                producer.poll(POLL_SECONDS)
            finally:
                poll_lock.release()
        else:
            all_answered.wait(LOCK_WAIT_SECONDS)
    return reports


def _produce(
    producer: Producer, topic: str, numbered: tuple[int, Record], on_delivery: DeliveryCallback, timeout: float
) -> DeliveryReport:
    """Hand over one record; an error that is returned at once is final for this call."""
    (number, record), end = numbered, monotonic() + timeout
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers),
                on_delivery=lambda error, _: on_delivery(number, error),
            )  # fmt: skip
        except BufferError:  # the queue is full, and a record leaves it only when its delivery report is polled
            if monotonic() > end:
                return TransientError("the producer's queue is full")
            with suppress(KafkaException):
                producer.poll(0.1)
        except KafkaException as error:
            return delivery_report(error.args[0], topic)
        except Exception as error:  # whatever the client makes of strange bytes must cost this record alone
            log.exception("failed to hand a record to the client", topic=topic)
            return PermanentError(f"{type(error).__name__}: {error}"[:500])
        else:
            return None


def delivery_report(error: KafkaError, topic: str) -> TransientError | PermanentError:
    """Return the report on a record for an error of the broker or the client. Names the topic."""
    return kafka_report(error.name(), error.fatal(), error.str(), topic)
