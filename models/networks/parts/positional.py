"""Time encodings of transformers, selected by a config field.

This module has the encodings that change attention scores, including the rotary one; those that modify the tokens are
in ``models.networks.parts.positional_content``.

A network creates its encoding with :func:`time_encoding` and calls three hooks; each encoding implements some of them::

    x_ND = time.embed(x_ND, times)              # before the first block, tokens of width time.content_width
    position = time.position(times)             # passed to every block's attention
    x_MD = time.finish(x_MD, times)             # after the last block

PE(t) stands for D sinusoids: the sine (even i) or cosine (odd i) of omega_i t, omega_i = base^(-c i / D), i = 0 .. D-1,
with t in days. The encodings::

    baseline    x + PE(t), omega fixed
    trainable   x + PE(t), omega learned from the same start
    fourier     x + W2 GELU(W1 PE(t))
    recurrent   x + W GRU(PE(t_1), PE(t_2), ...)
    tupe        scores (q . k + U_q PE(t) . U_k PE(t)) / sqrt(E) in every block; values carry content alone
    concat      [x || PE(t)], half and half, omega learned; x is embedded at half the width
    pea         x + PE(t) after the last block; the blocks see content alone
    modulation  x * gamma1_b(t) + gamma2_b(t), Fourier series of H harmonics of 2 pi t / T_max for each band b
    rotary      queries and keys rotated by angles t * base^(-2i/E); scores depend on time differences alone

Sources: Moreno et al. 2023, "Positional encodings for light curve transformers", and the branch of ASTROMER's code with
it, for the first seven; Donoso-Oliva et al. 2023 (ASTROMER) and Astro-MoE eq 6 for PE(t); Li et al. 2021 for learnable
Fourier features; Ke et al. 2021 for TUPE; ATAT (Cabrera-Vives et al. 2024) and Astro-MoE eq 7 for the modulation; RoMAE
for continuous rotary positions.

Where papers and released code disagree, and the default here ("branch" is the branch of ASTROMER's code):

- *2 pi*. The text of Moreno et al. has omega_j = 2 pi / 1000^(j/d); no released code has the 2 pi, and neither has
  Astro-MoE eq 6. Default: none (``pe_two_pi``). The modulation always has its 2 pi, a rotary angle never.
- *Base and c*. ASTROMER v0 and v2 always use base 10,000 and c = 2, because they ignore the configured values; the
  branch uses 1,000 and c = 1; Astro-MoE eq 6 is 1,000 and c = 2; ATAT's ablation is 1,500 (its T_max) and c = 2.
  Default: eq 6. In all of them i counts every channel, so c = 2 spans base^2.
- *fourier*. The text has 64 hidden units, the code 128 (default). Li et al. learn omega as well; here it is fixed. The
  branch can also use the time in days as the input of the perceptron (``fourier_input = "time"``).
- *tupe*. TUPE scales both terms by 1/sqrt(2 E) (``tupe_halved``), the branch by 1/sqrt(E) (default). TUPE has separate
  parameters for scores with [CLS]; ASTROMER has no [CLS], so the branch has none. Here the positional scores of a [CLS]
  are 0: a constant for it as query would cancel in the softmax, and one for it as key can be learned from the product
  of the query with the bias of its content key.
- *concat*. The class in the branch calls an attribute that does not exist and cannot run; this follows the text.
- *pea*. A classifier that reads only the [CLS] would not see time, so a [CLS] gets the mean PE(t) of its row, as a mean
  over tokens does.
- *recurrent* depends on the order of the tokens, which is that of time for every featurised light curve.
- *modulation* includes harmonic 0, a constant. It also encodes the band; the others do not, and multiband networks can
  add a learned vector per band.

In single precision PE(t) and rotary angles are accurate to 1e-4 rad at 1,000 days (times 2 pi with ``pe_two_pi``):
never pass MJD.

Continuous axial rotary position embedding (p-RoPE) supports real-valued positions on any number of axes. The E channels
of a head are divided into A equal axes of a = E / A channels. Axis j rotates its pairs of channels by the angles
position_j * theta_i, theta_i = base^(-2i/a), i = 0 .. a/2 - 1, so that the product of a query and a key depends only on
the difference of their positions. Only n = floor(p a / 2) of the pairs rotate; the others carry content independent of
position (p-RoPE).

Notable of the rotation:

- rotating frequencies: RoMAE's text says that "only the smallest p percent" of theta are kept; its released code keeps
  the *highest* (default), as Barbero et al. do. ``keep="lowest"`` follows the text;
- the first half of the channels of each axis is paired with the second half (as in GPT-NeoX), not with neighbours;
- an axis of odd length is an error; the released code would silently widen queries and keys;
- angles are computed in single precision: accurate to 1e-4 rad at a position of 1,000, to 1e-2 rad at a Modified Julian
  Date of 60,000. **Never pass MJD**; subtract the first observation's time.

Sources: RoMAE (Zivanovic et al. 2025), section "continuous axial RoPE"; Barbero et al. 2025, "Round and round we go",
for p-RoPE; Su et al. 2021 for the rotation.

Legend: B batch, L length, S grid positions (L, plus a leading one for a [CLS] token), D width, H heads, E channels of a
head, A axes, P = E / (2 A) pairs of channels in an axis.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from nightjar_alerts.models.networks.parts.attention import PositionEncoding
from nightjar_alerts.models.networks.parts.positional_content import (
    Added,
    AddedAfter,
    Concatenated,
    Fourier,
    Recurrent,
    Sinusoids,
    TimeEncoding,
    TimeModulation,
    TokenTimes,
)

Keep = Literal["highest", "lowest"]


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Cosine and sine [B, 1, S, A, P] of each token's angles; calling it rotates a query and a key.

    Computed once for all heads and layers.
    """

    cos_B1SAP: Tensor
    sin_B1SAP: Tensor

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate both; their dtypes are preserved."""
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
    p : fraction of the frequencies that rotate, in [0, 1].
    base : of the geometric series of frequencies. The highest is 1 rad per unit of position, so the unit matters: use
        days for light curves; times scaled to [0, 1] would make all tokens look alike.
    keep : which end of the series rotates.

    Raises
    ------
    ValueError
        If the channels do not divide into axes of even length, or ``p`` is outside [0, 1].
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
        """Return the rotation for tokens at ``position_BSA``; empty grid positions may hold any finite number."""
        if position_BSA.shape[-1] != self.n_axes:
            raise ValueError(f"positions have {position_BSA.shape[-1]} axes, expected {self.n_axes}")
        angle_B1SAP = (position_BSA[..., None] * self.frequency_P)[:, None]
        return Rotation(angle_B1SAP.cos(), angle_B1SAP.sin())

    def forward(self, query_BHSE: Tensor, key_BHSE: Tensor, position_BSA: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate a query and a key [B, H, S, E] at the same positions."""
        return self.position(position_BSA)(query_BHSE, key_BHSE)


