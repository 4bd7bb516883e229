"""Worker with librdkafka's mock brokers, which go down, change leaders and rebalance."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from structlog.testing import capture_logs

from nightjar_alerts.service.stream import publishing
from nightjar_alerts.service.stream import worker as worker_module
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.connectors import Connectors, open_connectors
from nightjar_alerts.service.stream.kafka import commits
from nightjar_alerts.service.stream.kafka import sink as sink_module
from nightjar_alerts.service.stream.kafka import source as source_module
from nightjar_alerts.service.stream.kafka.assignment import Assignment
from nightjar_alerts.service.stream.kafka.client import ClientErrors
from nightjar_alerts.service.stream.kafka.commits import MAX_UNCOMMITTED
from nightjar_alerts.service.stream.kafka.sink import KafkaSink, produce_and_wait
from nightjar_alerts.service.stream.kafka.source import KafkaSource
from nightjar_alerts.service.stream.messages import (
    PART_MESSAGES,
    FatalError,
    Record,
    RecordTooLargeError,
    TransientError,
)
from support.edge import Network, wait_until
from support.graphs import poison
from support.kafka_cluster import LEAVE_GROUP, KafkaCluster, LostClient, kafka_cluster
from support.stream import FAST_GROUP, alert, chosen, dead_letters, eventually, results, running

pytestmark = pytest.mark.slow

Ids = Callable[[], set[int]]


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with kafka_cluster(2) as cluster:
        cluster.create("alerts", 4)
        cluster.create("results", 2)
        yield cluster


def source(cluster: KafkaCluster, topics: str = "alerts") -> str:
    return f"kafka://{cluster.hosts}/{topics}?{FAST_GROUP}"


def settings(cluster: KafkaCluster, folder: Path, **changes: Any) -> Any:
    usual = {"source": source(cluster), "sink": f"kafka://{cluster.hosts}/results"}
    return chosen(folder, **(usual | changes))


def published(cluster: KafkaCluster, expected: int) -> list[dict[str, Any]]:
    return [json.loads(message.value()) for message in cluster.read("results", expected)]


def test_kafka_schema_ids_in_headers_are_used(cluster: KafkaCluster, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": cluster.hosts})
    framed = [alert(number) for number in range(4)]
    headers: list[list[tuple[str, bytes]]] = [
        [("__value_schema_id", framed[0][:5])],
        [("apicurio.value.globalId", bytes(4) + framed[1][1:5]), ("other", b"")],
        [("__value_schema_id", b"\1" + bytes(16))],
    ]
    for value, header in zip(framed, headers, strict=False):
        producer.produce("alerts", value[5:], headers=header)
    producer.produce("alerts", framed[3], headers=[("empty", None)])
    assert producer.flush(60) == 0
    with running(settings(cluster, tmp_path)) as worker:
        eventually(lambda: worker.totals().get("pending") == 0 and worker.totals().get("in") == 4)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 4, "classified": 3, "dead:unknown_schema": 1, "pending": 0}
    (dead,) = dead_letters(tmp_path)
    assert "__value_schema_id" in dead["headers"]["nightjar-dead-detail"]


def test_worker_kafka_topics_classifies_alerts(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.produce("alerts", [*map(alert, range(80)), b"junk"])
    with running(settings(cluster, tmp_path, batch_messages=16)) as worker:
        wait_until(lambda: worker.totals().get("pending") == 0 and worker.totals().get("in") == 81)
        assert worker.stop() == 0
    messages = cluster.read("results", 80)
    answers = [json.loads(message.value()) for message in messages]
    assert [message.key().decode() for message in messages] == [one["key"] for one in answers]
    assert len({one["key"] for one in answers}) == len(answers) == 80
    assert ("nightjar-status", b"classified") in messages[0].headers()
    assert worker.totals() == {"in": 81, "classified": 80, "dead:unknown_envelope": 1, "pending": 0}
    (dead,) = dead_letters(tmp_path)
    assert dead["value"] == b"junk"
    assert worker.metric("nightjar_stream_broker_age_seconds_count") == 81


def test_kafka_second_worker_continues_where_the_first_stopped(cluster: KafkaCluster, tmp_path: Path) -> None:
    for start in (0, 30):
        cluster.produce("alerts", [alert(number) for number in range(start, start + 30)])
        with running(settings(cluster, tmp_path)) as worker:
            wait_until(lambda: worker.totals().get("classified") == 30)
            assert worker.stop() == 0
    keys = [one["key"] for one in published(cluster, 60)]
    assert len(keys) == len(set(keys)) == 60


def test_kafka_unfinished_messages_are_delivered_again(cluster: KafkaCluster, tmp_path: Path) -> None:
    network = Network()
    network.hold()
    cluster.produce("alerts", [alert(number) for number in range(20)])
    with running(settings(cluster, tmp_path, drain_timeout=0), network) as worker:
        wait_until(lambda: worker.totals().get("in") == 20)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 20, "returned": 20, "pending": 0}
    with running(settings(cluster, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 20)
        assert worker.stop() == 0


@pytest.fixture
def ids(cluster: KafkaCluster) -> Iterator[Ids]:
    """Yield a function that returns the numbers of the published alerts."""
    with cluster.following("results") as so_far:
        yield lambda: {int(json.loads(message.value())["alert_id"]) - 10_000 for message in so_far()}


def test_kafka_two_workers_share_the_partitions(cluster: KafkaCluster, ids: Ids, tmp_path: Path) -> None:
    with running(settings(cluster, tmp_path)) as first:
        cluster.produce("alerts", [alert(number) for number in range(20)])
        eventually(lambda: len(ids()) == 20)
        with running(settings(cluster, tmp_path)) as second:
            count = 20
            while not second.totals().get("classified"):  # until the group has made room for it
                cluster.produce("alerts", [alert(count + number) for number in range(20)])
                count += 20
                eventually(lambda: len(ids()) == count)  # noqa: B023 - asked within this turn
            assert second.stop() == 0
        cluster.produce("alerts", [alert(count + number) for number in range(20)])
        eventually(lambda: len(ids()) == count + 20)
        assert first.stop() == 0
    assert first.totals()["pending"] == second.totals()["pending"] == 0


def test_kafka_outage_loses_no_alert(cluster: KafkaCluster, ids: Ids, tmp_path: Path) -> None:
    limits = {"batch_messages": 10, "max_inflight_messages": 20}
    sink = f"kafka://{cluster.hosts}/results?message.timeout.ms=1500"
    cluster.produce("alerts", [alert(number) for number in range(30)])
    with running(settings(cluster, tmp_path, sink=sink, **limits)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 30)
        cluster.produce("alerts", [alert(30 + number) for number in range(30)])
        for broker in (1, 2):
            cluster.set_down(broker)
        eventually(lambda: worker.metric("nightjar_stream_broker_age_seconds_count") >= 30)
        for broker in (1, 2):
            cluster.set_up(broker)
        eventually(lambda: ids() == set(range(60)), 60)
        assert worker.stop() == 0


def test_kafka_moved_leader_is_followed(cluster: KafkaCluster, ids: Ids, tmp_path: Path) -> None:
    with running(settings(cluster, tmp_path)) as worker:
        for turn in range(3):
            for topic, partitions in (("alerts", 4), ("results", 2)):
                for partition in range(partitions):
                    cluster.set_leader(topic, partition, 1 + (turn + partition) % 2)
            cluster.produce("alerts", [alert(20 * turn + number) for number in range(20)])
            eventually(lambda: len(ids()) == 20 * (turn + 1))  # noqa: B023 - asked within this turn
        assert worker.stop() == 0


def test_kafka_dead_letters_keep_the_message_and_are_replayed(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.create("dead", 1)
    network = Network()
    network.on_marker = {3.0: poison}
    cluster.produce("alerts", [alert(3)], keys=[b"the key"], headers=[("origin", b"a survey")])
    dead = {"dead_letters": f"kafka://{cluster.hosts}/dead"}
    with running(settings(cluster, tmp_path, **dead), network) as worker:
        wait_until(lambda: worker.totals().get("dead:inference_failed") == 1)
        assert worker.stop() == 0
    (message,) = cluster.read("dead", 1)
    headers = dict(message.headers())
    assert (message.value(), headers["origin"]) == (alert(3), b"a survey")
    assert bytes.fromhex(headers["nightjar-dead-key"].decode()) == b"the key"
    with running(settings(cluster, tmp_path, source=f"kafka://{cluster.hosts}/dead", **dead), replay=True) as worker:
        assert worker.join() == 0
    (answer,) = published(cluster, 1)
    assert answer["key"] == "alerts/10003/echo-0.0.1"


def test_kafka_replay_reads_a_range_of_offsets(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.produce("alerts", [alert(number) for number in range(50)], partition=2)
    chosen_range = f"kafka://{cluster.hosts}/alerts?partition=2&from=10&to=25"
    sink = f"file:{tmp_path}/results.jsonl"
    with running(settings(cluster, tmp_path, source=chosen_range, sink=sink), replay=True) as worker:
        assert worker.join() == 0
    assert [one["alert_id"] for one in results(tmp_path)] == [str(10_000 + number) for number in range(10, 25)]
    assert worker.metric("nightjar_stream_alert_age_seconds_count", survey="lsst") == 0


def test_kafka_replay_without_a_range_ends(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.produce("alerts", [alert(number) for number in range(50)])
    whole = f"kafka://{cluster.hosts}/alerts"
    with running(settings(cluster, tmp_path, source=whole), replay=True) as worker:
        assert worker.join() == 0
    assert worker.totals()["classified"] == 50


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        ("nope", "no topic nope"),
        ("alerts,nope", "no topic nope"),
        ("^nope.*", "no topic matches ^nope.*"),
        ("alerts?partition=7", "no partition 7 of topic alerts"),
        ("alerts?partition=1&from=900", "no record of alerts/1 is in the range"),
    ],
)
def test_kafka_replay_without_a_match_fails_and_names_it(
    topics: str, reason: str, cluster: KafkaCluster, tmp_path: Path
) -> None:
    cluster.produce("alerts", [alert(1)], partition=0)
    source = f"kafka://{cluster.hosts}/{topics}"
    with capture_logs() as logs, running(settings(cluster, tmp_path, source=source), replay=True) as worker:
        assert worker.join() == 1
    (account,) = [line for line in logs if line["event"] == "final account"]
    assert account["unmatched"] == [reason]


def test_failing_dead_letter_folder_stops_publishing_at_the_commit_window(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "WINDOW_TIMEOUT_SECONDS", 1.0)
    count = 3 * MAX_UNCOMMITTED
    cluster.create("one", 1)
    changes = {"source": source(cluster, "one"), "sink": f"file:{tmp_path}/results.jsonl"}
    with running(settings(cluster, tmp_path, **changes)) as worker:
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        (tmp_path / "letters").rmdir()
        (tmp_path / "letters").write_text("")
        cluster.produce("one", [*map(alert, range(5)), b"junk", *map(alert, range(5, count))], partition=0)
        eventually(lambda: "dead letters" in worker.ask("/readyz")[1])
        time.sleep(3 * publishing.WINDOW_TIMEOUT_SECONDS)
        assert len(results(tmp_path)) <= MAX_UNCOMMITTED
        (tmp_path / "letters").unlink()
        eventually(lambda: worker.totals().get("classified") == count)
        assert worker.stop() == 0
    assert len(results(tmp_path)) == count
    assert len(dead_letters(tmp_path)) == 1


def test_replay_reads_topics_by_pattern(cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster.produce("alerts", [alert(number) for number in range(10)])
    source = f"kafka://{cluster.hosts}/^al.*"
    with running(settings(cluster, tmp_path, source=source), replay=True) as worker:
        assert worker.join() == 0
    assert worker.totals()["classified"] == 10


@pytest.mark.parametrize("first", [0, 10])
def test_kafka_heartbeat_loses_no_message(cluster: KafkaCluster, first: int) -> None:
    cluster.produce("alerts", [b"%d" % number for number in range(100)])
    member = KafkaSource(parse_address(source(cluster)), {})
    # Without a poll before, its partitions are assigned while it only stays alive.
    messages = member.poll(first, 5.0) if first else []
    for _ in range(40):
        member.heartbeat(0.02)
    while len(messages) < 100 and (more := member.poll(50, 2.0)):
        messages += more
    assert sorted(int(message.value) for message in messages) == list(range(100))
    member.acknowledge(messages[:60])
    member.close()


def test_kafka_number_of_uncommitted_alerts_stays_small(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of alerts that a kill would publish twice stays small, however many are in flight."""
    publish, publishing, most, ends = KafkaSink.publish, Counter[str](), list[int](), list[Connectors]()

    def opened(*arguments: Any) -> Connectors:
        ends.append(open_connectors(*arguments))
        return ends[-1]

    def watched(self: KafkaSink, records: Sequence[Record]) -> list[Any]:
        publishing["now"] += len(records)
        reports = publish(self, records)
        most.append(publishing["now"] + MAX_UNCOMMITTED - (ends[0].source.commit_window() or 0))
        publishing["now"] -= len(records)
        return reports

    monkeypatch.setattr(worker_module, "open_connectors", opened)
    monkeypatch.setattr(KafkaSink, "publish", watched)
    monkeypatch.setattr(commits, "PART_MESSAGES", MAX_UNCOMMITTED)  # the widest window from the start
    cluster.produce("alerts", [alert(number) for number in range(3 * MAX_UNCOMMITTED)])
    with running(settings(cluster, tmp_path)) as worker:
        wait_until(lambda: worker.totals().get("classified") == 3 * MAX_UNCOMMITTED)
        assert worker.stop() == 0
    assert 0 < max(most) <= MAX_UNCOMMITTED


