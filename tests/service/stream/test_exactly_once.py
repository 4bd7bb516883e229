"""Transactions: requests to librdkafka's mock brokers, and the guarantee with a broker that keeps it.

The mock brokers answer every request of a transaction, but readers see what was aborted, and offsets are not kept. So
they show which requests are sent, and what a worker does after errors. That nothing is published twice or lost is shown
with a broker in a few lines, which aborts transactions and takes partitions away at random.
"""

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from confluent_kafka import Consumer, KafkaError
from structlog.testing import capture_logs

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import messages as messages_module
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.batches import Batch
from nightjar_alerts.service.stream.connectors import open_connectors
from nightjar_alerts.service.stream.exactly_once import ExactlyOnce
from nightjar_alerts.service.stream.kafka import source, transactions
from nightjar_alerts.service.stream.kafka.assignment import AssignedPartition, Assignment, Position, Token
from nightjar_alerts.service.stream.kafka.source import KafkaSource, PreparedBatch
from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, Transaction, worker_slot
from nightjar_alerts.service.stream.ledger import DeliveryLedger
from nightjar_alerts.service.stream.messages import (
    ActiveErrors,
    AlertResult,
    FatalError,
    Message,
    PermanentError,
    Record,
    TransientError,
)
from nightjar_alerts.service.stream.worker import RESTART_STATUS
from support import kafka_cluster as kafka
from support.edge import wait_until
from support.kafka_cluster import KafkaCluster
from support.stream import FAST_GROUP, alert, chosen, dead_letters, eventually, running

pytestmark = pytest.mark.slow

ILLEGAL_GENERATION, PRODUCER_FENCED = 22, 90
HERE = ("alerts", 0)


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with kafka.kafka_cluster() as cluster:
        for topic in ("alerts", "results", "dead"):
            cluster.create(topic, 2)
        cluster.watch()
        yield cluster


def settings(cluster: KafkaCluster, folder: Path, **changes: Any) -> Any:
    usual = {
        "source": f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}",
        "sink": f"kafka://{cluster.hosts}/results?exactly_once=yes",
        "batch_messages": 16,
    }
    return chosen(folder, **(usual | changes))


def answered(cluster: KafkaCluster, folder: Path, count: int = 60, **changes: Any) -> dict[str, int]:
    """Return the account of a worker that classifies alerts and cannot read one message."""
    cluster.produce("alerts", [*map(alert, range(count)), b"junk"])
    with running(settings(cluster, folder, **changes)) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals().get("in") == count + 1)
        assert worker.stop() == 0
    return worker.totals()


def test_exactly_once_offsets_are_committed_only_in_transactions(cluster: KafkaCluster, tmp_path: Path) -> None:
    totals = answered(cluster, tmp_path)
    assert totals == {"in": 61, "classified": 60, "dead:unknown_envelope": 1, "pending": 0}
    requests = cluster.request_counts()
    assert requests[kafka.OFFSET_COMMIT] == 0
    assert requests[kafka.TXN_OFFSET_COMMIT] == requests[kafka.ADD_OFFSETS] == requests[kafka.END_TXN] >= 1
    keys = [message.key() for message in cluster.read("results", 60)]
    assert len(keys) == len(set(keys)) == 60
    assert [one["value"] for one in dead_letters(tmp_path)] == [b"junk"]


def test_exactly_once_dead_letters_of_the_same_cluster_are_in_the_transaction(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    totals = answered(cluster, tmp_path, count=1, dead_letters=f"kafka://{cluster.hosts}/dead")
    assert totals == {"in": 2, "classified": 1, "dead:unknown_envelope": 1, "pending": 0}
    assert [message.value() for message in cluster.read("dead", 1)] == [b"junk"]
    requests = cluster.request_counts()
    assert requests[kafka.TXN_OFFSET_COMMIT] == requests[kafka.END_TXN]


def test_prepare_after_a_commit_starts_where_the_last_transaction_ended(cluster: KafkaCluster) -> None:
    """It must not depend on the thread that owns the consumer."""
    cluster.produce("alerts", [b"%d" % number for number in range(6)], partition=0)
    once = KafkaTransactions(parse_address(f"kafka://{cluster.hosts}/results"), {})
    member = KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}"), {}, once)
    messages: list[Message] = []
    while len(messages) < 6:
        messages += member.poll(6 - len(messages), 1.0)
    for end in (2, 4, 6):
        batch = member.prepare(messages[end - 2 : end])
        (position,) = batch.positions
        assert position.offset == end
        member.record_committed(messages[end - 2 : end], batch.positions)
    member.close()
    once.close()


