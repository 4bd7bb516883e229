"""RMSE and R2 of a masked reconstruction, as ASTROMER's released code defines them.

    RMSE = sqrt(mean over objects of the mean over its probed observations of (x - x^)^2)
    R2   = 1 - sum of (x - x^)^2 / sum of (x - mean of the object's probed x)^2, sums over all probed observations

Notable: the root is taken last, and every object weighs the same in the RMSE, however many observations it has. An
object without probed observations counts as reconstructed without error, as in the released code. R2 is relative to
predicting each object's own mean, which a network that has learned nothing but brightness does not reach; relative to
one mean for all objects it would be larger.

Legend: B objects, L length, K values per observation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.lightcurve import Bool

Float = NDArray[np.floating]


@dataclass(slots=True)
class ReconstructionScore:
    """Sums over the batches added so far."""

    objects: int = 0
    mean_squares: float = 0.0
    squares: float = 0.0
    deviations: float = 0.0

    def add(self, target_BLK: Float, prediction_BLK: Float, probed_BL: Bool) -> None:
        """Take in a padded batch; only places in ``probed_BL`` count."""
        target_BLK, probed_BL1 = target_BLK.astype(np.float64), probed_BL[..., None]
        count_B = np.maximum(probed_BL.sum(1), 1)
        error_B = ((prediction_BLK - target_BLK) ** 2 * probed_BL1).mean(2).sum(1)
        mean_B1K = (target_BLK * probed_BL1).sum(1, keepdims=True) / count_B[:, None, None]
        self.objects += len(probed_BL)
        self.mean_squares += float((error_B / count_B).sum())
        self.squares += float(error_B.sum())
        self.deviations += float((((target_BLK - mean_B1K) ** 2) * probed_BL1).mean(2).sum())

    @property
    def rmse(self) -> float:
        """Root of the mean over objects of their mean squared error; NaN before anything was added."""
        return float(np.sqrt(self.mean_squares / self.objects)) if self.objects else float("nan")

    @property
    def r2(self) -> float:
        """Share of the variance about each object's mean that is predicted; NaN where there is none."""
        return 1.0 - self.squares / self.deviations if self.deviations else float("nan")
