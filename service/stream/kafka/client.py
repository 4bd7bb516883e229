"""Kafka clients: their properties and their errors.

In an address ``kafka://host:9092,host:9092/topic,topic?group=nightjar``, every further parameter with a dot in its name
is a librdkafka property (``security.protocol=SASL_SSL``); credentials belong in the file of the setting
``kafka_config``.

A client retries by itself and reports each failure, but not its recovery: code that gets a response from a broker
records it (:meth:`ClientErrors.record_response`). Each error is logged at most once a minute and shown by the probes.

Clients are not recreated after a fatal error, a call that does not return or the loss of all brokers. These raise
:class:`~nightjar_alerts.service.stream.messages.FatalError`, which ends the process; its supervisor starts a new one,
which continues at the committed offsets.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from nightjar_alerts.service.stream.addresses import Address, AddressError
from nightjar_alerts.service.stream.messages import FatalError

log = structlog.get_logger(__name__)

LOG_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 15.0
"""Seconds for which a rejection is reported after it last occurred; the client retries every ten seconds."""
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
"""Errors that retrying does not resolve: a wrong password, certificate or permission."""
UNREACHABLE_ERRORS: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})


@dataclass(slots=True)
class _LoggedError:
    logged_at: float
    repeats: int = 0


class ClientErrors:
    """Errors of the clients of one source or sink. Safe to use from several threads.

    Parameters
    ----------
    end : "source" or "sink", for the log.

    Attributes
    ----------
    outages : number of reports of a client that all its brokers are unreachable.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._logged_by_name: dict[str, _LoggedError] = {}
        self._refusal, self._refused_at, self._answered_at = "", 0.0, 0.0
        self._unreachable = self._fatal = ""
        self.outages = 0

    def record(self, error: KafkaError) -> None:
        """Record an error of a client; log it unless the same error was logged within a minute."""
        code, name, reason, now = error.code(), error.name(), error.str(), monotonic()
        with self._lock:
            if error.fatal() or code == KafkaError._FATAL:
                self._fatal = self._fatal or f"{name}: {reason}"
            elif code in REFUSALS:
                self._refusal, self._refused_at = f"{REFUSALS[code]}: {reason}", now
            elif code in UNREACHABLE_ERRORS:
                self._unreachable = f"no broker answers: {reason}"
                self.outages += 1
            logged = self._logged_by_name.get(name)
            if logged is not None and now - logged.logged_at < LOG_SECONDS:
                logged.repeats += 1
                return
            times = 1 if logged is None else logged.repeats + 1
            self._logged_by_name[name] = _LoggedError(now)
        log.warning("Kafka", end=self._end, code=name, reason=reason, times=times)

    def record_response(self) -> None:
        """Record that a broker responded."""
        with self._lock:
            self._unreachable = ""
            self._answered_at = monotonic()

    @property
    def fatal(self) -> str:
        """Fatal error of a client; empty if there is none."""
        return f"Kafka {self._end}: {self._fatal}" if self._fatal else ""

    def check(self) -> None:
        """Raise FatalError after a fatal error of a client."""
        if reason := self.fatal:
            raise FatalError(reason)

    @property
    def refusal(self) -> str:
        """Reason why the brokers reject this client; empty if they accept it, or none responds.

        Open connections keep working while new ones are rejected. So a rejection ends only when it has not recurred for
        :data:`REFUSED_SECONDS` and a broker has responded since.
        """
        with self._lock:
            quiet = monotonic() - self._refused_at > REFUSED_SECONDS
            return "" if quiet and self._answered_at > self._refused_at else self._refusal

    @property
    def unreachable(self) -> bool:
        """True if all brokers were unreachable, and none has responded since."""
        return bool(self._unreachable)

    def __str__(self) -> str:
        """Return the current error; empty if there is none."""
        return self.refusal or self._unreachable


ClientT = TypeVar("ClientT")

GROUP: Final = "nightjar"
COMMON_PROPERTIES: Final[Mapping[str, Any]] = {
    "client.id": "nightjar",
    "log_level": 0,  # errors are reported by a callback
    "reconnect.backoff.max.ms": 2000,  # maximum delay until the recovery of a broker is noticed
}
MEMBER_PROPERTIES: Final = ("group.instance.id", "partition.assignment.strategy", "transactional.id")
"""Properties of group members and transactional producers, which other clients of the address must not have."""


def properties(address: Address, extra: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka properties. The file overrides the defaults, and the address overrides both."""
    from_address = {name: value for name, value in address.options.items() if "." in name}
    return {**COMMON_PROPERTIES, **own, **extra, **from_address, "bootstrap.servers": address.hosts}


def query_properties(config: Mapping[str, Any], client_errors: ClientErrors) -> dict[str, Any]:
    """Return the properties of a client that only queries the brokers, from those of another client."""
    common = {name: value for name, value in config.items() if name not in MEMBER_PROPERTIES}
    return common | {"error_cb": client_errors.record, "log_level": 0}


def make_client(factory: Callable[[dict[str, Any]], ClientT], config: dict[str, Any]) -> ClientT:
    """Create a librdkafka client. Raises AddressError if a property is invalid."""
    try:
        return factory(config)
    except KafkaException as error:
        raise AddressError(f"Kafka: {error.args[0].str()}") from None


REACHABLE_SECONDS: Final = 3.0


def is_reachable(config: Mapping[str, Any], topic: str, client_errors: ClientErrors) -> bool:
    """Return whether a broker responds to a new client."""
    try:
        client = make_client(AdminClient, query_properties(config, client_errors))
        client.list_topics(topic, REACHABLE_SECONDS)
    except (KafkaException, AddressError):
        return False
    return True