class Guest:
    """Consumer that records the calling threads and methods."""

    called: ClassVar[set[tuple[str, int]]] = set()

    def __init__(self, config: Any) -> None:
        self._real = Consumer(config)

    def __getattr__(self, name: str) -> Any:
        self.called.add((name, threading.get_ident()))
        return getattr(self._real, name)


@pytest.mark.parametrize("once", ["", "?exactly_once=yes"], ids=["at least once", "exactly once"])
def test_kafka_consumer_is_called_on_one_thread(
    cluster: KafkaCluster, tmp_path: Path, once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "Consumer", Guest)
    monkeypatch.setattr(Guest, "called", set())
    totals = answered(cluster, tmp_path, sink=f"kafka://{cluster.hosts}/results{once}")
    assert totals["classified"] == 60
    # Closing runs beside its owner, which waits for it, as it may never end.
    called = {(name, thread) for name, thread in Guest.called if name != "close"}
    assert {"subscribe", "consume", "incremental_assign"} <= {name for name, _ in called}
    assert len({thread for _, thread in called}) == 1


@pytest.mark.parametrize("partition", [pytest.param(0, id="of a batch"), pytest.param(1, id="of a crash marker")])
def test_exactly_once_aborted_transaction_is_retried(cluster: KafkaCluster, tmp_path: Path, partition: int) -> None:
    """The first message of a partition is delivered only after a transaction that commits its crash marker.

    The marker of partition 0 has been committed when the error comes, that of partition 1 has not.
    """
    cluster.produce("alerts", [alert(number) for number in range(5)], partition=0)
    with running(settings(cluster, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 5)
        cluster.fail_next(kafka.TXN_OFFSET_COMMIT, ILLEGAL_GENERATION)
        cluster.produce("alerts", [alert(number) for number in range(5, 10)], partition=partition)
        wait_until(lambda: worker.totals().get("classified") == 10)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 10, "classified": 10, "pending": 0}
    if partition == 0:  # only batches are counted
        assert worker.metric("nightjar_stream_retries_total", step="transaction") >= 1
    assert {int(m.key().decode().split("/")[1]) for m in cluster.read("results", 10)} == set(range(10_000, 10_010))


