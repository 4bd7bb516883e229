"""Informer (Zhou et al. 2021) as published: long forecasts of regular series, such as hourly loads or temperatures.

    past      values -> Conv1d + positions + calendar -> encoder with distilling -> memory
    future    newest values as start tokens, zeros to fill -> the same embedding -> decoder -> Linear -> all at once

Nightjar's light-curve networks (``models.informer``, ``models.informer_forecast``) stand on the same encoder and
decoder; this one is here to compare with the publication. The defaults are the released code's: post-norm, circular
convolutions with BatchNorm, causal ProbSparse attention with shuffled heads in the decoder (``models.informer_decoder``
says what ``mix`` is). With ``norm_order = "pre"``, ``distilling = "plain"``, ``mix = False``, ``embedding_norm = True``
and ``attention.sparsity = "paper"`` it is the tidier network that write-ups of the paper describe. The loss is the mean
squared error of standardised values.

Legend: B batch, L past steps, T start tokens, P steps to forecast, S = T + P, C values per step, D width.
"""

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from models.attention import AttentionConfig
from models.calendar import CalendarEmbedding, CalendarKind, interleaved_sinusoids
from models.informer_decoder import CausalAttention, Decoder, DecoderBlock
from models.informer_encoder import DistilledEncoder, DistillingKind
from models.moe import ACTIVATIONS, Activation
from models.packing import Packing
from models.transformer import Block, DenseFeedForward, NormOrder


class InformerSeriesConfig(BaseModel):
    """Sizes and readings; the defaults are the released code's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Literal["informer-series"] = "informer-series"
    n_values: int = Field(default=7, ge=1, description="per step, in and out")
    start_tokens: int = Field(default=48, ge=1, description="newest steps that the decoder is shown again")
    d_model: int = 512
    n_heads: int = 8
    n_blocks: int = Field(default=2, ge=1)
    n_decoder_blocks: int = Field(default=1, ge=1)
    d_ff: int = 2048
    dropout: float = 0.05
    activation: Activation = "gelu"
    attention: AttentionConfig = AttentionConfig(kind="probsparse")
    norm_order: NormOrder = "post"
    distilling: DistillingKind | None = "released"
    mix: bool = True
    calendar: CalendarKind = "fixed"
    embedding_norm: bool = False


class SeriesEmbedding(nn.Module):
    """Values by a circular convolution over three steps, plus the step's place in the row and its date."""

    def __init__(self, config: InformerSeriesConfig) -> None:
        super().__init__()
        self.values = nn.Conv1d(config.n_values, config.d_model, 3, padding=1, padding_mode="circular")
        self.calendar = CalendarEmbedding(config.d_model, config.calendar)
        self.norm = nn.LayerNorm(config.d_model) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        nn.init.kaiming_normal_(self.values.weight, nonlinearity="leaky_relu")

    def forward(self, values_BSC: Tensor, date_BS4: Tensor) -> Tensor:
        """Tokens [B, S, D]."""
        x_BSD = self.values(values_BSC.transpose(1, 2)).transpose(1, 2)
        place_SD = interleaved_sinusoids(torch.arange(x_BSD.shape[1], device=x_BSD.device), x_BSD.shape[2])
        embedded: Tensor = self.dropout(self.norm(x_BSD + place_SD + self.calendar(date_BS4)))
        return embedded


class InformerSeries(nn.Module):
    """See the module docstring; sizes in :class:`InformerSeriesConfig`."""

    def __init__(self, config: InformerSeriesConfig) -> None:
        super().__init__()
        self.config = config
        self.embed, self.decoder_embed = SeriesEmbedding(config), SeriesEmbedding(config)
        blocks = [_encoder_block(config) for _ in range(config.n_blocks)]
        self.encoder = DistilledEncoder(config.d_model, blocks, config.distilling)
        self.decoder = Decoder(config.d_model, [_decoder_block(config) for _ in range(config.n_decoder_blocks)])
        self.head = nn.Linear(config.d_model, config.n_values)

    def forward(self, values_BLC: Tensor, date_BL4: Tensor, future_date_BP4: Tensor) -> Tensor:
        """Forecast [B, P, C] of standardised values; dates as in ``models.calendar``, L at least ``start_tokens``."""
        steps = Packing.of(torch.ones_like(values_BLC[..., 0], dtype=torch.bool), leading=False)
        memory_MD, kept = self.encoder(steps.pack(self.embed(values_BLC, date_BL4)), steps)
        x_BSD = self.decoder_embed(*self._to_decode(values_BLC, date_BL4, future_date_BP4))
        everything_BS = torch.ones_like(x_BSD[..., 0], dtype=torch.bool)
        x_BSD = self.decoder(x_BSD, everything_BS, kept.unpack(memory_MD), kept.mask_BS)
        forecast_BPC: Tensor = self.head(x_BSD[:, -future_date_BP4.shape[1] :])
        return forecast_BPC

    def _to_decode(self, values_BLC: Tensor, date_BL4: Tensor, future_date_BP4: Tensor) -> tuple[Tensor, Tensor]:
        """Values and dates of the start tokens and of the steps to fill."""
        newest = slice(-self.config.start_tokens, None)
        empty_BPC = values_BLC.new_zeros(len(values_BLC), future_date_BP4.shape[1], values_BLC.shape[2])
        return torch.cat([values_BLC[:, newest], empty_BPC], 1), torch.cat([date_BL4[:, newest], future_date_BP4], 1)


def _feed_forward(config: InformerSeriesConfig) -> DenseFeedForward:
    return DenseFeedForward(config.d_model, config.d_ff, ACTIVATIONS[config.activation])


def _encoder_block(config: InformerSeriesConfig) -> Block:
    sizes = (config.d_model, config.n_heads)
    return Block(*sizes, _feed_forward(config), config.norm_order, config.dropout, attention=config.attention)


def _decoder_block(config: InformerSeriesConfig) -> DecoderBlock:
    sizes = (config.d_model, config.n_heads)
    attention = CausalAttention(*sizes, config.dropout, config.attention, mix=config.mix)
    return DecoderBlock(attention, *sizes, _feed_forward(config), config.norm_order, config.dropout)
