"""Transformer blocks of the light-curve and metadata branches, mixtures of experts, and the metadata branch.

Pre-norm (ATAT): x += Attention(LN x); x += FeedForward(LN x); no final norm, because the heads begin with a norm.
Post-norm: x = LN(x + Attention(x)); x = LN(x + FeedForward(x)). The feed-forward part is dense or a sparse mixture.

The mixture (Astro-MoE eqs 1-5) has a router, feed-forward experts, input experts and a balance loss. The router selects
the top-k logits and applies the softmax to them (eq 2, as in Mixtral; a config field selects the other order). There is
no noise, no capacity limit and no dropped token. Only the chosen feed-forward experts are computed. The input experts
map 2 numbers to D without bias (eq 4): they are computed as one [N, 2E] x [2E, D] product whose rows are zero except
for the chosen experts. This is 0.2 % of the work per token, and sorting rows by expert would cost more than it saves.

Legend: B batch, S places, M packed tokens, D width; C columns, P columns present in the batch, N real tokens, Q knots;
E experts, K kept experts, F hidden width, I input features.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.networks import ranks
from nightjar_alerts.models.networks.parts.attention import AttentionConfig, PositionEncoding, SelfAttention
from nightjar_alerts.models.networks.parts.packing import Packing, group_counts, group_mask, mix_grouped, pack_values

RouterSoftmax = Literal["topk", "full"]
Activation = Literal["gelu", "gelu_tanh", "silu", "relu"]

ACTIVATIONS: dict[Activation, nn.Module] = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "relu": nn.ReLU(),
}


class Routing(NamedTuple):
    """Routing of N tokens: chosen experts, their weights, and all logits."""

    expert_NK: Tensor
    weight_NK: Tensor
    logits_NE: Tensor

    def load_E(self) -> Tensor:
        """Return the number of tokens sent to each expert, int64 [E]; sums to N * K."""
        return group_counts(group_mask(self.expert_NK, self.logits_NE.shape[1]))

    def balance_loss(self) -> Tensor:
        """Return the load-balance loss, Astro-MoE eq 5: E * sum_e(mean softmax_e * fraction of tokens sent to e).

        The fractions sum to K, as in Mixtral, so the minimum, reached at even load, is K. In training with several
        processes both means are over the tokens of all processes.
        """
        n_tokens, n_experts = self.logits_NE.shape
        chance_NE = self.logits_NE.softmax(-1)
        chance_E, share_E = ranks.mean(torch.stack([chance_NE.sum(0), self.load_E().to(chance_NE)]), n_tokens)
        loss: Tensor = n_experts * (chance_E * share_E).sum()
        return loss


class Router(nn.Module):
    """Top-k gate (eqs 1-2): logits = W x + b over the experts."""

    def __init__(self, width: int, n_experts: int, top_k: int, softmax: RouterSoftmax) -> None:
        super().__init__()
        self.top_k, self.softmax = top_k, softmax
        self.gate = nn.Linear(width, n_experts)
        nn.init.zeros_(self.gate.bias)  # random biases would outweigh small inputs and leave experts unused at first

    def forward(self, x_ND: Tensor) -> Routing:
        """Route tokens [N, D]."""
        logits_NE = self.gate(x_ND).float()  # half-precision logits would make ties common
        gate_NK, expert_NK = logits_NE.topk(self.top_k, dim=-1)
        if self.softmax == "full":
            gate_NK = logits_NE.softmax(-1).gather(1, expert_NK)
            return Routing(expert_NK, gate_NK, logits_NE)
        return Routing(expert_NK, gate_NK.softmax(-1), logits_NE)


class FeedForwardExperts(nn.Module):
    """E feed-forward networks D -> F -> D, K of which process each token (eq 3)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        n_experts: int,
        top_k: int,
        activation: Activation = "gelu",
        softmax: RouterSoftmax = "topk",
    ) -> None:
        super().__init__()
        self.n_experts, self.activation = n_experts, ACTIVATIONS[activation]
        self.router = Router(width, n_experts, top_k, softmax)
        self.w1_EDF = nn.Parameter(torch.empty(n_experts, width, hidden))
        self.b1_EF = nn.Parameter(torch.zeros(n_experts, hidden))
        self.w2_EFD = nn.Parameter(torch.empty(n_experts, hidden, width))
        self.b2_ED = nn.Parameter(torch.zeros(n_experts, width))
        nn.init.normal_(self.w1_EDF, std=0.02)
        nn.init.normal_(self.w2_EFD, std=0.02)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Routing]:
        """Return the weighted sum of the chosen experts, [N, D], and the routing."""
        routing: Routing = self.router(x_ND)
        return mix_grouped(x_ND, routing.expert_NK, routing.weight_NK, self.n_experts, self._expert), routing

    def _expert(self, expert: int, x_ND: Tensor) -> Tensor:
        hidden_NF = self.activation(torch.addmm(self.b1_EF[expert], x_ND, self.w1_EDF[expert]))
        return torch.addmm(self.b2_ED[expert], hidden_NF, self.w2_EFD[expert])


