"""Methods of the Open Inference Protocol, of gRPC's health checking protocol, and of reflection.

A path over HTTP decides the admission of each method (:data:`PATHS`). The repository calls need a key of the admin API,
whichever address they come from; without ``admin_keys`` they are refused.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as reflection

from nightjar_alerts.service.grpc import SERVICE
from nightjar_alerts.service.grpc.calls import Call
from nightjar_alerts.service.grpc.decoding import decode_request, encode_response, read_model
from nightjar_alerts.service.grpc.messages import (
    DESCRIPTOR,
    InferStatistics,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
    ServerLiveRequest,
    ServerLiveResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
    StatisticDuration,
)
from nightjar_alerts.service.http.admin import audited, list_index, model_name, started_manager
from nightjar_alerts.service.http.edge.errors import FORBIDDEN, MALFORMED, NOT_FOUND, ProblemError, invalid_field
from nightjar_alerts.service.http.edge.keys import KeyRing
from nightjar_alerts.service.http.endpoint import INLINE_ITEMS, Timings, response_headers
from nightjar_alerts.service.http.oip.inference import infer_tensors
from nightjar_alerts.service.http.oip.routes import EXTENSIONS, INLINE_BYTES, describe_model
from nightjar_alerts.service.http.results import get_serializer
from nightjar_alerts.service.inference import InferOptions
from nightjar_alerts.service.process import VERSION
from nightjar_alerts.service.registry.names import Reference
from nightjar_alerts.service.registry.serving import ModelHandle, acquired

REQUEST_BYTES: Final = 16 * 1024
"""Maximum size of a message other than of inference."""
WATCH_SECONDS: Final = 0.5
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"

for _module in (health_pb2, reflection_pb2):
    DESCRIPTOR.pool.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)

Request = TypeVar("Request", bound=Message)
Run = Callable[[Call], Awaitable[None]]


async def server_live(call: Call, request: ServerLiveRequest) -> ServerLiveResponse:
    """Return whether the server is alive."""
    return ServerLiveResponse(live=call.service.alive)


async def server_ready(call: Call, request: ServerReadyRequest) -> ServerReadyResponse:
    """Return whether the server is ready."""
    return ServerReadyResponse(ready=not call.service.unready)


async def model_ready(call: Call, request: ModelReadyRequest) -> ModelReadyResponse:
    """Return whether a model is ready. A model is if it is served and the server is ready."""
    if call.service.started:
        _select_model(call, request.name, request.version)
    return ModelReadyResponse(ready=not call.service.unready)


async def server_metadata(call: Call, request: ServerMetadataRequest) -> ServerMetadataResponse:
    """Return the name and version of the server, and its protocol extensions."""
    extensions = [name for name in EXTENSIONS if name != "binary_tensor_data"]  # which is of HTTP
    return ServerMetadataResponse(
        name="nightjar", version=VERSION, extensions=[*extensions, "model_repository", "statistics"]
    )


async def model_metadata(call: Call, request: ModelMetadataRequest) -> ModelMetadataResponse:
    """Return the inputs and outputs of a model, and its versions."""
    described = describe_model(call.service, _select_model(call, request.name, request.version))
    tensor = ModelMetadataResponse.TensorMetadata
    return ModelMetadataResponse(
        name=described.name,
        versions=described.versions,
        platform=described.platform,
        inputs=[tensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in described.inputs],
        outputs=[tensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in described.outputs],
    )


async def model_statistics(call: Call, request: ModelStatisticsRequest) -> ModelStatisticsResponse:
    """Return the totals of a model, or of all: light curves that its network classified, its runs, and their times.

    Fields of Triton that nothing here counts are absent. Results from the cache are not included.
    """
    models = call.service.served
    if request.name:
        models = [_select_model(call, request.name, request.version).model]
    response = ModelStatisticsResponse()
    for model in models:
        totals = model.metrics.totals

        def duration(seconds: float, count: int = totals.light_curves) -> StatisticDuration:
            return StatisticDuration(count=count, ns=round(1e9 * seconds))

        response.model_stats.append(
            ModelStatistics(
                name=model.reference.name,
                version=model.reference.version,
                last_inference=round(1e3 * totals.last_run),
                inference_count=totals.light_curves,
                execution_count=totals.runs,
                inference_stats=InferStatistics(
                    queue=duration(totals.queue_seconds),
                    compute_input=duration(totals.assemble_seconds),
                    compute_infer=duration(totals.run_seconds),
                ),
            )
        )
    return response


async def repository_index(call: Call, request: RepositoryIndexRequest) -> RepositoryIndexResponse:
    """List every version of every model, or only the served ones."""
    _check_admin_key(call)
    response = RepositoryIndexResponse()
    for entry in list_index(call.service.models, request.ready):
        response.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return response


async def repository_load(call: Call, request: RepositoryModelLoadRequest) -> RepositoryModelLoadResponse:
    """Load the newest version of a model."""
    name = await _change(call, "load", request, parameters=())
    return RepositoryModelLoadResponse(model_name=name, isLoaded=True)


async def repository_unload(call: Call, request: RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse:
    """Unload all versions of a model."""
    name = await _change(call, "unload", request, parameters=("unload_dependents",))
    return RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)


async def _change(
    call: Call,
    action: str,
    request: RepositoryModelLoadRequest | RepositoryModelUnloadRequest,
    parameters: tuple[str, ...],
) -> str:
    """Load or unload a model; return its name. Raises ProblemError as the admin API."""
    key = _check_admin_key(call)
    if unknown := sorted(set(request.parameters) - set(parameters)):
        detail = "models come from the repository of the service only"
        raise invalid_field(f"/parameters/{unknown[0][:60]}", "unknown_field", detail)
    # Triton sends the model in field 2, and may send a repository in field 1; KServe sends the model in field 1.
    reference = Reference(model_name(request.model_name or request.repository_name))
    manager = started_manager(call.service)
    work = manager.load(reference) if action == "load" else manager.unload(reference)
    await audited(work, action=action, model=str(reference), key=key, peer=call.host)
    return reference.name


def _check_admin_key(call: Call) -> str:
    """Return the name of the admin key of a call. Raises ProblemError: 403 if none is set, 401 if it is not known."""
    keys = KeyRing({"admin": call.service.settings.admin_keys})
    if not keys:
        raise ProblemError(FORBIDDEN, "the model repository is not served over gRPC: set NIGHTJAR_ADMIN_KEYS")
    call.state["key"] = keys.authenticate({"headers": call.headers})
    return str(call.state["key"])


def _select_model(call: Call, name: str, version: str = "") -> ModelHandle:
    """Return a model by name and version. Raises ProblemError: 404 if it is not served, 503 while starting."""
    reference = f"{name}@{version}" if version else name
    return call.service.select_model(reference, routing_key=call.routing_key)


async def model_infer(call: Call) -> None:
    """Classify light curves as tensors, as ``POST /v2/models/NAME/infer``."""
    service, settings = call.service, call.service.settings
    timings = Timings(service.metrics)
    with service.budget.reserve(call.client_id) as reservation:
        message = await call.receive(settings.grpc_max_message_bytes)
        size = len(message)
        reservation.resize(size)
        timings.stage("receive")
        handle = _select_model(call, read_model(message))
        with acquired([handle]):
            decode = partial(decode_request, message, handle.bundle.manifest, settings)
            del message
            inputs = decode() if size <= INLINE_BYTES else await service.decode(decode, size, call.client_id)
            del decode
            timings.stage("decode")
            serializer = get_serializer(handle, inputs.prior, settings.prior, "/parameters/prior")
            deadline = timings.started + (inputs.deadline_ms or settings.default_deadline_ms) / 1000
            if inputs.deadline_ms is None and call.has_deadline:
                deadline = call.deadline
            options = InferOptions(min(deadline, call.deadline), client=call.client_id)
            timings.stage("validate")
            await service.admission.charge(call.state, len(inputs.light_curves))
            outputs, outcomes = await infer_tensors(inputs, handle, serializer, options)
        timings.start()
        encode = partial(encode_response, inputs.id, serializer.provenance, outputs)
        del inputs
        response = await service.run_maybe_in_thread(encode, len(outcomes) > INLINE_ITEMS)
        timings.stage("encode")
        reservation.resize(len(response))  # until it was taken
        headers = response_headers(service.metrics, [handle], outcomes, timings)
        call.metadata += [(name.lower(), value) for name, value in headers.items()]
        await call.reply(response)


async def check_health(call: Call, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
    """Return the status of the service, as ``/readyz``."""
    if request.service not in ("", SERVICE):
        raise ProblemError(NOT_FOUND, "no such service")
    return health_pb2.HealthCheckResponse(status=_health(call, request.service))


async def watch_health(call: Call) -> None:
    """Send the status of the service, and each change until it stops."""
    name = _parse(health_pb2.HealthCheckRequest, await call.receive(REQUEST_BYTES)).service
    sent = None
    while call.service.ending is None:
        status = _health(call, name)
        if status != sent:
            await call.reply(health_pb2.HealthCheckResponse(status=status).SerializeToString())
            sent = status
        await asyncio.sleep(WATCH_SECONDS)


def _health(call: Call, name: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
    status = health_pb2.HealthCheckResponse
    if name not in ("", SERVICE):
        return status.SERVICE_UNKNOWN
    return status.NOT_SERVING if call.service.unready else status.SERVING


async def reflect(call: Call) -> None:
    """Describe the services to clients such as ``grpcurl``."""
    servicer = reflection.ReflectionServicer((SERVICE, HEALTH, REFLECTION), DESCRIPTOR.pool)

    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        while (message := await call.receive_next(REQUEST_BYTES)) is not None:
            yield _parse(reflection_pb2.ServerReflectionRequest, message)

    async for response in servicer.ServerReflectionInfo(requests(), call.context):
        await call.reply(response.SerializeToString())


def _parse(kind: type[Request], message: bytes) -> Request:
    try:
        return kind.FromString(message)
    except DecodeError:
        raise ProblemError(MALFORMED, f"the message is not a valid {kind.DESCRIPTOR.name}") from None


def _simple(kind: type[Request], answer: Callable[[Call, Request], Awaitable[Message]]) -> Run:
    """Return a handler of a method with small messages."""

    async def run(call: Call) -> None:
        response = await answer(call, _parse(kind, await call.receive(REQUEST_BYTES)))
        await call.reply(response.SerializeToString())

    return run


METHODS: Final[dict[str, tuple[str, Run]]] = {
    f"/{SERVICE}/ServerLive": ("/v2/health/live", _simple(ServerLiveRequest, server_live)),
    f"/{SERVICE}/ServerReady": ("/v2/health/ready", _simple(ServerReadyRequest, server_ready)),
    f"/{SERVICE}/ModelReady": ("/v2/models/name/ready", _simple(ModelReadyRequest, model_ready)),
    f"/{SERVICE}/ServerMetadata": ("/v2", _simple(ServerMetadataRequest, server_metadata)),
    f"/{SERVICE}/ModelMetadata": ("/v2/models/name", _simple(ModelMetadataRequest, model_metadata)),
    f"/{SERVICE}/ModelStatistics": ("/v2/models/name/stats", _simple(ModelStatisticsRequest, model_statistics)),
    f"/{SERVICE}/ModelInfer": ("/v2/models/name/infer", model_infer),
    f"/{SERVICE}/RepositoryIndex": ("", _simple(RepositoryIndexRequest, repository_index)),
    f"/{SERVICE}/RepositoryModelLoad": ("", _simple(RepositoryModelLoadRequest, repository_load)),
    f"/{SERVICE}/RepositoryModelUnload": ("", _simple(RepositoryModelUnloadRequest, repository_unload)),
    f"/{HEALTH}/Check": ("/readyz", _simple(health_pb2.HealthCheckRequest, check_health)),
    f"/{HEALTH}/Watch": ("/readyz", watch_health),
}
"""Path over HTTP that decides the admission of each method, and its handler; repository calls need an admin key."""
REFLECTION_METHOD: Final = (f"/{REFLECTION}/ServerReflectionInfo", "/docs", reflect)
