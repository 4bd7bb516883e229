"""The embedding map: principal components against scikit-learn's."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from nightjar_alerts.training.score.sections import principal_components


def test_principal_components_agree_with_scikit_learn() -> None:
    embedding = np.random.default_rng(0).normal(size=(80, 7)) * np.arange(1, 8)
    embedding_map, expected = principal_components(embedding.astype(np.float32)), PCA(2).fit(embedding)
    np.testing.assert_allclose(np.abs(embedding_map.place_M2), np.abs(expected.transform(embedding)), atol=1e-4)
    assert embedding_map.explained == pytest.approx(tuple(expected.explained_variance_ratio_), rel=1e-5)


def test_the_signs_do_not_depend_on_the_solver() -> None:
    embedding = np.random.default_rng(1).normal(size=(30, 4))
    first, mirrored = principal_components(embedding), principal_components(-embedding)
    np.testing.assert_allclose(mirrored.place_M2, -first.place_M2, atol=1e-9)


def test_large_sets_are_sampled_and_small_ones_are_not() -> None:
    embedding = np.random.default_rng(2).normal(size=(50, 3))
    assert principal_components(embedding).chosen_M.tolist() == list(range(50))
    chosen = principal_components(embedding, limit=20).chosen_M
    assert len(set(chosen)) == 20
    np.testing.assert_array_equal(chosen, principal_components(embedding, limit=20).chosen_M)


def test_identical_embeddings_are_one_place() -> None:
    assert not principal_components(np.ones((5, 3))).place_M2.any()


@pytest.mark.parametrize("embedding", [np.zeros((2, 4)), np.zeros((9, 1)), np.full((9, 4), np.nan)])
def test_embeddings_that_cannot_be_mapped_are_refused(
    embedding: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    with pytest.raises(ValueError, match="embedding map"):
        principal_components(embedding)
