"""ASTROMER: a transformer for light curves in one band, pretrained by masked reconstruction.

    window of the newest 200 observations -> magnitude-like value and time, each minus its mean over the window
    value -> linear 1 -> D, + time encoding -> blocks -> LSTM or mean-pool classifier, or reconstruction

Sources: Donoso-Oliva et al. 2023 (A&A 670, A54) and 2025; the released packages, v0 (on PyPI) and v2. Where they
disagree, among each other or with the text, the choice is a field of the config:

- ``version`` ``"note"`` is the published pseudo-code, post-norm with residual connections, LN(E + MHA(E)). The released
  code has no residual connection at all (``"v0"``, ``"v2"``), or a learned linear one (``leak``);
- no observation looks at a hidden one. The hidden value itself stays in the input in ``"v0"``; in ``"v2"`` it is
  overwritten by one trained number, and so it is in ``"note"``, where the residual would carry it to the output;
- masks: by default no observation looks at a hidden or padded one. The released code *adds* ``m_alpha`` to the logits
  of the places that ``mask_format`` blocks: v0 adds +1 (``m_alpha = 1``, ``mask_format = "QK"``), so that masked points
  are favoured by a factor of e, padding among them, and the answer depends on how far a row is padded. That reading
  exists for parity with released weights; v2's own default (-1e9 on keys) is the correct one;
- v0 also leaves the first padded place visible (its padding mask is off by one): not reproduced.

Notable: flux enters, and becomes a value inside the graph (:class:`Window`). With ``band`` set, observations
in other bands are invisible; a row without any in the band gets a constant finite output.

Run: ``nightjar-train train astromer-pretraining --data build/sim.parquet``, then ``train astromer --pretrained``.

Legend: B batch, L row length, W = min(L, size) length of the windows, S places, M packed tokens, D width, H heads,
E embedding (head width within attention), Y layers, C classes, F metadata columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from nightjar_alerts.models.networks.network import Masking, Output, Reconstruction
from nightjar_alerts.models.networks.parts.attention import AttentionConfig, Position, SelfAttention
from nightjar_alerts.models.networks.parts.packing import Packing, pack_values
from nightjar_alerts.models.networks.parts.positional import TimeEncodingFields, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import Lstm, TokenTimes
from nightjar_alerts.models.networks.parts.transformer import DenseFeedForward
from nightjar_alerts.models.photometry import BANDS

Value = Literal["magnitude", "asinh", "linear"]


def value_of(flux_BL: Tensor, kind: Value, scale: float) -> Tensor:
    """Return a measure of brightness from the flux f in the network's unit; ``scale`` is b or s, in that unit.

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
    """Places, in their rows, of the observations that a single-band network sees: the newest, in order, without gaps.

    Rows contain other bands and older points as well; the window is cut inside
    the network, hence inside an exported graph too. Row order is kept, so rows sorted by time give a series sorted by
    time, which a recurrent layer needs.

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
        value_BW = x_BW * self.mask_BW.to(x_BW.dtype)
        return value_BW.new_zeros(value_BW.shape[0], length).scatter(1, self.place_BW, value_BW)

    def mean(self, x_BW: Tensor) -> Tensor:
        """Mean [B, 1] over the observations."""
        return torch.where(self.mask_BW, x_BW, 0.0).sum(1, keepdim=True) / self.mask_BW.sum(1, keepdim=True)

    def centre(self, x_BW: Tensor, mean_B1: Tensor) -> Tensor:
        """Subtract a mean from the observations; 0 elsewhere."""
        return torch.where(self.mask_BW, x_BW - mean_B1, 0.0)


LAYER_NORM_EPS = 1e-6

Skip = Literal["identity", "linear", "none"]
MaskFormat = Literal["K", "Q", "QK"]


class AstromerBlock(nn.Module):
    """Transformer block in the three forms that exist, post-norm, with a tanh feed-forward part and norms of eps 1e-6::

        x = LN(skip(x) + Dropout(Attention(x)));  x = LN(skip(x) + Dropout(FeedForward(x)))

    They differ in ``skip``: the identity (the residual connection of Vaswani et al. 2017), a learned linear map (the
    released code with ``use_leak``), or nothing at all (the released code without), which forgets the block's input
    but for what attention returns.
    """

    def __init__(
        self, width: int, n_heads: int, hidden: int, dropout: float, skip: Skip, attention: AttentionConfig
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width, n_heads, config=attention)
        self.feed_forward = DenseFeedForward(width, hidden, nn.Tanh())
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=LAYER_NORM_EPS) for _ in range(2))
        self.skip1, self.skip2 = _skip(width, skip), _skip(width, skip)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_MD: Tensor, packing: Packing, position: Position | None = None) -> Tensor:
        """Packed tokens in and out, [M, D]."""
        mixed_MD = self.dropout(self.attention(x_MD, packing, position))
        x_MD = self.norm1(mixed_MD if self.skip1 is None else self.skip1(x_MD) + mixed_MD)
        mapped_MD = self.dropout(self.feed_forward(x_MD)[0])
        out_MD: Tensor = self.norm2(mapped_MD if self.skip2 is None else self.skip2(x_MD) + mapped_MD)
        return out_MD


def _skip(width: int, kind: Skip) -> nn.Module | None:
    if kind == "none":
        return None
    return nn.Identity() if kind == "identity" else nn.Linear(width, width)


@dataclass(frozen=True, slots=True, eq=False)
class SoftMask:
    """The released mask: ``alpha`` is *added* to the attention logits of blocked places, none is excluded.

    ``format`` names what has to be blocked for that: the key (K), the query (Q) or either (QK). A term that is the same
    for all keys of a query drops out of the softmax, so Q masks nothing, and QK adds alpha to the blocked keys of the
    queries that are not blocked themselves. That is a product of one number per query and one per key, hence one more
    column in each.
    """

    blocked_BS: Tensor
    alpha: float
    format: MaskFormat
    head_width: int
    position: Position | None

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Put ``position`` in, then widen by the column whose product, scaled by 1 / sqrt(head width), is the mask."""
        if self.position is not None:
            query_BHSE, key_BHSE = self.position(query_BHSE, key_BHSE)
        if self.format == "Q":
            return query_BHSE, key_BHSE
        blocked_B1S1 = self.blocked_BS.to(query_BHSE.dtype)[:, None, :, None]
        asks_B1S1 = torch.ones_like(blocked_B1S1) if self.format == "K" else 1.0 - blocked_B1S1
        return _widen(query_BHSE, asks_B1S1 * self.head_width**0.5), _widen(key_BHSE, blocked_B1S1 * self.alpha)


