"""The RoMAE encoder (Zivanovic et al. 2025): any values at any real-valued positions, one row per object.

    values [B, L, K] -> Linear K -> D, [CLS] -> depth x (x += Attention(RMSNorm x); x += FeedForward(RMSNorm x)) -> head

Positions rotate queries and keys (``parts.rotary``) and enter nowhere else, so without a [CLS] token the encoder
sees differences of positions only: shifting a row changes nothing. The [CLS] token sits at position 0 on every axis,
which is what lets the encoder recover where a token is.

Notable, where the released code settles or contradicts the text:

- no biases in attention and feed-forward; SiLU; RMSNorm with eps 1e-12; no norm after the last block, the heads have
  their own (dropout, RMSNorm, linear); only the input projection and the heads have a bias;
- dropout follows the second feed-forward layer (text: the hidden layer);
- stochastic depth drops a block's branch for a whole row with rate i / (depth - 1) of ``drop_path`` in block i (text:
  m / N).

Legend: B batch, L length, S places (L plus a leading [CLS]), M packed tokens, K values of a token, A axes, D width.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from models.networks.attention.attention import AttentionConfig, Position, SelfAttention
from models.networks.parts.packing import Packing, pack_values
from models.networks.parts.rotary import AxialRotary, Keep, Rotation

NORM_EPS = 1e-12
Pooling = Literal["mean", "cls"]


class RoMAEEncoderConfig(BaseModel):
    """Sizes and rates of one encoder (or decoder); the rates are the released code's and 0 in its experiments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    d_model: int = Field(default=180, ge=1)
    n_heads: int = Field(default=3, ge=1)
    depth: int = Field(default=12, ge=1)
    d_ff: int | None = Field(default=None, ge=1, description="hidden width of the feed-forward; None: 4 d_model")
    p: float = Field(default=0.75, ge=0, le=1, description="share of the rotary frequencies that turn")
    base: float = Field(default=10_000.0, gt=1, description="of the rotary frequencies")
    keep: Keep = Field(default="highest", description="frequencies that turn: highest as released, lowest as written")
    attention: AttentionConfig = AttentionConfig()
    attention_dropout: float = Field(default=0.0, ge=0, lt=1, description="of the attention weights")
    output_dropout: float = Field(default=0.0, ge=0, lt=1, description="after the attention's output projection")
    hidden_dropout: float = Field(default=0.0, ge=0, lt=1, description="after the feed-forward's second layer")
    position_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="of rotated queries and keys; in pretraining also of tokens"
    )
    drop_path: float = Field(default=0.0, ge=0, lt=1, description="stochastic depth of the last block")


TINY_SHALLOW = RoMAEEncoderConfig(depth=2)
TINY = RoMAEEncoderConfig()
SMALL = RoMAEEncoderConfig(d_model=432, n_heads=6)
BASE = RoMAEEncoderConfig(d_model=720, n_heads=12)


class Embedded(NamedTuple):
    """Tokens ready for an encoder: packed [M, D], where they sit, and the positions [B, S, A] of the places."""

    x_MD: Tensor
    packing: Packing
    position_BSA: Tensor


class Embedding(nn.Module):
    """Linear K -> D with bias, and a learned [CLS] token at position 0 of every axis where ``cls``."""

    def __init__(self, n_values: int, width: int, cls: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(n_values, width)
        self.cls_1D = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, width), std=0.02)) if cls else None

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor) -> Embedded:
        """Embed the tokens of ``mask_BL``; values and positions elsewhere are never looked at."""
        x_MD = self.projection(pack_values(values_BLK, mask_BL))
        packing = Packing.of(mask_BL, self.cls_1D is not None)
        if self.cls_1D is not None:
            x_MD = torch.cat([self.cls_1D.expand(mask_BL.shape[0], -1).to(x_MD.dtype), x_MD])
            position_BLA = F.pad(position_BLA, (0, 0, 1, 0))
        return Embedded(self.dropout(x_MD), packing, position_BLA)


