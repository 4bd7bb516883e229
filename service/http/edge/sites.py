"""Protection of servers without API keys against web pages in the browsers of their users.

Without keys, anyone who reaches the port may use it, and so may a page of any site that a user of this machine or
network opens. A browser says where a request comes from, and pages cannot change what it says:

- ``Host`` is the name by which the page reached the server. A page whose own name resolves to this server (DNS
  rebinding) could read responses, as the browser takes both for one site. It needs a name for that, so an address is
  accepted if it is the one at which the connection arrived: probes and scrapes by the address of a pod work unchanged.
  A request without ``Host`` (HTTP/1.0) is not from a browser.
- ``Origin`` and ``Sec-Fetch-Site`` name the site of the page. A page of another site cannot read responses, but could
  have light curves classified, so only methods that read are accepted from it. Another port or subdomain is another
  site here.

With API keys neither is checked: a page does not have the key, and browsers do not add it.
"""

import re
import socket
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from nightjar_alerts.service.http.edge.errors import FORBIDDEN, ProblemError
from nightjar_alerts.service.settings import is_loopback, parse_address

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(?P<name>\[[0-9a-z:.%]{2,60}\]|[^\[\]:@/?#\s]{1,253})(?::(?P<port>[0-9]{0,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>.+)")
_PORTS: Final = {"http": "80", "https": "443"}


class SiteMiddleware:
    """Refuses requests to other host names, and requests of pages of other sites that do more than read.

    Parameters
    ----------
    allowed_hosts : further host names and addresses, as in :attr:`Settings.allowed_hosts`.
    origins : origins of other sites whose pages may send any request; ``*`` for all.
    reading : methods that pages of other sites may use.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed_hosts: str,
        origins: Collection[str] = (),
        reading: Collection[str] = READING,
    ) -> None:
        self.app, self._reading = app, reading
        names = [name for name in allowed_hosts.split(",") if name]
        self._names = {"localhost", socket.gethostname().lower(), *(name for name in names if not name.startswith("*"))}
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*")))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises ProblemError (403)."""
        if scope["type"] == "http":
            headers: dict[bytes, bytes] = dict(scope["headers"])
            self._check_host(scope.get("server") or ("", 0), headers.get(b"host"))
            if scope["method"] not in self._reading and self._is_cross_site(headers):
                raise ProblemError(FORBIDDEN, "requests from pages of other sites are refused (Origin, Sec-Fetch-Site)")
        await self.app(scope, receive, send)

    def _check_host(self, server: tuple[str, int | None], header: bytes | None) -> None:
        address, port = server
        if header is None or port is None:  # a Unix socket has no port, and browsers cannot connect to it
            return
        match = _HOST.fullmatch(header.decode("latin-1").lower())
        if match is None:
            raise ProblemError(FORBIDDEN, "the Host header has no valid host name")
        name = match["name"]
        if name == address or name in self._names:  # usual, and ten times as fast as what follows
            return
        name = _usual_form(name)
        own = name in self._names or name == str(parse_address(address))
        if not (own or is_loopback(name) or name.endswith(self._suffixes)):
            detail = (
                f"the host name {name!r} is not known: if it is one of this server, add it to NIGHTJAR_ALLOWED_HOSTS"
            )
            raise ProblemError(FORBIDDEN, detail)

    def _is_cross_site(self, headers: dict[bytes, bytes]) -> bool:
        origin, site, host = (
            None if value is None else value.decode("latin-1")
            for value in map(headers.get, (b"origin", b"sec-fetch-site", b"host"))
        )
        if origin is not None and ("*" in self._origins or origin in self._origins):
            return False
        if site not in (None, "same-origin", "none"):
            return True
        if origin is None or (origin == "null" and site is not None):  # null: a page that hides its origin, or has none
            return False
        return not _is_same_host(origin, host or "")


def _parse_host(text: str) -> tuple[str, str]:
    """Return the name in lower case, or the address in its usual form, and the port; ("", "") if invalid."""
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return "", ""
    return _usual_form(match["name"]), match["port"] or ""


def _usual_form(name: str) -> str:
    address = parse_address(name.strip("[]"))
    return name.removesuffix(".") if address is None else str(address)


def _is_same_host(origin: str, host: str) -> bool:
    """Return True if an Origin has the name and port of a Host header; a proxy may have removed TLS."""
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None:
        return False
    default = _PORTS[match["scheme"]]
    (name, port), (own_name, own_port) = _parse_host(match["host"]), _parse_host(host)
    return bool(name) and (name, port or default) == (own_name, own_port or default)
