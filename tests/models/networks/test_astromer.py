from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from nightjar_alerts.models.networks.astromer import Astromer, AstromerConfig, AstromerPretraining, Window, value_of
from nightjar_alerts.models.networks.network import Masking, NetworkOutput, Reconstruction
from nightjar_alerts.models.networks.parts.attention import AttentionKind
from nightjar_alerts.models.networks.parts.positional import TimeEncodingName
from nightjar_alerts.models.networks.zoo import transfer
from nightjar_alerts.training.data.targets import MaskingConfig, draw_masking
from support.astromer import curves, tiny

HEADS = ("lstm", "pool")
VERSIONS: tuple[dict[str, object], ...] = (
    {"version": "note"},
    {"version": "v0"},
    {"version": "v0", "leak": True},
    {"version": "v2", "layer_mix": True},
)
ENCODINGS: tuple[TimeEncodingName, ...] = (
    *("baseline", "trainable", "fourier", "recurrent"),
    *("tupe", "concat", "pea", "modulation", "rotary"),
)


def classifier(**changes: object) -> Astromer:
    torch.manual_seed(0)
    return Astromer(tiny(**changes)).eval()


def classify(network: Astromer, inputs: dict[str, Tensor]) -> NetworkOutput:
    with torch.no_grad():
        output: NetworkOutput = network(*inputs.values())
    return output


def reconstruct(network: AstromerPretraining, inputs: dict[str, Tensor], masking: Masking) -> Reconstruction:
    with torch.no_grad():
        output: Reconstruction = network(*inputs.values(), masking)
    return output


def masking_of(inputs: dict[str, Tensor], seed: int = 0, **changes: float) -> Masking:
    return draw_masking(inputs["mask"].numpy(), MaskingConfig(**changes), np.random.default_rng(seed))


def row(inputs: dict[str, Tensor], index: int, length: int) -> dict[str, Tensor]:
    return {name: column[index : index + 1, :length] for name, column in inputs.items()}


def rows_of(output: NetworkOutput, rows: slice | Tensor) -> NetworkOutput:
    return NetworkOutput(output.logits_BC[rows], output.embedding_BE[rows])


def pad(inputs: dict[str, Tensor], places: int) -> dict[str, Tensor]:
    return {name: torch.nn.functional.pad(column, (0, places)) for name, column in inputs.items()}


def assert_same(one: NetworkOutput, other: NetworkOutput, atol: float = 2e-6) -> None:
    torch.testing.assert_close(one.logits_BC, other.logits_BC, atol=atol, rtol=0)
    torch.testing.assert_close(one.embedding_BE, other.embedding_BE, atol=10 * atol, rtol=0)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("changes", VERSIONS)
def test_padding_and_batch_mates_do_not_count(head: str, changes: dict[str, object]) -> None:
    network, inputs = classifier(head=head, **changes), curves()
    together = classify(network, inputs)
    assert_same(classify(network, pad(inputs, 7)), together)
    for index, count in enumerate(inputs["mask"].sum(1).tolist()):
        alone = classify(network, row(inputs, index, count))
        assert_same(alone, rows_of(together, slice(index, index + 1)))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_time_encoding_answers_alone_as_in_a_batch(head: str, encoding: TimeEncodingName) -> None:
    network, inputs = classifier(head=head, time_encoding=encoding), curves()
    together = classify(network, inputs)
    alone = classify(network, row(inputs, 2, int(inputs["mask"][2].sum())))
    assert_same(alone, rows_of(together, slice(2, 3)), atol=5e-6)
    moved = {**inputs, "time": inputs["time"] ** 1.2}
    assert not torch.allclose(classify(network, moved).logits_BC, together.logits_BC, atol=1e-4)


@pytest.mark.parametrize("kind", get_args(AttentionKind))
def test_every_kind_of_attention_answers_alone_as_in_a_batch(kind: AttentionKind) -> None:
    network, inputs = classifier(attention={"kind": kind}, n_heads=4), curves()
    together = classify(network, inputs)
    alone = classify(network, row(inputs, 2, int(inputs["mask"][2].sum())))
    assert_same(alone, rows_of(together, slice(2, 3)), atol=5e-6)


