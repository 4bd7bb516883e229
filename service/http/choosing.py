"""Which model a request gets, and what its reply says about answers that were given before."""

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from service.dataplane import Outcome
from service.http.lifecycle import Service
from service.registry.live import Lease
from service.registry.routing import MOST_CHARACTERS

ROLE_HEADER = "Nightjar-Role"


class ModelQuery(BaseModel):
    """The parameter of an address that names a model."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field("", max_length=MOST_CHARACTERS, description="model to ask: `name`, `name@1.2.3` or an alias")


def sticky_key(request: Request, names: Iterable[str] = ()) -> str:
    """What decides whether a canary answers: the first object with a name, else the API key, else the request alone."""
    asks: str = getattr(request.state, "client", "") or request.state.request_id
    return next(filter(None, names), asks)


def role_header(leases: Iterable[Lease[Any]], service: Service) -> dict[str, str]:
    """The header that says why another model has answered than usually does, where one has; counts it, too."""
    roles = sorted({lease.role for lease in leases if lease.role})
    for role in roles:
        service.metrics.substitutes.labels(role).inc()
    return {ROLE_HEADER: ", ".join(roles)} if roles else {}


def cache_status(outcomes: Sequence[Outcome], service: Service) -> dict[str, str]:
    """The Cache-Status header (RFC 9211), where results are kept and there was anything to look for."""
    answered = [outcome for outcome in outcomes if outcome.prediction is not None]
    if not service.settings.cache_bytes or not answered:
        return {}
    kept = sum(outcome.kept for outcome in answered)
    if kept == len(answered):
        return {"Cache-Status": "nightjar; hit"}
    detail = f'; detail="{kept} of {len(answered)} hit"' if kept else ""
    return {"Cache-Status": f"nightjar; fwd=miss{detail}"}
