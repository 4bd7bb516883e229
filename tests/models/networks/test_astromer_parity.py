"""Agreement with tensors of the released ASTROMER: versions 0 and 2, and the branch of the positional encodings.

Released kernels are [in, out], GRU gates come in the order update, reset, new; masks are 1 where nothing may look.
"""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nightjar_alerts.models.networks.astromer import (
    AstromerBlock,
    AstromerConfig,
    AstromerEncoder,
    LayerMix,
    reconstruction_head,
)
from nightjar_alerts.models.networks.parts.positional_content import Fourier, Recurrent, Sinusoids
from support.shared import needs_shared, shared

pytestmark = needs_shared

RELEASED_TIME = {"pe_base": 10_000.0, "pe_exponent": 2.0}
BRANCH = {"version": "v2", "pe_base": 1000.0, "pe_exponent": 1.0}
V0 = {"version": "v0", "mask_format": "QK", "m_alpha": 1.0, **RELEASED_TIME}


@pytest.fixture(scope="module")
def data() -> dict[str, Tensor]:
    with np.load(shared("parity", "astromer.npz")) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


class Weights:
    """The released weights under one prefix, in the order in which they were made."""

    def __init__(self, data: dict[str, Tensor], prefix: str) -> None:
        self.left = [data[name] for name in sorted(data) if name.startswith(f"{prefix}/")]

    def take(self) -> Tensor:
        return self.left.pop(0)

    def fill(self, layer: nn.Module) -> None:
        """Kernel and bias of a linear layer, or gain and bias of a norm."""
        assert isinstance(layer, nn.Linear | nn.LayerNorm)
        kernel = self.take()
        layer.weight.data = kernel.T.clone() if kernel.ndim == 2 else kernel
        layer.bias.data = self.take()

    def fill_gru(self, layer: nn.GRU) -> None:
        def reorder(gates: Tensor) -> Tensor:
            update, reset, new = gates.chunk(3, dim=-1)
            return torch.cat([reset, update, new], dim=-1)

        layer.weight_ih_l0.data = reorder(self.take()).T.clone()
        layer.weight_hh_l0.data = reorder(self.take()).T.clone()
        layer.bias_ih_l0.data, layer.bias_hh_l0.data = (reorder(bias) for bias in self.take())

    def fill_time(self, layer: nn.Module) -> None:
        encoding = getattr(layer, "encoding", None)
        if isinstance(encoding, Sinusoids):
            torch.testing.assert_close(self.take()[0], encoding.omega_D, atol=1e-6, rtol=1e-5)
        if isinstance(layer, Recurrent):
            self.fill_gru(layer.recurrence)
            self.fill(layer.project)
        if isinstance(layer, Fourier):
            self.fill(layer.layers[0])
            self.fill(layer.layers[2])

    def fill_encoder(self, encoder: AstromerEncoder, time_is_stored: bool) -> None:
        self.fill(encoder.embed)
        if time_is_stored:
            self.fill_time(encoder.time)
        for block in encoder.blocks:
            assert isinstance(block, AstromerBlock)
            kernels, biases = zip(*((self.take(), self.take()) for _ in range(3)), strict=True)
            block.attention.qkv.weight.data = torch.cat([kernel.T for kernel in kernels])
            block.attention.qkv.bias.data = torch.cat(biases)
            for layer in (block.attention.out, block.feed_forward.layers[0], block.feed_forward.layers[2]):
                self.fill(layer)
            self.fill(block.norm1)
            self.fill(block.norm2)


def encode(
    data: dict[str, Tensor], case: str, inputs: tuple[str, str, str], **changes: object
) -> tuple[Tensor, Tensor]:
    config = AstromerConfig.model_validate({"d_model": 16, "d_ff": 24, "n_heads": 2, "dropout": 0.0, **changes})
    encoder, weights = AstromerEncoder(config).eval(), Weights(data, f"{case}/w")
    weights.fill_encoder(encoder, time_is_stored=case.startswith("pe7"))
    value, time, blocked = (data[name][..., 0] for name in inputs)
    with torch.no_grad():
        encoded: Tensor = encoder(value, time, torch.ones_like(value, dtype=torch.bool), blocked > 0)
    return encoded, blocked > 0


def test_version_0(data: dict[str, Tensor]) -> None:
    names = ("v0/leak0/input", "v0/leak0/times", "v0/leak0/mask_in")
    encoded, _ = encode(data, "v0/leak0", names, **V0)
    torch.testing.assert_close(encoded, data["v0/leak0/encoder_out"], atol=1e-5, rtol=1e-4)
    head, weights = reconstruction_head(16), Weights(data, "v0/leak0/wreg")
    weights.fill(head[1])
    weights.fill(head[0])
    with torch.no_grad():
        torch.testing.assert_close(head(encoded), data["v0/leak0/recon"], atol=1e-5, rtol=1e-4)


def test_version_0_without_its_mask_is_another_network(data: dict[str, Tensor]) -> None:
    names = ("v0/leak0/input", "v0/leak0/times", "v0/leak0/mask_in")
    encoded, _ = encode(data, "v0/leak0", names, **V0 | {"mask_format": "Q"})
    difference = (encoded - data["v0/leak0/encoder_out"]).abs().max()
    torch.testing.assert_close(difference, data["v0/leak0/max_effect_of_mask"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("case", "form", "alpha"), [("K_-1e+09", "K", -1e9), ("Q_-0.5", "Q", -0.5)])
def test_version_2(data: dict[str, Tensor], case: str, form: str, alpha: float) -> None:
    changes = {"version": "v2", "mask_format": form, "m_alpha": alpha, **RELEASED_TIME}
    encoded, _ = encode(data, f"v2/{case}", ("v2/input", "v2/times", "v2/mask_in"), **changes)
    torch.testing.assert_close(encoded, data[f"v2/{case}/encoder_out"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("baseline", {"time_encoding": "baseline"}),
        ("recurrent", {"time_encoding": "recurrent"}),
        ("pea", {"time_encoding": "pea"}),
        ("mlp", {"time_encoding": "fourier", "fourier_input": "time", "fourier_hidden": 12}),
    ],
)
def test_the_branch_of_the_positional_encodings(data: dict[str, Tensor], case: str, changes: dict[str, object]) -> None:
    names = ("pe7/magnitudes", "pe7/times", "pe7/att_mask")
    encoded, blocked = encode(data, f"pe7/{case}", names, **BRANCH, **changes)
    expected = data[f"pe7/{case}/encoder_out"]
    # Rows of blocked queries have all their logits near -1e9 there, where single precision tells none apart.
    torch.testing.assert_close(encoded[~blocked], expected[~blocked], atol=4e-5, rtol=1e-4)


def test_layer_mix(data: dict[str, Tensor]) -> None:
    with torch.no_grad():
        mixed = LayerMix(3)(data["v2/gamma/in"])
    torch.testing.assert_close(mixed, data["v2/gamma/out"], atol=1e-6, rtol=1e-5)
