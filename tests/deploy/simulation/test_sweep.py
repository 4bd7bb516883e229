"""Every policy meets the same traffic, and the picture shows every one of them."""

import numpy as np
import pytest

from deploy.bench.simulation.events import Machine, contenders
from deploy.bench.simulation.figures import Sweep, picture
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.policy import BatchLimits

PADDED = CostModel(1.2e-3, 1.8e-5, 5e-9, 4e-4)
SWEEP = Sweep(Machine(2, PADDED, PADDED), contenders(BatchLimits()), 0.1, None, 390, seed=1)


def test_at_saturation_cost_beats_order_of_arrival() -> None:
    answered = {result.policy: result.figures.throughput for result in SWEEP.saturated(1000)}
    assert answered["nightjar"] > 1.1 * answered["one_by_one"]
    assert answered["nightjar"] > 2 * answered["fifo_token_budget"]
    assert answered["nightjar"] > 3 * answered["fifo_count_64"]
    assert answered["window_5ms"] == pytest.approx(answered["fifo_count_64"])


def test_at_low_load_only_the_window_waits() -> None:
    p50 = {result.policy: result.figures.p50_ms for result in SWEEP.poisson([30.0], 500)}
    assert p50["window_5ms"] > p50["nightjar"] + 4
    assert p50["nightjar"] == pytest.approx(p50["one_by_one"], rel=0.02)


def test_picture_draws_every_policy_in_every_panel() -> None:
    loads, burst = list(SWEEP.poisson([50.0, 200.0], 300)), list(SWEEP.visits(300))
    latency, drain = picture(loads, [burst]).axes
    assert [line.get_label() for line in latency.lines[::2]] == list(SWEEP.contenders)
    assert [line.get_label() for line in drain.lines] == list(SWEEP.contenders)
    assert drain.get_title() == "300 every 37 s"
    assert all(np.isfinite(line.get_xydata()).all() for axes in (latency, drain) for line in axes.lines)
