"""Astro-MoE's configuration, and the light-curve branch that its classifier and its pretraining share.

Both are this branch with their own ends, so that every weight of the branch has one name in either.

Legend: B batch, L length, N real tokens, M tokens with the [CLS]s, D width, G bands.
"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.networks.attention.attention import AttentionConfig
from models.networks.parts.moe import ACTIVATIONS, Activation, FeedForwardExperts, InputExperts, RouterSoftmax, Routing
from models.networks.parts.packing import Packing
from models.networks.parts.positional import TimeEncodingFields, TimeEncodingName, time_encoding
from models.networks.parts.positional_content import When
from models.networks.parts.transformer import Block, DenseFeedForward, Encoder, NormOrder, Pooling
from models.networks.statistics.period_statistics import PeriodSearch

FluxTransform = Literal["asinh", "none", "object_z"]


class AstroMoEConfig(TimeEncodingFields):
    """Sizes and readings; the defaults are the paper's time-modulation model (4,935,334 parameters)."""

    architecture: Literal["astro-moe"] = "astro-moe"
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
    time_encoding: TimeEncodingName = "modulation"
    band_embedding: bool = Field(default=False, description="a learned vector per band; rotary always has it")
    attention: AttentionConfig = Field(default=AttentionConfig(), description="of the light-curve branch")
    dropout: float = 0.1
    n_metadata: int = 64
    n_knots: int = Field(default=128, ge=2, description="knots of the metadata quantile transform")
    d_tab: int = 128
    tab_heads: int = 4
    tab_blocks: int = Field(default=3, ge=1)
    tab_ff: int = 256
    d_statistics: int = Field(default=0, ge=0, description="0: no branch for statistics of the light curve")
    lag_statistics: bool = Field(default=False, description="among them how alike points are by the days between them")
    period_statistics: bool = Field(default=False, description="among them the periods that the light curve may have")
    period_search: PeriodSearch = Field(default="summed", description="how the best one is chosen: by sums, or by fits")
    head_width: int = Field(default=0, ge=0, description="of the hidden layers of the mixed head; 0: of its input")
    head_copies: int = Field(default=1, ge=1, description="mixed heads, whose mean log-probability is the prediction")
    head_dropout: float = Field(default=0.0, ge=0, lt=1, description="in the mixed head and before the statistics")
    # Open readings of the paper, each with the default taken.
    flux_transform: FluxTransform = Field(default="asinh", description="published R2 and RMSE imply a compressed flux")
    flux_scale: float = Field(default=1.0, gt=0, description="s of asinh(flux / s), in the network's flux unit")
    norm_order: NormOrder = Field(default="pre", description="ATAT; ASTROMER is post-norm")
    pooling: Pooling = Field(default="cls", description="mean pooling has 320 parameters fewer")
    router_softmax: RouterSoftmax = Field(default="topk", description="eq 2: softmax over the kept logits")
    aux_counts_padding: bool = Field(default=False, description="whether padding counts in the balance loss")
    aux_weight: float = Field(default=0.01, description="weight of the balance loss, lambda")
    activation: Activation = Field(default="gelu", description="inside the experts and the dense feed-forward")

    @model_validator(mode="after")
    def _positions_fit_the_attention(self) -> "AstroMoEConfig":
        if self.time_encoding == "tupe" and self.attention.kind in ("performer", "reformer"):
            raise ValueError(f"{self.attention.kind} attention takes no position that widens its queries, as tupe does")
        return self


