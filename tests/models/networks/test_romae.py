"""RoMAE on light curves: sizes, equations, invariances, weights moved from pretraining, the exported graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from nightjar_alerts.models.lightcurve import RaggedBatch
from nightjar_alerts.models.networks.network import Masking, NetworkOutput, Reconstruction
from nightjar_alerts.models.networks.romae import (
    BASE,
    SMALL,
    TINY,
    TINY_SHALLOW,
    RoMAE,
    RoMAEConfig,
    RoMAEEncoderConfig,
    RoMAEPretraining,
)
from nightjar_alerts.models.networks.zoo import count_parameters, transfer
from nightjar_alerts.training.data.targets import MaskingConfig, draw_masking
from nightjar_alerts.training.export.graph import write_graph
from nightjar_alerts.training.export.served import AXES, ServedNetwork
from support.bundles import random_tokens
from support.romae_oracle import autoencode, sequence, weights_of

SIZES = RoMAEEncoderConfig(d_model=24, n_heads=2, depth=2)
HALF = MaskingConfig(probed=0.5, hidden=1.0, random=0.0, same=0.0)
VARIANTS: list[dict[str, Any]] = [{}, {"pooling": "cls"}, {"flux_transform": "none"}, {"flux_scale": 10.0}]


def config_of(**changes: Any) -> RoMAEConfig:
    return RoMAEConfig.model_validate({"encoder": SIZES, "decoder": SIZES, **changes})


def network_of(**changes: Any) -> RoMAE:
    torch.manual_seed(0)
    network = RoMAE(config_of(**changes))
    with torch.no_grad():
        for parameter in network.parameters():  # at the initial 0.02 every answer would be nearly the same
            parameter.mul_(3.0)
    return network.eval()


def inputs(seed: int = 2, count: int = 6, length: int | None = None) -> tuple[torch.Tensor, ...]:
    padded = RaggedBatch.collate(random_tokens(seed, count)).padded(length)
    return tuple(torch.from_numpy(padded[name]) for name in RoMAE.input_names)


def forward(network: RoMAE, columns: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        output: NetworkOutput = network(*columns)
    return output.logits_BC


def masking_of(columns: tuple[torch.Tensor, ...], config: MaskingConfig = HALF) -> Masking:
    return draw_masking(columns[4].numpy(), config, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("sizes", "encoder"), [(TINY_SHALLOW, 778_320), (TINY, 4_669_920), (SMALL, 26_884_224), (BASE, 74_666_880)]
)
def test_sizes_are_the_published_ones(sizes: RoMAEEncoderConfig, encoder: int) -> None:
    with torch.device("meta"):
        counts = count_parameters(RoMAE(RoMAEConfig(encoder=sizes))).by_part
    assert counts["encoder"] == encoder


def test_published_elasticc_models_have_these_totals() -> None:
    assert count_parameters(RoMAE(RoMAEConfig())).total == 4_674_260
    assert count_parameters(RoMAEPretraining(RoMAEConfig())).total == 5_482_082


@pytest.mark.parametrize("changes", VARIANTS)
def test_classifier_is_its_equations(changes: dict[str, Any]) -> None:
    network, columns = network_of(**changes), inputs()
    actual = forward(network, columns)
    for row, n in enumerate(columns[4].sum(1).tolist()):
        flux, flux_err, time, band = (column[row, :n].double().numpy() for column in columns[:4])
        values_SK = np.stack([flux, flux_err], 1)
        if changes.get("flux_transform") != "none":
            values_SK = np.arcsinh(values_SK / changes.get("flux_scale", 1.0))
        readout = changes.get("pooling", "mean")
        expected = sequence(weights_of(network), values_SK, np.stack([band, time], 1), 2, readout)
        np.testing.assert_allclose(actual[row], expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("changes", VARIANTS)
def test_padding_order_and_batch_mates_do_not_matter(changes: dict[str, Any]) -> None:
    network, columns = network_of(**changes), inputs()
    expected = forward(network, columns)
    assert expected.std(0).max() > 1e-2
    shuffle = torch.randperm(columns[0].shape[1])
    for other in (
        forward(network, inputs(length=columns[0].shape[1] + 9)),
        forward(network, tuple(column[:, shuffle] for column in columns)),
        torch.cat([forward(network, tuple(column[row : row + 1] for column in columns)) for row in range(6)]),
    ):
        torch.testing.assert_close(other, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_without_cls_only_differences_of_time_and_band_are_known(pooling: str) -> None:
    network = network_of(pooling=pooling)
    flux, flux_err, time, band, mask = inputs()
    expected = forward(network, (flux, flux_err, time, band, mask))
    relative = pooling == "mean"
    later = forward(network, (flux, flux_err, time + 300.0, band, mask))
    assert torch.allclose(later, expected, atol=1e-3) is relative
    redder = forward(network, (flux, flux_err, time, band + 1, mask))
    assert torch.allclose(redder, expected, atol=1e-3) is relative


def test_band_and_time_matter() -> None:
    network = network_of()
    flux, flux_err, time, band, mask = inputs()
    expected = forward(network, (flux, flux_err, time, band, mask))
    for other in ((flux, flux_err, time, 5 - band, mask), (flux, flux_err, 3 * time, band, mask)):
        assert not torch.allclose(forward(network, other), expected, atol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pretraining_is_its_equations(pooling: str) -> None:
    torch.manual_seed(1)
    network = RoMAEPretraining(config_of(pooling=pooling)).eval()
    columns = inputs()
    masking = masking_of(columns)
    with torch.no_grad():
        output: Reconstruction = network(*columns, masking)
    for row, n in enumerate(columns[4].sum(1).tolist()):
        flux, flux_err, time, band = (column[row, :n].double().numpy() for column in columns[:4])
        values_SK = np.arcsinh(np.stack([flux, flux_err], 1))
        np.testing.assert_allclose(output.target_BLK[row, :n], values_SK, rtol=1e-5)
        hidden_S = masking.hidden_BL[row, :n].numpy()
        expected = autoencode(weights_of(network), values_SK, np.stack([band, time], 1), hidden_S, 2)
        np.testing.assert_allclose(output.prediction_BLK[row, :n][hidden_S], expected, atol=2e-4, rtol=1e-3)


def test_hidden_values_do_not_leak_and_replaced_ones_are_seen() -> None:
    torch.manual_seed(1)
    network = RoMAEPretraining(config_of()).eval()
    flux, *others = inputs()
    scheme = masking_of((flux, *others), MaskingConfig(probed=0.6, hidden=0.5, random=0.5, same=0.0))
    expected = network(flux, *others, scheme).prediction_BLK
    sources_BL = torch.zeros_like(scheme.hidden_BL).scatter(1, scheme.source_BL.where(~scheme.hidden_BL, 0), True)
    unseen_BL = scheme.probed_BL & ~sources_BL  # hidden or replaced, and shown in no other place
    altered = network(torch.where(unseen_BL, 1e6, flux), *others, scheme).prediction_BLK
    torch.testing.assert_close(altered, expected)
    shown = network(torch.where(sources_BL, 1e6, flux), *others, scheme).prediction_BLK
    assert not torch.allclose(shown, expected, atol=1e-2)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_every_weight_below_the_head_moves_from_pretraining(pooling: str) -> None:
    config = config_of(pooling=pooling)
    pretrained, classifier = RoMAEPretraining(config), RoMAE(config)
    copied = transfer(pretrained.state_dict(), classifier)
    own = classifier.state_dict()
    assert set(copied) == {name for name in own if not name.startswith("head.")}
    assert "embedding.projection.weight" in copied
    torch.testing.assert_close(own["embedding.projection.weight"], pretrained.embedding.projection.weight)


def test_both_networks_train() -> None:
    columns = inputs()
    classifier, pretraining = network_of().train(), RoMAEPretraining(config_of(pooling="cls")).train()
    output: NetworkOutput = classifier(*columns)
    reconstruction: Reconstruction = pretraining(*columns, masking_of(columns))
    error_BLK = reconstruction.prediction_BLK - reconstruction.target_BLK
    torch.autograd.backward([output.logits_BC.square().mean(), error_BLK.square().mean()])
    for network in (classifier, pretraining):
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_brightness_range_of_the_survey_stays_finite() -> None:
    network, columns = network_of(), list(inputs(count=2))
    for scale in (0.0, 1e-12, 1e12, -1e30):
        columns[0] = torch.full_like(columns[0], scale)
        assert forward(network, tuple(columns)).isfinite().all()


@pytest.mark.slow
def test_exported_graph_is_the_network(tmp_path: Path) -> None:
    network = network_of()
    served = ServedNetwork(network).eval()
    example = dict(zip(RoMAE.input_names, inputs(count=4), strict=True))
    write_graph(served, example, AXES, ["probabilities", "embedding"], tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for seed, count, length in ((1, 1, 1), (2, 1, 40), (3, 9, None), (4, 30, 260)):
        columns = inputs(seed, count, length) if length != 1 else tuple(c[:1, :1] for c in inputs(seed, count))
        actual = session.run(None, {name: c.numpy() for name, c in zip(RoMAE.input_names, columns, strict=True)})
        with torch.no_grad():
            expected = served.outputs(*columns)
        for value, name in zip(actual, ("probabilities", "embedding"), strict=True):
            np.testing.assert_allclose(value, expected[name], atol=1e-5, rtol=1e-4, err_msg=name)
