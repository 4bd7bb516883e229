"""Astro-MoE: a multiband light-curve transformer with sparse mixtures of experts and a metadata branch.

    light curve  (flux, flux_err) -> input experts -> time encoding -> 3 blocks with expert feed-forward -> [CLS]
    metadata     64 columns -> quantile transform -> tabular transformer -> [CLS]
    statistics   (optional) computed from the light curve -> one layer
    heads        a linear one for each branch, and a three-layer perceptron on all branches, which gives the prediction

Sources: Astro-MoE (input experts eq 4, routing eqs 1-3, balance loss eq 5, positional encoding eq 6, time modulation eq
7); ATAT (Cabrera-Vives et al. 2024, A&A 689, A289) for the blocks, the tabular transformer and the heads. The code of
Astro-MoE is not public: where its text is ambiguous, a config field selects the interpretation. ATAT gives precomputed
features of the light curve to its tabular transformer; the statistics are an addition of this project. With
``n_experts = n_input_experts = 0`` and ``time_encoding = "baseline"`` the network is the multiband ASTROMER baseline.

Notable: all time encodings of ``parts.positional`` and, in the light-curve branch, all kinds of ``attention`` are
supported. Except for ``modulation``, time encodings do not encode the band, as in Astro-MoE's eq 6 and ATAT's ablation.
``band_embedding`` adds a learned vector per band; ``rotary`` always has it, because rotations cannot represent a
category.

Legend: B batch, L length, N real tokens, V visible tokens, M tokens with the [CLS]s, D width, G bands, C classes,
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
from nightjar_alerts.models.networks.network import INPUTS, Masking, NetworkOutput, Reconstruction
from nightjar_alerts.models.networks.parts.attention import AttentionConfig
from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.models.networks.parts.positional import TimeEncodingFields, TimeEncodingName, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import TokenTimes
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
from nightjar_alerts.models.networks.statistics.fold_statistics import COUNT as COUNT_OF_FOLDS
from nightjar_alerts.models.networks.statistics.fold_statistics import fold_statistics, fold_values
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
    fold_statistics: bool = Field(default=False, description="add those of the folded light curve to those of shape")
    head_width: int = Field(default=0, ge=0, description="of the hidden layers of the mixed head; 0: of its input")
    head_copies: int = Field(default=1, ge=1, description="mixed heads, whose mean log-probability is the prediction")
    head_dropout: float = Field(default=0.0, ge=0, lt=1, description="in the mixed head and before the statistics")
    # Interpretations of the paper where its text is ambiguous.
    flux_transform: FluxTransform = Field(default="asinh", description="asinh: implied by the published R2 and RMSE")
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
    """Encoder of the observations, the base class of the classifier and of the pretraining network.

    Its weights therefore have the same names in both networks, which weight transfer relies on.
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
        """Return tokens [N, content width] and the routing of the input experts."""
        if isinstance(self.embed, InputExperts):
            x_ND, routing = self.embed(x_N2)
            return x_ND, routing
        return self.embed(x_N2), None

    def encode(self, x_ND: Tensor, times: TokenTimes, mask_BL: Tensor) -> tuple[Tensor, Packing, list[Routing]]:
        """Encode embedded observations to tokens [M, D]; also return their packing and the routings."""
        placed = self._with_encodings(x_ND, times), mask_BL, times.packed_BL
        x_MD, packing, routings = self.light_curve.tokens(*placed, self.time.position(times))
        return self.time.finish(x_MD, times), packing, routings

    def encode_pooled(self, x_ND: Tensor, times: TokenTimes, mask_BL: Tensor) -> tuple[Tensor, list[Routing]]:
        """Encode embedded observations to one vector per row [B, D]; also return the routings."""
        if self.time.in_blocks:
            x_MD, packing, routings = self.encode(x_ND, times, mask_BL)
            return self.light_curve.pool(x_MD, packing), routings
        return self.light_curve.encode_pooled(self._with_encodings(x_ND, times), mask_BL, times.packed_BL)

    def _with_encodings(self, x_ND: Tensor, times: TokenTimes) -> Tensor:
        """Add the band encoding and the time encoding that precede the blocks."""
        if self.band_GD is not None:
            x_ND = x_ND + self.band_GD[times.band_N]
        return self.time.embed(x_ND, times)


