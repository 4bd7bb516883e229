"""A small client of ``POST /v1/alerts`` for the command line: packets from disk, one request each, results as rows."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from nightjar_alerts.service.settings import ClientSettings

SAMPLES = Path(__file__).resolve().parent / "samples"
PACKET_SUFFIX = ".avro"
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
MAX_MEMBER_BYTES = 64 * 1024 * 1024


class ClientError(Exception):
    """The service could not be asked, or answered with a problem; the text says which."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one alert and the milliseconds from sending its packet to having its reply."""

    source: str
    result: dict[str, Any]
    milliseconds: float


def packets_in(paths: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every packet: files as they are, folders and archives searched for ``*.avro``.

    Raises
    ------
    ClientError
        When a path does not exist or an archive cannot be read.
    """
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.name.endswith((PACKET_SUFFIX, *ARCHIVE_SUFFIXES)):
                    yield from _packets_of(file)
        else:
            yield from _packets_of(path)


def _packets_of(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.name.endswith(ARCHIVE_SUFFIXES):
            yield from _members(path)
        else:
            yield path.name, path.read_bytes()
    except (OSError, tarfile.TarError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ClientError(f"{path}: {reason or error}") from error


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(PACKET_SUFFIX) and member.size <= MAX_MEMBER_BYTES:
                file = archive.extractfile(member)
                if file is not None:
                    yield f"{path.name}/{member.name}", file.read()


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
            raise ClientError(f"{response.status} {document.get('title')}: {document.get('detail')}")
        return document
