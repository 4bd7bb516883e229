"""A shadow: a second model that gets copies of requests, whose answers and times are compared and reach no client.

It gets a stated share of the requests of a model, after they were answered, in a worker thread of its own whose
priority is lower than that of the live models' threads. It takes copies only while the live model has next to nothing
waiting and while few copies wait themselves; all others are counted and dropped. When it fails, or dies, only the
comparison ends.

Compared are the classes by name: whether both models find the same one most probable, and the total-variation distance
of their probabilities, half the sum of absolute differences: 0 for equal answers, 1 for answers that have nothing in
common.
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

from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.service.dataplane import Outcome, Skipped
from nightjar_alerts.service.engine.batch import Arrays, Classification, EngineError, RunGraph
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.load import stand_back
from nightjar_alerts.service.registry.names import Reference

MOST_WAITING = 256
"""Light curves that may wait for the shadow."""

LIVE_BACKLOG_SECONDS = 0.02
"""Predicted work waiting for the live model beyond which nothing is copied."""

DEADLINE_SECONDS = 30.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Agreement:
    """Comparison so far, in light curves.

    Attributes
    ----------
    agreed : of the ``compared``, those whose most probable class is the same.
    distance : sum of total-variation distances.
    seconds : sum of times to an answer.
    failed : that the shadow failed on or could say nothing about, although the live model answered.
    dropped : copies that were not taken, for want of room or because the live model was busy.
    """

    compared: int = 0
    agreed: int = 0
    distance: float = 0.0
    seconds: float = 0.0
    failed: int = 0
    dropped: int = 0


class Shadow:
    """A classifier that shadows another.

    Parameters
    ----------
    classes : of the live model, in the order of its probabilities; the shadow has the same, in any order.
    share : of the requests that are copied, 0 to 1.
    on_death : called on the event loop when the shadow's engine has died.
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
        self.agreement = Agreement()
        self._order = np.array([manifest.classes.names.index(name) for name in classes])
        self._program, self._metrics = Classification(manifest), metrics
        self._engine = Engine(
            standing_back(loaded.run),
            self._program,
            loaded.cost,
            EngineOptions(workers=1, max_queued_seconds=DEADLINE_SECONDS),
            on_death=on_death,
        )
        self._random = Random()
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Be ready for copies."""
        await self._engine.start()

    async def stop(self) -> None:
        """Drop what waits, end the worker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.stop()

    def offer(
        self, items: Sequence[LightCurve | LightCurveError | Skipped], outcomes: Sequence[Outcome], live: Engine
    ) -> None:
        """Take a copy of a request that was answered, or let it pass."""
        if self._random.random() >= self.share:
            return
        answered = [
            (item, outcome.prediction.outputs["probabilities"])
            for item, outcome in zip(items, outcomes, strict=True)
            if isinstance(item, LightCurve) and outcome.prediction is not None
        ]
        # Both use the same cores: while clients wait for the live model, a comparison would make them wait longer.
        busy = live.queued_seconds > LIVE_BACKLOG_SECONDS
        if busy or self._waiting + len(answered) > MOST_WAITING or not self._engine.accepting:
            self._count("dropped", len(answered))
            return
        self._waiting += len(answered)  # here, as the task begins later: the next request must see them
        task = asyncio.create_task(self._compare(answered))
        self._tasks.add(task)  # held until it ends: the event loop itself refers to tasks only weakly
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, answered: Sequence[tuple[LightCurve, Any]]) -> None:
        try:
            for curve, expected in answered:  # one after the other: nobody is in a hurry here
                await self._compare_one(curve, expected)
        finally:
            self._waiting -= len(answered)

    async def _compare_one(self, curve: LightCurve, expected: Any) -> None:
        started = monotonic()
        try:
            prediction = await self._engine.submit(self._program.prepare(curve), started + DEADLINE_SECONDS)
        except (EngineError, LightCurveError):
            self._count("failed", 1)
            return
        except Exception as error:  # of a model on trial nothing is taken for granted
            log.warning("the shadow failed", model=str(self.reference), exc_info=error)
            self._count("failed", 1)
            return
        seconds = monotonic() - started
        self._metrics.shadow_seconds.observe(seconds)
        self.agreement.seconds += seconds
        self._record(expected, prediction.outputs["probabilities"][self._order])

    def _record(self, expected: Any, actual: Any) -> None:
        agrees = bool(expected.argmax() == actual.argmax())
        distance = float(np.abs(expected.astype(np.float64) - actual).sum() / 2)
        self.agreement.compared += 1
        self.agreement.agreed += agrees
        self.agreement.distance += distance
        self._metrics.shadow_distance.observe(distance)
        self._metrics.shadow_curves.labels("agreed" if agrees else "disagreed").inc()

    def _count(self, what: str, count: int) -> None:
        setattr(self.agreement, what, getattr(self.agreement, what) + count)
        self._metrics.shadow_curves.labels(what).inc(count)


def standing_back(run: RunGraph) -> RunGraph:
    """Wrap a graph so that the threads that run it get a low priority."""
    lowered = threading.local()  # a priority belongs to a thread and stays: it is lowered in its first run only

    def run_quietly(inputs: Arrays) -> Arrays:
        if not hasattr(lowered, "done"):
            stand_back()
            lowered.done = True
        return run(inputs)

    return run_quietly
