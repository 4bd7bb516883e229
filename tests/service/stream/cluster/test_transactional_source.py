"""A source topic that is written in transactions: offsets without a record are no lag, and no reason to restart.

The last record of a transaction is followed by a marker, and aborted records are never returned to a consumer.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from nightjar_alerts.service.stream.inspection import print_dead_letters
from support.kafka_brokers import Brokers
from support.kafka_trial import STEADY, Trial, ends_well
from support.stream import Running, alert, eventually, running

IDLE_SECONDS = 300
PATIENCE: dict[str, Any] = {"unready_after": 5, "unhealthy_after": 10}


@contextmanager
def transactional_producer(one: Trial) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": one.hosts, "transactional.id": f"survey-{one.group}", "log_level": 0})
    producer.init_transactions(60)
    yield producer


def write(producer: Producer, one: Trial, topic: str, count: int, commit: bool = True) -> None:
    """Write the next alerts in a transaction, to partition 0, and commit or abort it."""
    producer.begin_transaction()
    for number in range(one.fed, one.fed + count):
        producer.produce(topic, alert(number), partition=0)
    assert producer.flush(60) == 0
    if commit:
        producer.commit_transaction(60)
        one.fed += count
    else:
        producer.abort_transaction(60)


def lag(worker: Running, one: Trial) -> float:
    labels = [{"topic": one.source, "partition": str(number)} for number in range(4)]
    return sum(worker.metric("nightjar_stream_lag_messages", **label) for label in labels)


def stays_well(worker: Running, producer: Producer, one: Trial, seconds: float) -> None:
    """Abort a transaction every ten seconds, and ask for the health of the worker all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        write(producer, one, one.source, 3, commit=False)
        next_at = time.monotonic() + 10
        while time.monotonic() < min(next_at, end):
            assert worker.ask("/readyz") == (200, "ok\n")
            assert worker.ask("/healthz") == (200, "ok\n")
            time.sleep(0.2)


@pytest.mark.parametrize("seconds", [15, pytest.param(IDLE_SECONDS, id="five minutes")])
def test_worker_idle_behind_transactions_has_no_lag_and_stays_ready(
    both: Trial, one_broker: Brokers, seconds: float
) -> None:
    with transactional_producer(both) as producer, running(both.settings(STEADY, **PATIENCE)) as worker:
        write(producer, both, both.source, 4)
        write(producer, both, both.source, 4, commit=False)
        both.all_answered()
        stays_well(worker, producer, both, seconds)
        eventually(lambda: lag(worker, both) == 0)
        eventually(lambda: sum(one_broker.group_lag(both.group).values()) == 0, 60, 2.0)
        write(producer, both, both.source, 4)
        ends_well(both, worker)
    assert sum(one_broker.group_lag(both.group).values()) == 0


def test_worker_beside_an_open_transaction_stays_ready_and_reads_it_once_committed(both: Trial) -> None:
    with transactional_producer(both) as producer, running(both.settings(STEADY, **PATIENCE)) as worker:
        write(producer, both, both.source, 4)
        both.all_answered()
        producer.begin_transaction()
        for number in range(4, 8):
            producer.produce(both.source, alert(number), partition=0)
        assert producer.flush(60) == 0
        end = time.monotonic() + 15
        while time.monotonic() < end:
            assert worker.ask("/readyz") == (200, "ok\n")
            assert worker.ask("/healthz") == (200, "ok\n")
            time.sleep(0.2)
        assert lag(worker, both) == 0
        producer.commit_transaction(60)
        both.fed = 8
        ends_well(both, worker)


def test_worker_whose_source_holds_only_aborted_records_has_no_lag(both: Trial) -> None:
    with transactional_producer(both) as producer:
        write(producer, both, both.source, 4, commit=False)
        with running(both.settings(STEADY, **PATIENCE)) as worker:
            eventually(lambda: worker.ask("/readyz")[0] == 200)
            stays_well(worker, producer, both, 12)
            eventually(lambda: lag(worker, both) == 0)
            ends_well(both, worker)


@pytest.mark.parametrize("ending", ["committed", "aborted", "open"])
def test_replay_of_a_transactional_topic_ends(plain: Trial, ending: str) -> None:
    with transactional_producer(plain) as producer:
        write(producer, plain, plain.source, 4)
        if ending == "aborted":
            write(producer, plain, plain.source, 4, commit=False)
        elif ending == "open":
            producer.begin_transaction()
            producer.produce(plain.source, alert(99), partition=0)
            assert producer.flush(60) == 0
        source = f"kafka://{plain.hosts}/{plain.source}"
        with running(plain.settings(source=source), replay=True) as worker:
            assert worker.join(60) == 0
        assert worker.totals()["classified"] == 4


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_dead_letters_of_a_transactional_topic_are_printed(
    plain: Trial, commit: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with transactional_producer(plain) as producer:
        write(producer, plain, plain.dead, 2)
        write(producer, plain, plain.dead, 2, commit)
        assert print_dead_letters(f"kafka://{plain.hosts}/{plain.dead}") == 0
    assert f"{4 if commit else 2} not a dead letter" in capsys.readouterr().out
