"""A client of the gRPC port with grpcio alone, which needs no thread or event loop of its own."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from nightjar_alerts.service.grpc import SERVICE, messages
from nightjar_alerts.service.grpc.messages import ModelInferRequest
from support.edge import HOST, Live, wait_until
from support.oip import Arrays, as_bytes, datatype

CONTENTS = {
    "FP64": "fp64_contents",
    "FP32": "fp32_contents",
    "INT64": "int64_contents",
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
}


class Client:
    """Calls methods of one service on a channel of its own.

    Parameters
    ----------
    metadata : sent with every call, such as an API key.
    """

    def __init__(self, port: int, metadata: Mapping[str, str] | None = None, credentials: Any = None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        address = f"{HOST}:{port}"
        self.channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self.metadata = tuple((metadata or {}).items())

    @contextmanager
    def opened(self) -> Iterator["Client"]:
        """The client in a ``with`` block, which closes its channel."""
        with self.channel:
            yield self

    def start(self, method: str, request: Any, metadata: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Start a call of the Open Inference Protocol; return its future."""
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(messages, f"{method}Response").FromString,
        )
        return call.future(request, metadata=(*self.metadata, *(metadata or {}).items()), **options)

    def call(self, method: str, request: Any = None, **fields: Any) -> Any:
        """Response of a method; ``fields`` are those of the request."""
        return self.start(method, request or getattr(messages, f"{method}Request")(**fields), timeout=60).result()

    def infer(self, arrays: Arrays, **fields: Any) -> Any:
        """Response of an inference with raw tensors."""
        return self.call("ModelInfer", infer_request(arrays, **fields))


def grpc_port(edge: Live) -> int:
    """Port of a running service, which opens it after that of HTTP."""
    server = edge.server.grpc
    assert server is not None
    wait_until(lambda: server.port != 0)
    return server.port


@contextmanager
def client(edge: Live, metadata: Mapping[str, str] | None = None) -> Iterator[Client]:
    """A client of a running service."""
    with Client(grpc_port(edge), metadata).opened() as opened:
        yield opened


@contextmanager
def refused(code: str) -> Iterator["Refusal"]:
    """Assert that a call fails with a status code; its message and metadata are in the refusal."""
    refusal = Refusal()
    with pytest.raises(grpc.RpcError) as caught:
        yield refusal
    error: Any = caught.value
    assert (error.code().name, error.details()) == (code, error.details())
    refusal.message = error.details()
    refusal.metadata = dict(error.trailing_metadata() or ())


class Refusal:
    """Status message and trailing metadata of a failed call."""

    message = ""
    metadata: dict[str, str]


def infer_request(
    arrays: Arrays, *, model: str = "echo", outputs: Sequence[str] = (), raw: bool = True, **fields: Any
) -> ModelInferRequest:
    """A request with raw or typed tensors."""
    request = ModelInferRequest(model_name=model, **fields)
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype=datatype(array), shape=array.shape)
        if raw:
            request.raw_input_contents.append(as_bytes(array))
        else:
            getattr(tensor.contents, CONTENTS[tensor.datatype]).extend(array.ravel().tolist())
    for name in outputs:
        request.outputs.add(name=name)
    return request
