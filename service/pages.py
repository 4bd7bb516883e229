"""Files of the web pages: ``/``, ``/docs`` and ``/live`` of the service, ``/live`` of a stream worker.

They are static files of this package, without a build step and without requests to other hosts. Their content security
policy allows neither inline scripts nor connections to other hosts, and all URLs in them are relative, so that they
work under a path prefix.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_SERVICE = Path(__file__).resolve().parent
_FOLDER = _SERVICE / "http" / "page"
_TYPES: Final = {
    ".avro": "application/octet-stream",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES: Final = {path.relative_to(_FOLDER).as_posix(): path for path in _FOLDER.rglob("*") if path.suffix in _TYPES} | {
    f"samples/{path.name}": path for path in (_SERVICE / "samples").glob("*.avro")
}
"""All served files, by path below ``/page``."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageFile(NamedTuple):
    """A served file; ``compressed`` is its content compressed with gzip."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str


@cache
def read_page_file(name: str) -> PageFile:
    """Read a file by its name in :data:`FILES`. Raises KeyError."""
    path = FILES[name]
    content = path.read_bytes()
    compressed = gzip.compress(content, mtime=0)
    return PageFile(content, compressed, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:24]}"')