def test_commit_window_grows_with_commits_in_time_and_is_reset_by_a_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill repeats the messages in the window, so it must not fill while commits fail."""
    partition, assignment = ("alerts", 0), Assignment(5)
    assignment.add([partition])
    assignment.start(partition, 0, None)
    assigned = assignment.get(partition)
    assert assigned is not None
    assigned.first_offset, offset = 0, 0
    consumer = commits.ConsumerCommits(assignment, ClientErrors("source"))
    consumer.consumer = cast(Any, SimpleNamespace(commit=lambda **_: None))
    monkeypatch.setattr(commits, "LATE_SECONDS", 60.0)
    sizes = [PART_MESSAGES, 2 * PART_MESSAGES, 4 * PART_MESSAGES, 8 * PART_MESSAGES, MAX_UNCOMMITTED, MAX_UNCOMMITTED]
    for size in sizes:
        assert consumer.window == size
        assignment.finish([assignment.deliver(partition, offset + number) for number in range(size // 2)])
        offset += size // 2
        assert consumer.window == size - size // 2
        consumer.send(())
        assert consumer.in_flight
        consumer.on_commit(None, [TopicPartition(*partition, offset)])
    assignment.finish([assignment.deliver(partition, offset)])
    consumer.send([partition])
    monkeypatch.setattr(commits, "LATE_SECONDS", 0.0)
    assert consumer.window == PART_MESSAGES - 1
    consumer.on_commit(None, [TopicPartition(*partition, offset + 1)])
    monkeypatch.setattr(commits, "LATE_SECONDS", 60.0)
    assert consumer.window == PART_MESSAGES


def test_kafka_worker_stopped_under_load_commits_while_it_drains(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages are in flight than may be published without a commit, and all are published."""
    monkeypatch.setattr(publishing, "WINDOW_TIMEOUT_SECONDS", 600.0)
    cluster.produce("alerts", [alert(number) for number in range(600)])
    with running(settings(cluster, tmp_path, drain_timeout=300)) as worker:
        worker.network.hold()
        wait_until(lambda: worker.totals().get("in") == 600)
        threading.Timer(0.5, worker.network.release).start()
        assert worker.stop(300) == 0
    assert worker.totals() == {"in": 600, "classified": 600, "pending": 0}


