"""Engine with a graph that can block, fail and die: admission, cancellation, deadlines, death and drain."""

import asyncio
import random
import sys
import threading
from time import monotonic

import numpy as np
import pytest

from nightjar_alerts.core.adapter import ModelInput
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.core.policy import BatchLimits
from nightjar_alerts.service.engine.batch import RunReport
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.errors import DeadlineExceeded, EngineClosed, EngineDead, Overloaded
from support.engines import ADAPTER, COST, occupied, serving, settled, started
from support.graphs import EchoGraph, model_input, poison


async def test_engine_every_caller_gets_its_own_result() -> None:
    graph = EchoGraph()
    async with serving(graph, workers=3) as engine:
        lengths = [random.Random(1).randint(1, 300) for _ in range(300)]
        sequences = [model_input(marker, length) for marker, length in enumerate(lengths)]
        predictions = await asyncio.gather(*(engine.submit(sequence) for sequence in sequences))
    for marker, (length, prediction) in enumerate(zip(lengths, predictions, strict=True)):
        assert prediction.outputs["probabilities"].tolist() == [marker, length]
        assert prediction.outputs["embedding"].tolist() == [marker] * 4
    assert sorted(graph.seen) == list(range(300))
    assert len(graph.batches) < 300


async def test_engine_result_does_not_keep_its_batch_in_memory() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        prediction = await engine.submit(model_input(1))
    assert prediction.outputs["probabilities"].base is None
    assert prediction.outputs["embedding"].base is None
    assert prediction.batch_size == 1
    assert min(prediction.queue_seconds, prediction.assemble_seconds, prediction.run_seconds) >= 0


async def test_engine_run_does_not_block_the_event_loop() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert engine.running == 1
        assert engine.oldest_run_seconds > 0.01


async def test_engine_reports_a_run_before_the_next_one() -> None:
    reports = list[RunReport]()
    async with (
        serving(EchoGraph(), on_run=lambda report, predicted: reports.append(report)) as engine,
        asyncio.timeout(60),
    ):
        for marker in range(3):
            prediction = await engine.submit(model_input(marker))
            assert prediction.outputs["probabilities"].tolist()[0] == marker
            assert marker <= len(reports) <= marker + 1
    assert len(reports) == 3


async def test_engine_batch_is_chosen_when_a_worker_is_idle() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        entries = [entry for marker in (1, 2, 3) for entry in engine.enqueue([model_input(marker)])]
        assert engine.depth == 3
        graph.release()
        await settled(entries)
        assert sorted(graph.batches[1]) == [1, 2, 3]
        assert engine.depth == 0
        assert engine.queued_seconds == 0


async def test_engine_idle_workers_share_light_curves_that_arrive_together() -> None:
    graph = EchoGraph()
    async with serving(graph, workers=2) as engine:
        async with asyncio.timeout(20):
            while [len(batch) for batch in graph.batches] != [2, 2]:  # once both workers wait
                graph.batches.clear()
                await settled(engine.enqueue([model_input(marker) for marker in range(4)]))


async def test_engine_overload_raises_with_retry_after() -> None:
    graph = EchoGraph()
    async with serving(graph, max_queued_seconds=5 * COST.seconds(1, 10)) as engine:
        await occupied(engine, graph)
        entries = [engine.enqueue([model_input(marker)])[0] for marker in range(1, 6)]
        with pytest.raises(Overloaded) as refusal:
            engine.enqueue([model_input(99)])
        assert 0 < refusal.value.retry_after <= engine.queued_seconds
        graph.release()
        await settled(entries)
        await engine.submit(model_input(7))
    assert 99 not in graph.seen


async def test_enqueue_queues_all_light_curves_or_none() -> None:
    graph = EchoGraph()
    async with serving(graph, max_queued_seconds=10 * COST.seconds(1, 10)) as engine:
        await occupied(engine, graph)
        engine.enqueue([model_input(marker) for marker in range(8)])
        with pytest.raises(Overloaded):
            engine.enqueue([model_input(marker) for marker in range(3)])
        assert engine.depth == 8
        engine.enqueue([model_input(9), model_input(10)])


