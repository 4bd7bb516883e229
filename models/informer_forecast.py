"""Light-curve forecasts with Informer: the flux to expect at requested times and bands, and how far to trust it.

    history -> encoder (models.informer) -> memory
    newest observations (start tokens) and queries -> decoder -> mean and std of asinh(flux / s) -> flux

Notable:

- the error of a forecast is the standard deviation of *one observation of the training survey*: what is unknown of the
  source and the noise of a typical visit in that band together. It is not the error of the source's mean flux, and it
  supposes no particular depth of the future exposure; a follower with a deeper instrument may take it as an upper bound.
- The network predicts a Gaussian of y = asinh(flux / s), in which light curves of all brightnesses look alike. With s of
  at least the survey's noise, noise around zero stays Gaussian in y. The forecast is given in flux by the exact moments
  of flux = s sinh(y): :func:`moments_of_flux`. The central interval of y maps to that of the flux point by point.
- Time is counted from the newest observation, so that what a query asks is "so many days ahead" (or behind, where it
  asks about the past).
- ``anchor`` adds the last observed value of the query's band to the predicted mean (0 where the band has none): the
  network starts from persistence, which is hard to beat over short times and costs a transformer much training to find.
- A query's values are a learned vector; Informer feeds zeros.

Legend: B batch, L length, Q queries, T start tokens, S = T + Q places of the decoder, D width, G bands.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.informer import InformerConfig, InformerEncoder, ObservationEmbedding, initialise
from models.informer_decoder import CausalAttention, Decoder, DecoderBlock, StartAttention
from models.moe import ACTIVATIONS
from models.network import QUERIES, Forecast
from models.positional_content import Sinusoids
from models.transformer import DenseFeedForward

STD_RANGE = (0.003, 1.5)  # of y: 0.3 % of a bright flux, and a factor of 4.5 either way


class FluxDistribution(NamedTuple):
    """What an observation's flux may be: y = asinh(flux / scale) is Gaussian.

    Attributes
    ----------
    mean_BQ, std_BQ : of y.
    scale : s, in the network's flux unit.
    """

    mean_BQ: Tensor
    std_BQ: Tensor
    scale: float

    def deviation(self, flux_BQ: Tensor) -> Tensor:
        """Standard deviations of y between its mean and an observed flux."""
        return (torch.asinh(flux_BQ / self.scale) - self.mean_BQ) / self.std_BQ

    def negative_log_likelihood(self, flux_BQ: Tensor) -> Tensor:
        """-log p(y) of observed fluxes, nats; that of the flux itself is larger by log sqrt(flux^2 + s^2)."""
        return 0.5 * self.deviation(flux_BQ).square() + self.std_BQ.log() + 0.5 * math.log(2.0 * math.pi)

    def forecast(self) -> Forecast:
        """Mean and standard deviation of the flux s sinh(y), exactly.

        With v = exp(std^2): E = s sqrt(v) sinh(mean), Var = s^2 (v - 1) (v cosh(2 mean) + 1) / 2.
        """
        half_BQ = 0.5 * self.std_BQ.square()
        # v - 1 = 2 sqrt(v) sinh(std^2 / 2): ONNX has no expm1, and exp(x) - 1 has no digits left for a small x.
        root_BQ = half_BQ.exp()
        variance_BQ = root_BQ * torch.sinh(half_BQ) * (root_BQ.square() * torch.cosh(2.0 * self.mean_BQ) + 1.0)
        return Forecast(self.scale * root_BQ * torch.sinh(self.mean_BQ), self.scale * variance_BQ.sqrt())


class History(NamedTuple):
    """Padded light curves [B, L], each row in order of time with its padding last."""

    flux_BL: Tensor
    flux_err_BL: Tensor
    time_BL: Tensor
    band_BL: Tensor
    mask_BL: Tensor

    @property
    def newest_B1(self) -> Tensor:
        """Place of each row's newest observation."""
        return (self.mask_BL.sum(1, keepdim=True) - 1).clamp(min=0)

    def tail(self, count: int) -> "History":
        """The newest ``count`` observations, oldest first; what a shorter row lacks is masked."""
        newest_B1 = self.newest_B1
        place_BT = (newest_B1 - count + 1).clamp(min=0) + torch.arange(count, device=newest_B1.device)
        # Masked places repeat the newest observation: they must hold something finite.
        columns = (column.gather(1, place_BT.minimum(newest_B1)) for column in self[:4])
        return History(*columns, place_BT <= newest_B1)


