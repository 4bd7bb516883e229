"""The engine's benchmark: its schedules lose nothing, its clients ask what they should, and all of it runs."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.bench import engine_bench
from deploy.bench.bare import Best, length_batches, tokens_of
from deploy.bench.engine_bench import Lone, lone_numbers, stages_of
from deploy.bench.throughput import WrongAnswer
from deploy.bench.workload import LONGEST, alert_mix
from nightjar_alerts.core.load import load_model
from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.lightcurve import LightCurve, Limits, Tokens, featurise

pytestmark = pytest.mark.slow


def quiet(_: str) -> None:
    pass


def tokens(length: int) -> Tokens:
    mjd = 60_000.0 + np.arange(length)
    curve = LightCurve.from_columns(mjd, np.ones(length), np.ones(length), np.arange(length) % 6)
    return featurise(curve, Limits(max_points_per_band=65, pre_trigger_days=1000.0), "nJy", (), tuple("ugrizY"))


@given(st.lists(st.integers(1, 60), max_size=30), st.sampled_from([0, 64, 256]))
def test_a_schedule_loses_nothing_and_keeps_its_budget(lengths: list[int], budget: int) -> None:
    curves = [tokens(length) for length in lengths]
    groups = length_batches(curves, budget)
    assert sorted(map(id, chain(*groups))) == sorted(map(id, curves))
    for group in groups:
        assert len(group) == 1 or len(group) * max(map(len, group)) <= budget
    longest = [max(map(len, group)) for group in groups]
    assert longest == sorted(longest, reverse=True)
    assert budget or len(groups) == len(curves)


def test_the_mix_has_a_tail_of_deep_fields() -> None:
    lengths = np.array([len(curve["mjd"]) for curve in alert_mix(4000, seed=1)])
    assert abs(np.median(lengths) - 50) <= 3
    assert 0.003 < np.mean(lengths == LONGEST) < 0.03
    assert alert_mix(5, seed=1) == alert_mix(5, seed=1)


@pytest.mark.nightly
def test_every_policy_answers_everything_after_it_came(tiny_bundle: Path) -> None:
    bench = engine_bench.EngineBench.of(load_model(tiny_bundle), alert_mix(60, seed=3))
    arrival = np.linspace(0.0, 0.1, 60)
    for policy in bench.contenders:
        assert bench.saturated(policy) > 0
        assert (bench.latencies(policy, arrival) > 0).all()


def test_the_best_schedule_is_run_on_every_curve(tiny_bundle: Path) -> None:
    curves = alert_mix(40, seed=4)
    best = Best.of(tiny_bundle, curves, callers=2)
    manifest = load_bundle(tiny_bundle).manifest
    points = sum(int(one["mask"].sum()) for one in best.inputs)
    assert points == sum(len(tokens_of(curve, manifest)) for curve in curves)
    assert best.run(2).per_second > 0


def test_measure_lone_of_a_rejected_light_curve_raises(tiny_bundle: Path) -> None:
    curve = alert_mix(1, seed=1)[0]
    with pytest.raises(WrongAnswer, match="unknown_field"):
        engine_bench.measure_lone(tiny_bundle, [curve | {"surprise": 1}], 1, quiet)


def test_stages_add_up_to_what_a_client_waited() -> None:
    stages = stages_of("receive;dur=0.100, run;dur=3.000, total;dur=4.500", 0.005)
    assert stages == pytest.approx({"receive": 1e-4, "run": 3e-3, "between": 1.4e-3, "outside": 5e-4})
    assert sum(stages.values()) == pytest.approx(0.005)
    numbers = lone_numbers([[Lone(0.005, 0.002, stages)] * 3])
    assert numbers["engine.lone_us.run_over_bare"] == pytest.approx({"median": 1000.0, "spread": 0.0})
    assert numbers["engine.lone_p50_overhead_ms"] == pytest.approx({"median": 3.0, "spread": 0.0})


@pytest.mark.nightly
def test_every_figure_of_the_engine_is_measured(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_bench, "CURVES", 10)
    numbers = engine_bench.measure(tiny_bundle, curves=70, rounds=1, say=quiet)
    assert numbers.keys() >= {
        "engine.policy_speedup.one_by_one",
        "engine.p99_half_load_vs_one_by_one",
        "engine.lone_p50_overhead_ms",
    }
    for key, figure in numbers.items():
        assert np.isfinite(figure["median"] if isinstance(figure, dict) else figure), key
