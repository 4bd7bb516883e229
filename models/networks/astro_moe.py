"""Astro-MoE: a multiband light-curve transformer with sparse mixtures of experts and a metadata branch.

    light curve  (flux, flux_err) -> input experts -> time encoding -> 3 blocks with expert feed-forward -> [CLS]
    metadata     64 columns -> quantile transform -> tabular transformer -> [CLS]
    statistics   (optional) computed from the light curve -> one layer
    heads        one on each, and a three-layer perceptron on all of them (the one that predicts)

Sources: Astro-MoE (input experts eq 4, routing eqs 1-3, balance loss eq 5, positional encoding eq 6, time modulation eq
7); ATAT (Cabrera-Vives et al. 2024, A&A 689, A289) for the block form, the tabular transformer and the heads. No code
of Astro-MoE is public: open questions of its text are fields of the config, with the chosen reading as default. ATAT
gives precomputed features of the light curve to its tabular transformer; the statistics are an addition. With
``n_experts = n_input_experts = 0`` and ``time_encoding = "baseline"`` the same network is the multiband ASTROMER
baseline.

Notable: every time encoding of ``parts.positional`` and, in the light-curve branch, every kind of ``attention``
fits in. Apart from the modulation, time encodings leave the network blind to bands, as Astro-MoE's eq 6 and ATAT's
ablation are; ``band_embedding`` adds a learned vector per band, which ``rotary`` always has: a band is a
category, which no rotation can represent.

Legend: B batch, L length, N real tokens, V shown tokens, M tokens with the [CLS]s, D width, G bands, C classes,
E embedding, F metadata columns.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.network import INPUTS, Masking, Output, Reconstruction
from nightjar_alerts.models.networks.parts.attention import AttentionConfig
from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.models.networks.parts.positional import TimeEncodingFields, TimeEncodingName, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import When
from nightjar_alerts.models.networks.parts.routing import RoutingByBand
from nightjar_alerts.models.networks.parts.transformer import (
    ACTIVATIONS,
    Activation,
    Block,
    DenseFeedForward,
    Encoder,
    FeedForwardExperts,
    InputExperts,
    NormOrder,
    Pooling,
    RouterSoftmax,
    Routing,
    TabularTransformer,
)
from nightjar_alerts.models.networks.statistics.curve_statistics import (
    N_LAG_STATISTICS,
    Function,
    StatisticsBranch,
    count,
    lag_statistics,
    statistics,
)
from nightjar_alerts.models.networks.statistics.period_statistics import PeriodSearch, period_statistics, period_values
from nightjar_alerts.models.networks.statistics.period_statistics import count as count_of_periods
from nightjar_alerts.models.networks.statistics.points import Statistics, points
from nightjar_alerts.models.networks.statistics.shape_statistics import shape_statistics

FluxTransform = Literal["asinh", "none", "object_z"]


class AstroMoEConfig(TimeEncodingFields):
    """Sizes and options; the defaults are the paper's time-modulation model (4,935,334 parameters)."""

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
    lag_statistics: bool = Field(default=False, description="add the autocorrelation by time lag")
    period_statistics: bool = Field(default=False, description="add periods")
    period_search: PeriodSearch = Field(
        default="summed", description="selection of the best period: by sums, or by fits"
    )
    shape_statistics: bool = Field(default=False, description="statistics of shape, for trees in the graph")
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
    """Observations to encoded tokens.

    The classifier and its pretraining are this branch with their own ends, so that every weight of it has one name in
    both; its attributes are the names that weights move by.
    """

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
        placed = self._placed(x_ND, when), mask_BL, when.packed_BL
        x_MD, packing, routings = self.light_curve.tokens(*placed, self.time.position(when))
        return self.time.finish(x_MD, when), packing, routings

    def answer(self, x_ND: Tensor, when: When, mask_BL: Tensor) -> tuple[Tensor, list[Routing]]:
        """Encode embedded observations to one vector per row [B, D]."""
        if self.time.in_blocks:
            x_MD, packing, routings = self.encode(x_ND, when, mask_BL)
            return self.light_curve.pool(x_MD, packing), routings
        return self.light_curve.answer(self._placed(x_ND, when), mask_BL, when.packed_BL)

    def _placed(self, x_ND: Tensor, when: When) -> Tensor:
        """Return tokens with band and time encodings that are added before the blocks."""
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
    return torch.cat([routing.load_E() for routing in routings]).view(len(routings), -1) if routings else None


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


