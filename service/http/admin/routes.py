"""Routes of the admin interface. A change is answered, when it has been made, with everything that is served then."""

from fastapi import APIRouter, Request, Response

from service.answers.fields import FieldError
from service.http.admin.asking import change, json_reply, models_of, read
from service.http.admin.forms import AliasTarget, CanaryTerms, Nothing, ShadowTerms, WhichVersion
from service.http.admin.listing import listing
from service.http.edge.errors import INVALID, NOT_FOUND, ProblemError
from service.http.lifecycle import service_of
from service.registry.routing import Reference

router = APIRouter(prefix="/admin", include_in_schema=False)


def model_name(text: str) -> str:
    """A name from the address. Raises ProblemError (404) for what cannot be one."""
    try:
        return Reference.parse(text).name
    except ValueError:
        raise ProblemError(NOT_FOUND, "a model or alias is named by small letters, digits and hyphens") from None


def _state(request: Request) -> Response:
    return json_reply(listing(service_of(request).models))


@router.get("/models")
async def models(request: Request) -> Response:
    """Everything there is."""
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
    wanted = Reference(model_name(name), (await read(request, WhichVersion)).version or "")
    await change(request, "load", models_of(request).changes.load(wanted), model=str(wanted))
    return _state(request)


@router.post("/models/{name}/unload")
async def unload(request: Request, name: str) -> Response:
    """Serve a version, or a model, no more."""
    wanted = Reference(model_name(name), (await read(request, WhichVersion)).version or "")
    await change(request, "unload", models_of(request).changes.unload(wanted), model=str(wanted))
    return _state(request)


@router.post("/models/{name}/rollback")
async def rollback(request: Request, name: str) -> Response:
    """Let the version answer that did before."""
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
    """Let a version answer a share."""
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
    wanted = Reference.parse(terms.model)
    if not wanted.version:
        fault = FieldError(pointer="/model", reason="missing_version", detail="a shadow is named as name@1.2.3")
        raise ProblemError(INVALID, errors=[fault])
    work = models_of(request).trials.set_shadow(model, wanted, terms.share)
    await change(request, "set shadow", work, model=model, shadow=terms.model, share=terms.share)
    return _state(request)


@router.delete("/models/{name}/shadow")
async def end_shadow(request: Request, name: str) -> Response:
    """Compare a model with nothing any more."""
    model = model_name(name)
    await change(request, "end shadow", models_of(request).trials.end_shadow(model), model=model)
    return _state(request)
