"""Draw the light curves that methods are fitted to, complete and as alerts show them, and compute their features.

The network sees the bands in which enough labelled objects have points; other points are left out, in training as in
the service. Features are stored in portions, and an interrupted computation continues with the next one.

Legend: O objects, N light curves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from nightjar_alerts.models.common import replacing
from nightjar_alerts.models.lightcurve import (
    Float32,
    Int64,
    LightCurve,
    LightCurveError,
    Limits,
    RaggedBatch,
    Tokens,
    featurise,
)
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS, FILTERS, BandMap
from nightjar_alerts.training.data.augment import AugmentationConfig, DegradeConfig
from nightjar_alerts.training.data.batches import draw_examples
from nightjar_alerts.training.data.drawn import drawn_sample
from nightjar_alerts.training.data.sample import Sample, sample_of_curves
from nightjar_alerts.training.data.survey_readers import BAND_SUBSTITUTES
from nightjar_alerts.training.export.domain import common_bands
from nightjar_alerts.training.finetuning.backbone import Backbone
from nightjar_alerts.training.finetuning.table import MIN_OBJECTS, LabelledCurves
from nightjar_alerts.training.fit.class_map import logits_of_copies
from nightjar_alerts.training.fit.heads import HeadInputs, embeddings_of, join_inputs, statistics_of
from nightjar_alerts.training.fit.labelled import LabelledDraws
from nightjar_alerts.training.importers.tables import LabelError
from nightjar_alerts.training.recipes.schema import DataConfig, Recipe

VIEWS: Final = (1, 5)
"""Smallest and largest number of views of an object besides the complete light curve."""
FEW_OBJECTS: Final = 1_500
"""Number of objects below which each has more views."""
MAX_POINTS_PER_BAND: Final = 200
PORTION: Final = 512
"""Light curves whose features are stored together."""
AUGMENTATION: Final = AugmentationConfig(
    mta_days=(),
    at_detection=0.5,
    degraded=0.3,
    degrade=DegradeConfig(brightness=0.2, bands=0.1, thinned=0.25, late=0.15, early=0.2, misjudged=0.2),
)
LARGEST_UNSEEN: Final = 0.01
"""Share of the points beyond the limits of the network above which a warning names it."""
_EVERYTHING: Final = Limits(max_points_per_band=1 << 30, pre_trigger_days=None)


@dataclass(frozen=True, eq=False)
class Observed:
    """Labelled light curves in the bands of a network.

    Attributes
    ----------
    curves : with all points in the bands, whose numbers are those of the network.
    complete : what the network sees of them.
    recipe : of the model to be trained; its data are the bands and the limits.
    substitutes : filters that stand for bands, as in the light curves.
    kept_O : numbers of the objects among those of the table.
    left_out : number of the others, by reason.
    """

    curves: Sequence[LightCurve]
    complete: Sequence[Tokens]
    label_O: Int64
    recipe: Recipe
    substitutes: Mapping[str, str]
    kept_O: Int64
    left_out: Mapping[str, int]
    warnings: tuple[str, ...]


def observe(labelled: LabelledCurves, backbone: Backbone) -> Observed:
    """Choose bands and limits for the light curves, and convert the light curves to them.

    Raises
    ------
    LabelError
        If no band of the network has enough points, or a class has too few independent objects with points in the
        bands.
    """
    known = backbone.recipe.data.bands
    substitutes = {name: band for name, band in BAND_SUBSTITUTES.items() if band in known}
    everything = BandMap(known, groups=substitutes)
    in_bands = [_in_bands(curve, everything) for curve in labelled.curves]
    objects = dict.fromkeys(known, 0)
    for curve in in_bands:
        for number in np.unique(curve.band) if curve is not None else ():
            objects[BANDS[number]] += 1
    bands = common_bands(objects, len(labelled))
    if not bands:
        seen = sorted({FILTERS[number] for curve in labelled.curves for number in np.unique(curve.band)})
        raise LabelError(f"no light curve has points in a band of the network ({', '.join(known)}); they have {seen}")
    warnings = [
        f"band {name} is left out: only {objects[name]} of {len(labelled)} objects have points in it"
        for name in known
        if objects[name] and name not in bands
    ]
    own = {
        name: band
        for name, band in substitutes.items()
        if band in bands and any((curve.band == FILTERS.index(name)).any() for curve in labelled.curves)
    }
    band_map = BandMap(bands, groups=own)
    in_bands = [_in_bands(curve, band_map) for curve in labelled.curves]
    kept_O = np.array([row for row, curve in enumerate(in_bands) if curve is not None], dtype=np.int64)
    label_O, group_O = labelled.label_O[kept_O], labelled.group_O[kept_O]
    for number, name in enumerate(labelled.classes):
        objects_of_class, independent = int((label_O == number).sum()), len(np.unique(group_O[label_O == number]))
        if independent < MIN_OBJECTS:
            related = f", of which {independent} are independent" if independent < objects_of_class else ""
            raise LabelError(
                f"class {name!r} has {objects_of_class} objects with points in the bands {', '.join(bands)}{related}, "
                f"fewer than {MIN_OBJECTS}; remove it from the table"
            )
    lost = len(labelled) - len(kept_O)
    left_out = {f"without a point in the bands {', '.join(bands)}": lost} if lost else {}
    curves = [curve for curve in in_bands if curve is not None]
    recipe = _recipe(backbone, bands, curves, labelled.flux_kind == "total")
    data = recipe.data
    complete = [
        featurise(labelled.curves[row], data.limits, data.flux_unit, METADATA_COLUMNS, band_map) for row in kept_O
    ]
    unseen = 1 - sum(map(len, complete)) / sum(map(len, curves))
    if unseen >= LARGEST_UNSEEN:
        warnings.append(f"the model does not see {unseen:.0%} of the points: {_unseen(data.limits)}")
    return Observed(curves, complete, label_O, recipe, own, kept_O, left_out, tuple(warnings))


def _unseen(limits: Limits) -> str:
    """Describe the points that are beyond the limits."""
    newest = f"more than {limits.max_points_per_band} in a band"
    if limits.pre_trigger_days is None:
        return newest
    return f"earlier than {limits.pre_trigger_days:g} days before the first detection, or {newest}"


def _in_bands(curve: LightCurve, bands: BandMap) -> LightCurve | None:
    """Return all points in bands of a network, with its numbers; None if there are none."""
    try:
        tokens = featurise(curve, _EVERYTHING, "nJy", (), bands)
    except LightCurveError:
        return None
    return LightCurve.from_columns(
        mjd=tokens.origin_mjd + tokens.time.astype(np.float64),
        flux=tokens.flux,
        flux_err=tokens.flux_err,
        band=tokens.band,
        detected=tokens.detected,
        metadata=curve.metadata,
        object_id=curve.object_id,
        survey=curve.survey,
    )


def _recipe(backbone: Backbone, bands: tuple[str, ...], curves: Sequence[LightCurve], is_total: bool) -> Recipe:
    """Return the recipe of the model: limits for the lengths of the light curves, all history of total fluxes."""
    points = [int(np.bincount(curve.band).max()) for curve in curves]
    limits = backbone.recipe.data.limits
    most = min(MAX_POINTS_PER_BAND, int(np.quantile(points, 0.95)))
    changes = {
        "max_points_per_band": max(limits.max_points_per_band, most),
        "pre_trigger_days": None if is_total else limits.pre_trigger_days,
    }
    data = DataConfig(limits=limits.model_copy(update=changes), flux_unit=backbone.recipe.data.flux_unit, bands=bands)
    update = {"name": "finetuned", "data": data, "augmentation": AUGMENTATION, "keep_heads": False}
    return backbone.recipe.model_copy(update=update)


def times_drawn(label_O: Int64) -> Int64:
    """Return the number of views of each object: more for rare classes, and if there are few objects."""
    fewest, most = VIEWS
    count_C = np.bincount(label_O)
    rarity_O = np.sqrt(count_C.max() / count_C[label_O])
    times: Int64 = np.clip(np.round(rarity_O * max(1.0, FEW_OBJECTS / len(label_O))), fewest, most).astype(np.int64)
    return times


def draw(observed: Observed, seed: int) -> Sample:
    """Return the complete light curves of all objects, then their views."""
    sample, tokens = sample_of_curves(observed.curves, label=observed.label_O), list(observed.complete)
    owners = list(range(len(tokens)))
    for row, times in enumerate(times_drawn(observed.label_O).tolist()):
        rng = np.random.default_rng((seed, row))
        repeated = np.full(times, row, dtype=np.int64)
        for example in draw_examples(sample, repeated, observed.recipe.data, observed.recipe.augmentation, rng):
            tokens.append(example.tokens)
            owners.append(row)
    owner_N = np.array(owners, dtype=np.int64)
    surveys = np.array([curve.survey for curve in observed.curves], dtype=np.str_)
    return drawn_sample(RaggedBatch.collate(tokens), observed.label_O[owner_N], surveys[owner_N], owner_N)


def with_features(
    light_curves: Sample, backbone: Backbone, folder: Path, report: Callable[[int, int], None] = lambda *_: None
) -> LabelledDraws:
    """Compute statistics, embeddings and logits of the heads, or read those that the folder already has.

    Parameters
    ----------
    report : called with the number of light curves that are done, and of all.
    """
    network, _ = backbone.with_heads(backbone.network.n_classes)
    branches, has_heads = backbone.branches, backbone.network.statistics is not None
    parts: list[HeadInputs] = []
    copies: list[Float32] = []
    for start in range(0, len(light_curves), PORTION):
        path = folder / f"features-{start // PORTION:04d}.npz"
        rows = np.arange(start, min(start + PORTION, len(light_curves)))
        if not path.exists():
            some = light_curves.take(rows)
            inputs = HeadInputs(embeddings_of(branches, some), *statistics_of(network, some))
            heads = logits_of_copies(backbone.network, inputs) if has_heads else np.zeros((len(rows), 0, 0), "f4")
            with replacing(path, ".npz") as partial:
                np.savez(
                    partial, allow_pickle=False,
                    embedding=inputs.embedding, value=inputs.value, is_known=inputs.is_known, heads=heads,
                )  # fmt: skip
        with np.load(path, allow_pickle=False) as arrays:
            parts.append(HeadInputs(arrays["embedding"], arrays["value"], arrays["is_known"]))
            copies.append(arrays["heads"])
        report(int(rows[-1]) + 1, len(light_curves))
    return LabelledDraws(light_curves, join_inputs(parts), np.concatenate(copies))
