"""Statistics of a survey in a manifest whose values a test can work out."""

from typing import Any

from nightjar_alerts.models.bundle import Manifest, SurveyStatistics


def survey_statistics(manifest: Manifest, **changes: Any) -> SurveyStatistics:
    """Light curves of 10 points in r with errors of 1 nJy, a tenth of the largest flux, all of the first class."""
    points = {name: (10.0 if name == "r" else 0.0,) * 5 for name in manifest.bands}
    fields = {
        "light_curves": 1000,
        "flux_error": (1.0,) * 5,
        "error_ratio": (0.1,) * 5,
        "lowest_flux": (0.0,) * 5,
        "points_per_band": points,
        "missing_bands": {name: float(name != "r") for name in manifest.bands},
        "missing_metadata": {},
        "classes": {manifest.taxonomy.names[0]: 1.0},
    }
    return SurveyStatistics.model_validate(fields | changes)
