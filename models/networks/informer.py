"""Informer (Zhou et al. 2021) for light curves of thousands of points: a classifier and a forecaster.

The classifier::

    (flux, flux_err) -> Linear, + band, + time -> [block, distil] x (n - 1), block -> LayerNorm -> masked mean -> head

Notable:

- ProbSparse attention costs L log L instead of L^2, and every distilling halves L: the network suits deep-field light
  curves and is trained on up to 1,024 points per band;
- there are two versions of the encoder. The paper does not specify the norm and has a plain convolution between blocks:
  pre-norm and ``distilling = "plain"``, the defaults. The released code is post-norm with circular padding and
  BatchNorm: ``norm_order = "post"`` and ``distilling = "released"``. Both end in a LayerNorm, as released;
- the released code has no padding mask. Here padding and other rows of the batch cannot change a result: padding is
  masked in attention (also where ProbSparse samples, ranks and averages), distilling and mean;
- Informer's calendar features (month, weekday, hour) do not apply to light curves: time is days since the first
  observation, encoded by ``models.networks.parts.positional``, and the band has an embedding;
- the embedding is the mean over the tokens that remain after distilling. A [CLS] token would be convolved with its
  neighbours and removed by the first pooling.

The forecaster predicts the expected flux at requested times and bands, with its uncertainty::

    history -> encoder -> memory
    newest observations (start tokens) and queries -> decoder -> mean and std of asinh(flux / s) -> flux

Notable:

- the error of a forecast is the standard deviation of *one observation of the training survey*: it combines the
  uncertainty about the source and the noise of a typical visit in that band. It is not the error of the source's mean
  flux and does not depend on the depth of the future exposure; for a deeper instrument it is an upper bound;
- fluxes are divided by the root mean square s of the object's light curve (:func:`object_scale`), so the encoder sees
  shapes and signal-to-noise ratios; the decoder also gets the brightness as log(s / flux_scale);
- the output is a Gaussian of asinh(flux / s), converted to moments of the flux (``network.FluxDistribution``);
- time is counted from the newest observation, so the time of a query is days ahead (negative for the past);
- with ``anchor`` the predicted mean is a learned mixture of the newest flux and the inverse-variance mean of the
  query's band, plus a shift; both are also features of the query's token (:func:`summarise`). They are simple forecasts
  that are hard to beat and that a transformer takes long to learn. Without ``anchor`` it is Informer's decoder;
- the values of a query are a learned vector; Informer uses zeros.

The encoder consists of attention blocks with a distilling layer, which halves the row, between each two::

    distilling (eq 5): x' = MaxPool(ELU(Conv1d(x))), kernel 3 in both, stride 2 in the pool

Notable: the paper and its released code use circular padding in the convolution and a BatchNorm before the ELU. Neither
masks padding, so the end of a padded row leaks into its first token, and the statistics depend on the other rows. Here
a row's output never depends on its padding:

- ``plain`` (the default) pads with zeros after the last real token and has no BatchNorm: the last night of a light
  curve is not a neighbour of the first, and nothing depends on other rows;
- ``released`` uses circular padding from the row's last real token and statistics of real tokens only; without padding
  it equals the released layer. In training its statistics are those of the whole batch, as usual for BatchNorm.

Rows must have their tokens first, in order of time, and padding last, because the convolution uses neighbouring tokens.

The decoder computes all queries in one pass from the start tokens and the query tokens: self-attention, exact
cross-attention to the encoded light curve, feed-forward; residuals in either norm order, and a final norm.

Notable:

- the published self-attention is causal over the start tokens and the query tokens, which there are always the same
  regular time steps. If callers choose the queries, each would change the forecasts of the later ones. With
  ``query_context = "independent"`` (the default) every token attends to the start tokens only, and to itself through
  the residual, so each forecast depends on its own query only;
- ``causal`` is the published variant, by default with ProbSparse, whose other queries get the running sum of values;
- the released decoder interprets its mixed heads [H, S, E] as [S, H E], which mixes positions and heads before the
  output projection and makes forecasts depend on the number of queries; this is not reproduced.

Legend: B batch, L length, N real tokens, M packed tokens, Q queries, T start tokens, D width, C classes, G bands,
K features. In encoder and decoder: S positions (in the decoder S = T + Q, start tokens first), K positions of the
memory, H heads, E = D / H.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from nightjar_alerts.models.networks.network import QUERIES, FluxDistribution, Forecast, NetworkOutput, bounded_std
from nightjar_alerts.models.networks.parts.attention import (
    AttentionConfig,
    CrossAttention,
    PositionEncoding,
    SelfAttention,
)
from nightjar_alerts.models.networks.parts.packing import Packing, pack_values
from nightjar_alerts.models.networks.parts.positional import TimeEncodingFields, time_encoding
from nightjar_alerts.models.networks.parts.positional_content import Sinusoids, TokenTimes
from nightjar_alerts.models.networks.parts.transformer import (
    ACTIVATIONS,
    Activation,
    Block,
    DenseFeedForward,
    NormOrder,
)

DistillingKind = Literal["plain", "released"]


class Distilling(nn.Module):
    """Distilling layer: maps rows of l tokens to rows of ceil(l / 2) tokens."""

    def __init__(self, width: int, kind: DistillingKind = "plain") -> None:
        super().__init__()
        self.kind = kind
        self.convolution = nn.Conv1d(width, width, 3)
        self.norm = nn.BatchNorm1d(width) if kind == "released" else None

    def forward(self, x_MD: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
        """Distil packed tokens without [CLS]; return the packed result and its packing."""
        mask_BS1 = packing.mask_BS[..., None]
        x_BSD = torch.where(mask_BS1, packing.unpack(x_MD), 0.0)
        x_BSD = self.convolution(self._edges(x_BSD, mask_BS1).transpose(1, 2)).transpose(1, 2)
        x_BSD = self._normalise(x_BSD, packing)
        # ELU is above -1, so a padding value of -1 never wins a maximum.
        x_BSD = F.pad(torch.where(mask_BS1, F.elu(x_BSD), -1.0), (0, 0, 1, 1), value=-1.0)
        # Not max_pool1d: tracing it without gradients fixes the length.
        pooled_BSD = torch.maximum(torch.maximum(x_BSD[:, :-2:2], x_BSD[:, 1:-1:2]), x_BSD[:, 2::2])
        half = Packing.of(halve(packing.mask_BS), leading=False)
        return half.pack(pooled_BSD), half

    def _normalise(self, x_BSD: Tensor, packing: Packing) -> Tensor:
        """Apply BatchNorm with the statistics of the real tokens."""
        if self.norm is None:
            return x_BSD
        if self.training:
            return packing.unpack(self.norm(packing.pack(x_BSD)))
        # Not F.batch_norm: tracing it fixes the length.
        mean_D, variance_D = self.norm.running_mean, self.norm.running_var
        assert mean_D is not None
        assert variance_D is not None
        return (x_BSD - mean_D) * (self.norm.weight * (variance_D + self.norm.eps).rsqrt()) + self.norm.bias

    def _edges(self, x_BSD: Tensor, mask_BS1: Tensor) -> Tensor:
        """Pad each row by one position at both ends: with zeros, or with the token at the row's other end."""
        if self.kind == "plain":
            return F.pad(x_BSD, (0, 0, 1, 1))
        length_B11 = mask_BS1.sum(1, keepdim=True)
        last_B1D = x_BSD.gather(1, (length_B11 - 1).clamp(min=0).expand(-1, 1, x_BSD.shape[2]))
        closed_BSD = F.pad(torch.cat([last_B1D, x_BSD], dim=1), (0, 0, 0, 1))
        place_S1 = torch.arange(closed_BSD.shape[1], device=x_BSD.device)[:, None]
        return torch.where(place_S1 == length_B11 + 1, x_BSD[:, :1], closed_BSD)


