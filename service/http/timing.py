"""How long each stage of a request took, for the metrics and for the client (the ``Server-Timing`` header)."""

from collections.abc import Sequence
from time import perf_counter

from service.dataplane import Outcome
from service.metrics import STAGES, Metrics


class Stopwatch:
    """Times the stages that a transport goes through itself; the data plane times the others."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seconds: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        """Begin a stage."""
        self._mark = perf_counter()

    def lap(self, stage: str) -> None:
        """End a stage, the next one begins."""
        now = perf_counter()
        self._seconds[stage] = now - self._mark
        self._metrics.stage(stage, now - self._mark)
        self._mark = now

    def header(self, outcomes: Sequence[Outcome]) -> str:
        """Server-Timing of a request: milliseconds of each stage, of the slowest item where items went side by side."""
        done = [outcome.prediction for outcome in outcomes if outcome.prediction is not None]
        seconds = self._seconds | {"featurise": sum(outcome.featurise_seconds for outcome in outcomes)}
        for stage in ("queue", "assemble", "run") if done else ():
            seconds[stage] = max(getattr(prediction, f"{stage}_seconds") for prediction in done)
        return ", ".join(f"{stage};dur={1e3 * seconds[stage]:.3f}" for stage in STAGES if stage in seconds)
