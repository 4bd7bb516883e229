"""Common interface of the light-curve networks for training, export and serving.

A network is an ``nn.Module`` whose ``forward`` takes the tensors named by its ``input_names``, in that order, out of

- ``flux``, ``flux_err`` [batch, length] in the network's flux unit;
- ``time`` [batch, length] days since the first observation kept;
- ``band`` [batch, length] int64 index of the band;
- ``mask`` [batch, length] True for a real observation, at least one per row;
- ``metadata`` [batch, columns] NaN where missing;
- ``query_time``, ``query_band``, ``query_mask`` [batch, queries], forecasters only: times and bands to forecast.

A forecaster predicts a flux with its uncertainty (:class:`FluxDistribution`): asinh(flux / s) is Gaussian, with one
scale s per object, so that bright and faint objects count alike.

- Fluxes of one survey span six decades and both signs (difference fluxes may be negative). The asinh is linear around
  zero, where the flux is dominated by Gaussian noise, and logarithmic far from zero, where the uncertainty is a factor.
- A forecast's expected flux and error are the exact moments of that distribution, not sinh of the mean. Its central
  intervals are transformed to flux, so they are not symmetric about the expected flux.
- The likelihood is that of the flux itself, so its values do not depend on the choice of s.

Legend: B batch, L length, Q queries, C classes, E embedding, S expert layers, X experts, G bands,
K values per observation.
"""

import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightjar_alerts.models.networks.statistics.points import Statistics

INPUTS = ("flux", "flux_err", "time", "band", "mask", "metadata")
QUERIES = ("query_time", "query_band", "query_mask")


class NetworkOutput(NamedTuple):
    """Output of a classifier.

    Attributes
    ----------
    logits_BC : the prediction.
    embedding_BE : embedding from which the logits were computed.
    other_logits : logits of auxiliary heads, each [B, C].
    aux_loss : load-balance loss summed over the mixtures, not weighted; None without mixtures.
    input_expert_load_1X, expert_load_SX : int64 number of tokens sent to each expert; None without such a mixture.
    experts_by_band_BSGX, router_entropy_BS : of ``parts.routing.RoutingByBand``, in layers whose router sees the
        observations; None unless a bundle's graph computes them.
    statistics : statistics of the light curves, not scaled; None if the network does not compute them.
    """

    logits_BC: Tensor
    embedding_BE: Tensor
    other_logits: tuple[Tensor, ...] = ()
    aux_loss: Tensor | None = None
    input_expert_load_1X: Tensor | None = None
    expert_load_SX: Tensor | None = None
    experts_by_band_BSGX: Tensor | None = None
    router_entropy_BS: Tensor | None = None
    statistics: Statistics | None = None


class Masking(NamedTuple):
    """Masks of masked reconstruction; drawn by ``training.data.targets``.

    Attributes
    ----------
    probed_BL : bool, observations to reconstruct; the loss uses only these.
    hidden_BL : bool, probed observations whose values are hidden from the network.
    source_BL : int64, column of the row whose values are used as input: the observation's own, or a random other one's.
    """

    probed_BL: Tensor
    hidden_BL: Tensor
    source_BL: Tensor


class Reconstruction(NamedTuple):
    """Predicted and true values [B, L, K] on the padded grid; only probed observations are valid.

    ``aux_loss`` and the loads are those of :class:`NetworkOutput`.
    """

    prediction_BLK: Tensor
    target_BLK: Tensor
    aux_loss: Tensor | None = None
    input_expert_load_1X: Tensor | None = None
    expert_load_SX: Tensor | None = None


class Forecast(NamedTuple):
    """Expected flux and the standard deviation of an observation, [B, Q], in the network's flux unit."""

    flux_BQ: Tensor
    flux_err_BQ: Tensor


class ClassifierNetwork(Protocol):
    """Interface of a classifying network for training and export.

    Optional members: ``fit_statistics(batches)`` fits scales to the inputs of a sample of training objects;
    ``new_parameters`` lists name prefixes of parameters that are not initialised by transferred weights (default:
    ``head``); ``aux_weight`` of the configuration is the weight of ``NetworkOutput.aux_loss``.
    """

    input_names: tuple[str, ...]
    n_classes: int
    embedding_dim: int

    def __call__(self, *inputs: Tensor) -> NetworkOutput:
        """Classify padded light curves."""

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Fit input scales to the training objects' metadata [N, F]; a no-op in most networks."""


STD_RANGE = (1e-4, 2.0)  # of y: from far below one per cent of a bright flux to a factor of 7
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
        """Return the deviation of an observed flux from the mean, in standard deviations of y."""
        return (torch.asinh(flux_BQ / self.scale_B1) - self.mean_BQ) / self.std_BQ

    def negative_log_likelihood(self, flux_BQ: Tensor) -> Tensor:
        """Return -log p(flux) of observed fluxes, nats, [B, Q]: that of y plus log dflux/dy = log hypot(flux, s)."""
        nll_BQ = 0.5 * self.deviation(flux_BQ).square() + self.std_BQ.log() + 0.5 * math.log(2.0 * math.pi)
        return nll_BQ + torch.hypot(flux_BQ, self.scale_B1).log()

    def forecast(self) -> Forecast:
        """Return the exact mean and standard deviation of the flux s sinh(y).

        With v = exp(std^2): E = s sqrt(v) sinh(mean), Var = s^2 (v - 1) (v cosh(2 mean) + 1) / 2.
        """
        half_BQ = 0.5 * self.std_BQ.square()
        # v - 1 = 2 sqrt(v) sinh(std^2 / 2): ONNX has no expm1, and exp(x) - 1 loses all precision for small x.
        root_BQ = half_BQ.exp()
        variance_BQ = root_BQ * torch.sinh(half_BQ) * (root_BQ.square() * torch.cosh(2.0 * self.mean_BQ) + 1.0)
        return Forecast(self.scale_B1 * root_BQ * torch.sinh(self.mean_BQ), self.scale_B1 * variance_BQ.sqrt())


def bounded_std(raw: Tensor) -> Tensor:
    """Map to a standard deviation of y within ``STD_RANGE`` on a logarithmic scale; 0 maps to ``START_STD``."""
    low, high = math.log(STD_RANGE[0]), math.log(STD_RANGE[1])
    start = (math.log(START_STD) - low) / (high - low)
    return torch.exp(low + (high - low) * torch.sigmoid(raw + math.log(start / (1.0 - start))))
