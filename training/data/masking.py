"""Which observations a masked reconstruction hides, replaces or shows: drawn per row, counted exactly, seeded.

A fraction ``probed`` of each row's observations is to be reconstructed. Of these, ``hidden`` lose their values,
``random`` show the values of another observation of the row and ``same`` are shown as they are (BERT's scheme, which
ASTROMER takes over, Donoso-Oliva et al. 2023). A masked autoencoder (RoMAE) is ``hidden = 1``.

Notable: ASTROMER's text and its released code count differently. The text gives 30, 10 and 10 % of the window to
hidden, random and same; the code rounds up one after the other and takes ``random`` from what ``same`` left, which is
32, 8 and 10 %. ``counting = "exact"`` (the default) is the text, ``"sequential"`` the code.

Legend: B rows, L length. Padding is never probed. A row of two or more observations keeps one that is not hidden.
"""

from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.lightcurve import Bool, Int64
from models.networks.network import Masking

_GRAIN = 1e-9  # 0.55 * 100 is 55.00000000000001, of which the ceiling is meant to be 55


class MaskingConfig(BaseModel):
    """Fractions; the defaults are ASTROMER's text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    probed: float = Field(default=0.5, gt=0, le=1, description="of the observations, rounded up: to be reconstructed")
    hidden: float = Field(default=0.6, ge=0, le=1, description="of the probed: without values")
    random: float = Field(default=0.2, ge=0, le=1, description="of the probed: with another observation's values")
    same: float = Field(default=0.2, ge=0, le=1, description="of the probed: as they are")
    counting: Literal["exact", "sequential"] = Field(
        default="exact", description="sequential, as released: ceil(same), then ceil(random of the rest), then hidden"
    )

    @model_validator(mode="after")
    def _fractions_add_up(self) -> Self:
        if abs(self.hidden + self.random + self.same - 1.0) > _GRAIN:
            raise ValueError("hidden, random and same are fractions of the probed and must add up to 1")
        return self


class Counts(NamedTuple):
    """Observations per row, each int64 [B]; what is probed and neither hidden nor random is shown as it is."""

    probed_B: Int64
    hidden_B: Int64
    random_B: Int64


def draw_masking(mask_BL: Bool, config: MaskingConfig, rng: np.random.Generator) -> Masking:
    """Draw what to reconstruct.

    Parameters
    ----------
    mask_BL : True for a real observation, anywhere in the row; a row without any has nothing probed.
    """
    counts = count_masking(mask_BL.sum(1), config)
    order_BL = np.argsort(np.where(mask_BL, rng.random(mask_BL.shape), 2.0), axis=1)
    rank_BL = np.argsort(order_BL, axis=1)  # a random order of the row's observations, padding last
    probed_BL = rank_BL < counts.probed_B[:, None]
    hidden_BL = rank_BL < counts.hidden_B[:, None]
    shuffled_BL = (rank_BL < (counts.hidden_B + counts.random_B)[:, None]) & ~hidden_BL
    source_BL = np.where(shuffled_BL, _another(mask_BL, rng), np.arange(mask_BL.shape[1]))
    return Masking(torch.from_numpy(probed_BL), torch.from_numpy(hidden_BL), torch.from_numpy(source_BL))


def count_masking(length_B: Int64, config: MaskingConfig) -> Counts:
    """How many of ``length_B`` observations are probed, hidden and replaced."""
    probed_B = _ceil(config.probed * length_B)
    split = _sequential if config.counting == "sequential" else _exact
    hidden_B, random_B = split(probed_B, config)
    blind_B = (hidden_B == length_B) & (length_B > 1)  # then one observation is left out of the probed ones
    return Counts(probed_B - blind_B, hidden_B - blind_B, random_B)


def _exact(probed_B: Int64, config: MaskingConfig) -> tuple[Int64, Int64]:
    """Round the cumulative fractions: every count is within one of its fraction, and they add up."""
    hidden_B = _ceil(config.hidden * probed_B - 0.5)
    return hidden_B, _ceil((config.hidden + config.random) * probed_B - 0.5) - hidden_B


def _sequential(probed_B: Int64, config: MaskingConfig) -> tuple[Int64, Int64]:
    rest_B: Int64 = probed_B - _ceil(config.same * probed_B)
    random_B = _ceil(config.random * rest_B)
    return rest_B - random_B, random_B


def _ceil(value_B: NDArray[np.floating]) -> Int64:
    whole_B: Int64 = np.ceil(value_B - _GRAIN).astype(np.int64)
    return whole_B


def _another(mask_BL: Bool, rng: np.random.Generator) -> Int64:
    """Place of an observation of the same row other than the one at each place; its own where there is no other."""
    place_BL = np.argsort(~mask_BL, axis=1, kind="stable")  # the row's observations first, in order
    number_BL = mask_BL.cumsum(1) - 1
    length_B1 = mask_BL.sum(1, keepdims=True)
    other_BL = rng.integers(0, np.broadcast_to(np.maximum(length_B1 - 1, 1), mask_BL.shape))
    other_BL = np.where(length_B1 > 1, other_BL + (other_BL >= number_BL), number_BL)
    source_BL: Int64 = np.take_along_axis(place_BL, np.maximum(other_BL, 0), axis=1)
    return source_BL
