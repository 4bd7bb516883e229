"""Open Inference Protocol v2 over gRPC, for the clients of Triton and KServe; needs the extra ``grpc``.

The tensors are those of :mod:`service.http.oip`. Requests have the same admission, limits, deadlines, results, metrics
and errors as under ``/v2`` of HTTP, in the same process and on the same event loop.

- :mod:`service.grpc.messages` has the messages, from ``oip.proto``.
- :mod:`service.grpc.decoding` decodes requests for inference, and encodes their responses.
- :mod:`service.grpc.calls` receives, admits, answers and records calls.
- :mod:`service.grpc.methods` has the methods.
- :mod:`service.grpc.server` listens and stops.
- :mod:`service.grpc.codes` maps errors to status codes.
"""

from typing import Final

SERVICE: Final = "inference.GRPCInferenceService"


class GrpcError(RuntimeError):
    """The packages for gRPC are not installed."""
