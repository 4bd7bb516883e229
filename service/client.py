"""A small client of ``POST /v1/alerts`` for the command line: packets from disk, one request each, results as rows."""

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from nightjar_alerts.service.settings import ClientSettings

SAMPLES = Path(__file__).resolve().parent / "samples"


class ClientError(Exception):
    """The service could not be asked, or answered with a problem; the text says which."""


class Rejected(ClientError):
    """The service refused this request: its status is 4xx and not about keys or quotas."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one alert and the milliseconds from sending its packet to having its reply."""

    source: str
    result: dict[str, Any]
    milliseconds: float


def exit_status(read: int, unread: int, skipped: int) -> int:
    """Return the exit status of a command that has read alerts from files or a range of a broker.

    0: everything that looks like alerts was read, abstained alerts included, or the source was empty. 3: something
    could not be read or was rejected. 1: nothing was read from a source that is not empty.
    """
    if not read and (unread or skipped):
        return 1
    return 3 if unread else 0


class Client:
    """Asks one service, over one connection."""

    def __init__(self, settings: ClientSettings) -> None:
        address = urlsplit(settings.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ClientError(f"{settings.url!r} is not an http or https address")
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        self._connection = kind(address.hostname, address.port, timeout=settings.timeout)
        self._prefix = address.path.rstrip("/")
        self._url = settings.url
        self._headers = {"X-API-Key": settings.api_key} if settings.api_key else {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def classify(self, source: str, packet: bytes) -> list[Answer]:
        """Results of every alert in a packet. Raises ClientError."""
        started = perf_counter()
        reply = self.ask("POST", "/v1/alerts", packet)
        milliseconds = 1000 * (perf_counter() - started)
        return [Answer(source, result, milliseconds) for result in reply["results"]]

    def ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """JSON reply to a request. Raises ClientError when there is none or its status is not 200."""
        headers = self._headers | ({"Content-Type": "application/octet-stream"} if body is not None else {})
        try:
            self._connection.request(method, self._prefix + path, body, headers)
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise ClientError(f"{self._url} does not answer: {error}") from error
        try:
            document: dict[str, Any] = json.loads(text)
        except ValueError:
            raise ClientError(f"{self._url} answered {response.status} with something that is not JSON") from None
        if response.status != 200:
            about_request = response.status in (400, 413, 415, 422)
            kind = Rejected if about_request else ClientError
            raise kind(f"{response.status} {document.get('title')}: {document.get('detail')}")
        return document
