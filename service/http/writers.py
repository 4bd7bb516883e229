"""Writing replies, one writer for each task, as :mod:`service.http.replies` describes them.

They go straight to bytes: going through the models would cost several times as much, and tests hold the two to each
other.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from numpy.typing import NDArray

from models.bundle import Bundle
from models.forecast import query_order
from models.lightcurve import BANDS, Float64, FluxUnit, LightCurve, flux_to_njy, njy_to
from models.taxonomy import Taxonomy
from service.dataplane import Outcome
from service.http.fields import FieldError
from service.inference.programs import ForecastItem
from service.repository.routing import Role
from service.repository.served import Lease, Served


def provenance(bundle: Bundle, role: Role = "") -> dict[str, str]:
    """The fields of :class:`service.http.replies.Provenance`."""
    told = {"name": bundle.manifest.name, "version": bundle.manifest.version, "sha256": bundle.sha256}
    return told | {"role": role} if role else told


def classifier_provenance(bundle: Bundle, role: Role = "") -> dict[str, str]:
    """The fields of :class:`service.http.replies.ClassifierProvenance`."""
    taxonomy = bundle.manifest.classes
    return provenance(bundle, role) | {
        "taxonomy": f"{taxonomy.name}/{taxonomy.version}",
        "calibration": bundle.manifest.calibration.method,
    }


class ClassWriter:
    """Writes replies in the name of one classifier."""

    def __init__(self, bundle: Bundle, role: Role = "") -> None:
        taxonomy = bundle.manifest.classes
        self.classes, self._ids = taxonomy.names, taxonomy.ids
        self.groups, self._membership = _membership(taxonomy)
        self.embedding_dim = bundle.manifest.embedding_dim
        self._sets = bundle.manifest.prediction_sets
        self.provenance = classifier_provenance(bundle, role)

    def result(
        self,
        outcome: Outcome,
        identity: Mapping[str, object],
        errors: Sequence[FieldError] | None = None,
        embedding: bool = False,
        coverage: float | None = None,
    ) -> dict[str, Any]:
        """One result.

        Parameters
        ----------
        identity : what names the item: ``object_id`` and, for a packet, where it comes from.
        errors : values at fault in a light curve; None for a packet, whose reply has no such list.
        coverage : of the prediction set; the model's own by default.
        """
        if outcome.prediction is None:
            return _failure(outcome, identity, errors)
        # float32 softmax sums to 1 within 1e-7; the doubles of a JSON reply can do better.
        probabilities = outcome.prediction.outputs["probabilities"].astype(np.float64)
        probabilities /= probabilities.sum()
        top = int(probabilities.argmax())
        values: list[float] = probabilities.tolist()
        result = {
            "status": outcome.status,
            **identity,
            "class": self.classes[top],
            "class_id": self._ids[top],
            "confidence": values[top],
            "probabilities": dict(zip(self.classes, values, strict=True)),
            "hierarchy": dict(zip(self.groups, (self._membership @ probabilities).tolist(), strict=True)),
            **self._confidence(outcome, probabilities, coverage),
            **_seen(outcome),
        }
        return result | {"embedding": outcome.prediction.outputs["embedding"]} if embedding else result

    def _confidence(self, outcome: Outcome, probabilities: Float64, coverage: float | None) -> dict[str, Any]:
        """Novelty and prediction set of a model that has them."""
        told: dict[str, Any] = {}
        if outcome.prediction is not None and "novelty" in outcome.prediction.outputs:
            told["novelty"] = float(outcome.prediction.outputs["novelty"])
        if self._sets is not None:
            named = self._sets.named(probabilities, outcome.detections, coverage)
            told["prediction_set"] = [self.classes[index] for index in named.classes.tolist()]
            told["coverage"] = named.coverage
        return told

    def write(self, results: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode a whole reply."""
        return _encode(self.provenance, results)


class ForecastWriter:
    """Writes replies in the name of one forecaster."""

    def __init__(self, bundle: Bundle, role: Role = "") -> None:
        self._unit = bundle.manifest.flux_unit
        self.provenance = provenance(bundle, role)

    def result(
        self, outcome: Outcome, item: ForecastItem | None, identity: Mapping[str, object], errors: Sequence[FieldError]
    ) -> dict[str, Any]:
        """One result; ``item`` is None for a light curve that was rejected."""
        if outcome.prediction is None or item is None:
            return _failure(outcome, identity, errors)
        outputs = outcome.prediction.outputs
        return {
            "status": outcome.status,
            **identity,
            "mjd": item.mjd,
            "band": [BANDS[index] for index in item.band.tolist()],
            "flux": as_asked(outputs["forecast_flux"], item, self._unit),
            "flux_err": as_asked(outputs["forecast_flux_err"], item, self._unit),
            "flux_unit": item.flux_unit,
            **_seen(outcome),
        }

    def write(self, results: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode a whole reply."""
        return _encode(self.provenance, results)


# A writer is made once for a model and a role, and goes with the model.
_CLASS_WRITERS: WeakKeyDictionary[Served[LightCurve], dict[Role, ClassWriter]] = WeakKeyDictionary()
_FORECAST_WRITERS: WeakKeyDictionary[Served[ForecastItem], dict[Role, ForecastWriter]] = WeakKeyDictionary()


def class_writer(lease: Lease[LightCurve]) -> ClassWriter:
    """What writes in the name of a classifier."""
    writers = _CLASS_WRITERS.setdefault(lease.served, {})
    if lease.role not in writers:
        writers[lease.role] = ClassWriter(lease.bundle, lease.role)
    return writers[lease.role]


def forecast_writer(lease: Lease[ForecastItem]) -> ForecastWriter:
    """What writes in the name of a forecaster."""
    writers = _FORECAST_WRITERS.setdefault(lease.served, {})
    if lease.role not in writers:
        writers[lease.role] = ForecastWriter(lease.bundle, lease.role)
    return writers[lease.role]


def as_asked(sorted_flux: NDArray[np.float32], item: ForecastItem, unit: FluxUnit) -> Float64:
    """Fluxes of a network, which are in its ``unit``, in the unit and in the order of the request."""
    flux = np.empty(len(item.mjd))
    flux[query_order(item.mjd, item.band)] = njy_to(flux_to_njy(sorted_flux, unit), item.flux_unit)
    return flux


def _failure(outcome: Outcome, identity: Mapping[str, object], errors: Sequence[FieldError] | None) -> dict[str, Any]:
    failure = {"status": outcome.status, **identity, "reason": outcome.reason, "detail": outcome.detail}
    return failure if errors is None else failure | {"errors": [error.model_dump() for error in errors]}


def _seen(outcome: Outcome) -> dict[str, Any]:
    return {
        "points_per_band": dict(zip(BANDS, outcome.points_per_band, strict=True)),
        "truncated": outcome.truncated,
        "metadata_missing": outcome.missing_metadata,
    }


def _encode(model: Mapping[str, str], results: Sequence[Mapping[str, Any]]) -> bytes:
    return orjson.dumps({"model": model, "results": results}, option=orjson.OPT_SERIALIZE_NUMPY)


def _membership(taxonomy: Taxonomy) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names of the groups, and a (groups, classes) matrix that sums classes into them, as ``Taxonomy.rollup`` does."""
    columns = [taxonomy.rollup(row) for row in np.eye(len(taxonomy.classes)).tolist()]
    return tuple(columns[0]), np.array([list(column.values()) for column in columns]).T
