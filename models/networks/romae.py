"""RoMAE (Zivanovic et al. 2025): a transformer for any modality, its masked autoencoder, and both for light curves.

The input is values at real-valued positions, one row per object::

    values [B, L, K] -> Linear K -> D, [CLS] -> depth x (x += Attention(RMSNorm x); x += FeedForward(RMSNorm x)) -> head

Positions are used only to rotate queries and keys (``parts.positional``), so without a [CLS] token the encoder sees
differences of positions only, and shifting a row changes nothing. The [CLS] token is at position 0 on every axis, so
that the encoder can recover absolute positions.

Notable, where the released code clarifies or contradicts the text:

- no biases in attention and feed-forward; SiLU; RMSNorm with eps 1e-12; no norm after the last block, because the heads
  begin with one (dropout, RMSNorm, linear); only the input projection and the heads have a bias;
- dropout follows the second feed-forward layer (text: the hidden layer);
- stochastic depth drops a block's branch for a whole row, in block i with probability ``drop_path`` * i / (depth - 1)
  (text: m / N).

Use::

    model = SequenceModel(n_values=2, n_outputs=5, n_axes=1, encoder=TINY, readout="mean")
    logits_BO = model(values_BLK, position_BLA, mask_BL)

    autoencoder = MaskedAutoencoder(n_values=2, n_axes=1, encoder=TINY, decoder=TINY_SHALLOW)
    prediction_BLK = autoencoder(values_BLK, position_BLA, mask_BL, hidden_BL)

Values and positions may be those of image patches or of points in time.

For light curves (:class:`RoMAE`, :class:`RoMAEPretraining`) flux and error are values, band and time are positions::

    (flux, flux_err) at (band index, days since the first observation) -> encoder -> mean of the tokens -> classes

There is no band embedding and no metadata. The band index is a position on a separate axis, so rotations encode the
difference of two observations in band index and in days. Without a [CLS] token, the default and the authors' choice for
ELAsTiCC, only these differences are known: "g then r" looks like "r then i".

Notable differences from the released code:

- flux and error are transformed by asinh(x / flux_scale). The released code uses raw FLUXCAL values, which span
  decades; after a linear layer and a norm, little more than the ratio of a large flux to its error remains.
  ``flux_transform="none"`` is the released behaviour;
- pretraining and classification share the input projection, so it is transferred with the encoder; the released code
  re-initialises it.

Legend: B batch, L length, V visible and W hidden tokens of the fullest row, S positions (L plus a leading [CLS]), M
packed tokens, K values of a token (2 of an observation), A axes (2 of a light curve), D width, O outputs, C classes, N
objects, F metadata columns.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from nightjar_alerts.models.networks.network import Masking, NetworkOutput, Reconstruction
from nightjar_alerts.models.networks.parts.attention import AttentionConfig, PositionEncoding, SelfAttention
from nightjar_alerts.models.networks.parts.packing import Packing, pack_values
from nightjar_alerts.models.networks.parts.positional import AxialRotary, Keep, Rotation

NORM_EPS = 1e-12
Pooling = Literal["mean", "cls"]


class RoMAEEncoderConfig(BaseModel):
    """Sizes and dropout rates of an encoder or decoder; the rates are 0, as in the released experiments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    d_model: int = Field(default=180, ge=1)
    n_heads: int = Field(default=3, ge=1)
    depth: int = Field(default=12, ge=1)
    d_ff: int | None = Field(default=None, ge=1, description="hidden width of the feed-forward; None: 4 d_model")
    p: float = Field(default=0.75, ge=0, le=1, description="fraction of the rotary frequencies that rotate")
    base: float = Field(default=10_000.0, gt=1, description="of the rotary frequencies")
    keep: Keep = Field(
        default="highest", description="frequencies that rotate: highest as released, lowest as in the text"
    )
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
    """Input of an encoder: packed tokens [M, D], their packing, and positions [B, S, A] of the grid."""

    x_MD: Tensor
    packing: Packing
    position_BSA: Tensor


class Embedding(nn.Module):
    """Linear K -> D with bias and, if ``cls``, a learned [CLS] token at position 0 on every axis."""

    def __init__(self, n_values: int, width: int, cls: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(n_values, width)
        self.cls_1D = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, width), std=0.02)) if cls else None

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor) -> Embedded:
        """Embed the tokens of ``mask_BL``; values and positions elsewhere are ignored."""
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

    def forward(self, x_MD: Tensor, packing: Packing, position: PositionEncoding) -> Tensor:
        """Transform packed tokens [M, D]."""
        mixed_MD = self.output_dropout(self.attention(self.norm1(x_MD), packing, position))
        x_MD = x_MD + self._drop(mixed_MD, packing)
        return x_MD + self._drop(self.feed_forward(self.norm2(x_MD)), packing)

    def _drop(self, branch_MD: Tensor, packing: Packing) -> Tensor:
        """Apply stochastic depth (Huang et al. 2016): drop the branch for whole rows and scale up the others."""
        if not self.training or self.drop_path == 0.0:
            return branch_MD
        scale_B = branch_MD.new_empty(packing.mask_BS.shape[0]).bernoulli_(1.0 - self.drop_path) / (
            1.0 - self.drop_path
        )
        return branch_MD * scale_B[packing.row_M, None]


