"""Repetition of failed tries: after a pause that doubles, up to ten seconds, and is never quite the same."""

import asyncio
import random
from collections.abc import Iterator
from typing import Final

import structlog

from service.observe.metrics import Metrics

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds; what is mended shall not wait for a minute
SPREAD: Final = 0.5  # many workers lose one broker at the same moment

log = structlog.get_logger(__name__)


def pauses() -> Iterator[float]:
    """Yield seconds to wait after each failed try."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(1 - SPREAD, 1 + SPREAD)
        pause = min(LONGEST_PAUSE, 2 * pause)


class Troubles:
    """Troubles that stand now, by step of the worker, for probes and logs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._now: dict[str, str] = {}

    def begin(self, step: str, reason: str) -> None:
        """Note a failed try."""
        self._metrics.stream_retries.labels(step).inc()
        if step not in self._now:
            log.warning("trying again", step=step, reason=reason)
        self._now[step] = reason

    def end(self, step: str) -> None:
        """Note that a step works."""
        if self._now.pop(step, None) is not None:
            log.info("works again", step=step)

    def __str__(self) -> str:
        """Return everything that fails, in words; empty when nothing does."""
        return "; ".join(f"{step}: {reason}" for step, reason in self._now.items())

    async def wait(self, step: str, reason: str, pause: float) -> None:
        """Note a failed try and pause."""
        self.begin(step, reason)
        await asyncio.sleep(pause)
