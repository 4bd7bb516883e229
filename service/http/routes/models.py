"""``GET /v1/models``: what is served, what it wants and what it gives."""

from fastapi import APIRouter, Request, Response

from service.http import errors, openapi
from service.http.descriptions import ModelsReply, describe
from service.http.lifecycle import service_of

router = APIRouter()


@router.get(
    "/v1/models",
    summary="Describe the models",
    response_class=Response,
    responses={
        200: openapi.reply(ModelsReply, "Every model that is served."),
        **openapi.problems(errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
)
async def models(request: Request) -> Response:
    """Task, name, version, hash, classes with their ids, bands, limits, metadata columns, quality, calibration."""
    service = service_of(request)
    content = ModelsReply(models=[describe(bundle, service.settings.provider) for bundle in service.bundles])
    return Response(content.model_dump_json(by_alias=True), media_type=openapi.JSON_TYPE)
