"""Transactions: what is asked of librdkafka's mock brokers, and what comes of it at a broker that keeps the promise.

The mock brokers answer every request of a transaction, but readers see what was aborted, and offsets are not kept. So
they show what is asked, in which order, and what a worker does with errors. That nothing is published twice or lost is
shown with a broker in a few lines, which fails, loses answers and takes partitions away at random.
"""

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("confluent_kafka", reason="the [stream] extra is not installed")

from confluent_kafka import Consumer, KafkaError

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import messages as messages_module
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.batches import Accounts, Batch
from nightjar_alerts.service.stream.connectors import open_connectors
from nightjar_alerts.service.stream.kafka import sink as kafka_sink
from nightjar_alerts.service.stream.kafka import source
from nightjar_alerts.service.stream.kafka.offsets import Offsets, Token
from nightjar_alerts.service.stream.kafka.source import KafkaSource, TransactionOffsets
from nightjar_alerts.service.stream.messages import DeadLetterCause, Message, TransientError, Troubles
from nightjar_alerts.service.stream.publishing import ExactlyOnce
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
    """The account of a worker that answers alerts and one message that it cannot read."""
    cluster.produce("alerts", [*map(alert, range(count)), b"junk"])
    with running(settings(cluster, folder, **changes)) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals().get("in") == count + 1)
        assert worker.stop() == 0
    return worker.totals()


def test_offsets_are_committed_by_transactions_alone(cluster: KafkaCluster, tmp_path: Path) -> None:
    totals = answered(cluster, tmp_path)
    assert totals == {"in": 61, "classified": 60, "dead:unknown_envelope": 1, "pending": 0}
    requests = cluster.request_counts()
    # The consumer itself writes its journal beside an offset that stays: when a partition comes, and when it goes.
    assert requests[kafka.OFFSET_COMMIT] <= 4
    assert requests[kafka.TXN_OFFSET_COMMIT] == requests[kafka.ADD_OFFSETS] == requests[kafka.END_TXN] >= 1
    keys = [message.key() for message in cluster.read("results", 60)]
    assert len(keys) == len(set(keys)) == 60
    assert [one["value"] for one in dead_letters(tmp_path)] == [b"junk"]


def test_dead_letters_of_the_same_cluster_belong_to_the_transaction(cluster: KafkaCluster, tmp_path: Path) -> None:
    totals = answered(cluster, tmp_path, count=1, dead_letters=f"kafka://{cluster.hosts}/dead")
    assert totals == {"in": 2, "classified": 1, "dead:unknown_envelope": 1, "pending": 0}
    assert [message.value() for message in cluster.read("dead", 1)] == [b"junk"]
    requests = cluster.request_counts()
    assert requests[kafka.TXN_OFFSET_COMMIT] == requests[kafka.END_TXN]


def test_offsets_begin_where_the_last_transaction_has_ended(cluster: KafkaCluster) -> None:
    """The thread that owns the consumer need not have looked at it since."""
    cluster.produce("alerts", [b"%d" % number for number in range(6)], partition=0)
    member = KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}"), {}, transactional=True)
    messages: list[Message] = []
    while len(messages) < 6:
        messages += member.poll(6 - len(messages), 1.0)
    for end in (2, 4, 6):
        (position,) = member.transaction_offsets(messages[end - 2 : end]).positions
        assert position.offset == end
        member.acknowledge(messages[end - 2 : end])
    member.close()


def test_an_unconfirmed_commit_is_asked_of_the_group(cluster: KafkaCluster) -> None:
    cluster.produce("alerts", [b"1", b"2"], partition=0)
    member = KafkaSource(parse_address(f"kafka://{cluster.hosts}/alerts?{FAST_GROUP}"), {}, transactional=True)
    messages: list[Message] = []
    while len(messages) < 2:
        messages += member.poll(2 - len(messages), 1.0)
    offsets = member.transaction_offsets(messages)
    assert not member.is_committed(offsets)
    member.acknowledge(messages)
    member.close()  # which commits
    assert member.is_committed(offsets)  # it asks by a client of its own, so even now