def _frequencies(axis_dim: int, p: float, base: float, keep: Keep) -> Tensor:
    """Return the radians per unit of position [P], 0 for the pairs that do not rotate."""
    n_pairs = axis_dim // 2
    index_P = torch.arange(n_pairs, dtype=torch.float64)
    n_turning = int(p * n_pairs)
    turns_P = index_P < n_turning if keep == "highest" else index_P >= n_pairs - n_turning
    return torch.where(turns_P, base ** (-2.0 * index_P / axis_dim), 0.0).float()


@dataclass(frozen=True, slots=True)
class PositionScores:
    """Positional queries and keys; calling it appends them to those of the content.

    The scores become scale * (content query . content key + position query . position key).
    """

    query_BHSE: Tensor
    key_BHSE: Tensor
    scale: float

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Widen both from E to 2 E channels."""
        wide_query = self.scale * torch.cat([query_BHSE, self.query_BHSE.type_as(query_BHSE)], dim=-1)
        return wide_query, torch.cat([key_BHSE, self.key_BHSE.type_as(key_BHSE)], dim=-1)


class UntiedPositions(TimeEncoding):
    """``tupe``: attention scores (q . k + U_q PE(t) . U_k PE(t)) / sqrt(E), one U_q and U_k for all blocks.

    The positional query and key of a [CLS] are zero.
    """

    def __init__(self, encoding: Sinusoids, width: int, n_heads: int, halved: bool) -> None:
        super().__init__(width)
        self.encoding, self.n_heads, self.scale = encoding, n_heads, 0.5**0.5 if halved else 1.0
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def position(self, times: TokenTimes) -> PositionScores:
        """Return the positional queries and keys of every grid position."""
        encoding_BLD = self.encoding(times.time_BL)
        query_BHSE, key_BHSE = (self._heads(layer(encoding_BLD), times.leading) for layer in (self.query, self.key))
        return PositionScores(query_BHSE, key_BHSE, self.scale)

    def _heads(self, x_BLD: Tensor, leading: bool) -> Tensor:
        x_BHLE = x_BLD.view(*x_BLD.shape[:2], self.n_heads, -1).transpose(1, 2)
        return F.pad(x_BHLE, (0, 0, 1, 0)) if leading else x_BHLE


class Rotary(TimeEncoding):
    """``rotary``: query and key rotate by angles proportional to time in days; [CLS] is at day 0."""

    def __init__(self, rotary: AxialRotary, width: int) -> None:
        super().__init__(width)
        self.rotary = rotary

    def position(self, times: TokenTimes) -> PositionEncoding:
        """Return the rotation of every grid position."""
        time_BS = F.pad(times.time_BL, (1, 0)) if times.leading else times.time_BL
        return self.rotary.position(time_BS[..., None])


TimeEncodingName = Literal[
    "baseline", "trainable", "fourier", "recurrent", "tupe", "concat", "pea", "modulation", "rotary"
]


class TimeEncodingFields(BaseModel):
    """Config fields of networks with a ``time_encoding``; each encoding uses some of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time_encoding: TimeEncodingName = "baseline"
    pe_base: float = Field(default=1000.0, gt=1, description="base of PE(t)")
    pe_exponent: float = Field(default=2.0, gt=0, description="c of PE(t)")
    pe_two_pi: bool = Field(default=False, description="2 pi in PE(t), as in the text of Moreno et al.")
    fourier_hidden: int = Field(default=128, ge=1, description="hidden units; the text has 64, the code 128")
    fourier_input: Literal["encoding", "time"] = Field(default="encoding", description="time: bare days")
    tupe_halved: bool = Field(default=False, description="scores over sqrt(2 E), TUPE's, instead of sqrt(E)")
    n_harmonics: int = Field(default=64, ge=1, description="of the modulation, the constant included")
    t_max: float = Field(default=1500.0, gt=0, description="days; period of the modulation's first harmonic")
    modulation_init_std: float = Field(default=1.0, description="ATAT draws from N(0, 1)")
    rotary_p: float = Field(default=0.75, ge=0, le=1, description="fraction of the rotary frequencies that rotate")
    rotary_base: float = Field(default=10_000.0, gt=1, description="base of the rotary frequencies")
    rotary_keep: Keep = Field(default="highest", description="end of the frequencies that rotates")


