"""The real engine under a trace: everybody is answered, on time by the clock of the trace."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploy.bench.simulation.events import Machine, SimulatedRun, contenders, fitted, occupation, replay, simulate
from deploy.bench.simulation.figures import figures
from deploy.bench.workload import Trace, poisson, visits
from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.load import LoadedModel, load_model
from nightjar_alerts.core.policy import BatchLimits
from nightjar_alerts.models.bundle import ROUTING_OUTPUTS
from support.graphs import EchoGraph

pytestmark = pytest.mark.serial

SLOW = CostModel(0.05, 2e-5, 0.0)


def sleeping(inputs: Arrays) -> Arrays:
    """A network that costs what it is said to cost, whatever else the machine has to do."""
    time.sleep(SLOW.seconds(*inputs["mask"].shape))
    routing = {name: np.zeros((len(inputs["mask"]), 1), np.float32) for name in ROUTING_OUTPUTS}
    return {**EchoGraph()(inputs), **routing}


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> LoadedModel:
    return load_model(tiny_bundle)


@pytest.mark.nightly
async def test_a_replay_answers_everybody_after_they_came(model: LoadedModel) -> None:
    trace = poisson(300, 150, 390, np.random.default_rng(2))
    outcome = await replay(trace, model, 2, BatchLimits())
    assert (outcome.answered >= trace.arrival).all()
    assert sum(len(run.items) for run in outcome.runs) == 150
    assert sum(run.tokens for run in outcome.runs) == trace.length.sum()


async def test_a_replay_keeps_to_the_clock_of_the_trace(model: LoadedModel) -> None:
    trace = Trace(np.array([5.0, 5.0, 5.3]), np.array([10, 20, 30]))
    outcome = await replay(trace, model, 1, BatchLimits())
    assert outcome.answered[:2].min() >= 5.0
    assert outcome.answered[2] >= 5.3


async def test_a_deadline_holds_in_a_replay(model: LoadedModel) -> None:
    trace = visits(30, 1, 390, np.random.default_rng(2))
    outcome = await replay(trace, model, 1, BatchLimits(), deadline=1e-6)
    assert np.isnan(outcome.answered).all()
    assert outcome.runs == []


@pytest.mark.nightly
async def test_the_simulation_agrees_with_the_engine(model: LoadedModel) -> None:
    slow = replace(model, graph=sleeping, cost=SLOW)
    trace = visits(400, 1, 390, np.random.default_rng(3))
    simulated = figures(simulate(trace, contenders(BatchLimits())["nightjar"], Machine(2, SLOW, SLOW)), 1.0)
    for _ in range(3):  # other work on the machine can only delay a replay, so an undisturbed one counts
        measured = figures(await replay(trace, slow, 2, BatchLimits()), 1.0)
        if measured.throughput > 0.8 * simulated.throughput:
            break
    assert simulated.throughput == pytest.approx(measured.throughput, rel=0.25)
    assert simulated.p50_ms == pytest.approx(measured.p50_ms, rel=0.25)
    assert simulated.mean_batch == pytest.approx(measured.mean_batch, rel=0.05)
    assert simulated.padding == pytest.approx(measured.padding, abs=0.02)


@pytest.mark.nightly
def test_a_worker_is_busy_with_more_than_the_graph(model: LoadedModel) -> None:
    slow = replace(model, graph=sleeping)
    occupied = occupation(slow, 2, repeats=1)
    for shape in ((1, 4, 4), (16, 32, 512), (16, 64, 124)):
        assert 0.9 * SLOW.seconds(*shape) < occupied.seconds(*shape) < 2.5 * SLOW.seconds(*shape)


def test_the_costs_of_runs_are_found_again_and_add_up() -> None:
    shapes = [(1, 4, 4), (1, 128, 128), (16, 32, 512), (16, 64, 124), (4, 48, 192), (32, 8, 256)]
    runs = [
        SimulatedRun(tuple(range(n)), length, tokens, 1.0, 1.0 + SLOW.seconds(n, length, tokens))
        for n, length, tokens in shapes
    ]
    for run in runs:
        assert fitted(runs).seconds(len(run.items), run.length, run.tokens) == pytest.approx(run.ended - 1.0, rel=1e-3)
    stalled = [*runs, runs[0]._replace(ended=60.0)]
    total = sum(fitted(stalled).seconds(len(run.items), run.length, run.tokens) for run in stalled)
    assert total == pytest.approx(sum(run.ended - run.started for run in stalled))
