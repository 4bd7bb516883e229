"""Order of service: policies, fairness, admission and retry times."""

import asyncio
from time import sleep

import pytest

from deploy.bench.simulation.events import fifo, one_by_one
from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.errors import Overloaded
from support.engines import ADAPTER, COST, occupied, serving, settled
from support.graphs import EchoGraph, model_input


async def test_engine_policy_chooses_the_batch() -> None:
    for policy, sizes in ((one_by_one, [1] * 7), (fifo, [1, 6])):
        graph = EchoGraph()
        async with serving(graph, policy=policy) as engine:
            await occupied(engine, graph)
            entries = engine.enqueue([model_input(marker, 10 * marker) for marker in range(1, 7)])
            graph.release()
            await settled(entries)
        assert [len(batch) for batch in graph.batches] == sizes


async def test_engine_burst_of_one_client_delays_others_by_one_batch() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        burst = engine.enqueue([model_input(marker, 50) for marker in range(100, 600)], client="burst")
        late = engine.enqueue([model_input(marker, 50) for marker in (1, 2)], client="late")
        graph.release()
        await settled([*burst, *late])
    assert {1.0, 2.0} <= set(graph.batches[1]) | set(graph.batches[2])


async def test_engine_full_queue_of_one_client_admits_another() -> None:
    graph, second = EchoGraph(), COST.seconds(1, 10)
    async with serving(graph, max_queued_seconds=10.5 * second) as engine:
        await occupied(engine, graph)
        for marker in range(10):
            engine.enqueue([model_input(marker)], client="burst")
        with pytest.raises(Overloaded):
            engine.enqueue([model_input(99)], client="burst")
        engine.enqueue([model_input(11), model_input(12)], client="other")
        with pytest.raises(Overloaded) as refusal:
            engine.enqueue([model_input(marker) for marker in range(20, 25)], client="other")
        # 7 of its own and as many of the other's are 3.5 light curves too many; both are drained alike.
        assert refusal.value.retry_after == pytest.approx(3.5 * second, rel=1e-6)


async def test_engine_retry_after_is_when_the_request_fits() -> None:
    """Runs take a known time: a client that retries after ``retry_after`` is admitted, unless the machine was slow."""
    pace = 0.01

    class Slow(EchoGraph):
        def __call__(self, inputs: Arrays) -> Arrays:
            outputs = super().__call__(inputs)
            sleep(pace)
            return outputs

    def refused() -> float:
        try:
            entries.extend(engine.enqueue(wanted))
        except Overloaded as full:
            return full.retry_after
        return 0.0

    wanted, entries = [model_input(marker) for marker in range(10)], list[QueueEntry]()
    engine = Engine(
        Slow(),
        ADAPTER,
        CostModel(pace, 0.0, 0.0),
        EngineOptions(workers=1, policy=one_by_one, max_queued_seconds=25 * pace),
    )
    await engine.start()
    while not (told := refused()):
        pass
    for _ in range(50):  # once, where nothing else disturbs
        await asyncio.sleep(told)
        if not (told := refused()):
            break
    assert told == 0
    await settled(entries)
    await engine.stop()


async def test_cost_model_follows_the_measured_runs() -> None:
    predicted: list[float] = []
    async with serving(EchoGraph(), on_run=lambda report, seconds: predicted.append(seconds)) as engine:
        await engine.submit(model_input(1, 30))
        await engine.submit(model_input(1, 30))
        await engine.drain(60)
    first, second = predicted
    assert first == COST.seconds(1, 30) != second