class Guest:
    """Kafka's consumer; notes which threads call it, and what."""

    called: ClassVar[set[tuple[str, int]]] = set()

    def __init__(self, config: Any) -> None:
        self._real = Consumer(config)

    def __getattr__(self, name: str) -> Any:
        self.called.add((name, threading.get_ident()))
        return getattr(self._real, name)


@pytest.mark.parametrize("once", ["", "?exactly_once=yes"], ids=["at least once", "exactly once"])
def test_one_thread_alone_calls_the_consumer(
    cluster: KafkaCluster, tmp_path: Path, once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client lets one thread in at a time: a claim that called it came to stand still behind its owner."""
    monkeypatch.setattr(source, "Consumer", Guest)
    monkeypatch.setattr(Guest, "called", set())
    totals = answered(cluster, tmp_path, sink=f"kafka://{cluster.hosts}/results{once}")
    assert totals["classified"] == 60
    assert {"subscribe", "consume", "commit", "close"} <= {name for name, _ in Guest.called}
    assert len({thread for _, thread in Guest.called}) == 1


@pytest.mark.parametrize(
    ("request_", "error", "producers"),
    [
        (kafka.TXN_OFFSET_COMMIT, ILLEGAL_GENERATION, 1),  # the group has moved on: aborted and tried again
        (kafka.END_TXN, PRODUCER_FENCED, 2),  # nobody may use this producer any more
    ],
)
def test_a_failed_transaction_is_tried_again(
    cluster: KafkaCluster, tmp_path: Path, request_: int, error: int, producers: int
) -> None:
    cluster.produce("alerts", [alert(number) for number in range(5)])
    with running(settings(cluster, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 5)
        cluster.watch()
        begun = cluster.request_counts()[kafka.INIT_PRODUCER_ID]
        cluster.fail_next(request_, error)
        cluster.produce("alerts", [alert(number) for number in range(5, 10)])
        wait_until(lambda: worker.totals().get("classified") == 10)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 10, "classified": 10, "pending": 0}
    assert worker.metric("nightjar_stream_retries_total", step="transaction") >= 1
    assert {int(m.key().decode().split("/")[1]) for m in cluster.read("results", 10)} == set(range(10_000, 10_010))
    assert cluster.request_counts()[kafka.INIT_PRODUCER_ID] - begun >= producers - 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": "redis://h:1/alerts"}, "same Kafka cluster"),
        ({"source": "kafka://other:9092/alerts"}, "same Kafka cluster"),
        ({"sink": "redis://h:1/results?exactly_once=yes"}, "same Kafka cluster"),
        ({"sink": "kafka://h:1/results?exactly_once=maybe"}, "exactly_once is yes"),
    ],
)
def test_ends_that_share_no_transaction_are_told(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    usual = {"source": "kafka://h:1/alerts", "sink": "kafka://h:1/results?exactly_once=yes"}
    with pytest.raises(AddressError, match=reason):
        open_connectors(chosen(tmp_path, **(usual | changes)))


def test_a_replay_has_no_transactions(tmp_path: Path) -> None:
    ends = {"source": "kafka://h:1/alerts", "sink": "kafka://h:1/results?exactly_once=yes"}
    with pytest.raises(AddressError, match="replay"):
        open_connectors(chosen(tmp_path, **ends), replay=True)


class Deaf:
    """A producer as librdkafka's is after brokers were away: one call never returns, until it is let go."""

    instances: ClassVar[list["Deaf"]] = []

    def __init__(self, config: Any) -> None:
        self.instances.append(self)
        self.lets_go = threading.Event()
        self.deaf = len(self.instances) == 1
        self.committed = False

    def send_offsets_to_transaction(self, *_: Any) -> None:
        if self.deaf:
            self.lets_go.wait(60)

    def commit_transaction(self, *_: Any) -> None:
        self.committed = True

    def poll(self, *_: Any) -> None: ...

    init_transactions = begin_transaction = abort_transaction = poll


def test_a_call_that_never_returns_is_left_behind_with_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "Producer", Deaf)
    monkeypatch.setattr(kafka_sink, "OFFSETS_SECONDS", 0.05)
    monkeypatch.setattr(Deaf, "instances", [])
    once = kafka_sink.KafkaTransactions(parse_address("kafka://nowhere:9/results"), {})
    once.begin()
    with pytest.raises(TransientError, match="no answer of the group's coordinator"):
        once.commit([], None)
    once.abort()
    once.begin()
    once.commit([], None)
    first, second = Deaf.instances
    first.lets_go.set()
    assert (first.committed, second.committed) == (False, True)


