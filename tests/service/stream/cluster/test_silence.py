"""Three brokers that are silent in turn: the worker lives, and no message is called suspect.

NIGHTJAR_SOAK=1 python -m pytest -s tests/service/stream/cluster/test_silence.py
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from support.kafka_brokers import brokers, needs_brokers
from support.kafka_kills import BRIGHT, PARTITIONS
from support.kafka_silence import run_silence
from support.kafka_trial import trial

pytestmark = needs_brokers
BUSY = pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
FAULTS: dict[str, dict[str, Any]] = {
    "under load": {},
    "with a backlog": {"session_ms": 3000, "rate": 6000.0},
    "two workers": {"workers": 2, "session_ms": 3000},
    "long, one after another": {"session_ms": 45_000, "silent": 15.0, "pause": 1.0},
}


@BUSY
@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly once", "at least once"])
@pytest.mark.parametrize("fault", FAULTS)
def test_brokers_silent_in_turn_are_survived(fault: str, exactly_once: bool, busy: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"partitions": PARTITIONS, "replicas": 3, "flux": BRIGHT, "transaction_ms": None}
    with (
        brokers(tmp_path, 3) as cluster,
        trial(cluster.hosts(), tmp_path, exactly_once=exactly_once, **options) as one,
    ):
        report = run_silence(one, cluster, busy=busy, **FAULTS[fault])
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    assert report.passed, report


def test_brokers_silent_for_a_minute_each_are_survived(tmp_path: Path) -> None:
    options: dict[str, Any] = {"partitions": PARTITIONS, "replicas": 3, "flux": BRIGHT, "transaction_ms": None}
    with brokers(tmp_path, 3) as cluster, trial(cluster.hosts(), tmp_path, exactly_once=True, **options) as one:
        report = run_silence(one, cluster, rate=30.0, silent=60.0)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    assert report.passed, report
