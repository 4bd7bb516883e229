"""Additions to a network in a bundle's graph that make its answers believable: trees, a temperature, a novelty.

They follow the formulas of ``models.confidence`` and ``training.score.novelty`` in float32, with nothing in temperature
and novelty but elementwise arithmetic, one product and reductions, so torch and onnxruntime agree to rounding. Trees
agree, too, except where rounding leads a number to the other side of a threshold.

Legend: B batch, L length, C classes, K classes of the reference or statistics, E embedding, F both, Q knots.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.confidence import LARGEST_TEMPERATURE, Calibration, Ensemble
from models.metadata import METADATA_COLUMNS
from models.networks.network import Output
from models.networks.parts.trees import BoostedTrees
from training.score.novelty import NoveltyFit, Reference

_REDSHIFT = METADATA_COLUMNS.index("z_final")


class Ensembled(nn.Module):
    """The logarithmic opinion pool (Genest & Zidek 1986) of a network and of trees on its statistics and branches."""

    def __init__(self, trees: BoostedTrees, described: Ensemble) -> None:
        super().__init__()
        self.trees, self.described = trees, described

    def numbers(self, output: Output) -> Tensor:
        """Return the trees' features [B, F]: statistics, NaN where they are not known, and the branches' embedding."""
        if output.statistics is None:
            raise ValueError("trees look at statistics, and this network works out none")
        value_BK, known_BK = output.statistics
        branches = self.trees.forest.numbers - value_BK.shape[1]
        return torch.cat([torch.where(known_BK, value_BK, torch.nan), output.embedding_BE[:, :branches]], dim=1)

    def forward(self, output: Output, mask_BL: Tensor, metadata_BF: Tensor) -> Tensor:
        """Logits [B, C]."""
        trees_BC, network_BC = self.trees(self.numbers(output)).log_softmax(-1), output.logits_BC.log_softmax(-1)
        constant, per_length, redshift = self.described.coefficients
        log_length_B1 = mask_BL.sum(1, keepdim=True).clamp(*self.described.lengths).float().log()
        known_B1 = (~metadata_BF[:, _REDSHIFT : _REDSHIFT + 1].isnan()).float()
        weight_B1 = (constant + per_length * log_length_B1 + redshift * known_B1).sigmoid()
        both_BC: Tensor = network_BC + weight_B1 * (trees_BC - network_BC)
        return both_BC


class Calibrated(nn.Module):
    """Logits divided by a temperature, the same for all light curves or a function of their length."""

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.temperature = calibration.temperature
        self.coefficients, self.lengths = calibration.coefficients, calibration.lengths

    def forward(self, logits_BC: Tensor, mask_BL: Tensor) -> Tensor:
        """Probabilities [B, C]."""
        if self.lengths is None:
            return (logits_BC / self.temperature).softmax(-1)
        log_length_B = mask_BL.sum(1).clamp(*self.lengths).float().log()
        log_temperature_B = torch.zeros_like(log_length_B)
        for coefficient in reversed(self.coefficients):
            log_temperature_B = log_temperature_B * log_length_B + coefficient
        furthest = math.log(LARGEST_TEMPERATURE)
        return (logits_BC / log_temperature_B.clamp(-furthest, furthest).exp()[:, None]).softmax(-1)


class NoveltyScore(nn.Module):
    """Mahalanobis distance to the nearest class mean, as the share of validation objects that are nearer.

    Embeddings are centred before they are whitened: differences of large numbers are what float32 is worst at.
    """

    centre_E: Tensor
    whiten_EE: Tensor
    mean_KE: Tensor
    distance_Q: Tensor
    width_Q: Tensor
    step_Q: Tensor

    def __init__(self, fit: NoveltyFit) -> None:
        super().__init__()
        centre_E = fit.reference.mean_KE.mean(0)
        self.register_buffer("centre_E", _single(centre_E))
        self.register_buffer("whiten_EE", _single(fit.reference.whiten_EE))
        self.register_buffer("mean_KE", _single((fit.reference.mean_KE - centre_E) @ fit.reference.whiten_EE))
        self.register_buffer("distance_Q", _single(fit.distance_Q[:-1]))
        self.register_buffer("width_Q", _single(np.diff(fit.distance_Q)))
        self.register_buffer("step_Q", _single(np.diff(fit.share_Q)))

    def forward(self, embedding_BE: Tensor) -> Tensor:
        """Novelty [B], from 0 to 1."""
        white_BE = (embedding_BE - self.centre_E) @ self.whiten_EE
        squared_BK = (white_BE[:, None] - self.mean_KE).square().sum(-1)
        distance_B = squared_BK.amin(1).sqrt()
        passed_BQ = (distance_B[:, None] - self.distance_Q) / self.width_Q
        return (passed_BQ.clamp(0, 1) * self.step_Q).sum(1).clamp(0, 1)


FARTHEST = 6.0  # spreads from the centre


class StrangerScore(nn.Module):
    """Log odds of a stranger by a perceptron on the embedding and its distance, as the share of usual objects below.

    ``training.sky.novelty`` fits it; :meth:`settle` tells what is usual.
    """

    centre_E: Tensor
    whiten_EE: Tensor
    mean_KE: Tensor
    odds_Q: Tensor
    width_Q: Tensor
    step_Q: Tensor

    def __init__(self, reference: Reference, hidden: int = 64, dropout: float = 0.3) -> None:
        super().__init__()
        centre_E, width = reference.mean_KE.mean(0), reference.mean_KE.shape[1]
        self.register_buffer("centre_E", _single(centre_E))
        self.register_buffer("whiten_EE", _single(reference.whiten_EE))
        self.register_buffer("mean_KE", _single((reference.mean_KE - centre_E) @ reference.whiten_EE))
        self.scale = float(np.sqrt(width))
        self.layers = nn.Sequential(nn.Linear(width + 1, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, 1))
        self.settle(np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    def settle(self, odds_Q: NDArray[np.float64], share_Q: NDArray[np.float64]) -> None:
        """Say which share of usual objects has lower odds than each of ``odds_Q``."""
        self.register_buffer("odds_Q", _single(odds_Q[:-1]))
        self.register_buffer("width_Q", _single(np.diff(odds_Q)))
        self.register_buffer("step_Q", _single(np.diff(share_Q)))

    def odds(self, embedding_BE: Tensor) -> Tensor:
        """Log odds [B], larger for what is less like the known classes."""
        white_BE = (embedding_BE - self.centre_E) @ self.whiten_EE
        white_BE = white_BE.clamp(-FARTHEST, FARTHEST)  # beyond, rounding would be all that differs
        distance_B = (white_BE[:, None] - self.mean_KE).square().sum(-1).amin(1).sqrt() / self.scale
        odds_B: Tensor = self.layers(torch.cat([white_BE, distance_B[:, None]], dim=1))[:, 0]
        return odds_B

    def forward(self, embedding_BE: Tensor) -> Tensor:
        """Novelty [B], from 0 to 1."""
        passed_BQ = (self.odds(embedding_BE)[:, None] - self.odds_Q) / self.width_Q
        return (passed_BQ.clamp(0, 1) * self.step_Q).sum(1).clamp(0, 1)


def _single(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
