"""Astro-MoE: a multiband light-curve transformer with sparse mixtures of experts and a metadata branch.

    light curve  (flux, flux_err) -> input experts -> time encoding -> 3 blocks with expert feed-forward -> [CLS]
    metadata     64 columns -> quantile transform -> tabular transformer -> [CLS]
    heads        light curve, metadata, and a three-layer perceptron on both (the one that predicts)

Sources: Astro-MoE (input experts eq 4, routing eqs 1-3, balance loss eq 5, positional encoding eq 6, time modulation
eq 7); ATAT (Cabrera-Vives et al. 2024, A&A 689, A289) for the block form, the tabular transformer and the heads. No
code of Astro-MoE is public: what its text leaves open is a field of the config, with the reading taken as default. With
``n_experts = n_input_experts = 0`` and ``time_encoding = "baseline"`` the same network is the multiband ASTROMER
baseline.

Notable: every time encoding of ``models.positional`` and, in the light-curve branch, every kind of ``models.attention``
fits in. Apart from the modulation, time encodings leave the network blind to bands, as Astro-MoE's eq 6 and ATAT's
ablation are; ``band_embedding`` adds a learned vector per band, which ``rotary`` always has: band is no direction along
which a phase would mean something.

Legend: B batch, L length, N real tokens, D width, C classes, E embedding, F metadata columns.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.astro_moe_branch import AstroMoEConfig, LightCurveBranch, balance_loss, initialise, stack_loads
from models.moe import ACTIVATIONS
from models.network import INPUTS, Output
from models.positional_content import When
from models.tabular import TabularTransformer
from models.transformer import Block, DenseFeedForward, Encoder

__all__ = ["AstroMoE", "AstroMoEConfig"]


class AstroMoE(LightCurveBranch):
    """See the module docstring; sizes in :class:`AstroMoEConfig`."""

    input_names = INPUTS

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__(config)
        self.metadata = _tabular(config)
        width = config.d_tab + config.d_model
        self.n_classes, self.embedding_dim = config.n_classes, width
        self.head_lc = _head(config.d_model, config.n_classes)
        self.head_tab = _head(config.d_tab, config.n_classes)
        self.head_mix = nn.Sequential(
            nn.LayerNorm(width),
            *(nn.Linear(width, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, config.n_classes),
        )
        initialise(self)

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Fit the quantile transform on training rows [N, F], NaN where missing."""
        self.metadata.quantiles.fit(metadata_NF)

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        metadata_BF: Tensor,
    ) -> Output:
        """Classify padded light curves; ``models.network`` describes the inputs.

        The prediction is that of the mixed head; the other logits are the light curve's and the metadata's alone.
        """
        kept_BL = torch.ones_like(mask_BL) if self.config.aux_counts_padding else mask_BL
        when = When(time_BL, band_BL, kept_BL, self.light_curve.leading)
        observed_N2 = when.pack(self.observations(flux_BL, flux_err_BL, mask_BL))
        x_ND, routing = self.embed_observations(observed_N2)
        x_MD, packing, routings = self.encode(x_ND, when, mask_BL)
        lc_BD, tab_BD = self.light_curve.pool(x_MD, packing), self.metadata(metadata_BF)
        embedding_BE = torch.cat([tab_BD, lc_BD], dim=1)
        of_input = [] if routing is None else [routing]
        return Output(
            logits_BC=self.head_mix(embedding_BE),
            embedding_BE=embedding_BE,
            other_logits=(self.head_lc(lc_BD), self.head_tab(tab_BD)),
            aux_loss=balance_loss(of_input + routings),
            input_expert_load_1X=stack_loads(of_input),
            expert_load_SX=stack_loads(routings),
        )


def _tabular(config: AstroMoEConfig) -> TabularTransformer:
    def block() -> Block:
        dense = DenseFeedForward(config.d_tab, config.tab_ff, ACTIVATIONS[config.activation])
        return Block(config.d_tab, config.tab_heads, dense, config.norm_order, config.dropout)

    encoder = Encoder(config.d_tab, [block() for _ in range(config.tab_blocks)], config.pooling)
    return TabularTransformer(config.n_metadata, config.d_tab, config.n_knots, encoder)


def _head(width: int, n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))