@pytest.mark.parametrize(("option", "leaves"), [("", 1), ("&group.instance.id=first", 0)])
def test_kafka_static_member_stops_without_leaving_its_group(cluster: KafkaCluster, option: str, leaves: int) -> None:
    """A restart within ``session.timeout.ms`` then moves no partition; the mock brokers cannot show that part."""
    cluster.produce("alerts", [b"1"])
    member = KafkaSource(parse_address(source(cluster) + option), {})
    eventually(lambda: len(member.poll(1, 0.2)) == 1)
    cluster.watch()
    member.close()
    assert cluster.request_counts()[LEAVE_GROUP] == leaves


@pytest.mark.parametrize("option", ["no.such.property=1", "message.timeout.ms=soon", "grup=g"])
def test_kafka_invalid_property_is_reported(cluster: KafkaCluster, option: str) -> None:
    where = parse_address(f"kafka://{cluster.hosts}/results?{option}")
    for end in (KafkaSink, KafkaSource):
        with pytest.raises(AddressError):
            end(where, {})


def test_kafka_source_is_not_a_member_before_joining_and_after_losing_partitions(cluster: KafkaCluster) -> None:
    newcomer = KafkaSource(parse_address(source(cluster)), {})

    def stands(member: bool) -> bool:
        newcomer.poll(1, 0.1)
        return newcomer.status().member == member

    assert not newcomer.status().member
    eventually(lambda: stands(True))
    for broker in (1, 2):
        cluster.set_down(broker)
    eventually(lambda: stands(False))
    for broker in (1, 2):
        cluster.set_up(broker)
    eventually(lambda: stands(True))
    newcomer.close()


