"""Engines for tests, over a graph that can be held."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from nightjar_alerts.core.adapter import Adapter, Graph, ModelInput
from nightjar_alerts.core.cost import CostModel, LiveCost
from nightjar_alerts.core.policy import BatchLimits, Policy, choose
from nightjar_alerts.service.engine.batch import BatchRunner, QueueEntry, RunReport
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.watchdog import Watchdog
from support.graphs import EchoGraph, echo_manifest, model_input

COST = CostModel(1e-3, 1e-6, 0.0)  # merging always pays
ADAPTER = Adapter(echo_manifest())


def runner(graph: Graph, on_recovery: Callable[[], None] = lambda: None, adapter: Adapter = ADAPTER) -> BatchRunner:
    return BatchRunner(graph, adapter, Watchdog(LiveCost(COST), 10.0), on_recovery=on_recovery)


def batch_of(*inputs: ModelInput) -> list[QueueEntry]:
    """Entries for a runner, which does not look at their futures."""
    return [QueueEntry(len(each), 0.0, None, each, cast(Any, None), 1e-3) for each in inputs]


@asynccontextmanager
async def serving(
    graph: EchoGraph,
    *,
    workers: int = 1,
    limits: BatchLimits | None = None,
    policy: Policy = choose,
    max_queued_seconds: float = 10.0,
    on_run: Callable[[RunReport, float], None] = lambda report, predicted: None,
    on_death: Callable[[BaseException], None] = lambda error: None,
) -> AsyncIterator[Engine]:
    engine = Engine(
        graph,
        ADAPTER,
        COST,
        EngineOptions(
            workers=workers,
            limits=limits or BatchLimits(),
            policy=policy,
            max_queued_seconds=max_queued_seconds,
        ),
        listener=on_run,
        on_death=on_death,
    )
    await engine.start()
    try:
        yield engine
    finally:
        graph.release()
        await engine.stop()


async def started(graph: EchoGraph) -> None:
    """Wait until one more run has begun."""
    assert await asyncio.to_thread(graph.started.acquire, True, 20)


async def occupied(engine: Engine, graph: EchoGraph, workers: int = 1) -> list[QueueEntry]:
    """Hold every worker inside a run, so that what comes next stays queued."""
    graph.hold()
    entries = []
    for _ in range(workers):
        entries += engine.enqueue([model_input(0)])
        await started(graph)
    return entries


async def settled(entries: list[QueueEntry]) -> list[object]:
    return await asyncio.gather(*(entry.future for entry in entries), return_exceptions=True)
