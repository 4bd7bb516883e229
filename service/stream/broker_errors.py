"""Classification of broker errors: errors of one record and errors of the destination.

A record that the broker will never accept becomes a dead letter; a dead letter that is too large is shortened. All
other errors concern the destination, where other records would fail as well: a missing topic, a missing permission, a
server that is read-only, full, moved or down. The record is sent again, and meanwhile the worker is not ready. Errors
that are not listed here are handled the same way, since sending again loses nothing.
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
"""librdkafka errors of one record, by ``KafkaError.name()``."""
REDIS_RECORD_ERRORS: Final[Mapping[str, type[PermanentError]]] = {
    "Elements are too large to be stored": RecordTooLargeError,
    "Protocol error: invalid bulk length": RecordTooLargeError,
    "Protocol error: too big bulk count string": RecordTooLargeError,
    "Invalid input of type": PermanentError,
}
"""Errors of Redis and redis-py of one record, by the beginning of their text without the code ``ERR``."""


def kafka_report(name: str, fatal: bool, text: str, topic: str) -> PermanentError | TransientError:
    """Return the delivery report for a Kafka error; its text names the topic."""
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
"""Error codes that redis-py removes from the text of an error, by exception class."""


def redis_report(error: Exception, stream: str) -> PermanentError | TransientError:
    """Return the delivery report for a Redis error; its text names the stream."""
    text = redis_text(error)
    for beginning, kind in REDIS_RECORD_ERRORS.items():
        if text.startswith(beginning):
            return kind(f"stream {stream}: {text}")
    return TransientError(f"stream {stream}: {text}")


def redis_text(error: Exception) -> str:
    """Return the text of a Redis error with its code."""
    code = REDIS_CODES.get(type(error).__name__, "")
    message = str(error).partition(" : <")[0]  # without the repr of the client that Sentinel errors contain
    text = f"{code} {message}".strip().removeprefix("ERR ") or type(error).__name__
    return f"{text} (a node of Redis Cluster: add cluster=yes to the address)" if code in ("MOVED", "ASK") else text
