"""Killed workers on a real Kafka: no duplicates with exactly-once, few with at-least-once, and no lost alerts.

SOAK_KILLS=100 NIGHTJAR_SOAK=1 python -m pytest -s tests/service/stream/cluster/test_kills.py
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from support.kafka_brokers import brokers, needs_brokers
from support.kafka_kills import BRIGHT, PARTITIONS, KillReport, run_kills
from support.kafka_trial import trial

pytestmark = needs_brokers
KILLS, ALERTS_PER_KILL, MAX_REPEATS_PER_KILL = 20, 300, 24


def report_of(folder: Path, exactly_once: bool, count: int = 1, busy: bool = False, kills: int = KILLS) -> KillReport:
    """Run a trial, print its report, and check that no alert was lost."""
    options: dict[str, Any] = {
        "exactly_once": exactly_once,
        "partitions": PARTITIONS,
        "replicas": count,
        "flux": BRIGHT,
        "transaction_ms": None,
    }
    with (
        brokers(folder, count) as cluster,
        trial(cluster.hosts(), folder, **options) as one,
    ):
        report = run_kills(one, kills, ALERTS_PER_KILL * kills, busy, seed=kills)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    assert report.lost == 0
    return report


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("count", [1, 3], ids=["one broker", "three brokers"])
def test_killed_workers_exactly_once_publish_no_duplicates(count: int, busy: bool, tmp_path: Path) -> None:
    report = report_of(tmp_path, True, count, busy)
    assert report.twice == 0, report.details


def test_many_killed_workers_exactly_once_publish_no_duplicates(tmp_path: Path) -> None:
    report = report_of(tmp_path, True, kills=int(os.environ.get("SOAK_KILLS", "100")))
    assert report.twice == 0, report.details


def test_killed_workers_at_least_once_repeat_few_alerts(tmp_path: Path) -> None:
    report = report_of(tmp_path, False)
    assert report.extra <= MAX_REPEATS_PER_KILL * KILLS