def test_kafka_large_record_is_rejected_and_one_for_a_missing_topic_waits(cluster: KafkaCluster) -> None:
    sink = KafkaSink(parse_address(f"kafka://{cluster.hosts}/results"), {})
    reports = sink.publish([Record(b"a", b"v"), Record(b"b", bytes(65 << 20)), Record(b"c", b"v")])
    assert [type(report) for report in reports] == [type(None), RecordTooLargeError, type(None)]
    sink.close()
    nobody = KafkaSink(parse_address("kafka://127.0.0.1:9/results?message.timeout.ms=300"), {"log_level": 0})
    assert [type(report) for report in nobody.publish([Record(b"a", b"v")])] == [TransientError]
    nobody.close()


def test_produce_and_wait_several_threads_only_one_polls(cluster: KafkaCluster) -> None:
    """A producer passes a report to the first thread that polls; another polling thread would wait in vain."""
    producer, polling, most = Producer({"bootstrap.servers": cluster.hosts}), Counter[str](), list[int]()

    class Watched:
        produce = staticmethod(producer.produce)

        @staticmethod
        def poll(seconds: float) -> int:
            polling["now"] += 1
            most.append(polling["now"])
            count = int(producer.poll(seconds))
            polling["now"] -= 1
            return count

    poll_lock, records = threading.Lock(), [("results", Record(b"%d" % number, b"v")) for number in range(20)]

    def publish(_: int) -> list[Any]:
        return produce_and_wait(cast(Producer, Watched), records, 60.0, poll_lock)

    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(publish, range(40)))
    assert reports == [[None] * len(records)] * 40
    assert set(most) == {1}


