"""8-bit weights: how batches are cut, what small weights answer, and what a trial tells."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.export import quantize
from nightjar_alerts.training.export.profile import random_inputs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_batches_hold_every_curve_once_and_no_more_than_the_budget(budget: int) -> None:
    rng = np.random.default_rng(0)
    curves = [range(int(length)) for length in rng.integers(1, 90, 50)]
    batches = quantize.cut_by_length(curves, budget)
    assert sorted(len(one) for some in batches for one in some) == sorted(map(len, curves))
    assert all(len(some) * max(map(len, some)) <= budget or len(some) == 1 for some in batches)


def test_weights_of_8_bits_answer_nearly_the_same(tiny_bundle: Path, tmp_path: Path) -> None:
    graph = load_bundle(tiny_bundle).model
    inputs = random_inputs(3, 20, metadata=True)
    single = run(open_session(graph), inputs)["probabilities"]
    made = {
        "MatMulInteger": quantize.as_int8(graph, tmp_path / "dynamic.onnx"),
        "QuantizeLinear": quantize.as_static_int8(graph, tmp_path / "static.onnx", [inputs]),
    }
    for operator, small in made.items():
        assert operator in {node.op_type for node in onnx.load(small).graph.node}
        np.testing.assert_allclose(run(open_session(small), inputs)["probabilities"], single, atol=0.2)


def test_a_trial_tells_scores_times_and_a_verdict(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "SHAPES", {"1 of 5": (1, 5)})
    monkeypatch.setattr(quantize, "SECONDS", 0.0)
    told = quantize.trial(tiny_bundle, per_class=2)
    assert set(told) == {"curves", "single", "dynamic", "static"}
    assert 0 < told["curves"] < 40  # those of calibration are not scored
    for way in ("dynamic", "static"):
        assert told[way]["changed"] == pytest.approx(told[way]["macro_f1"] - told["single"]["macro_f1"], abs=2e-4)
        assert 0 < told[way]["moves"] < 0.3
        assert told[way]["moves_by_mates"] >= 0
        assert told[way]["standard_error"] >= 0
        assert set(told[way]["time"]) == {"1 of 5"}


@pytest.mark.parametrize(
    ("macro_f1", "slowest", "by_mates", "worth"),
    [(0.5, 0.8, 1e-6, True), (0.5, 0.81, 0.0, False), (0.4, 0.5, 0.0, False), (0.5, 0.5, 0.01, False)],
    ids=str,
)
def test_worth_shipping_is_a_fifth_of_the_time_for_nothing(
    macro_f1: float, slowest: float, by_mates: float, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.5, macro_f1])
    monkeypatch.setattr(quantize, "macro_f1", lambda _: next(scores))
    told = {way: np.full((4, 2), 0.5, dtype=np.float32) for way in ("single", "dynamic")}
    times = {"single": {"a": 1.0}, "dynamic": {"a": 0.6, "b": slowest}}
    found = quantize._compared(told, np.array([0, 1, 0, 1]), times, {"dynamic": by_mates})
    assert found["dynamic"]["worth_shipping"] is worth
