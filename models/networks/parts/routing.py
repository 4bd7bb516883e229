"""Expert routing of each light curve: counts of chosen experts by band, and router entropy.

An exported graph contains it as the operator ``nightjar.Routing`` (``training.export.functions``).

Legend: B batch, L length, N observations, M tokens ([CLS] tokens first, then observations), S expert layers, K kept
experts, X experts, G bands, T = S * M.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.transformer import Routing


class RoutingByBand(nn.Module):
    """Counts of chosen experts by band and router entropy of each light curve."""

    def __init__(self, n_bands: int, leading: bool) -> None:
        super().__init__()
        self.n_bands, self.leading = n_bands, leading

    def forward(self, routings: Sequence[Routing], band_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Summarise the routings of the same packed tokens in several layers.

        Returns
        -------
        Number of observations of each band that chose each expert [B, S, G, X], which sums to K times the number of
        observations in each layer; and mean entropy over the observations of the softmax over all experts, nats,
        [B, S]. [CLS] tokens are not counted.
        """
        expert_TK = torch.cat([routing.expert_NK for routing in routings])
        logits_TX = torch.cat([routing.logits_NE for routing in routings])
        sizes = len(routings), self.n_bands, self.leading
        counts_BSGX, entropy_BS = routing_by_band(expert_TK, logits_TX, band_BL, mask_BL, *sizes)
        return counts_BSGX, entropy_BS


@torch.library.custom_op("nightjar::routing_by_band", mutates_args=())
def routing_by_band(
    expert_TK: Tensor, logits_TX: Tensor, band_BL: Tensor, mask_BL: Tensor, layers: int, bands: int, leading: bool
) -> tuple[Tensor, Tensor]:
    """Compute the outputs of :class:`RoutingByBand` from the concatenated routings of the layers."""
    batch, experts = mask_BL.shape[0], logits_TX.shape[1]
    first = batch if leading else 0
    row_N, column_N = mask_BL.nonzero(as_tuple=True)
    expert_SNK = expert_TK.view(layers, -1, expert_TK.shape[1])[:, first:]
    layer_S1 = torch.arange(layers, device=mask_BL.device)[:, None]
    group_SN = (row_N * layers + layer_S1) * bands + band_BL[row_N, column_N]
    index_SNK = group_SN[..., None] * experts + expert_SNK
    counts_BSGX = torch.bincount(index_SNK.flatten(), minlength=batch * layers * bands * experts)
    log_p_SNX = logits_TX.view(layers, -1, experts)[:, first:].log_softmax(-1)
    entropy_NS = -(log_p_SNX.exp() * log_p_SNX).sum(-1).T
    entropy_BS = entropy_NS.new_zeros(batch, layers).index_add(0, row_N, entropy_NS)
    return counts_BSGX.view(batch, layers, bands, experts).float(), entropy_BS / mask_BL.sum(1, keepdim=True)


@routing_by_band.register_fake
def _shapes(
    expert_TK: Tensor, logits_TX: Tensor, band_BL: Tensor, mask_BL: Tensor, layers: int, bands: int, leading: bool
) -> tuple[Tensor, Tensor]:
    batch = mask_BL.shape[0]
    return logits_TX.new_empty(batch, layers, bands, logits_TX.shape[1]), logits_TX.new_empty(batch, layers)
