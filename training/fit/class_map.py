"""Map the heads of a trained network to other classes by a logistic regression on their logits.

The map is linear, so it is part of the last layer of each head: the mapped network has the same parts and cost. It has
few parameters, and therefore needs few labelled objects.

Legend: N light curves, H copies of the heads, C classes of the network, K new classes.
"""

from typing import Final

import numpy as np
import torch
from torch.nn.functional import log_softmax, nll_loss

from nightjar_alerts.models.lightcurve import Float32, Float64, Int64
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.fit.heads import HeadInputs
from nightjar_alerts.training.recipes.schema import Recipe

RIDGE: Final = 2.0
ROWS_AT_ONCE: Final = 2048


@torch.inference_mode()
def logits_of_copies(network: AstroMoE, inputs: HeadInputs) -> Float32:
    """Return the logits of every copy of the heads, [N, H, C]."""
    assert network.statistics is not None
    logits = []
    for start in range(0, len(inputs.embedding), ROWS_AT_ONCE):
        body_ME, statistics = inputs.rows(slice(start, start + ROWS_AT_ONCE))
        joined_ME = torch.cat([body_ME, network.statistics(statistics)], dim=1)
        logits.append(torch.stack([head(joined_ME) for head in (network.head_mix, *network.head_more)], dim=1).numpy())
    return np.concatenate(logits)


def fit_class_map(heads_NHC: Float32, label_N: Int64, weight_N: Float32, classes: int) -> tuple[Float64, Float64]:
    """Fit the map [K, C] and bias [K] that lead from logits to new classes: a logistic regression with a ridge."""
    logits_NHC, label, weight = (torch.from_numpy(each) for each in (heads_NHC.astype(np.float64), label_N, weight_N))
    middle_C = logits_NHC.mean((0, 1))
    map_KC = torch.zeros(classes, len(middle_C), dtype=torch.float64, requires_grad=True)
    bias_K = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([map_KC, bias_K], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        log_p_NK = log_softmax(log_softmax((logits_NHC - middle_C) @ map_KC.T + bias_K, -1).mean(1), -1)
        wrong = (nll_loss(log_p_NK, label, reduction="none") * weight).mean()
        value = wrong + RIDGE * map_KC.square().sum() / len(label)
        value.backward()
        return value

    optimizer.step(loss)
    fitted_KC, fitted_K = map_KC.detach().numpy(), bias_K.detach().numpy()
    return fitted_KC, fitted_K - fitted_KC @ middle_C.numpy()


def mapped_logits(heads_NHC: Float32, map_KC: Float64, bias_K: Float64) -> Float32:
    """Return the logits of the new classes, the mean over the copies of the heads, [N, K]."""
    logits_NHK = torch.from_numpy(heads_NHC @ map_KC.T + bias_K)
    return log_softmax(logits_NHK, -1).mean(1).numpy().astype(np.float32)


def with_mapped_heads(network: AstroMoE, map_KC: Float64, bias_K: Float64, recipe: Recipe) -> AstroMoE:
    """Return the network of a recipe with every head's last layer followed by the map, in evaluation mode."""
    mapped = build(recipe.network)
    assert isinstance(mapped, AstroMoE)
    weights, (map_part, bias_part) = network.state_dict(), (torch.from_numpy(part) for part in (map_KC, bias_K))
    for name, part in network.named_modules():
        if name.startswith("head") and isinstance(part, torch.nn.Linear) and part.out_features == network.n_classes:
            weights[f"{name}.weight"] = (map_part @ part.weight.detach().double()).float()
            weights[f"{name}.bias"] = (map_part @ part.bias.detach().double() + bias_part).float()
    mapped.load_state_dict(weights)
    return mapped.eval()
