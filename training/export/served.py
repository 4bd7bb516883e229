"""Module that is exported: a classifier with calibration, trees and novelty; batches for the parity test.

Outputs: softmax(logits / temperature), where the logits are those of the network or of its ensemble with boosted trees,
the embedding, optionally a novelty score, and the expert loads and routing of a network with mixtures.

Trees, temperature and novelty follow the formulas of ``models.bundle``, ``models.posterior`` and
``training.score.confidence`` in float32. Temperature and novelty use only elementwise arithmetic, one product and
reductions, so torch and onnxruntime agree to rounding. Trees agree as well, unless rounding moves a feature across a
threshold.

Legend: B batch, L length, C classes, K classes of the reference or statistics, E embedding, F both, Q knots.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.bundle import LARGEST_TEMPERATURE, Calibration, Ensemble
from nightjar_alerts.models.lightcurve import RaggedBatch, Tokens
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.network import INPUTS, NetworkOutput
from nightjar_alerts.models.networks.parts.trees import BoostedTrees
from nightjar_alerts.models.posterior import Novelty
from nightjar_alerts.training.score.confidence import EmbeddingReference, NoveltyFit

GOLDEN_CURVES = 12
UNCALIBRATED = Calibration(method="none", temperature=1.0)
LOADS = ("input_expert_load", "expert_load")
AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(INPUTS, ("batch", "length")),
    "metadata": ("batch",),
}

Arrays = dict[str, NDArray[Any]]
_REDSHIFT = METADATA_COLUMNS.index("z_final")


class Ensembled(nn.Module):
    """Logarithmic opinion pool (Genest & Zidek 1986) of a network and of trees on its statistics and embedding."""

    def __init__(self, trees: BoostedTrees, described: Ensemble) -> None:
        super().__init__()
        self.trees, self.described = trees, described

    def numbers(self, output: NetworkOutput) -> Tensor:
        """Return the trees' features [B, F]: statistics, NaN where undefined, and the branches' embedding."""
        if output.statistics is None:
            raise ValueError("trees need statistics, and this network has none")
        value_BK, mask_BK = output.statistics
        branches = self.trees.forest.numbers - value_BK.shape[1]
        return torch.cat([torch.where(mask_BK, value_BK, torch.nan), output.embedding_BE[:, :branches]], dim=1)

    def forward(self, output: NetworkOutput, mask_BL: Tensor, metadata_BF: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        trees_BC, network_BC = self.trees(self.numbers(output)).log_softmax(-1), output.logits_BC.log_softmax(-1)
        constant, per_length, redshift = self.described.coefficients
        log_length_B1 = mask_BL.sum(1, keepdim=True).clamp(*self.described.lengths).float().log()
        has_redshift_B1 = (~metadata_BF[:, _REDSHIFT : _REDSHIFT + 1].isnan()).float()
        weight_B1 = (constant + per_length * log_length_B1 + redshift * has_redshift_B1).sigmoid()
        both_BC: Tensor = network_BC + weight_B1 * (trees_BC - network_BC)
        return both_BC


class Calibrated(nn.Module):
    """Logits divided by a temperature, the same for all light curves or a function of their length."""

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        self.temperature = calibration.temperature
        self.coefficients, self.lengths = calibration.coefficients, calibration.lengths

    def forward(self, logits_BC: Tensor, mask_BL: Tensor) -> Tensor:
        """Return the probabilities [B, C]."""
        if self.lengths is None:
            return (logits_BC / self.temperature).softmax(-1)
        log_length_B = mask_BL.sum(1).clamp(*self.lengths).float().log()
        log_temperature_B = torch.zeros_like(log_length_B)
        for coefficient in reversed(self.coefficients):
            log_temperature_B = log_temperature_B * log_length_B + coefficient
        limit = math.log(LARGEST_TEMPERATURE)
        return (logits_BC / log_temperature_B.clamp(-limit, limit).exp()[:, None]).softmax(-1)


class NoveltyScore(nn.Module):
    """Mahalanobis distance to the nearest class mean, as the share of validation objects that are nearer.

    Embeddings are centred before they are whitened, to avoid cancellation in float32.
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

    @classmethod
    def from_tables(cls, tables: Mapping[str, Tensor]) -> "NoveltyScore":
        """Create a score from the tables in a graph."""
        score = cls.__new__(cls)
        nn.Module.__init__(score)
        for name, table in tables.items():
            score.register_buffer(name, table)
        return score

    def forward(self, embedding_BE: Tensor) -> Tensor:
        """Return the novelty [B], from 0 to 1."""
        white_BE = (embedding_BE - self.centre_E) @ self.whiten_EE
        squared_BK = (white_BE[:, None] - self.mean_KE).square().sum(-1)
        distance_B = squared_BK.amin(1).sqrt()
        passed_BQ = (distance_B[:, None] - self.distance_Q) / self.width_Q
        return (passed_BQ.clamp(0, 1) * self.step_Q).sum(1).clamp(0, 1)


