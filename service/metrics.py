"""Every metric of the service, declared once: prefix ``nightjar_``, base units, few label values.

Histograms of time go from 100 microseconds to 30 seconds. All metrics live in the registry of a :class:`Metrics`
object, one to a process, so that a scrape sees one consistent set and a test can make as many as it likes. Children
of labelled metrics on the path of a light curve are looked up once and kept: ``labels()`` costs more than the
observation it leads to. What belongs to one engine carries its task as a label.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
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

from models.bundle import Bundle, Task
from models.lightcurve import BANDS
from service.inference.batching import Prediction, Question, RunReport
from service.inference.engine import Engine

STAGES = ("decode", "validate", "featurise", "queue", "assemble", "run", "encode")

SECONDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
BATCH_TOKENS = tuple(2**power for power in range(2, 14))
PADDING_RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
ERROR_RATIOS = (0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Metrics:
    """All metrics of one service process; the attributes are the metrics. Safe to use from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._declare_requests()
        self._declare_batches()
        self._declare_content()
        self._stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}
        self._bands = [self.observations.labels(band) for band in BANDS]
        self._classes: list[Counter] = []
        self._experts: dict[tuple[str, int], Counter] = {}
        self._models: dict[Task, tuple[str, ...]] = {}

    def _kinds(self) -> tuple[partial[Counter], partial[Gauge], partial[Histogram]]:
        counter = partial(Counter, namespace="nightjar", registry=self.registry)
        gauge = partial(Gauge, namespace="nightjar", registry=self.registry)
        return counter, gauge, partial(Histogram, namespace="nightjar", registry=self.registry)

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
        self.outcomes = counter(
            "outcomes_total", "Light curves and packets by what became of them.", ["survey", "status", "reason"]
        )
        self.withdrawn = counter("withdrawn_total", "Light curves given up: client gone or deadline passed.")
        self.loop_lag = histogram(
            "event_loop_lag_seconds", "How late the event loop woke a timer; it is sampled.", buckets=SECONDS
        )

    def _declare_batches(self) -> None:
        _, gauge, histogram = self._kinds()
        self.queue_depth = gauge("queue_depth", "Light curves waiting for a worker.", ["task"])
        self.queue_seconds = gauge(
            "queue_work_seconds", "Predicted time until everything queued has been started on.", ["task"]
        )
        self.oldest_run_seconds = gauge("oldest_run_seconds", "Age of the longest inference run under way.", ["task"])
        self.batch_size = histogram("batch_size", "Light curves in a run.", ["task"], buckets=BATCH_SIZES)
        self.batch_tokens = histogram(
            "batch_tokens", "Padded observations, and times to forecast, in a run.", ["task"], buckets=BATCH_TOKENS
        )
        self.padding_ratio = histogram(
            "batch_padding_ratio", "Padded over real observations of a run.", ["task"], buckets=PADDING_RATIOS
        )
        self.cost_error = histogram(
            "cost_model_error_ratio", "Measured over predicted duration of a run.", ["task"], buckets=ERROR_RATIOS
        )

    def _declare_content(self) -> None:
        counter, gauge, histogram = self._kinds()
        self.expert_load = counter(
            "expert_load_total", "Tokens sent to an expert; layer input is before block 0.", ["layer", "expert"]
        )
        self.predicted_class = counter("predicted_class_total", "Light curves by most probable class.", ["class"])
        self.confidence = histogram("confidence", "Probability of the most probable class.", buckets=CONFIDENCES)
        self.observations = counter("observations_total", "Observations that a network saw, by band.", ["band"])
        self.truncated = counter("truncated_total", "Light curves cut to the limits of the network.")
        self.missing_metadata = counter("missing_metadata_total", "Metadata values missing from light curves.")
        self.model_info = gauge(
            "model_info", "A model that is served; always 1.", ["task", "model", "version", "sha256", "provider"]
        )
        self.model_load_seconds = gauge("model_load_seconds", "Time to load, verify and warm up the model.", ["task"])

    def stage(self, name: str, seconds: float) -> None:
        """Count time spent in one of :data:`STAGES`."""
        self._stages[name].observe(seconds)

    def set_model(self, bundle: Bundle, provider: str, load_seconds: float) -> None:
        """Name the model that its task is served by from now on."""
        manifest = bundle.manifest
        if manifest.task in self._models:
            self.model_info.remove(*self._models[manifest.task])
        self._models[manifest.task] = (manifest.task, manifest.name, manifest.version, bundle.sha256, provider)
        self.model_info.labels(*self._models[manifest.task]).set(1)
        self.model_load_seconds.labels(manifest.task).set(load_seconds)
        if manifest.taxonomy is not None:  # in the order of its probabilities
            self._classes = [self.predicted_class.labels(name) for name in manifest.taxonomy.names]

    def watch(self, task: Task, engine: Engine) -> None:
        """Read the queue's gauges from an engine whenever they are scraped."""
        self.queue_depth.labels(task).set_function(lambda: engine.depth)
        self.queue_seconds.labels(task).set_function(lambda: engine.queued_seconds)
        self.oldest_run_seconds.labels(task).set_function(lambda: engine.oldest_run_seconds)

    def run_recorder(self, task: Task) -> Callable[[RunReport, float], None]:
        """What counts the runs of an engine, given each with its predicted seconds, in the engine's worker threads."""
        histograms = (self.batch_size, self.batch_tokens, self.padding_ratio, self.cost_error)
        size, tokens, padding, error = (histogram.labels(task) for histogram in histograms)

        def record(report: RunReport, predicted_seconds: float) -> None:
            padded = report.size * report.length
            size.observe(report.size)
            tokens.observe(padded)
            padding.observe(padded / report.tokens)
            error.observe(report.run_seconds / predicted_seconds)
            self._record_content(report)

        return record

    def _record_content(self, report: RunReport) -> None:
        for output, loads_LE in report.expert_load.items():
            for layer, loads in enumerate(loads_LE.tolist()):
                self._record_experts("input" if output == "input_expert_load" else str(layer), loads)
        self._record_observations(report.questions)
        for answer in report.answers:
            if isinstance(answer, Prediction):
                self._record_prediction(answer)

    def _record_experts(self, layer: str, loads: list[int]) -> None:
        for expert, load in enumerate(loads):
            if (layer, expert) not in self._experts:
                self._experts[layer, expert] = self.expert_load.labels(layer, str(expert))
            self._experts[layer, expert].inc(load)

    def _record_observations(self, questions: Sequence[Question]) -> None:
        seen = [question.tokens for question in questions]
        for counter, points in zip(self._bands, zip(*(t.points_per_band for t in seen), strict=True), strict=True):
            counter.inc(sum(points))
        self.missing_metadata.inc(int(np.count_nonzero(np.isnan([tokens.metadata for tokens in seen]))))
        self.truncated.inc(sum(tokens.truncated for tokens in seen))

    def _record_prediction(self, prediction: Prediction) -> None:
        self._stages["queue"].observe(prediction.queue_seconds)
        self._stages["assemble"].observe(prediction.assemble_seconds)
        self._stages["run"].observe(prediction.run_seconds)
        probabilities = prediction.outputs.get("probabilities")
        if probabilities is not None:
            top = int(probabilities.argmax())
            self.confidence.observe(float(probabilities[top]))
            self._classes[top].inc()

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
