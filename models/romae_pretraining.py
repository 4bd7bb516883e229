"""Masked pretraining of RoMAE on light curves: reconstruct the flux and error of observations whose time and band
alone are given.

The recipe's masking decides what is hidden. RoMAE hides all it probes: the released ELAsTiCC run half of a light curve
(its text says 0.75, a config field that nothing reads 0.4). Observations that are probed but not hidden, as in
ASTROMER's scheme, stay visible to the encoder with the values the masking shows for them.

Notable: the parts shared with :class:`models.romae.RoMAE` bear the same names, ``embedding`` and ``encoder``.

Legend: B batch, L length, K = 2 values of an observation.
"""

from torch import Tensor, nn

from models.network import Masking, Reconstruction
from models.romae import INPUT_NAMES, N_AXES, N_VALUES, RoMAEConfig, observed_values, positions
from models.romae_encoder import Embedding, RoMAEEncoder
from models.romae_sequence import MaskDecoder, Masked, reconstruct


class RoMAEPretraining(nn.Module):
    """The asymmetric masked autoencoder of ``models.romae_sequence`` on observations."""

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
        """Values of every real observation, of hidden ones from their times and bands alone; targets beside them."""
        target_BLK = observed_values(flux_BL, flux_err_BL, self.config)
        shown_BLK = target_BLK.take_along_dim(masking.source_BL[..., None], dim=1)
        batch = Masked(shown_BLK, positions(time_BL, band_BL), mask_BL, masking.hidden_BL)
        prediction_BLK = reconstruct(self.embedding, self.encoder, self.decoder, batch)
        return Reconstruction(prediction_BLK, target_BLK)
