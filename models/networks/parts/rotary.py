"""Continuous axial rotary position embedding (p-RoPE): real-valued positions on any number of axes.

A head of E channels is cut into A equal axes of a = E / A channels. Axis j turns its pairs of channels by the angles
position_j * theta_i, theta_i = base^(-2i/a), i = 0 .. a/2 - 1, so that the product of a query and a key depends on the
difference of their positions alone. Only n = floor(p a / 2) of the frequencies turn; the other pairs do not rotate and
carry content, whatever the position (p-RoPE).

Notable:

- which frequencies turn: RoMAE's text says that "only the smallest p percent" of theta are kept, its released code
  keeps the *highest*, as Barbero et al. do. Default: the code's; ``keep="lowest"`` is the text's reading;
- channels are paired first half with second half within each axis (as in GPT-NeoX), not with their neighbours;
- an axis of odd length would silently widen queries and keys in the released code; here it is an error;
- angles are computed in single precision: good to 1e-4 rad at a position of 1,000, to 1e-2 rad at a Modified Julian
  Date of 60,000. **Never feed MJD**, subtract the first observation's time before.

Sources: RoMAE (Zivanovic et al. 2025), section "continuous axial RoPE"; Barbero et al. 2025, "Round and round we go",
for p-RoPE; Su et al. 2021 for the rotation.

Legend: B batch, S places, H heads, E channels of a head, A axes, P = E / (2 A) pairs of channels in an axis.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Keep = Literal["highest", "lowest"]


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Cosine and sine [B, 1, S, A, P] of each place's angles; calling it turns a query and a key.

    Computed once and used by every head and layer.
    """

    cos_B1SAP: Tensor
    sin_B1SAP: Tensor

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate both, in their own number type."""
        return self.turn(query_BHSE), self.turn(key_BHSE)

    def turn(self, x_BHSE: Tensor) -> Tensor:
        """Rotate the pairs (first half, second half) of each axis."""
        n_axes, n_pairs = self.cos_B1SAP.shape[-2:]
        first, second = x_BHSE.view(*x_BHSE.shape[:-1], n_axes, 2, n_pairs).unbind(-2)
        turned = (
            first * self.cos_B1SAP - second * self.sin_B1SAP,
            second * self.cos_B1SAP + first * self.sin_B1SAP,
        )
        return torch.stack(turned, dim=-2).flatten(-3).type_as(x_BHSE)


class AxialRotary(nn.Module):
    """Angles of continuous positions on ``n_axes`` axes; see the module docstring. No parameters.

    Parameters
    ----------
    head_dim : channels of one attention head, an even number for each axis.
    p : share of the frequencies that turn, in [0, 1].
    base : of the geometric series of frequencies; the highest is 1 rad per unit of position, so the unit matters:
        days suit light curves, times squeezed into [0, 1] make all tokens look alike.
    keep : which end of the series turns.

    Raises
    ------
    ValueError
        When the channels do not divide into axes of even length, or ``p`` is no share.
    """

    frequency_P: Tensor

    def __init__(
        self, head_dim: int, n_axes: int, p: float = 0.75, base: float = 10_000.0, keep: Keep = "highest"
    ) -> None:
        super().__init__()
        if n_axes < 1 or head_dim % (2 * n_axes):
            raise ValueError(f"{head_dim} channels do not divide into {n_axes} axes of even length")
        if not 0 <= p <= 1:
            raise ValueError(f"p = {p} is not a share of the frequencies")
        self.n_axes = n_axes
        self.register_buffer("frequency_P", _frequencies(head_dim // n_axes, p, base, keep), persistent=False)

    def position(self, position_BSA: Tensor) -> Rotation:
        """Rotation of the places at ``position_BSA``, which may be any finite number where a place is empty."""
        if position_BSA.shape[-1] != self.n_axes:
            raise ValueError(f"positions have {position_BSA.shape[-1]} axes, expected {self.n_axes}")
        angle_B1SAP = (position_BSA[..., None] * self.frequency_P)[:, None]
        return Rotation(angle_B1SAP.cos(), angle_B1SAP.sin())

    def forward(self, query_BHSE: Tensor, key_BHSE: Tensor, position_BSA: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate a query and a key [B, H, S, E] at the same places."""
        return self.position(position_BSA)(query_BHSE, key_BHSE)


def _frequencies(axis_dim: int, p: float, base: float, keep: Keep) -> Tensor:
    """Radians per unit of position [P], 0 for the pairs that do not turn."""
    n_pairs = axis_dim // 2
    index_P = torch.arange(n_pairs, dtype=torch.float64)
    n_kept = int(p * n_pairs)
    kept_P = index_P < n_kept if keep == "highest" else index_P >= n_pairs - n_kept
    return torch.where(kept_P, base ** (-2.0 * index_P / axis_dim), 0.0).float()
