"""Sink that writes records to Kafka, acknowledged by every in-sync replica.

The producer is idempotent: its retries never write a record twice. A worker that dies between the acknowledgement and
its commit publishes the record again, with the same key, so that a compacted topic keeps one of them.
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
    # Larger than the default limit of a topic, so that the topic rejects a record and not the producer.
    "message.max.bytes": 64 << 20,
}
SLACK_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
"""Maximum duration of one poll for delivery reports, in seconds."""
LOCK_WAIT_SECONDS: Final = 0.005
"""Interval at which a waiting thread checks whether another one still polls, in seconds."""
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
        self._topic = address.check_options().name
        self.client_errors = ClientErrors("sink")
        self._config = {**properties(address, extra, PRODUCER_PROPERTIES), "error_cb": self.client_errors.record}
        self._producer = make_client(Producer, self._config)
        self._poll_lock, self._closing = threading.Lock(), threading.Event()
        self._topic_probe = TopicProbe(self._config, [self._topic], self.client_errors)
        self._undelivered_since: float | None = None

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Send records and wait until each is acknowledged, rejected or timed out. Raises FatalError."""
        numbered = [(self._topic, record) for record in records]
        started = monotonic()
        timeout = delivery_timeout(self._config)
        reports = produce_and_wait(self._producer, numbered, timeout, self._poll_lock, self._closing)
        self.client_errors.check()
        if not reports or any(report is None for report in reports):
            self._undelivered_since = None
            self.client_errors.record_response()
        else:
            self._check_undelivered(started)
        return reports

    def _check_undelivered(self, started: float) -> None:
        """Raise FatalError if only this client has been unable to reach the brokers for :data:`LOST_SECONDS`."""
        self._undelivered_since = self._undelivered_since or started
        waited = monotonic() - self._undelivered_since
        if waited > LOST_SECONDS and not self.client_errors.refusal:
            if is_reachable(self._config, self._topic, self.client_errors):
                raise FatalError(f"the producer has delivered nothing for {waited:.0f} s although the brokers answer")
            self._undelivered_since = None  # an outage: measure again after it

    def check_access(self) -> str:
        """Return why the cluster rejects this client; empty if it accepts it, or does not respond."""
        return access_error(self._producer, self._topic, self.client_errors)

    @property
    def error(self) -> str:
        """Errors of the client since the last response of a broker, or missing topics; empty without."""
        self._topic_probe.start()
        return str(self.client_errors) or self._topic_probe.missing

    def close(self) -> None:
        """Close the producer; undelivered records are discarded, as their batches were given back."""
        self._closing.set()
        self._producer.purge()
        self._producer.flush(CLOSE_SECONDS)


class TopicProbe:
    """Checks on a thread whether brokers respond and topics exist, which an idle producer does not notice.

    The first call of :meth:`start` checks, and further calls while there is an error. The check creates topics if the
    brokers are configured to create them automatically.

    Attributes
    ----------
    missing : error that names the missing topics; empty if all exist.
    """

    def __init__(self, config: Mapping[str, Any], topics: Sequence[str], client_errors: ClientErrors) -> None:
        self._config, self._topics, self._client_errors = config, topics, client_errors
        self._running, self._checked, self.missing = threading.Lock(), False, ""

    def start(self) -> None:
        """Start a check if one is needed and none is running; does not wait for it."""
        needed = not self._checked or self.missing or self._client_errors.unreachable
        if needed and self._running.acquire(blocking=False):
            threading.Thread(target=self._check, name="sink", daemon=True).start()

    def _check(self) -> None:
        try:
            client = make_client(AdminClient, query_properties(self._config, self._client_errors))
            unknown = _unknown_topics(client, self._topics)
            if unknown:  # automatic creation takes a short time
                sleep(RECHECK_SECONDS)
                unknown = _unknown_topics(client, self._topics)
            self._client_errors.record_response()
            self.missing = f"waiting for topics that do not exist: {', '.join(unknown)}" if unknown else ""
            self._checked = True
        except (KafkaException, AddressError):
            pass  # the errors of the client give the reason
        finally:
            self._running.release()


