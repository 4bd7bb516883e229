"""``GET /v1/models``: what is served, what it wants and what it gives."""

from fastapi import APIRouter, Request, Response

from service.http import errors, openapi
from service.http.lifecycle import service_of
from service.http.replies import ModelsReply, describe

router = APIRouter()


@router.get(
    "/v1/models",
    summary="Describe the model",
    response_class=Response,
    responses={
        200: openapi.reply(ModelsReply, "Every model that is served."),
        **openapi.problems(errors.OVERLOADED, errors.INTERNAL, errors.UNAVAILABLE),
    },
)
async def models(request: Request) -> Response:
    """Name, version, hash, classes with their ids, bands, limits, metadata columns, measured quality, calibration."""
    service = service_of(request)
    content = ModelsReply(models=[describe(service.model.bundle, service.settings.provider)])
    return Response(content.model_dump_json(by_alias=True), media_type=openapi.JSON_TYPE)
