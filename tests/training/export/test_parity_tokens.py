"""Light curves of the parity test: those whose outputs depend on the last digits are left out."""

import numpy as np
import torch
from torch import Tensor, nn

from nightjar_alerts.models.lightcurve import Limits, Tokens, featurise
from nightjar_alerts.models.networks.network import NetworkOutput
from nightjar_alerts.training.export.parity import noise, steady_tokens


class Threshold(nn.Module):
    """Network whose output jumps where the first flux passes a threshold."""

    input_names = ("flux",)

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, flux_BL: Tensor) -> NetworkOutput:
        jump_B1 = (flux_BL[:, :1] > self.threshold).float()
        return NetworkOutput(torch.cat([jump_B1, -jump_B1], dim=1), jump_B1)


def tokens_of(seed: int) -> Tokens:
    return featurise(noise(np.random.default_rng(seed)), Limits(pre_trigger_days=None), "nJy", ())


def test_steady_tokens_leave_out_a_light_curve_at_a_threshold() -> None:
    tokens = [tokens_of(seed) for seed in range(3)]
    kept = steady_tokens(Threshold(float(tokens[1].flux[0])), None, tokens)
    assert [one is tokens[0] or one is tokens[2] for one in kept] == [True, True]