def halve(x_BS: Tensor) -> Tensor:
    """Return every second column, starting with the first: the positions of distilled tokens."""
    return x_BS.index_select(1, torch.arange(0, x_BS.shape[1], 2, device=x_BS.device))


class DistilledEncoder(nn.Module):
    """Blocks with a distilling layer between each two (none if ``kind`` is None), and a final norm, as released."""

    def __init__(self, width: int, blocks: Sequence[Block], kind: DistillingKind | None) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.distillings = nn.ModuleList(Distilling(width, kind) for _ in blocks[1:] if kind is not None)

    def forward(
        self, x_MD: Tensor, packing: Packing, positions: Iterable[PositionEncoding | None] = repeat(None)
    ) -> tuple[Tensor, Packing]:
        """Encode packed tokens without [CLS]; return the result, which is shorter, and its packing.

        ``positions`` has one element per block; after each distilling it is for half as many tokens.
        """
        for number, (block, position) in enumerate(zip(self.blocks, positions, strict=False)):
            if 0 < number <= len(self.distillings):
                x_MD, packing = self.distillings[number - 1](x_MD, packing)
            x_MD, _ = block(x_MD, packing, position)
        return self.norm(x_MD), packing


QueryContext = Literal["independent", "causal"]


class StartAttention(nn.Module):
    """Self-attention in which every token attends to the first ``n_start`` tokens only."""

    def __init__(self, width: int, n_heads: int, dropout: float, n_start: int) -> None:
        super().__init__()
        self.n_start = n_start
        self.attention = CrossAttention(width, n_heads, dropout)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Map a grid [B, S, D]; keys outside ``mask_BS`` are masked."""
        mixed_BSD: Tensor = self.attention(x_BSD, x_BSD[:, : self.n_start], mask_BS[:, : self.n_start])
        return mixed_BSD


class CausalAttention(nn.Module):
    """Causal self-attention of the configured kind."""

    def __init__(self, width: int, n_heads: int, dropout: float, config: AttentionConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(width, n_heads, dropout, config=config, causal=True)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Map a grid [B, S, D]; keys outside ``mask_BS`` are masked."""
        packing = Packing.of(mask_BS, leading=False)
        mixed_BSD: Tensor = packing.unpack(self.attention(packing.pack(x_BSD), packing))
        return mixed_BSD


