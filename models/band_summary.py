"""What a history says about each band at a glance: its newest observation and its inverse-variance mean.

Notable: these are the two forecasts that need no network (persistence and the mean), so a forecaster that is handed
both starts from what it has to beat, and need not spend its training on learning to copy and to average.

Legend: B batch, L length, Q queries, G bands, K features.
"""

from typing import NamedTuple

import torch
from torch import Tensor

N_FEATURES = 6


class BandSummary(NamedTuple):
    """Of each band [B, G]; fluxes are 0 where ``seen_BG`` is False.

    Attributes
    ----------
    seen_BG : whether the band has an observation.
    newest_BG, newest_err_BG : its newest flux and that one's error.
    age_BG : days from it to the newest observation of any band.
    mean_BG, mean_err_BG : inverse-variance mean of its fluxes, and the error of that mean.
    """

    seen_BG: Tensor
    newest_BG: Tensor
    newest_err_BG: Tensor
    age_BG: Tensor
    mean_BG: Tensor
    mean_err_BG: Tensor

    def features(self) -> Tensor:
        """Numbers of order one for a network, [B, G, K], all 0 for a band without observations."""
        columns = (
            torch.ones_like(self.newest_BG),
            self.newest_BG.asinh(),
            self.newest_err_BG.log(),
            self.age_BG.log1p(),
            self.mean_BG.asinh(),
            self.mean_err_BG.log(),
        )
        return torch.where(self.seen_BG[..., None], torch.stack(columns, dim=-1), 0.0)


def summarise(
    flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor, n_bands: int
) -> BandSummary:
    """Summarise padded histories, each row in order of time, times counted from its newest observation (so negative).

    Fluxes are in units in which they are of order one; errors are positive, in padding too.
    """
    band_G1 = torch.arange(n_bands, device=band_BL.device)[:, None]
    here_BGL = (band_BL[:, None] == band_G1) & mask_BL[:, None]
    place_BG = torch.where(here_BGL, torch.arange(band_BL.shape[1], device=band_BL.device), -1).amax(2)
    seen_BG, place_BG = place_BG >= 0, place_BG.clamp(min=0)
    weight_BGL = torch.where(here_BGL, flux_err_BL.pow(-2)[:, None], 0.0)
    total_BG = torch.where(seen_BG, weight_BGL.sum(2), 1.0)
    mean_BG = torch.where(here_BGL, weight_BGL * flux_BL[:, None], 0.0).sum(2) / total_BG
    return BandSummary(
        seen_BG=seen_BG,
        newest_BG=torch.where(seen_BG, flux_BL.gather(1, place_BG), 0.0),
        newest_err_BG=torch.where(seen_BG, flux_err_BL.gather(1, place_BG), 1.0),
        age_BG=torch.where(seen_BG, -time_BL.gather(1, place_BG), 0.0),
        mean_BG=mean_BG,
        mean_err_BG=total_BG.rsqrt(),
    )
