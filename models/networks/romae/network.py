"""RoMAE for light curves (Zivanovic et al. 2025): flux and error are values, band and time are positions.

    (flux, flux_err) at (band index, days since the first observation) -> encoder -> mean of the tokens -> classes

There is no band embedding and no metadata. A band is a position on an axis of its own, so its rotations tell pairs of
observations how far apart they are in band index as in days. Without a [CLS] token, the default and what the authors
ran on ELAsTiCC, only these differences are known: "g then r" looks like "r then i".

Notable, where we depart from the run as coded:

- flux and error pass through asinh(x / flux_scale). The released code computes band means and deviations and then feeds
  the raw FLUXCAL values, which span decades: a linear layer followed by a norm keeps little more of a large flux than
  its ratio to its error. ``flux_transform="none"`` is the released behaviour;
- pretraining and classification share the input projection, so it moves with the encoder; the released code
  re-initialises it.

Legend: B batch, L length, K = 2 values of an observation, A = 2 axes, D width, C classes, N objects, F columns.

Masked pretraining of RoMAE on light curves: reconstruct the flux and error of observations whose time and band
alone are given.

The recipe's masking decides what is hidden. RoMAE hides all it probes: the released ELAsTiCC run half of a light curve
(its text says 0.75, a config field that nothing reads 0.4). Observations that are probed but not hidden, as in
ASTROMER's scheme, stay visible to the encoder with the values the masking shows for them.

Notable: the parts shared with :class:`romae.network.RoMAE` bear the same names, ``embedding`` and ``encoder``.

Legend: B batch, L length, K = 2 values of an observation.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from models.networks.network import Masking, Output, Reconstruction
from models.networks.romae.encoder import (
    TINY,
    TINY_SHALLOW,
    Embedding,
    MaskDecoder,
    Masked,
    Pooling,
    RoMAEEncoder,
    RoMAEEncoderConfig,
    init_classifier,
    make_head,
    pool,
    reconstruct,
)

INPUT_NAMES = ("flux", "flux_err", "time", "band", "mask")
N_VALUES, N_AXES = 2, 2
FluxTransform = Literal["asinh", "none"]


class RoMAEConfig(BaseModel):
    """Sizes and readings; the defaults are the authors' ELAsTiCC model, RoMAE-tiny with a tiny-shallow decoder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Literal["romae"] = "romae"
    n_classes: int = Field(default=20, ge=2)
    n_bands: int = Field(default=6, ge=1, description="known to the data; the network has no weights per band")
    encoder: RoMAEEncoderConfig = TINY
    decoder: RoMAEEncoderConfig = Field(default=TINY_SHALLOW, description="pretraining only")
    pooling: Pooling = Field(default="mean", description="cls adds a token at band 0, day 0: positions become absolute")
    head_dropout: float = Field(default=0.0, ge=0, lt=1)
    flux_transform: FluxTransform = Field(default="asinh", description="none: raw flux, as released")
    flux_scale: float = Field(default=1.0, gt=0, description="s of asinh(flux / s), in the network's flux unit")


class RoMAE(nn.Module):
    """The classifier; its embedding is the pooled encoder output, before the head's norm."""

    input_names = INPUT_NAMES

    def __init__(self, config: RoMAEConfig) -> None:
        super().__init__()
        width = config.encoder.d_model
        self.config, self.n_classes, self.embedding_dim = config, config.n_classes, width
        self.embedding = Embedding(N_VALUES, width, config.pooling == "cls")
        self.encoder = RoMAEEncoder(config.encoder, N_AXES)
        self.head = make_head(width, config.n_classes, config.head_dropout)
        self.apply(init_classifier)

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Nothing to learn from metadata."""

    def forward(
        self, flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor
    ) -> Output:
        """Classify padded light curves, given as ``models.networks.network`` says."""
        values_BLK = observed_values(flux_BL, flux_err_BL, self.config)
        embedded = self.embedding(values_BLK, positions(time_BL, band_BL), mask_BL)
        pooled_BD = pool(self.encoder(*embedded), embedded.packing, self.config.pooling)
        return Output(self.head(pooled_BD), pooled_BD)


def observed_values(flux_BL: Tensor, flux_err_BL: Tensor, config: RoMAEConfig) -> Tensor:
    """Return the values [B, L, 2] of the observations' tokens, which pretraining reconstructs."""
    values_BLK = torch.stack([flux_BL, flux_err_BL], dim=-1)
    return torch.asinh(values_BLK / config.flux_scale) if config.flux_transform == "asinh" else values_BLK


def positions(time_BL: Tensor, band_BL: Tensor) -> Tensor:
    """Band index and days since the first observation, [B, L, 2]."""
    return torch.stack([band_BL.to(time_BL.dtype), time_BL], dim=-1)


class RoMAEPretraining(nn.Module):
    """The asymmetric masked autoencoder of ``models.networks.romae.encoder`` on observations."""

    input_names = INPUT_NAMES

    def __init__(self, config: RoMAEConfig) -> None:
        super().__init__()
        width, dropout = config.encoder.d_model, config.encoder.position_dropout
        self.config = config
        self.embedding = Embedding(N_VALUES, width, config.pooling == "cls", dropout)
        self.encoder = RoMAEEncoder(config.encoder, N_AXES)
        self.decoder = MaskDecoder(width, N_VALUES, N_AXES, config.decoder, config.head_dropout, dropout)

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        masking: Masking,
    ) -> Reconstruction:
        """Values of every real observation, of hidden ones from their times and bands alone; targets beside them."""
        target_BLK = observed_values(flux_BL, flux_err_BL, self.config)
        shown_BLK = target_BLK.take_along_dim(masking.source_BL[..., None], dim=1)
        batch = Masked(shown_BLK, positions(time_BL, band_BL), mask_BL, masking.hidden_BL)
        prediction_BLK = reconstruct(self.embedding, self.encoder, self.decoder, batch)
        return Reconstruction(prediction_BLK, target_BLK)
