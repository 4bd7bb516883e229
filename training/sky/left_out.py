"""Networks for surveys left out: a twin of the network's heads, and networks trained as a whole without a group.

The network that is served has seen every survey, so its own columns ``left out`` and ``adapted`` would say nothing.

- The twin has the branches of a version that was trained on simulations alone, and heads that learn from the rows that
  trees learn from (`training.sky.trees`), with nothing of the group that is left out. It is the poorer one: its
  branches know no real light curve.
- A network that ``train`` made from a mixture without a group (`training.data.mixture`: ``without`` its objects, and
  for ``left out`` ``not_through`` its patterns) answers about that group alone. Trees may answer beside it, as they do
  in a bundle. Their weight, the threshold of the 0.9 sets and what is unusual are fitted on objects of the validation
  part and views of them, none of the group; sets have one threshold, where a bundle has one for each kind of light
  curve.

Legend: N rows or light curves, F numbers of each, K statistics, C classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import Ensemble
from nightjar_alerts.models.lightcurve import Bool, Float32, Float64, Int64, RaggedBatch, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import Forest
from nightjar_alerts.models.networks.zoo import build, transfer
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.fit.boosting import fit_ensemble, pooled, read_forest, tree_logits
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.calibrate import softmax
from nightjar_alerts.training.sky.heads import HeadInputs, HeadsConfig, answers, fit_heads, load_whole
from nightjar_alerts.training.sky.load import as_sent
from nightjar_alerts.training.sky.measure import Column
from nightjar_alerts.training.sky.novelty import (
    THRESHOLD,
    CurveSet,
    StrangerFit,
    embeddings_of,
    fit_strangers,
    impossible,
    joined,
    statistician,
    statistics_of,
)
from nightjar_alerts.training.sky.readers import LABELS_TO_MEASURE
from nightjar_alerts.training.sky.record import PARTS, Reveal, Sky, join
from nightjar_alerts.training.sky.scores import SkyAnswers
from nightjar_alerts.training.sky.tables import real_strangers
from nightjar_alerts.training.sky.trees import GROUPS, FeatureRows, sources_of, threshold_of, weights_of

TWIN: Final = "heads on 1.2.0's branches"
REDSHIFTS: Final = ("z_final", "z_final_err")
DRAWN: Final = 60_000  # rows, with replacement
CONFIG: Final = HeadsConfig(steps=500, batch=512)


@dataclass(frozen=True, slots=True, eq=False)
class TwinFeatures:
    """Features of the twin: statistics, NaN where one is not known, then the embedding by the branches of ``body``."""

    body: AstroMoE
    recipe: Recipe

    @property
    def width(self) -> int:
        """Numbers of the embedding."""
        return self.body.config.d_model + self.body.config.d_tab

    def __call__(self, sky: Sky, reveal: Reveal) -> tuple[Float32, NDArray[np.intp]]:
        """Return features of objects, and which objects they are. Of metadata the branches see redshifts alone."""
        data, network = self.recipe.data, statistician(self.recipe)
        tokens, rows = [], []
        for row in range(len(sky)):
            curve = sky.curve(row, reveal)
            if len(curve):
                redshifts = {name: value for name, value in curve.metadata.items() if name in REDSHIFTS}
                curve = replace(curve, metadata=redshifts)
                tokens.append(featurise(curve, data.limits, data.flux_unit, METADATA_COLUMNS, data.bands))
                rows.append(row)
        row_N = np.array(rows, dtype=np.intp)
        curve_set = CurveSet(RaggedBatch.collate(tokens), sky.label[row_N], sky.source[row_N], row_N.astype(np.int64))
        return HeadInputs(embeddings_of(self.body, curve_set), *statistics_of(network, curve_set)).columns, row_N


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """Heads fitted to rows, the last ``width`` numbers of which are an embedding; a `FittedModel`."""

    network: AstroMoE
    width: int
    threshold: float

    def probabilities(self, value_NF: Float32) -> NDArray[np.float64]:
        """Shape (N, C)."""
        logits_NC, _ = answers(self.network, head_inputs_of(value_NF, self.width))
        return softmax(logits_NC).astype(np.float64)


def head_inputs_of(value_NF: Float32, width: int) -> HeadInputs:
    """Rows as heads take them."""
    value, embedding = value_NF[:, :-width], value_NF[:, -width:]
    is_known = np.isfinite(value)
    return HeadInputs(np.ascontiguousarray(embedding), np.where(is_known, value, np.float32(0.0)), is_known)


def train_twin(
    features: TwinFeatures, rows: FeatureRows, calibration: FeatureRows, seed: int, config: HeadsConfig = CONFIG
) -> Twin:
    """Fit heads to rows, drawn by the weights that they have for trees, and the threshold of sets to others."""
    weight = weights_of(rows)
    drawn = np.random.default_rng(seed).choice(len(weight), DRAWN, p=weight / weight.sum())
    inputs = head_inputs_of(rows.value_NF[drawn], features.width)
    twin = Twin(
        fit_heads(features.body, features.recipe, inputs, rows.label_N[drawn], config, seed=seed), features.width, 1.0
    )
    return replace(twin, threshold=threshold_of(twin.probabilities(calibration.value_NF), calibration.label_N))


Part = Literal["train", "valid"]

WHOLE: Final = "the whole network"
KNOWN: Final = 6_000  # objects that strangers are told from
CALIBRATING: Final = 8_000


class ShownObjects(NamedTuple):
    """Objects as networks see them: light curves, their statistics [N, K], and which rows of a record they are."""

    curve_set: CurveSet
    value: Float32
    is_known: Bool
    rows: NDArray[np.intp]

    @property
    def columns(self) -> Float32:
        """Statistics, NaN where they are not known: what trees look at."""
        return np.where(self.is_known, self.value, np.float32(np.nan)).astype(np.float32)


Show = Callable[[Sky, Reveal], ShownObjects]


def shower(recipe: Recipe) -> Show:
    """Return what shows objects of a record as a recipe's networks see them; those without a point are left out."""
    network = statistician(recipe)

    def show(sky: Sky, reveal: Reveal) -> ShownObjects:
        data, tokens, rows = recipe.data, [], []
        for row in range(len(sky)):
            curve = sky.curve(row, reveal)
            if len(curve):
                tokens.append(featurise(curve, data.limits, data.flux_unit, METADATA_COLUMNS, data.bands))
                rows.append(row)
        row_N = np.array(rows, dtype=np.intp)
        curve_set = CurveSet(RaggedBatch.collate(tokens), sky.label[row_N], sky.source[row_N], row_N.astype(np.int64))
        return ShownObjects(curve_set, *statistics_of(network, curve_set), row_N)

    return show


