"""The transformer block shared by the light-curve and the metadata branch, pooling, and the metadata branch itself.

Pre-norm (ATAT): x += Attention(LN x); x += FeedForward(LN x); no final norm, the heads have their own. Post-norm is the
other reading: x = LN(x + Attention(x)); x = LN(x + FeedForward(x)). The feed-forward part is dense or a sparse mixture.

Legend: B batch, S places, M packed tokens, D width; C columns, P columns present in the batch, N real tokens, Q knots.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.networks.attention.attention import AttentionConfig, Position, SelfAttention
from models.networks.parts.moe import Routing
from models.networks.parts.packing import Packing, pack_values

NormOrder = Literal["pre", "post"]
Pooling = Literal["cls", "mean"]

FeedForward = Callable[[Tensor], tuple[Tensor, Routing | None]]


class DenseFeedForward(nn.Module):
    """Linear D -> F, activation, Linear F -> D."""

    def __init__(self, width: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))

    def forward(self, x_MD: Tensor) -> tuple[Tensor, None]:
        """Map tokens [M, D]; no routing."""
        return self.layers(x_MD), None


class Block(nn.Module):
    """Attention and feed-forward with residuals, in either norm order."""

    def __init__(
        self,
        width: int,
        n_heads: int,
        feed_forward: nn.Module,
        order: NormOrder,
        dropout: float,
        attention: AttentionConfig = AttentionConfig(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.order = order
        self.attention = SelfAttention(width, n_heads, dropout, config=attention)
        self.feed_forward = feed_forward
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_MD: Tensor, packing: Packing, position: Position | None = None
    ) -> tuple[Tensor, Routing | None]:
        """Packed tokens in and out, and the routing when the feed-forward part is a mixture."""
        mixed_MD = self.attention(self.norm1(x_MD) if self.order == "pre" else x_MD, packing, position)
        return self._finished(x_MD, mixed_MD)

    def leading(self, x_MD: Tensor, packing: Packing) -> tuple[Tensor, Routing | None]:
        """Return what :meth:`forward` makes of the leading tokens [B, D], and the routing of those alone."""
        mixed_BD = self.attention.leading(self.norm1(x_MD) if self.order == "pre" else x_MD, packing)
        return self._finished(x_MD[: packing.mask_BS.shape[0]], mixed_BD)

    def _finished(self, x_MD: Tensor, mixed_MD: Tensor) -> tuple[Tensor, Routing | None]:
        """Add what attention mixed, and what the feed-forward part makes of that."""
        x_MD = x_MD + self.dropout(mixed_MD)
        if self.order == "pre":
            y_MD, routing = self.feed_forward(self.norm2(x_MD))
            return x_MD + self.dropout(y_MD), routing
        x_MD = self.norm1(x_MD)
        y_MD, routing = self.feed_forward(x_MD)
        return self.norm2(x_MD + self.dropout(y_MD)), routing


class Encoder(nn.Module):
    """A stack of blocks with an optional learned [CLS] token, ending in one vector per row."""

    def __init__(self, width: int, blocks: list[Block], pooling: Pooling) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.cls_1D = nn.Parameter(torch.randn(1, width)) if pooling == "cls" else None

    @property
    def leading(self) -> bool:
        """True where a [CLS] token leads each row."""
        return self.cls_1D is not None

    def forward(
        self, x_ND: Tensor, mask_BL: Tensor, kept_BL: Tensor | None = None, position: Position | None = None
    ) -> tuple[Tensor, list[Routing]]:
        """Encode the tokens [N, D] of ``mask_BL`` (of ``kept_BL`` where given) to [B, D]; also the routings."""
        x_MD, packing, routings = self.tokens(x_ND, mask_BL, kept_BL, position)
        return self.pool(x_MD, packing), routings

    def tokens(
        self, x_ND: Tensor, mask_BL: Tensor, kept_BL: Tensor | None = None, position: Position | None = None
    ) -> tuple[Tensor, Packing, list[Routing]]:
        """Encode to tokens [M, D], the [CLS]s first; also where they sit, and the routings.

        ``position`` is for the padded grid [B, S], [CLS] place included.
        """
        packing = Packing.of(mask_BL, self.leading, kept_BL)
        x_MD, routings = self._through(self._led(x_ND, mask_BL), packing, len(self.blocks), position)
        return x_MD, packing, routings

    def answer(self, x_ND: Tensor, mask_BL: Tensor, kept_BL: Tensor | None = None) -> tuple[Tensor, list[Routing]]:
        """Encode as :meth:`forward`, with no more of the last block than the answer needs: that of the [CLS]s.

        They look at all tokens, but no other token goes on, so the last routing is that of the [CLS]s alone.
        """
        last = self.blocks[-1]
        assert isinstance(last, Block)
        if not self.leading or not last.attention.answers_alone:
            return self(x_ND, mask_BL, kept_BL)  # type: ignore[no-any-return]  # a module's call is untyped
        packing = Packing.of(mask_BL, self.leading, kept_BL)
        x_MD, routings = self._through(self._led(x_ND, mask_BL), packing, len(self.blocks) - 1)
        x_BD, routing = last.leading(x_MD, packing)
        return x_BD, [*routings, *([] if routing is None else [routing])]

    def _led(self, x_ND: Tensor, mask_BL: Tensor) -> Tensor:
        """Tokens [M, D] with the [CLS]s in front, where there are any."""
        if self.cls_1D is None:
            return x_ND
        return torch.cat([self.cls_1D.expand(mask_BL.shape[0], -1).to(x_ND.dtype), x_ND])

    def _through(
        self, x_MD: Tensor, packing: Packing, blocks: int, position: Position | None = None
    ) -> tuple[Tensor, list[Routing]]:
        """Send tokens through the first so many blocks."""
        routings = []
        for block in list(self.blocks)[:blocks]:  # a slice would be a list of modules of another name
            x_MD, routing = block(x_MD, packing, position)
            if routing is not None:
                routings.append(routing)
        return x_MD, routings

    def pool(self, x_MD: Tensor, packing: Packing) -> Tensor:
        """One vector per row [B, D]: its [CLS], or the mean of its tokens."""
        if self.cls_1D is not None:
            return x_MD[: packing.mask_BS.shape[0]]
        weight_BS = packing.mask_BS.to(x_MD.dtype)
        total_BD = (packing.unpack(x_MD) * weight_BS[..., None]).sum(1)
        return total_BD / weight_BS.sum(1, keepdim=True).clamp(min=1)


_check: Callable[[bool], None] = torch._check

SCORE_LIMIT = 5.1993  # scikit-learn's QuantileTransformer clips normal scores there (probability 1e-7)


class QuantileTransform(nn.Module):
    """Monotone piecewise-linear map of each column to normal scores, fitted on the finite training values.

    Unlike scikit-learn's (linear in probability between quantiles), this is linear in the score between ``n_knots``
    quantiles, which needs no inverse error function in the exported graph; at the knots the two agree. A tied value
    maps to the middle of its range of scores, a constant column to 0.
    """

    x_CQ: Tensor
    score_CQ: Tensor

    def __init__(self, n_columns: int, n_knots: int) -> None:
        super().__init__()
        self.n_knots = n_knots
        self.register_buffer("x_CQ", torch.full((n_columns, n_knots), torch.inf))
        self.x_CQ[:, 0] = 0.0  # a column that was never fitted maps to 0, not to inf - inf
        self.register_buffer("score_CQ", torch.zeros(n_columns, n_knots))

    def fit(self, values_NC: NDArray[np.floating]) -> None:
        """Fit on training rows [N, C], NaN where missing; a column without a finite value maps to 0."""
        for column in range(values_NC.shape[1]):
            values = values_NC[:, column].astype(np.float64)
            values = values[np.isfinite(values)]
            if values.size:
                x, score = _knots(values, self.n_knots)
                self.x_CQ[column] = torch.inf
                self.x_CQ[column, : x.size] = torch.from_numpy(x)
                self.score_CQ[column] = float(score[-1])
                self.score_CQ[column, : x.size] = torch.from_numpy(score)

    def forward(self, x_BP: Tensor, column_P: Tensor) -> Tensor:
        """Return the normal scores [B, P] of the columns ``column_P``; NaN stays NaN."""
        x_PQ, score_PQ = self.x_CQ[column_P], self.score_CQ[column_P]
        below_BP = (x_BP[..., None] >= x_PQ).to(x_BP.dtype).sum(-1).long() - 1  # whole numbers add up six times slower
        left_BP = below_BP.clamp(0, self.n_knots - 2)
        place_P = torch.arange(x_BP.shape[1], device=x_BP.device) * self.n_knots
        left_BP = left_BP + place_P
        x0_BP, x1_BP = x_PQ.flatten()[left_BP], x_PQ.flatten()[left_BP + 1]
        y0_BP, y1_BP = score_PQ.flatten()[left_BP], score_PQ.flatten()[left_BP + 1]
        fraction_BP = ((x_BP - x0_BP) / (x1_BP - x0_BP)).clamp(0, 1)
        return y0_BP + fraction_BP * (y1_BP - y0_BP)


def _knots(values: NDArray[np.float64], n_knots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Distinct quantiles and their normal scores, at most ``n_knots`` of each."""
    probability = np.linspace(0, 1, n_knots)
    x = np.quantile(values, probability).astype(np.float32)
    score = torch.special.ndtri(torch.from_numpy(probability)).clamp(-SCORE_LIMIT, SCORE_LIMIT).numpy()
    distinct, first, count = np.unique(x, return_index=True, return_counts=True)
    middle = (score[first] + score[first + count - 1]) / 2
    return distinct, middle.astype(np.float32)


