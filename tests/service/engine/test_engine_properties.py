"""For any callers and options: exactly one outcome per light curve, and no batch beyond its limits."""

import asyncio
from dataclasses import dataclass
from time import monotonic

from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_alerts.core.adapter import Adapter, Arrays
from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.core.policy import BatchLimits
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.errors import DeadlineExceeded
from support.graphs import EchoGraph, echo_manifest, model_input, poison

ADAPTER = Adapter(echo_manifest())


@dataclass(frozen=True)
class Caller:
    """A light curve and the actions of its caller; times in milliseconds."""

    length: int
    after: int
    patience: int | None
    leaves: int | None
    poisonous: bool
    client: str


@dataclass(frozen=True)
class Layout:
    workers: int
    limits: BatchLimits


class Recorder(EchoGraph):
    """Graph that records the padded shape of every run."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs: Arrays) -> Arrays:
        self.shapes.append(inputs["mask"].shape)
        return super().__call__(inputs)


callers = st.builds(
    Caller,
    length=st.integers(1, 390),
    after=st.integers(0, 6),
    patience=st.none() | st.integers(0, 12),
    leaves=st.none() | st.integers(0, 8),
    poisonous=st.integers(0, 9).map(lambda n: n == 0),
    client=st.sampled_from(["", "a", "b"]),
)
bounds = st.builds(BatchLimits, st.integers(1, 2000), st.integers(1, 16), st.integers(1, 32))
layouts = st.builds(Layout, st.integers(1, 3), bounds)
costs = st.sampled_from(
    [CostModel(1e-3, 1e-6, 0.0), CostModel(0.0, 1e-5, 0.0), CostModel(1e-4, 1e-6, 1e-9, 1e-4, 1e-6)]
)


async def fate(engine: Engine, caller: Caller, marker: int) -> str:
    """Return the outcome that a caller gets."""
    await asyncio.sleep(caller.after / 1000)
    deadline = None if caller.patience is None else monotonic() + caller.patience / 1000
    asked = model_input(marker, caller.length)
    [entry] = engine.enqueue([asked], deadline, client=caller.client)
    try:
        async with asyncio.timeout(None if caller.leaves is None else caller.leaves / 1000):
            prediction = await entry.future
    except (TimeoutError, DeadlineExceeded, InferenceFailed) as error:
        return type(error).__name__
    assert prediction.outputs["probabilities"].tolist() == [marker, caller.length]
    return Prediction.__name__


async def play(script: list[Caller], layout: Layout, cost: CostModel, graph: Recorder) -> list[str]:
    engine = Engine(graph, ADAPTER, cost, EngineOptions(workers=layout.workers, limits=layout.limits))
    await engine.start()
    try:
        told = asyncio.gather(*(fate(engine, caller, marker) for marker, caller in enumerate(script, start=1)))
        heard = await asyncio.wait_for(told, 20)
        assert await engine.drain(20)
        assert (engine.depth, engine.running, engine.queued_seconds) == (0, 0, 0)
        return heard
    finally:
        await engine.stop()


@settings(max_examples=30, deadline=None)
@given(st.lists(callers, min_size=1, max_size=40), layouts, costs)
def test_engine_each_light_curve_has_one_outcome_and_each_run_fits_the_limits(
    script: list[Caller], layout: Layout, cost: CostModel
) -> None:
    graph = Recorder()
    graph.on_marker = {float(marker): poison for marker, caller in enumerate(script, start=1) if caller.poisonous}
    heard = asyncio.run(play(script, layout, cost, graph))
    for caller, what in zip(script, heard, strict=True):
        allowed = {"TimeoutError"} if caller.leaves is not None else set()
        allowed |= {"DeadlineExceeded"} if caller.patience is not None else set()
        assert what in allowed | {"InferenceFailed" if caller.poisonous else "Prediction"}
    for size, length in graph.shapes:
        assert size == 1 or (size <= layout.limits.max_items and size * length <= layout.limits.max_tokens)
