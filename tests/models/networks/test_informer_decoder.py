"""The decoder against a float64 restatement, in every reading, and what an answer may depend on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.networks.informer import CausalAttention, Decoder, DecoderBlock, StartAttention
from nightjar_alerts.models.networks.parts.attention import AttentionConfig
from nightjar_alerts.models.networks.parts.transformer import DenseFeedForward, NormOrder

Float = NDArray[np.float64]

WIDTH, HEADS, START = 12, 3, 4


def decoder(order: NormOrder, attention: Callable[[], nn.Module], n_blocks: int = 2) -> Decoder:
    torch.manual_seed(0)
    blocks = [
        DecoderBlock(attention(), WIDTH, HEADS, DenseFeedForward(WIDTH, 20, nn.ReLU()), order, 0.0)
        for _ in range(n_blocks)
    ]
    network = Decoder(WIDTH, blocks).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():  # norms too must be told from the identity
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def causal(kind: str = "exact") -> Callable[[], nn.Module]:
    config = AttentionConfig.model_validate({"kind": kind})
    return lambda: CausalAttention(WIDTH, HEADS, 0.0, config)


def independent() -> nn.Module:
    return StartAttention(WIDTH, HEADS, 0.0, START)


def tensors(places: int = 9, memory: int = 7, batch: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x_BSD = torch.randn(batch, places, WIDTH, generator=generator, dtype=torch.float64)
    memory_BKD = torch.randn(batch, memory, WIDTH, generator=generator, dtype=torch.float64)
    memory_mask_BK = torch.arange(memory) < torch.tensor([[memory], [memory - 3]])
    return x_BSD, torch.ones(batch, places, dtype=torch.bool), memory_BKD, memory_mask_BK


def softmax(x: Float) -> Float:
    unnormalised = np.exp(x - x.max(-1, keepdims=True))
    shares: Float = unnormalised / unnormalised.sum(-1, keepdims=True)
    return shares


def attend(query: Float, key: Float, value: Float, seen: NDArray[np.bool_]) -> Float:
    """softmax(q k / sqrt(E)) v of one row; heads [H, S, E]."""
    scores = np.where(seen, query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[2]), -np.inf)
    mixed: Float = softmax(scores) @ value
    return mixed


def heads(x_SD: Float) -> Float:
    return x_SD.reshape(len(x_SD), HEADS, -1).transpose(1, 0, 2)


class Oracle:
    """One unpadded row through a decoder, from its weights by name."""

    def __init__(self, network: Decoder, order: NormOrder, context: str) -> None:
        self.w = {name: value.double().numpy() for name, value in network.state_dict().items()}
        self.n_blocks, self.order, self.context = len(network.blocks), order, context

    def linear(self, name: str, x: Float) -> Float:
        mapped: Float = x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]
        return mapped

    def norm(self, name: str, x: Float) -> Float:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        normed: Float = unit * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]
        return normed

    def cross(self, name: str, x_SD: Float, memory_KD: Float) -> Float:
        key, value = np.split(self.linear(f"{name}.key_value", memory_KD), 2, axis=1)
        everything = np.ones((len(x_SD), len(memory_KD)), dtype=np.bool_)
        mixed = attend(heads(self.linear(f"{name}.query", x_SD)), heads(key), heads(value), everything)
        return self.linear(f"{name}.out", mixed.transpose(1, 0, 2).reshape(x_SD.shape))

    def self_attention(self, name: str, x_SD: Float) -> Float:
        if self.context == "independent":
            return self.cross(f"{name}.attention", x_SD, x_SD[:START])
        query, key, value = np.split(self.linear(f"{name}.attention.qkv", x_SD), 3, axis=1)
        mixed = attend(heads(query), heads(key), heads(value), np.tri(len(x_SD), dtype=np.bool_))
        return self.linear(f"{name}.attention.out", mixed.transpose(1, 0, 2).reshape(x_SD.shape))

    def feed_forward(self, name: str, x_SD: Float) -> Float:
        return self.linear(f"{name}.layers.2", np.maximum(self.linear(f"{name}.layers.0", x_SD), 0))

    def __call__(self, x_SD: Float, memory_KD: Float) -> Float:
        for number in range(self.n_blocks):
            block = f"blocks.{number}"
            parts: list[Callable[[Float], Float]] = [
                lambda y, block=block: self.self_attention(f"{block}.self_attention", y),  # type: ignore[misc]  # default arguments of a lambda
                lambda y, block=block: self.cross(f"{block}.cross_attention", y, memory_KD),  # type: ignore[misc]  # default arguments of a lambda
                lambda y, block=block: self.feed_forward(f"{block}.feed_forward", y),  # type: ignore[misc]  # default arguments of a lambda
            ]
            for place, part in enumerate(parts, start=1):
                norm = f"{block}.norm{place}"
                inner = part(self.norm(norm, x_SD)) if self.order == "pre" else part(x_SD)
                x_SD = x_SD + inner if self.order == "pre" else self.norm(norm, x_SD + inner)
        return self.norm("norm", x_SD)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("context", ["independent", "causal"])
def test_decoder_agrees_with_its_restatement(order: NormOrder, context: str) -> None:
    network = decoder(order, independent if context == "independent" else causal())
    x_BSD, mask_BS, memory_BKD, memory_mask_BK = tensors()
    with torch.no_grad():
        out_BSD = network(x_BSD, mask_BS, memory_BKD, memory_mask_BK).numpy()
    oracle = Oracle(network, order, context)
    for row in range(2):
        expected = oracle(x_BSD[row].numpy(), memory_BKD[row, memory_mask_BK[row]].numpy())
        np.testing.assert_allclose(out_BSD[row], expected, atol=1e-9)


def test_probsparse_that_attends_everywhere_is_exact_causal_attention() -> None:
    """Twelve places and five per ln 12: every query attends."""
    exact, sparse = decoder("pre", causal()), decoder("pre", causal("probsparse"))
    sparse.load_state_dict(exact.state_dict(), strict=False)
    inputs = tensors(places=12)
    with torch.no_grad():
        torch.testing.assert_close(sparse(*inputs), exact(*inputs))


@pytest.mark.parametrize(("context", "changed"), [("independent", [6]), ("causal", [6, 7, 8])])
def test_another_question_changes_the_places_that_see_it(context: str, changed: list[int]) -> None:
    """Places before START are start tokens, place 6 is one question of many."""
    network = decoder("pre", independent if context == "independent" else causal())
    x_BSD, *rest = tensors()
    with torch.no_grad():
        before = network(x_BSD, *rest)
        x_BSD[:, 6, 0] += 1.0  # not all channels alike: a norm would undo that
        after = network(x_BSD, *rest)
    moved = (before - after).abs().amax((0, 2)) > 1e-9
    assert moved.nonzero()[:, 0].tolist() == changed


def test_masked_places_are_not_looked_at() -> None:
    for attention in (independent, causal(), causal("probsparse")):
        network = decoder("post", attention)
        x_BSD, mask_BS, *memory = tensors()
        mask_BS[:, [1, 5]] = False
        with torch.no_grad():
            before = network(x_BSD, mask_BS, *memory)[mask_BS]
            x_BSD[~mask_BS] = 1e3
            after = network(x_BSD, mask_BS, *memory)[mask_BS]
        torch.testing.assert_close(after, before)
