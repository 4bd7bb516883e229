"""The domain of a model: bands, survey, brightness and lengths of the light curves that it was trained on."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from nightjar_alerts.models.lightcurve import Int64, LightCurve, RaggedBatch
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.posterior import Domain
from nightjar_alerts.training.confidence.calibration import views_as_served
from nightjar_alerts.training.data.drawn import bands_seen, count_bands, drawn_sample
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.recipes.schema import Recipe

MARGIN: Final = 2.5
"""Factor, about a magnitude, by which a light curve may be fainter or brighter than all others."""
COMMON_BAND: Final = 0.02
"""Smallest share of the objects that must have a point in a band of the model."""
DRAWN: Final = 5_000
"""Largest number of objects whose views are drawn."""
DOMAIN_DRAW: Final = 2**32 + 11
"""Random stream of the views."""


def common_bands(objects: Mapping[str, int], number: int) -> tuple[str, ...]:
    """Return the bands in which enough of a number of objects have points, from the number of objects of each band."""
    fewest = max(1.0, COMMON_BAND * number)
    return tuple(name for name, count in objects.items() if count >= fewest)


def domain_of(
    curves: Iterable[LightCurve],
    light_curves: Sample,
    bands: Sequence[str],
    surveys: Collection[str],
    measured_on: str,
) -> Domain:
    """Return the domain of light curves.

    Parameters
    ----------
    curves : complete light curves, which have the brightness.
    light_curves : the same and their views, which have the smallest numbers of points and bands.
    surveys : of the light curves, an empty one if it is not known: then any survey is inside.
    """
    peaks = [
        float(np.abs(curve.flux[curve.detected] if curve.detected.any() else curve.flux).max()) for curve in curves
    ]
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


def in_common_bands(recipe: Recipe, dataset: Sample, rows: Int64) -> Recipe:
    """Return the recipe with those of its bands in which enough of some objects have points, if there are any."""
    seen = dict(zip(BANDS, bands_seen(dataset.take(rows)).sum(0).tolist(), strict=True))
    known = recipe.data.bands
    bands = common_bands({name: seen[name] for name in known if name in seen}, len(rows))
    if not bands or not set(known) <= seen.keys():  # the integers of other bands depend on their number
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"bands": bands})})


def domain_of_dataset(dataset: Sample, rows: Int64, recipe: Recipe, survey: str) -> Domain:
    """Return the domain of some objects of a data file, in the bands of a recipe and in views as in the service."""
    numbers = [BANDS.index(name) for name in recipe.data.bands]
    objects = dataset.take(rows)
    objects = objects.keep_points(np.isin(objects.band, numbers))
    rng = np.random.default_rng((recipe.seed, DOMAIN_DRAW))
    some = rng.permutation(len(objects))[:DRAWN]
    drawn = list(views_as_served(objects, some, recipe, rng))
    views = drawn_sample(
        RaggedBatch.collate([example.tokens for _, example in drawn]),
        np.array([example.label for _, example in drawn], dtype=np.int64),
        np.full(len(drawn), survey),
        np.array([row for row, _ in drawn], dtype=np.int64),
    )
    curves = (objects.curve(row) for row in range(len(objects)))
    measured_on = f"{len(objects)} objects that the network was trained on, complete and as alerts show them"
    return domain_of(curves, views, recipe.data.bands, {survey}, measured_on)
