"""Engines for tests: over a graph that can be held, with one worker unless told otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from nightjar_alerts.service.engine.batch import Classification, QueueEntry, RunReport
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.policy import BatchLimits, CostModel, Policy, choose
from support.graphs import EchoGraph, echo_manifest, question

COST = CostModel(1e-3, 1e-6, 0.0)  # merging always pays
PROGRAM = Classification(echo_manifest())


@asynccontextmanager
async def serving(
    graph: EchoGraph,
    *,
    workers: int = 1,
    batches: int = 0,
    limits: BatchLimits | None = None,
    policy: Policy = choose,
    max_queued_seconds: float = 10.0,
    max_queued_items: int = 10_000,
    on_run: Callable[[RunReport, float], None] | None = None,
    on_death: Callable[[BaseException], None] | None = None,
) -> AsyncIterator[Engine]:
    engine = Engine(
        graph,
        PROGRAM,
        COST,
        EngineOptions(
            workers=workers,
            batches=batches,
            limits=limits or BatchLimits(),
            policy=policy,
            max_queued_seconds=max_queued_seconds,
            max_queued_items=max_queued_items,
        ),
        listeners=() if on_run is None else (on_run,),
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
        entries += engine.enqueue([question(0)])
        await started(graph)
    return entries


async def settled(entries: list[QueueEntry]) -> list[object]:
    return await asyncio.gather(*(entry.future for entry in entries), return_exceptions=True)
