"""What models are and what they have done, in the words of the Open Inference Protocol and of Triton's extensions."""

from collections.abc import Sequence

import orjson

from models.bundle import Manifest
from service.http.oip.forms import (
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
from service.http.oip.models import ModelOfTensors
from service.http.oip.signature import Spec
from service.observe.model_statistics import RunTotals, Total, Totals

EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration", "parameters", "statistics"]
PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"


def metadata(model: ModelOfTensors) -> ModelMetadata:
    """Names, datatypes and shapes."""
    manifest = model.bundle.manifest
    return ModelMetadata(
        name=manifest.name,
        versions=list(model.versions),
        platform=PLATFORM,
        inputs=_tensors(model.tensors.inputs),
        outputs=_tensors(model.tensors.outputs),
    )


def _tensors(specs: Sequence[Spec]) -> list[TensorMetadata]:
    return [TensorMetadata(name=spec.name, datatype=spec.datatypes[0], shape=list(spec.shape)) for spec in specs]


def configuration(model: ModelOfTensors) -> ModelConfiguration:
    """The same in Triton's words, and as parameters what gives the columns of tensors their meaning."""
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
    totals, manifest = model.lease.served.plane.statistics.totals(), model.bundle.manifest
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
        cache_hit=_duration(totals.found),
        cache_miss=_duration(totals.not_found),
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
