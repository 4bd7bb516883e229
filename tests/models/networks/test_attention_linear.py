"""Linformer and Performer: their formulas, the dense limit of the one and the error of the other."""

import numpy as np
import pytest
import torch

from nightjar_alerts.models.networks.parts.attention_kernels import (
    LinformerAttention,
    PerformerAttention,
    orthogonal_features,
)
from support.attention import dense, heads, ragged, softmax

LENGTHS = (24, 10, 1)


def test_linformer_with_the_identity_is_exact_attention() -> None:
    kernel = LinformerAttention(30, 30).double()
    for weight_NK in kernel.parameters():
        weight_NK.data = torch.eye(30, dtype=torch.float64)
    query, key, value = heads(3, 2, 24, 8)
    mask_BS = ragged(*LENGTHS)
    actual = kernel(query, key, value, mask_BS).detach().numpy()
    np.testing.assert_allclose(actual, dense(query, key, value, mask_BS), atol=1e-12)


def test_linformer_agrees_with_the_formula() -> None:
    kernel = LinformerAttention(5, 30).double()
    query, key, value = heads(3, 2, 24, 8)
    actual = kernel(query, key, value, ragged(*LENGTHS)).detach().numpy()
    key_NK, value_NK = (weight.detach().numpy() for weight in (kernel.key_NK, kernel.value_NK))
    for row, length in enumerate(LENGTHS):
        q, k, v = (x[row, :, :length].numpy() for x in (query, key, value))
        k, v = (np.einsum("sk,hse->hke", weight[:length], x) for weight, x in ((key_NK, k), (value_NK, v)))
        expected = softmax(np.einsum("hqe,hke->hqk", q, k) / np.sqrt(8)) @ v
        np.testing.assert_allclose(actual[row, :, :length], expected, atol=1e-12)


def test_linformer_refuses_more_places_than_it_projects() -> None:
    query, key, value = heads(1, 2, 31, 8)
    with pytest.raises(ValueError, match="31 places; this Linformer projects at most 30"):
        LinformerAttention(5, 30).double()(query, key, value, ragged(31))


@pytest.mark.parametrize("causal", [False, True])
def test_performer_agrees_with_the_formula(causal: bool) -> None:
    """Positive random features (FAVOR+, lemma 1), without the scaling that keeps them in range; chunks of 64."""
    lengths = (150, 64, 1)
    query, key, value = heads(3, 2, 150, 8, scale=1.0)
    kernel = PerformerAttention(8, 20, causal).double()
    actual = kernel(query, key, value, ragged(*lengths)).numpy()
    w = kernel.feature_ME.numpy()
    for row, length in enumerate(lengths):
        q, k, v = (x[row, :, :length].numpy() for x in (query, key, value))
        q, k = (
            np.exp(x @ w.T / 8**0.25 - (x**2).sum(-1, keepdims=True) / 2 / np.sqrt(8)) / np.sqrt(20) for x in (q, k)
        )
        weight = np.einsum("hqm,hsm->hqs", q, k)
        weight = np.tril(weight) if causal else weight
        expected = weight / weight.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(actual[row, :, :length], expected, atol=1e-10)


def test_performer_error_falls_as_features_grow() -> None:
    """Sixteen times as many features quarter it, while scores are small; it grows fast with the scores."""
    query, key, value = heads(1, 2, 64, 16, scale=0.3)
    expected = dense(query, key, value)

    def error(n_features: int) -> float:
        torch.manual_seed(0)
        kernels = [PerformerAttention(16, n_features).double() for _ in range(20)]
        errors = [kernel(query, key, value, ragged(64)).numpy() - expected for kernel in kernels]
        return float(np.sqrt(np.mean(np.square(errors))))

    errors = [error(n_features) for n_features in (16, 256, 4096)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 0.002


def test_the_kernel_estimate_is_unbiased() -> None:
    """Mean of phi(q) phi(k) over many draws of few features is exp(q k / sqrt(E))."""
    torch.manual_seed(0)
    query, key, _ = heads(1, 1, 1, 4, scale=0.7)
    w = torch.cat([orthogonal_features(4, 4) for _ in range(4_000)]).double()
    q, k = (x.flatten() / 4**0.25 for x in (query, key))
    estimate = (w @ q - q @ q / 2).exp() * (w @ k - k @ k / 2).exp()
    spread = estimate.view(-1, 4).mean(1).std() / 4_000**0.5
    assert abs(float(estimate.mean() - (q @ k).exp())) < 4 * float(spread)


def test_features_are_orthogonal_in_blocks_with_gaussian_lengths() -> None:
    torch.manual_seed(0)
    feature_ME = orthogonal_features(2000, 16)
    direction_ME = feature_ME / feature_ME.norm(dim=1, keepdim=True)
    for first in range(0, 2000, 16):
        block_EE = direction_ME[first : first + 16]
        torch.testing.assert_close(block_EE @ block_EE.T, torch.eye(16), atol=1e-5, rtol=0)
    assert abs(float(feature_ME.square().sum(1).mean()) - 16) < 0.5
    assert float(feature_ME.mean(0).abs().max()) < 0.1, "no direction is favoured"