__all__ = ["AstroMoE", "AstroMoEConfig"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "points": points,
    "curves": statistics,
    "lags": lag_statistics,
    "periods": period_statistics,
    "shapes": shape_statistics,
    "period": period_values,
}
REDSHIFT = METADATA_COLUMNS.index("z_final")


class AstroMoE(LightCurveBranch):
    """See the module docstring; sizes in :class:`AstroMoEConfig`."""

    input_names = INPUTS
    answers_alone = True
    new_parameters = ("head", "statistics")

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__(config)
        self.metadata = _tabular(config)
        self.features = nn.ModuleDict({name: Function(function) for name, function in _FUNCTIONS.items()})
        self.statistics = _statistics(config)
        self.routing = RoutingByBand(config.n_bands, self.light_curve.leading)
        width = config.d_tab + config.d_model + config.d_statistics
        self.n_classes, self.embedding_dim = config.n_classes, width
        self.head_lc = _head(config.d_model, config.n_classes)
        self.head_tab = _head(config.d_tab, config.n_classes)
        self.head_mix = _mixed_head(config, width)
        self.head_more = nn.ModuleList(_mixed_head(config, width) for _ in range(config.head_copies - 1))
        self.head_statistics = None if self.statistics is None else _head(config.d_statistics, config.n_classes)
        initialise(self)

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Fit the quantile transform on training rows [N, F], NaN where missing."""
        self.metadata.quantiles.fit(metadata_NF)

    def works_on_rows(self) -> dict[str, int]:
        """Modules that run on a subset of the rows, and the width of their output."""
        has_periods = self.statistics is not None and self.config.period_statistics
        return {"features.period": count_of_periods(self.config.n_bands)} if has_periods else {}

    def native(self) -> dict[str, dict[str, int]]:
        """Modules that native kernels can replace (``models.native``), with the attributes of the kernels."""
        config = self.config
        routing = {"layers": self._routed_layers, "bands": config.n_bands, "leading": int(self.light_curve.leading)}
        kernels = {"routing": routing} if self._routed_layers else {}
        if self.statistics is None:
            return kernels
        periods = 1 + (config.period_search == "fitted") if config.period_statistics else 0
        attributes = {"bands": config.n_bands, "lags": int(config.lag_statistics), "periods": periods}
        return kernels | {"features": attributes | {"shapes": int(config.shape_statistics)}}

    @property
    def _routed_layers(self) -> int:
        """Expert layers of a bundle's graph whose router sees the observations."""
        config = self.config
        if config.n_experts == 0 or config.aux_counts_padding:
            return 0
        return config.n_blocks - (self.light_curve.answers_alone and not self.time.in_blocks)

    def fit_statistics(self, batches: Callable[[], Iterable[Sequence[Tensor]]]) -> None:
        """Learn the scales of the statistics, where the network has any, from inputs of training objects."""
        if self.statistics is not None:
            batches_of_statistics = [self.statistics_of(*inputs) for inputs in batches()]
            self.statistics.fit(Statistics(*(torch.cat(parts) for parts in zip(*batches_of_statistics, strict=True))))

    def answers_to_nothing(self) -> dict[str, tuple[str, Tensor]]:
        """Modules with a constant output [D] for an input of NaN only: the input, and that output."""
        with torch.no_grad():
            return {"metadata": ("metadata", self.metadata(torch.full((1, self.config.n_metadata), torch.nan))[0])}

    def statistics_of(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        metadata_BF: Tensor,
    ) -> Statistics:
        """Return the input of the statistics' branch from padded light curves; its ``fit`` learns their scales.

        Shapes come last; the branch does not use them.
        """
        light_curves = self.features["points"](flux_BL, flux_err_BL, time_BL, band_BL, mask_BL, self.config.n_bands)
        groups = [self.features["curves"](light_curves, metadata_BF[:, REDSHIFT])]
        if self.config.lag_statistics:
            groups.append(self.features["lags"](light_curves))
        if self.config.period_statistics:
            groups.append(self.features["periods"](light_curves, self.config.period_search, self.features["period"]))
        if self.config.shape_statistics:
            groups.append(self.features["shapes"](light_curves, metadata_BF[:, REDSHIFT]))
        return Statistics(*(torch.cat(parts, dim=1) for parts in zip(*groups, strict=True)))

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        metadata_BF: Tensor,
        only_answer: bool = False,
    ) -> Output:
        """Classify padded light curves; ``models.networks.network`` describes the inputs.

        The prediction is that of the mixed head, or of all its copies; the other logits are those of a head on each
        part alone, and of every copy.

        Parameters
        ----------
        only_answer : compute only what prediction and embedding need, as in a bundle's graph. The experts of the last
            block then get the [CLS] tokens only, and its load counts only these.
        """
        packed_BL = torch.ones_like(mask_BL) if self.config.aux_counts_padding else mask_BL
        when = When(time_BL, band_BL, packed_BL, self.light_curve.leading)
        observed_N2 = when.pack(self.observations(flux_BL, flux_err_BL, mask_BL))
        x_ND, routing = self.embed_observations(observed_N2)
        if only_answer:
            lc_BD, routings = self.answer(x_ND, when, mask_BL)
        else:
            x_MD, packing, routings = self.encode(x_ND, when, mask_BL)
            lc_BD = self.light_curve.pool(x_MD, packing)
        tab_BD = self.metadata(metadata_BF, only_answer)
        parts, others = [tab_BD, lc_BD], [self.head_lc(lc_BD), self.head_tab(tab_BD)]
        curve_statistics = None
        if self.statistics is not None and self.head_statistics is not None:
            curve_statistics = self.statistics_of(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL, metadata_BF)
            parts.append(self.statistics(curve_statistics))
            others.append(self.head_statistics(parts[-1]))
        embedding_BE = torch.cat(parts, dim=1)
        mixed = [head(embedding_BE) for head in (self.head_mix, *self.head_more)]
        of_input = [] if routing is None else [routing]
        routed, by_band = routings[: self._routed_layers] if only_answer else [], (None, None)
        if routed:
            by_band = self.routing(routed, band_BL, mask_BL)
        return Output(
            logits_BC=mixed[0] if len(mixed) == 1 else torch.stack(mixed).log_softmax(-1).mean(0),
            embedding_BE=embedding_BE,
            other_logits=(*others, *(mixed if len(mixed) > 1 else ())),
            aux_loss=balance_loss(of_input + routings),
            input_expert_load_1X=stack_loads(of_input),
            expert_load_SX=stack_loads(routings),
            experts_by_band_BSGX=by_band[0],
            router_entropy_BS=by_band[1],
            statistics=curve_statistics,
        )


