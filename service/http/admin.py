"""Admin API: lists and changes the served models, on its own port or Unix socket. Disabled by default.

It listens on ``admin_port`` or ``admin_socket``, on the event loop of the service, and accepts only the keys in
``admin_keys``, which are required on an address other than loopback. The response to a change is sent after the change
and has the new listing. All changes and rejected changes are logged. Triton's model repository API is under
``/v2/repository``, where Triton's clients expect it.
"""

import asyncio
import socket
import stat
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn, TypeVar

import structlog
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.models.bundle import Task
from nightjar_alerts.service.answers.replies import Reply, field_errors
from nightjar_alerts.service.http.edge.body import Body, replay
from nightjar_alerts.service.http.edge.errors import (
    CONFLICT,
    INVALID,
    MALFORMED,
    NOT_FOUND,
    ProblemError,
    raise_problem,
)
from nightjar_alerts.service.http.edge.keys import KeyRing
from nightjar_alerts.service.http.edge.middleware import RequestMiddleware
from nightjar_alerts.service.http.edge.protocol import service_config
from nightjar_alerts.service.http.edge.sites import SiteMiddleware
from nightjar_alerts.service.http.lifecycle import Service, get_service
from nightjar_alerts.service.http.routes import meta
from nightjar_alerts.service.process import VERSION
from nightjar_alerts.service.registry.loader import ChangeRejected
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.registry.names import MAX_NAME_LENGTH, PATTERN, VERSION_PATTERN, Reference, UnknownModel
from nightjar_alerts.service.registry.serving import ServedModel
from nightjar_alerts.service.registry.shadow import Shadow

MAX_BODY_BYTES = 16 * 1024

Version = Annotated[str, Field(pattern=VERSION_PATTERN, max_length=MAX_NAME_LENGTH)]
T = TypeVar("T")

audit = structlog.get_logger("audit")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class EmptyBody(_Body):
    """No members."""


class VersionBody(_Body):
    """Version of the model in the path."""

    version: Version | None = Field(None, description="default: the newest to load, all of them to unload")


class PinBody(_Body):
    """Version to pin."""

    version: Version


class AliasBody(_Body):
    """Target of an alias."""

    model: str = Field(pattern=PATTERN, max_length=MAX_NAME_LENGTH, description="`name`, or `name@1.2.3` for a version")


class CanaryBody(_Body):
    """Canary to start."""

    version: Version
    percent: float = Field(gt=0, lt=100, description="percentage of the requests that it answers")


class ShadowBody(_Body):
    """Shadow to start."""

    model: str = Field(pattern=PATTERN, max_length=MAX_NAME_LENGTH, description="`name@1.2.3`")
    share: float = Field(1.0, gt=0, le=1, description="fraction of the requests that is copied to it")


class Model(Reply):
    """A loaded model; ``leaving`` models were replaced and finish their last requests."""

    name: str
    version: str
    task: Task
    sha256: str
    path: str
    provider: str
    state: Literal["serving", "leaving"]
    answers_for_name: bool = Field(description="whether it is the current version of its name")
    aliases: list[str]
    requests: int = Field(description="requests in progress")
    load_seconds: float


class Available(Reply):
    """A bundle on disk that is not loaded."""

    name: str
    version: str
    task: Task
    path: str


class FailedBundle(Reply):
    """A bundle that cannot be served."""

    path: str
    name: str | None
    version: str | None
    reason: str
    since: float = Field(description="seconds since 1970")


class CanaryState(Reply):
    """A version that answers a percentage of the requests."""

    version: str
    percent: float


class ShadowState(Reply):
    """Comparison with a shadow: light curves ``compared``, fraction with the same class, mean distance and time."""

    model: str
    share: float
    compared: int
    agreement: float | None
    mean_distance: float | None
    mean_seconds: float | None
    failed: int
    dropped: int


class Listing(Reply):
    """Loaded models, other bundles on disk, failures, aliases, pins, canaries and shadows."""

    models: list[Model]
    available: list[Available]
    failures: list[FailedBundle]
    aliases: dict[str, str]
    pins: dict[str, str] = Field(description="pinned version of each model that has one")
    canaries: dict[str, CanaryState]
    shadows: dict[str, ShadowState]


class IndexBody(_Body):
    """Triton's request for the index."""

    ready: bool = False