def test_exactly_once_fenced_producer_exits_with_the_restart_status(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.produce("alerts", [alert(number) for number in range(5)], partition=0)
    with capture_logs() as logs, running(settings(cluster, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 5)
        cluster.fail_next(kafka.END_TXN, PRODUCER_FENCED)
        cluster.produce("alerts", [alert(number) for number in range(5, 10)], partition=0)  # no crash marker first
        assert worker.join() == RESTART_STATUS
    (failure,) = [line["reason"] for line in logs if line["event"] == "the worker failed"]
    assert "commit_transaction" in failure
    totals = worker.totals()
    taken = totals["in"]  # some of the five may not have been taken when the first transaction failed
    assert 5 < taken <= 10
    assert totals == {"in": taken, "classified": 5, "returned": taken - 5, "pending": 0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": "redis://h:1/alerts"}, "same Kafka cluster"),
        ({"source": "kafka://other:9092/alerts"}, "same Kafka cluster"),
        ({"sink": "redis://h:1/results?exactly_once=yes"}, "same Kafka cluster"),
        ({"sink": "kafka://h:1/results?exactly_once=maybe"}, "exactly_once is yes"),
    ],
)
def test_open_connectors_without_a_common_cluster_raises(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    usual = {"source": "kafka://h:1/alerts", "sink": "kafka://h:1/results?exactly_once=yes"}
    with pytest.raises(AddressError, match=reason):
        open_connectors(chosen(tmp_path, **(usual | changes)))


def test_open_connectors_for_a_replay_exactly_once_raises(tmp_path: Path) -> None:
    ends = {"source": "kafka://h:1/alerts", "sink": "kafka://h:1/results?exactly_once=yes"}
    with pytest.raises(AddressError, match="replay"):
        open_connectors(chosen(tmp_path, **ends), replay=True)


class Hung:
    """Producer that has lost the group coordinator, as in librdkafka: one call never returns."""

    made: ClassVar[list["Hung"]] = []

    def __init__(self, config: Any) -> None:
        self.released = threading.Event()
        self.called: list[str] = []
        self.made.append(self)

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.released.wait(60)

    def commit_transaction(self, *_: Any) -> None:
        self.called.append("commit_transaction")

    def poll(self, *_: Any) -> None: ...

    init_transactions = begin_transaction = abort_transaction = poll


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaTransactions]:
    """Yield transactions whose first one hangs when it sends its offsets."""
    monkeypatch.setattr(transactions, "Producer", Hung)
    monkeypatch.setattr(Hung, "made", [])
    once = KafkaTransactions(parse_address("kafka://nowhere:9/results"), {})
    once.run(offsets_only)
    wait_until(lambda: once._call is not None)
    sleep(0.1)
    yield once
    for producer in Hung.made:
        producer.released.set()
    once.close()


def offsets_only() -> Transaction:
    return Transaction((), [Position(AssignedPartition(HERE), 1, None)], None, lambda: None)


def test_transactions_check_hung_call_raises_fatal_error_unless_brokers_are_unreachable(
    hung: KafkaTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "HUNG_SECONDS", 0.05)
    hung.check(responding_seconds=0.0)  # an outage is waited for
    with pytest.raises(FatalError, match="send_offsets_to_transaction has not returned"):
        hung.check(responding_seconds=60.0)
    with pytest.raises(FatalError, match="has not returned"):  # nothing waits behind that call
        hung.run(lambda: None).result(0)


def test_transactions_check_hung_call_replaces_the_producer(
    hung: KafkaTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is retried with the new producer, and what becomes of the first call changes nothing."""
    monkeypatch.setattr(transactions, "REPLACE_SECONDS", 0.05)
    running = hung._running
    assert running is not None
    hung.check(responding_seconds=0.0)
    assert len(Hung.made) == 1
    hung.check(responding_seconds=60.0)
    with pytest.raises(TransientError, match="does not return"):
        running.result(0)
    first, second = Hung.made
    second.released.set()
    assert hung.run(offsets_only).result(10) == []
    first.released.set()
    sleep(0.1)
    assert (first.called, second.called) == ([], ["commit_transaction"])
    assert hung.run(offsets_only).result(10) == []


def test_transactions_check_producers_that_keep_hanging_raises_fatal_error(
    hung: KafkaTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REPLACE_SECONDS", 0.05)
    monkeypatch.setattr(transactions, "HUNG_SECONDS", 1.0)

    def retry_and_check() -> None:
        for _ in range(100):
            hung.check(responding_seconds=60.0)
            if hung._running is None:
                hung.run(offsets_only)
            sleep(0.05)

    with pytest.raises(FatalError, match="has not returned"):
        retry_and_check()
    assert len(Hung.made) > 2


def test_transactions_replaced_producer_is_kept(hung: KafkaTransactions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Destroying it would corrupt memory."""
    monkeypatch.setattr(transactions, "REPLACE_SECONDS", 0.05)
    hung.check(responding_seconds=60.0)
    first = weakref.ref(Hung.made.pop(0))
    first().released.set()  # type: ignore[union-attr]  # its call returns
    wait_until(lambda: [thread.name for thread in threading.enumerate()].count("transactions") == 1)
    gc.collect()
    assert first() is not None


def test_transactions_check_after_many_replacements_raises_fatal_error(
    hung: KafkaTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REPLACE_SECONDS", 0.05)
    monkeypatch.setattr(transactions, "MAX_REPLACED", 1)
    hung.check(responding_seconds=60.0)
    with pytest.raises(FatalError, match="1 producers were replaced"):
        hung.check(responding_seconds=60.0)


def test_worker_slot_is_stable_for_a_port_and_new_without_one() -> None:
    assert worker_slot(8081) == worker_slot(8081) != worker_slot(8082)
    assert worker_slot(0) != worker_slot(0)
    assert worker_slot(8081, "first") == "first"


def test_exactly_once_idle_worker_notices_that_brokers_are_back(cluster: KafkaCluster) -> None:
    """An idle worker that was started during the outage becomes ready."""
    once = KafkaTransactions(parse_address(f"kafka://{cluster.hosts}/results"), {})
    once.client_errors.record(KafkaError(KafkaError._ALL_BROKERS_DOWN, "none"))
    assert "no broker answers" in once.error
    eventually(lambda: once.error == "")
    once.close()


class Broker:
    """Model of one partition, one results topic and one group, with atomic commits that fail as real ones.

    It is the source, the transactions and the last stage of one worker at once.
    """

    topic, dead_letters, failed = "results", "dead", False

    def __init__(self, seed: int, count: int) -> None:
        self.draw, self.count = random.Random(seed), count
        self.results: list[int] = []
        self.dead: list[int] = []
        self.offset = self.position = 0
        self.assignment = Assignment(5, transactional=True)
        self._assign()

    def _assign(self) -> None:
        """Assign the partition, from the committed offset."""
        self.assignment.add([HERE])
        self.assignment.start(HERE, self.offset, None)
        assigned = self.assignment.get(HERE)
        assert assigned is not None
        assigned.first_offset = self.offset

    def take(self) -> list[Message]:
        places = range(self.position, min(self.count, self.position + self.draw.randint(1, 5)))
        self.position = places.stop
        return [Message("alerts", str(place), b"", token=self.assignment.deliver(HERE, place)) for place in places]

    def lose(self) -> None:
        """Revoke the partition and assign it again."""
        self.assignment.remove([HERE])
        self.position = self.offset
        self._assign()

    def owns(self, message: Message) -> bool:
        return isinstance(message.token, Token) and self.assignment.owns(message.token)

    def prepare(self, messages: Sequence[Message]) -> PreparedBatch:
        tokens = (m.token for m in messages if isinstance(m.token, Token))
        return PreparedBatch(*self.assignment.positions_after(tokens), None)

    def record_committed(self, messages: Sequence[Message], positions: Sequence[Position]) -> None:
        self.assignment.finish(m.token for m in messages if isinstance(m.token, Token))

    def run(self, prepare: Callable[[], Transaction | None]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._run(prepare))
        except TransientError as error:
            future.set_exception(error)
        return future

    def _run(self, prepare: Callable[[], Transaction | None]) -> list[Any]:
        self._trip()
        transaction = prepare()
        if transaction is None:
            return []
        # Every seventh result is refused, as too large; dead letters are taken.
        reports = [
            PermanentError("too large") if topic == self.topic and int(record.key) % 7 == 0 else None
            for topic, record in transaction.records
        ]
        self._trip()
        if any(reports):
            return reports
        self.offset = max([self.offset, *(position.offset for position in transaction.positions)])
        for topic, record in transaction.records:
            if topic == self.topic:
                self.results.append(int(record.key))
            else:
                self.dead.append(int(record.key.decode().partition("/")[2]))
        transaction.on_committed()
        return reports

    def _trip(self) -> None:
        if self.draw.random() < 0.1:
            raise TransientError("aborted")


async def work(broker: Broker) -> DeliveryLedger:
    """Process batches until everything is committed, with occasional revocations of the partition."""
    ledger, stub = DeliveryLedger(Metrics()), cast(Any, broker)
    once = ExactlyOnce(stub, stub, stub, ActiveErrors(Metrics()), Metrics())

    async def end(messages: list[Message]) -> None:
        turn = once.next_turn()
        ledger.open(messages)
        await asyncio.sleep(broker.draw.random() / 1000)
        await once.commit(classified(messages), turn, ledger, "model")
        ledger.close(messages)

    tasks: set[asyncio.Task[None]] = set()
    while broker.offset < broker.count or tasks:
        if broker.draw.random() < 0.05:
            broker.lose()
        if len(tasks) < 4 and (messages := broker.take()):
            task = asyncio.create_task(end(messages))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(broker.draw.random() / 1000)
        for task in [task for task in tasks if task.done()]:
            task.result()
    return ledger


def classified(messages: Sequence[Message]) -> Batch:
    """Return a batch with one classified alert per message."""
    outcome: Any = SimpleNamespace(status="classified", reason="")
    unused: Any = None
    results = [
        AlertResult(one, 0, unused, outcome, unused, 0, record=Record(one.message_id.encode(), b"")) for one in messages
    ]
    return Batch(messages, 0, results=tuple(results))


class Slow(Broker):
    """Broker whose transactions block on a thread until they are released."""

    def __init__(self) -> None:
        super().__init__(0, 5)
        self.began, self.released = threading.Event(), threading.Event()

    def run(self, prepare: Callable[[], Transaction | None]) -> Future[Any]:
        future: Future[Any] = Future()

        def commit() -> None:
            if future.set_running_or_notify_cancel():
                self.began.set()
                self.released.wait(30)
                future.set_result(self._run(prepare))

        threading.Thread(target=commit, daemon=True).start()
        return future

    def _trip(self) -> None: ...


def test_exactly_once_cancelled_batch_in_a_transaction_counts_by_its_outcome() -> None:
    broker, ledger = Slow(), DeliveryLedger(Metrics())

    async def stop_in_the_middle() -> None:
        stub = cast(Any, broker)
        once = ExactlyOnce(stub, stub, stub, ActiveErrors(Metrics()), Metrics())
        messages = broker.take()[1:]  # without the one that is refused
        ledger.open(messages)
        task = asyncio.create_task(once.commit(classified(messages), once.next_turn(), ledger, "model"))
        await asyncio.to_thread(broker.began.wait, 30)
        task.cancel()
        await asyncio.sleep(0.05)
        broker.released.set()
        await asyncio.wait([task])
        ledger.close(messages)

    asyncio.run(stop_in_the_middle())
    ledger.check()
    counts = ledger.summary()["alerts"]
    assert counts["in"] == counts["classified"] == len(broker.results) > 0


@pytest.mark.parametrize("seed", range(6))
def test_exactly_once_publishes_each_alert_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(messages_module, "LONGEST_PAUSE", 0.001)
    broker = Broker(seed, 60)
    ledger = asyncio.run(asyncio.wait_for(work(broker), 60))
    assert broker.results == [number for number in range(60) if number % 7]
    assert broker.dead == [number for number in range(60) if not number % 7]
    ledger.check()
    assert broker.offset == 60
    counts = ledger.summary()["alerts"]
    assert counts["in"] == counts["classified"] + counts["dead:refused"] + counts.get("returned", 0)
    assert (counts["classified"], counts["dead:refused"]) == (len(broker.results), len(broker.dead))


def test_group_metadata_of_another_layout_is_warned_of() -> None:
    member = Consumer({"group.id": "any", "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with capture_logs() as logged:
        source.check_group_metadata(member.consumer_group_metadata())
        assert not logged  # the installed client is understood
        for unknown in (b"CGMDv3", b"member 7"):
            source.check_group_metadata(unknown)
    member.close()
    assert [line["log_level"] for line in logged] == ["warning", "warning"]