def _tabular(config: AstroMoEConfig) -> TabularTransformer:
    def block() -> Block:
        dense = DenseFeedForward(config.d_tab, config.tab_ff, ACTIVATIONS[config.activation])
        return Block(config.d_tab, config.tab_heads, dense, config.norm_order, config.dropout)

    encoder = Encoder(config.d_tab, [block() for _ in range(config.tab_blocks)], config.pooling)
    return TabularTransformer(config.n_metadata, config.d_tab, config.n_knots, encoder)


def _statistics(config: AstroMoEConfig) -> StatisticsBranch | None:
    if not config.d_statistics:
        return None
    width = count(config.n_bands) + (N_LAG_STATISTICS if config.lag_statistics else 0)
    width += count_of_periods(config.n_bands) if config.period_statistics else 0
    return StatisticsBranch(width, config.d_statistics, config.head_dropout)


def _mixed_head(config: AstroMoEConfig, width: int) -> nn.Sequential:
    hidden = config.head_width or width
    return nn.Sequential(
        nn.LayerNorm(width),
        *(nn.Linear(width, hidden), _activation(config)),
        *(nn.Linear(hidden, hidden), _activation(config)),
        nn.Linear(hidden, config.n_classes),
    )


def _activation(config: AstroMoEConfig) -> nn.Module:
    """Return the activation, with dropout if configured; weights keep their names."""
    return nn.Sequential(nn.GELU(), nn.Dropout(config.head_dropout)) if config.head_dropout else nn.GELU()


