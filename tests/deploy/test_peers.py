"""Other servers beside ours: the endpoint that needs no installation runs, and one that does not is left out."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from deploy.bench import peers
from deploy.bench.bare import Bare
from deploy.bench.peers import NoServer
from deploy.bench.throughput import WrongAnswer
from deploy.bench.workload import alert_mix

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_an_endpoint_answers_what_the_network_answers_alone(tiny_bundle: Path) -> None:
    curves = alert_mix(12, seed=1)
    expected = Bare.of(tiny_bundle, curves).probabilities()
    (row,) = peers.measure_server("fastapi", Path(sys.executable), tiny_bundle, curves, expected)
    assert row.server == "fastapi"
    assert row.per_second > 0
    assert row.p50_ms <= row.p99_ms
    with pytest.raises(WrongAnswer):
        list(peers.measure_server("fastapi", Path(sys.executable), tiny_bundle, curves, np.zeros_like(expected)))


def test_a_server_that_does_not_start_is_no_server(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "START_SECONDS", 1.5)
    curves = alert_mix(2, seed=1)
    with pytest.raises(NoServer, match="no answer"):
        list(peers.measure_server("mosec", Path(sys.executable), tiny_bundle, curves, np.zeros((2, 20))))


@pytest.mark.nightly
def test_servers_that_cannot_be_installed_are_left_out(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(folder: Path, requires: Sequence[str]) -> Path:
        raise NoServer("pip: no such thing")

    monkeypatch.setattr(peers, "install", nothing)
    lines: list[str] = []
    rows = peers.measure(tiny_bundle, ["ray"], Path("nowhere"), curves=8, rounds=1, say=lines.append)
    assert [row.server for row in rows] == ["Nightjar"]
    assert lines[0] == "ray is left out: pip: no such thing"


def test_the_table_has_the_quickest_first() -> None:
    rows = [peers.PeerRow("slow", 10.0, 5.0, 9.0), peers.PeerRow("quick, batches of 64", 1100.0, 1.0, 2.0)]
    rows += [peers.PeerRow("slow", 30.0, 7.0, 11.0)]
    assert peers.table(rows).splitlines()[2:] == [
        "| quick, batches of 64 | 1,100 | 1,100 to 1,100 | 1.0 | 2.0 |",
        "| slow | 20 | 10 to 30 | 6.0 | 10.0 |",
    ]
    assert peers.numbers(rows)["peers.slow.per_s"] == {"median": 20.0, "spread": 20.0}
    assert "peers.quick_batch_64.p99_ms" in peers.numbers(rows)
