"""Astro-MoE: a multiband light-curve transformer with sparse mixtures of experts and a metadata branch.

    light curve  (flux, flux_err) -> input experts -> time encoding -> 3 blocks with expert feed-forward -> [CLS]
    metadata     64 columns -> quantile transform -> tabular transformer -> [CLS]
    heads        light curve, metadata, and a three-layer perceptron on both (the one that predicts)

Sources: Astro-MoE (input experts eq 4, routing eqs 1-3, balance loss eq 5, positional encoding eq 6, time modulation
eq 7); ATAT (Cabrera-Vives et al. 2024, A&A 689, A289) for the block form, the tabular transformer and the heads. No
code of Astro-MoE is public: what its text leaves open is a field of the config, with the reading taken as default. With
``n_experts = n_input_experts = 0`` and ``time_encoding = "sinusoidal"`` the same network is the multiband ASTROMER
baseline.

Legend: B batch, L length, N real tokens, D width, C classes, E embedding, F metadata columns, S expert layers,
X experts.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from models.moe import ACTIVATIONS, Activation, FeedForwardExperts, InputExperts, RouterSoftmax, Routing
from models.packing import pack_values
from models.positional import TimeModulation, sinusoidal
from models.tabular import TabularTransformer
from models.transformer import Block, DenseFeedForward, Encoder, NormOrder, Pooling

TimeEncoding = Literal["modulation", "sinusoidal"]
FluxTransform = Literal["asinh", "none", "object_z"]


class AstroMoEConfig(BaseModel):
    """Sizes and readings; the defaults are the paper's time-modulation model (4,935,334 parameters)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_classes: int = Field(default=20, ge=2)
    n_bands: int = 6
    d_model: int = 192
    n_heads: int = 4
    n_blocks: int = Field(default=3, ge=1)
    d_ff: int = 384
    n_experts: int = Field(default=8, ge=0, description="0: dense feed-forward")
    top_k: int = 2
    n_input_experts: int = Field(default=6, ge=0, description="0: one linear map with bias")
    input_top_k: int = 2
    time_encoding: TimeEncoding = "modulation"
    n_harmonics: int = 64
    t_max: float = Field(default=1500.0, description="days; period of the first harmonic")
    modulation_init_std: float = Field(default=1.0, description="ATAT draws from N(0, 1)")
    pe_base: float = 1000.0
    dropout: float = 0.1
    n_metadata: int = 64
    n_knots: int = Field(default=128, ge=2, description="knots of the metadata quantile transform")
    d_tab: int = 128
    tab_heads: int = 4
    tab_blocks: int = Field(default=3, ge=1)
    tab_ff: int = 256
    # Open readings of the paper, each with the default taken.
    flux_transform: FluxTransform = Field(default="asinh", description="published R2 and RMSE imply a compressed flux")
    flux_scale: float = Field(default=1.0, gt=0, description="s of asinh(flux / s), in the network's flux unit")
    norm_order: NormOrder = Field(default="pre", description="ATAT; ASTROMER is post-norm")
    pooling: Pooling = Field(default="cls", description="mean pooling has 320 parameters fewer")
    router_softmax: RouterSoftmax = Field(default="topk", description="eq 2: softmax over the kept logits")
    aux_counts_padding: bool = Field(default=False, description="whether padding counts in the balance loss")
    aux_weight: float = Field(default=0.01, description="weight of the balance loss, lambda")
    activation: Activation = Field(default="gelu", description="inside the experts and the dense feed-forward")


class Output(NamedTuple):
    """What the network returns; ``logits_mix_BC`` is the prediction."""

    logits_lc_BC: Tensor
    logits_tab_BC: Tensor
    logits_mix_BC: Tensor
    embedding_BE: Tensor
    aux_loss: Tensor
    input_expert_load_1X: Tensor
    expert_load_SX: Tensor


