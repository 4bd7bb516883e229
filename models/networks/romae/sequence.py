"""RoMAE for any modality: values at positions to an output per row or per token, and the masked autoencoder.

    model = SequenceModel(n_values=2, n_outputs=5, n_axes=1, encoder=TINY, readout="mean")
    logits_BO = model(values_BLK, position_BLA, mask_BL)

    autoencoder = MaskedAutoencoder(n_values=2, n_axes=1, encoder=TINY, decoder=TINY_SHALLOW)
    prediction_BLK = autoencoder(values_BLK, position_BLA, mask_BL, hidden_BL)

Values and positions may be those of patches of images or of points in time. The networks for light curves
are in ``models.networks.romae.network`` and ``models.networks.romae.network``.

The autoencoder is asymmetric (He et al. 2022): the encoder never sees a hidden token; the decoder, smaller and with its
own rotation, sees the encoded visible tokens and, after them, one shared token (zero at first) at the position of each
hidden one.

Notable: the released code averages the loss over a rectangle of B times the largest number of hidden tokens of a row,
in which missing ones count as zeros, so a row's weight depends on its batch-mates; :func:`masked_mse` averages over
the hidden values unless asked to do the same.

Legend: B batch, L length, V visible and W hidden tokens of the fullest row, S places, M packed tokens, K values of a
token, A axes, D width, O outputs.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.networks.parts.packing import Packing
from models.networks.romae.encoder import (
    TINY_SHALLOW,
    Embedded,
    Embedding,
    RoMAEEncoder,
    RoMAEEncoderConfig,
    init_classifier,
    make_head,
    pool,
)

Readout = Literal["cls", "mean", "token"]


class SequenceModel(nn.Module):
    """Encoder with a head: one output per row ([CLS] token or mean of the real tokens), or one per token.

    Parameters
    ----------
    readout : "cls", "mean" or "token".
    cls : whether there is a [CLS] token; default: only where it is read. Without one the network sees differences of
        positions only.
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
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        cls = readout == "cls" if cls is None else cls
        if readout == "cls" and not cls:
            raise ValueError("a [CLS] readout needs a [CLS] token")
        self.readout = readout
        self.embedding = Embedding(n_values, encoder.d_model, cls)
        self.encoder = RoMAEEncoder(encoder, n_axes)
        self.head = make_head(encoder.d_model, n_outputs, head_dropout)
        self.apply(init_classifier)

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor) -> Tensor:
        """Output per row [B, O], or per token [B, L, O] where what stands at empty places means nothing."""
        embedded: Embedded = self.embedding(values_BLK, position_BLA, mask_BL)
        packing = embedded.packing
        x_MD = self.encoder(*embedded)
        if self.readout != "token":
            out_BO: Tensor = self.head(pool(x_MD, packing, self.readout))
            return out_BO
        return packing.unpack(self.head(x_MD))[:, int(packing.leading) :]


class MaskDecoder(nn.Module):
    """From encoded visible tokens to the values of all: Linear enc -> dec, the mask token, blocks and a head."""

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
        """Values [B, V + W, K] of the visible and, after them, the hidden tokens; empty places mean nothing."""
        leading = encoded.packing.leading
        x_BSD = encoded.packing.unpack(self.projection(encoded.x_MD))
        token_BWD = self.dropout(self.mask_token_D.to(x_BSD.dtype).expand(*mask_BW.shape, -1))
        x_BSD = torch.cat([x_BSD, token_BWD], dim=1)
        mask_BS = torch.cat([encoded.packing.mask_BS, mask_BW], dim=1)[:, int(leading) :]
        packing = Packing.of(mask_BS, leading)
        position_BSA = torch.cat([encoded.position_BSA, position_BWA], dim=1)
        x_MD = self.blocks(packing.pack(x_BSD), packing, position_BSA)
        return packing.unpack(self.head(x_MD))[:, int(leading) :]


