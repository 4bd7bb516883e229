"""Modules that are exported, by task: a network and what its graph computes around it; batches that prove them equal.

- a classifier: softmax(logits / temperature), the logits of the network or of it and boosted trees, the embedding,
  perhaps how unusual that is, and the expert loads of a network with mixtures;
- a forecaster: expected flux and its standard deviation at the queries.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.bands import BANDS
from models.confidence import Calibration, Novelty
from models.forecast import Queries, pad_queries
from models.lightcurve import RaggedBatch, Tokens
from models.networks.network import INPUTS, QUERIES, Forecast, Output
from training.export.confidence import Calibrated, Ensembled, NoveltyScore
from training.score.novelty import NoveltyFit

GOLDEN_CURVES = 12
UNCALIBRATED = Calibration(method="none", temperature=1.0)
LOADS = ("input_expert_load", "expert_load")
AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(INPUTS, ("batch", "length")),
    "metadata": ("batch",),
    **dict.fromkeys(QUERIES, ("batch", "queries")),
}

Arrays = dict[str, NDArray[Any]]


class Scored(Protocol):
    """A novelty that brings its own module for the graph."""

    @property
    def described(self) -> Novelty:
        """Novelty as the manifest describes it."""

    def module(self) -> nn.Module:
        """Embedding [B, E] to novelty [B]."""


def _module_of(novelty: NoveltyFit | Scored | None) -> nn.Module | None:
    if novelty is None:
        return None
    return NoveltyScore(novelty) if isinstance(novelty, NoveltyFit) else novelty.module()


class ServedNetwork(nn.Module):
    """A classifier as a bundle computes it."""

    task: ClassVar = "classification"

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
        """Probabilities [B, C], embedding [B, E], novelty [B] when there is one, loads [layers, experts], by name."""
        alone = {"only_answer": True} if getattr(self.network, "answers_alone", False) else {}
        output: Output = self.network(*inputs, **alone)
        mask_BL, logits_BC = inputs[self.input_names.index("mask")], output.logits_BC
        if self.ensemble is not None:
            logits_BC = self.ensemble(output, mask_BL, inputs[self.input_names.index("metadata")])
        values = {
            "probabilities": self.calibrated(logits_BC, mask_BL),
            "embedding": output.embedding_BE,
            "novelty": None if self.novelty is None else self.novelty(output.embedding_BE),
            "input_expert_load": output.input_expert_load_1X,
            "expert_load": output.expert_load_SX,
        }
        return {name: value for name, value in values.items() if value is not None}

    def answers_to_nothing(self) -> dict[str, tuple[str, Tensor]]:
        """Modules, by their names in here, whose answer to an input without a number is always the same."""
        told = getattr(self.network, "answers_to_nothing", None)
        return {} if told is None else {f"network.{name}": answer for name, answer in told().items()}

    def works_on_rows(self) -> dict[str, int]:
        """Modules, by their names in here, that are given some rows of a batch, or none: the width of their answer."""
        told = getattr(self.network, "works_on_rows", None)
        return {} if told is None else {f"network.{name}": width for name, width in told().items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the network, in the order of its arguments."""
        names: tuple[str, ...] = self.network.input_names  # type: ignore[assignment]  # every network declares it; nn.Module does not
        return names

    def arguments(self, batch: Arrays) -> dict[str, Tensor]:
        """Tensors of a batch that the network takes, in the order of its arguments."""
        return {name: torch.from_numpy(batch[name]) for name in self.input_names}


class ServedForecaster(ServedNetwork):
    """A forecaster as a bundle computes it."""

    task: ClassVar = "forecast"

    def outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return expected flux and standard deviation, [B, Q], by name; 0 and 1 where nothing is asked."""
        output: Forecast = self.network(*inputs)
        mask_BQ = inputs[self.input_names.index("query_mask")]
        return {
            "forecast_flux": output.flux_BQ.where(mask_BQ, torch.zeros_like(output.flux_BQ)),
            "forecast_flux_err": output.flux_err_BQ.where(mask_BQ, torch.ones_like(output.flux_err_BQ)),
        }


def parity_batches(tokens: Sequence[Tokens], seed: int = 0) -> list[Arrays]:
    """Ragged batches over all the tokens: mixed lengths, one curve, one point, no metadata; golden vectors last."""
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
    """Return padded inputs of curves, and one to nine random queries of each."""
    queries = [_random_queries(item, rng) for item in tokens]
    return RaggedBatch.collate(tokens).padded(length=length) | pad_queries(queries)


def _random_queries(tokens: Tokens, rng: np.random.Generator) -> Queries:
    count = int(rng.integers(1, 10))
    time = np.sort(rng.uniform(-10.0, float(tokens.time[-1]) + 60.0, count))
    return Queries(time.astype(np.float32), rng.integers(0, len(BANDS), count))