def initialise(branch: LightCurveBranch) -> None:
    """Initialise as ATAT does: linear weights from N(0, 0.02), biases as in PyTorch, time encodings unchanged."""
    for name, part in branch.named_children():
        if name != "time":
            part.apply(_init_linear)
    if isinstance(branch.embed, InputExperts):
        branch.embed.fan_out_gate()


def balance_loss(routings: list[Routing]) -> Tensor | None:
    """Return the load-balance loss summed over the mixtures; None without mixtures."""
    return torch.stack([routing.balance_loss() for routing in routings]).sum() if routings else None


def stack_loads(routings: list[Routing]) -> Tensor | None:
    """Return the number of tokens sent to each expert of each mixture, int64; None without mixtures."""
    return torch.cat([routing.load_E() for routing in routings]).view(len(routings), -1) if routings else None


def _standardise(observed_BL2: Tensor, mask_BL: Tensor) -> Tensor:
    """Standardise the flux of each object and divide its errors by the same scale."""
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
    "folds": fold_statistics,
    "fold": fold_values,
}
REDSHIFT = METADATA_COLUMNS.index("z_final")


class AstroMoE(LightCurveBranch):
    """See the module docstring; sizes in :class:`AstroMoEConfig`."""

    input_names = INPUTS
    supports_prediction_only = True
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

    def row_subset_modules(self) -> dict[str, int]:
        """Return the modules that run on a subset of the rows, and the width of their output."""
        config, rows = self.config, {}
        if self.statistics is not None and config.period_statistics:
            rows["features.period"] = count_of_periods(config.n_bands)
        if self.statistics is not None and config.shape_statistics and config.fold_statistics:
            rows["features.fold"] = COUNT_OF_FOLDS
        return rows

    def native_kernels(self) -> dict[str, dict[str, int]]:
        """Return the modules that native kernels can replace (``models.native``), with the kernels' attributes."""
        config = self.config
        routing = {"layers": self._routed_layers, "bands": config.n_bands, "leading": int(self.light_curve.leading)}
        kernels = {"routing": routing} if self._routed_layers else {}
        if self.statistics is None:
            return kernels
        periods = 1 + (config.period_search == "fitted") if config.period_statistics else 0
        attributes = {"bands": config.n_bands, "lags": int(config.lag_statistics), "periods": periods}
        shapes = config.shape_statistics * (1 + config.fold_statistics)
        return kernels | {"features": attributes | {"shapes": shapes}}

    @property
    def _routed_layers(self) -> int:
        """Number of expert layers in a bundle's graph whose router sees the observations."""
        config = self.config
        if config.n_experts == 0 or config.aux_counts_padding:
            return 0
        return config.n_blocks - (self.light_curve.last_block_cls_only and not self.time.in_blocks)

    def fit_statistics(self, batches: Callable[[], Iterable[Sequence[Tensor]]]) -> None:
        """Fit the scales of the statistics, if the network has any, to the inputs of training objects."""
        if self.statistics is not None:
            batches_of_statistics = [self.statistics_of(*inputs) for inputs in batches()]
            self.statistics.fit(Statistics(*(torch.cat(parts) for parts in zip(*batches_of_statistics, strict=True))))

    def missing_input_outputs(self) -> dict[str, tuple[str, Tensor]]:
        """Return the modules whose output [D] is constant if an input is all NaN: the input's name and that output."""
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
        """Compute the inputs of the statistics branch from padded light curves.

        Shape and fold statistics come last; the branch ignores them.
        """
        light_curves = self.features["points"](flux_BL, flux_err_BL, time_BL, band_BL, mask_BL, self.config.n_bands)
        groups = [self.features["curves"](light_curves, metadata_BF[:, REDSHIFT])]
        if self.config.lag_statistics:
            groups.append(self.features["lags"](light_curves))
        if self.config.period_statistics:
            groups.append(self.features["periods"](light_curves, self.config.period_search, self.features["period"]))
        if self.config.shape_statistics:
            groups.append(self.features["shapes"](light_curves, metadata_BF[:, REDSHIFT]))
        if self.config.shape_statistics and self.config.fold_statistics:
            groups.append(self.features["folds"](light_curves, self.features["fold"]))
        return Statistics(*(torch.cat(parts, dim=1) for parts in zip(*groups, strict=True)))

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        metadata_BF: Tensor,
        prediction_only: bool = False,
    ) -> NetworkOutput:
        """Classify padded light curves; ``models.networks.network`` describes the inputs.

        The prediction is that of the mixed head, or the mean of its copies; the other logits are those of the heads on
        single branches and of each copy.

        Parameters
        ----------
        prediction_only : compute only what prediction and embedding need, as in a bundle's graph. The experts of the
            last block then process only the [CLS] tokens, and its load counts only these.
        """
        packed_BL = torch.ones_like(mask_BL) if self.config.aux_counts_padding else mask_BL
        times = TokenTimes(time_BL, band_BL, packed_BL, self.light_curve.leading)
        observed_N2 = times.pack(self.observations(flux_BL, flux_err_BL, mask_BL))
        x_ND, routing = self.embed_observations(observed_N2)
        if prediction_only:
            lc_BD, routings = self.encode_pooled(x_ND, times, mask_BL)
        else:
            x_MD, packing, routings = self.encode(x_ND, times, mask_BL)
            lc_BD = self.light_curve.pool(x_MD, packing)
        tab_BD = self.metadata(metadata_BF, prediction_only)
        parts, others = [tab_BD, lc_BD], [self.head_lc(lc_BD), self.head_tab(tab_BD)]
        curve_statistics = None
        if self.statistics is not None and self.head_statistics is not None:
            curve_statistics = self.statistics_of(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL, metadata_BF)
            parts.append(self.statistics(curve_statistics))
            others.append(self.head_statistics(parts[-1]))
        embedding_BE = torch.cat(parts, dim=1)
        mixed = [head(embedding_BE) for head in (self.head_mix, *self.head_more)]
        of_input = [] if routing is None else [routing]
        routed, by_band = routings[: self._routed_layers] if prediction_only else [], (None, None)
        if routed:
            by_band = self.routing(routed, band_BL, mask_BL)
        return NetworkOutput(
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
    """Return the activation, with dropout if configured; the number of modules, and so weight names, do not change."""
    return nn.Sequential(nn.GELU(), nn.Dropout(config.head_dropout)) if config.head_dropout else nn.GELU()


def _head(width: int, n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))


