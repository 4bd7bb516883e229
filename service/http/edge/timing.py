"""How long each stage of a request took: for the metrics, the model's statistics, the trace, and the client."""

from collections.abc import Sequence
from time import monotonic

from service.dataplane import Outcome
from service.observe.metrics import STAGES, Metrics
from service.observe.model_statistics import ModelStatistics
from service.observe.spans import Span, current

TOTAL = "total"


class Stopwatch:
    """Times the stages that a transport goes through itself; the data plane times the others.

    The first stage begins when it is made.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._recording = current()
        self._seconds: dict[str, float] = {}
        self._started = self._mark = monotonic()

    def restart(self) -> None:
        """Begin a stage."""
        self._mark = monotonic()

    def lap(self, stage: str) -> None:
        """End a stage, the next one begins."""
        now = monotonic()
        if self._recording is not None:
            self._recording.add(Span(stage, self._mark, now, {}))
        self._seconds[stage] = now - self._mark
        self._metrics.stage(stage, now - self._mark)
        self._mark = now

    def tell(self, statistics: ModelStatistics) -> None:
        """Tell a model how long the stages took of a request that it has answered."""
        statistics.record_stages(self._seconds)

    def header(self, outcomes: Sequence[Outcome]) -> str:
        """Server-Timing of a request: milliseconds of each stage, of the slowest item where items went side by side.

        ``total`` is the time until now, hence also what lies between the stages: threads that were waited for.
        """
        done = [outcome.prediction for outcome in outcomes if outcome.prediction is not None]
        seconds = self._seconds | {"featurise": sum(outcome.featurise_seconds for outcome in outcomes)}
        for stage in ("queue", "assemble", "run") if done else ():
            seconds[stage] = max(getattr(prediction, f"{stage}_seconds") for prediction in done)
        seconds[TOTAL] = monotonic() - self._started
        return ", ".join(f"{stage};dur={1e3 * seconds[stage]:.3f}" for stage in (*STAGES, TOTAL) if stage in seconds)