def test_a_producer_whose_brokers_were_away_begins_no_other_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "Producer", Deaf)
    monkeypatch.setattr(Deaf, "instances", [])
    once = kafka_sink.KafkaTransactions(parse_address("kafka://nowhere:9/results"), {})
    once.begin()
    once.abort()
    once.client_errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "none"))
    once.begin()
    once.commit([], None)
    once.begin()  # nothing was lost since
    assert [producer.committed for producer in Deaf.instances] == [False, True]


def test_a_worker_that_commits_nothing_learns_that_brokers_are_back(cluster: KafkaCluster) -> None:
    """A worker that began while they were away, and has nothing to do since, is ready again."""
    once = kafka_sink.KafkaTransactions(parse_address(f"kafka://{cluster.hosts}/results"), {})
    sink = kafka_sink.ResultTopic(once, "results")
    once.client_errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "none"))
    assert "no broker answers" in sink.trouble
    eventually(lambda: sink.trouble == "")
    assert once.client_errors.times_all_down == 1  # and the next transaction begins with another producer all the same
    once.close()


class Broker:
    """One partition, one results topic, one group: commits are whole or not at all, and fail as real ones do.

    It is the source, the transactions and the last stage of one worker at once.
    """

    def __init__(self, seed: int, count: int) -> None:
        self.draw, self.count = random.Random(seed), count
        self.results: list[int] = []
        self.dead_letters: list[int] = []
        self.offset = self.position = self.generation = 0
        self.offsets = Offsets()
        self._open: list[int] = []
        self._open_dead_letters: list[int] = []

    def take(self) -> list[Message]:
        places = range(self.position, min(self.count, self.position + self.draw.randint(1, 5)))
        self.position = places.stop
        return [Message("alerts", str(place), b"", token=self.offsets.take(HERE, place)) for place in places]

    def lose(self) -> None:
        """The partition is taken away and comes back."""
        self.generation += 1
        self.offsets.drop([HERE])
        self.position = self.offset

    def transaction_offsets(self, messages: Sequence[Message]) -> TransactionOffsets:
        generation = self.generation
        owned, committable = self.offsets.committable_after(m.token for m in messages if isinstance(m.token, Token))
        positions: Any = [SimpleNamespace(offset=offset) for offset in committable.values()]
        return TransactionOffsets(owned, positions, generation)

    def is_committed(self, offsets: TransactionOffsets) -> bool:
        return bool(offsets.positions) and offsets.positions[0].offset == self.offset

    def acknowledge(self, messages: Sequence[Message]) -> None:
        # Whatever is told to be done is left out when it comes again: nothing may be told that nobody has answered.
        assert {int(message.place) for message in messages} <= {*self.results, *self.dead_letters}
        self.offsets.finish(m.token for m in messages if isinstance(m.token, Token))

    def acquire_commit_gate(self, timeout: float) -> bool:
        return True

    def release_commit_gate(self) -> None:
        pass

    def begin(self) -> None:
        assert (self._open, self._open_dead_letters) == ([], [])
        self._trip()

    async def publish(self, batch: Batch, results: Sequence[Any]) -> list[Any]:
        good = [one for one in results if int(one.message.place) % 7]
        for one in results:
            if one not in good:
                batch.give_up(one.message, one.number, DeadLetterCause("publish", "refused"))
        self._open += [int(one.message.place) for one in good]
        self._trip()
        return good

    async def write_dead_letters(self, batch: Batch, model: str) -> list[Message]:
        self._open_dead_letters += [int(one.message.place) for one in batch.dead]
        self._trip()
        return [one.message for one in batch.dead]

    def commit(self, positions: Sequence[Any], group: object) -> None:
        self._trip()
        if group != self.generation:
            raise TransientError("not a member any more")
        self.offset = max([self.offset, *(position.offset for position in positions)])
        self.results += self._open
        self.dead_letters += self._open_dead_letters
        self.abort()
        self._trip()  # and the answer is lost

    def abort(self) -> None:
        self._open, self._open_dead_letters = [], []

    def _trip(self) -> None:
        if self.draw.random() < 0.1:
            raise TransientError("a bad moment")


