"""Sizes, readings and invariances of the network; every time encoding and every kind of attention in it."""

from typing import Any, get_args

import numpy as np
import pytest
import torch

from nightjar_alerts.models.lightcurve import Limits, RaggedBatch, featurise
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from nightjar_alerts.models.networks.network import INPUTS, NetworkOutput
from nightjar_alerts.models.networks.parts.attention import AttentionKind
from nightjar_alerts.models.networks.parts.positional import TimeEncodingName
from nightjar_alerts.models.networks.parts.positional_content import TimeModulation
from nightjar_alerts.models.networks.zoo import count_parameters
from support.bundles import random_curves, tiny_network


def inputs(seed: int = 2, count: int = 6, length: int | None = None) -> tuple[torch.Tensor, ...]:
    tokens = [featurise(curve, Limits(), "FLUXCAL", METADATA_COLUMNS) for curve in random_curves(seed, count)]
    padded = RaggedBatch.collate(tokens).padded(length)
    return tuple(torch.from_numpy(padded[name]) for name in INPUTS)


def forward(network: AstroMoE, columns: tuple[torch.Tensor, ...]) -> NetworkOutput:
    with torch.no_grad():
        output: NetworkOutput = network(*columns)
    return output


@pytest.mark.parametrize(
    ("changes", "total", "active"),
    [
        ({}, 4_935_334, 2_269_222),
        ({"time_encoding": "baseline"}, 4_640_422, 1_974_310),
        ({"time_encoding": "baseline", "n_experts": 0, "n_input_experts": 0}, 1_525_372, 1_525_372),
    ],
)
def test_parameter_counts_are_the_papers(changes: dict[str, Any], total: int, active: int) -> None:
    counts = count_parameters(AstroMoE(AstroMoEConfig.model_validate(changes)))
    assert (counts.total, counts.active) == (total, active)
    assert sum(counts.by_part.values()) == total


READINGS: list[dict[str, Any]] = [
    {},
    {"norm_order": "post"},
    {"pooling": "mean"},
    {"router_softmax": "full"},
    {"flux_transform": "none"},
    {"flux_transform": "object_z"},
    {"n_experts": 0, "n_input_experts": 0},
    {"activation": "silu"},
    *({"time_encoding": name} for name in get_args(TimeEncodingName) if name != "modulation"),
    {"time_encoding": "pea", "pooling": "mean"},
    {"time_encoding": "baseline", "band_embedding": True},
    *(
        {"time_encoding": "rotary", "attention": {"kind": kind, "max_length": 300}}
        for kind in get_args(AttentionKind)
        if kind != "exact"
    ),
]
ORDERED = {"recurrent", "probsparse", "linformer", "reformer"}  # they look at the place of a token in its row


def label(changes: dict[str, Any]) -> str:
    values = (value["kind"] if isinstance(value, dict) else value for value in changes.values())
    return "-".join(map(str, values)) or "default"