class LightCurveBranch(nn.Module):
    """Observations to encoded tokens; the attributes are the names that weights move by."""

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__()
        self.config = config
        time = time_encoding(config, config.d_model, config.n_heads, config.n_bands)
        self.embed = _input_layer(config, time.content_width)
        self.time = time
        self.light_curve = _encoder(config)
        has_band = config.n_bands > 1 and (config.band_embedding or config.time_encoding == "rotary")
        self.band_GD = nn.Parameter(torch.randn(config.n_bands, time.content_width)) if has_band else None

    def observations(self, flux_BL: Tensor, flux_err_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """Return the transformed flux and error, [B, L, 2]."""
        kind, scale = self.config.flux_transform, self.config.flux_scale
        observed_BL2 = torch.stack([flux_BL, flux_err_BL], dim=-1)
        if kind == "asinh":
            return torch.asinh(observed_BL2 / scale)
        return _standardise(observed_BL2, mask_BL) if kind == "object_z" else observed_BL2

    def embed_observations(self, x_N2: Tensor) -> tuple[Tensor, Routing | None]:
        """Tokens [N, content width], and the routing of the input experts."""
        if isinstance(self.embed, InputExperts):
            x_ND, routing = self.embed(x_N2)
            return x_ND, routing
        return self.embed(x_N2), None

    def encode(self, x_ND: Tensor, when: When, mask_BL: Tensor) -> tuple[Tensor, Packing, list[Routing]]:
        """Encode embedded observations to tokens [M, D]; also where they sit, and the routings."""
        placed = self._placed(x_ND, when), mask_BL, when.kept_BL
        x_MD, packing, routings = self.light_curve.tokens(*placed, self.time.position(when))
        return self.time.finish(x_MD, when), packing, routings

    def answer(self, x_ND: Tensor, when: When, mask_BL: Tensor) -> tuple[Tensor, list[Routing]]:
        """Encode embedded observations to one vector per row [B, D], and nothing that it does not need."""
        if self.time.in_blocks:
            x_MD, packing, routings = self.encode(x_ND, when, mask_BL)
            return self.light_curve.pool(x_MD, packing), routings
        return self.light_curve.answer(self._placed(x_ND, when), mask_BL, when.kept_BL)

    def _placed(self, x_ND: Tensor, when: When) -> Tensor:
        """Tokens that know their band and their time, as far as these enter before the blocks."""
        if self.band_GD is not None:
            x_ND = x_ND + self.band_GD[when.band_N]
        return self.time.embed(x_ND, when)


def initialise(branch: LightCurveBranch) -> None:
    """ATAT's start: linear weights from N(0, 0.02), biases PyTorch's; time encodings keep their own."""
    for name, part in branch.named_children():
        if name != "time":
            part.apply(_init_linear)
    if isinstance(branch.embed, InputExperts):
        branch.embed.fan_out_gate()


def balance_loss(routings: list[Routing]) -> Tensor | None:
    """Load-balance loss summed over the mixtures; None without mixtures."""
    return torch.stack([routing.balance_loss() for routing in routings]).sum() if routings else None


def stack_loads(routings: list[Routing]) -> Tensor | None:
    """Tokens sent to each expert of each mixture, int64; None without mixtures."""
    return torch.stack([routing.load_E() for routing in routings]) if routings else None


def _standardise(observed_BL2: Tensor, mask_BL: Tensor) -> Tensor:
    """Per-object z score of the flux; errors share the scale."""
    flux_BL, flux_err_BL = observed_BL2.unbind(-1)
    weight_BL = mask_BL.to(flux_BL.dtype)
    count_B1 = weight_BL.sum(1, keepdim=True)
    mean_B1 = (flux_BL * weight_BL).sum(1, keepdim=True) / count_B1
    variance_B1 = ((flux_BL - mean_B1) ** 2 * weight_BL).sum(1, keepdim=True) / count_B1
    sigma_B1 = (variance_B1 + (flux_err_BL * weight_BL).square().sum(1, keepdim=True) / count_B1).sqrt()
    return torch.stack([(flux_BL - mean_B1) / sigma_B1, flux_err_BL / sigma_B1], dim=-1)


def _input_layer(config: AstroMoEConfig, width: int) -> nn.Module:
    if config.n_input_experts == 0:
        return nn.Linear(2, width)
    return InputExperts(2, width, config.n_input_experts, config.input_top_k, config.router_softmax)


def _encoder(config: AstroMoEConfig) -> Encoder:
    def feed_forward() -> nn.Module:
        if config.n_experts == 0:
            return DenseFeedForward(config.d_model, config.d_ff, ACTIVATIONS[config.activation])
        sizes = (config.d_model, config.d_ff, config.n_experts, config.top_k)
        return FeedForwardExperts(*sizes, config.activation, config.router_softmax)

    def block() -> Block:
        sizes = (config.d_model, config.n_heads)
        return Block(*sizes, feed_forward(), config.norm_order, config.dropout, config.attention)

    return Encoder(config.d_model, [block() for _ in range(config.n_blocks)], config.pooling)


def _init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
