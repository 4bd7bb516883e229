"""Replays of time ranges from a real Kafka."""

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from support.kafka_trial import Trial
from support.stream import alert, running

DAY_MS = 86_400_000
START_MS = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def topic(plain: Trial) -> str:
    """Topic of two partitions: 0 has 12 records of 20 November, 1 has 6 of 20 and 6 of 22 November."""
    name = f"{plain.source}-days"
    plain.create(name, 2)
    producer = Producer({"bootstrap.servers": plain.hosts, "log_level": 0})
    for number in range(24):
        partition, index = divmod(number, 12)
        days = 2 if partition == 1 and index >= 6 else 0
        producer.produce(name, alert(number), partition=partition, timestamp=START_MS + days * DAY_MS + 1000 * index)
    assert producer.flush(30) == 0
    return name


@pytest.mark.parametrize(
    ("query", "read", "status", "ranges"),
    [
        ("?since=2026-11-22", range(18, 24), 0, {"0": "no records", "1": "offsets 6 to 11"}),
        ("?since=2026-11-25", (), 1, {"0": "no records", "1": "no records"}),
        ("?since=2026-11-21&until=2026-11-22T00:00:08", range(18, 20), 0, {"0": "no records", "1": "offsets 6 to 7"}),
        ("?until=2026-11-20T00:00:02", (0, 1, 12, 13), 0, {"0": "offsets 0 to 1", "1": "offsets 0 to 1"}),
        ("", range(24), 0, {"0": "offsets 0 to 11", "1": "offsets 0 to 11"}),
    ],
)
def test_replay_by_time_reads_the_range_of_each_partition(
    plain: Trial, topic: str, query: str, read: Any, status: int, ranges: dict[str, str]
) -> None:
    source = f"kafka://{plain.hosts}/{topic}{query}"
    with capture_logs() as logs, running(plain.settings(source=source), replay=True) as worker:
        assert worker.join(60) == status
    assert worker.totals().get("classified", 0) == len(tuple(read))
    (account,) = [line for line in logs if line["event"] == "final account"]
    assert account["ranges"] == {f"{topic}/{number}": text for number, text in ranges.items()}
