"""Complaints of Kafka's client: once a minute in the log, whatever the number, and in words for the probes.

The client tries on by itself and says each time that it failed, but never that it works again: who has an answer of a
broker says so (:meth:`Complaints.answered`).
"""

import threading
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog
from confluent_kafka import KafkaError

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

log = structlog.get_logger(__name__)


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