def _widen(x_BHSE: Tensor, column_B1S1: Tensor) -> Tensor:
    return torch.cat([x_BHSE, column_B1S1.expand(-1, x_BHSE.shape[1], -1, -1)], dim=-1)


class LayerMix(nn.Module):
    """Mean over layers of softmax(gamma)-weighted layer outputs (released v2).

    The mean divides once more by the number of layers, which weights that add up to 1 do not ask for; kept as released,
    for the heads learn their own scale.
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.gamma_Y = nn.Parameter(torch.zeros(n_layers))

    def forward(self, x_YMD: Tensor) -> Tensor:
        """Mixed tokens [M, D]."""
        return (x_YMD * self.gamma_Y.softmax(0)[:, None, None]).mean(0)


class LstmHead(nn.Module):
    """Classifier: LN, LSTM, LN, LSTM, LN, linear, read at the last *real* observation: padding does not count."""

    def __init__(self, width: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(size, eps=LAYER_NORM_EPS) for size in (width, hidden, hidden))
        self.layers = nn.ModuleList(Lstm(size, hidden) for size in (width, hidden))
        self.out = nn.Linear(hidden, n_classes)

    def forward(self, x_BWD: Tensor, mask_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and embedding [B, E] of windows whose observations, one or more, come first."""
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x_BWD = layer(norm(x_BWD))
        last_B11 = (mask_BW.sum(1) - 1)[:, None, None]
        embedding_BE = self.norms[-1](x_BWD.gather(1, last_B11.expand(-1, -1, x_BWD.shape[2]))[:, 0])
        return self.out(embedding_BE), embedding_BE


