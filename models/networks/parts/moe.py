"""Sparse mixtures of experts (Astro-MoE eqs 1-5): router, feed-forward experts, input experts, balance loss.

Notable: the router keeps the top-k logits and takes the softmax over those only (eq 2, Mixtral's order; the other
order is a config field). No noise, no capacity limit, no dropped token. Only the chosen feed-forward experts are
computed. The input experts map 2 numbers to D without bias (eq 4): all of them together are one [N, 2E] x [2E, D]
product whose rows are zero but for the chosen experts. That is 0.2 % of a token's work, and sorting rows by expert
would cost more than it saves.

Legend: N tokens, D width, E experts, K kept experts, F hidden width, I input features.
"""

import functools
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.networks import ranks
from models.networks.parts.packing import apply_grouped, chosen, loads

RouterSoftmax = Literal["topk", "full"]
Activation = Literal["gelu", "gelu_tanh", "silu", "relu"]

ACTIVATIONS: dict[Activation, nn.Module] = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "relu": nn.ReLU(),
}


class Routing(NamedTuple):
    """The router's decision for N tokens: chosen experts, their weights, all logits."""

    expert_NK: Tensor
    weight_NK: Tensor
    logits_NE: Tensor

    def load_E(self) -> Tensor:
        """Tokens sent to each expert, int64 [E]; sums to N * K."""
        return loads(chosen(self.expert_NK.t(), self.logits_NE.shape[1]))

    def balance_loss(self) -> Tensor:
        """Auxiliary load-balance loss, Astro-MoE eq 5: E * sum_e(mean softmax_e * share of tokens sent to e).

        The shares sum to K (reading "B" of the text, that of Mixtral), so the minimum, reached at even load, is K. In
        training with several processes both means are over the tokens of all of them.
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
        nn.init.zeros_(self.gate.bias)  # a random bias would outweigh small inputs and start with idle experts

    def forward(self, x_ND: Tensor) -> Routing:
        """Route tokens [N, D]."""
        logits_NE = self.gate(x_ND).float()  # half-precision logits would make ties common
        kept_NK, expert_NK = logits_NE.topk(self.top_k, dim=-1)
        if self.softmax == "full":
            kept_NK = logits_NE.softmax(-1).gather(1, expert_NK)
            return Routing(expert_NK, kept_NK, logits_NE)
        return Routing(expert_NK, kept_NK.softmax(-1), logits_NE)


class FeedForwardExperts(nn.Module):
    """E feed-forward networks D -> F -> D of which each token passes through K (eq 3)."""

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
        """Weighted sum of the chosen experts, [N, D], and the routing."""
        routing: Routing = self.router(x_ND)
        kept = apply_grouped(x_ND, routing.expert_NK.t(), self.n_experts, self._expert)
        weights = torch.split(routing.weight_NK.to(kept[0].dtype), 1, dim=1)
        weighed = [y_ND * weight_N1 for y_ND, weight_N1 in zip(kept, weights, strict=True)]
        return functools.reduce(torch.add, weighed), routing

    def _expert(self, expert: int, x_ND: Tensor) -> Tensor:
        hidden_NF = self.activation(torch.addmm(self.b1_EF[expert], x_ND, self.w1_EDF[expert]))
        return torch.addmm(self.b2_ED[expert], hidden_NF, self.w2_EFD[expert])


class InputExperts(nn.Module):
    """E bias-free linear maps of one observation (eq 4), of which each observation uses K."""

    def __init__(self, n_inputs: int, width: int, n_experts: int, top_k: int, softmax: RouterSoftmax = "topk") -> None:
        super().__init__()
        self.router = Router(n_inputs, n_experts, top_k, softmax)
        self.weight_EID = nn.Parameter(torch.empty(n_experts, n_inputs, width))
        # As wide as torch's own Linear: at 0.02 the flux would drown in the time modulation's additive term.
        nn.init.uniform_(self.weight_EID, -(n_inputs**-0.5), n_inputs**-0.5)

    def fan_out_gate(self, scale: float = 0.5) -> None:
        """Point the gates evenly across the half plane of (flux, error), which observations fill: errors are positive.

        Random gates of two inputs leave experts that no observation ever prefers, and the balance loss is too weak to
        wake them: measured, one of six stayed idle after 500 steps.
        """
        angle_E = torch.linspace(0.0, torch.pi, self.router.gate.out_features + 2)[1:-1]
        with torch.no_grad():
            self.router.gate.weight.copy_(scale * torch.stack([angle_E.cos(), angle_E.sin()], dim=1))

    def forward(self, x_NI: Tensor) -> tuple[Tensor, Routing]:
        """Embed observations [N, I] as [N, D], and the routing."""
        routing: Routing = self.router(x_NI)
        gate_NE = torch.zeros_like(routing.logits_NE).scatter(1, routing.expert_NK, routing.weight_NK)
        experts, inputs, _ = self.weight_EID.shape  # the outer product, by two of matrices: broadcasting costs more
        each_EX = torch.eye(experts).repeat_interleave(inputs, dim=1).to(x_NI)
        every_IX = torch.eye(inputs).repeat(1, experts).to(x_NI)
        return ((gate_NE.to(x_NI) @ each_EX) * (x_NI @ every_IX)) @ self.weight_EID.flatten(0, 1), routing
