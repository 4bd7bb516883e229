"""Informer (Zhou et al. 2021) for light curves of thousands of points: a classifier and a forecaster.

The classifier::

    (flux, flux_err) -> Linear, + band, + time -> [block, distil] x (n - 1), block -> LayerNorm -> masked mean -> head

Notable:

- ProbSparse attention costs L log L where full attention costs L^2, and every distilling halves L: this is the network
  for deep-field histories, trained on up to 1,024 points per band;
- two versions of the encoder. The paper's text and its later write-ups leave the norm open and have a bare convolution
  between blocks: pre-norm and ``distilling = "plain"``, the defaults. The released code is post-norm with circular
  padding and BatchNorm: ``norm_order = "post"`` and ``distilling = "released"``. Both end in a LayerNorm, as released;
- the released code has no padding mask anywhere. Here padding and other rows of the batch cannot change a
  result: they are masked in attention (also where ProbSparse samples, ranks and averages), distilling and mean;
- Informer's calendar (month, weekday, hour of a civil date) has no place in a light curve: time is days since the first
  observation, encoded by ``models.networks.parts.positional``, and the band has an embedding of its own;
- the mean over what is left after distilling makes the embedding. A [CLS] token would be convolved with its neighbours
  and be gone after the first pool.

The forecaster: the expected flux at requested times and bands, with its uncertainty::

    history -> encoder -> memory
    newest observations (start tokens) and queries -> decoder -> mean and std of asinh(flux / s) -> flux

Notable:

- the error of a forecast is the standard deviation of *one observation of the training survey*: what is unknown of the
  source and the noise of a typical visit in that band, together. It is not the error of the source's mean flux and
  supposes no depth of the future exposure; for a deeper instrument it is an upper bound;
- fluxes are divided by the root mean square s of the object's own history (:func:`object_scale`), so the encoder sees
  shapes and signal to noise; how bright that is in the survey's terms reaches the decoder as log(s / flux_scale);
- the answer is a Gaussian of asinh(flux / s), given as the moments of the flux (``network.FluxDistribution``);
- time is counted from the newest observation, so that a query is a number of days ahead (negative for the past);
- with ``anchor`` the predicted mean is a mix, which the network chooses, of the newest flux and of the inverse-variance
  mean of the query's band, plus a shift; both reach the query's token as well (:func:`band_summary`). They are the two
  forecasts that need no network, hard to beat, and cost a transformer much training to find. Without ``anchor`` it is
  Informer's decoder;
- a query's values are a learned vector; Informer feeds zeros.

The encoder: attention blocks, and between each two a distilling that halves the row::

    distilling (eq 5): x' = MaxPool(ELU(Conv1d(x))), kernel 3 in both, stride 2 in the pool

Notable: the paper and its released code close the convolution in a circle and put a BatchNorm before the ELU. Neither
knows padding, so there the end of a padded row leaks into its first token and batch mates share their statistics. Here
a row's answer never depends on its padding:

- ``plain`` (the default) pads with zeros, as beyond the last real token, and has no BatchNorm:
  a light curve's last night is no neighbour of its first, and nothing depends on batch mates;
- ``released`` closes the circle at the row's own last token and takes the statistics of real tokens only; without
  padding it is the released layer exactly. In training its statistics still come from the whole batch, as BatchNorm's
  must.

Rows must hold their tokens first, in order of time, and their padding last: the convolution sees neighbours in the row.

The decoder gives all answers in one pass, from start tokens and places to fill: self-attention, cross attention to the
encoded history (exact), feed-forward; residuals in either norm order, and a final norm.

Notable:

- the published self-attention is causal, over the start tokens and then the places to fill. Those are regular steps and
  always the same ones; where a caller picks them, asking one thing would change the answer to the next. With
  ``context = "independent"`` (the default) every token looks at the start tokens alone, itself coming in through the
  residual: an answer depends on its own question only;
- ``causal`` is the published one, by default with ProbSparse, whose lazy queries take the running sum of the values;
- the released decoder hands its mixed heads on as [H, S, E] read as [S, H E], which shuffles places and heads into
  each other before the output projection and makes an answer depend on the number of places; that is not repeated.

Legend: B batch, L length, N real tokens, M packed tokens, Q queries, T start tokens, D width, C classes, G bands,
K features. In encoder and decoder: S places (of the decoder S = T + Q, start tokens first), K places of the memory,
H heads, E = D / H.
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

from nightjar_alerts.models.networks.network import QUERIES, FluxDistribution, Forecast, Output, bounded_std
from nightjar_alerts.models.networks.parts.attention import AttentionConfig, CrossAttention, Position, SelfAttention
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
    """Rows of l tokens in, rows of ceil(l / 2) tokens out."""

    def __init__(self, width: int, kind: DistillingKind = "plain") -> None:
        super().__init__()
        self.kind = kind
        self.convolution = nn.Conv1d(width, width, 3)
        self.norm = nn.BatchNorm1d(width) if kind == "released" else None

    def forward(self, x_MD: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
        """Distil packed tokens without [CLS] and pack the result."""
        mask_BS1 = packing.mask_BS[..., None]
        x_BSD = torch.where(mask_BS1, packing.unpack(x_MD), 0.0)
        x_BSD = self.convolution(self._edges(x_BSD, mask_BS1).transpose(1, 2)).transpose(1, 2)
        x_BSD = self._normalise(x_BSD, packing)
        # ELU stays above -1, so a place at -1 loses every maximum, as one at minus infinity would.
        x_BSD = F.pad(torch.where(mask_BS1, F.elu(x_BSD), -1.0), (0, 0, 1, 1), value=-1.0)
        # Not max_pool1d: tracing it without gradients fixes the length.
        pooled_BSD = torch.maximum(torch.maximum(x_BSD[:, :-2:2], x_BSD[:, 1:-1:2]), x_BSD[:, 2::2])
        half = Packing.of(halve(packing.mask_BS), leading=False)
        return half.pack(pooled_BSD), half

    def _normalise(self, x_BSD: Tensor, packing: Packing) -> Tensor:
        """BatchNorm, its statistics those of the real places."""
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
        """Add a place before the first and after the last: zeros, or the row's other end."""
        if self.kind == "plain":
            return F.pad(x_BSD, (0, 0, 1, 1))
        length_B11 = mask_BS1.sum(1, keepdim=True)
        last_B1D = x_BSD.gather(1, (length_B11 - 1).clamp(min=0).expand(-1, 1, x_BSD.shape[2]))
        closed_BSD = F.pad(torch.cat([last_B1D, x_BSD], dim=1), (0, 0, 0, 1))
        place_S1 = torch.arange(closed_BSD.shape[1], device=x_BSD.device)[:, None]
        return torch.where(place_S1 == length_B11 + 1, x_BSD[:, :1], closed_BSD)