class PoolHead(nn.Module):
    """Classifier: the mean over real observations through a ReLU perceptron, LN, linear."""

    def __init__(self, width: int, hidden: Sequence[int], n_classes: int) -> None:
        super().__init__()
        sizes = zip((width, *hidden), hidden, strict=False)
        self.layers = nn.Sequential(*(part for size in sizes for part in (nn.Linear(*size), nn.ReLU())))
        self.norm = nn.LayerNorm(hidden[-1], eps=LAYER_NORM_EPS)
        self.out = nn.Linear(hidden[-1], n_classes)

    def forward(self, x_BWD: Tensor, mask_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and embedding [B, E] of windows with an observation or more."""
        total_BD = torch.where(mask_BW[..., None], x_BWD, 0.0).sum(1)
        embedding_BE = self.norm(self.layers(total_BD / mask_BW.sum(1, keepdim=True)))
        return self.out(embedding_BE), embedding_BE


def reconstruction_head(width: int) -> nn.Sequential:
    """LN and a linear map to the one value of an observation."""
    return nn.Sequential(nn.LayerNorm(width, eps=LAYER_NORM_EPS), nn.Linear(width, 1))


INPUT_NAMES = ("flux", "time", "band", "mask")
HARD_MASK = -1e9


class AstromerConfig(TimeEncodingFields):
    """Sizes and options; the sizes are those of the weights released for MACHO."""

    architecture: Literal["astromer"] = "astromer"
    version: Literal["note", "v0", "v2"] = Field(default="note", description="residual connections, mask token")
    leak: bool = Field(default=False, description="v0, v2: a linear map where a residual connection would be")
    n_classes: int = Field(default=20, ge=2)
    band: int | None = Field(default=None, ge=0, lt=len(BANDS), description="the only band seen; None: all, as one")
    window: int = Field(default=200, ge=1, description="newest observations kept")
    value: Value = Field(default="magnitude", description="what the flux becomes before centring")
    flux_scale: float = Field(default=1.0, gt=0, description="softening of the value, in the network's flux unit")
    d_model: int = 256
    n_heads: int = 4
    n_blocks: int = Field(default=2, ge=1)
    d_ff: int = 128
    dropout: float = Field(default=0.1, ge=0, lt=1)
    attention: AttentionConfig = AttentionConfig()
    pe_exponent: float = Field(default=1.0, gt=0, description="c of PE(t); 1 in the text, 2 in v0 and v2")
    mask_format: MaskFormat = Field(default="K", description="masked place of a pair: key, query, either")
    m_alpha: float = Field(default=HARD_MASK, description="added to masked logits; -1e9 on keys excludes them exactly")
    layer_mix: bool = Field(default=False, description="v2: heads see a learned mean over layers, not the last")
    head: Literal["lstm", "pool"] = "lstm"
    lstm_width: int = 256
    pool_widths: tuple[int, ...] = Field(default=(1024, 512, 256), min_length=1)
    freeze_encoder: bool = Field(default=False, description="train the classifier's head only")

    @model_validator(mode="after")
    def _leak_needs_a_place(self) -> Self:
        if self.leak and self.version == "note":
            raise ValueError("leak replaces the missing residual connection of v0 and v2; the note has one")
        return self

    @property
    def skip(self) -> Skip:
        """Residual path around attention and feed-forward."""
        if self.version == "note":
            return "identity"
        return "linear" if self.leak else "none"

    @property
    def excludes(self) -> bool:
        """True where masked places are excluded, rather than shifted by ``m_alpha``."""
        return self.mask_format == "K" and self.m_alpha <= HARD_MASK


class AstromerEncoder(nn.Module):
    """Windows of centred values and times to one vector per observation."""

    def __init__(self, config: AstromerConfig) -> None:
        super().__init__()
        self.config = config
        self.time = time_encoding(config, config.d_model, config.n_heads)
        self.embed = nn.Linear(1, self.time.content_width)
        self.dropout = nn.Dropout(config.dropout)
        sizes = (config.d_model, config.n_heads, config.d_ff, config.dropout)
        self.blocks = nn.ModuleList(
            AstromerBlock(*sizes, config.skip, config.attention) for _ in range(config.n_blocks)
        )
        self.mix = LayerMix(config.n_blocks) if config.layer_mix else None

    def forward(self, value_BW: Tensor, time_BW: Tensor, mask_BW: Tensor, hidden_BW: Tensor | None = None) -> Tensor:
        """Encode to [B, W, D]; places outside ``mask_BW`` hold anything finite."""
        keys_BW = mask_BW if hidden_BW is None else _visible(mask_BW, hidden_BW)
        packed_BW = mask_BW if self.config.excludes else torch.ones_like(mask_BW)
        packing = Packing.of(keys_BW if self.config.excludes else packed_BW, leading=False, packed_BL=packed_BW)
        times = TokenTimes(time_BW, torch.zeros_like(packing.token_BS), packed_BW)
        x_MD = self.embed(pack_values(value_BW, packed_BW)[:, None])
        x_MD = self.dropout(self.time.embed(x_MD, times))
        x_MD = self._blocks(x_MD, packing, self._position(times, keys_BW))
        return packing.unpack(self.time.finish(x_MD, times))

    def _position(self, times: TokenTimes, keys_BW: Tensor) -> Position | None:
        config, position = self.config, self.time.position(times)
        if config.excludes:
            return position
        return SoftMask(~keys_BW, config.m_alpha, config.mask_format, config.d_model // config.n_heads, position)

    def _blocks(self, x_MD: Tensor, packing: Packing, position: Position | None) -> Tensor:
        layers = []
        for block in self.blocks:
            x_MD = block(x_MD, packing, position)
            layers.append(x_MD)
        return x_MD if self.mix is None else self.mix(torch.stack(layers))


class Astromer(nn.Module):
    """Classifier; see the module docstring."""

    input_names = INPUT_NAMES

    def __init__(self, config: AstromerConfig) -> None:
        super().__init__()
        self.config, self.n_classes = config, config.n_classes
        self.encoder = AstromerEncoder(config)
        self.encoder.requires_grad_(not config.freeze_encoder)
        self.head: LstmHead | PoolHead
        if config.head == "lstm":
            self.head = LstmHead(config.d_model, config.lstm_width, config.n_classes)
            self.embedding_dim = config.lstm_width
        else:
            self.head = PoolHead(config.d_model, config.pool_widths, config.n_classes)
            self.embedding_dim = config.pool_widths[-1]

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Nothing to learn: values are centred per window."""

    def forward(self, flux_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor) -> Output:
        """Classify padded light curves; arguments as in ``models.networks.network``."""
        window = _window(band_BL, mask_BL, self.config)
        value_BW = window.take(value_of(flux_BL, self.config.value, self.config.flux_scale))
        value_BW = window.centre(value_BW, window.mean(value_BW))
        x_BWD = self.encoder(value_BW, _centred(window, time_BL), window.mask_BW)
        return Output(*self.head(x_BWD, window.mask_BW))


class AstromerPretraining(nn.Module):
    """Reconstruct the centred values of probed observations; what it shares with :class:`Astromer` has the same name.

    Means are taken over the whole window before anything is hidden, as released. Observations outside the window, or in
    another band, count as reconstructed without error: draw the masking among those the network sees.
    """

    input_names = INPUT_NAMES

    def __init__(self, config: AstromerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = AstromerEncoder(config)
        self.head = reconstruction_head(config.d_model)
        self.mask_token = nn.Parameter(torch.zeros(())) if config.version != "v0" else None

    def forward(
        self, flux_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor, masking: Masking
    ) -> Reconstruction:
        """Predicted and true values [B, L, 1]; arguments as in ``models.networks.network``."""
        window = _window(band_BL, mask_BL, self.config)
        value_BL = value_of(flux_BL, self.config.value, self.config.flux_scale)
        true_BW, input_BW = window.take(value_BL), window.take(value_BL.gather(1, masking.source_BL))
        mean_B1 = window.mean(true_BW)
        hidden_BW = window.take(masking.hidden_BL)
        input_BW = self._hide(window.centre(input_BW, mean_B1), hidden_BW | ~window.mask_BW)
        x_BWD = self.encoder(input_BW, _centred(window, time_BL), window.mask_BW, hidden_BW)
        pair = (self.head(x_BWD)[..., 0], window.centre(true_BW, mean_B1))
        prediction_BL, target_BL = (window.put(x_BW, flux_BL.shape[1]) for x_BW in pair)
        return Reconstruction(prediction_BL[..., None], target_BL[..., None])

    def _hide(self, value_BW: Tensor, hidden_BW: Tensor) -> Tensor:
        return value_BW if self.mask_token is None else torch.where(hidden_BW, self.mask_token, value_BW)


def _window(band_BL: Tensor, mask_BL: Tensor, config: AstromerConfig) -> Window:
    visible_BL = mask_BL if config.band is None else mask_BL & (band_BL == config.band)
    return Window.newest(visible_BL, config.window)


def _centred(window: Window, x_BL: Tensor) -> Tensor:
    x_BW = window.take(x_BL)
    return window.centre(x_BW, window.mean(x_BW))


def _visible(mask_BW: Tensor, hidden_BW: Tensor) -> Tensor:
    """Keys: observations that are not hidden; where nothing is left the hidden ones, whose values are not shown."""
    visible_BW = mask_BW & ~hidden_BW
    return visible_BW | (mask_BW & ~visible_BW.any(1, keepdim=True))