@pytest.mark.parametrize("head", HEADS)
def test_rows_are_independent_of_their_order(head: str) -> None:
    network, inputs = classifier(head=head), curves()
    order = torch.tensor([2, 0, 3, 1])
    shuffled = classify(network, {name: column[order] for name, column in inputs.items()})
    assert_same(shuffled, rows_of(classify(network, inputs), order))


def test_a_pooled_classifier_does_not_read_the_order_of_storage() -> None:
    network, inputs = classifier(head="pool"), curves(rows=1)
    order = torch.randperm(inputs["mask"].shape[1], generator=torch.Generator().manual_seed(1))
    shuffled = {name: column[:, order] for name, column in inputs.items()}
    assert_same(classify(network, shuffled), classify(network, inputs))
    recurrent = classifier(head="lstm")
    difference = classify(recurrent, shuffled).logits_BC - classify(recurrent, inputs).logits_BC
    assert difference.abs().max() > 1e-4


@pytest.mark.parametrize("head", HEADS)
def test_a_shift_of_time_does_not_count(head: str) -> None:
    network, inputs = classifier(head=head), curves()
    shifted = {**inputs, "time": inputs["time"] + 1024.0}
    assert_same(classify(network, shifted), classify(network, inputs), atol=2e-4)


@pytest.mark.parametrize("head", HEADS)
def test_a_shift_of_magnitude_does_not_count(head: str) -> None:
    network, inputs = classifier(head=head, flux_scale=1e-3), curves()
    inputs["flux"] = inputs["flux"].abs() + 10.0
    nearer = {**inputs, "flux": inputs["flux"] * 6.31}  # two magnitudes, far above the softening
    assert_same(classify(network, nearer), classify(network, inputs), atol=1e-5)


@given(log_flux=st.floats(1.5, 6.0), sign=st.sampled_from([-1.0, 1.0]), scale=st.sampled_from([0.5, 3.0]))
def test_a_flux_far_above_the_noise_becomes_a_magnitude(log_flux: float, sign: float, scale: float) -> None:
    flux = sign * 10**log_flux * scale
    value = float(value_of(torch.tensor([[flux]], dtype=torch.float64), "magnitude", scale))
    assert value == pytest.approx(-sign * 2.5 * np.log10(abs(flux) / scale), abs=2e-3)


def test_values_around_zero_flux() -> None:
    flux = torch.tensor([[-0.01, 0.0, 0.01]], dtype=torch.float64)
    slope = 2.5 / np.log(10) / 2
    torch.testing.assert_close(value_of(flux, "magnitude", 1.0), -slope * flux, atol=1e-6, rtol=0)
    torch.testing.assert_close(value_of(flux, "asinh", 2.0), torch.asinh(flux / 2), atol=0, rtol=0)
    torch.testing.assert_close(value_of(flux, "linear", 2.0), flux / 2, atol=0, rtol=0)


@given(seed=st.integers(0, 10_000), length=st.integers(1, 12), size=st.integers(1, 12))
def test_windows_are_the_newest_visible_places_in_order(seed: int, length: int, size: int) -> None:
    visible = torch.rand(5, length, generator=torch.Generator().manual_seed(seed)) < 0.6
    window = Window.newest(visible, size)
    assert window.place_BW.shape == (5, min(length, size))
    values = torch.arange(5 * length, dtype=torch.float64).view(5, length) + 1
    for index in range(5):
        newest = visible[index].nonzero().flatten()[-size:]
        shown = window.place_BW[index][window.mask_BW[index]]
        assert shown.tolist() == (newest.tolist() or shown.tolist()[:1])
        kept = torch.zeros(length, dtype=torch.float64).index_copy(0, shown, values[index, shown])
        assert window.put(window.take(values), length)[index].tolist() == kept.tolist()
        assert len(set(window.place_BW[index].tolist())) == min(length, size)


