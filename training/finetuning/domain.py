"""The domain of a model: bands, survey, brightness and lengths of the light curves that it was trained on."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.posterior import Domain
from nightjar_alerts.training.data.drawn import count_bands
from nightjar_alerts.training.data.sample import Sample

MARGIN: Final = 2.5
"""Factor, about a magnitude, by which a light curve may be fainter or brighter than all others."""


def domain_of(curves: Sequence[LightCurve], light_curves: Sample, bands: Sequence[str], measured_on: str) -> Domain:
    """Return the domain of light curves.

    Parameters
    ----------
    curves : complete light curves, which have the brightness and the survey.
    light_curves : the same and their views, which have the smallest numbers of points and bands.
    """
    peaks = [
        float(np.abs(curve.flux[curve.detected] if curve.detected.any() else curve.flux).max()) for curve in curves
    ]
    surveys = {curve.survey for curve in curves}
    positive = [peak for peak in peaks if peak > 0] or [1.0]
    return Domain(
        bands=tuple(bands),
        fewest_bands=max(1, int(count_bands(light_curves).min())),
        fewest_points=max(1, int(light_curves.lengths.min())),
        faintest_njy=min(positive) / MARGIN,
        brightest_njy=max(positive) * MARGIN,
        surveys=() if "" in surveys else tuple(sorted(surveys)),
        measured_on=measured_on,
    )
