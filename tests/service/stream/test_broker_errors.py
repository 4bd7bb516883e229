"""Every error of the Kafka and Redis clients is classified as an error of a record or of its destination."""

from typing import Any

import pytest

# What follows imports the extra, hence stands after the question whether it is there.
pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")
pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

import redis.exceptions
from confluent_kafka import KafkaError

from nightjar_alerts.service.stream.broker_errors import (
    KAFKA_RECORD_ERRORS,
    REDIS_CODES,
    kafka_report,
    redis_report,
    redis_text,
)
from nightjar_alerts.service.stream.kafka.sink import delivery_report
from nightjar_alerts.service.stream.messages import PermanentError, RecordTooLargeError, TransientError

KAFKA_CODES = sorted(name for name in dir(KafkaError) if name.strip("_").isupper())
REDIS_CLASSES = sorted(
    name
    for name, kind in vars(redis.exceptions).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == "redis.exceptions"
)
REDIS_TEXTS = {
    "NOREPLICAS Not enough good replicas to write.": TransientError,
    "MISCONF Redis is configured to save RDB snapshots": TransientError,
    "MOVED 3999 127.0.0.1:6381": TransientError,
    "ASK 3999 127.0.0.1:6381": TransientError,
    "TRYAGAIN Multiple keys request during rehashing of slot": TransientError,
    "CROSSSLOT Keys in request don't hash to the same slot": TransientError,
    "CLUSTERDOWN Hash slot not served": TransientError,
    "MASTERDOWN Link with MASTER is down": TransientError,
    "LOADING Redis is loading the dataset in memory": TransientError,
    "BUSY Redis is busy running a script": TransientError,
    "READONLY You can't write against a read only replica.": TransientError,
    "OOM command not allowed when used memory > 'maxmemory'.": TransientError,
    "WRONGTYPE Operation against a key holding the wrong kind of value": TransientError,
    "NOPERM this user has no permissions to run the 'xadd' command": TransientError,
    "NOAUTH Authentication required.": TransientError,
    "WRONGPASS invalid username-password pair": TransientError,
    "ERR unknown command 'xadd'": TransientError,
    "ERR max number of clients reached": TransientError,
    "The ID specified in XADD is equal or smaller than the target stream top item": TransientError,
    "ERR Elements are too large to be stored": RecordTooLargeError,
    "ERR Protocol error: invalid bulk length": RecordTooLargeError,
    "Invalid input of type: 'dict'.": PermanentError,
}


@pytest.mark.parametrize("name", KAFKA_CODES)
def test_kafka_error_is_about_a_record_or_the_destination(name: str) -> None:
    error = KafkaError(getattr(KafkaError, name))
    report = delivery_report(error, "results")
    assert type(report) is KAFKA_RECORD_ERRORS.get(error.name(), TransientError)
    assert "results" in str(report)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("MSG_SIZE_TOO_LARGE", RecordTooLargeError),
        ("INVALID_RECORD", PermanentError),
        ("UNKNOWN_TOPIC_OR_PART", TransientError),
        ("_UNKNOWN_TOPIC", TransientError),
        ("TOPIC_AUTHORIZATION_FAILED", TransientError),
        ("CLUSTER_AUTHORIZATION_FAILED", TransientError),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", TransientError),
        ("TOPIC_EXCEPTION", TransientError),
        ("NOT_ENOUGH_REPLICAS", TransientError),
        ("KAFKA_STORAGE_ERROR", TransientError),
        ("_MSG_TIMED_OUT", TransientError),
        ("_SSL", TransientError),
        ("UNKNOWN", TransientError),
    ],
)
def test_kafka_error_kind(code: str, kind: type[Exception]) -> None:
    assert type(delivery_report(KafkaError(getattr(KafkaError, code)), "results")) is kind


def test_kafka_fatal_error_is_about_the_destination() -> None:
    assert type(kafka_report("MSG_SIZE_TOO_LARGE", True, "too large", "results")) is TransientError


@pytest.mark.parametrize("name", REDIS_CLASSES)
def test_redis_error_class_is_about_the_destination(name: str) -> None:
    kind: Any = getattr(redis.exceptions, name)
    error = kind.__new__(kind)
    report = redis_report(error, "results")
    assert type(report) is TransientError
    assert "results" in str(report)


@pytest.mark.parametrize("text", REDIS_TEXTS)
def test_redis_error_text_kind(text: str) -> None:
    assert type(redis_report(redis.exceptions.ResponseError(text), "results")) is REDIS_TEXTS[text]


@pytest.mark.parametrize("name", REDIS_CODES)
def test_redis_text_of_an_error_class_begins_with_its_code(name: str) -> None:
    error = getattr(redis.exceptions, name)("12182 127.0.0.1:7003")
    assert redis_text(error).startswith(f"{REDIS_CODES[name]} 12182")
