"""Brokers that die, do not respond or are unreachable: the worker reports it, and continues when they are back.

NIGHTJAR_SOAK=1 python -m pytest tests/service/stream/cluster      three brokers and every fault as well
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from nightjar_alerts.service.local import free_port
from nightjar_alerts.service.stream.addresses import parse_address
from nightjar_alerts.service.stream.kafka import transactions
from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, Transaction
from nightjar_alerts.service.stream.messages import FatalError, Record, TransientError
from nightjar_alerts.service.stream.worker import RESTART_STATUS
from support.kafka_brokers import Brokers, Reader, brokers, needs_brokers
from support.kafka_trial import (
    PROMISED_SECONDS,
    STEADY,
    TRANSACTION_MS,
    Trial,
    begins_well,
    ends_well,
    trial,
)
from support.stream import Process, eventually

pytestmark = needs_brokers
BOTH = pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
AT_WORK_OR_REST = pytest.mark.parametrize("at_rest", [False, True], ids=["at work", "at rest"])
OUTAGE_SECONDS = 10
RATE = 60


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three brokers with three replicas, of which two must be in sync."""
    with brokers(tmp_path_factory.mktemp("three"), 3) as cluster:
        yield cluster


def dead(cluster: Brokers, node: int) -> Callable[[], None]:
    cluster.kill(node)
    return lambda: cluster.start(node)


def silent(cluster: Brokers, node: int) -> Callable[[], None]:
    cluster.hang(node)
    return lambda: cluster.wake(node)


def cut_off(cluster: Brokers, node: int) -> Callable[[], None]:
    """Disconnect a broker from the worker only; the other brokers and the test still reach it."""
    cluster.proxies[node].cut()

    def mend() -> None:
        cluster.proxies[node].mode = "open"

    return mend


FAULTS = {"dead": dead, "silent": silent, "cut off": cut_off}


def survives(
    one: Trial,
    worker: Process,
    breaks: Callable[[], Callable[[], None]],
    reported: Callable[[], bool] = lambda: True,
    at_rest: bool = False,
    restarts: int = 0,
) -> None:
    """Break something while a worker runs, repair it, and run the common checks.

    Parameters
    ----------
    reported : what must come to be while it is broken.
    at_rest : whether the worker has nothing to do when it happens; clients then learn of it when they need it next.
    restarts : how often the worker may end with the status for its supervisor, which starts it again.
    """
    begins_well(one, worker, 100)
    if at_rest:
        eventually(lambda: worker.metric("nightjar_stream_inflight_messages") == 0)
    else:
        one.feed(100)
    mend = breaks()
    time.sleep(OUTAGE_SECONDS)
    eventually(reported, PROMISED_SECONDS / 3)
    mend()
    one.feed(100)
    ends_well(one, worker)
    assert worker.restarts <= restarts


@BOTH
@AT_WORK_OR_REST
@pytest.mark.parametrize("fault", FAULTS)
def test_kafka_outage_of_the_only_broker_loses_no_alert(
    single: Brokers, exactly_once: bool, fault: str, at_rest: bool, tmp_path: Path
) -> None:
    where = {"exactly_once": exactly_once, "through": single.hosts("PROXIED"), "transaction_ms": None}
    with trial(single.hosts(), tmp_path, **where) as one, one.process() as worker:
        survives(
            one,
            worker,
            lambda: FAULTS[fault](single, 1),
            reported=lambda: worker.ask("/readyz")[0] == 503 and "no broker answers" in worker.ask("/readyz")[1],
            at_rest=at_rest,
        )
        lines = [event for event in worker.events() if event["event"] == "Kafka"]
        assert len(lines) < 30  # each complaint once a minute