class DecoderBlock(nn.Module):
    """Self-attention, cross attention and feed-forward, with residuals."""

    def __init__(
        self,
        self_attention: nn.Module,
        width: int,
        n_heads: int,
        feed_forward: nn.Module,
        order: NormOrder,
        dropout: float,
    ) -> None:
        super().__init__()
        self.order, self.dropout = order, nn.Dropout(dropout)
        self.self_attention = self_attention
        self.cross_attention = CrossAttention(width, n_heads, dropout)
        self.feed_forward = feed_forward
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x_BSD: Tensor, mask_BS: Tensor, memory_BKD: Tensor, memory_mask_BK: Tensor) -> Tensor:
        """Decode a grid [B, S, D] against the memory [B, K, D]."""
        x_BSD = self._residual(x_BSD, self.norm1, lambda y: self.self_attention(y, mask_BS))
        x_BSD = self._residual(x_BSD, self.norm2, lambda y: self.cross_attention(y, memory_BKD, memory_mask_BK))
        return self._residual(x_BSD, self.norm3, lambda y: self.feed_forward(y)[0])

    def _residual(self, x_BSD: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.order == "pre":
            added_BSD: Tensor = x_BSD + self.dropout(part(norm(x_BSD)))
            return added_BSD
        normed_BSD: Tensor = norm(x_BSD + self.dropout(part(x_BSD)))
        return normed_BSD


class Decoder(nn.Module):
    """Decoder blocks and a final norm."""

    def __init__(self, width: int, blocks: Sequence[DecoderBlock]) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor, memory_BKD: Tensor, memory_mask_BK: Tensor) -> Tensor:
        """Decode a grid [B, S, D] against the memory [B, K, D]; padded positions of the output are arbitrary."""
        for block in self.blocks:
            x_BSD = block(x_BSD, mask_BS, memory_BKD, memory_mask_BK)
        normed: Tensor = self.norm(x_BSD)
        return normed