def _head(width: int, n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))


class AstroMoEPretraining(LightCurveBranch):
    """Self-supervised pretraining: the light-curve branch with a linear head on each token, which reconstructs the
    transformed flux of probed observations.

    Astro-MoE masks as ASTROMER does: of the observations, 90 % are probed; of those, 30 % are hidden, 30 % show the
    values of a random other observation, 40 % show their own, and the loss uses probed ones only. Its text says "90
    % of the light curves", of which 30/30/40; a share of light curves would leave nothing to measure on the rest, so it
    is read as the share of observations. Which ones is drawn by ``training.data.targets``.

    Notable: a hidden observation is a learned token instead of an embedded value; its time and its band stay visible (a
    different state from ASTROMER, v0 of which takes hidden observations out of attention and v2 of which does that
    too). It passes no input expert, hence is not counted in their balance. The target is the flux as the network sees
    it, after ``flux_transform``; ``object_z`` scales by all observations of the object, hidden ones included. The
    metadata branch is not pretrained.
    """

    input_names = tuple(name for name in INPUTS if name != "metadata")

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__(config)
        self.hidden_1D = nn.Parameter(torch.zeros(1, self.time.content_width))
        self.head_flux = nn.Sequential(nn.LayerNorm(config.d_model), nn.Linear(config.d_model, 1))
        initialise(self)

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        masking: Masking,
    ) -> Reconstruction:
        """Reconstruct the transformed flux, [B, L, 1]; ``models.networks.network`` describes the inputs."""
        observed_BL2 = self.observations(flux_BL, flux_err_BL, mask_BL)
        input_BL2 = observed_BL2.take_along_dim(masking.source_BL[..., None], dim=1)
        when = When(time_BL, band_BL, mask_BL, self.light_curve.leading)
        x_ND, routing = self._embed_shown(when.pack(input_BL2), when.pack(masking.hidden_BL))
        x_MD, _, routings = self.encode(x_ND, when, mask_BL)
        flux_N1 = self.head_flux(x_MD[x_MD.shape[0] - x_ND.shape[0] :])
        of_input = [] if routing is None else [routing]
        return Reconstruction(
            prediction_BLK=Packing.of(mask_BL, leading=False).unpack(flux_N1),
            target_BLK=observed_BL2[..., :1],
            aux_loss=balance_loss(of_input + routings),
            input_expert_load_1X=stack_loads(of_input),
            expert_load_SX=stack_loads(routings),
        )

    def _embed_shown(self, x_N2: Tensor, hidden_N: Tensor) -> tuple[Tensor, Routing | None]:
        """Tokens [N, content width] of which the hidden ones are the learned token, and the routing of the others."""
        x_VD, routing = self.embed_observations(x_N2[~hidden_N])
        token_N = torch.where(hidden_N, x_VD.shape[0], (~hidden_N).cumsum(0) - 1)
        return torch.cat([x_VD, self.hidden_1D.to(x_VD.dtype)])[token_N], routing
