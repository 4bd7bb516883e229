"""Module that is exported: a classifier with calibration, trees and novelty; batches for the parity test.

Outputs: softmax(logits / temperature), where the logits are those of the network or of its ensemble with boosted trees,
the embedding, optionally a novelty score, and the expert loads and routing of a network with mixtures.

Trees, temperature and novelty follow the formulas of ``models.bundle``, ``models.posterior`` and
``training.confidence.sets`` in float32. Temperature and novelty use only elementwise arithmetic, one product and
reductions, so torch and onnxruntime agree to rounding. Trees agree as well, unless rounding moves a feature across a
threshold.

Legend: B batch, L length, C classes, K classes of the reference or statistics, E embedding, F both, Q knots.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.bundle import LARGEST_TEMPERATURE, Calibration, Ensemble
from nightjar_alerts.models.lightcurve import RaggedBatch, Tokens
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.network import INPUTS, NetworkOutput
from nightjar_alerts.models.networks.parts.trees import BoostedTrees
from nightjar_alerts.training.confidence.novelty import NoveltyFit

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


class ServedNetwork(nn.Module):
    """A classifier with the calibration, trees and novelty of its bundle."""

    def __init__(
        self,
        network: nn.Module,
        calibration: Calibration = UNCALIBRATED,
        novelty: NoveltyFit | None = None,
        ensemble: Ensembled | None = None,
    ) -> None:
        super().__init__()
        self.network, self.calibrated = network, Calibrated(calibration)
        self.novelty, self.ensemble = None if novelty is None else novelty.score, ensemble

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
