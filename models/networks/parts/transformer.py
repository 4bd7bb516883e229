"""The transformer block shared by the light-curve and the metadata branch, and pooling.

Pre-norm (ATAT): x += Attention(LN x); x += FeedForward(LN x); no final norm, the heads have their own. Post-norm is the
other reading: x = LN(x + Attention(x)); x = LN(x + FeedForward(x)). The feed-forward part is dense or a sparse mixture.

Legend: B batch, S places, M packed tokens, D width.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from models.networks.attention.attention import AttentionConfig, Position, SelfAttention
from models.networks.parts.moe import Routing
from models.networks.parts.packing import Packing

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
