"""Prometheus metrics of the service and the worker, with the prefix ``nightjar_`` and base units.

Each :class:`Metrics` object has its own registry; a process has one, tests create as many as they need.
:class:`ModelMetrics` are those of one model.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from threading import Lock
from time import time

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
    generate_latest,
)

from nightjar_alerts.core.failures import ErrorKind
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.engine.batch import QueueEntry, RunReport
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.observe.drift import InputWindows
from nightjar_alerts.service.observe.tracing import Tracing

STAGES = ("receive", "decode", "validate", "featurise", "queue", "assemble", "run", "encode")

SECONDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
BATCH_TOKENS = tuple(2**power for power in range(2, 14))
PADDING_RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
ERROR_RATIOS = (0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
DISTANCES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
AGES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0, 7200.0, 86400.0)
ERROR_OUTCOMES = ("recovered", "fatal")
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Metrics:
    """All metrics of one process, as attributes. Safe to use from any thread.

    Parameters
    ----------
    tracing : records spans; without it nothing is traced.
    """

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.tracing = tracing or Tracing()
        self.registry = CollectorRegistry()
        self.in_progress = 0
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._declare_requests()
        self._declare_batches()
        self._declare_content()
        self._declare_models()
        self._declare_stream()
        self._start_at_zero()
        self.stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}
        self.inflight.set_function(lambda: self.in_progress)
        self._models: Tally[tuple[str, ...]] = Tally()
        self._engines: list[Engine] = []
        for kind, outcome in product(
            ErrorKind, ERROR_OUTCOMES
        ):  # at zero, so that the first fault shows as an increase
            self.faults.labels(kind, outcome)
        self.queue_depth.set_function(lambda: sum(engine.depth for engine in self._engines))
        self.queue_seconds.set_function(lambda: max((engine.queued_seconds for engine in self._engines), default=0))
        self.oldest_run_seconds.set_function(
            lambda: max((engine.oldest_run_seconds for engine in self._engines), default=0)
        )

    def _kinds(self) -> tuple[partial[Counter], partial[Gauge], partial[Histogram]]:
        counter = partial(Counter, namespace="nightjar", registry=self.registry)
        gauge = partial(Gauge, namespace="nightjar", registry=self.registry)
        return counter, gauge, partial(Histogram, namespace="nightjar", registry=self.registry)

    def _declare_requests(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.requests = counter(
            "requests_total",
            "Requests by route and status code; for gRPC, the method and the corresponding HTTP status code.",
            ["route", "code"],
        )
        self.request_seconds = histogram(
            "request_duration_seconds",
            "Time from the first byte of a request to the end of its response.",
            ["route"],
            buckets=SECONDS,
        )
        self.stage_seconds = histogram(
            "stage_duration_seconds", "Time spent in each request processing stage.", ["stage"], buckets=SECONDS
        )
        self.inflight = gauge("inflight_requests", "Requests in progress.")
        self.rejected = counter("rejected_total", "Requests answered with an error, by reason.", ["reason"])
        self.key_requests = counter("key_requests_total", "Requests by API key, rejected requests included.", ["key"])
        self.key_curves = counter("key_curves_total", "Light curves in requests, by API key.", ["key"])
        self.key_refused = counter(
            "key_refused_total", "Requests rejected because of a limit of their API key.", ["key", "limit"]
        )
        self.outcomes = counter(
            "outcomes_total", "Light curves and packets by final status.", ["survey", "status", "reason"]
        )
        self.substitutes = counter("substitutes_total", "Requests served by a canary.", ["role"])
        self.withdrawn = counter(
            "withdrawn_total", "Light curves withdrawn because the client disconnected or the deadline passed."
        )
        self.loop_lag = histogram(
            "event_loop_lag_seconds", "Delay of a timer on the event loop, sampled twice a second.", buckets=SECONDS
        )

    def _declare_batches(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.queue_depth = gauge("queue_depth", "Light curves waiting for a worker.")
        self.queue_seconds = gauge(
            "queue_work_seconds", "Predicted time until every queued light curve has been started."
        )
        self.faults = counter(
            "engine_faults_total",
            "Engine faults by type and outcome (recovered or fatal).",
            ["fault", "outcome"],
        )
        self.oldest_run_seconds = gauge("oldest_run_seconds", "Age of the longest current inference run.")
        self.batch_size = histogram("batch_size", "Light curves per inference run.", buckets=BATCH_SIZES)
        self.batch_tokens = histogram("batch_tokens", "Padded points per inference run.", buckets=BATCH_TOKENS)
        self.padding_ratio = histogram(
            "batch_padding_ratio", "Ratio of padded to real points per inference run.", buckets=PADDING_RATIOS
        )
        self.cost_error = histogram(
            "cost_model_error_ratio",
            "Ratio of measured to predicted duration per inference run.",
            buckets=ERROR_RATIOS,
        )

    def _declare_content(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.expert_load = counter(
            "expert_load_total",
            "Tokens routed to each expert; layer `input` comes before block 0.",
            ["layer", "expert"],
        )
        self.router_entropy = Summary(
            "router_entropy",
            "Router entropy, nats, by layer: mean of the light curves of an inference run.",
            ["model", "layer"],
            namespace="nightjar",
            registry=self.registry,
        )
        self.predicted_class = counter("predicted_class_total", "Light curves by most probable class.", ["class"])
        self.confidence = histogram("confidence", "Probability of the most probable class.", buckets=CONFIDENCES)
        self.unusual = counter("unusual_total", "Light curves whose novelty exceeds the threshold of the model.")
        self.observations = counter("observations_total", "Points passed to the network, by band.", ["band"])
        self.truncated = counter("truncated_total", "Light curves shortened to the limits of the network.")
        self.missing_metadata = counter("missing_metadata_total", "Metadata values missing from light curves.")
        self.input_drift = gauge(
            "input_drift",
            "Distance of the latest 200 light curves of a survey from the training data, in units of its limit.",
            ["survey", "kind"],
        )
        self.input_windows = counter(
            "input_windows_total", "Windows of 200 light curves compared with the training data.", ["survey"]
        )

    def _declare_models(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.model_info = gauge(
            "model_info",
            "Models that are served; the value is always 1.",
            ["model", "version", "sha256", "provider"],
        )
        self.model_load_seconds = gauge("model_load_seconds", "Time to load, verify and warm up the latest model.")
        self.model_curves = counter(
            "model_curves_total",
            "Light curves by model and version; role: current or canary.",
            ["model", "version", "role"],
        )
        self.model_loads = counter("model_loads_total", "Attempts to load a bundle, by outcome.", ["outcome"])
        self.models_failing = gauge("models_failing", "Bundles that cannot be served.")
        self.cache_answers = counter(
            "cache_answers_total", "Light curves by where their result was found; `none`: it was computed.", ["found"]
        )
        self.cache_bytes = gauge("cache_bytes", "Size of the results held in memory.")
        self.shadow_curves = counter(
            "shadow_curves_total",
            "Light curves offered to a shadow model: agreed, disagreed, failed, or dropped.",
            ["outcome"],
        )
        self.shadow_distance = histogram(
            "shadow_distance",
            "Total-variation distance between the probabilities of a shadow model and of the served one.",
            buckets=DISTANCES,
        )
        self.shadow_seconds = histogram(
            "shadow_seconds", "Time from a copied request to the result of the shadow model.", buckets=SECONDS
        )

    def _declare_stream(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.stream_in = counter("stream_in_total", "Alerts consumed by a worker, by topic.", ["topic"])
        self.stream_out = counter(
            "stream_out_total",
            "Alerts by disposition: classified, abstained, dead (letter), tombstone, returned to the broker, or lost.",
            ["topic", "ending", "reason"],
        )
        self.stream_inflight = gauge("stream_inflight_messages", "Messages consumed but not yet acknowledged.")
        self.stream_lag = gauge(
            "stream_lag_messages",
            "Messages that are not done, by the broker's numbers; a stream has one partition, ``.",
            ["topic", "partition"],
        )
        self.stream_assigned = gauge(
            "stream_assigned_partitions", "Partitions that the group has given to this worker."
        )
        self.stream_untaken = gauge(
            "stream_untaken_seconds", "Seconds since the last message was consumed while messages were pending."
        )
        self.stream_not_ready = gauge("stream_not_ready", "1 while a worker is not ready; /readyz gives the reason.")
        self.stream_rebalances = histogram(
            "stream_rebalance_seconds", "Time during which a rebalance kept a worker from consuming.", buckets=SECONDS
        )
        self.stream_stopped = counter(
            "stream_stopped_partitions_total",
            "Kafka partitions that were stopped because a message below the committed offset came first.",
        )
        self.stream_gap_messages = counter(
            "stream_gap_messages_total",
            "Messages between a committed Kafka offset and the earliest one in the log, which were deleted unread.",
        )
        self.stream_appeared = counter(
            "stream_appeared_partitions_total",
            "Kafka partitions that appeared after the start and are read from their oldest record.",
        )
        self.stream_suspects = counter(
            "stream_suspects_total", "Messages that were isolated, since one of them may have killed workers."
        )
        self.stream_shortened = counter(
            "stream_dead_letters_shortened_total",
            "Dead letters that were too large and kept only the beginning of their message.",
        )
        self.stream_retries = counter("stream_retries_total", "Failed attempts that were retried, by step.", ["step"])
        self.stream_seconds = histogram(
            "stream_stage_duration_seconds", "Time of a batch of messages in one stage.", ["stage"], buckets=SECONDS
        )
        self.stream_broker_age = histogram(
            "stream_broker_age_seconds", "Time from the broker's timestamp to the poll of the worker.", buckets=AGES
        )
        self.stream_alert_age = histogram(
            "stream_alert_age_seconds",
            "Time from mid-exposure to the acknowledged result; replays are not counted.",
            ["survey"],
            buckets=AGES,
        )

    def _start_at_zero(self) -> None:
        """Create counters with known labels at zero, so that their first increase is visible."""
        for counter, values in (
            (self.substitutes, ("canary",)),
            (self.model_loads, ("loaded", "failed")),
            (self.cache_answers, ("memory", "none")),
            (self.shadow_curves, ("agreed", "disagreed", "failed", "dropped")),
        ):
            for value in values:
                counter.labels(value)

    def record_stage(self, stage: str, started: float, ended: float, light_curves: int = 1) -> None:
        """Record one of :data:`STAGES` of the current request, with a span if it is traced.

        Parameters
        ----------
        started, ended : ``time.monotonic()`` seconds.
        light_curves : number of light curves that share the time evenly.
        """
        histogram, seconds = self.stages[stage], (ended - started) / light_curves
        for _ in range(light_curves):
            histogram.observe(seconds)
        self.tracing.record_stage(stage, started, ended)

    def record_http_request(self, route: str, status: int, seconds: float) -> None:
        """Record a finished request."""
        self.requests.labels(route, str(status)).inc()
        self.request_seconds.labels(route).observe(seconds)

    def model(self, bundle: Bundle) -> "ModelMetrics":
        """Return the metrics of one model."""
        return ModelMetrics(self, bundle)

    def record_drift(self, survey: str, drift: Mapping[str, float]) -> None:
        """Record the comparison of a window of a survey with the training data, by kind."""
        self.input_windows.labels(survey).inc()
        for kind, distance in drift.items():
            self.input_drift.labels(survey, kind).set(distance)

    def record_load(self, succeeded: bool) -> None:
        """Record an attempt to load a bundle."""
        self.model_loads.labels("loaded" if succeeded else "failed").inc()

    def watch_failing_models(self, count: Callable[[], int]) -> None:
        """Set the function that counts the bundles that cannot be served."""
        self.models_failing.set_function(count)

    def record_cache_lookup(self, hits: int, misses: int) -> None:
        """Record light curves whose result was looked up in the cache."""
        self.cache_answers.labels("memory").inc(hits)
        self.cache_answers.labels("none").inc(misses)

    def watch_cache(self, used_bytes: Callable[[], int]) -> None:
        """Set the function that returns the size of the cache in bytes."""
        self.cache_bytes.set_function(used_bytes)

    def record_shadow(self, outcome: str, light_curves: int = 1) -> None:
        """Record light curves offered to a shadow model."""
        self.shadow_curves.labels(outcome).inc(light_curves)

    def record_shadow_distance(self, distance: float) -> None:
        """Record the total-variation distance between a shadow model's probabilities and the served ones."""
        self.shadow_distance.observe(distance)

    def record_shadow_seconds(self, seconds: float) -> None:
        """Record the time from a copied request to the shadow model's result."""
        self.shadow_seconds.observe(seconds)

    def add_model(self, engine: Engine, labels: tuple[str, ...], load_seconds: float) -> None:
        """Show a model in ``model_info``, and include its engine in the gauges of engines.

        Parameters
        ----------
        labels : labels of ``model_info``.
        """
        self._engines.append(engine)
        self._models[labels] += 1
        self.model_info.labels(*labels).set(1)
        self.model_load_seconds.set(load_seconds)

    def remove_model(self, engine: Engine, labels: tuple[str, ...]) -> None:
        """Remove an engine, and its model from ``model_info`` unless another engine serves the same bundle."""
        self._engines.remove(engine)
        self._models[labels] -= 1
        if not self._models[labels]:
            self.model_info.remove(*labels)

    def render(self) -> bytes:
        """Return the text exposition. Takes milliseconds: do not call it on the event loop."""
        return generate_latest(self.registry)

    async def sample_loop_lag(self, interval: float = 0.5) -> None:
        """Measure the delay of timers on the event loop, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval
            await asyncio.sleep(interval)
            self.loop_lag.observe(max(0.0, loop.time() - due))


@dataclass(slots=True)
class RunTotals:
    """Totals of the runs of one model since it was loaded.

    Attributes
    ----------
    light_curves, runs : numbers of classified light curves, and of inference runs.
    queue_seconds, assemble_seconds, run_seconds : sums over the light curves, each of which waits for its whole batch.
    last_run : seconds since 1970; 0 before the first.
    """

    light_curves: int = 0
    runs: int = 0
    queue_seconds: float = 0.0
    assemble_seconds: float = 0.0
    run_seconds: float = 0.0
    last_run: float = 0.0


class ModelMetrics:
    """Metrics and traces of one model. Safe to use from any thread.

    Attributes
    ----------
    totals : totals of its runs.
    """

    def __init__(self, metrics: Metrics, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self._metrics, self._tracing, self._bundle = metrics, metrics.tracing, bundle
        self.totals = RunTotals()
        self._totals_lock = Lock()
        classes = () if manifest.taxonomy is None else manifest.taxonomy.names
        self._by_class = [metrics.predicted_class.labels(name) for name in classes]
        self._by_band = [metrics.observations.labels(name) for name in manifest.band_map.labels]
        self._windows = InputWindows(manifest, metrics.record_drift)
        for survey in manifest.survey_statistics:  # at zero, so that the first window shows as an increase
            metrics.input_windows.labels(survey)
        self._experts: dict[str, list[Counter]] = {}
        self._router_entropy: list[Summary] = []
        self._engine: Engine | None = None
        self._labels: tuple[str, ...] = ()

    def serve(self, engine: Engine, provider: str, load_seconds: float) -> None:
        """Record that the model is served; gauges read its engine."""
        manifest = self._bundle.manifest
        self._engine = engine
        self._labels = (manifest.name, manifest.version, self._bundle.sha256, provider)
        self._metrics.add_model(engine, self._labels, load_seconds)

    def close(self) -> None:
        """Record that the model is no longer served."""
        if self._engine is not None:
            self._metrics.remove_model(self._engine, self._labels)
            self._engine = None

    def record_request(self, role: str, light_curves: int) -> None:
        """Record light curves sent to the model."""
        manifest = self._bundle.manifest
        self._metrics.model_curves.labels(manifest.name, manifest.version, role or "current").inc(light_curves)

    def record_run(self, report: RunReport, predicted_seconds: float) -> None:
        """Record a run of the network."""
        padded = report.size * report.length
        self._metrics.batch_size.observe(report.size)
        self._metrics.batch_tokens.observe(padded)
        self._metrics.padding_ratio.observe(padded / report.tokens)
        self._metrics.cost_error.observe(report.run_seconds / predicted_seconds)
        self._record_experts(report)
        self._record_inputs(report.entries)
        predictions = [result for result in report.results if isinstance(result, Prediction)]
        self._record_router_entropy(predictions)
        self._record_predictions(predictions)
        self._add_to_totals(predictions)
        self._record_novelty(report)

    def _add_to_totals(self, predictions: Sequence[Prediction]) -> None:
        with self._totals_lock:
            totals = self.totals
            totals.runs += 1
            totals.light_curves += len(predictions)
            totals.queue_seconds += sum(prediction.queue_seconds for prediction in predictions)
            totals.assemble_seconds += sum(prediction.assemble_seconds for prediction in predictions)
            totals.run_seconds += sum(prediction.run_seconds for prediction in predictions)
            totals.last_run = time()

    def _record_experts(self, report: RunReport) -> None:
        for output, load in report.expert_load.items():
            load_LE = np.atleast_2d(load)
            if output not in self._experts:  # looked up once, as labels() costs more than an increment
                layers = ["input"] if output == "input_expert_load" else [str(layer) for layer in range(len(load_LE))]
                labels = product(layers, range(load_LE.shape[1]))
                self._experts[output] = [
                    self._metrics.expert_load.labels(layer, str(expert)) for layer, expert in labels
                ]
            for counter, count in zip(self._experts[output], load_LE.ravel().tolist(), strict=True):
                if count:
                    counter.inc(count)

    def _record_router_entropy(self, predictions: Sequence[Prediction]) -> None:
        outputs = [prediction.outputs for prediction in predictions]
        entropy_BS = [values["router_entropy"] for values in outputs if "router_entropy" in values]
        if not entropy_BS:
            return
        entropy_S: list[float] = np.mean(entropy_BS, axis=0).tolist()
        if not self._router_entropy:  # looked up once, as above
            name, family = self._bundle.manifest.name, self._metrics.router_entropy
            self._router_entropy = [family.labels(name, str(layer)) for layer in range(len(entropy_S))]
        for summary, entropy in zip(self._router_entropy, entropy_S, strict=True):
            summary.observe(entropy)

    def _record_inputs(self, entries: Sequence[QueueEntry]) -> None:
        inputs = [entry.input.tokens for entry in entries]
        points_per_band = zip(*(tokens.points_per_band for tokens in inputs), strict=True)
        for counter, points in zip(self._by_band, points_per_band, strict=True):
            counter.inc(sum(points))
        missing = np.count_nonzero(np.isnan([tokens.metadata for tokens in inputs]))
        self._metrics.missing_metadata.inc(int(missing))
        self._metrics.truncated.inc(sum(tokens.truncated for tokens in inputs))

    def _record_predictions(self, predictions: Sequence[Prediction]) -> None:
        stages = self._metrics.stages
        queue, assemble, run = stages["queue"].observe, stages["assemble"].observe, stages["run"].observe
        for prediction in predictions:
            queue(prediction.queue_seconds)
            assemble(prediction.assemble_seconds)
            run(prediction.run_seconds)
            probabilities = prediction.outputs["probabilities"]
            best = int(probabilities.argmax())
            self._metrics.confidence.observe(float(probabilities[best]))
            if best < len(self._by_class):
                self._by_class[best].inc()

    def _record_novelty(self, report: RunReport) -> None:
        rule = self._bundle.manifest.novelty
        if rule is None:
            return
        for entry, result in zip(report.entries, report.results, strict=True):
            if isinstance(result, Prediction):
                detections = int(np.count_nonzero(entry.input.tokens.detected))
                self._metrics.unusual.inc(rule.unusual(float(result.outputs["novelty"]), detections))

    def record_stage(self, stage: str, started: float, ended: float, light_curves: int = 1) -> None:
        """Record one stage of the current request."""
        self._metrics.record_stage(stage, started, ended, light_curves)

    def record_outcomes(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """Record numbers of light curves by (survey, status, reason)."""
        for labels, count in counts.items():
            self._metrics.outcomes.labels(*labels).inc(count)

    def record_input(self, survey: str, curve: LightCurve, prediction: Prediction | None) -> None:
        """Record a light curve of a survey, and its prediction if it was classified."""
        self._windows.add(survey, curve, prediction)

    def record_withdrawn(self, light_curves: int) -> None:
        """Record light curves that were withdrawn because the caller disconnected or the deadline passed."""
        self._metrics.withdrawn.inc(light_curves)

    def record_error(self, kind: ErrorKind, recovered: bool) -> None:
        """Record an error of the engine."""
        self._metrics.faults.labels(kind, ERROR_OUTCOMES[not recovered]).inc()

    def current_span(self) -> object:
        """Return the tracing span of the current request; None if it is not recorded."""
        return self._tracing.current_span()

    def trace_batch(self, entries: Sequence[QueueEntry], started: float, began: float, ended: float) -> object:
        """Add a span for a batch, linked to the requests in it."""
        return self._tracing.record_batch(entries, started, began, ended)

    def trace_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Add spans ``queue``, ``assemble`` and ``run`` to the current request for each batch."""
        self._tracing.record_predictions(predictions)
