"""Errors of brokers: which of them are about one record, and which about the place that it goes to.

A record that its broker will never accept becomes a dead letter, and only one that is too large is shortened. Every
other error is about the destination, since other records would fail as well: a missing topic, a missing right, a server
that is read-only, full, moved or down. The record is sent again, and meanwhile the worker is not ready. So is an error
that is not listed here: sending again loses nothing.
"""

from collections.abc import Mapping
from typing import Final

from nightjar_alerts.service.stream.messages import PermanentError, RecordTooLargeError, TransientError

KAFKA_RECORD_ERRORS: Final[Mapping[str, type[PermanentError]]] = {
    "MSG_SIZE_TOO_LARGE": RecordTooLargeError,
    "RECORD_LIST_TOO_LARGE": RecordTooLargeError,
    "INVALID_RECORD": PermanentError,
    "INVALID_TIMESTAMP": PermanentError,
    "_INVALID_ARG": PermanentError,
    "_KEY_SERIALIZATION": PermanentError,
    "_VALUE_SERIALIZATION": PermanentError,
}
"""Errors of librdkafka about one record, by ``KafkaError.name()``."""
REDIS_RECORD_ERRORS: Final[Mapping[str, type[PermanentError]]] = {
    "Elements are too large to be stored": RecordTooLargeError,
    "Protocol error: invalid bulk length": RecordTooLargeError,
    "Protocol error: too big bulk count string": RecordTooLargeError,
    "Invalid input of type": PermanentError,
}
"""Errors of Redis and its client about one record, by the beginning of their text without the code ``ERR``."""


def kafka_report(name: str, fatal: bool, text: str, topic: str) -> PermanentError | TransientError:
    """Return the delivery report of a record of Kafka for an error; names the topic."""
    kind = TransientError if fatal else KAFKA_RECORD_ERRORS.get(name, TransientError)
    return kind(f"topic {topic}: {text}")


REDIS_CODES: Final[Mapping[str, str]] = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
"""Error codes that the client of Redis removes from the text of an error, by its class."""


def redis_report(error: Exception, stream: str) -> PermanentError | TransientError:
    """Return the delivery report of a record of Redis for an error; names the stream."""
    text = redis_text(error)
    for beginning, kind in REDIS_RECORD_ERRORS.items():
        if text.startswith(beginning):
            return kind(f"stream {stream}: {text}")
    return TransientError(f"stream {stream}: {text}")


def redis_text(error: Exception) -> str:
    """Return the text of an error of Redis with its code."""
    code = REDIS_CODES.get(type(error).__name__, "")
    message = str(error).partition(" : <")[0]  # without the client, which errors of Sentinel show
    text = f"{code} {message}".strip().removeprefix("ERR ") or type(error).__name__
    return f"{text} (a node of Redis Cluster: add cluster=yes to the address)" if code in ("MOVED", "ASK") else text
