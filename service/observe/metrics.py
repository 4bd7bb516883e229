"""Every metric of the service, declared once: prefix ``nightjar_``, base units, few label values.

Histograms of time go from 100 microseconds to 30 seconds. All metrics live in the registry of a :class:`Metrics`
object, one to a process, so that a scrape sees one consistent set and a test can make as many as it likes. Children
of labelled metrics on the path of a light curve are looked up once and kept: ``labels()`` costs more than the
observation it leads to. What belongs to one engine carries its task as a label.

What a request takes and what a model does is noted while clients wait, and counted when somebody reads it or a few
hundred notes have come together (:class:`DeferredHistogram`, :class:`ModelMetrics`): all that changes is the time.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from threading import Lock
from time import monotonic
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from nightjar_alerts.models.bundle import Bundle, Task
from nightjar_alerts.models.lightcurve import Tokens
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.service.engine.batch import Prediction, RunReport
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.engine.supervise import Fault
from nightjar_alerts.service.observe.model_statistics import ModelStatistics

STAGES = ("receive", "decode", "validate", "featurise", "queue", "assemble", "run", "encode")

SECONDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
BATCH_TOKENS = tuple(2**power for power in range(2, 14))
PADDING_RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
ERROR_RATIOS = (0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
DISTANCES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
AGES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0, 7200.0, 86400.0)
FAULT_OUTCOMES = ("recovered", "fatal")
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

MOST_NOTED = 512
"""Most values that wait to be counted."""
MOST_RUNS = 32
"""Most runs that wait to be counted, with their light curves."""

MetricT = TypeVar("MetricT", bound=MetricWrapperBase)


class MetricChildren(dict[tuple[str, ...], MetricT]):
    """Children of a labelled metric by their label values, looked up once each."""

    def __init__(self, parent: MetricT) -> None:
        super().__init__()
        self._parent = parent

    def __missing__(self, values: tuple[str, ...]) -> MetricT:
        """Look a child up."""
        child = self[values] = self._parent.labels(*values)
        return child


class _Deferred(MetricWrapperBase):
    """A metric that notes amounts, and counts them when it is read or many are noted.

    Hundreds together cost a tenth of what each would alone, and no request waits for them. Safe to use from any thread.
    """

    def _metric_init(self) -> None:
        super()._metric_init()  # type: ignore[no-untyped-call]  # of prometheus_client, which has no types here
        self._amounts: list[float] = []
        self._counting = Lock()

    def _note(self, *amounts: float) -> None:
        self._amounts.extend(amounts)
        if len(self._amounts) >= MOST_NOTED:
            self._count()

    def _child_samples(self) -> Iterable[Sample]:
        self._count()
        return super()._child_samples()

    def _count(self) -> None:
        with self._counting:
            amounts = self._amounts[:]
            del self._amounts[: len(amounts)]  # what others have noted meanwhile stands behind
        if amounts:
            self._add(amounts)

    def _add(self, amounts: Sequence[float]) -> None:
        """Count amounts that were noted."""
        raise NotImplementedError  # each of the two kinds below does it its own way


class DeferredHistogram(_Deferred, Histogram):
    """A histogram that counts later what it observes."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Note a value."""
        self._note(amount)

    def observe_all(self, amounts: Iterable[float]) -> None:
        """Note several values."""
        self._note(*amounts)

    def _add(self, amounts: Sequence[float]) -> None:
        self._sum.inc(sum(amounts))
        places = np.searchsorted(self._upper_bounds, amounts)
        for place, count in zip(*np.unique(places, return_counts=True), strict=True):
            self._buckets[place].inc(int(count))


class DeferredCounter(_Deferred, Counter):
    """A counter that adds up later what is added to it."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Note an increase."""
        self._note(amount)

    def _add(self, amounts: Sequence[float]) -> None:
        super().inc(sum(amounts))


