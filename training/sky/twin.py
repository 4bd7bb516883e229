"""A twin of the network for surveys left out: the network's own branches have seen every survey.

The twin has the branches of a version that was trained on simulations alone, and heads that learn from the rows that
trees learn from (`training.sky.trees`), with nothing of the group that is left out. So it tells what leaving a survey
out costs, not what the shipped network would answer: its branches are the poorer ones.

Legend: N rows, F numbers of each, C classes.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import RaggedBatch, featurise
from models.metadata import METADATA_COLUMNS
from models.networks.astro_moe import AstroMoE
from models.networks.zoo import build
from training.recipes.schema import Recipe
from training.score.calibrate import softmax
from training.sky.heads import HeadsConfig, Told, answers, fit_heads
from training.sky.novelty import Asked, embeddings_of, statistics_of
from training.sky.record import Reveal, Sky
from training.sky.trees import Float32, Rows, threshold_of, weights_of

NAME: Final = "heads on 1.2.0's branches"
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
        data, network = self.recipe.data, build(self.recipe.network)
        assert isinstance(network, AstroMoE)
        tokens, rows = [], []
        for row in range(len(sky)):
            curve = sky.curve(row, reveal)
            if len(curve):
                told = {name: value for name, value in curve.metadata.items() if name in REDSHIFTS}
                curve = replace(curve, metadata=told)
                tokens.append(featurise(curve, data.limits, data.flux_unit, METADATA_COLUMNS, data.bands))
                rows.append(row)
        found = np.array(rows, dtype=np.intp)
        asked = Asked(RaggedBatch.collate(tokens), sky.label[found], sky.source[found], found.astype(np.int64))
        return Told(embeddings_of(self.body, asked), *statistics_of(network.eval(), asked)).columns, found


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """Heads fitted to rows, the last ``width`` numbers of which are an embedding; a `FittedModel`."""

    network: AstroMoE
    width: int
    threshold: float

    def probabilities(self, value_NF: Float32) -> NDArray[np.float64]:
        """Shape (N, C)."""
        logits_NC, _ = answers(self.network, told_of(value_NF, self.width))
        return softmax(logits_NC).astype(np.float64)


def told_of(value_NF: Float32, width: int) -> Told:
    """Rows as heads take them."""
    value, embedding = value_NF[:, :-width], value_NF[:, -width:]
    known = np.isfinite(value)
    return Told(np.ascontiguousarray(embedding), np.where(known, value, np.float32(0.0)), known)


def train_twin(features: TwinFeatures, rows: Rows, calibration: Rows, seed: int, config: HeadsConfig = CONFIG) -> Twin:
    """Fit heads to rows, drawn by the weights that they have for trees, and the threshold of sets to others."""
    weight = weights_of(rows)
    drawn = np.random.default_rng(seed).choice(len(weight), DRAWN, p=weight / weight.sum())
    told = told_of(rows.value_NF[drawn], features.width)
    twin = Twin(
        fit_heads(features.body, features.recipe, told, rows.label_N[drawn], config, seed=seed), features.width, 1.0
    )
    return replace(twin, threshold=threshold_of(twin.probabilities(calibration.value_NF), calibration.label_N))
