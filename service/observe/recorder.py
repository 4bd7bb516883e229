"""Interface by which the engine, the data plane and the model registry report metrics and traces.

Both classes discard all reports, for use in process. The services pass :class:`service.observe.metrics.Metrics`, which
uses Prometheus and OpenTelemetry; other modules of inference import neither library.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nightjar_alerts.core.failures import ErrorKind
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.engine.batch import QueueEntry, RunReport

if TYPE_CHECKING:
    from nightjar_alerts.service.engine.engine import Engine


class ModelRecorder:
    """Recorder of one model. Safe to use from any thread."""

    def serve(self, engine: "Engine", provider: str, load_seconds: float) -> None:
        """Record that the model is served; gauges read its engine."""

    def close(self) -> None:
        """Record that the model is no longer served."""

    def record_request(self, role: str, light_curves: int) -> None:
        """Record the light curves of a request to the model; ``role`` is empty or ``canary``."""

    def record_run(self, report: RunReport, predicted_seconds: float) -> None:
        """Record a run of the network."""

    def record_stage(self, stage: str, started: float, ended: float, light_curves: int = 1) -> None:
        """Record a stage of the current request, whose light curves share it evenly (``time.monotonic()`` seconds)."""

    def record_outcomes(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """Record numbers of light curves by (survey, status, reason)."""

    def record_input(self, survey: str, curve: LightCurve, prediction: Prediction | None) -> None:
        """Record a light curve of a survey, and its prediction if it was classified."""

    def record_withdrawn(self, light_curves: int) -> None:
        """Record light curves that were withdrawn because the caller disconnected or the deadline passed."""

    def record_error(self, kind: ErrorKind, recovered: bool) -> None:
        """Record an error of the engine, and whether it recovered."""

    def current_span(self) -> object:
        """Return the tracing span of the current request; None if it is not recorded."""
        return None

    def trace_batch(self, entries: Sequence[QueueEntry], started: float, began: float, ended: float) -> object:
        """Add a span for a batch, linked to the requests in it; see :data:`service.engine.batch.TraceBatch`."""
        return None

    def trace_predictions(self, predictions: Sequence[Prediction]) -> None:
        """Add spans ``queue``, ``assemble`` and ``run`` to the current request for each batch."""


class Recorder:
    """Recorder of all models of a process. Safe to use from any thread."""

    def model(self, bundle: Bundle) -> ModelRecorder:
        """Return the recorder of one model."""
        return ModelRecorder()

    def record_load(self, succeeded: bool) -> None:
        """Record an attempt to load a bundle."""

    def watch_failing_models(self, count: Callable[[], int]) -> None:
        """Set the function that counts the bundles that cannot be served."""

    def record_cache_lookup(self, hits: int, misses: int) -> None:
        """Record light curves whose result was looked up in the cache."""

    def watch_cache(self, used_bytes: Callable[[], int]) -> None:
        """Set the function that returns the size of the cache in bytes."""

    def record_shadow(self, outcome: str, light_curves: int = 1) -> None:
        """Record light curves offered to a shadow model: ``agreed``, ``disagreed``, ``failed`` or ``dropped``."""

    def record_shadow_distance(self, distance: float) -> None:
        """Record the total-variation distance between a shadow model's probabilities and the served ones."""

    def record_shadow_seconds(self, seconds: float) -> None:
        """Record the time from a copied request to the shadow model's result."""