def halve(x_BS: Tensor) -> Tensor:
    """Return every second place, the first included: the places of distilled tokens."""
    return x_BS.index_select(1, torch.arange(0, x_BS.shape[1], 2, device=x_BS.device))


class DistilledEncoder(nn.Module):
    """Blocks with a distilling between each two (none where ``kind`` is None), and a final norm, as released."""

    def __init__(self, width: int, blocks: Sequence[Block], kind: DistillingKind | None) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.distillings = nn.ModuleList(Distilling(width, kind) for _ in blocks[1:] if kind is not None)

    def forward(
        self, x_MD: Tensor, packing: Packing, positions: Iterable[Position | None] = repeat(None)
    ) -> tuple[Tensor, Packing]:
        """Encode packed tokens without [CLS]; the result is shorter, with a packing of its own.

        ``positions`` gives each block's position; with distillings each is for half as many places as the one before.
        """
        for number, (block, position) in enumerate(zip(self.blocks, positions, strict=False)):
            if 0 < number <= len(self.distillings):
                x_MD, packing = self.distillings[number - 1](x_MD, packing)
            x_MD, _ = block(x_MD, packing, position)
        return self.norm(x_MD), packing


QueryContext = Literal["independent", "causal"]


class StartAttention(nn.Module):
    """Every token looks at the first ``n_start`` places only."""

    def __init__(self, width: int, n_heads: int, dropout: float, n_start: int) -> None:
        super().__init__()
        self.n_start = n_start
        self.attention = CrossAttention(width, n_heads, dropout)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Map a grid [B, S, D]; keys outside ``mask_BS`` are masked."""
        mixed_BSD: Tensor = self.attention(x_BSD, x_BSD[:, : self.n_start], mask_BS[:, : self.n_start])
        return mixed_BSD


class CausalAttention(nn.Module):
    """Every token looks at itself and the places before it, in the configured kind of attention."""

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
        """Decode a grid [B, S, D] against the memory [B, K, D]; what padded places hold means nothing."""
        for block in self.blocks:
            x_BSD = block(x_BSD, mask_BS, memory_BKD, memory_mask_BK)
        normed: Tensor = self.norm(x_BSD)
        return normed


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
    """Embedding of what was observed, without when: a linear map of the values, plus a vector of the band."""

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
        stages = self._stages(TokenTimes(time_BL, band_BL, mask_BL))
        x_MD = self.dropout(self.time.embed(self.embed(*observed), stages[0]))
        positions = (self.time.position(times) for times in stages)
        x_MD, packing = self.encoder(x_MD, Packing.of(mask_BL, leading=False), positions)
        return packing.unpack(self.time.finish(x_MD, stages[-1])), packing.mask_BS

    def _stages(self, times: TokenTimes) -> list[TokenTimes]:
        """Return the times of each block's tokens: a distilled token is at the middle one of its three."""
        stages = [times]
        for _ in self.encoder.distillings:
            times = TokenTimes(halve(times.time_BL), halve(times.band_BL), halve(times.packed_BL))
            stages.append(times)
        return stages + [times] * (len(self.encoder.blocks) - len(stages))


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


