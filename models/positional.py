"""Time encodings: how an observation's time enters its token.

- ``TimeModulation`` (Astro-MoE eq 7, ATAT): per band b, x * gamma1_b(t) + gamma2_b(t), both Fourier series of H
  harmonics of 2 pi t / T_max; harmonic 0 is there, so a constant is. It also tells the network the band.
- ``sinusoidal`` (Astro-MoE eq 6): added, w_i = 1000^(-2i/d) over all i, sine for even and cosine for odd i, no 2 pi.
  It has no parameters and no band.

Legend: N tokens, D width, H harmonics, P = 2H (sine and cosine), G bands.
"""

import math

import torch
from torch import Tensor, nn

from models.grouping import apply_grouped


def sinusoidal(time_N: Tensor, width: int, base: float = 1000.0) -> Tensor:
    """Astro-MoE eq 6, [N, D], for times in days."""
    index_D = torch.arange(width, device=time_N.device, dtype=torch.float32)
    angle_ND = time_N[:, None] * torch.exp(index_D * (-2.0 * math.log(base) / width))
    return torch.where(index_D % 2 == 0, angle_ND.sin(), angle_ND.cos())


class TimeModulation(nn.Module):
    """Per-band affine modulation by truncated Fourier series of time (Astro-MoE eq 7).

    ``weight_GPQ[b]`` maps [sin a_0 .. sin a_{H-1}, cos a_0 .. cos a_{H-1}] to [gamma1, gamma2], a_m = 2 pi m t / T_max.
    """

    harmonic_H: Tensor

    def __init__(self, n_bands: int, width: int, n_harmonics: int, t_max: float, init_std: float = 1.0) -> None:
        super().__init__()
        self.n_bands, self.t_max = n_bands, t_max
        self.weight_GPQ = nn.Parameter(torch.empty(n_bands, 2 * n_harmonics, 2 * width))
        self.register_buffer("harmonic_H", torch.arange(n_harmonics, dtype=torch.float32), persistent=False)
        nn.init.normal_(self.weight_GPQ, std=init_std)

    def forward(self, x_ND: Tensor, time_N: Tensor, band_N: Tensor) -> Tensor:
        """Modulate tokens [N, D] observed ``time_N`` days after the first one in bands ``band_N``."""
        angle_NH = (2.0 * math.pi / self.t_max) * time_N[:, None] * self.harmonic_H
        wave_NP = torch.cat([angle_NH.sin(), angle_NH.cos()], dim=1)
        gammas_NQ = apply_grouped(wave_NP, band_N[:, None], self.n_bands, self._series)[:, 0]
        gamma1_ND, gamma2_ND = gammas_NQ.chunk(2, dim=1)
        return x_ND * gamma1_ND + gamma2_ND

    def _series(self, band: int, wave_NP: Tensor) -> Tensor:
        return wave_NP @ self.weight_GPQ[band]
