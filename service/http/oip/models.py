"""Models in the words of the Open Inference Protocol: how they are found by name, described, and fed with tensors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_alerts.models.bundle import Bundle, Manifest
from nightjar_alerts.models.lightcurve import Float32
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.answers.serializer import result_serializer
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.oip.forms import ModelMetadata, TensorMetadata
from nightjar_alerts.service.http.oip.signature import (
    ANY,
    OUTCOME_OUTPUTS,
    Received,
    Spec,
    curve_inputs,
    read_curves,
    write_outcomes,
)
from nightjar_alerts.service.http.oip.tensors import Array, Tensor
from nightjar_alerts.service.registry.names import version_key
from nightjar_alerts.service.registry.serving import ModelHandle
from nightjar_alerts.service.settings import Settings


class ClassifierTensors:
    """Observations in, a row of probabilities for each light curve out."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """Tensors that make light curves."""
        return curve_inputs(self._manifest)

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """``probabilities``, what became of each light curve, and the ``embedding`` when it is asked for."""
        classes = tuple(self._manifest.classes.names)
        return (
            Spec("probabilities", ("FP32",), (ANY, len(classes)), labels=classes),
            *OUTCOME_OUTPUTS,
            Spec("embedding", ("FP32",), (ANY, self._manifest.embedding_dim), optional=True),
        )

    def read(self, tensors: Mapping[str, Tensor], flux_unit: FluxUnit, settings: Settings) -> Received:
        """Light curves of a request."""
        curves = read_curves(tensors, self._manifest, flux_unit, settings)
        return Received(curves.records(), curves.object_ids)

    def write(self, names: Collection[str], received: Received, outcomes: Sequence[Outcome]) -> dict[str, Array]:
        """Return outputs of these names, a row for each light curve, NaN where the network did not answer."""
        arrays: dict[str, Array] = dict(write_outcomes(names, received, outcomes))
        widths = {spec.name: spec.shape[1] for spec in self.outputs if len(spec.shape) == 2}
        return arrays | {name: _rows(outcomes, name, widths[name]) for name in names if name in widths}


def _rows(outcomes: Sequence[Outcome], name: str, width: int) -> Float32:
    rows = np.full((len(outcomes), width), np.nan, dtype=np.float32)
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome.prediction is not None:
            row[:] = outcome.prediction.outputs[name]
    return rows


@dataclass(frozen=True, slots=True)
class ModelOfTensors:
    """A model and its tensors."""

    handle: ModelHandle
    tensors: ClassifierTensors
    versions: Sequence[str]

    @property
    def bundle(self) -> Bundle:
        """Bundle that answers."""
        return self.handle.bundle

    @property
    def provenance(self) -> dict[str, str]:
        """Provenance of the answers, as a reply says it."""
        return result_serializer(self.handle).provenance


def _model(service: Service, handle: ModelHandle) -> ModelOfTensors:
    manifest = handle.bundle.manifest
    versions = [served.reference.version for served in service.served if served.reference.name == manifest.name]
    return ModelOfTensors(handle, ClassifierTensors(manifest), sorted(versions, key=version_key))


def find_model(service: Service, name: str, version: str = "", key: str = "") -> ModelOfTensors:
    """Find the model of a name or alias, in the version asked for, or in the one that answers for the name.

    Parameters
    ----------
    key : decides whether a canary answers.

    Raises
    ------
    ProblemError
        404 when there is none, 503 while starting.
    """
    return _model(service, service.select_model(f"{name}@{version}" if version else name, routing_key=key))


EXTENSIONS = ["binary_tensor_data", "classification", "parameters"]
PLATFORM = "onnxruntime_onnx"


def metadata(model: ModelOfTensors) -> ModelMetadata:
    """Names, datatypes and shapes."""
    manifest = model.bundle.manifest
    return ModelMetadata(
        name=manifest.name,
        versions=list(model.versions),
        platform=PLATFORM,
        inputs=_tensor_metadata(model.tensors.inputs),
        outputs=_tensor_metadata(model.tensors.outputs),
    )


def _tensor_metadata(specs: Sequence[Spec]) -> list[TensorMetadata]:
    return [TensorMetadata(name=spec.name, datatype=spec.datatypes[0], shape=list(spec.shape)) for spec in specs]