class RoMAEEncoder(nn.Module):
    """Blocks that share one rotation by the positions on ``n_axes`` axes.

    Raises
    ------
    ValueError
        If the width does not divide into heads, or a head into axes of even length.
    """

    def __init__(self, config: RoMAEEncoderConfig, n_axes: int) -> None:
        super().__init__()
        self.position_dropout = config.position_dropout
        self.rotary = AxialRotary(config.d_model // config.n_heads, n_axes, config.p, config.base, config.keep)
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(RoMAEBlock(config, config.drop_path * i / last) for i in range(config.depth))

    def forward(self, x_MD: Tensor, packing: Packing, position_BSA: Tensor) -> Tensor:
        """Encode packed tokens [M, D] at positions [B, S, A]."""
        position = self._position(self.rotary.position(position_BSA))
        for block in self.blocks:
            x_MD = block(x_MD, packing, position)
        return x_MD

    def _position(self, rotation: Rotation) -> PositionEncoding:
        if not self.training or self.position_dropout == 0.0:
            return rotation

        def rotate_and_drop(query_BHSE: Tensor, key_BHSE: Tensor) -> tuple[Tensor, Tensor]:
            query_BHSE, key_BHSE = rotation(query_BHSE, key_BHSE)
            return F.dropout(query_BHSE, self.position_dropout), F.dropout(key_BHSE, self.position_dropout)

        return rotate_and_drop


def make_head(width: int, n_outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Return a head for pooled rows or single tokens: dropout, RMSNorm, linear with bias."""
    return nn.Sequential(nn.Dropout(dropout), nn.RMSNorm(width, NORM_EPS), nn.Linear(width, n_outputs))


def pool(x_MD: Tensor, packing: Packing, pooling: Pooling) -> Tensor:
    """Return one vector per row [B, D]: its [CLS] token, or the mean of its other real tokens."""
    if pooling == "cls":
        return x_MD[: packing.mask_BS.shape[0]]
    first = int(packing.leading)
    weight_BL = packing.mask_BS[:, first:].to(x_MD.dtype)
    total_BD = (packing.unpack(x_MD)[:, first:] * weight_BL[..., None]).sum(1)
    return total_BD / weight_BL.sum(1, keepdim=True).clamp(min=1)


def init_classifier(module: nn.Module) -> None:
    """Initialise a classifier as released: weights from N(0, 0.02) truncated at +-2, biases 0.

    Autoencoders keep PyTorch's initialisation.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


Readout = Literal["cls", "mean", "token"]


class SequenceModel(nn.Module):
    """Encoder with a head: one output per row ([CLS] token or mean of the real tokens), or one per token.

    Parameters
    ----------
    readout : "cls", "mean" or "token".
    cls : whether to add a [CLS] token; by default only for the "cls" readout. Without one the network sees differences
        of positions only.
    """

    def __init__(
        self,
        n_values: int,
        n_outputs: int,
        n_axes: int,
        encoder: RoMAEEncoderConfig,
        readout: Readout = "mean",
        *,
        cls: bool | None = None,
    ) -> None:
        super().__init__()
        cls = readout == "cls" if cls is None else cls
        if readout == "cls" and not cls:
            raise ValueError("a [CLS] readout needs a [CLS] token")
        self.readout = readout
        self.embedding = Embedding(n_values, encoder.d_model, cls)
        self.encoder = RoMAEEncoder(encoder, n_axes)
        self.head = make_head(encoder.d_model, n_outputs)
        self.apply(init_classifier)

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor) -> Tensor:
        """Return outputs per row [B, O] or per token [B, L, O], arbitrary where there is no token."""
        embedded: Embedded = self.embedding(values_BLK, position_BLA, mask_BL)
        packing = embedded.packing
        x_MD = self.encoder(*embedded)
        if self.readout != "token":
            out_BO: Tensor = self.head(pool(x_MD, packing, self.readout))
            return out_BO
        return packing.unpack(self.head(x_MD))[:, int(packing.leading) :]


class MaskDecoder(nn.Module):
    """Decoder of encoded visible tokens to the values of all tokens: linear layer, mask token, blocks and head."""

    def __init__(
        self,
        width: int,
        n_values: int,
        n_axes: int,
        config: RoMAEEncoderConfig,
        head_dropout: float = 0.0,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.projection = nn.Linear(width, config.d_model)
        self.dropout = nn.Dropout(token_dropout)
        self.mask_token_D = nn.Parameter(torch.zeros(config.d_model))
        self.blocks = RoMAEEncoder(config, n_axes)
        self.head = make_head(config.d_model, n_values, head_dropout)

    def forward(self, encoded: Embedded, position_BWA: Tensor, mask_BW: Tensor) -> Tensor:
        """Return values [B, V + W, K] of the visible tokens, then the hidden ones, arbitrary where there is none."""
        leading = encoded.packing.leading
        x_BSD = encoded.packing.unpack(self.projection(encoded.x_MD))
        token_BWD = self.dropout(self.mask_token_D.to(x_BSD.dtype).expand(*mask_BW.shape, -1))
        x_BSD = torch.cat([x_BSD, token_BWD], dim=1)
        mask_BS = torch.cat([encoded.packing.mask_BS, mask_BW], dim=1)[:, int(leading) :]
        packing = Packing.of(mask_BS, leading)
        position_BSA = torch.cat([encoded.position_BSA, position_BWA], dim=1)
        x_MD = self.blocks(packing.pack(x_BSD), packing, position_BSA)
        return packing.unpack(self.head(x_MD))[:, int(leading) :]


class TokenSubset(NamedTuple):
    """Selected tokens of each row, left-aligned: their column indices [B, V] and the mask of the real ones."""

    place_BV: Tensor
    mask_BV: Tensor

    @classmethod
    def of(cls, chosen_BL: Tensor) -> "TokenSubset":
        """Left-align the chosen tokens, in order."""
        count_B = chosen_BL.sum(1)
        width = max(int(count_B.max()), 1)
        place_BV = torch.argsort((~chosen_BL).to(torch.uint8), dim=1, stable=True)[:, :width]
        return cls(place_BV, torch.arange(width, device=count_B.device) < count_B[:, None])

    def take(self, x_BLK: Tensor) -> Tensor:
        """Gather [B, V, K] from [B, L, K]."""
        return x_BLK.take_along_dim(self.place_BV[..., None], dim=1)


class MaskedAutoencoder(nn.Module):
    """Asymmetric masked autoencoder (He et al. 2022) for any modality.

    The encoder sees the visible tokens only. The decoder, which is smaller and has its own rotation, sees the encoded
    visible tokens and, after them, a shared learned token (initially zero) at the position of each hidden one.
    """

    def __init__(
        self,
        n_values: int,
        n_axes: int,
        encoder: RoMAEEncoderConfig,
        decoder: RoMAEEncoderConfig = TINY_SHALLOW,
        *,
        cls: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(n_values, encoder.d_model, cls, encoder.position_dropout)
        self.encoder = RoMAEEncoder(encoder, n_axes)
        self.decoder = MaskDecoder(encoder.d_model, n_values, n_axes, decoder, token_dropout=encoder.position_dropout)

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor, hidden_BL: Tensor) -> Tensor:
        """Return the values [B, L, K] of :func:`reconstruct`."""
        return reconstruct(
            self.embedding, self.encoder, self.decoder, MaskedTokens(values_BLK, position_BLA, mask_BL, hidden_BL)
        )


class MaskedTokens(NamedTuple):
    """Batch with some of its real tokens hidden, whose values are ignored."""

    values_BLK: Tensor
    position_BLA: Tensor
    mask_BL: Tensor
    hidden_BL: Tensor


def reconstruct(embedding: Embedding, encoder: RoMAEEncoder, decoder: MaskDecoder, batch: MaskedTokens) -> Tensor:
    """Reconstruct the values [B, L, K] of all real tokens, hidden ones from their positions alone; 0 for padding."""
    visible, hidden = TokenSubset.of(batch.mask_BL & ~batch.hidden_BL), TokenSubset.of(batch.mask_BL & batch.hidden_BL)
    embedded = embedding(visible.take(batch.values_BLK), visible.take(batch.position_BLA), visible.mask_BV)
    encoded = embedded._replace(x_MD=encoder(*embedded))
    prediction_BSK = decoder(encoded, hidden.take(batch.position_BLA), hidden.mask_BV)
    mask_BS1 = torch.cat([visible.mask_BV, hidden.mask_BV], dim=1)[..., None]
    place_BS1 = torch.cat([visible.place_BV, hidden.place_BV], dim=1)[..., None]
    prediction_BSK = torch.where(mask_BS1, prediction_BSK, 0.0)
    grid_BLK = prediction_BSK.new_zeros(*batch.mask_BL.shape, prediction_BSK.shape[2])
    return grid_BLK.scatter_add(1, place_BS1.expand_as(prediction_BSK), prediction_BSK)


def masked_mse(prediction_BLK: Tensor, target_BLK: Tensor, hidden_BL: Tensor) -> Tensor:
    """Return the mean squared error of the hidden tokens' values, a scalar.

    The released code divides by B times the largest number of hidden tokens in a row, so that a row's weight depends on
    the other rows of the batch.
    """
    squares_BL = (prediction_BLK - target_BLK).square().mean(-1) * hidden_BL
    return squares_BL.sum() / hidden_BL.sum().clamp(min=1)


INPUT_NAMES = ("flux", "flux_err", "time", "band", "mask")
N_VALUES, N_AXES = 2, 2
FluxTransform = Literal["asinh", "none"]


class RoMAEConfig(BaseModel):
    """Sizes and options; the defaults are the authors' ELAsTiCC model, RoMAE-tiny with a tiny-shallow decoder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Literal["romae"] = "romae"
    n_classes: int = Field(default=20, ge=2)
    n_bands: int = Field(default=6, ge=1, description="known to the data; the network has no weights per band")
    encoder: RoMAEEncoderConfig = TINY
    decoder: RoMAEEncoderConfig = Field(default=TINY_SHALLOW, description="pretraining only")
    pooling: Pooling = Field(default="mean", description="cls adds a token at band 0, day 0: positions become absolute")
    head_dropout: float = Field(default=0.0, ge=0, lt=1)
    flux_transform: FluxTransform = Field(default="asinh", description="none: raw flux, as released")
    flux_scale: float = Field(default=1.0, gt=0, description="s of asinh(flux / s), in the network's flux unit")


class RoMAE(nn.Module):
    """Classifier of light curves; its embedding is the pooled encoder output, before the head's norm."""

    input_names = INPUT_NAMES

    def __init__(self, config: RoMAEConfig) -> None:
        super().__init__()
        width = config.encoder.d_model
        self.config, self.n_classes, self.embedding_dim = config, config.n_classes, width
        self.embedding = Embedding(N_VALUES, width, config.pooling == "cls")
        self.encoder = RoMAEEncoder(config.encoder, N_AXES)
        self.head = make_head(width, config.n_classes, config.head_dropout)
        self.apply(init_classifier)

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Do nothing: the network has no metadata input."""

    def forward(
        self, flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor
    ) -> NetworkOutput:
        """Classify padded light curves; ``models.networks.network`` describes the inputs."""
        values_BLK = observed_values(flux_BL, flux_err_BL, self.config)
        embedded = self.embedding(values_BLK, positions(time_BL, band_BL), mask_BL)
        pooled_BD = pool(self.encoder(*embedded), embedded.packing, self.config.pooling)
        return NetworkOutput(self.head(pooled_BD), pooled_BD)


def observed_values(flux_BL: Tensor, flux_err_BL: Tensor, config: RoMAEConfig) -> Tensor:
    """Return the values [B, L, 2] of the tokens, which are also the targets of pretraining."""
    values_BLK = torch.stack([flux_BL, flux_err_BL], dim=-1)
    return torch.asinh(values_BLK / config.flux_scale) if config.flux_transform == "asinh" else values_BLK


def positions(time_BL: Tensor, band_BL: Tensor) -> Tensor:
    """Return the positions: band index and days since the first observation, [B, L, 2]."""
    return torch.stack([band_BL.to(time_BL.dtype), time_BL], dim=-1)


class RoMAEPretraining(nn.Module):
    """Masked pretraining on light curves: predicts the flux and error of hidden observations from time and band.

    The recipe's masking selects the hidden observations. RoMAE hides all probed ones: half of a light curve in the
    released ELAsTiCC run (0.75 in the text; an unused config field says 0.4). Observations that are probed but not
    hidden, as in ASTROMER's scheme, stay visible to the encoder with the input values that the masking gives them.

    Notable: the parts shared with :class:`RoMAE` have the same names, ``embedding`` and ``encoder``.
    """

    input_names = INPUT_NAMES

    def __init__(self, config: RoMAEConfig) -> None:
        super().__init__()
        width, dropout = config.encoder.d_model, config.encoder.position_dropout
        self.config = config
        self.embedding = Embedding(N_VALUES, width, config.pooling == "cls", dropout)
        self.encoder = RoMAEEncoder(config.encoder, N_AXES)
        self.decoder = MaskDecoder(width, N_VALUES, N_AXES, config.decoder, config.head_dropout, dropout)

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        masking: Masking,
    ) -> Reconstruction:
        """Reconstruct all real observations, hidden ones from time and band only; return them with the targets."""
        target_BLK = observed_values(flux_BL, flux_err_BL, self.config)
        input_BLK = target_BLK.take_along_dim(masking.source_BL[..., None], dim=1)
        batch = MaskedTokens(input_BLK, positions(time_BL, band_BL), mask_BL, masking.hidden_BL)
        prediction_BLK = reconstruct(self.embedding, self.encoder, self.decoder, batch)
        return Reconstruction(prediction_BLK, target_BLK)
