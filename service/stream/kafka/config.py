"""Kafka's addresses and properties.

``kafka://host:9092,host:9092/topic,topic?group=nightjar``: every further parameter with a dot in its name is a property
of librdkafka (``security.protocol=SASL_SSL``); credentials belong into the file of the setting ``kafka_config``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from service.stream.addresses import Address, AddressError
from service.stream.kafka.complaints import Complaints

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
    return error.retriable() or error.code() in _TRANSIENT
