"""The benchmark runs from end to end, on an untrained network and with few requests; its figures are not judged."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from deploy.bench import report, stream, throughput, workload
from deploy.bench.bare import Bare
from deploy.bench.workload import requests
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.models.lightcurve import LightCurve
from support.redis import needs_redis

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def quiet(_: str) -> None:
    pass


def test_curves_are_valid_and_fixed_by_the_seed() -> None:
    drawn = workload.alert_mix(40, seed=3)
    assert drawn == workload.alert_mix(40, seed=3)
    for curve in drawn:
        LightCurve.from_columns(curve["mjd"], curve["flux"], curve["flux_err"], curve["band"])
    assert Counter(bool(curve["metadata"]) for curve in drawn) == {True: 20, False: 20}


def test_the_mix_holds_every_kind() -> None:
    plan = requests(400, [b"packet"], seed=0)
    assert Counter(one.vanish for one in plan)[True] > 0
    paths = {one.data.split(b" ")[1] for one in plan}
    assert paths == {b"/v1/classify", b"/v1/alerts", b"/v1/models", b"/healthz", b"/readyz", b"/metrics", b"/nowhere"}


def test_spread_is_the_full_range() -> None:
    assert report.spread([3.0, 1.0, 2.5]) == {"median": 2.5, "spread": 2.0}


def test_a_wrong_answer_ends_the_measurement(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(self: Bare) -> np.ndarray:
        return np.zeros((len(self.inputs), 20))

    monkeypatch.setattr(Bare, "probabilities", altered)
    with pytest.raises(throughput.WrongAnswer):
        throughput.measure(tiny_bundle, curves=32, rounds=1, say=quiet)


def test_bench_writes_flat_numbers(tiny_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "bench.json"
    command = [sys.executable, "-m", "deploy.bench", f"--output={output}", f"--bundle={tiny_bundle}", "--requests=100"]
    command += ["--curves=32", "--rounds=2", "--starts=1", '--parts=["throughput"]']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(output.read_text())
    for key, value in written.items():
        assert isinstance(value, str | int | float) or set(value) == {"median", "spread"}, key
    assert written["http.max_abs_difference_to_bare"] <= 1e-4
    for arm in ("lone", "json_1", "json_64", "msgpack_64"):
        assert written[f"http.{arm}.vs_bare"]["median"] > 0
        assert written[f"http.{arm}.p99_ms"]["median"] > 0
    assert written["coldstart.first_s"] > 0
    assert written["coldstart.ready_s"]["median"] > 0
    assert written["memory.replies.server_errors"] == 0
    assert written["memory.rss_mb.at_100"] > 0
    assert "commit" in written


@pytest.mark.nightly
def test_grpc_is_measured(tiny_bundle: Path) -> None:
    pytest.importorskip("grpc_health", reason="grpc is missing: pip install 'nightjar-alerts[grpc]'")
    from deploy.bench import grpc_bench

    numbers = grpc_bench.measure(tiny_bundle, curves=128, rounds=1, say=quiet)
    for arm in ("lone_1", "lone_64", "1", "64"):
        ratio = numbers[f"grpc.grpc_{arm}.vs_http"]
        assert isinstance(ratio, dict)
        assert ratio["median"] > 0


@pytest.mark.nightly
@needs_redis
def test_the_stream_is_measured(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WORKERS", (1,))
    monkeypatch.setattr(stream, "VISITS", (2000,))
    monkeypatch.setattr(stream, "ARRIVAL_SECONDS", 0.2)
    monkeypatch.setattr(stream, "STEADY_SECONDS", 1)
    measured = stream.measure(tiny_bundle, 0.02, 400_000, quiet)
    assert float(str(measured["stream.decode_vs_fastavro"])) > 0
    assert set(measured) >= {
        "stream.drain_per_s.workers_1",
        "stream.vs_bare",
        "stream.vs_bare_one_by_one",
        "stream.visit_2k_s",
        "stream.age_p99_ms",
    }
    assert float(str(measured["stream.backlog.answered"])) < 8000  # the backlog still waits
    assert all(isinstance(value, float) and value > 0 for key, value in measured.items() if "growth" not in key)


def test_a_visit_is_as_stated() -> None:
    packets = [read_packet(data)[0] for data in workload.visit(400)]
    sizes = Counter(len(one.curve or ()) for one in packets if isinstance(one, Packet))
    assert set(sizes) == {1 + detections + forced for _, detections, forced in workload.MIX}
    assert sum(sizes.values()) == 400
    assert 0.6 < sizes[1] / 400 < 0.8


def test_packed_request_holds_every_column() -> None:
    curves = workload.alert_mix(3, seed=2)
    head, _, body = workload.packed_request(curves).data.partition(b"\r\n\r\n")
    assert b"Content-Type: application/msgpack" in head
    for curve, packed in zip(curves, msgspec.msgpack.decode(body)["light_curves"], strict=True):
        assert np.frombuffer(packed["mjd"], "<f8").tolist() == curve["mjd"]
        assert np.frombuffer(packed["flux"], "<f4") == pytest.approx(curve["flux"])
        assert len(packed["band"]) == len(curve["band"])
        assert ("metadata" in packed) == bool(curve["metadata"])


def test_answered_with_another_status_raises() -> None:
    assert throughput.answered({"statuses": {"200": 3}}) == {"statuses": {"200": 3}}
    with pytest.raises(throughput.WrongAnswer, match="429"):
        throughput.answered({"statuses": {"200": 3, "429": 1}})


def test_no_light_curve_of_the_load_has_two_observations_of_one_time() -> None:
    """A service would refuse it; among six thousand there was one, until times were kept apart."""
    assert all((np.diff(curve["mjd"]) > 0).all() for curve in workload.alert_mix(6000, seed=2))