@pytest.mark.parametrize("head", HEADS)
def test_only_the_newest_window_is_seen(head: str) -> None:
    network, inputs = classifier(head=head, window=6), curves(rows=1)
    full = classify(network, inputs)
    assert_same(classify(network, {name: column[:, -6:] for name, column in inputs.items()}), full)
    assert_same(classify(network, {**inputs, "flux": inputs["flux"] + 5 * (torch.arange(18) < 12)}), full)


@pytest.mark.parametrize("head", HEADS)
def test_only_the_band_is_seen(head: str) -> None:
    network, inputs = classifier(head=head, band=1), curves(rows=1)
    inside = inputs["band"][0] == 1
    alone = classify(network, {name: column[:, inside] for name, column in inputs.items()})
    assert_same(classify(network, inputs), alone)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("encoding", ["baseline", "recurrent"])
def test_a_row_without_its_band_has_one_finite_answer(head: str, encoding: TimeEncodingName) -> None:
    network, inputs = classifier(head=head, band=1, time_encoding=encoding), curves()
    inputs["band"][2] = 2
    together = classify(network, inputs)
    assert together.logits_BC.isfinite().all()
    alone = classify(network, row(inputs, 2, 1))
    assert_same(alone, rows_of(together, slice(2, 3)))
    single = {**row(inputs, 2, 1), "band": torch.ones(1, 1, dtype=torch.int64)}
    assert_same(classify(network, single), alone)


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12, -1e30])
def test_any_brightness_stays_finite(scale: float) -> None:
    inputs = curves()
    inputs["flux"] = torch.full_like(inputs["flux"], scale)
    for head in HEADS:
        assert classify(classifier(head=head), inputs).logits_BC.isfinite().all()


def test_the_released_mask_of_v0_lets_padding_in() -> None:
    network, inputs = classifier(version="v0", mask_format="QK", m_alpha=1.0), curves()
    difference = classify(network, pad(inputs, 12)).logits_BC - classify(network, inputs).logits_BC
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("version", ["note", "v2"])
def test_hidden_values_stay_hidden(version: str) -> None:
    torch.manual_seed(0)
    network, inputs = AstromerPretraining(tiny(version=version)).eval(), curves(rows=1)
    masking = masking_of(inputs, hidden=1.0, random=0.0, same=0.0)
    hidden = masking.hidden_BL[0]
    swapped = {**inputs, "flux": inputs["flux"].clone()}
    swapped["flux"][0, hidden] = inputs["flux"][0, hidden].flip(0)  # the mean of the window stays
    one, other = (reconstruct(network, columns, masking) for columns in (inputs, swapped))
    torch.testing.assert_close(one.prediction_BLK, other.prediction_BLK, atol=2e-6, rtol=0)
    assert not torch.allclose(one.target_BLK, other.target_BLK)


def test_without_a_mask_token_the_hidden_query_keeps_its_value() -> None:
    torch.manual_seed(0)
    network, inputs = AstromerPretraining(tiny(version="v0")).eval(), curves(rows=1)
    assert network.mask_token is None
    masking = masking_of(inputs, hidden=1.0, random=0.0, same=0.0)
    hidden = masking.hidden_BL[0]
    swapped = {**inputs, "flux": inputs["flux"].clone()}
    swapped["flux"][0, hidden] = inputs["flux"][0, hidden].flip(0)
    one, other = (reconstruct(network, columns, masking).prediction_BLK[0, :, 0] for columns in (inputs, swapped))
    torch.testing.assert_close(one[~hidden], other[~hidden], atol=2e-6, rtol=0)
    assert not torch.allclose(one[hidden], other[hidden], atol=1e-5)


