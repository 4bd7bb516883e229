"""Every policy meets the same traffic, and the picture shows every one of them."""

from xml.etree import ElementTree

import numpy as np
import pytest

from deploy.bench.simulation.events import Machine, contenders
from deploy.bench.simulation.figures import Chart, ChartLine, Sweep, draw, picture
from nightjar_alerts.service.engine.cost import CostModel
from nightjar_alerts.service.engine.policy import BatchLimits

PADDED = CostModel(1.2e-3, 1.8e-5, 5e-9, 4e-4)
SWEEP = Sweep(Machine(2, PADDED, PADDED), contenders(BatchLimits()), 0.1, None, 390, seed=1)
SVG = "{http://www.w3.org/2000/svg}"


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


def test_the_picture_holds_every_policy_in_every_panel() -> None:
    loads, burst = list(SWEEP.poisson([50.0, 200.0], 300)), list(SWEEP.visits(300))
    root = ElementTree.fromstring(picture(loads, [burst]))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert all(texts.count(policy) == 2 for policy in SWEEP.contenders)
    lines = list(root.iter(f"{SVG}polyline"))
    assert len(lines) == 3 * len(SWEEP.contenders)
    assert all(
        np.isfinite([float(value) for value in pair.split(",")]).all()
        for line in lines
        for pair in line.attrib["points"].split()
    )
    assert "300 every 37 s" in texts


def test_a_chart_puts_points_where_they_belong() -> None:
    line = ChartLine("a < b", [(0.0, 1.0), (10.0, 100.0)])
    root = ElementTree.fromstring(draw([Chart("title", "x", "y", [line], (1.0, 100.0), log_y=True)]))
    (drawn,) = root.iter(f"{SVG}polyline")
    (left, bottom), (right, top) = (map(float, pair.split(",")) for pair in drawn.attrib["points"].split())
    assert left < right <= 560
    assert 0 < top < bottom < 400
    assert "a < b" in [element.text for element in root.iter(f"{SVG}text")]
