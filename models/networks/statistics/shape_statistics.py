"""Shape of a light curve: flux and colours at days from the maximum, and the width of the maximum.

The most useful features for boosted trees with few labelled objects. Fluxes are relative to the
one at the maximum of all bands, so shapes contain neither brightness nor survey; days are at rest where a redshift is
known.

Notable:

- the maximum is the point that is certainly brightest: flux less its error;
- flux between two points of a band is interpolated, where they are no further apart than the distance from the maximum
  allows, and reaches :data:`BEYOND` days past its ends;
- of two points of a band at the same time either may be used;
- trees in a graph use these numbers (`training.export.served`); a network's own branch of statistics does not.

Legend: B batch, L length, G bands, I days, E levels, K statistics.
"""

from typing import Final

import torch
from torch import Tensor

from nightjar_alerts.models.networks.statistics.points import FAR, Points, Statistics

DAYS: Final = (-40.0, -20.0, -10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 70.0, 110.0)
LONGEST_GAP: Final = 25.0
"""Days between two points that interpolation crosses at the maximum, and half a day more with each day from it."""
BEYOND: Final = 2.0  # days
LEVELS: Final = (0.5, 0.2)  # of the maximum of a band
APART: Final = (1, 3)  # g and i, where r is missing
_LEAST_SCALE: Final = 1e-6
_LEAST_HEIGHT: Final = 1e-3
_LEAST_IN_COLOUR: Final = 0.02


def count(n_bands: int) -> int:
    """Return the number of statistics, K."""
    pairs = n_bands - 1 + (n_bands > max(APART))
    return (n_bands + pairs) * len(DAYS) + n_bands * (2 + 2 * len(LEVELS))


def shape_statistics(points: Points, redshift_B: Tensor) -> Statistics:
    """Relative fluxes, colours, then height, day and widths of every band [B, K].

    Parameters
    ----------
    redshift_B : NaN where unknown.
    """
    lasting_B11 = 1 + torch.where(redshift_B > 0, redshift_B, 0.0)[:, None, None]  # false for NaN
    sure_B1L = torch.where(points.mask_B1L, points.flux_B1L - points.flux_err_B1L, -FAR)
    top_B11 = sure_B1L.argmax(2, keepdim=True)
    days_B1L = (points.time_B1L - points.time_B1L.gather(2, top_B11)) / lasting_B11
    relative_B1L = (points.flux_B1L / points.flux_B1L.gather(2, top_B11).clamp(min=_LEAST_SCALE)).clamp(-FAR, FAR)
    sampled_BGI, mask_BGI = _sampled(points.here_BGL, days_B1L, relative_B1L)
    values, masks = [sampled_BGI], [mask_BGI]
    logs_BGI = sampled_BGI.clamp(min=_LEAST_IN_COLOUR).log()
    last = sampled_BGI.shape[1] - 1
    pairs = [(slice(0, last), slice(1, None))]
    if last >= max(APART):
        pairs.append((slice(APART[0], APART[0] + 1), slice(APART[1], APART[1] + 1)))
    for blue, red in pairs:
        values.append(logs_BGI[:, blue] - logs_BGI[:, red])
        masks.append(mask_BGI[:, blue] & mask_BGI[:, red])
    for value_BGQ, mask_BGQ in _widths(points, sure_B1L, days_B1L, relative_B1L):
        values.append(value_BGQ)
        masks.append(mask_BGQ)
    value_BK, mask_BK = (torch.cat([part.flatten(1) for part in parts], dim=1) for parts in (values, masks))
    return Statistics(torch.where(mask_BK, value_BK, 0.0), mask_BK)


def _sampled(here_BGL: Tensor, days_B1L: Tensor, relative_B1L: Tensor) -> tuple[Tensor, Tensor]:
    """Flux of every band at :data:`DAYS` and whether it is known, both [B, G, I]."""
    day_I1 = torch.tensor(DAYS, device=days_B1L.device, dtype=days_B1L.dtype)[:, None]
    inside_BG1L, days_B11L = here_BGL[:, :, None], days_B1L[:, None]
    earlier_B1IL = days_B11L < day_I1
    before_BGIL = torch.where(inside_BG1L & earlier_B1IL, days_B11L, -FAR)
    after_BGIL = torch.where(inside_BG1L & ~earlier_B1IL, -days_B11L, -FAR)
    (start_BGI, low_BGI), (minus_end_BGI, high_BGI) = (
        _highest(before_BGIL, relative_B1L),
        _highest(after_BGIL, relative_B1L),
    )
    day_I, end_BGI = day_I1[:, 0], -minus_end_BGI
    begun_BGI, goes_on_BGI = start_BGI > -FAR, end_BGI < FAR
    share_BGI = (day_I - start_BGI) / (end_BGI - start_BGI).clamp(min=1e-6)
    between_BGI = low_BGI + share_BGI * (high_BGI - low_BGI)
    near_BGI = end_BGI - start_BGI <= LONGEST_GAP + 0.5 * day_I.abs()
    both_BGI = begun_BGI & goes_on_BGI
    only_after_BGI = ~begun_BGI & (end_BGI - day_I <= BEYOND)
    only_before_BGI = ~goes_on_BGI & (day_I - start_BGI <= BEYOND)
    value_BGI = torch.where(both_BGI, between_BGI, torch.where(begun_BGI, low_BGI, high_BGI))
    return value_BGI, (both_BGI & near_BGI) | only_after_BGI | only_before_BGI


def _highest(value_BGIL: Tensor, relative_B1L: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value over the points, and the relative flux of its point, both [B, G, I]."""
    place_BGI = value_BGIL.argmax(3)
    flux_B1K = relative_B1L.gather(2, place_BGI.flatten(1)[:, None])
    return value_BGIL.amax(3), flux_B1K.view_as(place_BGI)


def _widths(
    points: Points, sure_B1L: Tensor, days_B1L: Tensor, relative_B1L: Tensor
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Height and day of the maximum of every band, then days above each level before and after it, as values, known."""
    here_BGL = points.here_BGL
    top_BG = torch.where(here_BGL, sure_B1L, -FAR).argmax(2)
    height_BG, day_BG = (each_B1L[:, 0].gather(1, top_BG) for each_B1L in (relative_B1L, days_B1L))
    height_BG = height_BG.clamp(min=_LEAST_HEIGHT)
    present_BG = here_BGL.any(2)
    pairs: list[tuple[Tensor, Tensor]] = [(height_BG, present_BG), (day_BG, present_BG)]
    away_BGL = days_B1L - day_BG[..., None]
    for level in LEVELS:
        below_BGL = here_BGL & (relative_B1L < (level * height_BG)[..., None])
        before_BG = -torch.where(below_BGL & (away_BGL < 0), away_BGL, -FAR).amax(2)
        after_BG = -torch.where(below_BGL & (away_BGL > 0), -away_BGL, -FAR).amax(2)
        pairs += [(before_BG, before_BG < FAR), (after_BG, after_BG < FAR)]
    return tuple(pairs)