N_FEATURES = 6


class BandSummary(NamedTuple):
    """Summary of each band [B, G]; fluxes are 0 where ``seen_BG`` is False.

    Attributes
    ----------
    present_BG : whether the band has an observation.
    newest_BG, newest_err_BG : its newest flux and that one's error.
    age_BG : days from it to the newest observation of any band.
    mean_BG, mean_err_BG : inverse-variance mean of its fluxes, and the error of that mean.
    """

    present_BG: Tensor
    newest_BG: Tensor
    newest_err_BG: Tensor
    age_BG: Tensor
    mean_BG: Tensor
    mean_err_BG: Tensor

    def features(self) -> Tensor:
        """Numbers of order one for a network, [B, G, K], all 0 for a band without observations."""
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
    """Summarise padded histories, each row in order of time, times counted from its newest observation (so negative).

    Fluxes are in units in which they are of order one; errors are positive, in padding too.
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
        """Place of each row's newest observation."""
        return (self.mask_BL.sum(1, keepdim=True) - 1).clamp(min=0)

    def tail(self, count: int) -> "PaddedHistory":
        """Return the newest ``count`` observations, oldest first; what a shorter row lacks is masked."""
        newest_B1 = self.newest_B1
        place_BT = (newest_B1 - count + 1).clamp(min=0) + torch.arange(count, device=newest_B1.device)
        # Masked places repeat the newest observation: they must hold something finite.
        flux, flux_err, time, band = (column.gather(1, place_BT.minimum(newest_B1)) for column in self[:4])
        return PaddedHistory(flux, flux_err, time, band, place_BT <= newest_B1)


class PaddedQueries(NamedTuple):
    """Padded queries [B, Q]: when, relative to the same time as the history, and in which band."""

    time_BQ: Tensor
    band_BQ: Tensor
    mask_BQ: Tensor


class InformerForecaster(nn.Module):
    """See the module docstring; sizes in :class:`models.networks.informer.InformerConfig`."""

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
        """Predict as :meth:`forward` does, before the moments are taken: what a likelihood needs."""
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
    """Root mean square s of each history's fluxes and errors, [B, 1]: sqrt(mean(flux^2 + flux_err^2))."""
    # Squares of fluxes as they are could overflow.
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