async def test_enqueue_empty_queue_accepts_any_size() -> None:
    graph = EchoGraph()
    async with serving(graph, max_queued_seconds=1e-9) as engine:
        predictions = await settled([*engine.enqueue([model_input(marker) for marker in range(50)])])
    assert len(predictions) == 50
    assert not any(isinstance(prediction, Exception) for prediction in predictions)


async def test_engine_cancelled_caller_withdraws_its_light_curves_only() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        tasks = {marker: asyncio.create_task(engine.submit(model_input(marker))) for marker in (1, 2, 3)}
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.sleep(0)
        graph.release()
        assert (await tasks[1]).outputs["probabilities"][0] == 1
        assert (await tasks[3]).outputs["probabilities"][0] == 3
        with pytest.raises(asyncio.CancelledError):
            await tasks[2]
    assert 2 not in graph.seen


async def test_engine_caller_cancelled_during_a_run_does_not_affect_the_batch() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        graph.hold()
        await occupied(engine, graph)
        tasks = [asyncio.create_task(engine.submit(model_input(marker))) for marker in (1, 2, 3)]
        await asyncio.sleep(0)
        graph.release()
        graph.hold()
        await started(graph)
        tasks[1].cancel()
        graph.release()
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(second, asyncio.CancelledError)
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)
    assert (first.outputs["probabilities"][0], third.outputs["probabilities"][0]) == (1, 3)


async def test_engine_expired_light_curve_is_not_run() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        late = engine.enqueue([model_input(1)], deadline=monotonic() + 0.01)
        patient = engine.enqueue([model_input(2)], deadline=monotonic() + 60)
        await asyncio.sleep(0.03)
        graph.release()
        with pytest.raises(DeadlineExceeded):
            await late[0].future
        assert (await patient[0].future).outputs["probabilities"][0] == 2
    assert 1 not in graph.seen


async def test_engine_failing_light_curve_fails_alone() -> None:
    graph = EchoGraph()
    graph.on_marker[13.0] = poison
    async with serving(graph) as engine:
        await occupied(engine, graph)
        entries = engine.enqueue([model_input(marker) for marker in range(5, 25)])
        graph.release()
        results = await settled(entries)
        assert engine.alive
    failure = results.pop(13 - 5)
    assert not any(isinstance(result, Exception) for result in results)
    assert isinstance(failure, InferenceFailed)
    assert isinstance(failure.__cause__, ZeroDivisionError)
    assert "division" not in str(failure)


async def test_engine_non_finite_result_fails_alone() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        await occupied(engine, graph)
        entries = engine.enqueue([model_input(1), model_input(np.nan), model_input(np.inf), model_input(4)])
        graph.release()
        kinds = [type(result).__name__ for result in await settled(entries)]
    assert kinds == ["Prediction", "InferenceFailed", "InferenceFailed", "Prediction"]


async def test_engine_dead_worker_fails_everything_at_once() -> None:
    graph, deaths, died = EchoGraph(), list[BaseException](), threading.Event()

    def on_death(error: BaseException) -> None:
        deaths.append(error)
        died.set()

    graph.on_marker = {666.0: sys.exit, 1.0: lambda: died.wait(5)}
    async with serving(graph, workers=2, limits=BatchLimits(max_items=1), on_death=on_death) as engine:
        graph.hold()
        running = engine.enqueue([model_input(666), model_input(1)])
        await started(graph)
        await started(graph)
        queued = engine.enqueue([model_input(marker) for marker in range(2, 20)])
        graph.release()
        results = await asyncio.wait_for(settled([*running, *queued]), 5)
        assert await asyncio.to_thread(died.wait, 5)  # the worker tells of itself last
        assert not engine.alive
        assert not engine.accepting
        with pytest.raises(EngineDead):
            await engine.submit(model_input(3))
        assert not await engine.drain(1)
    assert [type(result) for result in results] == [EngineDead] * 20
    assert [type(death) for death in deaths] == [SystemExit]


