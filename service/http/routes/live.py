"""``GET /live/events``: recent results of all clients as server-sent events, for the live view."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

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
        401 without the key, 422 for an invalid parameter; 429 for too many readers when the response is sent.
    """
    KeyRing({"live": (key,)}).authenticate(request.scope)
    try:
        wanted = read_filter(request.query_params.multi_items())
    except ValueError as error:
        name, _, detail = str(error).partition(": ")
        raise invalid_field(f"/query/{name}", "invalid", detail) from None
    return _EventsResponse(feed, LiveEvents(feed, wanted), has_ended)


class _EventsResponse(StreamingResponse):
    """Response that is a reader of the feed from its start to its end. Raises ProblemError (429) for too many."""

    def __init__(self, feed: LiveFeed, events: LiveEvents, has_ended: Callable[[], bool]) -> None:
        super().__init__(_send_events(events, has_ended), media_type="text/event-stream", headers=LIVE_HEADERS)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._feed.add_reader():
            detail = f"{MAX_READERS} live views are open"
            raise ProblemError(OVERLOADED, detail, limit=MAX_READERS, retry_after=10)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.remove_reader()


async def _send_events(events: LiveEvents, has_ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    while not has_ended():
        yield events.next()
        await asyncio.sleep(INTERVAL_SECONDS)
