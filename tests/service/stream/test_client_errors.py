"""Errors of Kafka clients: how long they are reported, and how often they are logged."""

import pytest
import structlog

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from confluent_kafka import KafkaError

from nightjar_alerts.service.stream.kafka import client as module
from nightjar_alerts.service.stream.kafka.client import REFUSED_SECONDS, ClientErrors

REFUSED, AWAY = KafkaError(KafkaError._AUTHENTICATION, "no"), KafkaError(KafkaError._ALL_BROKERS_DOWN, "none")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def test_client_errors_refusal_ends_after_a_response(clock: Clock) -> None:
    errors = ClientErrors("sink")
    errors.record(REFUSED)
    clock.now += 1
    errors.record_response()  # by a connection that stood before, perhaps: the refusal stays for a while
    assert "authentication failed" in str(errors)
    clock.now += REFUSED_SECONDS
    assert (errors.refusal, str(errors)) == ("", "")


def test_client_errors_refusal_stays_while_it_recurs_or_no_broker_responds(clock: Clock) -> None:
    errors = ClientErrors("sink")
    for _ in range(5):
        errors.record(REFUSED)
        clock.now += REFUSED_SECONDS - 5
        errors.record_response()
        assert errors.refusal
    errors.record(REFUSED)
    clock.now += 10 * REFUSED_SECONDS
    assert errors.refusal


def test_client_errors_response_clears_unreachable_brokers(clock: Clock) -> None:
    errors = ClientErrors("source")
    errors.record(AWAY)
    assert str(errors) == "no broker answers: none"
    errors.record_response()
    assert str(errors) == ""


def test_client_errors_repeated_error_is_logged_once_a_minute(clock: Clock) -> None:
    errors = ClientErrors("source")
    with structlog.testing.capture_logs() as lines:
        for _ in range(150):  # two and a half minutes of them
            errors.record(AWAY)
            clock.now += 1
        errors.record(REFUSED)  # a different error is logged at once
    assert [line["times"] for line in lines] == [1, 60, 60, 1]
    assert all(line["event"] == "Kafka" and line["end"] == "source" for line in lines)
