"""Distilling and the distilled encoder: float64 restatements, the released encoder's output, and padding."""

from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.networks.informer import DistilledEncoder, Distilling, DistillingKind
from nightjar_alerts.models.networks.parts.attention import AttentionConfig
from nightjar_alerts.models.networks.parts.attention_kernels import KeySample, ProbSparseAttention
from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.models.networks.parts.transformer import Block, DenseFeedForward
from support.shared import needs_shared, shared

Float = NDArray[np.float64]


def distil_oracle(
    x_LD: Float, weight_DDK: Float, bias_D: Float, scale_D: Float, shift_D: Float, circular: bool
) -> Float:
    """One unpadded row: convolution of width 3, an affine norm, ELU, maximum over 2j-1 .. 2j+1."""
    length = len(x_LD)
    y_LD = np.zeros_like(x_LD)
    for place in range(length):
        y_LD[place] = bias_D
        for tap in range(3):
            source = place + tap - 1
            if circular or 0 <= source < length:
                y_LD[place] += weight_DDK[:, :, tap] @ x_LD[source % length]
    y_LD = y_LD * scale_D + shift_D
    y_LD = np.where(y_LD > 0, y_LD, np.expm1(np.minimum(y_LD, 0)))
    return np.stack([y_LD[max(2 * j - 1, 0) : 2 * j + 2].max(0) for j in range(-(-length // 2))])


def ragged(lengths: list[int], width: int, seed: int = 0, extra: int = 0) -> tuple[Tensor, Packing]:
    """Packed random tokens, float64; ``extra`` places of padding beyond the longest row change no token."""
    generator = torch.Generator().manual_seed(seed)
    x_MD = torch.randn(sum(lengths), width, generator=generator, dtype=torch.float64)
    mask_BS = torch.arange(max(lengths) + extra) < torch.tensor(lengths)[:, None]
    return x_MD, Packing.of(mask_BS, leading=False)


@pytest.mark.parametrize("kind", ["plain", "released"])
def test_distilling_treats_every_row_as_if_it_were_alone(kind: DistillingKind) -> None:
    torch.manual_seed(0)
    layer, lengths = Distilling(6, kind).double().eval(), [9, 1, 4, 2]
    scale_D, shift_D = np.ones(6), np.zeros(6)
    if layer.norm is not None:
        layer.norm.running_mean.normal_()  # type: ignore[union-attr]  # of this configuration the layer has both
        layer.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]  # of this configuration the layer has both
        scale_D = (layer.norm.running_var + layer.norm.eps).rsqrt().numpy()  # type: ignore[union-attr, operator]  # this network has them
        shift_D = -layer.norm.running_mean.numpy() * scale_D  # type: ignore[union-attr]  # of this configuration the layer has both
    weight, bias = layer.convolution.weight.detach().numpy(), layer.convolution.bias.detach().numpy()  # type: ignore[union-attr]  # of this configuration the layer has both
    for extra in (0, 3):
        x_MD, packing = ragged(lengths, 6, extra=extra)
        with torch.no_grad():
            out_MD, half = layer(x_MD, packing)
        assert half.mask_BS.sum(1).tolist() == [5, 1, 2, 1]
        rows = np.split(x_MD.numpy(), np.cumsum(lengths)[:-1])
        expected = [distil_oracle(row, weight, bias, scale_D, shift_D, kind == "released") for row in rows]
        np.testing.assert_allclose(out_MD.numpy(), np.concatenate(expected), atol=1e-12)


def test_released_distilling_is_the_released_layer_where_nothing_is_padded() -> None:
    torch.manual_seed(0)
    ours = Distilling(8, "released").double()
    theirs = nn.Sequential(
        nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular"), nn.BatchNorm1d(8), nn.ELU(), nn.MaxPool1d(3, 2, 1)
    ).double()
    theirs[0].load_state_dict(ours.convolution.state_dict())
    x_MD, packing = ragged([11, 11, 11], 8)
    out_MD, half = ours(x_MD, packing)  # in training: statistics of the batch
    expected_BDS = theirs(x_MD.view(3, 11, 8).transpose(1, 2))
    torch.testing.assert_close(half.unpack(out_MD), expected_BDS.transpose(1, 2))
    assert ours.norm is not None
    torch.testing.assert_close(ours.norm.running_var, theirs[1].running_var)


def encoder(
    kind: DistillingKind | None, config: AttentionConfig, width: int = 16, n_blocks: int = 3
) -> DistilledEncoder:
    torch.manual_seed(1)
    blocks = [Block(width, 2, DenseFeedForward(width, 32, nn.GELU()), "pre", 0.0, config) for _ in range(n_blocks)]
    return DistilledEncoder(width, blocks, kind).double().eval()


@pytest.mark.parametrize("kind", ["plain", "released", None])
@pytest.mark.parametrize("attention", ["exact", "probsparse"])
def test_encoding_ignores_padding_and_batch_mates(
    kind: DistillingKind | None, attention: Literal["exact", "probsparse"]
) -> None:
    network, lengths = encoder(kind, AttentionConfig(kind=attention, factor=2.0)), [40, 3, 1, 17]
    with torch.no_grad():
        expected, packing = network(*ragged(lengths, 16))
        longer, _ = network(*ragged(lengths, 16, extra=9))
        rows = torch.split(ragged(lengths, 16)[0], lengths)
        alone = [network(row, Packing.of(torch.ones(1, len(row), dtype=torch.bool), leading=False))[0] for row in rows]
    assert packing.mask_BS.sum(1).tolist() == ([40, 3, 1, 17] if kind is None else [10, 1, 1, 5])
    torch.testing.assert_close(longer, expected)
    torch.testing.assert_close(torch.cat(alone), expected)


def released_state(arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Weights of the released encoder of three layers under our names."""
    state = {f"norm.{kind}": arrays[f"w/norm.{kind}"] for kind in ("weight", "bias")}
    for number, kind in product(range(3), ("weight", "bias")):
        ours, theirs = f"blocks.{number}.", f"w/attn_layers.{number}."
        parts = [arrays[f"{theirs}attention.{name}_projection.{kind}"] for name in ("query", "key", "value")]
        state[f"{ours}attention.qkv.{kind}"] = np.concatenate(parts)
        state[f"{ours}attention.out.{kind}"] = arrays[f"{theirs}attention.out_projection.{kind}"]
        for layer, name in ((0, "conv1"), (2, "conv2")):  # convolutions of width 1
            value = arrays[f"{theirs}{name}.{kind}"]
            state[f"{ours}feed_forward.layers.{layer}.{kind}"] = value[..., 0] if kind == "weight" else value
        for name in ("norm1", "norm2"):
            state[f"{ours}{name}.{kind}"] = arrays[f"{theirs}{name}.{kind}"]
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()}


@needs_shared
def test_encoder_agrees_with_the_released_one_on_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "encoder/distil0/"
    with np.load(shared("parity", "informer.npz")) as file:
        arrays = {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}
    x_BLD, config = torch.from_numpy(arrays["x"]), AttentionConfig(kind="probsparse", sparsity="released")
    blocks = [Block(16, 2, DenseFeedForward(16, 32, nn.GELU()), "post", 0.0, config) for _ in range(3)]
    network = DistilledEncoder(16, blocks, None).eval()
    # The draws are not weights of the released encoder; its own are handed in below.
    missing = network.load_state_dict(released_state(arrays), strict=False).missing_keys
    assert all(name.endswith("uniform_TU") for name in missing)
    for number, block in enumerate(blocks):
        place_BQU = torch.from_numpy(arrays[f"index_sample_{number}"]).expand(len(x_BLD), -1, -1)
        sample = KeySample(place_BQU, torch.ones_like(place_BQU[:, 0], dtype=torch.bool))
        assert isinstance(block.attention.kernel, ProbSparseAttention)
        monkeypatch.setattr(block.attention.kernel, "sample", lambda mask_BS, sample=sample: sample)
    packing = Packing.of(torch.ones(x_BLD.shape[:2], dtype=torch.bool), leading=False)
    with torch.no_grad():
        out_MD, _ = network(packing.pack(x_BLD), packing)
    np.testing.assert_allclose(packing.unpack(out_MD).numpy(), arrays["out"], rtol=1e-4, atol=2e-6)
