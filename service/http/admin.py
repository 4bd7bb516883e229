"""The admin interface: what is served, and every way to change it. On a port or socket of its own, off by default.

It listens where :mod:`service.settings` says (``admin_port``, ``admin_socket``), beside the service and on the same
event loop, and asks for keys of its own (``admin_keys``), which an address other than loopback cannot do without. A
change is answered, when it has been made, with everything that is served then. Every change, and every refusal of one,
is a line in the log. Beside the interface's own routes stands Triton's model repository extension, where its clients
look for it: ``/v2/repository``. Bodies of requests and replies are declared first, as models.
"""

import asyncio
import socket
import stat
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
import structlog
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from nightjar_alerts.models.bundle import Task
from nightjar_alerts.service.answers.replies import FieldError, Reply, field_errors
from nightjar_alerts.service.http.edge.errors import (
    CONFLICT,
    INVALID,
    MALFORMED,
    NOT_FOUND,
    TIMEOUT,
    TOO_LARGE,
    UNAUTHORIZED,
    ProblemError,
    raise_problem,
)
from nightjar_alerts.service.http.edge.keys import KeyRing
from nightjar_alerts.service.http.edge.middleware import AuthMiddleware, RequestMiddleware
from nightjar_alerts.service.http.edge.protocol import ServerConfig
from nightjar_alerts.service.http.formats import JSON_TYPE
from nightjar_alerts.service.http.lifecycle import Service, service_of
from nightjar_alerts.service.http.routes import about
from nightjar_alerts.service.process import VERSION
from nightjar_alerts.service.registry.live import LiveModels, Served
from nightjar_alerts.service.registry.load import Refused
from nightjar_alerts.service.registry.names import MOST_CHARACTERS, PATTERN, VERSION_PATTERN, Reference, UnknownModel
from nightjar_alerts.service.registry.repository import ModelRepository
from nightjar_alerts.service.registry.shadow import Shadow
from nightjar_alerts.service.settings import is_loopback

