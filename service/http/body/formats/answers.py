"""What a reply says, before it is written in a format."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.http.body.forms import Options


class Answers(NamedTuple):
    """The answers to a request.

    Attributes
    ----------
    model : which network answered, as :class:`service.answers.replies.ClassifierProvenance`.
    classes, groups, bands : keys of the probabilities, of the hierarchy and of the points in every result.
    embedding_dim : length of the embeddings.
    results : one for each light curve, as :class:`replies.CurveResult` or ``CurveFailure``; an embedding
        is an array.
    options : what the caller wants of them.
    """

    model: Mapping[str, str]
    classes: Sequence[str]
    groups: Sequence[str]
    bands: Sequence[str]
    embedding_dim: int
    results: Sequence[Mapping[str, Any]]
    options: Options


def embedding_bytes(embedding: NDArray[np.float32], options: Options) -> bytes:
    """Little-endian values of the type asked for."""
    return _embedding(embedding, options).tobytes()


def embedding_text(embedding: NDArray[np.float32], options: Options) -> NDArray[Any] | str:
    """What stands for an embedding in a text format: numbers or base64, as asked for."""
    if options.embedding_encoding == "base64":
        return b64encode(embedding_bytes(embedding, options)).decode()
    return _embedding(embedding, options)


def _embedding(embedding: NDArray[np.float32], options: Options) -> NDArray[Any]:
    if options.embedding_dtype == "float32":
        return np.ascontiguousarray(embedding, "<f4")
    most = np.finfo(np.float16).max  # what is beyond would become infinite
    return np.clip(embedding, -most, most).astype("<f2")
