"""Astro-MoE's self-supervised pretraining: reconstruct the transformed flux of probed observations.

Astro-MoE masks as ASTROMER does: of the observations, 90 % are probed; of those, 30 % are hidden, 30 % show the values
of a random other observation, 40 % show their own, and the loss looks at probed ones only. Its text says "90 % of the
light curves", of which 30/30/40; a share of light curves would leave nothing to measure on the rest, so it is read as
the share of observations. Which ones is drawn by ``training.data.targets``.

Notable: a hidden observation is a learned token instead of an embedded value; its time and its band stay visible (a
different state from ASTROMER, v0 of which takes hidden observations out of attention and v2 of which does that too). It
passes no input expert, hence is not counted in their balance. The target is the flux as the network sees it, after
``flux_transform``; ``object_z`` scales by all observations of the object, hidden ones included. The metadata branch is
not pretrained.

Legend: B batch, L length, N real tokens, V shown tokens, M tokens with the [CLS]s, D width.
"""

import torch
from torch import Tensor, nn

from models.networks.astro_moe.branch import AstroMoEConfig, LightCurveBranch, balance_loss, initialise, stack_loads
from models.networks.network import INPUTS, Masking, Reconstruction
from models.networks.parts.moe import Routing
from models.networks.parts.packing import Packing
from models.networks.parts.positional_content import When


class AstroMoEPretraining(LightCurveBranch):
    """The light-curve branch of :class:`astro_moe.network.AstroMoE` with a linear head on each token."""

    input_names = tuple(name for name in INPUTS if name != "metadata")

    def __init__(self, config: AstroMoEConfig) -> None:
        super().__init__(config)
        self.hidden_1D = nn.Parameter(torch.zeros(1, self.time.content_width))
        self.head_flux = nn.Sequential(nn.LayerNorm(config.d_model), nn.Linear(config.d_model, 1))
        initialise(self)

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        masking: Masking,
    ) -> Reconstruction:
        """Reconstruct the transformed flux, [B, L, 1]; ``models.networks.network`` describes the inputs."""
        observed_BL2 = self.observations(flux_BL, flux_err_BL, mask_BL)
        shown_BL2 = observed_BL2.take_along_dim(masking.source_BL[..., None], dim=1)
        when = When(time_BL, band_BL, mask_BL, self.light_curve.leading)
        x_ND, routing = self._embed_shown(when.pack(shown_BL2), when.pack(masking.hidden_BL))
        x_MD, _, routings = self.encode(x_ND, when, mask_BL)
        flux_N1 = self.head_flux(x_MD[x_MD.shape[0] - x_ND.shape[0] :])
        of_input = [] if routing is None else [routing]
        return Reconstruction(
            prediction_BLK=Packing.of(mask_BL, leading=False).unpack(flux_N1),
            target_BLK=observed_BL2[..., :1],
            aux_loss=balance_loss(of_input + routings),
            input_expert_load_1X=stack_loads(of_input),
            expert_load_SX=stack_loads(routings),
        )

    def _embed_shown(self, x_N2: Tensor, hidden_N: Tensor) -> tuple[Tensor, Routing | None]:
        """Tokens [N, content width] of which the hidden ones are the learned token, and the routing of the others."""
        x_VD, routing = self.embed_observations(x_N2[~hidden_N])
        token_N = torch.where(hidden_N, x_VD.shape[0], (~hidden_N).cumsum(0) - 1)
        return torch.cat([x_VD, self.hidden_1D.to(x_VD.dtype)])[token_N], routing
