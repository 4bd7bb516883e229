"""ASTROMER: a transformer for light curves in one band, pretrained by masked reconstruction.

    window of the newest 200 observations -> magnitude-like value and time, each minus its mean over the window
    value -> linear 1 -> D, + time encoding -> blocks -> LSTM or mean-pool classifier, or reconstruction

Sources: Donoso-Oliva et al. 2023 (A&A 670, A54) and 2025; the released packages, v0 (on PyPI) and v2. Where they
disagree with each other or with the text, a config field selects the variant:

- ``version`` ``"note"`` is the published pseudo-code, post-norm with residual connections, LN(E + MHA(E)). The released
  code has no residual connection (``"v0"``, ``"v2"``), or a learned linear one (``leak``);
- hidden observations are excluded from attention. The hidden value itself stays in the input in ``"v0"``; in ``"v2"``
  and ``"note"`` it is replaced by one learned number, because the residual of ``"note"`` would carry it to the output;
- masks: by default hidden and padded observations are excluded from attention. The released code *adds* ``m_alpha`` to
  the logits that ``mask_format`` selects: v0 adds +1 (``m_alpha = 1``, ``mask_format = "QK"``), so that masked points,
  including padding, are favoured by a factor of e, and the output depends on the amount of padding. This variant exists
  for parity with released weights; v2's default (-1e9 on keys) is correct;
- v0 also leaves the first padded position visible (its padding mask is off by one), which is not reproduced.

Notable: the input is flux, converted inside the graph (:func:`value_of`). With ``band`` set, observations in other
bands are ignored; a row without any in the band gets a constant finite output.

Run: ``nightjar-train train astromer-pretraining --data build/sim.parquet``, then ``train astromer --pretrained``.

Legend: B batch, L row length, W = min(L, size) length of the windows, S positions, M packed tokens, D width, H heads,
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

from nightjar_alerts.models.networks.network import Masking, NetworkOutput, Reconstruction
from nightjar_alerts.models.networks.parts.attention import AttentionConfig, PositionEncoding, SelfAttention
from nightjar_alerts.models.networks.parts.packing import Packing, pack_values
from nightjar_alerts.models.networks.parts.positional import TimeEncodingFields, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import Lstm, TokenTimes
from nightjar_alerts.models.networks.parts.transformer import DenseFeedForward
from nightjar_alerts.models.photometry import BANDS

Value = Literal["magnitude", "asinh", "linear"]


def value_of(flux_BL: Tensor, kind: Value, scale: float) -> Tensor:
    """Convert the flux f, in the network's unit, to a measure of brightness; ``scale`` is b or s, in that unit.

    - ``magnitude``: -2.5 / ln 10 * asinh(f / 2b), the asinh magnitude of Lupton, Gunn & Szalay (1999) without its zero
      point, which centring removes. It is defined for negative difference flux: linear around zero, a magnitude for f
      far above b;
    - ``asinh``: asinh(f / s);
    - ``linear``: f / s, for input that is already a magnitude.
    """
    if kind == "magnitude":
        return torch.asinh(flux_BL / (2.0 * scale)) * (-2.5 / math.log(10.0))
    return torch.asinh(flux_BL / scale) if kind == "asinh" else flux_BL / scale


class Window(NamedTuple):
    """Indices of the observations that a single-band network sees: the newest, in order, without gaps.

    Rows contain other bands and older points as well. The window is cut inside the network, and so in the exported
    graph. Row order is kept, so rows sorted by time give a series sorted by time, which a recurrent layer needs.

    Attributes
    ----------
    place_BW : int64, distinct column indices of the row; those of observations come first.
    mask_BW : True for an observation. A row without any has one entry, which centring sets to zero, so that its value
        does not matter.
    """

    place_BW: Tensor
    mask_BW: Tensor

    @classmethod
    def newest(cls, visible_BL: Tensor, size: int) -> "Window":
        """Return the window of the last ``size`` columns of each row that are True in ``visible_BL``."""
        number_BL = visible_BL.cumsum(1)
        visible_BL = visible_BL & (number_BL > number_BL[:, -1:] - size)
        number_BL = visible_BL.cumsum(1)
        count_B1 = number_BL[:, -1:]
        target_BL = torch.where(visible_BL, number_BL - 1, count_B1 + (~visible_BL).cumsum(1) - 1)
        place_BL = torch.arange(visible_BL.shape[1], device=visible_BL.device).expand_as(target_BL)
        place_BW = torch.zeros_like(target_BL).scatter(1, target_BL, place_BL)[:, :size]
        return cls(place_BW, place_BL[:, :size] < count_B1.clamp(min=1))

    def take(self, x_BL: Tensor) -> Tensor:
        """Gather values [B, W] of the window from rows [B, L]."""
        return x_BL.gather(1, self.place_BW)

    def put(self, x_BW: Tensor, length: int) -> Tensor:
        """Scatter values of the window to rows [B, L], 0 outside the window."""
        value_BW = x_BW * self.mask_BW.to(x_BW.dtype)
        return value_BW.new_zeros(value_BW.shape[0], length).scatter(1, self.place_BW, value_BW)

    def mean(self, x_BW: Tensor) -> Tensor:
        """Return the mean [B, 1] over the observations."""
        return torch.where(self.mask_BW, x_BW, 0.0).sum(1, keepdim=True) / self.mask_BW.sum(1, keepdim=True)

    def centre(self, x_BW: Tensor, mean_B1: Tensor) -> Tensor:
        """Subtract a mean from the observations; 0 elsewhere."""
        return torch.where(self.mask_BW, x_BW - mean_B1, 0.0)


LAYER_NORM_EPS = 1e-6

Skip = Literal["identity", "linear", "none"]
MaskFormat = Literal["K", "Q", "QK"]


class AstromerBlock(nn.Module):
    """Post-norm transformer block with a tanh feed-forward part and norms of eps 1e-6::

        x = LN(skip(x) + Dropout(Attention(x)));  x = LN(skip(x) + Dropout(FeedForward(x)))

    ``skip`` is the identity (the residual connection of Vaswani et al. 2017), a learned linear map (the released code
    with ``use_leak``) or absent (the released code without it).
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

    def forward(self, x_MD: Tensor, packing: Packing, position: PositionEncoding | None = None) -> Tensor:
        """Transform packed tokens [M, D]."""
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
    """Mask of the released code: ``alpha`` is *added* to the attention logits of blocked tokens; none is excluded.

    ``format`` says which token must be blocked: the key (K), the query (Q) or either (QK). A term that is equal for all
    keys of a query cancels in the softmax, so Q masks nothing, and QK adds alpha to the blocked keys of queries that
    are not blocked. This is a product of one number per query and one per key, so it is added as one more column of
    each.
    """

    blocked_BS: Tensor
    alpha: float
    format: MaskFormat
    head_width: int
    position: PositionEncoding | None

    def __call__(self, query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Apply ``position``, then append columns whose product, scaled by 1 / sqrt(head width), is the mask."""
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

    Dividing by the number of layers is not needed, because the weights sum to 1; it is kept as released, and the heads
    learn their own scale.
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.gamma_Y = nn.Parameter(torch.zeros(n_layers))

    def forward(self, x_YMD: Tensor) -> Tensor:
        """Return the weighted mean of tokens [Y, M, D] over layers, [M, D]."""
        return (x_YMD * self.gamma_Y.softmax(0)[:, None, None]).mean(0)


class LstmHead(nn.Module):
    """Classifier head: LN, LSTM, LN, LSTM, LN, linear; uses the state at the last real observation."""

    def __init__(self, width: int, hidden: int, n_classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(size, eps=LAYER_NORM_EPS) for size in (width, hidden, hidden))
        self.layers = nn.ModuleList(Lstm(size, hidden) for size in (width, hidden))
        self.out = nn.Linear(hidden, n_classes)

    def forward(self, x_BWD: Tensor, mask_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, C] and embedding [B, E] of windows whose observations, at least one, come first."""
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x_BWD = layer(norm(x_BWD))
        last_B11 = (mask_BW.sum(1) - 1)[:, None, None]
        embedding_BE = self.norms[-1](x_BWD.gather(1, last_B11.expand(-1, -1, x_BWD.shape[2]))[:, 0])
        return self.out(embedding_BE), embedding_BE


class PoolHead(nn.Module):
    """Classifier head: mean over real observations, ReLU perceptron, LN, linear."""

    def __init__(self, width: int, hidden: Sequence[int], n_classes: int) -> None:
        super().__init__()
        sizes = zip((width, *hidden), hidden, strict=False)
        self.layers = nn.Sequential(*(part for size in sizes for part in (nn.Linear(*size), nn.ReLU())))
        self.norm = nn.LayerNorm(hidden[-1], eps=LAYER_NORM_EPS)
        self.out = nn.Linear(hidden[-1], n_classes)

    def forward(self, x_BWD: Tensor, mask_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, C] and embedding [B, E] of windows with at least one observation."""
        total_BD = torch.where(mask_BW[..., None], x_BWD, 0.0).sum(1)
        embedding_BE = self.norm(self.layers(total_BD / mask_BW.sum(1, keepdim=True)))
        return self.out(embedding_BE), embedding_BE


def reconstruction_head(width: int) -> nn.Sequential:
    """Return LN and a linear map to the value of an observation."""
    return nn.Sequential(nn.LayerNorm(width, eps=LAYER_NORM_EPS), nn.Linear(width, 1))


INPUT_NAMES = ("flux", "time", "band", "mask")
HARD_MASK = -1e9


class AstromerConfig(TimeEncodingFields):
    """Sizes and options; the sizes are those of the weights released for MACHO."""

    architecture: Literal["astromer"] = "astromer"
    version: Literal["note", "v0", "v2"] = Field(default="note", description="residual connections, mask token")
    leak: bool = Field(default=False, description="v0, v2: a linear map in place of the residual connection")
    n_classes: int = Field(default=20, ge=2)
    band: int | None = Field(default=None, ge=0, lt=len(BANDS), description="the only band seen; None: all, as one")
    window: int = Field(default=200, ge=1, description="newest observations kept")
    value: Value = Field(default="magnitude", description="conversion of the flux before centring")
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
        """True if masked tokens are excluded rather than shifted by ``m_alpha``."""
        return self.mask_format == "K" and self.m_alpha <= HARD_MASK


class AstromerEncoder(nn.Module):
    """Encoder of windows of centred values and times to one vector per observation."""

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
        """Encode to [B, W, D]; outside ``mask_BW`` the output is arbitrary but finite."""
        keys_BW = mask_BW if hidden_BW is None else _visible(mask_BW, hidden_BW)
        packed_BW = mask_BW if self.config.excludes else torch.ones_like(mask_BW)
        packing = Packing.of(keys_BW if self.config.excludes else packed_BW, leading=False, packed_BL=packed_BW)
        times = TokenTimes(time_BW, torch.zeros_like(packing.token_BS), packed_BW)
        x_MD = self.embed(pack_values(value_BW, packed_BW)[:, None])
        x_MD = self.dropout(self.time.embed(x_MD, times))
        x_MD = self._blocks(x_MD, packing, self._position(times, keys_BW))
        return packing.unpack(self.time.finish(x_MD, times))

    def _position(self, times: TokenTimes, keys_BW: Tensor) -> PositionEncoding | None:
        config, position = self.config, self.time.position(times)
        if config.excludes:
            return position
        return SoftMask(~keys_BW, config.m_alpha, config.mask_format, config.d_model // config.n_heads, position)

    def _blocks(self, x_MD: Tensor, packing: Packing, position: PositionEncoding | None) -> Tensor:
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
        """Do nothing: values are centred per window."""

    def forward(self, flux_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor) -> NetworkOutput:
        """Classify padded light curves; arguments as in ``models.networks.network``."""
        window = _window(band_BL, mask_BL, self.config)
        value_BW = window.take(value_of(flux_BL, self.config.value, self.config.flux_scale))
        value_BW = window.centre(value_BW, window.mean(value_BW))
        x_BWD = self.encoder(value_BW, _centred(window, time_BL), window.mask_BW)
        return NetworkOutput(*self.head(x_BWD, window.mask_BW))


class AstromerPretraining(nn.Module):
    """Pretraining network that reconstructs the centred values of probed observations.

    Parts shared with :class:`Astromer` have the same names. Means are over the whole window, including hidden
    observations, as released. Observations outside the window or in another band count as reconstructed without error,
    so draw the masking from the observations that the network sees.
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
        """Return predicted and true values [B, L, 1]; arguments as in ``models.networks.network``."""
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
    """Return the key mask: observations that are not hidden, or all observations of a row where all are hidden."""
    visible_BW = mask_BW & ~hidden_BW
    return visible_BW | (mask_BW & ~visible_BW.any(1, keepdim=True))
