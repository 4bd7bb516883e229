"""Small ASTROMERs and light curves for them."""

import torch
from torch import Tensor

from nightjar_alerts.models.networks.astromer import AstromerConfig

SIZES = {"d_model": 16, "n_heads": 2, "d_ff": 24, "dropout": 0.0, "n_classes": 5, "lstm_width": 12, "window": 20}


def tiny(**changes: object) -> AstromerConfig:
    """A configuration that runs in milliseconds: two blocks of width 16, windows of 20."""
    return AstromerConfig.model_validate({**SIZES, "pool_widths": (24, 12), **changes})


def curves(rows: int = 4, length: int = 18, seed: int = 0) -> dict[str, Tensor]:
    """Arguments of ``forward``: rows of different lengths over 400 days, flux from -50 to 50, padded with zeros."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.randint(2, length + 1, (rows,), generator=generator)
    count[0] = length
    mask = torch.arange(length) < count[:, None]
    time = torch.rand(rows, length, generator=generator).sort(1)[0] * 400
    return {
        "flux": (torch.rand(rows, length, generator=generator) * 100 - 50) * mask,
        "time": (time - time[:, :1]) * mask,
        "band": torch.randint(0, 3, (rows, length), generator=generator) * mask,
        "mask": mask,
    }
