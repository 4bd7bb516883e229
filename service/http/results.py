"""Results of a request before encoding in one of the formats of :mod:`service.http.formats`."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nightjar_alerts.core.errors import FieldError, InvalidLightCurve
from nightjar_alerts.core.items import Outcome, curve_identity
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.result import Classified, ClassifierProvenance, ResultFields
from nightjar_alerts.core.serializer import ResultSerializer, default_serializer, result_serializer, serialize_all
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.posterior import PriorError
from nightjar_alerts.service.http.edge.errors import invalid_field
from nightjar_alerts.service.registry.serving import ModelHandle


class ClassifyResults(NamedTuple):
    """Results of a request.

    Attributes
    ----------
    model : model of the response.
    classes, groups, bands : keys of ``probabilities``, ``hierarchy`` and ``points_per_band`` in every result.
    embedding_dim : length of the embeddings.
    results : result of each item, with embeddings as arrays.
    options : options of the request.
    """

    model: ClassifierProvenance
    classes: Sequence[str]
    groups: Sequence[str]
    bands: Sequence[str]
    embedding_dim: int
    results: Sequence[ResultFields]
    options: Options


def build_results(
    serializers: Sequence[ResultSerializer],
    outcomes: Sequence[Outcome],
    identities: Sequence[Mapping[str, Any]],
    errors: Sequence[Sequence[FieldError] | None],
    options: Options,
) -> ClassifyResults:
    """Build the results of several items.

    Parameters
    ----------
    serializers : serializer of each item, at least one. The response names the model of the first; results of other
        models have a member ``model``.
    identities : members that identify each item in its result.
    errors : errors of each item; None for an alert packet, whose result has no list of errors.
    """
    first = serializers[0]
    results = serialize_all(
        serializers[: len(outcomes)],
        outcomes,
        identities,
        errors,
        options.embedding,
        options.coverage,
        options.experts,
    )
    return ClassifyResults(
        first.provenance, first.classes, first.groups, first.bands, first.embedding_dim, results, options
    )


def build_curve_results(
    serializers: Sequence[ResultSerializer],
    outcomes: Sequence[Outcome],
    curves: Sequence[LightCurve | InvalidLightCurve],
    options: Options,
) -> ClassifyResults:
    """Build the results of light curves, as :func:`build_results`."""
    errors = [curve.errors if isinstance(curve, InvalidLightCurve) else () for curve in curves]
    return build_results(serializers, outcomes, [curve_identity(curve) for curve in curves], errors, options)


def get_surveys(curves: Sequence[LightCurve | InvalidLightCurve]) -> list[str]:
    """Return the survey of each light curve; empty if unknown."""
    return [curve.survey if isinstance(curve, LightCurve) else "" for curve in curves]


def get_serializer(handle: ModelHandle, prior: Any, default: str, pointer: str = "/query/prior") -> ResultSerializer:
    """Return the serializer of a model under a prior.

    Parameters
    ----------
    prior : prior of the request; None without.
    default : name of the prior for requests without one, used if the model has it.
    pointer : JSON pointer to ``prior`` in the request.

    Raises
    ------
    ProblemError
        422 if the model does not support the prior of the request.
    """
    try:
        return default_serializer(handle, default) if prior is None else result_serializer(handle, prior)
    except PriorError as error:
        raise invalid_field(pointer + error.pointer, error.reason, str(error)) from None


def get_serializers(
    handles: Sequence[ModelHandle], prior: Any, default: str, pointer: str = "/query/prior"
) -> list[ResultSerializer]:
    """Return the serializer of each item, shared by the items of a model. Raises as :func:`get_serializer`."""
    serializers = {handle: get_serializer(handle, prior, default, pointer) for handle in dict.fromkeys(handles)}
    return [serializers[handle] for handle in handles]


def embedding_to_bytes(embedding: Any, options: Options) -> bytes:
    """Encode an embedding as little-endian values of the type in the options."""
    return _convert_embedding(embedding, options).tobytes()


def with_json_embeddings(results: ClassifyResults) -> Sequence[ResultFields]:
    """Return the results with embeddings for JSON: numbers, or base64 text with the option ``embedding_encoding``."""
    options = results.options
    if not options.embedding or (options.embedding_dtype, options.embedding_encoding) == ("float32", "list"):
        return results.results
    encode = _to_base64 if options.embedding_encoding == "base64" else _convert_embedding
    return [
        replace(result, embedding=encode(result.embedding, options))
        if isinstance(result, Classified) and result.embedding is not None
        else result
        for result in results.results
    ]


def _to_base64(embedding: Any, options: Options) -> str:
    return b64encode(embedding_to_bytes(embedding, options)).decode()


def _convert_embedding(embedding: Any, options: Options) -> NDArray[Any]:
    if options.embedding_dtype == "float32":
        return np.ascontiguousarray(embedding, "<f4")
    largest = np.finfo(np.float16).max  # larger values would become infinite
    half: NDArray[Any] = np.clip(embedding, -largest, largest).astype("<f2")
    return half