Version = Annotated[str, Field(pattern=VERSION_PATTERN, max_length=MOST_CHARACTERS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Nothing(_Strict):
    """No members."""


class WhichVersion(_Strict):
    """A version of the model in the address."""

    version: Version | None = Field(None, description="without one: the newest to load, all of them to unload")


class AliasTarget(_Strict):
    """Target of an alias."""

    model: str = Field(pattern=PATTERN, max_length=MOST_CHARACTERS, description="`name`, or `name@1.2.3` to pin it")


class CanaryTerms(_Strict):
    """A version on trial."""

    version: Version
    percent: float = Field(gt=0, lt=100, description="of requests that it answers")


class ShadowTerms(_Strict):
    """A model to be compared."""

    model: str = Field(pattern=PATTERN, max_length=MOST_CHARACTERS, description="`name@1.2.3`")
    share: float = Field(1.0, gt=0, le=1, description="of requests that are copied to it")


class Model(Reply):
    """A model that is loaded.

    ``answers_for_name`` is whether requests for the name alone come here; ``leaving`` models answer only what they were
    asked before they were replaced.
    """

    name: str
    version: str
    task: Task
    sha256: str
    path: str
    provider: str
    state: Literal["serving", "leaving"]
    answers_for_name: bool
    aliases: list[str]
    requests: int = Field(description="being answered now")
    load_seconds: float


class Available(Reply):
    """A bundle in the folders that is not loaded."""

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
    """A version that answers a share."""

    version: str
    percent: float


class ShadowState(Reply):
    """Comparison with a shadow: light curves ``compared``, the share with the same class, mean distance and time."""

    model: str
    share: float
    compared: int
    agreement: float | None
    mean_distance: float | None
    mean_seconds: float | None
    failed: int
    dropped: int


class Listing(Reply):
    """Models, bundles that could be loaded, failures, aliases, canaries and shadows."""

    models: list[Model]
    available: list[Available]
    failures: list[FailedBundle]
    aliases: dict[str, str]
    canaries: dict[str, CanaryState]
    shadows: dict[str, ShadowState]


class IndexRequest(_Strict):
    """Request of Triton's clients for the index."""

    ready: bool = False


class LoadParameters(_Strict):
    """Parameters of loading: a model comes from the repository, never out of the request."""


class LoadRequest(_Strict):
    """Request of Triton's clients to load a model."""

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(_Strict):
    """Parameters of unloading; there are no dependents."""

    unload_dependents: bool = False


class UnloadRequest(_Strict):
    """Request of Triton's clients to unload a model."""

    parameters: UnloadParameters = UnloadParameters()


class IndexEntry(Reply):
    """A version of a model as Triton's index has it."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


def listing(repository: ModelRepository) -> Listing:
    """List all that the repository serves, could serve and failed to load."""
    live, folders = repository.live, repository.folders
    absent = [bundle for reference, bundle in folders.contents.bundles.items() if reference not in live.served]
    return Listing(
        models=[
            *(_listed_model(live, served) for served in live.served.values()),
            *(_listed_model(live, s) for s in live.leaving),
        ],
        available=[
            Available(
                name=bundle.reference.name, version=bundle.reference.version, task=bundle.task, path=str(bundle.path)
            )
            for bundle in absent
        ],
        failures=[
            FailedBundle(
                path=str(failure.path),
                name=failure.reference.name if failure.reference else None,
                version=failure.reference.version if failure.reference else None,
                reason=failure.reason,
                since=failure.since,
            )
            for failure in folders.failures.values()
        ],
        aliases={alias: str(target) for alias, target in sorted(live.routes.aliases.items())},
        canaries={name: CanaryState(version=c.version, percent=c.percent) for name, c in live.routes.canaries.items()},
        shadows={name: _listed_shadow(shadow) for name, shadow in live.shadows.items()},
    )


def _listed_model(live: LiveModels, served: Served[Any]) -> Model:
    reference, leaving = served.reference, served in live.leaving
    return Model(
        name=reference.name,
        version=reference.version,
        task=served.task,
        sha256=served.bundle.sha256,
        path=str(served.bundle.path),
        provider=served.provider,
        state="leaving" if leaving else "serving",
        answers_for_name=served is live.answering(reference.name),
        aliases=[] if leaving else live.routes.aliases_of(reference),
        requests=served.leases,
        load_seconds=served.loaded.load_seconds,
    )


def _listed_shadow(shadow: Shadow) -> ShadowState:
    agreement = shadow.agreement
    return ShadowState(
        model=str(shadow.reference),
        share=shadow.share,
        compared=agreement.compared,
        agreement=agreement.agreed / agreement.compared if agreement.compared else None,
        mean_distance=agreement.distance / agreement.compared if agreement.compared else None,
        mean_seconds=agreement.seconds / agreement.compared if agreement.compared else None,
        failed=agreement.failed,
        dropped=agreement.dropped,
    )


def index(repository: ModelRepository, ready: bool) -> list[IndexEntry]:
    """Return the listing as Triton has it."""
    all_of_it = listing(repository)
    entries = [IndexEntry(name=m.name, version=m.version, state="READY", reason="") for m in all_of_it.models]
    if ready:
        return entries
    reasons = {(failed.name, failed.version): failed.reason for failed in all_of_it.failures}
    return entries + [
        IndexEntry(
            name=bundle.name,
            version=bundle.version,
            state="UNAVAILABLE",
            reason=reasons.get((bundle.name, bundle.version), "unloaded"),
        )
        for bundle in all_of_it.available
    ]


FormT = TypeVar("FormT", bound=BaseModel)
T = TypeVar("T")

MOST_BYTES = 16 * 1024

audit = structlog.get_logger("audit")


class AdminGate(AuthMiddleware):
    """Lets in whoever shows a known key; where no keys are set, everybody but web pages.

    Without keys only users of this machine reach the interface, but a page in their browser might send it requests. The
    browser then names the page in the header ``Origin`` or, where the page's own name was made to lead to this machine
    (DNS rebinding), in ``Host``.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["client"] = self.keys.authenticate(scope)
            headers, by_socket = dict(scope["headers"]), scope["server"] is None or scope["server"][1] is None
            strange = b"origin" in headers or not (by_socket or _is_this_machine(headers.get(b"host", b"")))
            if not self.keys and strange:
                raise ProblemError(UNAUTHORIZED, "requests of web pages are refused")
        await self.app(scope, receive, send)


def _is_this_machine(host: bytes) -> bool:
    """Return True when a Host header names loopback, with any port."""
    name = host.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return is_loopback(name)


async def read(request: Request, form: type[FormT]) -> FormT:
    """Read and check the body; an empty one leaves every field at its default. Raises ProblemError."""
    data = await _body(request)
    try:
        return form.model_validate(orjson.loads(data) if data else {})
    except orjson.JSONDecodeError:
        raise ProblemError(MALFORMED, "the body is not JSON") from None
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID, errors=field_errors(details)) from None


async def _body(request: Request) -> bytes:
    data, seconds = b"", service_of(request).settings.body_timeout
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise ProblemError(TOO_LARGE, f"the body is longer than {MOST_BYTES} bytes", limit=MOST_BYTES)
    except TimeoutError:
        raise ProblemError(TIMEOUT, f"the body did not arrive within {seconds:g} s") from None
    return data


def models_of(request: Request) -> ModelRepository:
    """Return the models, to be changed. Raises ProblemError (503) until the service has started."""
    service = service_of(request)
    if not service.started:
        raise service.not_ready()
    return service.models


async def change(request: Request, action: str, work: Awaitable[T], **what: object) -> T:
    """Make a change and log it, also where it is refused or fails.

    Raises
    ------
    ProblemError
        404 for a model that is not there, 409 for a change that is refused.
    """
    by = {"key": getattr(request.state, "client", ""), "peer": request.client.host if request.client else "socket"}
    try:
        result = await work
    except UnknownModel as error:
        audit.warning("admin change refused", action=action, **what, **by, reason=str(error))
        raise ProblemError(NOT_FOUND, str(error)) from None
    except Refused as error:
        audit.warning("admin change refused", action=action, **what, **by, reason=str(error))
        raise ProblemError(CONFLICT, str(error)) from None
    except BaseException as error:
        audit.error("admin change failed", action=action, **what, **by, reason=type(error).__name__)
        raise
    audit.info("admin change", action=action, **what, **by)
    return result


def json_reply(content: BaseModel) -> Response:
    """Make a reply of a model."""
    return Response(content.model_dump_json(), media_type=JSON_TYPE)


router = APIRouter(prefix="/admin", include_in_schema=False)


def model_name(text: str) -> str:
    """Read a name from the address. Raises ProblemError (404) for what cannot be one."""
    try:
        return Reference.parse(text).name
    except ValueError:
        raise ProblemError(NOT_FOUND, "a model or alias is named by small letters, digits and hyphens") from None


def _state(request: Request) -> Response:
    return json_reply(listing(service_of(request).models))


@router.get("/models")
async def models(request: Request) -> Response:
    """List models, bundles that could be loaded, failures, aliases, canaries and shadows."""
    return _state(request)


@router.post("/reload")
async def reload(request: Request) -> Response:
    """Take up what is new in the folders, and try again what failed."""
    await read(request, Nothing)
    await change(request, "reload", models_of(request).changes.sync(retry=True))
    return _state(request)


@router.post("/models/{name}/load")
async def load(request: Request, name: str) -> Response:
    """Load a version, the newest when none is named."""
    reference = Reference(model_name(name), (await read(request, WhichVersion)).version or "")
    await change(request, "load", models_of(request).changes.load(reference), model=str(reference))
    return _state(request)


@router.post("/models/{name}/unload")
async def unload(request: Request, name: str) -> Response:
    """Stop serving a version, or a model in all its versions."""
    reference = Reference(model_name(name), (await read(request, WhichVersion)).version or "")
    await change(request, "unload", models_of(request).changes.unload(reference), model=str(reference))
    return _state(request)


@router.post("/models/{name}/rollback")
async def rollback(request: Request, name: str) -> Response:
    """Let the version answer again that answered before."""
    await read(request, Nothing)
    model = model_name(name)
    await change(request, "rollback", models_of(request).changes.rollback(model), model=model)
    return _state(request)


@router.put("/aliases/{alias}")
async def set_alias(request: Request, alias: str) -> Response:
    """Give a model another name."""
    target = Reference.parse((await read(request, AliasTarget)).model)
    name = model_name(alias)
    await change(
        request, "set alias", models_of(request).changes.set_alias(name, target), alias=name, model=str(target)
    )
    return _state(request)


@router.delete("/aliases/{alias}")
async def end_alias(request: Request, alias: str) -> Response:
    """Take an alias away."""
    name = model_name(alias)
    await change(request, "end alias", models_of(request).changes.end_alias(name), alias=name)
    return _state(request)


@router.put("/models/{name}/canary")
async def set_canary(request: Request, name: str) -> Response:
    """Let a version answer a percentage of the requests for a name."""
    terms, model = await read(request, CanaryTerms), model_name(name)
    work = models_of(request).trials.set_canary(model, terms.version, terms.percent)
    await change(request, "set canary", work, model=model, version=terms.version, percent=terms.percent)
    return _state(request)


@router.delete("/models/{name}/canary")
async def end_canary(request: Request, name: str) -> Response:
    """Let one version answer everything again."""
    model = model_name(name)
    await change(request, "end canary", models_of(request).trials.end_canary(model), model=model)
    return _state(request)


@router.put("/models/{name}/shadow")
async def set_shadow(request: Request, name: str) -> Response:
    """Compare a model with another."""
    terms, model = await read(request, ShadowTerms), model_name(name)
    reference = Reference.parse(terms.model)
    if not reference.version:
        fault = FieldError(pointer="/model", reason="missing_version", detail="a shadow is named as name@1.2.3")
        raise ProblemError(INVALID, errors=[fault])
    work = models_of(request).trials.set_shadow(model, reference, terms.share)
    await change(request, "set shadow", work, model=model, shadow=terms.model, share=terms.share)
    return _state(request)


@router.delete("/models/{name}/shadow")
async def end_shadow(request: Request, name: str) -> Response:
    """End the comparison of a model with its shadow."""
    model = model_name(name)
    await change(request, "end shadow", models_of(request).trials.end_shadow(model), model=model)
    return _state(request)


triton_router = APIRouter(prefix="/v2/repository", include_in_schema=False)


@triton_router.post("/index")
async def repository_index(request: Request) -> Response:
    """Every version of every model, or with ``ready`` those that are served."""
    index_request = await read(request, IndexRequest)
    entries = [entry.model_dump() for entry in index(service_of(request).models, index_request.ready)]
    return Response(orjson.dumps(entries), media_type=JSON_TYPE)


@triton_router.post("/models/{name}/load")
async def triton_load(request: Request, name: str) -> Response:
    """Load the newest version. A configuration or files in the request are refused: models come from the repository."""
    await read(request, LoadRequest)
    reference = Reference(model_name(name))
    await change(request, "load", models_of(request).changes.load(reference), model=str(reference))
    return Response()


@triton_router.post("/models/{name}/unload")
async def triton_unload(request: Request, name: str) -> Response:
    """Unload a model, in all its versions."""
    await read(request, UnloadRequest)
    reference = Reference(model_name(name))
    await change(request, "unload", models_of(request).changes.unload(reference), model=str(reference))
    return Response()


def create_admin_app(service: Service) -> FastAPI:
    """Build the application around a service that somebody else starts and stops."""
    app = FastAPI(
        title="Nightjar's administration",
        version=VERSION,
        redirect_slashes=False,
        openapi_url=None,
        exception_handlers={HTTPException: raise_problem, RequestValidationError: raise_problem},
    )
    app.state.service = service
    app.add_middleware(AdminGate, keys=KeyRing({"admin": service.settings.admin_keys}), max_requests=1)
    app.add_middleware(RequestMiddleware, metrics=service.metrics, tracer=service.tracer)
    for each in (router, triton_router, about.problems):
        app.include_router(each)
    return app


class AdminServer(uvicorn.Server):
    """uvicorn's server for the admin interface; does nothing where the settings name no place for it."""

    def __init__(self, service: Service) -> None:
        config = ServerConfig(create_admin_app(service), service.settings)
        config.lifespan = "off"  # the service's own server starts and stops it
        super().__init__(config)
        self._settings = service.settings
        self._serving: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service's own server."""
        yield

    async def open(self) -> None:
        """Begin to answer. Raises OSError when the address cannot be had."""
        sockets = _sockets(self._settings.admin_host, self._settings.admin_port, self._settings.admin_socket)
        if sockets:
            self._serving = asyncio.create_task(self.serve(sockets))
            while not self.started and not self._serving.done():
                await asyncio.sleep(0.005)

    async def shut(self) -> None:
        """Finish what is being answered, and leave the address."""
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
        sockets.append(_bound_path(path))
    return sockets


def _bound_path(path: Path) -> socket.socket:
    """Bind a Unix socket for this user alone, in place of one that a killed process left behind."""
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
