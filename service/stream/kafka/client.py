"""Clients of Kafka: their properties, and what they complain of.

``kafka://host:9092,host:9092/topic,topic?group=nightjar``: every further parameter with a dot in its name is a property
of librdkafka (``security.protocol=SASL_SSL``); credentials belong into the file of the setting ``kafka_config``.

A client tries on by itself and says each time that it failed, but never that it works again: who has an answer of a
broker says so (:meth:`Complaints.answered`). Complaints stand in the log once a minute, whatever their number, and are
told in words to the probes.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException

from service.stream.addresses import Address, AddressError

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
    return error.retriable() or error.code() in _TRANSIENT
