"""Which models there are for the Open Inference Protocol, and the one place where a name becomes a model."""

from dataclasses import dataclass
from typing import Any

from models.bundle import Bundle, Manifest
from service.dataplane import DataPlane
from service.http.errors import NOT_FOUND, ProblemError
from service.http.lifecycle import Service
from service.http.oip.classifier import ClassifierTensors
from service.http.oip.forecaster import ForecasterTensors
from service.http.oip.signature import TaskTensors


@dataclass(frozen=True, slots=True)
class ModelOfTensors:
    """A served model, its data plane, and what its task makes of tensors."""

    bundle: Bundle
    plane: DataPlane[Any]
    tensors: TaskTensors[Any]
    provenance: dict[str, str]


def all_models(service: Service) -> list[ModelOfTensors]:
    """Every model that is served. Raises ProblemError (503) while there is none."""
    return [
        ModelOfTensors(model.bundle, model.plane, _tensors(model.bundle.manifest), model.replies.provenance)
        for model in service.served
    ]


def _tensors(manifest: Manifest) -> ClassifierTensors | ForecasterTensors:
    return ClassifierTensors(manifest) if manifest.task == "classification" else ForecasterTensors(manifest)


def find_model(service: Service, name: str, version: str = "") -> ModelOfTensors:
    """The model of a name, in the version asked for, or in the one that is served.

    Raises
    ------
    ProblemError
        404 when there is none, 503 while starting.
    """
    for model in all_models(service):
        manifest = model.bundle.manifest
        if manifest.name == name and version in ("", manifest.version):
            return model
    raise ProblemError(NOT_FOUND, "no model of this name and version is served here: /v1/models lists those that are")