class InputExperts(nn.Module):
    """E bias-free linear maps of one observation (eq 4), K of which process each observation."""

    def __init__(self, n_inputs: int, width: int, n_experts: int, top_k: int, softmax: RouterSoftmax = "topk") -> None:
        super().__init__()
        self.router = Router(n_inputs, n_experts, top_k, softmax)
        self.weight_EID = nn.Parameter(torch.empty(n_experts, n_inputs, width))
        # As wide as torch's own Linear: at 0.02 the flux would drown in the time modulation's additive term.
        nn.init.uniform_(self.weight_EID, -(n_inputs**-0.5), n_inputs**-0.5)

    def fan_out_gate(self, scale: float = 0.5) -> None:
        """Spread the gate directions evenly over the half plane of (flux, error) with positive errors.

        With random gates some experts are preferred by no observation, and the balance loss is too weak to change that:
        one of six was still unused after 500 steps.
        """
        angle_E = torch.linspace(0.0, torch.pi, self.router.gate.out_features + 2)[1:-1]
        with torch.no_grad():
            self.router.gate.weight.copy_(scale * torch.stack([angle_E.cos(), angle_E.sin()], dim=1))

    def forward(self, x_NI: Tensor) -> tuple[Tensor, Routing]:
        """Embed observations [N, I] as [N, D]; also return the routing."""
        routing: Routing = self.router(x_NI)
        gate_NE = torch.zeros_like(routing.logits_NE).scatter(1, routing.expert_NK, routing.weight_NK)
        experts, inputs, _ = self.weight_EID.shape  # two matrix products are faster than a broadcast outer product
        each_EX = torch.eye(experts).repeat_interleave(inputs, dim=1).to(x_NI)
        every_IX = torch.eye(inputs).repeat(1, experts).to(x_NI)
        return ((gate_NE.to(x_NI) @ each_EX) * (x_NI @ every_IX)) @ self.weight_EID.flatten(0, 1), routing


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
        self, x_MD: Tensor, packing: Packing, position: PositionEncoding | None = None
    ) -> tuple[Tensor, Routing | None]:
        """Transform packed tokens [M, D]; also return the routing if the feed-forward part is a mixture."""
        mixed_MD = self.attention(self.norm1(x_MD) if self.order == "pre" else x_MD, packing, position)
        return self._add_residuals(x_MD, mixed_MD)

    def forward_leading(self, x_MD: Tensor, packing: Packing) -> tuple[Tensor, Routing | None]:
        """Return the output of :meth:`forward` for the leading tokens only, [B, D], and their routing."""
        mixed_BD = self.attention.forward_leading(self.norm1(x_MD) if self.order == "pre" else x_MD, packing)
        return self._add_residuals(x_MD[: packing.mask_BS.shape[0]], mixed_BD)

    def _add_residuals(self, x_MD: Tensor, mixed_MD: Tensor) -> tuple[Tensor, Routing | None]:
        """Add the attention output ``mixed_MD`` and then the feed-forward output to the residual stream."""
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
        """True if each row begins with a [CLS] token."""
        return self.cls_1D is not None

    @property
    def last_block_cls_only(self) -> bool:
        """True if the last block of :meth:`encode_pooled` computes the [CLS] tokens only."""
        last = self.blocks[-1]
        assert isinstance(last, Block)
        return self.leading and last.attention.supports_forward_leading

    def forward(
        self, x_ND: Tensor, mask_BL: Tensor, packed_BL: Tensor | None = None, position: PositionEncoding | None = None
    ) -> tuple[Tensor, list[Routing]]:
        """Encode the tokens [N, D] of ``mask_BL`` (or ``packed_BL`` if given) to [B, D]; also return the routings."""
        x_MD, packing, routings = self.tokens(x_ND, mask_BL, packed_BL, position)
        return self.pool(x_MD, packing), routings

    def tokens(
        self, x_ND: Tensor, mask_BL: Tensor, packed_BL: Tensor | None = None, position: PositionEncoding | None = None
    ) -> tuple[Tensor, Packing, list[Routing]]:
        """Encode to tokens [M, D], the [CLS]s first; also return their packing and the routings.

        ``position`` is for the padded grid [B, S], including the [CLS] position.
        """
        packing = Packing.of(mask_BL, self.leading, packed_BL)
        x_MD, routings = self._run_blocks(self._with_cls(x_ND, mask_BL), packing, len(self.blocks), position)
        return x_MD, packing, routings

    def encode_pooled(
        self, x_ND: Tensor, mask_BL: Tensor, packed_BL: Tensor | None = None
    ) -> tuple[Tensor, list[Routing]]:
        """Encode as :meth:`forward` does, but compute the last block for the [CLS] tokens only.

        The [CLS] tokens attend to all tokens; the last routing contains the [CLS] tokens only.
        """
        last = self.blocks[-1]
        assert isinstance(last, Block)
        if not self.last_block_cls_only:
            return self(x_ND, mask_BL, packed_BL)  # type: ignore[no-any-return]  # a module's call is untyped
        packing = Packing.of(mask_BL, self.leading, packed_BL)
        x_MD, routings = self._run_blocks(self._with_cls(x_ND, mask_BL), packing, len(self.blocks) - 1)
        x_BD, routing = last.forward_leading(x_MD, packing)
        return x_BD, [*routings, *([] if routing is None else [routing])]

    def _with_cls(self, x_ND: Tensor, mask_BL: Tensor) -> Tensor:
        """Return tokens [M, D] with the [CLS] tokens, if any, prepended."""
        if self.cls_1D is None:
            return x_ND
        return torch.cat([self.cls_1D.expand(mask_BL.shape[0], -1).to(x_ND.dtype), x_ND])

    def _run_blocks(
        self, x_MD: Tensor, packing: Packing, blocks: int, position: PositionEncoding | None = None
    ) -> tuple[Tensor, list[Routing]]:
        """Run the first ``blocks`` blocks on packed tokens; also return the routings."""
        routings = []
        for block in list(self.blocks)[:blocks]:  # slicing a ModuleList would create modules with other names
            x_MD, routing = block(x_MD, packing, position)
            if routing is not None:
                routings.append(routing)
        return x_MD, routings

    def pool(self, x_MD: Tensor, packing: Packing) -> Tensor:
        """Return one vector per row [B, D]: its [CLS] token, or the mean of its tokens."""
        if self.cls_1D is not None:
            return x_MD[: packing.mask_BS.shape[0]]
        weight_BS = packing.mask_BS.to(x_MD.dtype)
        total_BD = (packing.unpack(x_MD) * weight_BS[..., None]).sum(1)
        return total_BD / weight_BS.sum(1, keepdim=True).clamp(min=1)