class Chosen(NamedTuple):
    """Some of the tokens of each row, moved to its beginning: their places [B, V] and which of these are real."""

    place_BV: Tensor
    mask_BV: Tensor

    @classmethod
    def of(cls, chosen_BL: Tensor) -> "Chosen":
        """Move the chosen tokens together, in order."""
        count_B = chosen_BL.sum(1)
        width = max(int(count_B.max()), 1)
        place_BV = torch.argsort((~chosen_BL).to(torch.uint8), dim=1, stable=True)[:, :width]
        return cls(place_BV, torch.arange(width, device=count_B.device) < count_B[:, None])

    def take(self, x_BLK: Tensor) -> Tensor:
        """[B, V, K] of [B, L, K]."""
        return x_BLK.take_along_dim(self.place_BV[..., None], dim=1)


class MaskedAutoencoder(nn.Module):
    """Reconstruct hidden tokens of any modality; see the module docstring."""

    def __init__(
        self,
        n_values: int,
        n_axes: int,
        encoder: RoMAEEncoderConfig,
        decoder: RoMAEEncoderConfig = TINY_SHALLOW,
        *,
        cls: bool = False,
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(n_values, encoder.d_model, cls, encoder.position_dropout)
        self.encoder = RoMAEEncoder(encoder, n_axes)
        self.decoder = MaskDecoder(encoder.d_model, n_values, n_axes, decoder, head_dropout, encoder.position_dropout)

    def forward(self, values_BLK: Tensor, position_BLA: Tensor, mask_BL: Tensor, hidden_BL: Tensor) -> Tensor:
        """Values [B, L, K] as :func:`reconstruct` gives them."""
        return reconstruct(
            self.embedding, self.encoder, self.decoder, Masked(values_BLK, position_BLA, mask_BL, hidden_BL)
        )


class Masked(NamedTuple):
    """A batch with some of its real tokens hidden; what stands at hidden places is never looked at."""

    values_BLK: Tensor
    position_BLA: Tensor
    mask_BL: Tensor
    hidden_BL: Tensor


def reconstruct(embedding: Embedding, encoder: RoMAEEncoder, decoder: MaskDecoder, batch: Masked) -> Tensor:
    """Values [B, L, K] of every real token, of the hidden ones from their positions alone; 0 at empty places."""
    visible, hidden = Chosen.of(batch.mask_BL & ~batch.hidden_BL), Chosen.of(batch.mask_BL & batch.hidden_BL)
    embedded = embedding(visible.take(batch.values_BLK), visible.take(batch.position_BLA), visible.mask_BV)
    encoded = embedded._replace(x_MD=encoder(*embedded))
    prediction_BSK = decoder(encoded, hidden.take(batch.position_BLA), hidden.mask_BV)
    mask_BS1 = torch.cat([visible.mask_BV, hidden.mask_BV], dim=1)[..., None]
    place_BS1 = torch.cat([visible.place_BV, hidden.place_BV], dim=1)[..., None]
    prediction_BSK = torch.where(mask_BS1, prediction_BSK, 0.0)
    grid_BLK = prediction_BSK.new_zeros(*batch.mask_BL.shape, prediction_BSK.shape[2])
    return grid_BLK.scatter_add(1, place_BS1.expand_as(prediction_BSK), prediction_BSK)


def masked_mse(
    prediction_BLK: Tensor, target_BLK: Tensor, hidden_BL: Tensor, mean_over: Literal["hidden", "rectangle"] = "hidden"
) -> Tensor:
    """Mean squared error of the hidden tokens' values, a scalar.

    ``mean_over="rectangle"`` divides by B times the largest number of hidden tokens of a row, as released.
    """
    squares_BL = (prediction_BLK - target_BLK).square().mean(-1) * hidden_BL
    count_B = hidden_BL.sum(1)
    count = count_B.sum() if mean_over == "hidden" else count_B.max() * len(count_B)
    return squares_BL.sum() / count.clamp(min=1)
