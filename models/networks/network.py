"""Inputs and outputs of every light-curve network: one loop trains, one exporter exports, one engine serves them.

A network is an ``nn.Module`` whose ``forward`` takes the tensors named by its ``input_names``, in that order, out of

- ``flux``, ``flux_err`` [batch, length] in the network's flux unit;
- ``time`` [batch, length] days since the first observation kept;
- ``band`` [batch, length] int64 index of the band;
- ``mask`` [batch, length] True for a real observation, at least one per row;
- ``metadata`` [batch, columns] NaN where missing;
- ``query_time``, ``query_band``, ``query_mask`` [batch, queries], forecasters only: when, and in which band.

Legend: B batch, L length, Q queries, C classes, E embedding, S expert layers, X experts, K values per observation.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.networks.statistics.points import Statistics

INPUTS = ("flux", "flux_err", "time", "band", "mask", "metadata")
QUERIES = ("query_time", "query_band", "query_mask")


class Output(NamedTuple):
    """Output of a classifier.

    Attributes
    ----------
    logits_BC : the prediction.
    embedding_BE : what the prediction was made from.
    other_logits : logits of further heads, each [B, C], trained beside the prediction.
    aux_loss : load-balance loss summed over the mixtures, not weighted; None without mixtures.
    input_expert_load_1X, expert_load_SX : int64 tokens sent to each expert in this call; None without such a mixture.
    statistics : of the light curves, where the network works them out; they are not scaled.
    """

    logits_BC: Tensor
    embedding_BE: Tensor
    other_logits: tuple[Tensor, ...] = ()
    aux_loss: Tensor | None = None
    input_expert_load_1X: Tensor | None = None
    expert_load_SX: Tensor | None = None
    statistics: Statistics | None = None


class Masking(NamedTuple):
    """Observations that a reconstruction hides; drawn by ``training.data.targets``.

    Attributes
    ----------
    probed_BL : bool, observations to reconstruct; the loss looks at these only.
    hidden_BL : bool, probed observations whose values the network must not see.
    source_BL : int64, the place in the row whose values are shown here: its own, or a random other's.
    """

    probed_BL: Tensor
    hidden_BL: Tensor
    source_BL: Tensor


class Reconstruction(NamedTuple):
    """Predicted and true values [B, L, K] on the padded grid; only probed places mean anything.

    ``aux_loss`` and the loads are those of :class:`Output`.
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


class Classifier(Protocol):
    """The side of a classifying network that training and export look at.

    What only some networks have is asked for by name: ``fit_statistics(batches)`` learns from the inputs of a sample of
    training objects, and ``aux_weight`` of the configuration weighs a loss of the network's own (``Output.aux_loss``).
    """

    input_names: tuple[str, ...]
    n_classes: int
    embedding_dim: int

    def __call__(self, *inputs: Tensor) -> Output:
        """Classify padded light curves."""

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Learn input scales from the training objects' metadata [N, F]; most networks have nothing to learn."""