_check: Callable[[bool], None] = torch._check

SCORE_LIMIT = 5.1993  # scikit-learn's QuantileTransformer clips normal scores there (probability 1e-7)


class QuantileTransform(nn.Module):
    """Monotone piecewise-linear map of each column to normal scores, fitted on the finite training values.

    scikit-learn's QuantileTransformer is linear in probability between quantiles; this one is linear in the score
    between ``n_knots`` quantiles, so that the exported graph needs no inverse error function. Both agree at the knots.
    A tied value maps to the middle of its range of scores, a constant column to 0.
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
        below_BP = (x_BP[..., None] >= x_PQ).to(x_BP.dtype).sum(-1).long() - 1  # sums of integers are six times slower
        knot_BP = below_BP.clamp(0, self.n_knots - 2)
        place_P = torch.arange(x_BP.shape[1], device=x_BP.device) * self.n_knots
        knot_BP = knot_BP + place_P
        x0_BP, x1_BP = x_PQ.flatten()[knot_BP], x_PQ.flatten()[knot_BP + 1]
        y0_BP, y1_BP = score_PQ.flatten()[knot_BP], score_PQ.flatten()[knot_BP + 1]
        fraction_BP = ((x_BP - x0_BP) / (x1_BP - x0_BP)).clamp(0, 1)
        return y0_BP + fraction_BP * (y1_BP - y0_BP)


def _knots(values: NDArray[np.float64], n_knots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the distinct quantiles and their normal scores, at most ``n_knots`` of each."""
    probability = np.linspace(0, 1, n_knots)
    x = np.quantile(values, probability).astype(np.float32)
    score = torch.special.ndtri(torch.from_numpy(probability)).clamp(-SCORE_LIMIT, SCORE_LIMIT).numpy()
    distinct, first, count = np.unique(x, return_index=True, return_counts=True)
    middle = (score[first] + score[first + count - 1]) / 2
    return distinct, middle.astype(np.float32)


class TabularTransformer(nn.Module):
    """ATAT's tabular transformer: each metadata column, after a quantile transform, becomes a token W_f * x_f + b_f.

    The input is metadata rows [B, C], NaN where missing; the output is one vector per object. A missing column has no
    token, so it is neither attended to nor computed. An object without metadata, such as all real Rubin and ZTF alerts,
    is encoded from the [CLS] token alone. The quantile transform is part of the network, so the graph needs no other
    fitted object.
    """

    def __init__(self, n_columns: int, width: int, n_knots: int, encoder: Encoder) -> None:
        super().__init__()
        self.quantiles = QuantileTransform(n_columns, n_knots)
        self.weight_CD = nn.Parameter(torch.randn(n_columns, width))
        self.bias_CD = nn.Parameter(torch.randn(n_columns, width))
        self.encoder = encoder

    def forward(self, metadata_BC: Tensor, prediction_only: bool = False) -> Tensor:
        """Encode to [B, D]; ``prediction_only`` computes the last block for the [CLS] tokens only."""
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
        embedding_BD = (self.encoder.encode_pooled if prediction_only else self.encoder)(x_ND, mask_BP)[0]
        return embedding_BD
