"""Reformer attention: one bucket against exact attention, many against the definition, token by token."""

import math

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.parts.attention_kernels import ReformerAttention, shared_key
from support.attention import Array, dense, heads, ragged

SELF = -1e5


def _only_others(query: torch.Tensor, value: torch.Tensor, causal: bool) -> Array:
    """Exact attention with shared keys of a row, in which a token sees itself only when it sees no other."""
    q = query.numpy()
    k = q / np.linalg.norm(q, axis=-1, keepdims=True)
    score = np.einsum("hqe,hse->hqs", q, k)
    score[:, np.arange(q.shape[1]), np.arange(q.shape[1])] = SELF
    if causal:
        score = np.where(np.tril(np.ones(score.shape[1:], dtype=bool)), score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    mixed: Array = weight / weight.sum(-1, keepdims=True) @ value.numpy()
    return mixed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [40, 64])
def test_one_bucket_is_exact_attention_with_shared_keys(chunk: int, causal: bool) -> None:
    lengths = (40, 17, 2, 1)
    query, _, value = heads(4, 2, 40, 8)
    kernel = ReformerAttention(8, chunk, 3, 1024, causal).double()
    actual = kernel(query, shared_key(query), value, ragged(*lengths))
    for row, length in enumerate(lengths):
        expected = _only_others(query[row, :, :length], value[row, :, :length], causal)
        np.testing.assert_allclose(actual[row, :, :length].numpy(), expected, atol=1e-9)


def test_shared_keys_leave_a_unit_key_under_the_softmax_scale() -> None:
    query, _, value = heads(1, 2, 6, 8)
    unit = query / query.norm(dim=-1, keepdim=True)
    np.testing.assert_allclose(dense(query, shared_key(query), value), dense(query, unit * math.sqrt(8), value))


def _restated(kernel: ReformerAttention, q: Array, v: Array) -> Array:
    """One head of one row: for each token and round the set of keys it may see, then appendix A."""
    length, chunk = len(q), kernel.chunk
    pairs = math.ceil(length / (2 * chunk)) if length > chunk else 0
    k = q / np.linalg.norm(q, axis=1, keepdims=True)
    outs, totals = [], []
    for rotation in kernel.rotation_REG.numpy():
        near = q @ rotation[:, :pairs]
        bucket = np.concatenate([near, -near], axis=1).argmax(1) if pairs else np.zeros(length, dtype=int)
        order = np.lexsort((np.arange(length), bucket))
        chunk_of = np.argsort(order) // chunk
        out, total = np.empty_like(v), np.empty(length)
        for i in range(length):
            keys = [
                j
                for j in range(length)
                if bucket[j] == bucket[i] and chunk_of[i] - chunk_of[j] in (0, 1) and (j <= i or not kernel.causal)
            ]
            weight = np.exp([SELF if j == i else q[i] @ k[j] for j in keys])
            weight = weight if len(keys) > 1 else np.ones(1)
            total[i] = math.log(weight.sum()) if len(keys) > 1 else SELF
            out[i] = weight @ v[keys] / weight.sum()
        outs.append(out)
        totals.append(total)
    share = np.exp(np.array(totals) - np.max(totals, axis=0))
    mixed: Array = np.einsum("rs,rse->se", share / share.sum(0), np.array(outs))
    return mixed


@pytest.mark.parametrize("causal", [False, True])
def test_many_buckets_agree_with_the_definition(causal: bool) -> None:
    lengths = (61, 23, 9)
    query, _, value = heads(3, 2, 66, 8)
    torch.manual_seed(0)
    kernel = ReformerAttention(8, 8, 3, 64, causal).double()
    actual = kernel(query, shared_key(query), value, ragged(*lengths, places=66)).numpy()
    for row, length in enumerate(lengths):
        for head in range(2):
            q, v = (x[row, head, :length].numpy() for x in (query, value))
            np.testing.assert_allclose(actual[row, head, :length], _restated(kernel, q, v), atol=1e-9)


def test_more_rounds_come_closer_to_exact_attention() -> None:
    """A pair that one rotation parts is likely met by another."""
    torch.manual_seed(0)
    query, _, value = heads(4, 4, 128, 8, scale=2.5)
    expected = np.stack([_only_others(q, v, False) for q, v in zip(query, value, strict=True)])

    def error(n_rounds: int) -> float:
        kernel = ReformerAttention(8, 32, n_rounds, 128).double()
        actual = kernel(query, shared_key(query), value, ragged(*[128] * 4)).numpy()
        return float(np.sqrt(np.mean((actual - expected) ** 2)))

    errors = [error(n_rounds) for n_rounds in (1, 4, 16)]
    assert errors[0] > errors[1] > errors[2]


def test_rows_longer_than_planned_fill_their_buckets_further() -> None:
    query, _, value = heads(1, 2, 200, 8)
    kernel = ReformerAttention(8, 8, 2, 64).double()
    assert kernel(query, shared_key(query), value, ragged(200)).isfinite().all()
