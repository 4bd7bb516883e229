"""A predicted flux with its uncertainty: asinh(flux / s) is Gaussian, which one scale s per object makes fair to all.

Notable:

- fluxes of one survey span six decades and both signs (difference fluxes may be negative). The asinh is linear around
  zero, where a flux is noise and noise is Gaussian, and logarithmic far from it, where what is uncertain is a factor;
- a forecast's expected flux and error are the exact moments of that distribution, not sinh of the mean; its central
  intervals map to flux point by point, so they are not symmetric about the expected flux;
- the likelihood is that of the flux itself, so that numbers do not depend on the choice of s.

Legend: B batch, Q queries.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from models.networks.network import Forecast

STD_RANGE = (1e-4, 2.0)  # of y: from far below one per cent of a bright flux to a factor of 7 either way
START_STD = 0.5


class FluxDistribution(NamedTuple):
    """Distribution of an observation's flux: y = asinh(flux / s) is Gaussian.

    Attributes
    ----------
    mean_BQ, std_BQ : of y.
    scale_B1 : s of each object, in the network's flux unit.
    """

    mean_BQ: Tensor
    std_BQ: Tensor
    scale_B1: Tensor

    def deviation(self, flux_BQ: Tensor) -> Tensor:
        """Return the standard deviations of y between its mean and an observed flux."""
        return (torch.asinh(flux_BQ / self.scale_B1) - self.mean_BQ) / self.std_BQ

    def negative_log_likelihood(self, flux_BQ: Tensor) -> Tensor:
        """-log p(flux) of observed fluxes, nats, [B, Q]: that of y plus log dflux/dy = log sqrt(flux^2 + s^2)."""
        nll_BQ = 0.5 * self.deviation(flux_BQ).square() + self.std_BQ.log() + 0.5 * math.log(2.0 * math.pi)
        return nll_BQ + torch.hypot(flux_BQ, self.scale_B1).log()

    def forecast(self) -> Forecast:
        """Mean and standard deviation of the flux s sinh(y), exactly.

        With v = exp(std^2): E = s sqrt(v) sinh(mean), Var = s^2 (v - 1) (v cosh(2 mean) + 1) / 2.
        """
        half_BQ = 0.5 * self.std_BQ.square()
        # v - 1 = 2 sqrt(v) sinh(std^2 / 2): ONNX has no expm1, and exp(x) - 1 has no digits left for a small x.
        root_BQ = half_BQ.exp()
        variance_BQ = root_BQ * torch.sinh(half_BQ) * (root_BQ.square() * torch.cosh(2.0 * self.mean_BQ) + 1.0)
        return Forecast(self.scale_B1 * root_BQ * torch.sinh(self.mean_BQ), self.scale_B1 * variance_BQ.sqrt())


def bounded_std(raw: Tensor) -> Tensor:
    """Map to a standard deviation of y within ``STD_RANGE``, on a logarithmic scale; a raw 0 is ``START_STD``."""
    low, high = math.log(STD_RANGE[0]), math.log(STD_RANGE[1])
    start = (math.log(START_STD) - low) / (high - low)
    return torch.exp(low + (high - low) * torch.sigmoid(raw + math.log(start / (1.0 - start))))