@pytest.mark.parametrize("changes", READINGS, ids=label)
def test_every_reading_ignores_padding_batch_mates_and_order(changes: dict[str, Any]) -> None:
    network = tiny_network(**changes)
    columns = inputs()
    expected = forward(network, columns).logits_BC
    assert expected.isfinite().all()
    longer = forward(network, inputs(length=columns[0].shape[1] + 9)).logits_BC
    torch.testing.assert_close(longer, expected, atol=2e-5, rtol=1e-4)
    alone = torch.cat([forward(network, tuple(c[row : row + 1] for c in columns)).logits_BC for row in range(6)])
    torch.testing.assert_close(alone, expected, atol=2e-5, rtol=1e-4)
    if not ORDERED & set(label(changes).split("-")):
        shuffle = torch.randperm(columns[0].shape[1])
        shuffled = (*(column[:, shuffle] for column in columns[:5]), columns[5])
        torch.testing.assert_close(forward(network, shuffled).logits_BC, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", READINGS, ids=label)
def test_every_reading_trains(changes: dict[str, Any]) -> None:
    network = tiny_network(**changes).train()
    columns = inputs()
    columns[5][0] = torch.nan  # an object without metadata must not poison the gradient
    output = network(*columns)
    heads = (output.logits_BC, *output.other_logits)
    aux_loss = torch.zeros(()) if output.aux_loss is None else output.aux_loss
    (sum(logits_BC.square().mean() for logits_BC in heads) + aux_loss).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_storage_order_of_bands_does_not_matter() -> None:
    """Permuting the band axis of the weights and the band indices together changes nothing."""
    network, columns = tiny_network(), inputs()
    expected = forward(network, columns).logits_BC
    permutation = torch.randperm(6)
    assert isinstance(network.time, TimeModulation)
    with torch.no_grad():
        network.time.weight_GPQ.copy_(network.time.weight_GPQ[permutation])
    inverse = torch.argsort(permutation)
    permuted = (*columns[:3], inverse[columns[3]], *columns[4:])
    torch.testing.assert_close(forward(network, permuted).logits_BC, expected, atol=2e-5, rtol=1e-4)


def test_loads_count_real_tokens_only() -> None:
    network, columns = tiny_network(), inputs()
    output = forward(network, columns)
    assert output.input_expert_load_1X is not None
    assert output.expert_load_SX is not None
    observations = int(columns[4].sum())
    assert int(output.input_expert_load_1X.sum()) == 2 * observations
    assert output.expert_load_SX.sum(1).tolist() == [2 * (observations + 6)] * 2  # one [CLS] per object


def test_padding_counts_in_the_balance_loss_only_when_asked() -> None:
    columns, padded = inputs(), inputs(length=400)
    strict, loose = tiny_network(), tiny_network(aux_counts_padding=True)
    losses = [forward(network, c).aux_loss for network in (strict, loose) for c in (columns, padded)]
    strict_alone, strict_padded, loose_alone, loose_padded = (float(loss) for loss in losses if loss is not None)
    assert strict_padded == pytest.approx(strict_alone, rel=1e-5)
    assert abs(loose_padded - loose_alone) > 1e-3
    torch.testing.assert_close(
        forward(loose, padded).logits_BC, forward(strict, padded).logits_BC, atol=2e-5, rtol=1e-4
    )


def shifted(changes: dict[str, Any], days: float) -> float:
    """Largest change of a logit when every observation happens later."""
    network, columns = tiny_network(**changes), inputs()
    later = (*columns[:2], columns[2] + days, *columns[3:])
    return float((forward(network, later).logits_BC - forward(network, columns).logits_BC).abs().max())


def test_only_rotary_without_cls_sees_time_differences_alone() -> None:
    assert shifted({"time_encoding": "rotary", "pooling": "mean"}, 100.0) < 1e-4
    assert shifted({"time_encoding": "rotary"}, 100.0) > 1e-3  # [CLS] stays at day 0
    for name in get_args(TimeEncodingName):
        if name != "rotary":
            assert shifted({"time_encoding": name, "pooling": "mean"}, 100.0) > 1e-3, name


def recoloured(**changes: Any) -> float:
    """Largest change of a logit when every observation is in the next band."""
    network, columns = tiny_network(**changes), inputs()
    other = (*columns[:3], (columns[3] + 1) % 6, *columns[4:])
    return float((forward(network, other).logits_BC - forward(network, columns).logits_BC).abs().max())


def test_modulation_and_rotary_encodings_tell_bands_apart() -> None:
    for name in get_args(TimeEncodingName):
        assert (recoloured(time_encoding=name) > 0) == (name in ("modulation", "rotary")), name
        assert recoloured(time_encoding=name, band_embedding=True) > 1e-3, name


def test_brightness_range_of_the_survey_stays_finite() -> None:
    network = tiny_network()
    columns = list(inputs(count=2))
    for scale in (0.0, 1e-12, 1e12, -1e30):
        columns[0] = torch.full_like(columns[0], scale)
        assert forward(network, tuple(columns)).logits_BC.isfinite().all()


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        AstroMoE(AstroMoEConfig(d_model=100, n_heads=3))


@pytest.mark.parametrize("kind", ["performer", "reformer"])
def test_attention_that_cannot_carry_tupe_is_refused_at_once(kind: str) -> None:
    with pytest.raises(ValueError, match="widens"):
        AstroMoEConfig.model_validate({"time_encoding": "tupe", "attention": {"kind": kind}})


def test_dropout_is_off_in_evaluation() -> None:
    network = tiny_network(dropout=0.5)
    columns = inputs()
    np.testing.assert_array_equal(forward(network, columns).logits_BC, forward(network, columns).logits_BC)
