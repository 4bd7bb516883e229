"""The HTTP application: middleware, routes and the OpenAPI document around one :class:`service.http.lifecycle.Service`.

    app = create_app(Service(Settings()))

Starlette turns exceptions into replies in three places; here they all travel to the outermost middleware
(:class:`service.http.edge.middleware.Edge`), which knows one shape.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.http import openapi
from service.http.edge.direct import Direct
from service.http.edge.errors import to_the_edge
from service.http.edge.keys import KeyRing
from service.http.edge.middleware import Edge, Gate
from service.http.lifecycle import Service
from service.http.routes import about, alerts, classify, forecast, health, models, oip
from service.version import VERSION

DESCRIPTION = """Nightjar classifies astronomical alerts: multiband light curves in, calibrated class probabilities and
embeddings out. With a forecasting model it also says what flux to expect. Every problem is an
`application/problem+json` document (RFC 9457) whose `errors` point at the values at fault. Replies carry
`X-Request-ID`, `traceresponse` (W3C Trace Context) and, where work was done, `Server-Timing`. A request may say
until when it is worth an answer (`Nightjar-Deadline-Ms`) and how urgent it is (`Priority`, RFC 9218)."""


def create_app(service: Service) -> FastAPI:
    """Build the application; its lifespan starts and stops the service."""
    settings = service.settings
    app = FastAPI(
        title="Nightjar",
        version=VERSION,
        summary="Real-time classification of astronomical alerts",
        description=DESCRIPTION,
        lifespan=_lifespan,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        openapi_url=None,  # served with the pages, as bytes
        docs_url=None,
        redoc_url=None,
        exception_handlers={HTTPException: to_the_edge, RequestValidationError: to_the_edge},
    )
    app.state.service = service
    app.add_middleware(Direct, shortcuts={("POST", classify.SHORTCUT.path): classify.SHORTCUT})
    app.add_middleware(
        Gate,
        keys=KeyRing(settings.keys),
        max_requests=settings.max_requests,
        quotas=service.quotas,
        also=settings.keys_for,
    )
    app.add_middleware(Edge, metrics=service.metrics, tracer=service.tracer)
    for router in (
        classify.router, alerts.router, forecast.router, models.router, oip.router, health.router, about.problems
    ):  # fmt: skip
        app.include_router(router)
    if settings.docs:
        app.include_router(about.pages)
    document = openapi.document(app, settings)
    app.openapi = lambda: document  # type: ignore[method-assign]  # FastAPI's documented way to replace it
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    service: Service = app.state.service
    await service.start()
    yield {}
    await service.stop()