class ModelMetrics:
    """Notes of a model's work, taken while clients wait and counted when somebody asks or much is noted.

    They are counted twice: in the metrics of the process and in the statistics of the model. Safe to use from any
    thread.

    Parameters
    ----------
    classes : of the model, in the order of its probabilities.
    bands : of the model, in the order of their integers.
    """

    def __init__(self, metrics: "Metrics", task: Task, classes: Sequence[str], bands: Sequence[str]) -> None:
        self._metrics, self._statistics = metrics, ModelStatistics()
        histograms = (metrics.batch_size, metrics.batch_tokens, metrics.padding_ratio, metrics.cost_error)
        self._size, self._tokens, self._padding, self._error = (histogram.labels(task) for histogram in histograms)
        self._by_class = [metrics.predicted_class.labels(name) for name in classes]
        self._by_band = [metrics.observations.labels(name) for name in bands]
        self._runs: list[tuple[float, RunReport, float]] = []
        self._others: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._counting = Lock()

    @property
    def statistics(self) -> ModelStatistics:
        """Statistics of the model, with everything noted so far."""
        self.count()
        return self._statistics

    def record_run(self, report: RunReport, predicted_seconds: float) -> None:
        """Note a run and its predicted seconds; called in worker threads."""
        self._runs.append((monotonic(), report, predicted_seconds))
        if len(self._runs) >= MOST_RUNS:
            self.count()

    def record_request(self, answered: int, failed: int, seconds: float) -> None:
        """Note what became of the light curves of a request."""
        self._note(self._statistics.record_request, answered, failed, seconds)

    def record_lookup(self, hits: int, misses: int, seconds: float) -> None:
        """Note light curves that were looked up among the results that are kept."""
        self._note(self._statistics.record_lookup, hits, misses, seconds)

    def record_stages(self, stages: Mapping[str, float]) -> None:
        """Note the seconds of a request in stages outside of the engine; the mapping must not change afterwards."""
        self._note(self._statistics.record_stages, stages)

    def _note(self, record: Callable[..., None], *values: object) -> None:
        self._others.append((record, (*values, monotonic())))
        if len(self._others) >= MOST_NOTED:
            self.count()

    def count(self) -> None:
        """Count what is noted."""
        with self._counting:
            runs, others = self._runs[:], self._others[:]
            del self._runs[: len(runs)], self._others[: len(others)]
            for record, values in others:
                record(*values)
            for at, report, predicted in runs:
                self._statistics.record_run(report, predicted, at)
        if runs:
            self._count_runs([(report, predicted) for _, report, predicted in runs])

    def _count_runs(self, runs: Sequence[tuple[RunReport, float]]) -> None:
        padded = [report.size * report.length for report, _ in runs]
        self._size.observe_all(report.size for report, _ in runs)
        self._tokens.observe_all(padded)
        self._padding.observe_all(cells / report.tokens for cells, (report, _) in zip(padded, runs, strict=True))
        self._error.observe_all(report.run_seconds / predicted for report, predicted in runs)
        self._count_experts([report.expert_load for report, _ in runs])
        self._count_points([question.tokens for report, _ in runs for question in report.questions])
        answers = [answer for report, _ in runs for answer in report.answers if isinstance(answer, Prediction)]
        self._count_answers(answers)

    def _count_experts(self, loads: Sequence[Mapping[str, NDArray[np.int64]]]) -> None:
        for output in {name for of_run in loads for name in of_run}:
            total_LE = np.sum([of_run[output] for of_run in loads if output in of_run], axis=0)
            for layer, total_E in enumerate(total_LE.tolist()):
                name = "input" if output == "input_expert_load" else str(layer)
                for expert, load in enumerate(total_E):
                    self._metrics.expert_load_of[name, str(expert)].inc(load)

    def _count_points(self, curves: Sequence[Tokens]) -> None:
        for counter, points in zip(self._by_band, zip(*(t.points_per_band for t in curves), strict=True), strict=True):
            counter.inc(sum(points))
        missing = np.count_nonzero(np.isnan([tokens.metadata for tokens in curves]))
        self._metrics.missing_metadata.inc(int(missing))
        self._metrics.truncated.inc(sum(tokens.truncated for tokens in curves))

    def _count_answers(self, answers: Sequence[Prediction]) -> None:
        for stage in ("queue", "assemble", "run"):
            self._metrics.stages[stage].observe_all(getattr(answer, f"{stage}_seconds") for answer in answers)
        rows = [answer.outputs["probabilities"] for answer in answers if "probabilities" in answer.outputs]
        if not rows:
            return
        probabilities_BC = np.array(rows)
        self._metrics.confidence.observe_all(probabilities_BC.max(1).tolist())
        if self._by_class:
            for counter, count in zip(self._by_class, np.bincount(probabilities_BC.argmax(1)).tolist(), strict=False):
                counter.inc(count)


