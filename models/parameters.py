"""Parameter counts: all of them, those active for one token, and by part."""

from torch import nn

from models.moe import FeedForwardExperts, InputExperts


def count_parameters(network: nn.Module) -> dict[str, int | dict[str, int]]:
    """Count trainable parameters as ``{"total", "active", "by_part": {child: total}}``.

    Active leaves out the experts that a token does not choose.
    """
    idle = sum(_idle(module) for module in network.modules())
    by_part = {name: _total(child) for name, child in network.named_children() if _total(child)}
    return {"total": _total(network), "active": _total(network) - idle, "by_part": by_part}


def _total(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _idle(module: nn.Module) -> int:
    if not isinstance(module, FeedForwardExperts | InputExperts):
        return 0
    experts = _total(module) - _total(module.router)
    n_experts = module.router.gate.out_features
    return experts // n_experts * (n_experts - module.router.top_k)
