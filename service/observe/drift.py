"""Input drift: windows of light curves of each survey, compared with the training data (:mod:`models.drift`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from nightjar_alerts.core.items import Prediction
from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.models.drift import LIMITS, WINDOW, InputReference, summary
from nightjar_alerts.models.lightcurve import Float64, Int64, LightCurve


@dataclass(slots=True)
class _Window:
    """Light curves of a survey since its last comparison."""

    reference: InputReference
    rows_NK: Float64
    class_N: Int64 = field(default_factory=lambda: np.full(WINDOW, -1))
    count: int = 0


class InputWindows:
    """Successive windows of :data:`models.drift.WINDOW` light curves of each survey in the manifest.

    Light curves of other surveys, or without one, are ignored. Not thread-safe.

    Parameters
    ----------
    report : called with the survey and, by kind, with the distance of its window from the training data in units of
        the limit; NaN if it was not measured.
    """

    def __init__(self, manifest: Manifest, report: Callable[[str, Mapping[str, float]], None]) -> None:
        self._manifest, self._report = manifest, report
        size = 3 + len(manifest.bands) + len(manifest.metadata_columns)
        self._windows = {
            survey: _Window(InputReference(manifest, statistics), np.empty((WINDOW, size)))
            for survey, statistics in manifest.survey_statistics.items()
        }

    def add(self, survey: str, curve: LightCurve, prediction: Prediction | None) -> None:
        """Add a light curve and its prediction (None if not classified); compare the window once it is full."""
        window = self._windows.get(survey)
        if window is None:
            return
        window.rows_NK[window.count] = summary(curve, self._manifest)
        window.class_N[window.count] = -1 if prediction is None else prediction.outputs["probabilities"].argmax()
        window.count += 1
        if window.count == WINDOW:
            window.count = 0
            distances = window.reference.distances(window.rows_NK, window.class_N)
            self._report(survey, {kind: distances[kind] / limit for kind, limit in LIMITS.items()})
