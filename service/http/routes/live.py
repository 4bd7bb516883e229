"""``GET /live/events``: recent results of all clients as server-sent events, for the live view."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse

from nightjar_alerts.service.http.edge.errors import OVERLOADED, ProblemError, invalid_field
from nightjar_alerts.service.http.edge.keys import KeyRing
from nightjar_alerts.service.http.lifecycle import get_service
from nightjar_alerts.service.observe.live import (
    INTERVAL_SECONDS,
    LIVE_HEADERS,
    MAX_READERS,
    LiveEvents,
    LiveFeed,
    read_filter,
)

router = APIRouter(include_in_schema=False)


@router.get("/live/events")
async def live_events(request: Request) -> StreamingResponse:
    """Send an event every second until the client disconnects or the service stops."""
    service = get_service(request)
    feed, key = service.live, service.settings.live_key
    assert feed is not None  # the route exists only if live_key is set
    assert key is not None
    return stream_events(request, feed, key, lambda: bool(service.unready))


def stream_events(request: Request, feed: LiveFeed, key: str, has_ended: Callable[[], bool]) -> StreamingResponse:
    """Return a response with an event every second until the client disconnects or ``has_ended()``.

    The key of the live view is sent like an API key. Query parameters (``class``, ``survey``, ``min_confidence``,
    ``min_novelty``, ``unusual``) select results; if there are more than 50 per second, an even sample is sent.

    Parameters
    ----------
    key : SHA-256 of the key.

    Raises
    ------
    ProblemError
        401 without the key, 422 for an invalid parameter, 429 for too many readers.
    """
    KeyRing({"live": (key,)}).authenticate(request.scope)
    try:
        wanted = read_filter(request.query_params.multi_items())
    except ValueError as error:
        name, _, detail = str(error).partition(": ")
        raise invalid_field(f"/query/{name}", "invalid", detail) from None
    if not feed.add_reader():
        raise ProblemError(OVERLOADED, f"{MAX_READERS} live views are open", limit=MAX_READERS, retry_after=10)
    events = _events(feed, LiveEvents(feed, wanted), has_ended)
    return StreamingResponse(events, media_type="text/event-stream", headers=LIVE_HEADERS)


async def _events(feed: LiveFeed, events: LiveEvents, has_ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    try:
        while not has_ended():
            yield events.next()
            await asyncio.sleep(INTERVAL_SECONDS)
    finally:
        feed.remove_reader()
