"""The most the load client can do: the same plan against a server that does no work.

The server answers every request with fixed bytes as soon as its last byte is in. What the client reaches here bounds
what it can measure anywhere; a service figure near it would be a figure of the client.
"""

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from deploy.bench.load import HOST, run_in_process

_BODY = b"{}" + b" " * 1022  # about as long as a real answer
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            writer.write(_REPLY)
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def _serve(tell: Connection) -> None:
    server = await asyncio.start_server(_answer, HOST, 0)
    tell.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _main(tell: Connection) -> None:
    uvloop.run(_serve(tell))


def client_ceiling(plan: Path, clients: int) -> float:
    """Requests per second of the load client against a server that only counts bytes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    server = context.Process(target=_main, args=(there,), daemon=True)
    server.start()
    try:
        return float(run_in_process(here.recv(), plan, clients)["per_second"])
    finally:
        server.terminate()
        server.join()