MAX_DEVIATION = 6.0  # standard deviations of a whitened embedding


class OutlierScore(nn.Module):
    """Log odds of an outlier by a perceptron on embedding and distance, as the share of known objects with lower odds.

    ``training.sky.novelty`` fits it; :meth:`set_quantiles` sets the distribution of known objects.
    """

    centre_E: Tensor
    whiten_EE: Tensor
    mean_KE: Tensor
    odds_Q: Tensor
    width_Q: Tensor
    step_Q: Tensor

    def __init__(self, reference: EmbeddingReference, hidden: int = 64, dropout: float = 0.3) -> None:
        super().__init__()
        centre_E, width = reference.mean_KE.mean(0), reference.mean_KE.shape[1]
        self.register_buffer("centre_E", _single(centre_E))
        self.register_buffer("whiten_EE", _single(reference.whiten_EE))
        self.register_buffer("mean_KE", _single((reference.mean_KE - centre_E) @ reference.whiten_EE))
        self._build(width, hidden, dropout)
        self.set_quantiles(np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    def _build(self, width: int, hidden: int, dropout: float) -> None:
        self.scale = float(np.sqrt(width))
        self.layers = nn.Sequential(nn.Linear(width + 1, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, 1))

    @classmethod
    def from_tables(cls, tables: Mapping[str, Tensor]) -> "OutlierScore":
        """Create a score from the tables and weights in a graph."""
        score = cls.__new__(cls)
        nn.Module.__init__(score)
        score._build(tables["centre_E"].shape[0], tables["layers.0.bias"].shape[0], 0.0)
        for name, table in tables.items():
            if not name.startswith("layers."):
                score.register_buffer(name, table)
        score.load_state_dict(dict(tables))
        return score

    def set_quantiles(self, odds_Q: NDArray[np.float64], share_Q: NDArray[np.float64]) -> None:
        """Set the fraction of known objects with lower odds than each of ``odds_Q``."""
        self.register_buffer("odds_Q", _single(odds_Q[:-1]))
        self.register_buffer("width_Q", _single(np.diff(odds_Q)))
        self.register_buffer("step_Q", _single(np.diff(share_Q)))

    def odds(self, embedding_BE: Tensor) -> Tensor:
        """Return the log odds [B], larger for objects that are less like the known classes."""
        white_BE = (embedding_BE - self.centre_E) @ self.whiten_EE
        white_BE = white_BE.clamp(-MAX_DEVIATION, MAX_DEVIATION)  # limits rounding errors
        distance_B = (white_BE[:, None] - self.mean_KE).square().sum(-1).amin(1).sqrt() / self.scale
        odds_B: Tensor = self.layers(torch.cat([white_BE, distance_B[:, None]], dim=1))[:, 0]
        return odds_B

    def forward(self, embedding_BE: Tensor) -> Tensor:
        """Return the novelty [B], from 0 to 1."""
        passed_BQ = (self.odds(embedding_BE)[:, None] - self.odds_Q) / self.width_Q
        return (passed_BQ.clamp(0, 1) * self.step_Q).sum(1).clamp(0, 1)


def _single(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


class Scored(Protocol):
    """Novelty score with its own module for the graph."""

    @property
    def described(self) -> Novelty:
        """Entry of the score in the manifest."""

    def module(self) -> nn.Module:
        """Return the module that maps embeddings [B, E] to novelty [B]."""


def _module_of(novelty: NoveltyFit | Scored | None) -> nn.Module | None:
    if novelty is None:
        return None
    return NoveltyScore(novelty) if isinstance(novelty, NoveltyFit) else novelty.module()


class ServedNetwork(nn.Module):
    """A classifier with the calibration, trees and novelty of its bundle."""

    def __init__(
        self,
        network: nn.Module,
        calibration: Calibration = UNCALIBRATED,
        novelty: NoveltyFit | Scored | None = None,
        ensemble: Ensembled | None = None,
    ) -> None:
        super().__init__()
        self.network, self.calibrated = network, Calibrated(calibration)
        self.novelty, self.ensemble = _module_of(novelty), ensemble

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of :meth:`outputs`."""
        return tuple(self.outputs(*inputs).values())

    def outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name: probabilities [B, C], embedding [B, E], novelty [B] if there is one, loads
        [layers, experts], experts by band [B, layers, bands, experts] and router entropy [B, layers].
        """
        options = {"prediction_only": True} if getattr(self.network, "supports_prediction_only", False) else {}
        output: NetworkOutput = self.network(*inputs, **options)
        mask_BL, logits_BC = inputs[self.input_names.index("mask")], output.logits_BC
        if self.ensemble is not None:
            logits_BC = self.ensemble(output, mask_BL, inputs[self.input_names.index("metadata")])
        values = {
            "probabilities": self.calibrated(logits_BC, mask_BL),
            "embedding": output.embedding_BE,
            "novelty": None if self.novelty is None else self.novelty(output.embedding_BE),
            "input_expert_load": output.input_expert_load_1X,
            "expert_load": output.expert_load_SX,
            "experts_by_band": output.experts_by_band_BSGX,
            "router_entropy": output.router_entropy_BS,
        }
        return {name: value for name, value in values.items() if value is not None}

    def missing_input_outputs(self) -> dict[str, tuple[str, Tensor]]:
        """Return the modules whose output is constant if an input is all NaN: the input's name and that output."""
        return self._of_network("missing_input_outputs")

    def row_subset_modules(self) -> dict[str, int]:
        """Return the modules that run on a subset of the rows, and the width of their output."""
        return self._of_network("row_subset_modules")

    def native_kernels(self) -> dict[str, dict[str, int]]:
        """Return the modules that native kernels can replace, with the kernels' attributes."""
        return self._of_network("native_kernels")

    def _of_network(self, method: str) -> dict[str, Any]:
        """Call a method of the network and prefix the module names of its result; empty without the method."""
        found: dict[str, Any] = getattr(self.network, method, dict)()
        return {f"network.{name}": value for name, value in found.items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the network, in the order of its arguments."""
        names: tuple[str, ...] = self.network.input_names  # type: ignore[assignment]  # every network declares it; nn.Module does not
        return names

    def arguments(self, batch: Arrays) -> dict[str, Tensor]:
        """Return the tensors of a batch that the network takes, in the order of its arguments."""
        return {name: torch.from_numpy(batch[name]) for name in self.input_names}


def parity_batches(tokens: Sequence[Tokens], seed: int = 0) -> list[Arrays]:
    """Return batches of mixed lengths, of the shortest and longest, and without metadata; golden vectors last."""
    rng = np.random.default_rng(seed)
    ordered = sorted(tokens, key=len)
    spread = [ordered[index] for index in np.linspace(0, len(ordered) - 1, GOLDEN_CURVES).astype(int)]
    batches = [_batch(tokens[start : start + 16], rng) for start in range(0, len(tokens), 16)]
    batches.append(_batch(ordered[:1], rng))
    batches.append(_batch(ordered[-1:], rng))
    longer = _batch(spread, rng, length=len(ordered[-1]) + 7)
    batches.append(longer | {"metadata": np.full_like(longer["metadata"], np.nan)})
    golden = _batch(spread, rng)
    golden["metadata"][1::3] = np.nan  # objects with and without metadata in one call
    return [*batches, golden]


def _batch(tokens: Sequence[Tokens], rng: np.random.Generator, length: int | None = None) -> Arrays:
    """Return the padded inputs of light curves."""
    return RaggedBatch.collate(tokens).padded(length=length)
