"""The attention layer: what every kind keeps (padding, batch mates, causality, gradients), and exact attention."""

import numpy as np
import pytest
import torch
from torch import Tensor

from nightjar_alerts.models.networks.parts.attention import AttentionConfig, CrossAttention, SelfAttention
from nightjar_alerts.models.networks.parts.attention_kernels import ExactAttention, chunked, inverse, ranks, take_places
from nightjar_alerts.models.networks.parts.packing import Packing
from support.attention import CAUSAL, FORMS, KINDS, N_HEADS, WIDTH, dense, heads, layer, on_grid, ragged


def _rows(*lengths: int, places: int | None = None, seed: int = 1) -> tuple[Tensor, Tensor]:
    mask_BS = ragged(*lengths, places=places)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*mask_BS.shape, WIDTH, generator=generator, dtype=torch.float64), mask_BS


def test_exact_keeps_its_weights_names() -> None:
    names = set(SelfAttention(WIDTH, N_HEADS).state_dict())
    assert names == {"qkv.weight", "qkv.bias", "out.weight", "out.bias"}
    assert set(SelfAttention(WIDTH, N_HEADS, bias=False).state_dict()) == {"qkv.weight", "out.weight"}


def test_exact_layer_agrees_with_the_formula() -> None:
    attention = layer("exact").double()
    x_BSD, mask_BS = _rows(7, 3, 5)
    query, key, value = (
        part.view(3, 7, N_HEADS, WIDTH // N_HEADS).transpose(1, 2)
        for part in attention.qkv(x_BSD).detach().split(WIDTH, dim=2)
    )
    mixed = np.moveaxis(dense(query, key, value, mask_BS), 1, 2).reshape(3, 7, WIDTH)
    expected = mixed @ attention.out.weight.detach().numpy().T + attention.out.bias.detach().numpy()
    actual = on_grid(attention, x_BSD, mask_BS).detach().numpy()
    np.testing.assert_allclose(actual, expected * mask_BS.numpy()[..., None], atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_forward_leading_returns_the_leading_rows_of_forward(bias: bool) -> None:
    torch.manual_seed(0)
    attention = SelfAttention(WIDTH, N_HEADS, bias=bias).double()
    x_BSD, mask_BS = _rows(7, 3, 5)
    packing = Packing.of(mask_BS, leading=True)
    x_MD = torch.cat([torch.randn(3, WIDTH, dtype=torch.float64), x_BSD[mask_BS]])
    torch.testing.assert_close(attention.forward_leading(x_MD, packing), attention(x_MD, packing)[:3])


@pytest.mark.parametrize("causal", [False, True])
def test_exact_kernel_agrees_with_the_formula(causal: bool) -> None:
    query, key, value = heads(2, 3, 9, 4)
    mask_BS = ragged(9, 6)
    actual = ExactAttention(causal)(query, key, value, mask_BS)
    np.testing.assert_allclose(actual.numpy(), dense(query, key, value, mask_BS, causal), atol=1e-12)


def test_cross_attention_agrees_with_the_formula() -> None:
    torch.manual_seed(0)
    attention = CrossAttention(WIDTH, N_HEADS).double().eval()
    x_BQD, _ = _rows(4, 4)
    memory_BSD, mask_BS = _rows(6, 3, seed=2)
    heads_of = (2, -1, N_HEADS, WIDTH // N_HEADS)
    query = attention.query(x_BQD).view(heads_of).transpose(1, 2)
    key, value = (x.reshape(heads_of).transpose(1, 2) for x in attention.key_value(memory_BSD).chunk(2, dim=2))
    mixed = np.moveaxis(dense(query, key, value, mask_BS), 1, 2).reshape(2, 4, WIDTH)
    expected = mixed @ attention.out.weight.detach().numpy().T + attention.out.bias.detach().numpy()
    np.testing.assert_allclose(attention(x_BQD, memory_BSD, mask_BS).detach().numpy(), expected, atol=1e-12)


def test_as_many_groups_as_heads_is_exact_attention() -> None:
    config = AttentionConfig(kind="grouped_query", n_groups=N_HEADS)
    exact, grouped = layer("exact"), SelfAttention(WIDTH, N_HEADS, config=config).eval()
    grouped.load_state_dict(exact.state_dict())
    x_BSD, mask_BS = _rows(7, 3)
    assert torch.equal(on_grid(exact, x_BSD.float(), mask_BS), on_grid(grouped, x_BSD.float(), mask_BS))


def test_groups_share_their_key_and_value_head() -> None:
    """Exact attention whose key and value heads are copies gives the same as one head for the group."""
    grouped, exact = layer("grouped_query").double(), layer("exact").double()
    width, shared = WIDTH // N_HEADS, slice(WIDTH, None)
    for name in ("weight", "bias"):
        source, target = getattr(grouped.qkv, name).data, getattr(exact.qkv, name).data
        target[:WIDTH] = source[:WIDTH]
        parts = source[shared].view(2, 2, width, *source.shape[1:])
        target[shared] = parts.repeat_interleave(2, dim=1).reshape(target[shared].shape)
    exact.out.load_state_dict(grouped.out.state_dict())
    x_BSD, mask_BS = _rows(7, 3)
    torch.testing.assert_close(on_grid(grouped, x_BSD, mask_BS), on_grid(exact, x_BSD, mask_BS))


@pytest.mark.parametrize(("kind", "causal"), FORMS)
def test_neither_padding_nor_holes_nor_batch_mates_change_a_row(kind: str, causal: bool) -> None:
    """Discrete choices (samples, top queries, buckets) are functions of the row; the rest is rounding."""
    attention = layer(kind, causal).double()
    x_BSD, mask_BS = _rows(41, 100, 1, 5, places=111)
    together = on_grid(attention, x_BSD, mask_BS)
    for row, length in enumerate((41, 100, 1, 5)):
        alone = on_grid(attention, x_BSD[row : row + 1, :length], mask_BS[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, atol=1e-10, rtol=0)
        holes_S = torch.rand(140, generator=torch.Generator().manual_seed(row)).argsort()[:length].sort().values
        spread_1SD, spread_1S = torch.full((1, 140, WIDTH), 7.0).double(), torch.zeros(1, 140, dtype=torch.bool)
        spread_1SD[0, holes_S], spread_1S[0, holes_S] = x_BSD[row, :length], True
        torch.testing.assert_close(on_grid(attention, spread_1SD, spread_1S)[0, holes_S], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_inference_repeats_and_travels_with_the_weights(kind: str) -> None:
    x_BSD, mask_BS = _rows(30, 12)
    attention, other = layer(kind), layer(kind, seed=1)
    first = on_grid(attention, x_BSD.float(), mask_BS)
    assert torch.equal(first, on_grid(attention, x_BSD.float(), mask_BS))
    other.load_state_dict(attention.state_dict())
    assert torch.equal(first, on_grid(other, x_BSD.float(), mask_BS))


@pytest.mark.parametrize("kind", CAUSAL)
def test_causal_attention_does_not_read_later_values(kind: str) -> None:
    """ProbSparse picks its queries, and Reformer its buckets, by all keys; what is mixed comes from earlier places."""
    kernel = layer(kind, causal=True).double().kernel
    query, key, value = heads(1, N_HEADS, 90, WIDTH // N_HEADS)
    changed = value.clone()
    changed[:, :, 50:] += 3.0
    mask_BS = ragged(90)
    before, after = (kernel(query, key, x, mask_BS) for x in (value, changed))
    torch.testing.assert_close(before[:, :, :50], after[:, :, :50], atol=1e-12, rtol=0)
    assert not torch.allclose(before[:, :, 50:], after[:, :, 50:])


@pytest.mark.parametrize("kind", [kind for kind in CAUSAL if not kind.startswith("probsparse")])
def test_causal_attention_does_not_read_later_keys(kind: str) -> None:
    kernel = layer(kind, causal=True).double().kernel
    query, key, value = heads(1, N_HEADS, 90, WIDTH // N_HEADS)
    changed = key.clone()
    changed[:, :, 50:] += 3.0
    before, after = (kernel(query, x, value, ragged(90)) for x in (key, changed))
    torch.testing.assert_close(before[:, :, :50], after[:, :, :50], atol=1e-12, rtol=0)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(("kind", "causal"), FORMS)
def test_gradients_are_finite_and_reach_every_weight(kind: str, causal: bool, bfloat16: bool) -> None:
    attention = layer(kind, causal).train()
    attention.dropout = 0.1
    mask_BS = ragged(20, 1)
    mask_BS[0, 3] = False
    x_BSD = torch.randn(2, 20, WIDTH, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        torch.autograd.backward(on_grid(attention, x_BSD, mask_BS).square().sum())
    for name, parameter in (*attention.named_parameters(), ("x", x_BSD)):
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_a_token_stays_finite(kind: str) -> None:
    query, key, value = heads(2, N_HEADS, 9, WIDTH // N_HEADS)
    mixed = layer(kind).double().kernel(query.requires_grad_(), key, value, ragged(9, 0))
    (gradient,) = torch.autograd.grad(mixed.sum(), query)
    assert mixed.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_positions_turn_or_widen_query_and_key(kind: str) -> None:
    """A rotation common to all places changes no score (hashes aside); a constant column changes no softmax."""
    attention = layer(kind).double()
    turn_EE = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    x_BSD, mask_BS = _rows(10, 6)
    packing = Packing.of(mask_BS, leading=False)
    x_MD = packing.pack(x_BSD)
    plain = attention(x_MD, packing)
    if kind not in ("performer", "reformer"):
        torch.testing.assert_close(attention(x_MD, packing, lambda q, k: (q @ turn_EE, k @ turn_EE)), plain)
    column = torch.ones(2, N_HEADS, 10, 1, dtype=torch.float64)

    def widen(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([query, column], 3), torch.cat([key, column], 3)

    if kind in ("performer", "reformer"):
        with pytest.raises(ValueError, match="widens"):
            attention(x_MD, packing, widen)
    elif kind in ("exact", "grouped_query"):
        torch.testing.assert_close(attention(x_MD, packing, widen), plain)
    else:
        assert attention(x_MD, packing, widen).isfinite().all()


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide into 3 heads"):
        SelfAttention(16, 3)
    with pytest.raises(ValueError, match="do not divide into 3 groups"):
        SelfAttention(16, 4, config=AttentionConfig(kind="grouped_query", n_groups=3))
    with pytest.raises(ValueError, match="causal"):
        SelfAttention(16, 4, config=AttentionConfig(kind="linformer"), causal=True)


def test_ranks_count_the_real_tokens() -> None:
    mask_BS = torch.tensor([[True, False, True, False], [False, False, False, True]])
    assert ranks(mask_BS).tolist() == [[0, 2, 1, 3], [1, 2, 3, 0]]
    assert inverse(ranks(mask_BS)).tolist() == [[0, 2, 1, 3], [3, 0, 1, 2]]


def test_places_are_taken_by_head_and_cut_into_chunks() -> None:
    x_BHSE = torch.arange(2 * 3 * 5 * 2.0).view(2, 3, 5, 2)
    place_BHK = torch.randint(5, (2, 3, 4))
    assert torch.equal(take_places(x_BHSE, place_BHK), x_BHSE.take_along_dim(place_BHK[..., None], 2))
    cut_BHPCE = chunked(x_BHSE, 2, 2, -1.0)
    assert cut_BHPCE.shape == (2, 3, 3, 2, 2)
    assert torch.equal(cut_BHPCE.flatten(2, 3)[:, :, :5], x_BHSE)
    assert (cut_BHPCE[:, :, 2, 1] == -1.0).all()