@BOTH
@pytest.mark.parametrize("part", ["leader", "group", "transactions"])
@pytest.mark.parametrize("fault", FAULTS)
def test_kafka_outage_of_one_of_three_brokers_loses_no_alert(
    three: Brokers, exactly_once: bool, fault: str, part: str, tmp_path: Path
) -> None:
    where = {"exactly_once": exactly_once, "through": three.hosts("PROXIED"), "replicas": 3, "transaction_ms": None}
    port = free_port()  # a place, so that a restart aborts what its predecessor left open
    with trial(three.hosts(), tmp_path, **where) as one, one.process(supervise=True, worker_port=port) as worker:
        begins_well(one, worker)
        node = three.leader(one.source) if part == "leader" else three.coordinator(one.group)
        if part == "transactions":  # the coordinator of transactions: each of the three leads one of its partitions
            node = three.leader("__transaction_state", 0) if exactly_once else node
        # The producer may wait for ever for a group coordinator that is gone (librdkafka issue 5511).
        survives(one, worker, lambda: FAULTS[fault](three, node), restarts=int(exactly_once))


@BOTH
def test_kafka_outage_of_three_brokers_loses_no_alert(three: Brokers, exactly_once: bool, tmp_path: Path) -> None:
    with (
        trial(three.hosts(), tmp_path, exactly_once=exactly_once, replicas=3, transaction_ms=None) as one,
        one.process() as worker,
    ):

        def all_dead() -> Callable[[], None]:
            for node in three.nodes:
                three.kill(node)
            return lambda: three.start(*three.nodes)

        survives(one, worker, all_dead, reported=lambda: worker.ask("/readyz")[0] == 503)


@BOTH
def test_kafka_slow_network_loses_no_alert(single: Brokers, exactly_once: bool, tmp_path: Path) -> None:
    where = {"exactly_once": exactly_once, "through": single.hosts("PROXIED"), "transaction_ms": None}
    with trial(single.hosts(), tmp_path, **where) as one, one.process() as worker:
        begins_well(one, worker)
        single.proxies[1].bytes_per_second = 200_000
        try:
            one.feed(300)
            one.all_answered(120)
        finally:
            single.proxies[1].bytes_per_second = None
        ends_well(one, worker)


def test_kafka_worker_with_a_timed_out_transaction_exits_and_the_next_continues(
    single: Brokers, tmp_path: Path
) -> None:
    """The worker is suspended for longer than its transaction timeout, but not as long as its session."""
    with trial(single.hosts(), tmp_path, exactly_once=True) as one:
        with one.process(STEADY, batch_messages=16) as worker:
            begins_well(one, worker)
            while worker.status is None:  # a transaction is open at most moments, and not at each
                one.feed(600)
                time.sleep(0.1)
                worker.suspend()
                time.sleep(TRANSACTION_MS / 1000 + 3)  # the broker looks for such transactions every second
                worker.resume()
                time.sleep(3)
            assert worker.status == RESTART_STATUS
            reasons = [event["reason"] for event in worker.events() if event["event"] == "the worker failed"]
            assert "Kafka" in reasons[0]
        with one.process() as successor:
            one.feed(40)
            ends_well(one, successor)


class Late(Producer):  # type: ignore[misc]  # confluent-kafka has no types
    """Producer that commits after the transaction has timed out."""

    def commit_transaction(self, *arguments: Any) -> None:
        time.sleep(5)
        super().commit_transaction(*arguments)


def test_kafka_timed_out_transaction_fails_and_the_next_producer_aborts_it(
    single: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of the first transaction stay invisible, and the next one with the same id is complete."""
    with trial(single.hosts(), tmp_path, exactly_once=True) as one:
        timeouts = "exactly_once=yes&transaction.timeout.ms=1000&message.timeout.ms=900"
        address = parse_address(f"kafka://{single.hosts()}/{one.sink}?{timeouts}")

        def transaction(key: bytes) -> Callable[[], Transaction]:
            return lambda: Transaction([(one.sink, Record(key, b"{}"))], (), None, lambda: None)

        with monkeypatch.context() as patch:
            patch.setattr(transactions, "Producer", Late)
            first = KafkaTransactions(address, {}, slot="a")
        with pytest.raises((FatalError, TransientError)):
            first.run(transaction(b"first")).result(60)
        first.close()
        second = KafkaTransactions(address, {}, slot="a")
        assert second.run(transaction(b"second")).result(60) == [None]
        second.close()
        reader = Reader(single.hosts(), one.sink)
        eventually(lambda: [message.key() for message in reader.read()] == [b"second"])
        reader.close()