def _unknown_topics(client: AdminClient, topics: Sequence[str]) -> list[str]:
    """Return the topics that do not exist, which brokers may then create automatically. Raises KafkaException."""
    metadata = [client.list_topics(topic, REACHABLE_SECONDS).topics[topic] for topic in topics]
    return [str(topic.topic) for topic in metadata if topic.error is not None and topic.error.code() in UNKNOWN_TOPIC]


def access_error(producer: Producer, topic: str, client_errors: ClientErrors) -> str:
    """Return why a cluster rejects a client; empty if it accepts it, or no broker responds."""
    end = monotonic() + REFUSAL_SECONDS
    while not client_errors.refusal and monotonic() < end:
        try:
            producer.list_topics(topic, 1.0)
        except KafkaException:
            producer.poll(0)  # a client calls its error callback only while polled
        else:
            break
    return client_errors.refusal


def delivery_timeout(config: Mapping[str, Any]) -> float:
    """Return the seconds after which every record was delivered or has failed."""
    return float(config["message.timeout.ms"]) / 1000 + SLACK_SECONDS


def produce_and_wait(
    producer: Producer,
    records: Sequence[tuple[str, Record]],
    timeout: float,
    poll_lock: threading.Lock,
    closing: threading.Event | None = None,
) -> list[DeliveryReport]:
    """Produce records to their topics, and wait for all delivery reports, or until ``closing`` is set.

    If several threads wait, the one that holds ``poll_lock`` polls the producer for all of them. The producer passes a
    delivery report to any thread that polls: if all threads polled, one could keep polling for a report that another
    thread has received.
    """
    reports: list[DeliveryReport] = [TransientError("no answer in time") for _ in records]
    pending, all_reported = set(range(len(records))), threading.Event()

    # Called in the thread that polls; each statement is atomic in CPython, so no lock is needed.
    def on_delivery(number: int, error: KafkaError | None) -> None:
        reports[number] = None if error is None else delivery_report(error, records[number][0])
        pending.discard(number)
        if not pending:
            all_reported.set()

    for number, (topic, record) in enumerate(records):
        if (refusal := _produce(producer, topic, (number, record), on_delivery, timeout)) is not None:
            reports[number] = refusal
            pending.discard(number)
    end = monotonic() + timeout
    while pending and monotonic() < end and not (closing is not None and closing.is_set()):
        if poll_lock.acquire(blocking=False):
            try:
                producer.poll(POLL_SECONDS)
            finally:
                poll_lock.release()
        else:
            all_reported.wait(LOCK_WAIT_SECONDS)
    return reports


def _produce(
    producer: Producer, topic: str, numbered: tuple[int, Record], on_delivery: DeliveryCallback, timeout: float
) -> DeliveryReport:
    """Produce one record; return an error that is known at once, else None."""
    (number, record), end = numbered, monotonic() + timeout
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers),
                on_delivery=lambda error, _: on_delivery(number, error),
            )  # fmt: skip
        except BufferError:  # the queue is full; polling for delivery reports frees it
            if monotonic() > end:
                return TransientError("the producer's queue is full")
            with suppress(KafkaException):
                producer.poll(0.1)
        except KafkaException as error:
            return delivery_report(error.args[0], topic)
        except Exception as error:  # any error of the client on unusual bytes must affect this record only
            log.exception("failed to hand a record to the client", topic=topic)
            return PermanentError(f"{type(error).__name__}: {error}"[:500])
        else:
            return None


def delivery_report(error: KafkaError, topic: str) -> TransientError | PermanentError:
    """Return the delivery report for an error of the broker or the client; its text names the topic."""
    return kafka_report(error.name(), error.fatal(), error.str(), topic)
