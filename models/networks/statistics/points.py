"""Points of light curves as all statistics use them: cleaned, compressed, and relative to their bands.

Notable: a point is in one band, so what is computed of points is [B, L] wide, not [B, G, L]: the sums of a band are one
matrix product with the table of bands by points, and its transpose gives every point the value of its band. All
statistics share these few wide operations; a graph of many small ones costs more than its arithmetic.

Legend: B batch, L length, G bands, Q quantities, X groups of points.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

SOFT: Final = 3.0  # FLUXCAL, about the noise of one Rubin visit: fluxes below are linear, above logarithmic
FAR: Final = 1e9  # beyond every flux and time
FEWEST_POINTS: Final = 3  # of a band, for a standard score to mean anything
LEAST_SCATTER: Final = 1e-3  # of a band that varies
SYSTEMATIC: Final = 0.02  # of the flux: the best known points share a weighted mean
_LEAST_ERROR: Final = 1e-6


class Statistics(NamedTuple):
    """Values of order one, and whether each is defined; both [B, K]."""

    value_BK: Tensor
    mask_BK: Tensor


class Points(NamedTuple):
    """Padded light curves; what lies in padding is 0, and belongs to no band.

    Attributes
    ----------
    flux_B1L, flux_err_B1L, time_B1L : flux and its error (1 in padding) in FLUXCAL, days.
    mask_B1L, here_BGL : bool, which points are real, and which are in a band.
    share_BGL : the latter as numbers, for products.
    soft_B1L : asinh(flux / SOFT).
    noise_B1L : variance of that by the stated errors.
    number_B1G, mean_B1G, variance_B1G : of the points of a band, and of their squashed flux (0 where there are none).
    away_B1L : squashed flux of a point less the mean of its band.
    pull_B1L, spread_B1G : the same with the mean weighted by errors, and the mean of its square.
    expected_B1G : mean of ``noise``.
    chi_square_B1G : squared deviations of flux from its mean weighted by errors, in units of the errors, added up.
    """

    flux_B1L: Tensor
    flux_err_B1L: Tensor
    time_B1L: Tensor
    mask_B1L: Tensor
    here_BGL: Tensor
    share_BGL: Tensor
    soft_B1L: Tensor
    noise_B1L: Tensor
    number_B1G: Tensor
    mean_B1G: Tensor
    variance_B1G: Tensor
    away_B1L: Tensor
    pull_B1L: Tensor
    spread_B1G: Tensor
    expected_B1G: Tensor
    chi_square_B1G: Tensor

    def sums(self, values_BQL: Tensor) -> Tensor:
        """Sum over the points of every band, [B, Q, G]; the values are finite, in padding too."""
        return values_BQL @ self.share_BGL.transpose(1, 2)

    def to_points(self, values_BQG: Tensor) -> Tensor:
        """Gather the value of its band for every point, [B, Q, L], exactly; 0 in padding."""
        return values_BQG @ self.share_BGL


def points(
    flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor, n_bands: int
) -> Points:
    """Compute the points of padded light curves; rows in any order, any values in padding."""
    mask_B1L, band_G1 = mask_BL[:, None], torch.arange(n_bands, device=band_BL.device)[:, None]
    here_BGL = torch.where(mask_B1L, band_BL[:, None], -1) == band_G1
    share_BGL = here_BGL.to(flux_BL.dtype)
    flux_B1L = torch.where(mask_B1L, flux_BL[:, None], 0.0).clamp(-FAR, FAR)
    flux_err_B1L = torch.where(mask_B1L, flux_err_BL[:, None], 1.0).clamp(_LEAST_ERROR, FAR)
    time_B1L = torch.where(mask_B1L, time_BL[:, None], 0.0)
    soft_B1L = torch.asinh(flux_B1L / SOFT)
    square_B1L = flux_err_B1L.square()
    noise_B1L = square_B1L / (flux_B1L.square() + SOFT**2)
    both_B2L = torch.cat([soft_B1L, flux_B1L], dim=1)
    weight_B2L = 1 / torch.cat([noise_B1L + SYSTEMATIC**2, square_B1L], dim=1)
    columns_BQL = torch.cat(
        [soft_B1L, weight_B2L * both_B2L, noise_B1L, mask_B1L.to(soft_B1L.dtype), weight_B2L], dim=1
    )
    share_BLG = share_BGL.transpose(1, 2)
    sums_B3G, noise_B1G, number_B1G, weight_B2G = torch.split(columns_BQL @ share_BLG, [3, 1, 1, 2], dim=1)
    per_B1G = number_B1G.clamp(min=1)
    means_B3G = sums_B3G / torch.cat([per_B1G, weight_B2G.clamp(min=1e-30)], dim=1)
    away_B3L = torch.cat([soft_B1L, both_B2L], dim=1) - means_B3G @ share_BGL
    away_B1L, pull_B1L, off_B1L = torch.split(away_B3L, 1, dim=1)
    far_B1L = (off_B1L / flux_err_B1L).clamp(-FAR, FAR)
    squares_B3G = torch.cat([away_B1L, pull_B1L, far_B1L], dim=1).square() @ share_BLG
    variance_B1G, spread_B1G, chi_square_B1G = torch.split(squares_B3G, 1, dim=1)
    return Points(
        *(flux_B1L, flux_err_B1L, time_B1L, mask_B1L, here_BGL, share_BGL, soft_B1L, noise_B1L),
        *(number_B1G, means_B3G[:, :1], variance_B1G / per_B1G, away_B1L, pull_B1L, spread_B1G / per_B1G),
        *(noise_B1G / per_B1G, chi_square_B1G),
    )
