"""Records to Kafka, acknowledged by every in-sync replica.

The producer is idempotent: its own retries never write a record twice. A worker that dies between the acknowledgement
and its commit publishes again; the record's key is then the same, so a compacted topic keeps one.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from service.stream.addresses import Address
from service.stream.kafka_config import is_transient, made, properties
from service.stream.messages import PermanentError, Record, TransientError

Verdict = PermanentError | TransientError | None
OWN: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    "message.timeout.ms": 30_000,
    "queue.buffering.max.kbytes": 65_536,
}
SLACK_SECONDS: Final = 5.0


class KafkaSink:
    """One topic."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self._topic = address.only().name
        self._config = properties(address, extra, OWN)
        self._producer = made(Producer, self._config)
        self._timeout = float(self._config["message.timeout.ms"]) / 1000 + SLACK_SECONDS

    def publish(self, records: Sequence[Record]) -> list[Verdict]:
        """Hand over and wait until each record is acknowledged, refused or too late."""
        verdicts: list[Verdict] = [TransientError("no answer in time") for _ in records]
        left = set(range(len(records)))

        def answered(number: int, error: KafkaError | None) -> None:  # in whichever thread polls
            verdicts[number] = None if error is None else _verdict(error)
            left.discard(number)

        for number, record in enumerate(records):
            if (refusal := self._produce(number, record, answered)) is not None:
                verdicts[number] = refusal
                left.discard(number)
        end = monotonic() + self._timeout
        while left and monotonic() < end:
            self._producer.poll(0.1)
        return verdicts

    def _produce(self, number: int, record: Record, answered: Any) -> Verdict:
        """Hand over one record; what comes back at once is a refusal."""
        end = monotonic() + self._timeout
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=list(record.headers),
                    on_delivery=lambda error, _: answered(number, error),
                )  # fmt: skip
            except BufferError:  # the queue is full: let it empty
                if monotonic() > end:
                    return TransientError("the producer's queue is full")
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].fatal():
                    self._renew()
                return _verdict(error.args[0])
            else:
                return None

    def _renew(self) -> None:
        """After a fatal error a producer takes nothing any more."""
        self._producer = Producer(self._config)

    def close(self) -> None:
        """Let go of the broker."""
        self._producer.flush(SLACK_SECONDS)


def _verdict(error: KafkaError) -> TransientError | PermanentError:
    kind = TransientError if error.fatal() or is_transient(error) else PermanentError
    return kind(error.str())