class InformerConfig(TimeEncodingFields):
    """Sizes and options of the encoder, and of the decoder of the forecaster."""

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
    start_tokens: int = Field(default=16, ge=1, description="newest observations that are also input of the decoder")
    query_context: QueryContext = Field(
        default="independent", description="causal: a query also looks at the queries before it, as published"
    )
    anchor: bool = Field(default=True, description="mix newest flux and mean of the band, then shift")


class ObservationEmbedding(nn.Module):
    """Embedding of an observation without its time: a linear map of the values plus a vector of the band."""

    def __init__(self, width: int, n_bands: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.values, self.band_GD = nn.Linear(2, width), nn.Parameter(0.02 * torch.randn(n_bands, width))

    def forward(self, flux: Tensor, flux_err: Tensor, band: Tensor) -> Tensor:
        """Embed asinh(flux / s) and log(flux_err / s) of observations [...] as [..., D]."""
        relative_err = (flux_err / self.scale).clamp(min=1e-9)  # a denormal error may underflow to 0
        values = torch.stack([torch.asinh(flux / self.scale), relative_err.log()], dim=-1)
        embedded: Tensor = self.values(values) + self.band_GD[band]
        return embedded


class InformerEncoder(nn.Module):
    """Encoder of light curves to shorter sequences of tokens: embedding, blocks with distilling layers, norm."""

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
        """Return tokens [B, S, D] and their mask [B, S]; every distilling halves the length, rounding up."""
        observed = (pack_values(column, mask_BL) for column in (flux_BL, flux_err_BL, band_BL))
        stages = self._stages(TokenTimes(time_BL, band_BL, mask_BL))
        x_MD = self.dropout(self.time.embed(self.embed(*observed), stages[0]))
        positions = (self.time.position(times) for times in stages)
        x_MD, packing = self.encoder(x_MD, Packing.of(mask_BL, leading=False), positions)
        return packing.unpack(self.time.finish(x_MD, stages[-1])), packing.mask_BS

    def _stages(self, times: TokenTimes) -> list[TokenTimes]:
        """Return the times of each block's tokens; a distilled token has the time of the middle one of its three."""
        stages = [times]
        for _ in self.encoder.distillings:
            times = TokenTimes(halve(times.time_BL), halve(times.band_BL), halve(times.packed_BL))
            stages.append(times)
        return stages + [times] * (len(self.encoder.blocks) - len(stages))


class InformerClassifier(nn.Module):
    """Classifier of long light curves, without metadata; sizes in :class:`InformerConfig`."""

    input_names = ("flux", "flux_err", "time", "band", "mask")

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.config, self.n_classes, self.embedding_dim = config, config.n_classes, config.d_model
        self.encoder = InformerEncoder(config, config.flux_scale)
        self.head = nn.Linear(config.d_model, config.n_classes)
        self.apply(initialise)

    def fit_inputs(self, metadata_NF: NDArray[np.floating]) -> None:
        """Do nothing: the network has no metadata input."""

    def forward(
        self, flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor
    ) -> NetworkOutput:
        """Classify padded light curves, each row in order of time; arguments as in ``models.networks.network``."""
        embedding_BD = masked_mean(*self.encoder(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL))
        return NetworkOutput(self.head(embedding_BD), embedding_BD)


def masked_mean(x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """Return the mean [B, D] over the real tokens of a grid."""
    return (x_BSD * mask_BS[..., None]).sum(1) / mask_BS.sum(1, keepdim=True).clamp(min=1)


def initialise(module: nn.Module) -> None:
    """Initialise linear layers with Glorot's uniform weights and zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _block(config: InformerConfig) -> Block:
    feed_forward = DenseFeedForward(config.d_model, config.d_ff, ACTIVATIONS[config.activation])
    sizes = (config.d_model, config.n_heads)
    return Block(*sizes, feed_forward, config.norm_order, config.dropout, attention=config.attention)


N_FEATURES = 6


class BandSummary(NamedTuple):
    """Summary of each band [B, G]; fluxes are 0 where ``present_BG`` is False.

    Attributes
    ----------
    present_BG : whether the band has an observation.
    newest_BG, newest_err_BG : newest flux of the band and its error.
    age_BG : days from it to the newest observation of any band.
    mean_BG, mean_err_BG : inverse-variance mean of the fluxes and its error.
    """

    present_BG: Tensor
    newest_BG: Tensor
    newest_err_BG: Tensor
    age_BG: Tensor
    mean_BG: Tensor
    mean_err_BG: Tensor

    def features(self) -> Tensor:
        """Return features of order one, [B, G, K], all 0 for a band without observations."""
        columns = (
            torch.ones_like(self.newest_BG),
            self.newest_BG.asinh(),
            self.newest_err_BG.log(),
            self.age_BG.log1p(),
            self.mean_BG.asinh(),
            self.mean_err_BG.log(),
        )
        return torch.where(self.present_BG[..., None], torch.stack(columns, dim=-1), 0.0)


def summarise(
    flux_BL: Tensor, flux_err_BL: Tensor, time_BL: Tensor, band_BL: Tensor, mask_BL: Tensor, n_bands: int
) -> BandSummary:
    """Summarise padded light curves, sorted by time, with (negative) times relative to the newest observation.

    Fluxes are scaled to order one; errors are positive, in padding too.
    """
    band_G1 = torch.arange(n_bands, device=band_BL.device)[:, None]
    here_BGL = (band_BL[:, None] == band_G1) & mask_BL[:, None]
    place_BG = torch.where(here_BGL, torch.arange(band_BL.shape[1], device=band_BL.device), -1).amax(2)
    present_BG, place_BG = place_BG >= 0, place_BG.clamp(min=0)
    weight_BGL = torch.where(here_BGL, flux_err_BL.pow(-2)[:, None], 0.0)
    total_BG = torch.where(present_BG, weight_BGL.sum(2), 1.0)
    mean_BG = torch.where(here_BGL, weight_BGL * flux_BL[:, None], 0.0).sum(2) / total_BG
    return BandSummary(
        present_BG=present_BG,
        newest_BG=torch.where(present_BG, flux_BL.gather(1, place_BG), 0.0),
        newest_err_BG=torch.where(present_BG, flux_err_BL.gather(1, place_BG), 1.0),
        age_BG=torch.where(present_BG, -time_BL.gather(1, place_BG), 0.0),
        mean_BG=mean_BG,
        mean_err_BG=total_BG.rsqrt(),
    )


LEAST_ERROR = 1e-6  # of the object's scale; keeps weights and logarithms finite, in padding too


class PaddedHistory(NamedTuple):
    """Padded light curves [B, L], each row in order of time with its padding last."""

    flux_BL: Tensor
    flux_err_BL: Tensor
    time_BL: Tensor
    band_BL: Tensor
    mask_BL: Tensor

    @property
    def newest_B1(self) -> Tensor:
        """Column index of each row's newest observation."""
        return (self.mask_BL.sum(1, keepdim=True) - 1).clamp(min=0)

    def tail(self, count: int) -> "PaddedHistory":
        """Return the newest ``count`` observations, oldest first; missing ones of shorter rows are masked."""
        newest_B1 = self.newest_B1
        place_BT = (newest_B1 - count + 1).clamp(min=0) + torch.arange(count, device=newest_B1.device)
        # Masked columns repeat the newest observation, because they must be finite.
        flux, flux_err, time, band = (column.gather(1, place_BT.minimum(newest_B1)) for column in self[:4])
        return PaddedHistory(flux, flux_err, time, band, place_BT <= newest_B1)


class PaddedQueries(NamedTuple):
    """Padded queries [B, Q]: times, relative to the same origin as the history, and bands."""

    time_BQ: Tensor
    band_BQ: Tensor
    mask_BQ: Tensor


class InformerForecaster(nn.Module):
    """Forecaster; see the module docstring; sizes in :class:`models.networks.informer.InformerConfig`."""

    input_names = ("flux", "flux_err", "time", "band", "mask", *QUERIES)

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = InformerEncoder(config, scale=1.0), _decoder(config)
        self.embed = ObservationEmbedding(config.d_model, config.n_bands, scale=1.0)
        self.brightness = nn.Linear(1, config.d_model)
        self.when = Sinusoids(config.d_model, config.pe_base, config.pe_exponent, config.pe_two_pi, trainable=True)
        self.summary = nn.Linear(N_FEATURES, config.d_model) if config.anchor else None
        self.query_D = nn.Parameter(torch.zeros(config.d_model))
        self.head = nn.Linear(config.d_model, 3)
        self.apply(initialise)
        nn.init.zeros_(self.head.weight)  # so that an untrained network predicts the mean of its anchors

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
        """Forecast padded queries; arguments and units as in ``network``, rows as in :class:`PaddedHistory`."""
        history = PaddedHistory(flux_BL, flux_err_BL, time_BL, band_BL, mask_BL)
        return self.distribution(history, PaddedQueries(query_time_BQ, query_band_BQ, query_mask_BQ)).forecast()

    def distribution(self, history: PaddedHistory, queries: PaddedQueries) -> FluxDistribution:
        """Return the distribution whose moments :meth:`forward` returns; the likelihood needs it."""
        scale_B1, origin_B1 = object_scale(history), history.time_BL.gather(1, history.newest_B1)
        history = history._replace(
            flux_BL=history.flux_BL / scale_B1,
            flux_err_BL=(history.flux_err_BL / scale_B1).clamp(min=LEAST_ERROR),
            time_BL=history.time_BL - origin_B1,
        )
        queries = queries._replace(time_BQ=queries.time_BQ - origin_B1)
        summary, start = summarise(*history, self.config.n_bands), history.tail(self.config.start_tokens)
        x_BSD = torch.cat([self._start_tokens(start), self._query_tokens(queries, summary)], dim=1)
        x_BSD = x_BSD + self.brightness(torch.log(scale_B1 / self.config.flux_scale))[:, None]
        mask_BS = torch.cat([start.mask_BL, queries.mask_BQ], dim=1)
        x_BSD = self.decoder(x_BSD, mask_BS, *self.encoder(*history))
        shift_BQ, raw_BQ, gate_BQ = self.head(x_BSD[:, self.config.start_tokens :]).float().unbind(-1)
        if self.config.anchor:
            newest_BQ, mean_BQ = (
                y_BG.asinh().gather(1, queries.band_BQ) for y_BG in (summary.newest_BG, summary.mean_BG)
            )
            shift_BQ = shift_BQ + mean_BQ + gate_BQ.sigmoid() * (newest_BQ - mean_BQ)
        return FluxDistribution(shift_BQ, bounded_std(raw_BQ), scale_B1)

    def _start_tokens(self, start: PaddedHistory) -> Tensor:
        tokens_BTD: Tensor = self.embed(start.flux_BL, start.flux_err_BL, start.band_BL) + self.when(start.time_BL)
        return tokens_BTD

    def _query_tokens(self, queries: PaddedQueries, summary: BandSummary) -> Tensor:
        tokens_BQD: Tensor = self.query_D + self.embed.band_GD[queries.band_BQ] + self.when(queries.time_BQ)
        if self.summary is None:
            return tokens_BQD
        index_BQK = queries.band_BQ[..., None].expand(-1, -1, N_FEATURES)
        tokens_BQD = tokens_BQD + self.summary(summary.features().gather(1, index_BQK))
        return tokens_BQD


def object_scale(history: PaddedHistory) -> Tensor:
    """Return the root mean square s of each history's fluxes and errors, [B, 1]: sqrt(mean(flux^2 + flux_err^2))."""
    # Dividing by the peak avoids overflow of the squares.
    peak_B1 = torch.where(history.mask_BL, history.flux_BL.abs() + history.flux_err_BL, 0.0).amax(1, keepdim=True)
    square_BL = (history.flux_BL / peak_B1).square() + (history.flux_err_BL / peak_B1).square()
    total_B1 = torch.where(history.mask_BL, square_BL, 0.0).sum(1, keepdim=True)
    return peak_B1 * (total_B1 / history.mask_BL.sum(1, keepdim=True)).sqrt()


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
