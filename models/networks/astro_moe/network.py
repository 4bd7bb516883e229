"""Astro-MoE: a multiband light-curve transformer with sparse mixtures of experts and a metadata branch.

    light curve  (flux, flux_err) -> input experts -> time encoding -> 3 blocks with expert feed-forward -> [CLS]
    metadata     64 columns -> quantile transform -> tabular transformer -> [CLS]
    statistics   (where configured) numbers worked out from the light curve -> one layer
    heads        one on each, and a three-layer perceptron on all of them (the one that predicts)

Sources: Astro-MoE (input experts eq 4, routing eqs 1-3, balance loss eq 5, positional encoding eq 6, time modulation
eq 7); ATAT (Cabrera-Vives et al. 2024, A&A 689, A289) for the block form, the tabular transformer and the heads. No
code of Astro-MoE is public: what its text leaves open is a field of the config, with the reading taken as default. ATAT
gives features of the light curve, worked out beforehand, to its tabular transformer; the statistics are ours. With
``n_experts = n_input_experts = 0`` and ``time_encoding = "baseline"`` the same network is the multiband ASTROMER
baseline.

Notable: every time encoding of ``parts.positional`` and, in the light-curve branch, every kind of ``attention``
fits in. Apart from the modulation, time encodings leave the network blind to bands, as Astro-MoE's eq 6 and ATAT's
ablation are; ``band_embedding`` adds a learned vector per band, which ``rotary`` always has: band is no direction along
which a phase would mean something.

Legend: B batch, L length, N real tokens, D width, C classes, E embedding, F metadata columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.metadata import METADATA_COLUMNS
from models.networks.astro_moe.branch import AstroMoEConfig, LightCurveBranch, balance_loss, initialise, stack_loads
from models.networks.network import INPUTS, Output
from models.networks.parts.moe import ACTIVATIONS
from models.networks.parts.positional_content import When
from models.networks.parts.tabular import TabularTransformer
from models.networks.parts.transformer import Block, DenseFeedForward, Encoder
from models.networks.statistics.branch import Function, StatisticsBranch
from models.networks.statistics.curve_statistics import count, statistics
from models.networks.statistics.lag_statistics import COUNT, lag_statistics
from models.networks.statistics.period_statistics import count as count_of_periods
from models.networks.statistics.period_statistics import period_statistics
from models.networks.statistics.points import Statistics, points

__all__ = ["AstroMoE", "AstroMoEConfig"]

_TOLD: dict[str, Callable[..., Any]] = {
    "points": points,
    "curves": statistics,
    "lags": lag_statistics,
    "periods": period_statistics,
}
REDSHIFT = METADATA_COLUMNS.index("z_final")


class AstroMoE(LightCurveBranch):
    """See the module docstring; sizes in :class:`AstroMoEConfig`."""

    input_names = INPUTS
    answers_alone = True

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__(config)
        self.metadata = _tabular(config)
        self.told = nn.ModuleDict({name: Function(function) for name, function in _TOLD.items()})
        self.statistics = _statistics(config)
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

    def answers_to_nothing(self) -> dict[str, tuple[str, Tensor]]:
        """Modules whose answer [D] to an input without a number is always the same: which input, and that answer."""
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
        """Return the input of the statistics' branch from padded light curves; its ``fit`` learns their scales."""
        seen = self.told["points"](flux_BL, flux_err_BL, time_BL, band_BL, mask_BL, self.config.n_bands)
        told = [self.told["curves"](seen, metadata_BF[:, REDSHIFT])]
        if self.config.lag_statistics:
            told.append(self.told["lags"](seen))
        if self.config.period_statistics:
            told.append(self.told["periods"](seen, self.config.period_search))
        return Statistics(*(torch.cat(parts, dim=1) for parts in zip(*told, strict=True)))

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
        only_answer : compute nothing that the prediction and the embedding do not need, as a bundle's graph does. The
            last block then sends the [CLS]s alone through its experts, and its load says so.
        """
        kept_BL = torch.ones_like(mask_BL) if self.config.aux_counts_padding else mask_BL
        when = When(time_BL, band_BL, kept_BL, self.light_curve.leading)
        observed_N2 = when.pack(self.observations(flux_BL, flux_err_BL, mask_BL))
        x_ND, routing = self.embed_observations(observed_N2)
        if only_answer:
            lc_BD, routings = self.answer(x_ND, when, mask_BL)
        else:
            x_MD, packing, routings = self.encode(x_ND, when, mask_BL)
            lc_BD = self.light_curve.pool(x_MD, packing)
        tab_BD = self.metadata(metadata_BF, only_answer)
        parts, others = [tab_BD, lc_BD], [self.head_lc(lc_BD), self.head_tab(tab_BD)]
        told = None
        if self.statistics is not None and self.head_statistics is not None:
            told = self.statistics_of(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL, metadata_BF)
            parts.append(self.statistics(told))
            others.append(self.head_statistics(parts[-1]))
        embedding_BE = torch.cat(parts, dim=1)
        mixed = [head(embedding_BE) for head in (self.head_mix, *self.head_more)]
        of_input = [] if routing is None else [routing]
        return Output(
            logits_BC=mixed[0] if len(mixed) == 1 else torch.stack(mixed).log_softmax(-1).mean(0),
            embedding_BE=embedding_BE,
            other_logits=(*others, *(mixed if len(mixed) > 1 else ())),
            aux_loss=balance_loss(of_input + routings),
            input_expert_load_1X=stack_loads(of_input),
            expert_load_SX=stack_loads(routings),
            statistics=told,
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
    known = count(config.n_bands) + (COUNT if config.lag_statistics else 0)
    known += count_of_periods(config.n_bands) if config.period_statistics else 0
    return StatisticsBranch(known, config.d_statistics, config.head_dropout)


def _mixed_head(config: AstroMoEConfig, width: int) -> nn.Sequential:
    hidden = config.head_width or width
    return nn.Sequential(
        nn.LayerNorm(width),
        *(nn.Linear(width, hidden), _activation(config)),
        *(nn.Linear(hidden, hidden), _activation(config)),
        nn.Linear(hidden, config.n_classes),
    )


def _activation(config: AstroMoEConfig) -> nn.Module:
    """One module with or without dropout, so that weights keep their names."""
    return nn.Sequential(nn.GELU(), nn.Dropout(config.head_dropout)) if config.head_dropout else nn.GELU()


def _head(width: int, n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))
