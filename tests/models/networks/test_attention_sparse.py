"""ProbSparse attention: both readings as formulas, reference tensors, the dense limit, and what is sampled."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.networks.parts.attention_kernels import (
    KeySample,
    ProbSparseAttention,
    Sparsity,
    sample_size,
)
from support.attention import Array, dense, heads, ragged
from support.shared import SHARED, needs_shared, shared


def _cases() -> list[str]:
    if SHARED is None:
        return []
    with np.load(shared("parity", "informer.npz")) as file:
        return sorted({name.split("/")[1] for name in file.files if name.startswith("prob/")})


def _load(prefix: str) -> dict[str, NDArray[Any]]:
    with np.load(shared("parity", "informer.npz")) as file:
        return {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}


@needs_shared
@pytest.mark.parametrize("case", _cases())
def test_released_reading_agrees_with_the_released_code(case: str) -> None:
    arrays = _load(f"prob/{case}/")
    query, key, value = (torch.from_numpy(arrays[name]).transpose(1, 2) for name in "qkv")
    batch, _, length, _ = query.shape
    factor, causal = int(case.split("_")[1][1:]), case.endswith("c1")
    assert sample_size(length, factor, "released") == arrays["u"]
    kernel = ProbSparseAttention(factor, "released", length, causal)
    place_BSU = torch.from_numpy(arrays["index_sample"]).expand(batch, -1, -1)
    sample, mask_BS = (
        KeySample(place_BSU, torch.ones(batch, place_BSU.shape[2], dtype=torch.bool)),
        ragged(*[length] * 2),
    )
    measure = kernel.measure(query, key, mask_BS, sample, 1.0)
    np.testing.assert_allclose(measure.numpy(), arrays["M"], rtol=1e-4, atol=1e-5)
    actual = kernel.attend(query, key, value, mask_BS, sample, 0.0).transpose(1, 2)
    np.testing.assert_allclose(actual.numpy(), arrays["out"], rtol=1e-4, atol=1e-5)


@needs_shared
@pytest.mark.parametrize("length", [8, 65])
def test_paper_reading_agrees_with_its_equations(length: int) -> None:
    arrays = _load(f"note/L{length}/")
    query, key, value, shared_U = (torch.from_numpy(arrays[name]) for name in ("q", "k", "v", "Pi"))
    assert sample_size(length, 5, "paper") == shared_U.shape[0]
    kernel, mask_BS = ProbSparseAttention(5, "paper", length), ragged(length, length)
    sample = KeySample(shared_U.expand(2, 1, -1), torch.ones(2, shared_U.shape[0], dtype=torch.bool))
    measure = kernel.measure(query, key, mask_BS, sample, query.shape[-1] ** -0.5)
    np.testing.assert_allclose(measure.numpy(), arrays["score"], atol=1e-12)
    actual = kernel.attend(query, key, value, mask_BS, sample, 0.0)
    np.testing.assert_allclose(actual.numpy(), arrays["context"], atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sparsity", ["released", "paper"])
def test_as_many_queries_as_keys_is_exact_attention(sparsity: Sparsity, causal: bool) -> None:
    query, key, value = heads(3, 2, 65, 8)
    mask_BS = ragged(65, 20, 1)
    actual = ProbSparseAttention(65, sparsity, 65, causal).eval()(query, key, value, mask_BS)
    expected = dense(query, key, value, mask_BS, causal)
    for row, length in enumerate((65, 20, 1)):
        np.testing.assert_allclose(actual[row, :, :length], expected[row, :, :length], atol=1e-12)


def _restated(kernel: ProbSparseAttention, q: Array, k: Array, v: Array, place_SU: NDArray[np.int64]) -> Array:
    """One head of one row of real tokens, query by query, given the keys each query samples."""
    length, width = q.shape
    size = place_SU.shape[1]
    measure = []
    for query, places in zip(q, place_SU, strict=True):
        scores = k[places] @ query
        if kernel.sparsity == "paper":
            scores = scores / math.sqrt(width)
            measure.append(math.log(np.exp(scores).sum()) - scores.mean())
        else:
            measure.append(scores.max() - scores.sum() / length)
    out = v.cumsum(0) if kernel.causal else np.tile(v.mean(0), (length, 1))
    for place in np.argsort(measure)[::-1][:size]:
        last = place + 1 if kernel.causal else length
        weight = np.exp(k[:last] @ q[place] / math.sqrt(width))
        out[place] = weight @ v[:last] / weight.sum()
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sparsity", ["released", "paper"])
def test_ragged_rows_agree_with_the_formula_on_each(sparsity: Sparsity, causal: bool) -> None:
    lengths = (40, 13, 2)
    query, key, value = heads(3, 2, 44, 8)
    mask_BS = ragged(*lengths, places=44)
    kernel = ProbSparseAttention(2, sparsity, 64, causal).eval()
    actual, sample = kernel(query, key, value, mask_BS).numpy(), kernel.sample(mask_BS)
    for row, length in enumerate(lengths):
        size = sample_size(length, 2, sparsity)
        assert sample.used_BU[row].sum() == size
        place_QU = sample.place_BQU[row, :, :size].numpy()
        place_SU = place_QU[:length] if sparsity == "released" else np.repeat(place_QU, length, axis=0)
        for head in range(2):
            q, k, v = (x[row, head, :length].numpy() for x in (query, key, value))
            np.testing.assert_allclose(actual[row, head, :length], _restated(kernel, q, k, v, place_SU), atol=1e-12)


@pytest.mark.parametrize("sparsity", ["released", "paper"])
def test_samples_are_real_keys_and_know_no_padding(sparsity: Sparsity) -> None:
    kernel = ProbSparseAttention(3, sparsity, 600).eval()
    for length in (1, 2, 7, 8, 100, 600, 900):
        row, padded = (kernel.sample(ragged(length, places=places)) for places in (length, length + 200))
        size = sample_size(min(length, 600), 3, sparsity)
        assert int(row.used_BU.sum()) == size == int(padded.used_BU.sum())
        queries = length if sparsity == "released" else 1
        place_QU = row.place_BQU[0, :, :size]
        assert torch.equal(place_QU, padded.place_BQU[0, :queries, :size])
        assert 0 <= int(place_QU.min()) <= int(place_QU.max()) < length
        if sparsity == "paper":
            assert len(set(place_QU[0].tolist())) == size
    places = kernel.sample(ragged(600)).place_BQU.flatten().tolist()
    assert len(set(places)) > (500 if sparsity == "released" else 15)


def test_training_draws_anew_and_inference_does_not() -> None:
    kernel, mask_BS = ProbSparseAttention(3, "released", 100), ragged(60)
    assert not torch.equal(kernel.sample(mask_BS).place_BQU, kernel.sample(mask_BS).place_BQU)
    kernel.eval()
    assert torch.equal(kernel.sample(mask_BS).place_BQU, kernel.sample(mask_BS).place_BQU)


def test_sample_sizes_are_the_published_ones() -> None:
    published = {1: 1, 4: 4, 16: 15, 65: 25, 96: 25, 200: 30, 390: 30}
    assert {length: sample_size(length, 5, "released") for length in published} == published
    assert [sample_size(length, 5, "paper") for length in (1, 2, 8, 65)] == [1, 2, 8, 20]
    assert [sample_size(length, 0.5, "paper") for length in (1, 2, 40)] == [1, 2, 2]
