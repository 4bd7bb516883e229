"""Sizes, readings and invariances of the network."""

from typing import Any

import numpy as np
import pytest
import torch

from models.astro_moe import AstroMoE, AstroMoEConfig, Output
from models.lightcurve import Limits, RaggedBatch, featurise
from models.metadata import METADATA_COLUMNS
from models.parameters import count_parameters
from support.bundles import random_curves, tiny_network

INPUTS = ("flux", "flux_err", "time", "band", "mask", "metadata")


def inputs(seed: int = 2, count: int = 6, length: int | None = None) -> tuple[torch.Tensor, ...]:
    tokens = [featurise(curve, Limits(), "FLUXCAL", METADATA_COLUMNS) for curve in random_curves(seed, count)]
    padded = RaggedBatch.collate(tokens).padded(length)
    return tuple(torch.from_numpy(padded[name]) for name in INPUTS)


def forward(network: AstroMoE, columns: tuple[torch.Tensor, ...]) -> Output:
    with torch.no_grad():
        output: Output = network(*columns)
    return output


@pytest.mark.parametrize(
    ("changes", "total", "active"),
    [
        ({}, 4_935_334, 2_269_222),
        ({"time_encoding": "sinusoidal"}, 4_640_422, 1_974_310),
        ({"time_encoding": "sinusoidal", "n_experts": 0, "n_input_experts": 0}, 1_525_372, 1_525_372),
    ],
)
def test_parameter_counts_are_the_papers(changes: dict[str, Any], total: int, active: int) -> None:
    counts = count_parameters(AstroMoE(AstroMoEConfig.model_validate(changes)))
    assert (counts["total"], counts["active"]) == (total, active)
    assert isinstance(counts["by_part"], dict)
    assert sum(counts["by_part"].values()) == total


READINGS: list[dict[str, Any]] = [
    {},
    {"norm_order": "post"},
    {"pooling": "mean"},
    {"router_softmax": "full"},
    {"flux_transform": "none"},
    {"flux_transform": "object_z"},
    {"time_encoding": "sinusoidal"},
    {"n_experts": 0, "n_input_experts": 0},
    {"activation": "silu"},
]


@pytest.mark.parametrize("changes", READINGS)
def test_every_reading_ignores_padding_order_and_batch_mates(changes: dict[str, Any]) -> None:
    network = tiny_network(**changes)
    columns = inputs()
    expected = forward(network, columns).logits_mix_BC
    assert expected.isfinite().all()
    longer = forward(network, inputs(length=columns[0].shape[1] + 9)).logits_mix_BC
    torch.testing.assert_close(longer, expected, atol=2e-5, rtol=1e-4)
    alone = torch.cat([forward(network, tuple(c[row : row + 1] for c in columns)).logits_mix_BC for row in range(6)])
    torch.testing.assert_close(alone, expected, atol=2e-5, rtol=1e-4)
    shuffle = torch.randperm(columns[0].shape[1])
    shuffled = (*(column[:, shuffle] for column in columns[:5]), columns[5])
    torch.testing.assert_close(forward(network, shuffled).logits_mix_BC, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", READINGS)
def test_every_reading_trains(changes: dict[str, Any]) -> None:
    network = tiny_network(**changes).train()
    columns = inputs()
    columns[5][0] = torch.nan  # an object without metadata must not poison the gradient
    output = network(*columns)
    (output.logits_mix_BC.square().mean() + output.logits_tab_BC.square().mean() + output.aux_loss).backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert len(gradients) > 10
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_storage_order_of_bands_does_not_matter() -> None:
    """Permuting the band axis of the weights and the band indices together changes nothing."""
    network, columns = tiny_network(), inputs()
    expected = forward(network, columns).logits_mix_BC
    permutation = torch.randperm(6)
    with torch.no_grad():
        network.time.weight_GPQ.copy_(network.time.weight_GPQ[permutation])  # type: ignore[union-attr, index, operator]
    inverse = torch.argsort(permutation)
    permuted = (*columns[:3], inverse[columns[3]], *columns[4:])
    torch.testing.assert_close(forward(network, permuted).logits_mix_BC, expected, atol=2e-5, rtol=1e-4)


def test_loads_count_real_tokens_only() -> None:
    network, columns = tiny_network(), inputs()
    output = forward(network, columns)
    observations = int(columns[4].sum())
    assert int(output.input_expert_load_1X.sum()) == 2 * observations
    assert output.expert_load_SX.sum(1).tolist() == [2 * (observations + 6)] * 2  # one [CLS] per object


def test_padding_counts_in_the_balance_loss_only_when_asked() -> None:
    columns, padded = inputs(), inputs(length=400)
    strict, loose = tiny_network(), tiny_network(aux_counts_padding=True)
    torch.testing.assert_close(forward(strict, columns).aux_loss, forward(strict, padded).aux_loss)
    torch.testing.assert_close(
        forward(loose, padded).logits_mix_BC, forward(strict, padded).logits_mix_BC, atol=2e-5, rtol=1e-4
    )
    assert abs(float(forward(loose, padded).aux_loss - forward(loose, columns).aux_loss)) > 1e-3


def test_brightness_range_of_the_survey_stays_finite() -> None:
    network = tiny_network()
    columns = list(inputs(count=2))
    for scale in (0.0, 1e-12, 1e12, -1e30):
        columns[0] = torch.full_like(columns[0], scale)
        assert forward(network, tuple(columns)).logits_mix_BC.isfinite().all()


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        AstroMoE(AstroMoEConfig(d_model=100, n_heads=3))


def test_dropout_is_off_in_evaluation() -> None:
    network = tiny_network(dropout=0.5)
    columns = inputs()
    np.testing.assert_array_equal(forward(network, columns).logits_mix_BC, forward(network, columns).logits_mix_BC)