class LoadParameters(_Body):
    """Triton's parameters of loading; none is supported, as models come from the repository only."""


class LoadBody(_Body):
    """Triton's request to load a model."""

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(_Body):
    """Triton's parameters of unloading; there are no dependents."""

    unload_dependents: bool = False


class UnloadBody(_Body):
    """Triton's request to unload a model."""

    parameters: UnloadParameters = UnloadParameters()


class IndexEntry(Reply):
    """A version of a model in Triton's index."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


def listing(manager: ModelManager) -> Listing:
    """Return the loaded models, other bundles on disk, failures, aliases, pins, canaries and shadows."""
    router, directory = manager.router, manager.directory
    return Listing(
        models=[
            *(_listed_model(manager, model, "serving") for model in router.models.values()),
            *(_listed_model(manager, model, "leaving") for model in manager.draining),
        ],
        available=[
            Available(name=reference.name, version=reference.version, task=bundle.task, path=str(bundle.path))
            for reference, bundle in directory.contents.bundles.items()
            if reference not in router.models
        ],
        failures=[
            FailedBundle(
                path=str(failure.path),
                name=failure.reference.name if failure.reference else None,
                version=failure.reference.version if failure.reference else None,
                reason=failure.reason,
                since=failure.since,
            )
            for failure in directory.failures.values()
        ],
        aliases={alias: str(target) for alias, target in sorted(router.aliases.items())},
        pins=manager.pins,
        canaries={name: CanaryState(version=c.version, percent=c.percent) for name, c in router.canaries.items()},
        shadows={name: _listed_shadow(shadow) for name, shadow in router.shadows.items()},
    )


def _listed_model(manager: ModelManager, model: ServedModel, state: Literal["serving", "leaving"]) -> Model:
    reference, router = model.reference, manager.router
    return Model(
        name=reference.name,
        version=reference.version,
        task=model.bundle.manifest.task,
        sha256=model.bundle.sha256,
        path=str(model.bundle.path),
        provider=model.provider,
        state=state,
        answers_for_name=model is router.current(reference.name),
        aliases=router.aliases_of(reference) if state == "serving" else [],
        requests=model.requests,
        load_seconds=model.loaded.load_seconds,
    )


def _listed_shadow(shadow: Shadow) -> ShadowState:
    stats = shadow.stats
    return ShadowState(
        model=str(shadow.reference),
        share=shadow.share,
        compared=stats.compared,
        agreement=stats.agreed / stats.compared if stats.compared else None,
        mean_distance=stats.distance / stats.compared if stats.compared else None,
        mean_seconds=stats.seconds / stats.compared if stats.compared else None,
        failed=stats.failed,
        dropped=stats.dropped,
    )


class AdminAuthMiddleware:
    """Admits requests with a valid key, or all requests if no keys are configured."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["key"] = self.keys.authenticate(scope)
        await self.app(scope, receive, send)


class BodyMiddleware:
    """Reads each body as a whole, with limits of size and time, and sets its Content-Type to JSON.

    curl sends ``-d`` as a form, and Triton's clients send no Content-Type.
    """

    def __init__(self, app: ASGIApp, timeout: float) -> None:
        self.app, self.timeout = app, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        body = await Body(receive).read(MAX_BODY_BYTES, self.timeout)
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        await self.app({**scope, "headers": headers}, replay(body, receive), send)


