"""Which models there are for the Open Inference Protocol, and the one place where a name becomes a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.bundle import Bundle, Manifest
from service.answers.writers import class_writer, forecast_writer
from service.http.edge.errors import NOT_FOUND, ProblemError
from service.http.lifecycle import Service
from service.http.oip.classifier import ClassifierTensors
from service.http.oip.forecaster import ForecasterTensors
from service.http.oip.signature import TaskTensors
from service.registry.live import Lease
from service.registry.repository import NotReady
from service.registry.routing import UnknownModel, version_key


@dataclass(frozen=True, slots=True)
class ModelOfTensors:
    """A model, leased, and what its task makes of tensors."""

    lease: Lease[Any]
    tensors: TaskTensors[Any]
    versions: Sequence[str]

    @property
    def bundle(self) -> Bundle:
        """What answers."""
        return self.lease.bundle

    @property
    def provenance(self) -> dict[str, str]:
        """What answers, as a reply says it."""
        writer = class_writer if self.lease.served.task == "classification" else forecast_writer
        return writer(self.lease).provenance


def all_models(service: Service) -> list[ModelOfTensors]:
    """Every model that is served. Raises ProblemError (503) while there is none."""
    return [_model(service, Lease(served)) for served in service.served]


def _model(service: Service, lease: Lease[Any]) -> ModelOfTensors:
    manifest = lease.bundle.manifest
    versions = [served.reference.version for served in service.served if served.reference.name == manifest.name]
    return ModelOfTensors(lease, _tensors(manifest), sorted(versions, key=version_key))


def _tensors(manifest: Manifest) -> ClassifierTensors | ForecasterTensors:
    return ClassifierTensors(manifest) if manifest.task == "classification" else ForecasterTensors(manifest)


def find_model(service: Service, name: str, version: str = "", key: str = "") -> ModelOfTensors:
    """The model of a name or alias, in the version asked for, or in the one that answers for the name.

    Parameters
    ----------
    key : what a canary's share is divided by.

    Raises
    ------
    ProblemError
        404 when there is none, 503 while starting.
    """
    try:
        lease = service.models.of_any_task(f"{name}@{version}" if version else name, key)
    except NotReady:
        raise service.not_ready() from None
    except UnknownModel:
        detail = "no model of this name and version is served here: /v1/models lists those that are"
        raise ProblemError(NOT_FOUND, detail) from None
    return _model(service, lease)
