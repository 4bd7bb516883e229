"""The window a single-band network sees of each row: the newest observations, in order, without gaps, centred.

Notable: rows come with whatever else is in the light curve, other bands and older points among it; the window is cut
inside the network, hence inside an exported graph too. Row order is kept, so rows sorted by time give a series sorted
by time, which a recurrent layer needs.

Legend: B batch, L length of the rows, W = min(L, size) length of the windows.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Value = Literal["magnitude", "asinh", "linear"]


def value_of(flux_BL: Tensor, kind: Value, scale: float) -> Tensor:
    """What stands for the brightness, from the flux f in the network's unit; ``scale`` is b or s, in that unit.

    - ``magnitude``: -2.5 / ln 10 * asinh(f / 2b), the magnitude of Lupton, Gunn & Szalay (1999) up to its zero point,
      which centring removes: a magnitude where f is far above b, linear around zero, so that difference flux may be
      negative;
    - ``asinh``: asinh(f / s);
    - ``linear``: f / s, for input that is a magnitude already.
    """
    if kind == "magnitude":
        return torch.asinh(flux_BL / (2.0 * scale)) * (-2.5 / math.log(10.0))
    return torch.asinh(flux_BL / scale) if kind == "asinh" else flux_BL / scale


class Window(NamedTuple):
    """Where the window's observations are in their rows.

    Attributes
    ----------
    place_BW : int64, different places of the row; the observations come first.
    mask_BW : True for an observation. A row without any shows one of its other places, which centring makes zero: it
        reads as a single observation does, whatever is there.
    """

    place_BW: Tensor
    mask_BW: Tensor

    @classmethod
    def newest(cls, visible_BL: Tensor, size: int) -> "Window":
        """Window of the last ``size`` places of each row that are True in ``visible_BL``."""
        number_BL = visible_BL.cumsum(1)
        visible_BL = visible_BL & (number_BL > number_BL[:, -1:] - size)
        number_BL = visible_BL.cumsum(1)
        count_B1 = number_BL[:, -1:]
        target_BL = torch.where(visible_BL, number_BL - 1, count_B1 + (~visible_BL).cumsum(1) - 1)
        place_BL = torch.arange(visible_BL.shape[1], device=visible_BL.device).expand_as(target_BL)
        place_BW = torch.zeros_like(target_BL).scatter(1, target_BL, place_BL)[:, :size]
        return cls(place_BW, place_BL[:, :size] < count_B1.clamp(min=1))

    def take(self, x_BL: Tensor) -> Tensor:
        """Values [B, W] of the window out of the rows'."""
        return x_BL.gather(1, self.place_BW)

    def put(self, x_BW: Tensor, length: int) -> Tensor:
        """Values [B, L] of the rows out of the window's, 0 at places the window does not show."""
        kept_BW = x_BW * self.mask_BW.to(x_BW.dtype)
        return kept_BW.new_zeros(kept_BW.shape[0], length).scatter(1, self.place_BW, kept_BW)

    def mean(self, x_BW: Tensor) -> Tensor:
        """Mean [B, 1] over the observations."""
        return torch.where(self.mask_BW, x_BW, 0.0).sum(1, keepdim=True) / self.mask_BW.sum(1, keepdim=True)

    def centre(self, x_BW: Tensor, mean_B1: Tensor) -> Tensor:
        """Subtract a mean from the observations; 0 elsewhere."""
        return torch.where(self.mask_BW, x_BW - mean_B1, 0.0)