def test_random_observations_show_the_values_of_others() -> None:
    torch.manual_seed(0)
    network, inputs = AstromerPretraining(tiny()).eval(), curves()
    masking = masking_of(inputs, hidden=0.0, random=1.0, same=0.0)
    shown = {**inputs, "flux": inputs["flux"].gather(1, masking.source_BL)}
    own = torch.arange(inputs["mask"].shape[1]).expand_as(masking.source_BL)
    value = value_of(inputs["flux"], "magnitude", 1.0)
    mean = (value * inputs["mask"]).sum(1) / inputs["mask"].sum(1)
    copied = value_of(shown["flux"], "magnitude", 1.0)
    offset = (copied * inputs["mask"]).sum(1) / inputs["mask"].sum(1) - mean
    assert offset.abs().max() > 1e-3  # so the mean must be that of the true values
    seen: list[Tensor] = []
    network.encoder.embed.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    output = reconstruct(network, inputs, masking)
    expected = (copied - mean[:, None])[inputs["mask"]]
    torch.testing.assert_close(seen[0][:, 0], expected, atol=1e-5, rtol=0)
    target = (value - mean[:, None]) * inputs["mask"]
    torch.testing.assert_close(output.target_BLK[..., 0], target, atol=1e-5, rtol=0)
    assert (masking.source_BL != own).any()


def test_reconstructions_lie_where_the_observations_were() -> None:
    torch.manual_seed(0)
    network, inputs = AstromerPretraining(tiny(band=1, window=5)).eval(), curves(rows=1)
    inside = (inputs["band"][0] == 1).nonzero().flatten()[-5:]
    masking = masking_of(inputs)
    output = reconstruct(network, inputs, masking)
    outside = torch.ones(18, dtype=torch.bool).index_fill(0, inside, False)
    assert (output.target_BLK[0, outside] == 0).all()
    assert (output.prediction_BLK[0, outside] == 0).all()
    value = value_of(inputs["flux"][0, inside], "magnitude", 1.0)
    torch.testing.assert_close(output.target_BLK[0, inside, 0], value - value.mean(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", HEADS)
def test_pretrained_weights_move_by_name(head: str) -> None:
    network = classifier(head=head, layer_mix=True)
    pretrained = AstromerPretraining(tiny(layer_mix=True))
    assert not torch.equal(network.encoder.embed.weight, pretrained.encoder.embed.weight)
    copied = transfer(pretrained.state_dict(), network)
    assert set(copied) == {name for name in network.state_dict() if name.startswith("encoder.")}
    torch.testing.assert_close(network.encoder.embed.weight, pretrained.encoder.embed.weight)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_encoder_does_not_learn_and_the_rest_does(frozen: bool) -> None:
    network = Astromer(tiny(freeze_encoder=frozen))
    inputs = curves()
    network(*inputs.values()).logits_BC.square().sum().backward()
    for name, parameter in network.named_parameters():
        learns = parameter.grad is not None and bool((parameter.grad != 0).any())
        assert learns == (not (frozen and name.startswith("encoder."))), name


@pytest.mark.parametrize("version", ["note", "v2"])
def test_a_reconstruction_learns_everything(version: str) -> None:
    torch.manual_seed(0)
    network, inputs = AstromerPretraining(tiny(version=version, layer_mix=True)), curves()
    output = network(*inputs.values(), masking_of(inputs))
    (output.prediction_BLK - output.target_BLK).square().sum().backward()
    silent = [name for name, value in network.named_parameters() if value.grad is None or not (value.grad != 0).any()]
    assert silent == []


def test_a_network_knows_its_sizes() -> None:
    for head, width in (("lstm", 12), ("pool", 12)):
        network = classifier(head=head)
        output = classify(network, curves())
        assert output.logits_BC.shape == (4, network.n_classes)
        assert output.embedding_BE.shape == (4, network.embedding_dim) == (4, width)
    assert AstromerConfig().d_model == 4 * 64


@pytest.mark.parametrize("wrong", [{"leak": True}, {"band": 6}, {"window": 0}, {"colour": 1}])
def test_a_configuration_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AstromerConfig.model_validate(wrong)
