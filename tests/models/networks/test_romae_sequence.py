"""RoMAE for any modality: its equations in float64 numpy, the released code's tensors, and what must not matter."""

from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.models.networks.romae import (
    MaskedAutoencoder,
    Readout,
    RoMAEBlock,
    RoMAEEncoder,
    RoMAEEncoderConfig,
    SequenceModel,
    masked_mse,
    pool,
)
from support.romae_oracle import autoencode, encode, released_state, sequence, weights_of
from support.shared import needs_shared, shared

SIZES = RoMAEEncoderConfig(d_model=24, n_heads=2, depth=3)
SMALLER = RoMAEEncoderConfig(d_model=16, n_heads=2, depth=2, d_ff=10)
LENGTHS = (9, 6, 1)
Network = TypeVar("Network", bound=torch.nn.Module)


def batch(n_values: int = 2, n_axes: int = 2, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    mask_BL = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    values_BLK = torch.randn(*mask_BL.shape, n_values, generator=generator)
    return values_BLK, 30 * torch.rand(*mask_BL.shape, n_axes, generator=generator), mask_BL


def hidden_of(mask_BL: torch.Tensor) -> torch.Tensor:
    hidden_BL = torch.rand(mask_BL.shape, generator=torch.Generator().manual_seed(5)) < 0.6
    hidden_BL[:, 0] = False
    return hidden_BL & mask_BL


def randomised(network: Network) -> Network:
    """Every weight away from its special starting value (ones, zeros), so that a forgotten one is seen."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return network.eval()


def drop_paths(encoder: RoMAEEncoder) -> list[float]:
    return [block.drop_path for block in encoder.blocks if isinstance(block, RoMAEBlock)]


def test_block_and_encoder_are_their_equations() -> None:
    encoder = randomised(RoMAEEncoder(SIZES, n_axes=2))
    _, position_BLA, mask_BL = batch()
    packing = Packing.of(mask_BL, leading=False)
    x_MD = torch.randn(sum(LENGTHS), 24)
    actual = torch.split(encoder(x_MD, packing, position_BLA).detach(), list(LENGTHS))
    for row, (x_SD, n) in enumerate(zip(torch.split(x_MD, list(LENGTHS)), LENGTHS, strict=True)):
        expected = encode(weights_of(encoder), x_SD.double().numpy(), position_BLA[row, :n].double().numpy(), 2)
        np.testing.assert_allclose(actual[row], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("readout", ["cls", "mean", "token"])
@pytest.mark.parametrize("cls", [True, False])
@pytest.mark.parametrize("n_axes", [1, 2, 3])
def test_sequence_model_is_its_equations(readout: Readout, cls: bool, n_axes: int) -> None:
    if readout == "cls" and not cls:
        with pytest.raises(ValueError, match="needs a \\[CLS\\] token"):
            SequenceModel(2, 5, n_axes, SIZES, readout, cls=cls)
        return
    model = randomised(SequenceModel(2, 5, n_axes, SIZES, readout, cls=cls))
    values_BLK, position_BLA, mask_BL = batch(n_axes=n_axes)
    actual = model(values_BLK, position_BLA, mask_BL).detach()
    for row, n in enumerate(LENGTHS):
        columns = (values_BLK[row, :n].double().numpy(), position_BLA[row, :n].double().numpy())
        expected = sequence(weights_of(model), *columns, 2, readout)
        ours = actual[row, :n] if readout == "token" else actual[row]
        np.testing.assert_allclose(ours, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("cls", [True, False])
def test_autoencoder_is_its_equations(cls: bool) -> None:
    model = randomised(MaskedAutoencoder(2, 2, SIZES, SMALLER, cls=cls))
    values_BLK, position_BLA, mask_BL = batch()
    hidden_BL = hidden_of(mask_BL)
    actual = model(values_BLK, position_BLA, mask_BL, hidden_BL).detach()
    for row, n in enumerate(LENGTHS):
        columns = (values_BLK[row, :n].double().numpy(), position_BLA[row, :n].double().numpy())
        expected = autoencode(weights_of(model), *columns, hidden_BL[row, :n].numpy(), 2)
        np.testing.assert_allclose(actual[row, hidden_BL[row]], expected, atol=2e-5, rtol=1e-4)
    assert (actual[~mask_BL] == 0).all()


def test_encoder_never_sees_hidden_values() -> None:
    model = randomised(MaskedAutoencoder(2, 2, SIZES, SMALLER))
    values_BLK, position_BLA, mask_BL = batch()
    hidden_BL = hidden_of(mask_BL)
    poisoned_BLK = torch.where((hidden_BL | ~mask_BL)[..., None], torch.nan, values_BLK)
    expected = model(values_BLK, position_BLA, mask_BL, hidden_BL)
    torch.testing.assert_close(model(poisoned_BLK, position_BLA, mask_BL, hidden_BL), expected)


def test_rows_without_a_visible_token_are_answered() -> None:
    model = randomised(MaskedAutoencoder(2, 2, SIZES, SMALLER))
    values_BLK, position_BLA, mask_BL = batch()
    blind = model(values_BLK, position_BLA, mask_BL, mask_BL)  # nothing visible in the whole batch
    assert blind.isfinite().all()
    some = model(values_BLK, position_BLA, mask_BL, hidden_of(mask_BL) | torch.tensor([[False], [False], [True]]))
    torch.testing.assert_close(some[2], blind[2], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("cls", [True, False])
def test_only_cls_tells_where_a_row_is(cls: bool) -> None:
    """Without [CLS], shifting all positions changes nothing."""
    model = randomised(SequenceModel(2, 5, 2, SIZES, "token", cls=cls))
    values_BLK, position_BLA, mask_BL = batch()
    expected = model(values_BLK, position_BLA, mask_BL)[mask_BL]
    shifted = model(values_BLK, position_BLA + torch.tensor([4.0, 100.0]), mask_BL)[mask_BL]
    assert torch.allclose(shifted, expected, atol=2e-4) is not cls


@pytest.mark.parametrize("readout", ["cls", "mean"])
def test_padding_order_and_batch_mates_do_not_matter(readout: Readout) -> None:
    model = randomised(SequenceModel(2, 5, 2, SIZES, readout))
    columns = batch()
    expected = model(*columns)
    padded = tuple(
        torch.cat([column, torch.full_like(column[:, :4], value)], 1)
        for column, value in zip(columns, (7.0, 7.0, False), strict=True)
    )
    shuffle = torch.randperm(columns[0].shape[1])
    for other in (
        model(*padded),
        model(*(column[:, shuffle] for column in columns)),
        torch.cat([model(*(column[row : row + 1] for column in columns)) for row in range(3)]),
    ):
        torch.testing.assert_close(other, expected, atol=2e-5, rtol=1e-4)


def test_stochastic_depth_drops_whole_rows_and_keeps_the_mean() -> None:
    encoder = RoMAEEncoder(SIZES.model_copy(update={"drop_path": 0.2}), 2)
    assert drop_paths(encoder) == pytest.approx([0.0, 0.1, 0.2])
    torch.manual_seed(0)
    block = RoMAEBlock(SIZES, drop_path=0.25).train()
    packing = Packing.of(torch.ones(2_000, 3, dtype=torch.bool), leading=True)
    branch_BSD = packing.unpack(block._drop(torch.ones(8_000, 24), packing))
    assert sorted(set(branch_BSD.flatten().tolist())) == pytest.approx([0.0, 1 / 0.75])
    assert (branch_BSD == branch_BSD[:, :1, :1]).all()
    assert float(branch_BSD.mean()) == pytest.approx(1.0, abs=0.05)
    block.eval()
    assert block._drop(branch_BSD, packing) is branch_BSD


DROPOUTS = ["attention_dropout", "output_dropout", "hidden_dropout", "position_dropout", "drop_path"]


@pytest.mark.parametrize("field", DROPOUTS)
def test_every_dropout_acts_in_training_only(field: str) -> None:
    model = randomised(MaskedAutoencoder(2, 2, SIZES.model_copy(update={field: 0.5}), SMALLER))
    columns = batch()
    columns = (*columns, hidden_of(columns[2]))
    torch.testing.assert_close(model(*columns), model(*columns), rtol=0, atol=0)
    assert not torch.equal(model.train()(*columns), model(*columns))


def test_loss_is_the_mean_over_hidden_values() -> None:
    rng = np.random.default_rng(1)
    prediction, target = rng.normal(size=(2, 3, 7, 2))
    hidden = rng.random((3, 7)) < 0.4
    squares = ((prediction - target) ** 2)[hidden]
    prediction_BLK, target_BLK, hidden_BL = (torch.from_numpy(x) for x in (prediction, target, hidden))
    assert float(masked_mse(prediction_BLK, target_BLK, hidden_BL)) == pytest.approx(squares.mean())
    assert float(masked_mse(prediction_BLK, target_BLK, torch.zeros_like(hidden_BL))) == 0.0


def test_mean_ignores_empty_places_and_survives_empty_rows() -> None:
    packing = Packing.of(torch.tensor([[True, True], [False, False]]), leading=False)
    pooled_BD = pool(torch.tensor([[1.0], [4.0]]), packing, "mean")
    assert pooled_BD.tolist() == [[2.5], [0.0]]


def _case(name: str) -> dict[str, NDArray[Any]]:
    with np.load(shared("parity", "romae.npz")) as file:
        case = {key.removeprefix(name): file[key] for key in file.files if key.startswith(name)}
    if not case:
        pytest.skip(f"the reference file holds no {name}")
    return case


@needs_shared
@pytest.mark.parametrize(("name", "cls", "n_axes"), [("cls1_n1", True, 1), ("cls0_n2", False, 2), ("cls1_n2", True, 2)])
def test_classifier_agrees_with_the_released_code(name: str, cls: bool, n_axes: int) -> None:
    case = _case(f"clf/{name}/")
    model = SequenceModel(2, 5, n_axes, SIZES, "cls" if cls else "mean").eval()
    weights = {key.removeprefix("w/"): value for key, value in case.items() if key.startswith("w/")}
    model.load_state_dict(released_state(weights))
    values_BLK = torch.from_numpy(case["values"]).flatten(2)
    position_BLA = torch.from_numpy(case["positions"]).transpose(1, 2)
    label_B = torch.from_numpy(case["label"])
    for kind, mask_BL in (
        ("nopad", torch.ones(values_BLK.shape[:2], dtype=torch.bool)),
        ("pad", torch.from_numpy(~case["pad_mask"])),
    ):
        logits_BC = model(values_BLK, position_BLA, mask_BL).detach()
        np.testing.assert_allclose(logits_BC, case[f"logits_{kind}"], atol=1e-5, rtol=1e-4)
        loss = torch.nn.functional.cross_entropy(logits_BC, label_B)
        np.testing.assert_allclose(loss, case[f"loss_{kind}"], rtol=1e-4)


@needs_shared
@pytest.mark.parametrize("cls", [False, True])
def test_autoencoder_agrees_with_the_released_code(cls: bool) -> None:
    case = _case(f"mae/cls{int(cls)}/")
    weights = {key.removeprefix("w/"): value for key, value in case.items() if key.startswith("w/")}
    encoder = RoMAEEncoderConfig(d_model=24, n_heads=2, depth=2)
    decoder = RoMAEEncoderConfig(d_model=16, n_heads=2, depth=1)
    model = MaskedAutoencoder(2, 2, encoder, decoder, cls=cls).eval()
    model.load_state_dict(released_state(weights))
    values_BLK, position_BLA = torch.from_numpy(case["values"]).flatten(2), torch.from_numpy(case["positions"])
    hidden_BL, mask_BL = torch.from_numpy(case["mask"]), torch.from_numpy(~case["pad_mask"])
    prediction_BLK = model(values_BLK, position_BLA.transpose(1, 2), mask_BL, hidden_BL).detach()
    real_BW = mask_BL[hidden_BL].view(len(hidden_BL), -1)  # theirs fills the rectangle with padding
    expected = torch.from_numpy(case["logits"])[real_BW]
    np.testing.assert_allclose(prediction_BLK[hidden_BL & mask_BL], expected, atol=1e-5, rtol=1e-4)
    real_BL = hidden_BL & mask_BL
    rectangle = len(real_BL) * real_BL.sum(1).max()  # what the released code divides by
    loss = masked_mse(prediction_BLK, values_BLK, real_BL) * real_BL.sum() / rectangle
    np.testing.assert_allclose(loss, case["loss"], rtol=1e-4)


@needs_shared
def test_stochastic_depth_rates_agree_with_the_released_code() -> None:
    rates = _case("droppath_rates_depth12_rate0.2")[""]
    config = RoMAEEncoderConfig(d_model=8, n_heads=1, depth=12, drop_path=0.2)
    np.testing.assert_allclose(drop_paths(RoMAEEncoder(config, 2)), rates, atol=1e-7)
