"""The part of Astro-MoE that looks at statistics of the light curve, not at its points.

They are those of ``curve_statistics`` and, where configured, of ``lag_statistics`` and of
``models.networks.statistics.period_statistics``.

Legend: B batch, K statistics, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.networks.statistics.points import Statistics

LEAST_SPREAD = 0.05  # of a statistic: below, differences are rounding
LIMIT = 6.0  # standard deviations


class Function(nn.Module):
    """A function with a name of its own among a network's modules, so that a profile tells what it costs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        """Call it."""
        return self.function(*arguments)


class StatisticsBranch(nn.Module):
    """Statistics to one vector [B, D]: standard scores and which of them are known, through one layer."""

    mean_K: Tensor
    spread_K: Tensor

    def __init__(self, statistics: int, width: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean_K", torch.zeros(statistics))
        self.register_buffer("spread_K", torch.ones(statistics))
        self.layer = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * statistics, width), nn.GELU())

    def fit(self, told: Statistics) -> None:
        """Learn the scale of every statistic from those of training objects; one that is never known stays as it is."""
        known_BK = told.known_BK.double()
        objects_K = known_BK.sum(0)
        mean_K = (told.value_BK * known_BK).sum(0) / objects_K.clamp(min=1)
        variance_K = ((told.value_BK - mean_K).square() * known_BK).sum(0) / objects_K.clamp(min=1)
        self.mean_K.copy_(mean_K)
        self.spread_K.copy_(torch.where(objects_K > 1, variance_K.sqrt().clamp(min=LEAST_SPREAD), 1.0))

    def forward(self, told: Statistics) -> Tensor:
        """Encode to [B, D]."""
        score_BK = ((told.value_BK - self.mean_K) / self.spread_K).clamp(-LIMIT, LIMIT)
        scores_BK = torch.where(told.known_BK, score_BK, 0.0)
        vector_BD: Tensor = self.layer(torch.cat([scores_BK, told.known_BK.to(scores_BK.dtype)], dim=1))
        return vector_BD
