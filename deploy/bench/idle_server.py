"""A server that does next to nothing: what an attack on it costs a bystander is the price of the attackers themselves.

    python -m deploy.bench.idle_server      prints its port, and ends when its input does

It accepts, reads and drops. So that attackers go on as they do with a service, a connection ends when a whole body, too
long a header or a byte that is no text has come, or when its client sends no more; one that sends little stays.
"""

import asyncio
import re
import sys
from typing import Final, cast

import uvloop

from deploy.bench.service_process import HOST

BACKLOG: Final = 2048
MOST_HEADER_BYTES: Final = 32 * 1024
MOST_BYTES: Final = 64 << 20
REPLY: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.IGNORECASE)


class SinkConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._head: bytes | None = b""  # None once it is complete
        self._remaining = MOST_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for bytes."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Drop bytes, and hang up where a service would."""
        self._remaining -= len(data)
        if self._head is not None:
            self._look_at(self._head + data)
        if self._remaining <= 0:
            self._transport.write(REPLY)
            self._transport.close()

    def _look_at(self, head: bytes) -> None:
        end = head.find(b"\r\n\r\n")
        self._head = head if end < 0 else None
        if b"\0" in head[max(end, 0) : max(end, 0) + 64] or (end < 0 and len(head) > MOST_HEADER_BYTES):
            self._remaining = 0
        elif end >= 0 and (match := _LENGTH.search(head, 0, end + 2)):
            self._remaining = int(match[1]) - (len(head) - end - 4)


async def main() -> None:
    """Serve until nobody wants it any more."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(SinkConnection, HOST, 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