async def test_engine_drain_finishes_queued_work() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        assert engine.accepting
        running = await occupied(engine, graph)
        queued = engine.enqueue([model_input(marker) for marker in range(1, 5)])
        drained = asyncio.create_task(engine.drain(5))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineClosed):
            engine.enqueue([model_input(9)])
        graph.release()
        assert await drained
        assert all(entry.future.done() and not entry.future.exception() for entry in (*running, *queued))


async def test_engine_drain_timeout_and_stop_fail_the_rest() -> None:
    graph, others = EchoGraph(), set(threading.enumerate())
    async with serving(graph) as engine:
        await occupied(engine, graph)
        left = engine.enqueue([model_input(1)])
        assert not await engine.drain(0.02)
        stopping = asyncio.create_task(engine.stop())
        with pytest.raises(EngineClosed):
            await left[0].future
        graph.release()
        await stopping
    assert not [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("engine-")]


async def test_engine_stop_fails_hung_light_curves() -> None:
    graph = EchoGraph()
    async with serving(graph) as engine:
        [hanging] = await occupied(engine, graph)
        await engine.stop(timeout=0.02)
        with pytest.raises(EngineClosed):
            await hanging.future


async def test_engine_not_started_rejects_work() -> None:
    engine = Engine(EchoGraph(), ADAPTER, COST, EngineOptions(workers=1))
    with pytest.raises(EngineClosed):
        engine.enqueue([model_input(1)])
    await engine.stop()


async def test_engine_reports_reach_the_listener() -> None:
    graph, reports = EchoGraph(), list[tuple[RunReport, float]]()
    async with serving(graph, on_run=lambda report, predicted: reports.append((report, predicted))) as engine:
        await engine.submit(model_input(1, length=7))
    [(report, predicted)] = reports
    assert (report.size, report.length) == (1, 7)
    assert predicted == pytest.approx(COST.seconds(1, 7))
    assert report.expert_load["expert_load"].tolist() == [[2, 2], [0, 4]]


SIZES = [(3, BatchLimits()), (1, BatchLimits(window=8)), (2, BatchLimits(window=16)), (2, BatchLimits(max_items=1))]


@pytest.mark.parametrize(("seed", "size"), list(enumerate(SIZES)))
async def test_engine_random_events_each_caller_gets_one_result(seed: int, size: tuple[int, BatchLimits]) -> None:
    """Random cancellations, deadlines and failures: each caller gets exactly one result, and the queue ends empty."""
    rng, graph = random.Random(seed), EchoGraph()
    poisonous = {float(marker) for marker in rng.sample(range(1, 400), 20)}
    graph.on_marker = dict.fromkeys(poisonous, poison)

    async def ask(engine: Engine, asked: ModelInput, deadline: float | None) -> Prediction:
        entries = engine.enqueue([asked], deadline, client=rng.choice(["", "a", "b"]))
        return await entries[0].future

    async def caller(engine: Engine, marker: int) -> str:
        await asyncio.sleep(rng.random() * 0.05)
        deadline = monotonic() + rng.random() * 0.01 if rng.random() < 0.3 else None
        try:
            async with asyncio.timeout(rng.random() * 0.02 if rng.random() < 0.3 else 20):
                prediction = await ask(engine, model_input(marker, rng.randint(1, 60)), deadline)
        except (TimeoutError, DeadlineExceeded, InferenceFailed) as error:
            return type(error).__name__
        assert prediction.outputs["probabilities"][0] == marker
        return "Prediction"

    workers, limits = size
    async with serving(graph, workers=workers, limits=limits) as engine:
        heard = await asyncio.wait_for(asyncio.gather(*(caller(engine, marker) for marker in range(400))), 20)
        assert await engine.drain(5)
        assert engine.depth == engine.running == 0
        assert engine.queued_seconds == 0
    answered = {float(marker) for marker, what in enumerate(heard) if what == "Prediction"}
    assert len(heard) == 400
    assert answered
    assert answered <= set(graph.seen) - poisonous
    assert {float(marker) for marker, what in enumerate(heard) if what == "InferenceFailed"} <= poisonous