async def work(broker: Broker) -> Accounts:
    """Take and end batches until all is committed, losing the partition now and then."""
    accounts, stub = Accounts(Metrics()), broker
    once = ExactlyOnce(stub, stub, stub, Troubles(Metrics()))  # type: ignore[arg-type]  # a stub for both

    async def end(messages: list[Message]) -> None:
        batch, turn = Batch(messages, accounts, 0), once.next_turn()
        await asyncio.sleep(broker.draw.random() / 1000)
        outcome = SimpleNamespace(status="classified", reason="")
        results: Any = [SimpleNamespace(message=message, number=0, outcome=outcome) for message in messages]
        await once.conclude(batch, results, turn, "model")
        batch.return_all()

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
    return accounts


class Unanswering(Broker):
    """A broker that commits and does not say so; notes whether a transaction's time was ended."""

    released = False

    def release_commit_gate(self) -> None:
        self.released = True

    def commit(self, positions: Sequence[Any], group: object) -> None:
        super().commit(positions, group)
        raise TransientError("the answer is lost")

    def _trip(self) -> None: ...


def test_nobody_writes_a_journal_after_a_commit_that_stays_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal or a final commit would set the group back to before the transaction, and its alerts come twice."""
    monkeypatch.setattr(messages_module, "FIRST_PAUSE", 60.0)
    broker = Unanswering(0, 5)

    async def stop_in_doubt() -> None:
        once = ExactlyOnce(broker, broker, broker, Troubles(Metrics()))  # type: ignore[arg-type]  # as above
        messages = broker.take()
        outcome = SimpleNamespace(status="classified", reason="")
        results: Any = [SimpleNamespace(message=message, number=0, outcome=outcome) for message in messages]
        batch = Batch(messages, Accounts(Metrics()), 0)
        task = asyncio.create_task(once.conclude(batch, results, once.next_turn(), "model"))
        while not broker.offset:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stop_in_doubt())
    assert broker.offset > 0
    assert not broker.released


def test_a_transaction_that_is_cancelled_before_it_begins_ends_its_time() -> None:
    """A thread may still be given that time; kept for nobody, it would keep every journal and final commit away."""
    gate_requested, gate_opens = threading.Event(), threading.Event()

    class Slow(Unanswering):
        def acquire_commit_gate(self, timeout: float) -> bool:
            gate_requested.set()
            return gate_opens.wait(30)

    broker = Slow(0, 5)

    async def stop_before_it_begins() -> None:
        once = ExactlyOnce(broker, broker, broker, Troubles(Metrics()))  # type: ignore[arg-type]  # as above
        batch = Batch(broker.take(), Accounts(Metrics()), 0)
        task = asyncio.create_task(once.conclude(batch, [], once.next_turn(), "model"))
        await asyncio.to_thread(gate_requested.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        gate_opens.set()
        await asyncio.wait([task])

    asyncio.run(stop_before_it_begins())
    assert broker.released
    assert broker.offset == 0


@pytest.mark.parametrize("seed", range(6))
def test_everything_is_published_exactly_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(messages_module, "LONGEST_PAUSE", 0.001)
    broker = Broker(seed, 60)
    accounts = asyncio.run(asyncio.wait_for(work(broker), 60))
    assert broker.results == [number for number in range(60) if number % 7]
    assert broker.dead_letters == [number for number in range(60) if not number % 7]
    accounts.check()
    assert broker.offset == 60
    counts = accounts.summary()["alerts"]
    assert counts["in"] == counts["classified"] + counts["dead:refused"] + counts.get("returned", 0)
    # A commit whose answer is lost, and then the partition too: published, but nobody here can know.
    assert counts["classified"] <= len(broker.results)
    assert counts["dead:refused"] <= len(broker.dead_letters)