def time_encoding(fields: TimeEncodingFields, width: int, n_heads: int, n_bands: int = 1) -> TimeEncoding:
    """Build the encoding of ``fields.time_encoding`` for a transformer of ``width`` channels.

    Observations must be embedded at the ``content_width`` of the result, which is half the width for ``concat``.

    Raises
    ------
    ValueError
        If the width is odd (``concat``), or does not divide into heads of even length (``rotary``).
    """
    match fields.time_encoding:
        case "baseline" | "trainable":
            return Added(_sinusoids(fields, width), width)
        case "fourier":
            encoding = _sinusoids(fields, width) if fields.fourier_input == "encoding" else None
            return Fourier(encoding, width, fields.fourier_hidden)
        case "recurrent":
            return Recurrent(_sinusoids(fields, width), width)
        case "tupe":
            return UntiedPositions(_sinusoids(fields, width), width, n_heads, fields.tupe_halved)
        case "concat":
            if width % 2:
                raise ValueError(f"width {width} does not halve into content and time")
            return Concatenated(_sinusoids(fields, width // 2), width // 2)
        case "pea":
            return AddedAfter(_sinusoids(fields, width), width)
        case "modulation":
            return TimeModulation(n_bands, width, fields.n_harmonics, fields.t_max, fields.modulation_init_std)
        case "rotary":
            return Rotary(
                AxialRotary(width // n_heads, 1, fields.rotary_p, fields.rotary_base, fields.rotary_keep), width
            )


def _sinusoids(fields: TimeEncodingFields, width: int) -> Sinusoids:
    learned = fields.time_encoding in ("trainable", "concat")
    return Sinusoids(width, fields.pe_base, fields.pe_exponent, fields.pe_two_pi, learned)
