"""A map of the embedding: objects that the network takes to be alike lie side by side.

Principal components are exact, quick and always drawn; t-SNE (van der Maaten & Hinton 2008) shows small groups better
but its distances mean nothing and it takes minutes for many objects, so it is asked for and runs on a subsample.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE

from models.lightcurve import Int64
from training.score.metrics import Float

MAPPED, TSNE_MAPPED = 3000, 1000
_PERPLEXITY = 30.0


class EmbeddingMap(NamedTuple):
    """Places of a sample of objects: which of them (M,), where (M, 2); explained variance of principal components."""

    chosen_M: Int64
    place_M2: NDArray[np.float64]
    explained: tuple[float, float] | None


def principal_components(embedding_NE: Float, limit: int = MAPPED) -> EmbeddingMap:
    """Project a sample on the two directions of largest variance; signs are fixed by the largest loading.

    Raises
    ------
    ValueError
        With fewer than three objects, or embeddings that are not finite.
    """
    chosen_M = _sample(embedding_NE, limit)
    x_ME = embedding_NE[chosen_M].astype(np.float64)
    x_ME -= x_ME.mean(0)
    _, spread_R, direction_RE = np.linalg.svd(x_ME, full_matrices=False)
    direction_2E = (
        direction_RE[:2] * np.sign(direction_RE[:2][np.arange(2), np.abs(direction_RE[:2]).argmax(1)])[:, None]
    )
    share_R = spread_R**2 / max(float((spread_R**2).sum()), 1e-300)
    return EmbeddingMap(chosen_M, x_ME @ direction_2E.T, (float(share_R[0]), float(share_R[1])))


def neighbour_map(embedding_NE: Float, limit: int = TSNE_MAPPED) -> EmbeddingMap:
    """t-SNE of a sample, from a fixed seed; raises as :func:`principal_components` does."""
    chosen_M = _sample(embedding_NE, limit)
    perplexity = min(_PERPLEXITY, (len(chosen_M) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=0)
    return EmbeddingMap(chosen_M, tsne.fit_transform(embedding_NE[chosen_M].astype(np.float64)), None)


def _sample(embedding_NE: Float, limit: int) -> Int64:
    if len(embedding_NE) < 3 or embedding_NE.shape[1] < 2 or not np.isfinite(embedding_NE).all():
        raise ValueError("an embedding map needs three objects and two finite numbers of each")
    if len(embedding_NE) <= limit:
        return np.arange(len(embedding_NE))
    return np.sort(np.random.default_rng(0).choice(len(embedding_NE), limit, replace=False))