class _NotesCollector(Collector):
    """The first collector of a registry: counts what is noted before the others are read."""

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        """Describe nothing."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Collect nothing."""
        self._count()
        return []


class Metrics:
    """All metrics of one service process; the attributes are the metrics. Safe to use from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._notes: list[ModelMetrics] = []
        self.registry.register(_NotesCollector(self._count_notes))
        self.in_progress = 0
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._declare_requests()
        self._declare_batches()
        self._declare_content()
        self._declare_models()
        self._declare_stream()
        self.stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}
        self._outcomes = MetricChildren(self.outcomes)
        self.requests_of_key, self.curves_of_key = MetricChildren(self.key_requests), MetricChildren(self.key_curves)
        self._requests, self._request_seconds = MetricChildren(self.requests), MetricChildren(self.request_seconds)
        self.expert_load_of = MetricChildren(self.expert_load)
        self.inflight.set_function(lambda: self.in_progress)
        self._models: Tally[tuple[str, ...]] = Tally()
        self._engines: dict[Task, list[Engine]] = {}

    def _kinds(self) -> tuple[partial[DeferredCounter], partial[Gauge], partial[DeferredHistogram]]:
        counter = partial(DeferredCounter, namespace="nightjar", registry=self.registry)
        gauge = partial(Gauge, namespace="nightjar", registry=self.registry)
        return counter, gauge, partial(DeferredHistogram, namespace="nightjar", registry=self.registry)

    def _declare_requests(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.requests = counter("requests_total", "Requests answered, by route and status code.", ["route", "code"])
        self.request_seconds = histogram(
            "request_duration_seconds", "From first byte to end of reply, by route.", ["route"], buckets=SECONDS
        )
        self.stage_seconds = histogram(
            "stage_duration_seconds", "Time in one stage of a request's way.", ["stage"], buckets=SECONDS
        )
        self.inflight = gauge("inflight_requests", "Requests being answered.")
        self.rejected = counter("rejected_total", "Requests turned away, by reason.", ["reason"])
        self.key_requests = counter("key_requests_total", "Requests by API key, refused ones included.", ["key"])
        self.key_curves = counter("key_curves_total", "Light curves asked for, by API key.", ["key"])
        self.key_refused = counter("key_refused_total", "Requests beyond a limit of their API key.", ["key", "limit"])
        self.outcomes = counter(
            "outcomes_total", "Light curves and packets by what became of them.", ["survey", "status", "reason"]
        )
        self.substitutes = counter("substitutes_total", "Requests served by a canary.", ["role"])
        self.withdrawn = counter("withdrawn_total", "Light curves given up: client gone or deadline passed.")
        self.loop_lag = histogram(
            "event_loop_lag_seconds", "How late the event loop woke a timer; it is sampled.", buckets=SECONDS
        )

    def _declare_batches(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.queue_depth = gauge("queue_depth", "Light curves waiting for a worker.", ["task"])
        self.queue_seconds = gauge(
            "queue_work_seconds", "Predicted time until everything queued has been started on.", ["task"]
        )
        self.faults = counter(
            "engine_faults_total",
            "What went wrong with an engine; outcome: recovered, or fatal to the process.",
            ["task", "fault", "outcome"],
        )
        self.oldest_run_seconds = gauge("oldest_run_seconds", "Age of the longest inference run under way.", ["task"])
        self.batch_size = histogram("batch_size", "Light curves in a run.", ["task"], buckets=BATCH_SIZES)
        self.batch_tokens = histogram(
            "batch_tokens", "Padded points, and times to forecast, in a run.", ["task"], buckets=BATCH_TOKENS
        )
        self.padding_ratio = histogram(
            "batch_padding_ratio", "Padded over real points of a run.", ["task"], buckets=PADDING_RATIOS
        )
        self.cost_error = histogram(
            "cost_model_error_ratio", "Measured over predicted duration of a run.", ["task"], buckets=ERROR_RATIOS
        )

    def _declare_content(self) -> None:
        counter, _, histogram = self._kinds()
        self.expert_load = counter(
            "expert_load_total", "Tokens sent to an expert; layer input is before block 0.", ["layer", "expert"]
        )
        self.predicted_class = counter("predicted_class_total", "Light curves by most probable class.", ["class"])
        self.confidence = histogram("confidence", "Probability of the most probable class.", buckets=CONFIDENCES)
        self.observations = counter("observations_total", "Points that a network saw, by band.", ["band"])
        self.truncated = counter("truncated_total", "Light curves cut to the limits of the network.")
        self.missing_metadata = counter("missing_metadata_total", "Metadata values missing from light curves.")

    def _declare_models(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.model_info = gauge(
            "model_info", "A model that is served; always 1.", ["task", "model", "version", "sha256", "provider"]
        )
        self.model_load_seconds = gauge("model_load_seconds", "Time to load, verify and warm up the model.", ["task"])
        self.model_curves = counter(
            "model_curves_total",
            "Light curves by model and version; role: current or canary.",
            ["model", "version", "role"],
        )
        self.model_loads = counter("model_loads_total", "Bundles of the repository loaded, or not.", ["outcome"])
        self.models_failing = gauge("models_failing", "Bundles in the repository that cannot be served.")
        self.cache_answers = counter(
            "cache_answers_total", "Light curves by where their result was found; none: it was computed.", ["found"]
        )
        self.cache_bytes = gauge("cache_bytes", "Results held in memory.")
        self.shadow_curves = counter(
            "shadow_curves_total",
            "Light curves offered to a shadow model: agreed, disagreed, failed, or dropped unasked.",
            ["outcome"],
        )
        self.shadow_distance = histogram(
            "shadow_distance", "Total-variation distance of a shadow model's answer.", buckets=DISTANCES
        )
        self.shadow_seconds = histogram("shadow_seconds", "From a copy to the shadow model's answer.", buckets=SECONDS)

    def _declare_stream(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.stream_in = counter("stream_in_total", "Alerts that a worker took from a broker.", ["topic"])
        self.stream_out = counter(
            "stream_out_total",
            "Alerts by how they left a worker: classified, abstained, dead, or returned to the broker.",
            ["topic", "ending", "reason"],
        )
        self.stream_inflight = gauge("stream_inflight_messages", "Messages taken and not yet done.")
        self.stream_lag = gauge(
            "stream_lag_messages",
            "Messages from the committed offset to the end, by the broker's numbers; a stream has one partition, ``.",
            ["topic", "partition"],
        )
        self.stream_assigned = gauge(
            "stream_assigned_partitions", "Partitions that the group has given to this worker."
        )
        self.stream_untaken = gauge(
            "stream_untaken_seconds", "Since a message was taken, or since none waits at the broker any more."
        )
        self.stream_not_ready = gauge(
            "stream_not_ready", "1 while a worker takes no alerts for a reason that its /readyz names."
        )
        self.stream_rebalances = histogram(
            "stream_rebalance_seconds", "For how long a change of the group kept a worker from taking.", buckets=SECONDS
        )
        self.stream_stopped = counter(
            "stream_stopped_partitions_total",
            "Kafka partitions that were stopped because a message below the committed offset came first.",
        )
        self.stream_gap_messages = counter(
            "stream_gap_messages_total",
            "Messages between a committed Kafka offset and the earliest one in the log, which were deleted unread.",
        )
        self.stream_shortened = counter(
            "stream_dead_letters_shortened_total",
            "Dead letters of which only the beginning was kept, as they were too large.",
        )
        self.stream_retries = counter(
            "stream_retries_total", "Tries that failed and were repeated, by what was tried.", ["step"]
        )
        self.stream_seconds = histogram(
            "stream_stage_duration_seconds", "Time of a batch of messages in one stage.", ["stage"], buckets=SECONDS
        )
        self.stream_broker_age = histogram(
            "stream_broker_age_seconds", "From the broker's timestamp to the worker.", buckets=AGES
        )
        self.stream_alert_age = histogram(
            "stream_alert_age_seconds",
            "From mid-exposure to the acknowledged answer; replays are left out.",
            ["survey"],
            buckets=AGES,
        )

    def stage(self, name: str, seconds: float) -> None:
        """Count time spent in one of :data:`STAGES`."""
        self.stages[name].observe(seconds)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests[route, str(status)].inc()
        self._request_seconds[route,].observe(seconds)

    def outcome(self, survey: str, status: str, reason: str, count: int = 1) -> None:
        """Count what became of light curves or packets."""
        self._outcomes[survey, status, reason].inc(count)

    def fault(self, task: Task, fault: Fault, recovered: bool) -> None:
        """Count a fault of an engine."""
        self.faults.labels(task, fault, FAULT_OUTCOMES[not recovered]).inc()

    def set_model(self, bundle: Bundle, provider: str, load_seconds: float) -> None:
        """Name a model that is served from now on."""
        labels = _model_labels(bundle, provider)
        self._models[labels] += 1
        self.model_info.labels(*labels).set(1)
        self.model_load_seconds.labels(bundle.manifest.task).set(load_seconds)

    def unset_model(self, bundle: Bundle, provider: str) -> None:
        """Forget a model that is served no more."""
        labels = _model_labels(bundle, provider)
        self._models[labels] -= 1
        if not self._models[labels]:  # else another engine serves the same bundle
            self.model_info.remove(*labels)

    def model_counter(self, bundle: Bundle) -> Callable[[str, int], None]:
        """Return a counter of light curves asked of a model, called with the role of the version and their number."""
        name, version = bundle.manifest.name, bundle.manifest.version
        roles: dict[str, Counter] = {}

        def count(role: str, items: int) -> None:
            if role not in roles:
                roles[role] = self.model_curves.labels(name, version, role or "current")
            roles[role].inc(items)

        return count

    def watch(self, task: Task, engine: Engine) -> None:
        """Read the queue's gauges from the engines of a task whenever they are scraped."""
        engines = self._engines.setdefault(task, [])
        engines.append(engine)
        for fault, outcome in product(Fault, FAULT_OUTCOMES):  # at zero, so that the first one is seen as an increase
            self.faults.labels(task, fault, outcome)
        self.queue_depth.labels(task).set_function(lambda: sum(each.depth for each in engines))
        self.queue_seconds.labels(task).set_function(lambda: max((each.queued_seconds for each in engines), default=0))
        self.oldest_run_seconds.labels(task).set_function(
            lambda: max((each.oldest_run_seconds for each in engines), default=0)
        )

    def unwatch(self, task: Task, engine: Engine) -> None:
        """Stop reading the gauges from an engine."""
        self._engines[task].remove(engine)

    def notes(self, task: Task, classes: Sequence[str] = (), bands: Sequence[str] = BANDS) -> ModelMetrics:
        """Return the notes of a new model's work; they are counted whenever metrics are read."""
        notes = ModelMetrics(self, task, classes, bands)
        self._notes.append(notes)
        return notes

    def end_notes(self, notes: ModelMetrics) -> None:
        """Count the last notes of a model that is served no more."""
        notes.count()
        self._notes.remove(notes)

    def _count_notes(self) -> None:
        for notes in list(self._notes):
            notes.count()

    def render(self) -> bytes:
        """Text exposition; takes milliseconds, so not for the event loop."""
        return generate_latest(self.registry)

    async def sample_loop_lag(self, interval: float = 0.5) -> None:
        """Watch how late the event loop wakes a timer, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval
            await asyncio.sleep(interval)
            self.loop_lag.observe(max(0.0, loop.time() - due))


def _model_labels(bundle: Bundle, provider: str) -> tuple[str, ...]:
    manifest = bundle.manifest
    return manifest.task, manifest.name, manifest.version, bundle.sha256, provider
