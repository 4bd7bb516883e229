"""Straight to the endpoint, where a request leaves the framework nothing to do.

Finding a route and reading parameters takes FastAPI a third of the time that a request of one light curve needs. An
address that is known exactly and has no parameters needs neither. All else, wrong methods included, goes on to the
routes, which describe the same endpoints to clients and readers.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class Shortcut(NamedTuple):
    """An endpoint as it answers without parameters; stands for its route, by whose ``path`` requests are counted."""

    path: str
    endpoint: Callable[[Request], Awaitable[Response]]


class Direct:
    """Takes the shortcuts: methods and paths that lead to one. As the innermost middleware, around the routes."""

    def __init__(self, app: ASGIApp, shortcuts: Mapping[tuple[str, str], Shortcut]) -> None:
        self.app, self.shortcuts = app, shortcuts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        shortcut = None
        if scope["type"] == "http" and not scope["query_string"]:
            shortcut = self.shortcuts.get((scope["method"], scope["path"]))
        if shortcut is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = shortcut
        response = await shortcut.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
