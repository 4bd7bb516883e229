"""Models in the words of the Open Inference Protocol: how they are found by name, described, and fed with tensors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from nightjar_alerts.models.bundle import Bundle, Manifest
from nightjar_alerts.models.forecast import check_queries
from nightjar_alerts.models.lightcurve import Float32, LightCurve, LightCurveError
from nightjar_alerts.models.photometry import FluxUnit
from nightjar_alerts.service.answers.writers import as_asked, class_writer, forecast_writer
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.engine.batch import ForecastItem
from nightjar_alerts.service.http.edge.errors import NOT_FOUND, ProblemError
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.oip.forms import (
    BatchStatistics,
    ConfigParameter,
    ConfigTensor,
    Duration,
    InferStatistics,
    ModelConfiguration,
    ModelMetadata,
    StatisticsOfModel,
    TensorMetadata,
)
from nightjar_alerts.service.http.oip.signature import (
    ANY,
    BAND_TYPES,
    OFFSETS,
    OUTCOME_OUTPUTS,
    TIMES,
    WHY_FP64,
    Received,
    Spec,
    TaskTensors,
    band_indices,
    check_length,
    curve_inputs,
    read_curves,
    read_offsets,
    write_outcomes,
)
from nightjar_alerts.service.http.oip.tensors import Array, Tensor, fault
from nightjar_alerts.service.observe.model_statistics import RunTotals, Total, Totals
from nightjar_alerts.service.registry.live import Lease
from nightjar_alerts.service.registry.names import NotReady, UnknownModel, version_key
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

    def read(self, tensors: Mapping[str, Tensor], flux_unit: FluxUnit, settings: Settings) -> Received[LightCurve]:
        """Light curves of a request."""
        curves = read_curves(tensors, self._manifest, flux_unit, settings)
        return Received(curves.records(), curves.object_ids)

    def write(
        self, names: Collection[str], received: Received[LightCurve], outcomes: Sequence[Outcome]
    ) -> dict[str, Array]:
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


FLUXES = {"flux": "forecast_flux", "flux_err": "forecast_flux_err"}  # our outputs, and the graph's


class ForecasterTensors:
    """Observations and queries in, a flux and its error for each query out."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """Tensors that make light curves, and say where their fluxes are wanted."""
        return (
            *curve_inputs(self._manifest),
            Spec("query_mjd", TIMES, (ANY,), why=WHY_FP64),
            Spec("query_band", BAND_TYPES, (ANY,)),
            Spec("query_offsets", OFFSETS, (ANY,), optional=True),
        )

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """``flux`` and ``flux_err`` of every query, and what became of each light curve."""
        return (*(Spec(name, ("FP32",), (ANY,)) for name in FLUXES), *OUTCOME_OUTPUTS)

    def read(self, tensors: Mapping[str, Tensor], flux_unit: FluxUnit, settings: Settings) -> Received[ForecastItem]:
        """Light curves of a request, each with its queries."""
        curves = read_curves(tensors, self._manifest, flux_unit, settings)
        offsets = _query_offsets(tensors, len(curves))
        mjd, band = tensors["query_mjd"].values, tensors["query_band"].values
        items = [
            self._item(curve, mjd[slice(*part)], band[slice(*part)], flux_unit, settings.max_queries)
            for curve, part in zip(curves.records(), pairwise(offsets), strict=True)
        ]
        return Received(items, curves.object_ids, offsets)

    def _item(
        self, curve: LightCurve | LightCurveError, mjd: Array, band: Array, flux_unit: FluxUnit, limit: int
    ) -> ForecastItem | LightCurveError:
        if isinstance(curve, LightCurveError):
            return curve
        try:
            days, indices = check_queries(mjd, band_indices(band), self._manifest.band_map, limit)
        except LightCurveError as error:
            return LightCurveError(f"/query{error.pointer}", error.reason, str(error))
        return ForecastItem(curve, days, indices, flux_unit)

    def write(
        self, names: Collection[str], received: Received[ForecastItem], outcomes: Sequence[Outcome]
    ) -> dict[str, Array]:
        """Return outputs of these names, fluxes in the order asked, NaN where the network did not answer."""
        arrays: dict[str, Array] = dict(write_outcomes(names, received, outcomes))
        return arrays | {name: self._fluxes(received, outcomes, FLUXES[name]) for name in names if name in FLUXES}

    def _fluxes(self, received: Received[ForecastItem], outcomes: Sequence[Outcome], output: str) -> Float32:
        fluxes = np.full(received.query_offsets[-1], np.nan, dtype=np.float32)
        parts = [slice(*part) for part in pairwise(received.query_offsets)]
        for item, outcome, part in zip(received.items, outcomes, parts, strict=True):
            if outcome.prediction is not None and isinstance(item, ForecastItem):
                sorted_flux = outcome.prediction.outputs[output]
                with np.errstate(over="ignore"):  # infinite in this unit: the client's choice of unit
                    fluxes[part] = as_asked(sorted_flux, item, self._manifest.flux_unit)
        return fluxes


def _query_offsets(tensors: Mapping[str, Tensor], batch: int) -> list[int]:
    total = len(tensors["query_mjd"])
    check_length(tensors, "query_band", total, "query")
    offsets = read_offsets(tensors, "query_offsets", total)
    if len(offsets) != batch + 1:
        pointer = tensors["query_offsets"].pointer if "query_offsets" in tensors else "/inputs"
        detail = f"query_offsets must have {batch + 1} values: one more than there are light curves"
        raise fault(pointer, "length_mismatch", detail)
    return offsets


@dataclass(frozen=True, slots=True)
class ModelOfTensors:
    """A model, leased, and what its task makes of tensors."""

    lease: Lease[Any]
    tensors: TaskTensors[Any]
    versions: Sequence[str]

    @property
    def bundle(self) -> Bundle:
        """Bundle that answers."""
        return self.lease.bundle

    @property
    def provenance(self) -> dict[str, str]:
        """Provenance of the answers, as a reply says it."""
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
    """Find the model of a name or alias, in the version asked for, or in the one that answers for the name.

    Parameters
    ----------
    key : decides whether a canary answers.

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


EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration", "parameters", "statistics"]
PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"


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


def configuration(model: ModelOfTensors) -> ModelConfiguration:
    """Describe the tensors in Triton's words; parameters give their columns a meaning."""
    manifest = model.bundle.manifest
    return ModelConfiguration(
        name=manifest.name,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=0,
        input=[_config(spec, spec.optional) for spec in model.tensors.inputs],
        output=[_config(spec, None) for spec in model.tensors.outputs],
        parameters={
            name: ConfigParameter(string_value=orjson.dumps(value).decode())
            for name, value in _meanings(manifest).items()
        },
    )


def _config(spec: Spec, optional: bool | None) -> ConfigTensor:
    kind = spec.datatypes[0].replace("BYTES", "STRING")
    return ConfigTensor(name=spec.name, data_type=f"TYPE_{kind}", dims=list(spec.shape), optional=optional)


def _meanings(manifest: Manifest) -> dict[str, object]:
    meanings: dict[str, object] = {
        "task": manifest.task,
        "bands": manifest.bands,
        "metadata_columns": manifest.metadata_columns,
        "limits": manifest.limits.model_dump(),
    }
    return meanings | ({"classes": manifest.taxonomy.names} if manifest.taxonomy is not None else {})


def statistics(model: ModelOfTensors) -> StatisticsOfModel:
    """Cumulative counts and times of a model."""
    totals, manifest = model.lease.served.plane.notes.statistics.totals(), model.bundle.manifest
    return StatisticsOfModel(
        name=manifest.name,
        version=manifest.version,
        last_inference=round(1e3 * totals.last_run),
        inference_count=totals.ran.count,
        execution_count=sum(runs.run.count for runs in totals.runs.values()),
        inference_stats=_inferences(totals),
        batch_stats=[_batches(size, totals.runs[size]) for size in sorted(totals.runs)],
    )


def _inferences(totals: Totals) -> InferStatistics:
    return InferStatistics(
        success=_duration(totals.answered),
        fail=_duration(totals.failed),
        queue=_duration(totals.queued),
        compute_input=_duration(totals.assembled),
        compute_infer=_duration(totals.ran),
        compute_output=_duration(totals.split),
        cache_hit=_duration(totals.hits),
        cache_miss=_duration(totals.misses),
    )


def _batches(size: int, runs: RunTotals) -> BatchStatistics:
    return BatchStatistics(
        batch_size=size,
        compute_input=_duration(runs.assemble),
        compute_infer=_duration(runs.run),
        compute_output=_duration(runs.split),
    )


def _duration(total: Total) -> Duration:
    return Duration(count=total.count, ns=round(1e9 * total.seconds))
