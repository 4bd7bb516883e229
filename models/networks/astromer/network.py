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

Notable: flux enters, and becomes a value inside the graph (``astromer.window``). With ``band`` set, observations
in other bands are invisible; a row without any in the band gets the same finite answer whatever is around it.

Run: ``python -m training train astromer-pretraining --data build/sim.parquet``, then ``train astromer --pretrained``.

Legend: B batch, L row length, W window, M packed tokens, D width, C classes, E embedding, F metadata columns.
"""

from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.bands import BANDS
from models.networks.astromer.layers import (
    AstromerBlock,
    LayerMix,
    LstmHead,
    MaskFormat,
    PoolHead,
    Skip,
    SoftMask,
    Value,
    Window,
    reconstruction_head,
    value_of,
)
from models.networks.attention.attention import AttentionConfig, Position
from models.networks.network import Masking, Output, Reconstruction
from models.networks.parts.packing import Packing, pack_values
from models.networks.parts.positional import TimeEncodingFields, time_encoding
from models.networks.parts.positional_content import When

INPUT_NAMES = ("flux", "time", "band", "mask")
HARD_MASK = -1e9


class AstromerConfig(TimeEncodingFields):
    """Sizes and readings; the sizes are those of the weights released for MACHO."""

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
            raise ValueError("leak stands where v0 and v2 have no residual connection; the note has one")
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
        kept_BW = mask_BW if self.config.excludes else torch.ones_like(mask_BW)
        packing = Packing.of(keys_BW if self.config.excludes else kept_BW, leading=False, kept_BL=kept_BW)
        when = When(time_BW, torch.zeros_like(packing.token_BS), kept_BW)
        x_MD = self.embed(pack_values(value_BW, kept_BW)[:, None])
        x_MD = self.dropout(self.time.embed(x_MD, when))
        x_MD = self._blocks(x_MD, packing, self._position(when, keys_BW))
        return packing.unpack(self.time.finish(x_MD, when))

    def _position(self, when: When, keys_BW: Tensor) -> Position | None:
        config, position = self.config, self.time.position(when)
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
        true_BW, shown_BW = window.take(value_BL), window.take(value_BL.gather(1, masking.source_BL))
        mean_B1 = window.mean(true_BW)
        hidden_BW = window.take(masking.hidden_BL)
        shown_BW = self._hide(window.centre(shown_BW, mean_B1), hidden_BW | ~window.mask_BW)
        x_BWD = self.encoder(shown_BW, _centred(window, time_BL), window.mask_BW, hidden_BW)
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
    seen_BW = mask_BW & ~hidden_BW
    return seen_BW | (mask_BW & ~seen_BW.any(1, keepdim=True))