def test_kafka_idle_sink_notices_that_brokers_are_back(cluster: KafkaCluster) -> None:
    sink = KafkaSink(parse_address(f"kafka://{cluster.hosts}/results"), {})
    sink.client_errors.record(KafkaError(KafkaError._ALL_BROKERS_DOWN, "none"))
    assert "no broker answers" in str(sink.client_errors)
    eventually(lambda: sink.error == "")
    sink.close()


def test_kafka_poll_after_the_client_lost_its_brokers_raises_fatal_error(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(source_module, "LOST_SECONDS", 1.5)
    monkeypatch.setattr(source_module, "Consumer", LostClient)
    member = KafkaSource(parse_address(source(cluster)), {})

    def poll_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            member.poll(20, 0.2)

    with pytest.raises(FatalError, match="lost its brokers"):
        poll_for(60)
    member.close()


class Idle(Consumer):  # type: ignore[misc]  # confluent-kafka has no types
    """Consumer whose group assigns it no partitions."""

    def subscribe(self, topics: list[str], *, on_assign: Callable[..., None], **callbacks: Any) -> None:
        super().subscribe(topics, on_assign=lambda consumer, _: on_assign(consumer, []), **callbacks)


def test_kafka_poll_while_waiting_for_the_group_continues(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(source_module, "LOST_SECONDS", 0.3)
    monkeypatch.setattr(source_module, "Consumer", Idle)
    member = KafkaSource(parse_address(source(cluster)), {})
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert member.poll(1, 0.1) == []
    member.close()


def test_kafka_publish_after_the_client_lost_its_brokers_raises_fatal_error(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers respond to other clients, so this is not an outage."""
    monkeypatch.setattr(sink_module, "LOST_SECONDS", 0.5)
    unreachable = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}
    monkeypatch.setattr(sink_module, "Producer", lambda config: Producer(config | unreachable))
    sink = KafkaSink(parse_address(f"kafka://{cluster.hosts}/results?message.timeout.ms=300"), {})

    def publish(times: int) -> None:
        for _ in range(times):
            sink.publish([Record(b"a", b"v")])

    with pytest.raises(FatalError, match="delivered nothing"):
        publish(20)
    sink.close()