@dataclass(frozen=True, slots=True, eq=False)
class LeftOutModel:
    """A network without a group of surveys, perhaps with trees beside it, and when it calls a light curve unusual."""

    network: AstroMoE
    body: AstroMoE
    strange: StrangerFit
    threshold: float
    trees: tuple[Forest, Ensemble] | None

    def answers(self, objects: ShownObjects) -> tuple[Float64, Float64]:
        """Probabilities [N, C] and novelty [N]."""
        logits_NC, embedding_NE = _say(self.network, self.body, objects)
        if self.trees is not None:
            logits_NC = _pooled(*self.trees, objects, logits_NC)
        return softmax(logits_NC).astype(np.float64), self.strange.novelty(embedding_NE)


def allowed(sky: Sky, views: Sky, part: Part, group: str, most: int, column: Column = "adapted") -> Sky:
    """Labelled objects of one part and views, none of a group of surveys; at most half of ``most`` of each.

    For the column ``left out`` nothing is seen through the group's patterns either.
    """
    foreign = [*GROUPS[group], *sorted(LABELS_TO_MEASURE)]
    real = as_sent(sky.take((sky.part == PARTS.index(part)) & (sky.label >= 0)))
    allowed_views = as_sent(views.take(~np.isin(views.raw_label, foreign)))
    if column == "left out":
        allowed_views = allowed_views.take(~np.isin(allowed_views.source, sources_of(group)))
    return join([_some(side, most // 2) for side in (real.take(~np.isin(real.source, foreign)), allowed_views)])


def _some(sky: Sky, most: int) -> Sky:
    """At most so many objects, the same ones whatever else there is."""
    return sky.take(np.sort(np.argsort(_drawn(sky), kind="stable")[:most]))


def _drawn(sky: Sky) -> NDArray[np.int64]:
    """Return a random number of every object, which its name alone decides."""
    return np.array(
        [crc32(f"{source}:{name}".encode()) for source, name in zip(sky.source, sky.object_id, strict=True)]
    )


def fit_left_out(
    network: AstroMoE,
    calibration: ShownObjects,
    training: ShownObjects,
    strangers: ShownObjects,
    forest: Forest | None = None,
    seed: int = 0,
) -> LeftOutModel:
    """Fit thresholds, novelty and the weight of trees of a network.

    Parameters
    ----------
    calibration : objects of the validation part, some told their redshift. training : objects that the network may
        know. strangers : of no known class. forest : trees on statistics.
    """
    body = _branches(network)
    logits_NC, usual_NE = _say(network, body, calibration)
    label_N, trees = calibration.curve_set.label, None
    if forest is not None:
        trees_NC, length_N = tree_logits(forest, calibration.columns), calibration.curve_set.length.astype(np.int64)
        weights = fit_ensemble(forest, trees_NC, logits_NC, label_N, length_N, calibration.curve_set.has_redshift)
        trees = forest, weights
        logits_NC = _pooled(forest, weights, calibration, logits_NC)
    inlier_NE, strange_NE = (_say(network, body, objects)[1] for objects in (training, strangers))
    strange = fit_strangers(inlier_NE, training.curve_set.label, strange_NE, usual_NE, seed=seed)
    return LeftOutModel(network, body, strange, threshold_of(softmax(logits_NC).astype(np.float64), label_N), trees)


@dataclass(frozen=True, slots=True, eq=False)
class Fitting:
    """Reads networks and fits what stands beside them; light curves are shown once for all networks."""

    sky: Sky
    views: Mapping[Part, Sky]
    column: Column
    recipe: Recipe
    show: Show
    strangers: int
    seed: int

    def __call__(self, group: str, run: Path, trees: Path | None) -> LeftOutModel:
        """Return the network of a run folder that does not know a group of surveys."""
        calibration = self._show_objects(self._allowed("valid", group, CALIBRATING))
        training = self._show_objects(self._allowed("train", group, KNOWN))
        forest = None if trees is None else read_forest(trees)
        network = load_whole(run)[0].eval()
        return fit_left_out(network, calibration, training, self._strange(group, training), forest, self.seed)

    def _allowed(self, part: Part, group: str, most: int) -> Sky:
        return allowed(self.sky, self.views[part], part, group, most, self.column)

    def _show_objects(self, sky: Sky) -> ShownObjects:
        """Half of the objects are told their redshift, where they have one."""
        reveals: tuple[Reveal, Reveal] = ("nothing", "redshift")
        half_N = _drawn(sky) // 2 % 2
        parts = [self.show(sky.take(half_N == half), reveal) for half, reveal in enumerate(reveals)]
        return ShownObjects(
            joined([part.curve_set for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.is_known for part in parts]),
            np.concatenate([part.rows for part in parts]),
        )

    def _strange(self, group: str, training: ShownObjects) -> ShownObjects:
        """Oddities of the other surveys, and what no survey ever sees."""
        others = self.sky.take(~np.isin(self.sky.source, sources_of(group)))
        odd = real_strangers(others, self.recipe, ELASTICC.names, self.seed)
        odd.curves.metadata[:] = np.nan  # else who is told something would be strange
        both = joined([odd, impossible(training.curve_set, self.seed)])
        rows = np.sort(np.random.default_rng(self.seed).permutation(len(both))[: self.strangers])
        curve_set = both.take(rows.astype(np.int64))
        return ShownObjects(curve_set, *statistics_of(statistician(self.recipe), curve_set), rows)


def asker_of_left_out(models: Mapping[str, LeftOutModel], show: Show) -> Callable[[Sky, Reveal], SkyAnswers]:
    """Ask the network that does not know the surveys of an object's group; ``models`` by group of `GROUPS`."""

    def ask(sky: Sky, reveal: Reveal) -> SkyAnswers:
        p_NC = np.full((len(sky), len(ELASTICC.names)), np.nan)
        threshold_N, novelty_N = np.ones(len(sky)), np.full(len(sky), np.nan)
        for group, model in models.items():
            mine = np.flatnonzero(np.isin(sky.source, sources_of(group)))
            if len(mine):
                objects = show(sky.take(mine), reveal)
                place = mine[objects.rows]
                p_NC[place], novelty_N[place] = model.answers(objects)
                threshold_N[place] = model.threshold
        rows: NDArray[np.intp] = np.flatnonzero(np.isfinite(p_NC[:, 0]))
        inside_NC = 1.0 - p_NC[rows] <= threshold_N[rows, None]
        inside_NC[np.arange(len(rows)), p_NC[rows].argmax(axis=1)] = True
        return SkyAnswers(rows, p_NC[rows], inside_NC, novelty_N[rows], novelty_N[rows] > THRESHOLD)

    return ask


def _say(network: AstroMoE, body: AstroMoE, objects: ShownObjects) -> tuple[Float32, Float32]:
    return answers(network, HeadInputs(embeddings_of(body, objects.curve_set), objects.value, objects.is_known))


def _pooled(forest: Forest, weights: Ensemble, objects: ShownObjects, logits_NC: Float32) -> Float32:
    length_N: Int64 = objects.curve_set.length.astype(np.int64)
    return pooled(weights, tree_logits(forest, objects.columns), logits_NC, length_N, objects.curve_set.has_redshift)


def _branches(network: AstroMoE) -> AstroMoE:
    """Return the branches of a network alone, which say what its heads join with the statistics."""
    fields = {"d_statistics": 0, "lag_statistics": False, "period_statistics": False, "shape_statistics": False}
    branches = build(network.config.model_copy(update=fields))
    assert isinstance(branches, AstroMoE)
    transfer(network.state_dict(), branches)
    return branches.eval()
