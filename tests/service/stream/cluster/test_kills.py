"""Killed workers on a real Kafka: exactly once answers nothing twice, at least once repeats little, and none is lost.

SOAK_KILLS=100 NIGHTJAR_SOAK=1 python -m pytest -s tests/service/stream/cluster/test_kills.py
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from support.kafka_brokers import brokers, needs_brokers
from support.kafka_kills import PARTITIONS, run_kills
from support.kafka_trial import trial

pytestmark = needs_brokers
ALERTS_PER_KILL, MAX_REPEATS_PER_KILL = 300, 24


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("count", [1, 3], ids=["one broker", "three brokers"])
def test_killed_workers_exactly_once_answer_no_alert_twice(count: int, busy: bool, tmp_path: Path) -> None:
    kills = int(os.environ.get("SOAK_KILLS", "20"))
    with (
        brokers(tmp_path, count) as cluster,
        trial(
            cluster.hosts(), tmp_path, exactly_once=True, partitions=PARTITIONS, replicas=count, transaction_ms=None
        ) as one,
    ):
        report = run_kills(one, kills, ALERTS_PER_KILL * kills, busy, seed=kills)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    assert (report.twice, report.lost) == (0, 0), report.details


def test_killed_workers_at_least_once_repeat_little(tmp_path: Path) -> None:
    kills = int(os.environ.get("SOAK_KILLS", "20"))
    with brokers(tmp_path) as cluster, trial(cluster.hosts(), tmp_path, partitions=PARTITIONS) as one:
        report = run_kills(one, kills, ALERTS_PER_KILL * kills, seed=kills)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    assert report.lost == 0
    assert report.extra <= MAX_REPEATS_PER_KILL * kills