class TabularTransformer(nn.Module):
    """ATAT's tabular transformer: each metadata column is a token, W_f * x_f + b_f, under a quantile transform.

    Missing metadata is ordinary input (real Rubin and ZTF alerts carry none of the columns): a missing column has no
    token, so it is neither attended to nor computed, and an object without metadata is encoded from the [CLS] token
    alone. The quantile transform to normal scores lives inside the network, so no fitted object travels beside the
    graph.

    Metadata rows [B, C], NaN where missing, to one vector per object.
    """

    def __init__(self, n_columns: int, width: int, n_knots: int, encoder: Encoder) -> None:
        super().__init__()
        self.quantiles = QuantileTransform(n_columns, n_knots)
        self.weight_CD = nn.Parameter(torch.randn(n_columns, width))
        self.bias_CD = nn.Parameter(torch.randn(n_columns, width))
        self.encoder = encoder

    def forward(self, metadata_BC: Tensor, only_answer: bool = False) -> Tensor:
        """Encode to [B, D]; with ``only_answer`` no more of the last block is computed than that needs."""
        present_BC = metadata_BC == metadata_BC  # not NaN
        is_first_C = torch.arange(present_BC.shape[1], device=present_BC.device) == 0
        column_P = (present_BC.any(0) | is_first_C).nonzero()[:, 0]  # never empty: an empty axis does not export
        _check(column_P.shape[0] >= 1)
        _check(column_P.shape[0] <= present_BC.shape[1])
        score_BP = self.quantiles(metadata_BC[:, column_P], column_P)
        mask_BP = present_BC[:, column_P]
        column_BP = column_P.expand(mask_BP.shape)
        column_N = pack_values(column_BP, mask_BP)
        x_ND = pack_values(score_BP, mask_BP)[:, None] * self.weight_CD[column_N] + self.bias_CD[column_N]
        embedding_BD = (self.encoder.answer if only_answer else self.encoder)(x_ND, mask_BP)[0]
        return embedding_BD
