"""Shadow model: classifies copies of requests; its results are compared with the served ones, not returned.

It receives a configured share of the requests to a model after they were classified, and runs them in one worker thread
with a lower priority than the served models. Requests are copied only while the served model has a short queue and few
copies are pending; otherwise they are dropped and counted. If the shadow fails or dies, only the comparison ends.

Two results are compared by class name: whether both have the same most probable class, and the total-variation distance
of their probabilities, which is half the sum of absolute differences (0: equal; 1: no class in common).
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any

import numpy as np
import structlog

from nightjar_alerts.core.adapter import Adapter, Arrays, Graph
from nightjar_alerts.core.failures import RunError
from nightjar_alerts.core.items import Item, Outcome
from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.process import lower_thread_priority
from nightjar_alerts.service.registry.names import Reference

MAX_QUEUED = 256
"""Maximum number of pending light curves of a shadow."""

LIVE_BACKLOG_SECONDS = 0.02
"""Predicted queue of the served model, in seconds, above which requests are not copied."""

DEADLINE_SECONDS = 30.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ShadowStats:
    """Results of the comparison, in light curves.

    Attributes
    ----------
    compared : light curves with results of both models.
    agreed : compared light curves with the same most probable class.
    distance : sum of total-variation distances.
    seconds : sum of the times to a result.
    failed : light curves without a result of the shadow.
    dropped : light curves not copied, because too many were pending or the served model was busy.
    """

    compared: int = 0
    agreed: int = 0
    distance: float = 0.0
    seconds: float = 0.0
    failed: int = 0
    dropped: int = 0


class Shadow:
    """A model that classifies copies of the requests to a served model.

    Parameters
    ----------
    classes : classes of the served model, in its order; the shadow must have the same classes, in any order.
    share : fraction of the requests to copy, from 0 to 1.
    on_death : called on the event loop if the engine of the shadow fails for good.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        classes: Sequence[str],
        share: float,
        metrics: Metrics,
        on_death: Callable[[BaseException], None],
    ) -> None:
        manifest = loaded.bundle.manifest
        self.reference, self.share = Reference(manifest.name, manifest.version), share
        self.classes = tuple(classes)
        self.stats = ShadowStats()
        self._order = np.array([manifest.classes.names.index(name) for name in classes])
        self._adapter, self._metrics = Adapter(manifest), metrics
        self._engine = Engine(
            _at_low_priority(loaded.graph),
            self._adapter,
            loaded.cost,
            EngineOptions(workers=1, max_queued_seconds=DEADLINE_SECONDS),
            on_death=on_death,
        )
        self._random = Random()
        self._queued = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the engine."""
        await self._engine.start()

    async def stop(self) -> None:
        """Drop the pending copies and stop the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.stop()

    def mirror(self, items: Sequence[Item], outcomes: Sequence[Outcome], engine: Engine) -> None:
        """Copy a classified request, or drop it; does not block or raise.

        Parameters
        ----------
        engine : engine of the served model.
        """
        if self._random.random() >= self.share:
            return
        classified = [
            (item, outcome.prediction.outputs["probabilities"])
            for item, outcome in zip(items, outcomes, strict=True)
            if isinstance(item, LightCurve) and outcome.prediction is not None
        ]
        # Both models use the same cores, so a comparison would delay queued requests.
        busy = engine.queued_seconds > LIVE_BACKLOG_SECONDS
        if busy or self._queued + len(classified) > MAX_QUEUED or not self._engine.accepting:
            self._count("dropped", len(classified))
            return
        self._queued += len(classified)  # not in the task, since the next request must see them
        task = asyncio.create_task(self._compare(classified))
        self._tasks.add(task)  # the event loop has only weak references to tasks
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, classified: Sequence[tuple[LightCurve, Any]]) -> None:
        try:
            for curve, expected in classified:  # sequentially, as latency does not matter
                await self._compare_one(curve, expected)
        finally:
            self._queued -= len(classified)

    async def _compare_one(self, curve: LightCurve, expected: Any) -> None:
        started = monotonic()
        try:
            prediction = await self._engine.submit(self._adapter.prepare(curve), started + DEADLINE_SECONDS)
        except (RunError, LightCurveError):
            self._count("failed", 1)
            return
        except Exception as error:  # any error must affect the comparison only
            log.warning("shadow failed", model=str(self.reference), exc_info=error)
            self._count("failed", 1)
            return
        seconds = monotonic() - started
        self._metrics.record_shadow_seconds(seconds)
        self.stats.seconds += seconds
        self._record(expected, prediction.outputs["probabilities"][self._order])

    def _record(self, expected: Any, actual: Any) -> None:
        agrees = bool(expected.argmax() == actual.argmax())
        distance = float(np.abs(expected.astype(np.float64) - actual).sum() / 2)
        self.stats.compared += 1
        self.stats.agreed += agrees
        self.stats.distance += distance
        self._metrics.record_shadow_distance(distance)
        self._metrics.record_shadow("agreed" if agrees else "disagreed")

    def _count(self, outcome: str, count: int) -> None:
        setattr(self.stats, outcome, getattr(self.stats, outcome) + count)
        self._metrics.record_shadow(outcome, count)


def _at_low_priority(graph: Graph) -> Graph:
    """Wrap a graph so that the threads that run it have a low priority."""
    lowered = threading.local()  # whether the priority of a thread was lowered

    def run_at_low_priority(inputs: Arrays) -> Arrays:
        if not hasattr(lowered, "done"):
            lower_thread_priority()
            lowered.done = True
        return graph(inputs)

    return run_at_low_priority
