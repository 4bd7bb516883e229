"""Missing output topics and patterns without a match are reported on a real Kafka."""

from time import monotonic

from support.kafka_brokers import produce
from support.kafka_trial import Trial
from support.stream import alert, dead_letters, eventually, running


def test_missing_sink_topic_is_named_and_waited_for(both: Trial) -> None:
    missing = f"{both.sink}-later"
    sink = both.addresses()["sink"].replace(f"/{both.sink}", f"/{missing}")
    produce(both.hosts, both.source, [alert(1)])
    with running(both.settings(sink=sink)) as worker:
        eventually(lambda: missing in worker.ask("/readyz")[1], seconds=20)
        assert worker.ask("/readyz")[0] == 503
        both.create(missing, 1)
        eventually(lambda: worker.totals().get("classified") == 1, seconds=120)
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        assert worker.stop() == 0
    assert dead_letters(both.folder) == []


def test_missing_dead_letter_topic_is_named(plain: Trial) -> None:
    missing = f"{plain.dead}-later"
    with running(plain.settings(dead_letters=f"kafka://{plain.hosts}/{missing}")) as worker:
        eventually(lambda: missing in worker.ask("/readyz")[1], seconds=20)
        plain.create(missing, 1)
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        assert worker.stop() == 0


def test_worker_with_a_missing_sink_topic_stops_within_its_time(plain: Trial) -> None:
    produce(plain.hosts, plain.source, [alert(1)])
    sink = plain.addresses()["sink"].replace(f"/{plain.sink}", f"/{plain.sink}-later")
    with running(plain.settings(sink=sink, drain_timeout=2)) as worker:
        eventually(lambda: worker.totals().get("in") == 1)
        started = monotonic()
        assert worker.stop() == 0
        assert monotonic() - started < 12
    assert worker.totals() == {"in": 1, "returned": 1, "pending": 0}


def test_source_pattern_without_topics_is_named(plain: Trial) -> None:
    source = plain.addresses()["source"].replace(f"/{plain.source}?", f"/^{plain.source}-night-[0-9]{{6,8}}?")
    with running(plain.settings(source=source)) as worker:
        eventually(lambda: "do not exist: ^" in worker.ask("/readyz")[1], seconds=30)
        assert worker.ask("/healthz")[0] == 200
        topic = f"{plain.source}-night-20261121"
        plain.create(topic, 1)
        produce(plain.hosts, topic, [alert(1)])
        eventually(lambda: worker.totals().get("classified") == 1, seconds=120)
        assert worker.stop() == 0