class AstroMoE(nn.Module):
    """See the module docstring; sizes in :class:`AstroMoEConfig`."""

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = _input_layer(config)
        self.time = _time_layer(config)
        self.light_curve = _light_curve_encoder(config)
        self.metadata = _tabular(config)
        width = config.d_tab + config.d_model
        self.head_lc = _head(config.d_model, config.n_classes)
        self.head_tab = _head(config.d_tab, config.n_classes)
        self.head_mix = nn.Sequential(
            nn.LayerNorm(width),
            *(nn.Linear(width, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, config.n_classes),
        )
        self.apply(_init_linear)
        if isinstance(self.embed, InputExperts):
            self.embed.fan_out_gate()

    def fit_metadata_quantiles(self, metadata_NF: NDArray[np.floating]) -> None:
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
        """Classify padded light curves.

        Parameters
        ----------
        flux_BL, flux_err_BL : in the network's flux unit.
        time_BL : days since the first observation.
        band_BL : int64 band index.
        mask_BL : True for a real observation; at least one per row.
        metadata_BF : NaN where missing.
        """
        kept_BL = torch.ones_like(mask_BL) if self.config.aux_counts_padding else mask_BL
        columns = self._observations(flux_BL, flux_err_BL, mask_BL)
        x_N2 = torch.stack([pack_values(column, kept_BL) for column in columns], dim=1)
        x_ND, routing = self._embed(x_N2)
        x_ND = self._encode_time(x_ND, pack_values(time_BL, kept_BL), pack_values(band_BL, kept_BL))
        lc_BD, routings = self.light_curve(x_ND, mask_BL, kept_BL)
        tab_BD = self.metadata(metadata_BF)
        embedding_BE = torch.cat([tab_BD, lc_BD], dim=1)
        every = ([routing] if routing else []) + routings
        return Output(
            logits_lc_BC=self.head_lc(lc_BD),
            logits_tab_BC=self.head_tab(tab_BD),
            logits_mix_BC=self.head_mix(embedding_BE),
            embedding_BE=embedding_BE,
            aux_loss=sum((r.balance_loss() for r in every), torch.zeros((), device=flux_BL.device)),
            input_expert_load_1X=_loads([routing] if routing else [], flux_BL.device),
            expert_load_SX=_loads(routings, flux_BL.device),
        )

    def _observations(self, flux_BL: Tensor, flux_err_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        kind, scale = self.config.flux_transform, self.config.flux_scale
        if kind == "asinh":
            return torch.asinh(flux_BL / scale), torch.asinh(flux_err_BL / scale)
        if kind == "object_z":
            return _standardise(flux_BL, flux_err_BL, mask_BL)
        return flux_BL, flux_err_BL

    def _embed(self, x_N2: Tensor) -> tuple[Tensor, Routing | None]:
        if isinstance(self.embed, InputExperts):
            x_ND, routing = self.embed(x_N2)
            return x_ND, routing
        return self.embed(x_N2), None

    def _encode_time(self, x_ND: Tensor, time_N: Tensor, band_N: Tensor) -> Tensor:
        if isinstance(self.time, TimeModulation):
            modulated: Tensor = self.time(x_ND, time_N, band_N)
            return modulated
        return x_ND + sinusoidal(time_N, self.config.d_model, self.config.pe_base)


def _standardise(flux_BL: Tensor, flux_err_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Per-object z score of the flux; errors share the scale."""
    weight_BL = mask_BL.to(flux_BL.dtype)
    count_B1 = weight_BL.sum(1, keepdim=True)
    mean_B1 = (flux_BL * weight_BL).sum(1, keepdim=True) / count_B1
    variance_B1 = ((flux_BL - mean_B1) ** 2 * weight_BL).sum(1, keepdim=True) / count_B1
    sigma_B1 = (variance_B1 + (flux_err_BL * weight_BL).square().sum(1, keepdim=True) / count_B1).sqrt()
    return (flux_BL - mean_B1) / sigma_B1, flux_err_BL / sigma_B1


def _input_layer(config: AstroMoEConfig) -> nn.Module:
    if config.n_input_experts == 0:
        return nn.Linear(2, config.d_model)
    return InputExperts(2, config.d_model, config.n_input_experts, config.input_top_k, config.router_softmax)


def _time_layer(config: AstroMoEConfig) -> nn.Module | None:
    if config.time_encoding == "sinusoidal":
        return None
    sizes = (config.n_bands, config.d_model, config.n_harmonics)
    return TimeModulation(*sizes, config.t_max, config.modulation_init_std)


def _light_curve_encoder(config: AstroMoEConfig) -> Encoder:
    def feed_forward() -> nn.Module:
        if config.n_experts == 0:
            return DenseFeedForward(config.d_model, config.d_ff, ACTIVATIONS[config.activation])
        sizes = (config.d_model, config.d_ff, config.n_experts, config.top_k)
        return FeedForwardExperts(*sizes, config.activation, config.router_softmax)

    blocks = [
        Block(config.d_model, config.n_heads, feed_forward(), config.norm_order, config.dropout)
        for _ in range(config.n_blocks)
    ]
    return Encoder(config.d_model, blocks, config.pooling)


def _tabular(config: AstroMoEConfig) -> TabularTransformer:
    def block() -> Block:
        dense = DenseFeedForward(config.d_tab, config.tab_ff, ACTIVATIONS[config.activation])
        return Block(config.d_tab, config.tab_heads, dense, config.norm_order, config.dropout)

    encoder = Encoder(config.d_tab, [block() for _ in range(config.tab_blocks)], config.pooling)
    return TabularTransformer(config.n_metadata, config.d_tab, config.n_knots, encoder)


def _head(width: int, n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))


def _init_linear(module: nn.Module) -> None:
    """ATAT: linear weights from N(0, 0.02), biases PyTorch's default."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)


def _loads(routings: list[Routing], device: torch.device) -> Tensor:
    if not routings:
        return torch.zeros((0, 0), dtype=torch.int64, device=device)
    return torch.stack([routing.load_E() for routing in routings])
