"""Statistics of a model's work: ``GET /v1/models/{model}/stats``."""

from collections.abc import Sequence
from time import monotonic
from typing import Any

from pydantic import Field

from service.answers.replies import Provenance, Reply
from service.answers.writers import provenance
from service.engine.engine import Engine
from service.observe.metrics import STAGES
from service.observe.model_statistics import Distribution, ModelStatistics, Period
from service.registry.live import Served

SHARES = (0.1, 0.5, 0.9, 0.99)


class Quantiles(Reply):
    """Distribution of values, each quantile within 5 %; zeros where there are no values."""

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    max: float


class LightCurves(Reply):
    """Light curves by what became of them."""

    answered: int
    failed: int = Field(description="that should have been answered: an error, a deadline, no room, a client that left")
    cached: int = Field(description="answered with a result that was kept")


class PeriodStats(Reply):
    """Counts and durations in one window of time."""

    seconds: float = Field(description="its length; a window may be short of its name by up to ten")
    light_curves: LightCurves
    runs: int
    stages: dict[str, Quantiles] = Field(
        description="seconds: of each light curve in queue, assemble and run, of each request in the others; total is "
        "the time of a request from light curves to outcomes"
    )
    batch_size: Quantiles = Field(description="light curves in each run")
    batch_sizes: dict[str, int] = Field(description="runs by the light curves in them")
    padding_ratio: Quantiles = Field(description="padded over real observations of each run")
    cost_model_error_ratio: Quantiles = Field(description="measured over predicted seconds of each run")
    classes: dict[str, int] = Field(description="light curves by most probable class; empty for a forecaster")


class QueueStats(Reply):
    """Light curves that wait and run now."""

    waiting: int
    running: int
    predicted_seconds: float = Field(description="until everything that waits has been started on")


class StatsReply(Reply):
    """The work of a model, since it was loaded and lately."""

    model: Provenance
    queue: QueueStats
    since_start: PeriodStats
    last_minute: PeriodStats
    last_5_minutes: PeriodStats
    last_15_minutes: PeriodStats


def stats(served: Served[Any]) -> StatsReply:
    """Everything that is known of the work of a model."""
    statistics, taxonomy = served.plane.statistics, served.bundle.manifest.taxonomy
    classes = () if taxonomy is None else taxonomy.names
    return StatsReply(
        model=Provenance(**provenance(served.bundle)),
        queue=_queue(served.engine),
        since_start=_of(statistics, classes, None),
        last_minute=_of(statistics, classes, 60.0),
        last_5_minutes=_of(statistics, classes, 300.0),
        last_15_minutes=_of(statistics, classes, 900.0),
    )


def _queue(engine: Engine) -> QueueStats:
    return QueueStats(waiting=engine.depth, running=engine.running, predicted_seconds=engine.queued_seconds)


def _of(statistics: ModelStatistics, classes: Sequence[str], seconds: float | None) -> PeriodStats:
    period = statistics.period(seconds)
    sizes = sorted(period.sizes.items())
    return PeriodStats(
        seconds=monotonic() - period.began,
        light_curves=LightCurves(answered=period.answered, failed=period.failed, cached=period.found),
        runs=period.sizes.total(),
        stages=_stages(period),
        batch_size=_quantiles(_sizes(sizes)),
        batch_sizes={str(size): count for size, count in sizes},
        padding_ratio=_quantiles(period.padding),
        cost_model_error_ratio=_quantiles(period.cost_error),
        classes={classes[index]: count for index, count in period.classes.most_common()},
    )


def _stages(period: Period) -> dict[str, Quantiles]:
    return {name: _quantiles(period.stages[name]) for name in (*STAGES, "total") if name in period.stages}


def _sizes(sizes: Sequence[tuple[int, int]]) -> Distribution:
    distribution = Distribution()
    for size, count in sizes:
        distribution.add(size, count)
    return distribution


def _quantiles(values: Distribution) -> Quantiles:
    p10, p50, p90, p99 = values.quantiles(*SHARES)
    return Quantiles(count=values.count, mean=values.mean, p10=p10, p50=p50, p90=p90, p99=p99, max=values.largest)
