"""The calendar embedding against its definition."""

import numpy as np
import torch
from torch import nn

from models.calendar import CalendarEmbedding, interleaved_sinusoids


def row(position: int, width: int) -> list[float]:
    values = []
    for column in range(width):
        angle = position / 10_000 ** (2 * (column // 2) / width)
        values.append(np.cos(angle) if column % 2 else np.sin(angle))
    return values


def test_sinusoids_pair_sine_and_cosine_of_one_frequency() -> None:
    expected = [row(position, 6) for position in range(4)]
    np.testing.assert_allclose(interleaved_sinusoids(torch.arange(4), 6).numpy(), expected, atol=1e-6)


def test_a_date_is_the_sum_of_its_four_rows() -> None:
    """8 December, a Sunday, 23 h."""
    embedded = CalendarEmbedding(6, "fixed")(torch.tensor([[[12, 8, 6, 23]]]))
    expected = np.sum([row(position, 6) for position in (12, 8, 6, 23)], axis=0)
    np.testing.assert_allclose(embedded[0, 0].numpy(), expected, atol=1e-5)
    assert not embedded.requires_grad


def test_learned_tables_learn() -> None:
    layer = CalendarEmbedding(4, "learned")
    layer(torch.tensor([[[1, 31, 0, 0]]])).sum().backward()
    table = layer.tables["day"]
    assert isinstance(table, nn.Embedding)
    assert table.weight.grad is not None
    assert table.weight.grad.abs().sum(1).nonzero()[:, 0].tolist() == [31]
