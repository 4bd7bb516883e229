"""Informer (Zhou et al. 2021) for light curves of thousands of points: the encoder, and a classifier on it.

    (flux, flux_err) -> Linear, + band, + time -> [block, distil] x (n - 1), block -> LayerNorm -> masked mean -> head

Notable:

- ProbSparse attention costs L log L where full attention costs L^2, and every distilling halves L: this is the network
  for deep-field histories, trained on up to 1,024 points per band;
- two readings of the encoder. The paper's text and its later write-ups leave the norm open and have a bare convolution
  between blocks: pre-norm and ``distilling = "plain"``, the defaults. The released code is post-norm with circular
  padding and BatchNorm: ``norm_order = "post"`` and ``distilling = "released"``. Both end in a LayerNorm, as released;
- the released code has no padding mask anywhere. Here padding and batch mates cannot change an answer: they are masked
  in attention (also where ProbSparse samples, ranks and averages), in the distilling and in the mean;
- Informer's calendar (month, weekday, hour of a civil date) has no place in a light curve: time is days since the first
  observation, encoded by ``models.networks.parts.positional``, and the band has an embedding of its own;
- the mean over what is left after distilling makes the embedding. A [CLS] token would be convolved with its neighbours
  and be gone after the first pool.

Legend: B batch, L length, N real tokens, M packed tokens, D width, C classes, G bands.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from models.networks.attention.attention import AttentionConfig
from models.networks.informer.layers import DistilledEncoder, DistillingKind, QueryContext, halve
from models.networks.network import Output
from models.networks.parts.moe import ACTIVATIONS, Activation
from models.networks.parts.packing import Packing, pack_values
from models.networks.parts.positional import TimeEncodingFields, time_encoding
from models.networks.parts.positional_content import When
from models.networks.parts.transformer import Block, DenseFeedForward, NormOrder


class InformerConfig(TimeEncodingFields):
    """Sizes and readings of the encoder, and of the decoder that the forecaster adds to it."""

    architecture: Literal["informer"] = "informer"
    n_classes: int = Field(default=20, ge=2)
    n_bands: int = 6
    d_model: int = 128
    n_heads: int = 4
    n_blocks: int = Field(default=3, ge=1)
    d_ff: int = 256
    dropout: float = Field(default=0.05, description="as released")
    activation: Activation = Field(default="gelu", description="as released")
    attention: AttentionConfig = AttentionConfig(kind="probsparse", sparsity="paper", max_length=6 * 1024)
    norm_order: NormOrder = Field(default="pre", description="post: as released")
    distilling: DistillingKind | None = Field(default="plain", description="None: every block sees the full length")
    flux_scale: float = Field(
        default=1.0, gt=0, description="classifier: s of asinh(flux / s); forecaster: typical s, flux unit"
    )
    # The decoder of the forecaster.
    n_decoder_blocks: int = Field(default=2, ge=1)
    start_tokens: int = Field(default=16, ge=1, description="newest observations that the decoder is shown again")
    query_context: QueryContext = Field(
        default="independent", description="causal: a query also looks at the queries before it, as published"
    )
    anchor: bool = Field(default=True, description="mix newest flux and mean of the band, then shift")


class ObservationEmbedding(nn.Module):
    """What was observed, without when: a linear map of the values, plus a vector of the band."""

    def __init__(self, width: int, n_bands: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.values, self.band_GD = nn.Linear(2, width), nn.Parameter(0.02 * torch.randn(n_bands, width))

    def forward(self, flux: Tensor, flux_err: Tensor, band: Tensor) -> Tensor:
        """Embed observations [...] as [..., D]: asinh(flux / s) and log(flux_err / s) are what is mapped."""
        relative_err = (flux_err / self.scale).clamp(min=1e-9)  # of a denormal error nothing may be left
        values = torch.stack([torch.asinh(flux / self.scale), relative_err.log()], dim=-1)
        embedded: Tensor = self.values(values) + self.band_GD[band]
        return embedded


class InformerEncoder(nn.Module):
    """From light curves to a shorter sequence of tokens: embedding, blocks with a distilling between each two, norm."""

    def __init__(self, config: InformerConfig, scale: float) -> None:
        super().__init__()
        self.time = time_encoding(config, config.d_model, config.n_heads, config.n_bands)
        self.embed = ObservationEmbedding(self.time.content_width, config.n_bands, scale)
        self.dropout = nn.Dropout(config.dropout)
        blocks = [_block(config) for _ in range(config.n_blocks)]
        self.encoder = DistilledEncoder(config.d_model, blocks, config.distilling)

    def forward(
        self, flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [B, S, D] and which of them are real, [B, S]; S is L halved, rounding up, in every distilling."""
        observed = (pack_values(column, mask_BL) for column in (flux_BL, flux_err_BL, band_BL))
        stages = self._stages(When(time_BL, band_BL, mask_BL))
        x_MD = self.dropout(self.time.embed(self.embed(*observed), stages[0]))
        positions = (self.time.position(when) for when in stages)
        x_MD, packing = self.encoder(x_MD, Packing.of(mask_BL, leading=False), positions)
        return packing.unpack(self.time.finish(x_MD, stages[-1])), packing.mask_BS

    def _stages(self, when: When) -> list[When]:
        """When the tokens of each block are: a distilled token is at the middle one of its three."""
        stages = [when]
        for _ in self.encoder.distillings:
            when = When(halve(when.time_BL), halve(when.band_BL), halve(when.kept_BL))
            stages.append(when)
        return stages + [when] * (len(self.encoder.blocks) - len(stages))


class InformerClassifier(nn.Module):
    """Class of a long light curve, without metadata; sizes in :class:`InformerConfig`."""

    input_names = ("flux", "flux_err", "time", "band", "mask")

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.config, self.n_classes, self.embedding_dim = config, config.n_classes, config.d_model
        self.encoder = InformerEncoder(config, config.flux_scale)
        self.head = nn.Linear(config.d_model, config.n_classes)
        self.apply(initialise)

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Learn nothing: the network reads no metadata."""

    def forward(
        self, flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor
    ) -> Output:
        """Classify padded light curves, each row in order of time; arguments as in ``models.networks.network``."""
        embedding_BD = masked_mean(*self.encoder(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL))
        return Output(self.head(embedding_BD), embedding_BD)


def masked_mean(x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """Mean [B, D] over the real places of a grid."""
    return (x_BSD * mask_BS[..., None]).sum(1) / mask_BS.sum(1, keepdim=True).clamp(min=1)


def initialise(module: nn.Module) -> None:
    """Glorot's uniform weights and zero biases for linear maps."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _block(config: InformerConfig) -> Block:
    feed_forward = DenseFeedForward(config.d_model, config.d_ff, ACTIVATIONS[config.activation])
    sizes = (config.d_model, config.n_heads)
    return Block(*sizes, feed_forward, config.norm_order, config.dropout, attention=config.attention)
