"""Order of service: policies, batches held back or made ready, fair shares, priority, and the time to come back."""

import asyncio
from time import monotonic, sleep

import pytest

from deploy.bench.simulation.events import fifo, one_by_one
from nightjar_alerts.service.engine.batch import Arrays, Overloaded, QueueEntry
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.policy import BatchLimits, CostModel
from support.engines import COST, PROGRAM, occupied, serving, settled
from support.graphs import EchoGraph, question


async def test_the_policy_decides_who_runs_together() -> None:
    for policy, sizes in ((one_by_one, [1] * 7), (fifo, [1, 6])):
        graph = EchoGraph()
        async with serving(graph, policy=policy) as engine:
            await occupied(engine, graph)
            entries = engine.enqueue([question(marker, 10 * marker) for marker in range(1, 7)])
            graph.release()
            await settled(entries)
        assert [len(batch) for batch in graph.batches] == sizes


async def test_a_batch_is_held_back_for_as_long_as_it_may_be() -> None:
    graph = EchoGraph()
    async with serving(graph, workers=2, limits=BatchLimits(max_delay=0.5)) as engine:
        started_at = monotonic()
        entries = engine.enqueue([question(1)])
        await asyncio.sleep(0.05)
        entries += engine.enqueue([question(2)])
        assert not graph.batches
        await settled(entries)
        assert monotonic() - started_at >= 0.5
    assert [sorted(batch) for batch in graph.batches] == [[1, 2]]


async def test_a_full_batch_and_a_deadline_wait_for_nothing() -> None:
    graph = EchoGraph()
    async with serving(graph, limits=BatchLimits(max_delay=30.0, max_items=3)) as engine:
        await asyncio.wait_for(settled(engine.enqueue([question(marker) for marker in range(3)])), 10)
        held = engine.enqueue([question(7)])
        await asyncio.sleep(0.05)
        assert len(graph.batches) == 1
        await asyncio.wait_for(settled(engine.enqueue([question(8)], monotonic() + 20)), 10)
        await asyncio.wait_for(settled(held), 10)
    assert sorted(graph.batches[1]) == [7, 8]


async def test_with_more_groups_than_workers_the_next_batch_is_ready() -> None:
    graph = EchoGraph()
    async with serving(graph, workers=1, batches=2, limits=BatchLimits(max_items=2, window=4)) as engine:
        await occupied(engine, graph)
        entries = engine.enqueue([question(marker) for marker in (1, 2)])
        await asyncio.sleep(0.05)
        assert (engine.depth, engine.running) == (2, 1)  # so few are better bound late
        entries += engine.enqueue([question(marker) for marker in (3, 4, 5)])
        async with asyncio.timeout(10):
            while engine.depth > 3:
                await asyncio.sleep(0.005)
        assert (engine.depth, engine.running) == (3, 3)
        assert len(graph.batches) == 1  # never more than one run at a time
        graph.release()
        await settled(entries)


async def test_a_burst_of_one_client_delays_no_other_by_more_than_a_batch() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        burst = engine.enqueue([question(marker, 50) for marker in range(100, 600)], client="burst")
        late = engine.enqueue([question(marker, 50) for marker in (1, 2)], client="late")
        graph.release()
        await settled([*burst, *late])
    assert {1.0, 2.0} <= set(graph.batches[1]) | set(graph.batches[2])


async def test_urgent_work_is_done_first_and_let_in_last() -> None:
    graph, second = EchoGraph(), COST.seconds(1, 10)
    async with serving(graph, max_queued_seconds=10.5 * second, policy=one_by_one) as engine:
        await occupied(engine, graph)
        plain = [engine.enqueue([question(marker)])[0] for marker in range(1, 11)]
        with pytest.raises(Overloaded):
            engine.enqueue([question(99)])
        urgent = engine.enqueue([question(77)], priority=5.0)
        with pytest.raises(Overloaded):
            engine.enqueue([question(98)], priority=-5.0)
        graph.release()
        await settled([*plain, *urgent])
    assert graph.seen[1] == 77


async def test_a_full_queue_of_one_client_has_room_for_another() -> None:
    graph, second = EchoGraph(), COST.seconds(1, 10)
    async with serving(graph, max_queued_seconds=10.5 * second, max_queued_items=10) as engine:
        await occupied(engine, graph)
        for marker in range(10):
            engine.enqueue([question(marker)], client="burst")
        with pytest.raises(Overloaded):
            engine.enqueue([question(99)], client="burst")
        engine.enqueue([question(11), question(12)], client="other")
        with pytest.raises(Overloaded) as refusal:
            engine.enqueue([question(marker) for marker in range(20, 25)], client="other")
        # 7 of its own and as many of the other's are 3.5 light curves too many; both are drained alike.
        assert refusal.value.retry_after == pytest.approx(3.5 * second, rel=1e-6)


async def test_the_time_to_come_back_is_when_there_is_room() -> None:
    """Every run takes a known time: who comes back when told is taken, unless the machine was slow meanwhile."""
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

    wanted, entries = [question(marker) for marker in range(10)], list[QueueEntry]()
    engine = Engine(
        Slow(),
        PROGRAM,
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


async def test_times_of_runs_are_learned() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        assert engine.learned == []
        await engine.submit(question(1, 30))
        await engine.drain(5)
        [run] = engine.learned
        assert (run.batch, run.length, run.tokens) == (1, 30, 30)
        assert run.seconds > 0