class RoMAEBlock(nn.Module):
    """x += Attention(RMSNorm x); x += W2 SiLU(W1 RMSNorm x)."""

    def __init__(self, config: RoMAEEncoderConfig, drop_path: float) -> None:
        super().__init__()
        width, hidden = config.d_model, config.d_ff or 4 * config.d_model
        self.drop_path = drop_path
        self.norm1, self.norm2 = nn.RMSNorm(width, NORM_EPS), nn.RMSNorm(width, NORM_EPS)
        self.attention = SelfAttention(
            width, config.n_heads, config.attention_dropout, bias=False, config=config.attention
        )
        self.output_dropout = nn.Dropout(config.output_dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden, bias=False),
            nn.SiLU(),
            nn.Linear(hidden, width, bias=False),
            nn.Dropout(config.hidden_dropout),
        )

    def forward(self, x_MD: Tensor, packing: Packing, position: Position) -> Tensor:
        """Packed tokens in and out, [M, D]."""
        mixed_MD = self.output_dropout(self.attention(self.norm1(x_MD), packing, position))
        x_MD = x_MD + self._drop(mixed_MD, packing)
        return x_MD + self._drop(self.feed_forward(self.norm2(x_MD)), packing)

    def _drop(self, branch_MD: Tensor, packing: Packing) -> Tensor:
        """Stochastic depth (Huang et al. 2016): whole rows lose the branch, the others are scaled up."""
        if not self.training or self.drop_path == 0.0:
            return branch_MD
        batch, places = packing.mask_BS.shape
        kept_B = branch_MD.new_empty(batch).bernoulli_(1.0 - self.drop_path) / (1.0 - self.drop_path)
        return branch_MD * kept_B[packing.place_M // places, None]


class RoMAEEncoder(nn.Module):
    """Blocks under one rotation of the ``n_axes`` positions; nothing else, so that its parameters are the blocks'.

    Raises
    ------
    ValueError
        When the width does not divide into heads, or a head into axes of even length.
    """

    def __init__(self, config: RoMAEEncoderConfig, n_axes: int) -> None:
        super().__init__()
        self.position_dropout = config.position_dropout
        self.rotary = AxialRotary(config.d_model // config.n_heads, n_axes, config.p, config.base, config.keep)
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(RoMAEBlock(config, config.drop_path * i / last) for i in range(config.depth))

    def forward(self, x_MD: Tensor, packing: Packing, position_BSA: Tensor) -> Tensor:
        """Encode packed tokens [M, D] at the positions [B, S, A] of their places."""
        position = self._position(self.rotary.position(position_BSA))
        for block in self.blocks:
            x_MD = block(x_MD, packing, position)
        return x_MD

    def _position(self, rotation: Rotation) -> Position:
        if not self.training or self.position_dropout == 0.0:
            return rotation

        def rotate_and_drop(query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
            query_BHSE, key_BHSE = rotation(query_BHSE, key_BHSE)
            return F.dropout(query_BHSE, self.position_dropout), F.dropout(key_BHSE, self.position_dropout)

        return rotate_and_drop


def make_head(width: int, n_outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Dropout, RMSNorm, linear with bias: for a pooled row and for single tokens alike."""
    return nn.Sequential(nn.Dropout(dropout), nn.RMSNorm(width, NORM_EPS), nn.Linear(width, n_outputs))


def pool(x_MD: Tensor, packing: Packing, pooling: Pooling) -> Tensor:
    """One vector per row [B, D]: its [CLS] token, or the mean of its real tokens without it."""
    if pooling == "cls":
        return x_MD[: packing.mask_BS.shape[0]]
    first = int(packing.leading)
    weight_BL = packing.mask_BS[:, first:].to(x_MD.dtype)
    total_BD = (packing.unpack(x_MD)[:, first:] * weight_BL[..., None]).sum(1)
    return total_BD / weight_BL.sum(1, keepdim=True).clamp(min=1)


def init_classifier(module: nn.Module) -> None:
    """As released: linear weights of classifiers from N(0, 0.02) cut at +-2, biases 0; autoencoders keep PyTorch's."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
