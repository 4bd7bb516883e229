"""Light curves on which the exported graph is compared with the network."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Final

import numpy as np
import torch
from torch import nn

from nightjar_alerts.models.lightcurve import RaggedBatch, Tokens
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.batches import usable_tokens
from nightjar_alerts.training.data.drawn import DrawnCurves
from nightjar_alerts.training.export.bundle import PARITY_NOISE, noise
from nightjar_alerts.training.export.served import Ensembled
from nightjar_alerts.training.fit.checkpoints import RunConfig

PARITY_CURVES: Final = 500


DECIDED: Final = 1e-3  # spreads of a statistic


LAST_DIGITS: Final = 3e-7  # relative


JITTERED: Final = 4


SAME_LEAVES: Final = 1e-5  # of a logit: a leaf differs from its neighbour by more


def parity_tokens(
    network: AstroMoE | RoMAE, light_curves: DrawnCurves, config: RunConfig, ensemble: Ensembled | None = None
) -> list[Tokens]:
    """Light curves of every length, and noise of every brightness that reaches the rarer experts.

    About one in a hundred has two periods that fit equally well, and some have a number at a threshold of the trees, so
    that rounding chooses: what it chooses proves nothing of the graph, and such light curves are left out.
    """
    rng = np.random.default_rng(config.recipe.seed)
    rows = rng.permutation(len(light_curves))[:PARITY_CURVES]
    drawn = (usable_tokens(noise(rng), config.recipe.data) for _ in range(PARITY_NOISE))
    candidates = [_tokens(light_curves, int(row)) for row in rows] + [tokens for tokens in drawn if tokens is not None]
    if isinstance(network, RoMAE):
        return candidates
    decided = [tokens for tokens in candidates if _is_decided(network, tokens)]
    if ensemble is None:
        return decided
    exact = deepcopy(network).double()
    return [tokens for tokens in decided if _keeps_its_leaves(network, exact, ensemble, tokens)]


@torch.inference_mode()
def _is_decided(network: AstroMoE, tokens: Tokens) -> bool:
    """Check that statistics in single precision are those in double, also where last digits of the points differ.

    Of shapes, which only trees use, it is enough that the same ones are defined.
    """
    assert network.statistics is not None
    inputs = RaggedBatch.collate([tokens]).padded()
    single = [torch.from_numpy(inputs[name]) for name in network.input_names]
    exact = network.statistics_of(*(part.double() if part.is_floating_point() else part for part in single))
    for points in (single, *(_jittered(single, seed) for seed in range(JITTERED))):
        statistics = network.statistics_of(*points)
        own = len(network.statistics.spread_K)
        away_BK = ((statistics.value_BK - exact.value_BK)[:, :own] / network.statistics.spread_K).abs()
        if not (statistics.mask_BK == exact.mask_BK).all() or away_BK[statistics.mask_BK[:, :own]].max() > DECIDED:
            return False
    return True


@torch.inference_mode()
def _keeps_its_leaves(network: AstroMoE, exact: nn.Module, ensemble: Ensembled, tokens: Tokens) -> bool:
    """Check that the trees are stable against rounding of the last digits, with metadata or without.

    With tens of thousands of thresholds some number of every light curve is near one; what counts is that rounding,
    and ten times as much, leads to the same leaves.
    """
    inputs = RaggedBatch.collate([tokens, tokens]).padded()
    inputs["metadata"][1] = np.nan
    single = [torch.from_numpy(inputs[name]) for name in network.input_names]
    doubled = [part.double() if part.is_floating_point() else part for part in single]
    leaves_BC = ensemble.trees(ensemble.numbers(network(*single)))
    others = [ensemble.trees(ensemble.numbers(exact(*doubled)).float())]
    for seed in range(JITTERED):
        for digits in (LAST_DIGITS, 10 * LAST_DIGITS):
            others.append(ensemble.trees(ensemble.numbers(network(*_jittered(single, seed, digits)))))
    return all(bool(((other - leaves_BC).abs() < SAME_LEAVES).all()) for other in others)


def _jittered(inputs: Sequence[torch.Tensor], seed: int, digits: float = LAST_DIGITS) -> list[torch.Tensor]:
    """Return inputs whose last digits differ."""
    rng = torch.Generator().manual_seed(seed)
    return [
        part * (1 + digits * torch.randn(part.shape, generator=rng)) if part.is_floating_point() else part
        for part in inputs
    ]


def _tokens(light_curves: DrawnCurves, row: int) -> Tokens:
    curves = light_curves.curves
    at = slice(int(curves.offsets[row]), int(curves.offsets[row + 1]))
    return Tokens(
        time=curves.time[at],
        flux=curves.flux[at],
        flux_err=curves.flux_err[at],
        band=curves.band[at],
        detected=curves.detected[at],
        metadata=curves.metadata[row],
        truncated=False,
        points_per_band=tuple(np.bincount(curves.band[at], minlength=len(BANDS)).tolist()),
        origin_mjd=0.0,
    )