class AstroMoEPretraining(LightCurveBranch):
    """Self-supervised pretraining: the light-curve branch with a linear head on each token, which reconstructs the
    transformed flux of probed observations.

    Astro-MoE masks as ASTROMER does: 90 % of the observations are probed; of those, 30 % are hidden, 30 % get the
    values of a random other observation and 40 % keep their own, and the loss uses only probed observations. The text
    says 90 % "of the light curves"; it is interpreted as a fraction of the observations, because light curves without
    probed observations would have no loss. ``training.data.targets`` draws the masks.

    Notable: a hidden observation is replaced by a learned token; its time and band stay visible (ASTROMER, both v0 and
    v2, excludes hidden observations from attention). It does not pass the input experts, so their balance loss does not
    count it. The target is the flux after ``flux_transform``; ``object_z`` scales by all observations of the object,
    including hidden ones. The metadata branch is not pretrained.
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
        times = TokenTimes(time_BL, band_BL, mask_BL, self.light_curve.leading)
        x_ND, routing = self._embed_shown(times.pack(input_BL2), times.pack(masking.hidden_BL))
        x_MD, _, routings = self.encode(x_ND, times, mask_BL)
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
        """Return tokens [N, content width], with the learned token for hidden ones, and the routing of the others."""
        x_VD, routing = self.embed_observations(x_N2[~hidden_N])
        token_N = torch.where(hidden_N, x_VD.shape[0], (~hidden_N).cumsum(0) - 1)
        return torch.cat([x_VD, self.hidden_1D.to(x_VD.dtype)])[token_N], routing
