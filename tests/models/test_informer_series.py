"""The published network for regular series: its parts in their places, and that it can learn a calendar."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.calendar import interleaved_sinusoids
from models.informer_series import InformerSeries, InformerSeriesConfig, SeriesEmbedding

TINY: dict[str, Any] = {"n_values": 2, "start_tokens": 8, "d_model": 16, "n_heads": 2, "d_ff": 32, "dropout": 0.0}
TIDY: dict[str, Any] = {"norm_order": "pre", "distilling": "plain", "mix": False, "embedding_norm": True}


def hourly(first: int, steps: int) -> Tensor:
    """Dates [steps, 4] of hours counted from a Monday, 1 January."""
    hour = np.arange(first, first + steps)
    day = hour // 24
    return torch.from_numpy(np.stack([1 + day // 31 % 12, 1 + day % 31, day % 7, hour % 24], axis=1))


def series(first: int, steps: int) -> Tensor:
    """Two values per hour: a daily wave, and another that rests at weekends, [steps, 2]."""
    date, wave = hourly(first, steps), np.sin(2 * np.pi * np.arange(first, first + steps) / 24)
    return torch.from_numpy(np.stack([wave, wave * (date[:, 2].numpy() < 5)], axis=1)).float()


def window(first: int, past: int = 24, future: int = 12) -> tuple[Tensor, ...]:
    values, date = series(first, past + future), hourly(first, past + future)
    return values[:past], date[:past], date[past:], values[past:]


def network(**changes: Any) -> InformerSeries:
    torch.manual_seed(0)
    return InformerSeries(InformerSeriesConfig.model_validate(TINY | changes))


def test_embedding_adds_values_places_and_dates() -> None:
    torch.manual_seed(0)
    embed = SeriesEmbedding(InformerSeriesConfig.model_validate(TINY)).eval()
    values, date = torch.randn(10, 2), hourly(0, 10)
    with torch.no_grad():
        out = embed(values[None], date[None])[0].numpy()
    weight, bias = (value.detach().numpy() for value in (embed.values.weight, embed.values.bias))  # type: ignore[union-attr]
    tables = [interleaved_sinusoids(torch.arange(size), 16).numpy() for size in (13, 32, 7, 24)]
    for place in range(10):
        taps = [weight[:, :, tap] @ values[(place + tap - 1) % 10].numpy() for tap in range(3)]
        calendar = sum(table[column] for table, column in zip(tables, date[place].tolist(), strict=True))
        expected = np.sum(taps, axis=0) + bias + interleaved_sinusoids(torch.tensor([place]), 16)[0].numpy() + calendar
        np.testing.assert_allclose(out[place], expected, atol=2e-5)


@pytest.mark.parametrize("changes", [{}, TIDY])
def test_rows_do_not_mix_and_the_future_is_not_read(changes: dict[str, Any]) -> None:
    model = network(**changes).eval()
    rows = [window(first) for first in (0, 50, 91)]
    past, date, coming, _ = (torch.stack(columns) for columns in zip(*rows, strict=True))
    with torch.no_grad():
        together = model(past, date, coming)
        alone = model(past[1:2], date[1:2], coming[1:2])
    assert together.shape == (3, 12, 2)
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=1e-4)


def test_every_reading_trains() -> None:
    for changes in ({}, TIDY, {"calendar": "learned"}):
        model = network(**changes).train()
        past, date, coming, future = (column[None] for column in window(0))
        (model(past, date, coming) - future).square().mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


def test_it_learns_a_week_from_the_calendar() -> None:
    """Where weekends begin and end, the coming hours' dates say what the past day does not."""
    model, rng = network(**TIDY, calendar="learned"), np.random.default_rng(0)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(120):
        rows = [window(int(first)) for first in rng.integers(0, 24 * 28, 16)]
        past, date, coming, future = (torch.stack(columns) for columns in zip(*rows, strict=True))
        loss = (model(past, date, coming) - future).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < 0.07  # the values' variance is 0.43
