"""Masked reconstruction: what may be seen of a hidden observation, what is reconstructed, and what moves on."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nightjar_alerts.models.lightcurve import Limits, RaggedBatch, featurise
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig, AstroMoEPretraining
from nightjar_alerts.models.networks.network import Masking, Reconstruction
from nightjar_alerts.training.data.targets import MaskingConfig, draw_masking
from support.bundles import random_curves, tiny_network

ASTRO_MOE = MaskingConfig(probed=0.9, hidden=0.3, random=0.3, same=0.4)


def network(**changes: Any) -> AstroMoEPretraining:
    """The pretraining twin of the tiny classifier."""
    torch.manual_seed(0)
    twin = AstroMoEPretraining(tiny_network(**changes).config)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(3.0)
        twin.hidden_1D.normal_()
    return twin.eval()


def columns(length: int | None = None) -> list[Tensor]:
    tokens = [featurise(curve, Limits(), "FLUXCAL", ()) for curve in random_curves(2, 6)]
    padded = RaggedBatch.collate(tokens).padded(length)
    return [torch.from_numpy(padded[name]) for name in AstroMoEPretraining.input_names]


def masking(mask_BL: Tensor) -> Masking:
    return draw_masking(mask_BL.numpy(), ASTRO_MOE, np.random.default_rng(0))


def places(masks: Masking) -> Tensor:
    """Every observation its own source."""
    return torch.arange(masks.source_BL.shape[1]).expand_as(masks.source_BL)


def forward(module: AstroMoEPretraining, inputs: list[Tensor], masks: Masking) -> Reconstruction:
    with torch.no_grad():
        output: Reconstruction = module(*inputs, masks)
    return output


def test_hidden_values_cannot_be_seen_but_their_time_and_band_can() -> None:
    module, inputs = network(), columns()
    masks = masking(inputs[4])
    masks = masks._replace(source_BL=torch.where(masks.hidden_BL, places(masks), masks.source_BL))
    shown_BL = torch.zeros_like(masks.hidden_BL).scatter_reduce(1, masks.source_BL, ~masks.hidden_BL, "amax")
    unseen_BL = masks.hidden_BL & ~shown_BL  # others do not show these values in place of their own either
    assert unseen_BL.any()
    expected = forward(module, inputs, masks)
    for value in (0, 1):
        changed = list(inputs)
        changed[value] = torch.where(unseen_BL, 7.7, inputs[value])
        actual = forward(module, changed, masks)
        torch.testing.assert_close(actual.prediction_BLK, expected.prediction_BLK)
        torch.testing.assert_close(actual.aux_loss, expected.aux_loss)
    for place, other in ((2, inputs[2] + 40.0), (3, (inputs[3] + 1) % 6)):
        changed = list(inputs)
        changed[place] = torch.where(unseen_BL, other, inputs[place])
        difference = forward(module, changed, masks).prediction_BLK - expected.prediction_BLK
        assert difference[unseen_BL].abs().max() > 1e-3


def test_a_replaced_observation_shows_the_values_of_its_source() -> None:
    module, inputs = network(), columns()
    masks = masking(inputs[4])._replace(hidden_BL=torch.zeros_like(inputs[4]))
    by_source = forward(module, inputs, masks)
    replaced = [column.gather(1, masks.source_BL) for column in inputs[:2]]
    by_hand = forward(module, [*replaced, *inputs[2:]], masks._replace(source_BL=places(masks)))
    torch.testing.assert_close(by_source.prediction_BLK, by_hand.prediction_BLK)
    assert not torch.equal(by_source.target_BLK, by_hand.target_BLK)


def test_the_target_is_the_flux_as_the_network_sees_it() -> None:
    inputs = columns()
    target_BL1 = forward(network(flux_scale=2.0), inputs, masking(inputs[4])).target_BLK
    torch.testing.assert_close(target_BL1[..., 0], torch.asinh(inputs[0] / 2.0))


@pytest.mark.parametrize("changes", [{}, {"time_encoding": "pea"}, {"time_encoding": "concat"}, {"pooling": "mean"}])
def test_padding_and_batch_mates_do_not_matter(changes: dict[str, Any]) -> None:
    module, inputs = network(**changes), columns()
    masks, length = masking(inputs[4]), inputs[0].shape[1]
    expected = forward(module, inputs, masks).prediction_BLK
    alone = forward(module, [column[1:2] for column in inputs], Masking(*(part[1:2] for part in masks)))
    real = inputs[4][1]
    torch.testing.assert_close(alone.prediction_BLK[0, real], expected[1, real], atol=2e-5, rtol=1e-4)
    tail = torch.arange(length, length + 5).expand(6, -1)
    none = torch.zeros_like(tail, dtype=torch.bool)
    longer = Masking(
        torch.cat([masks.probed_BL, none], dim=1),
        torch.cat([masks.hidden_BL, none], dim=1),
        torch.cat([masks.source_BL, tail], dim=1),
    )
    padded = forward(module, columns(length + 5), longer).prediction_BLK[:, :length]
    torch.testing.assert_close(padded[inputs[4]], expected[inputs[4]], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"n_experts": 0, "n_input_experts": 0}])
def test_pretraining_learns_and_every_weight_takes_part(changes: dict[str, Any]) -> None:
    module, inputs = network(**changes).train(), columns()
    masks = masking(inputs[4])
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        output = module(*inputs, masks)
        error = (output.prediction_BLK - output.target_BLK)[masks.probed_BL].square().mean()
        optimizer.zero_grad()
        error.backward()
        assert all(parameter.grad is not None for parameter in module.parameters())
        optimizer.step()
        losses.append(float(error.detach()))
    assert losses[-1] < 0.6 * losses[0]


def test_a_batch_of_hidden_observations_only_routes_nothing_at_its_input() -> None:
    module, inputs = network(n_experts=0), columns()
    masks = masking(inputs[4])._replace(hidden_BL=inputs[4], probed_BL=inputs[4])
    output = forward(module, inputs, masks)
    assert output.aux_loss is not None
    assert output.aux_loss.item() == 0.0
    assert output.input_expert_load_1X is not None
    assert not output.input_expert_load_1X.any()
    assert output.prediction_BLK.isfinite().all()


def test_every_weight_but_the_ends_has_its_place_in_the_classifier() -> None:
    for name in ("modulation", "rotary", "concat", "tupe"):
        config = AstroMoEConfig(time_encoding=name)
        classifier, twin = AstroMoE(config).state_dict(), AstroMoEPretraining(config).state_dict()
        ends = {key for key in twin if key.startswith("head_") or key == "hidden_1D"}
        assert {key for key in twin if key not in classifier} == ends
        assert all(twin[key].shape == classifier[key].shape for key in twin.keys() - ends)
