"""Replies about the models themselves: their descriptions (``GET /v1/models``), and statistics of their work."""

from collections.abc import Sequence
from time import monotonic
from typing import Any, Literal

from pydantic import Field, JsonValue

from nightjar_alerts.models.bundle import Bundle, Calibration
from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.models.posterior import Domain, Novelty, Posterior, PredictionSets
from nightjar_alerts.service.answers.replies import ClassifierProvenance, Provenance, Reply
from nightjar_alerts.service.answers.writers import classifier_provenance, provenance
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.observe.metrics import STAGES
from nightjar_alerts.service.observe.model_statistics import Distribution, ModelStatistics, Period
from nightjar_alerts.service.registry.live import Served


class ClassName(Reply):
    """A class of the taxonomy."""

    name: str
    id: int
    path: list[str] = Field(description="groups that the class belongs to, from the root down")


class _Description(Provenance):
    aliases: list[str] = Field(description="other names that lead to this version")
    architecture: str
    provider: str
    bands: list[str] = Field(description="bands that the network knows; observations in others are left out")
    flux_unit: FluxUnit = Field(description="unit of the network; requests may use any unit and are converted")
    limits: Limits
    metadata_columns: list[str]
    parameters: dict[str, int]
    metrics: dict[str, JsonValue]
    data: dict[str, JsonValue]
    created: str


class ClassifierDescription(_Description, ClassifierProvenance):
    """Description of a classifier: its name and version, its inputs and its answers."""

    task: Literal["classification"]
    classes: list[ClassName]
    embedding_dim: int
    calibration_details: Calibration
    novelty: Novelty | None = Field(description="how to read the novelty of a reply; null where it has none")
    prediction_sets: PredictionSets | None = Field(description="thresholds of the sets; null where there are none")
    priors: list[str] = Field(description="names of class shares that requests may ask for")
    domain: Domain | None = Field(description="light curves that the model was measured on; null if not stated")


class ForecasterDescription(_Description):
    """Description of a forecaster and its inputs; it gives a flux and its error at any time, in each of ``bands``."""

    task: Literal["forecast"]


class ModelsReply(Reply):
    """Every model that is served."""

    models: list[ClassifierDescription | ForecasterDescription]


def describe(
    bundle: Bundle, provider: str, aliases: Sequence[str] = ()
) -> ClassifierDescription | ForecasterDescription:
    """Describe a bundle to clients."""
    manifest, shared = bundle.manifest, _shared(bundle, provider) | {"aliases": list(aliases)}
    if manifest.taxonomy is None:
        return ForecasterDescription(task="forecast", **provenance(bundle), **shared)
    return ClassifierDescription(
        task="classification",
        **classifier_provenance(bundle),
        **shared,
        classes=[ClassName(name=leaf.name, id=leaf.id, path=list(leaf.path)) for leaf in manifest.taxonomy.classes],
        embedding_dim=manifest.embedding_dim,
        calibration_details=manifest.calibration,
        novelty=manifest.novelty,
        prediction_sets=manifest.prediction_sets,
        priors=list(Posterior(manifest).names),
        domain=manifest.domain,
    )


def _shared(bundle: Bundle, provider: str) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "architecture": manifest.architecture,
        "provider": provider,
        "bands": list(manifest.bands),
        "flux_unit": manifest.flux_unit,
        "limits": manifest.limits,
        "metadata_columns": list(manifest.metadata_columns),
        "parameters": manifest.parameters.model_dump(),
        "metrics": manifest.metrics,
        "data": manifest.data,
        "created": manifest.created,
    }


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
    failed: int = Field(description="unanswered for want of room or time, by an error, or as the client left")
    cached: int = Field(description="answered with a result that was kept")


class PeriodStats(Reply):
    """Counts and durations in one window of time."""

    seconds: float = Field(description="length of the window, up to ten less than its name says")
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
    predicted_seconds: float = Field(description="predicted time until everything that waits has been started")


class StatsReply(Reply):
    """Statistics of a model's work, since it was loaded and in the last minutes."""

    model: Provenance
    queue: QueueStats
    since_start: PeriodStats
    last_minute: PeriodStats
    last_5_minutes: PeriodStats
    last_15_minutes: PeriodStats


def stats(served: Served[Any]) -> StatsReply:
    """Statistics of a model's work."""
    statistics, taxonomy = served.plane.notes.statistics, served.bundle.manifest.taxonomy
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
        light_curves=LightCurves(answered=period.answered, failed=period.failed, cached=period.hits),
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