class Queries(NamedTuple):
    """Padded queries [B, Q]: when, relative to the same time as the history, and in which band."""

    time_BQ: Tensor
    band_BQ: Tensor
    mask_BQ: Tensor


class InformerForecaster(nn.Module):
    """See the module docstring; sizes in :class:`models.informer.InformerConfig`."""

    input_names = ("flux", "flux_err", "time", "band", "mask", *QUERIES)

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = InformerEncoder(config), _decoder(config)
        self.embed = ObservationEmbedding(config.d_model, config.n_bands, config.flux_scale)
        self.when = Sinusoids(config.d_model, config.pe_base, config.pe_exponent, config.pe_two_pi, trainable=True)
        self.query_D = nn.Parameter(torch.zeros(config.d_model))
        self.head = nn.Linear(config.d_model, 2)
        self.apply(initialise)
        nn.init.zeros_(self.head.weight)  # with the anchor, an untrained network is persistence

    def forward(
        self,
        flux_BL: Tensor,
        flux_err_BL: Tensor,
        time_BL: Tensor,
        band_BL: Tensor,
        mask_BL: Tensor,
        query_time_BQ: Tensor,
        query_band_BQ: Tensor,
        query_mask_BQ: Tensor,
    ) -> Forecast:
        """Forecast padded queries; arguments and units as in ``models.network``, rows as in :class:`History`."""
        history = History(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL)
        return self.distribution(history, Queries(query_time_BQ, query_band_BQ, query_mask_BQ)).forecast()

    def distribution(self, history: History, queries: Queries) -> FluxDistribution:
        """As :meth:`forward`, before the moments are taken: what a likelihood needs."""
        origin_B1 = history.time_BL.gather(1, history.newest_B1)
        history = history._replace(time_BL=history.time_BL - origin_B1)
        memory_BKD, memory_mask_BK = self.encoder(*history)
        start = history.tail(self.config.start_tokens)
        x_BSD = torch.cat([self._start_tokens(start), self._query_tokens(queries, origin_B1)], dim=1)
        mask_BS = torch.cat([start.mask_BL, queries.mask_BQ], dim=1)
        x_BSD = self.decoder(x_BSD, mask_BS, memory_BKD, memory_mask_BK)
        mean_BQ, raw_BQ = self.head(x_BSD[:, self.config.start_tokens :]).float().unbind(-1)
        if self.config.anchor:
            mean_BQ = mean_BQ + last_value(history, self.config).gather(1, queries.band_BQ)
        return FluxDistribution(mean_BQ, bounded_std(raw_BQ), self.config.flux_scale)

    def _start_tokens(self, start: History) -> Tensor:
        return self.embed(start.flux_BL, start.flux_err_BL, start.band_BL) + self.when(start.time_BL)

    def _query_tokens(self, queries: Queries, origin_B1: Tensor) -> Tensor:
        return self.query_D + self.embed.band_GD[queries.band_BQ] + self.when(queries.time_BQ - origin_B1)


def last_value(history: History, config: InformerConfig) -> Tensor:
    """asinh(flux / s) of each band's newest observation, [B, G]; 0 where a band has none."""
    band_G1 = torch.arange(config.n_bands, device=history.band_BL.device)[:, None]
    here_BGL = (history.band_BL[:, None] == band_G1) & history.mask_BL[:, None]
    place_L = torch.arange(history.band_BL.shape[1], device=history.band_BL.device)
    newest_BG = torch.where(here_BGL, place_L, -1).amax(2)
    y_BL = torch.asinh(history.flux_BL / config.flux_scale)
    return torch.where(newest_BG >= 0, y_BL.gather(1, newest_BG.clamp(min=0)), 0.0)


def bounded_std(raw: Tensor) -> Tensor:
    """Standard deviation of y between the bounds of ``STD_RANGE``, on a logarithmic scale."""
    low, high = math.log(STD_RANGE[0]), math.log(STD_RANGE[1])
    return torch.exp(low + (high - low) * torch.sigmoid(raw))


def _decoder(config: InformerConfig) -> Decoder:
    sizes = (config.d_model, config.n_heads)

    def self_attention() -> nn.Module:
        if config.query_context == "causal":
            return CausalAttention(*sizes, config.dropout, config.attention)
        return StartAttention(*sizes, config.dropout, config.start_tokens)

    def block() -> DecoderBlock:
        feed_forward = DenseFeedForward(config.d_model, config.d_ff, ACTIVATIONS[config.activation])
        return DecoderBlock(self_attention(), *sizes, feed_forward, config.norm_order, config.dropout)

    return Decoder(config.d_model, [block() for _ in range(config.n_decoder_blocks)])