async def on_invalid_request(request: Request, error: Exception) -> NoReturn:
    """Convert FastAPI's validation errors to a problem with pointers into the body."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    if any(detail["type"] == "json_invalid" for detail in details):
        raise ProblemError(MALFORMED, "the body is not JSON") from None
    errors = field_errors([{**detail, "loc": detail["loc"][1:]} for detail in details])
    raise ProblemError(INVALID, errors=errors) from None


def get_manager(request: Request) -> ModelManager:
    """Return the model manager. Raises ProblemError (503) until the service has started."""
    return started_manager(get_service(request))


def started_manager(service: Service) -> ModelManager:
    """Return the model manager of a service. Raises ProblemError (503) until the service has started."""
    if not service.started:
        raise service.not_ready()
    return service.models


async def change(request: Request, action: str, work: Awaitable[T], **fields: object) -> Listing:
    """Make a change, log it, and return the new listing.

    Raises
    ------
    ProblemError
        404 for an unknown model, 409 for a change that is rejected.
    """
    peer = request.client.host if request.client else "socket"
    await audited(work, action=action, **fields, key=getattr(request.state, "key", ""), peer=peer)
    return listing(get_service(request).models)


async def audited(work: Awaitable[T], **fields: object) -> None:
    """Make a change and log it, with the fields; raises as :func:`change`."""
    try:
        await work
    except (UnknownModel, ChangeRejected) as error:
        audit.warning("admin change refused", **fields, reason=str(error))
        raise ProblemError(NOT_FOUND if isinstance(error, UnknownModel) else CONFLICT, str(error)) from None
    except BaseException as error:
        audit.error("admin change failed", **fields, reason=type(error).__name__)
        raise
    audit.info("admin change", **fields)


def model_name(text: str) -> str:
    """Return the model name in a path parameter. Raises ProblemError (404) if it is invalid."""
    try:
        return Reference.parse(text).name
    except ValueError:
        raise ProblemError(
            NOT_FOUND, "names of models and aliases consist of lowercase letters, digits and hyphens"
        ) from None


router = APIRouter(prefix="/admin", include_in_schema=False)


@router.get("/models")
async def models(request: Request) -> Listing:
    """List models, other bundles on disk, failures, aliases, pins, canaries and shadows."""
    return listing(get_service(request).models)


@router.post("/reload")
async def reload(request: Request, body: EmptyBody | None = None) -> Listing:
    """Scan the directory, serve new versions, and retry failed bundles."""
    return await change(request, "reload", get_manager(request).reload(retry=True))


@router.post("/models/{name}/load")
async def load(request: Request, name: str, body: VersionBody | None = None) -> Listing:
    """Load a version, by default the newest."""
    reference = Reference(model_name(name), (body and body.version) or "")
    return await change(request, "load", get_manager(request).load(reference), model=str(reference))


@router.post("/models/{name}/unload")
async def unload(request: Request, name: str, body: VersionBody | None = None) -> Listing:
    """Unload a version, by default all versions of the model."""
    reference = Reference(model_name(name), (body and body.version) or "")
    return await change(request, "unload", get_manager(request).unload(reference), model=str(reference))


@router.post("/models/{name}/rollback")
async def rollback(request: Request, name: str, body: EmptyBody | None = None) -> Listing:
    """Pin the next older version."""
    model = model_name(name)
    return await change(request, "rollback", get_manager(request).rollback(model), model=model)


@router.put("/models/{name}/pin")
async def pin(request: Request, name: str, body: PinBody) -> Listing:
    """Pin a version: it stays the current one, even after a restart or if there is a newer one."""
    reference = Reference(model_name(name), body.version)
    return await change(request, "pin", get_manager(request).pin(reference), model=str(reference))


@router.delete("/models/{name}/pin")
async def unpin(request: Request, name: str) -> Listing:
    """Delete the pin; the next scan may load a newer version."""
    model = model_name(name)
    return await change(request, "unpin", get_manager(request).unpin(model), model=model)


@router.put("/aliases/{alias}")
async def set_alias(request: Request, alias: str, body: AliasBody) -> Listing:
    """Set the model of an alias."""
    name, target = model_name(alias), Reference.parse(body.model)
    work = get_manager(request).set_alias(name, target)
    return await change(request, "set alias", work, alias=name, model=str(target))


@router.delete("/aliases/{alias}")
async def delete_alias(request: Request, alias: str) -> Listing:
    """Delete an alias."""
    name = model_name(alias)
    return await change(request, "end alias", get_manager(request).delete_alias(name), alias=name)


@router.put("/models/{name}/canary")
async def set_canary(request: Request, name: str, body: CanaryBody) -> Listing:
    """Route a percentage of the requests for a name to a version."""
    model = model_name(name)
    work = get_manager(request).set_canary(model, body.version, body.percent)
    return await change(request, "set canary", work, model=model, version=body.version, percent=body.percent)


@router.delete("/models/{name}/canary")
async def delete_canary(request: Request, name: str) -> Listing:
    """Route all requests for a name to its current version again."""
    model = model_name(name)
    return await change(request, "end canary", get_manager(request).delete_canary(model), model=model)


@router.put("/models/{name}/shadow")
async def set_shadow(request: Request, name: str, body: ShadowBody) -> Listing:
    """Compare a model with a shadow model."""
    model, reference = model_name(name), Reference.parse(body.model)
    if not reference.version:
        error = FieldError(pointer="/model", reason="missing_version", detail="must name a version: name@1.2.3")
        raise ProblemError(INVALID, errors=[error])
    work = get_manager(request).set_shadow(model, reference, body.share)
    return await change(request, "set shadow", work, model=model, shadow=body.model, share=body.share)


@router.delete("/models/{name}/shadow")
async def delete_shadow(request: Request, name: str) -> Listing:
    """End the comparison of a model with its shadow."""
    model = model_name(name)
    return await change(request, "end shadow", get_manager(request).delete_shadow(model), model=model)


triton_router = APIRouter(prefix="/v2/repository", include_in_schema=False)


@triton_router.post("/index")
async def repository_index(request: Request, body: IndexBody | None = None) -> list[IndexEntry]:
    """List every version of every model, or only the served ones."""
    return list_index(get_service(request).models, body is not None and body.ready)


def list_index(manager: ModelManager, ready: bool) -> list[IndexEntry]:
    """Return every version of every model, or only the served ones if ``ready``."""
    found = listing(manager)
    entries = [IndexEntry(name=model.name, version=model.version, state="READY", reason="") for model in found.models]
    if ready:
        return entries
    reasons = {(failure.name, failure.version): failure.reason for failure in found.failures}
    return entries + [
        IndexEntry(
            name=bundle.name,
            version=bundle.version,
            state="UNAVAILABLE",
            reason=reasons.get((bundle.name, bundle.version), "unloaded"),
        )
        for bundle in found.available
    ]


@triton_router.post("/models/{name}/load")
async def triton_load(request: Request, name: str, body: LoadBody | None = None) -> Response:
    """Load the newest version."""
    reference = Reference(model_name(name))
    await change(request, "load", get_manager(request).load(reference), model=str(reference))
    return Response()


@triton_router.post("/models/{name}/unload")
async def triton_unload(request: Request, name: str, body: UnloadBody | None = None) -> Response:
    """Unload all versions of a model."""
    reference = Reference(model_name(name))
    await change(request, "unload", get_manager(request).unload(reference), model=str(reference))
    return Response()


def create_admin_app(service: Service) -> FastAPI:
    """Build the admin application of a service; it does not start or stop the service."""
    app = FastAPI(
        title="Nightjar admin API",
        version=VERSION,
        redirect_slashes=False,
        openapi_url=None,
        exception_handlers={HTTPException: raise_problem, RequestValidationError: on_invalid_request},
    )
    app.state.service = service
    app.add_middleware(BodyMiddleware, timeout=service.settings.body_timeout)
    app.add_middleware(AdminAuthMiddleware, keys=KeyRing({"admin": service.settings.admin_keys}))
    if not service.settings.admin_keys:
        app.add_middleware(SiteMiddleware, allowed_hosts=service.settings.allowed_hosts, reading=())
    app.add_middleware(RequestMiddleware, metrics=service.metrics)
    for part in (router, triton_router, meta.problems):
        app.include_router(part)
    return app


class AdminServer(uvicorn.Server):
    """uvicorn server of the admin API; does nothing without an address in the settings."""

    def __init__(self, service: Service) -> None:
        # The server of the service starts and stops it.
        super().__init__(service_config(create_admin_app(service), service.settings, "off"))
        self._settings = service.settings
        self._serving: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals, which the server of the service handles."""
        yield

    async def open(self) -> None:
        """Start listening. Raises OSError if the address cannot be used."""
        sockets = _sockets(self._settings.admin_host, self._settings.admin_port, self._settings.admin_socket)
        if sockets:
            self._serving = asyncio.create_task(self.serve(sockets))
            while not self.started and not self._serving.done():
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Finish the requests in progress and stop."""
        if self._serving is not None:
            self.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._settings.admin_socket is not None:
            self._settings.admin_socket.unlink(missing_ok=True)


def _sockets(host: str, port: int | None, path: Path | None) -> list[socket.socket]:
    sockets = []
    if port is not None:
        sockets.append(socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET))
    if path is not None:
        sockets.append(_bind_path(path))
    return sockets


def _bind_path(path: Path) -> socket.socket:
    """Bind a Unix socket that only this user can open; replaces a stale socket of a killed process."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.bind(str(path))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    except OSError:
        opened.close()
        raise
    return opened
