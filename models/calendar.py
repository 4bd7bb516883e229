"""Calendar embedding (Informer's global time stamp): month, day, weekday and hour of a civil date, added up.

Notable:

- for regular series of human affairs (electricity, traffic, weather), where Monday and 8 o'clock mean something. The
  networks for light curves do not use it: an MJD's month, lunation or season would tell a network *when in the survey*
  an object was seen, which in simulated data identifies the simulation and in real data the observing season; their
  time is days since the first observation, see ``models.positional``;
- the released code has two readings, both here: ``fixed`` tables of sines and cosines (``embed = fixed``), and
  ``learned`` tables. Its third, a linear map of normalised date features, is ``nn.Linear``;
- its fixed table pairs sine and cosine of one frequency in neighbouring columns, w_i = 10000^(-2i/D).

Legend: B batch, S places, D width.
"""

from typing import Literal

import torch
from torch import Tensor, nn

CalendarKind = Literal["fixed", "learned"]
COLUMNS = {"month": 13, "day": 32, "weekday": 7, "hour": 24}  # months and days count from 1


def interleaved_sinusoids(position_S: Tensor, width: int) -> Tensor:
    """Vaswani et al. (2017), section 3.5, [S, D]: columns 2i and 2i + 1 are sine and cosine of 10000^(-2i/D) s."""
    angle_SI = position_S.float()[:, None] * torch.pow(10_000.0, -torch.arange(0, width, 2) / width).to(
        position_S.device
    )
    return torch.stack([angle_SI.sin(), angle_SI.cos()], dim=2).flatten(1)[:, :width]


class CalendarEmbedding(nn.Module):
    """Sum of one embedding per column of a date."""

    def __init__(self, width: int, kind: CalendarKind = "fixed") -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, width) for name, size in COLUMNS.items()})
        if kind == "fixed":
            for table in self.tables.values():
                assert isinstance(table, nn.Embedding)
                table.weight.data.copy_(interleaved_sinusoids(torch.arange(table.num_embeddings), width))
                table.weight.requires_grad_(False)

    def forward(self, date_BS4: Tensor) -> Tensor:
        """Embed int64 dates [B, S, 4]: month 1 to 12, day 1 to 31, weekday 0 (Monday) to 6, hour 0 to 23."""
        parts = [table(date_BS4[..., column]) for column, table in enumerate(self.tables.values())]
        return torch.stack(parts).sum(0)
