"""Light curves drawn from labelled objects, with everything that heads and trees are fitted to.

Each object has its complete light curve and some random views of it, as alerts would show it. Rare classes are drawn
more often and weigh more, for macro-F1.

Legend: O objects, N light curves, H copies of the heads, F features, C classes of a network.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Bool, Float32, Int64
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.fit.heads import HeadInputs

POWER: Final = 0.4
"""Exponent of the class size in the weight of a class, for macro-F1."""
DRAWN_WEIGHT: Final = 0.45
"""Weight of all views of an object together; the complete light curve has 1."""


@dataclass(frozen=True, eq=False)
class LabelledDraws:
    """Light curves of labelled objects, complete ones first, with predictions of a network.

    Attributes
    ----------
    light_curves : the light curves; ``group`` is the number of the object.
    inputs : statistics, shapes among them, and the branches' embedding.
    heads_NHC : logits of every copy of the network's heads; no copies for a network without statistics.
    """

    light_curves: Sample
    inputs: HeadInputs
    heads_NHC: Float32

    @property
    def objects(self) -> int:
        """Number of objects."""
        return int(self.light_curves.group.max()) + 1

    @property
    def statistics(self) -> Float32:
        """Statistics and shapes, NaN where undefined, [N, F]."""
        return np.where(self.inputs.is_known, self.inputs.value, np.float32(np.nan)).astype(np.float32)

    @property
    def label_O(self) -> Int64:
        """Class of every object."""
        return self.light_curves.label[: self.objects]

    def rows(self, chosen_O: Bool) -> NDArray[np.intp]:
        """Return the light curves of some objects."""
        return np.flatnonzero(chosen_O[self.light_curves.group])

    def weights(self, rows: NDArray[np.intp]) -> Float32:
        """Return weights of light curves: rare classes weigh more, and all views of an object less than it complete."""
        light_curves, objects = self.light_curves, self.objects
        weight = np.bincount(self.label_O)[light_curves.label[rows]].astype(np.float64) ** (POWER - 1.0)
        object_index = light_curves.group[rows]
        times = np.maximum(np.bincount(object_index, minlength=objects)[object_index] - 1, 1)
        weight *= np.where(rows < objects, 1.0, DRAWN_WEIGHT / times)
        relative: Float32 = (weight / weight.mean()).astype(np.float32)
        return relative
