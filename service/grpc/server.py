"""gRPC server in the process and on the event loop of the HTTP service.

Limits of connections are those of gRPC's core. It refuses connections beyond ``max_connections``, closes those without
a preface after ``header_timeout`` and without calls after ``keep_alive``, refuses messages beyond
``grpc_max_message_bytes`` (also once decompressed), metadata beyond 16 kB and calls beyond :data:`MAX_STREAMS` of a
connection, and ends connections with more pings than one in :data:`PING_SECONDS`. A connection ends gracefully after
:data:`MAX_AGE_SECONDS`, so that clients of several replicas spread; also that of a client that never takes its
responses.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

import grpc
import structlog

from nightjar_alerts.service.grpc.calls import Calls
from nightjar_alerts.service.grpc.methods import METHODS, REFLECTION_METHOD
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.settings import Settings

MAX_STREAMS: Final = 32
READ_BYTES: Final = 64 * 1024
"""What is read from a connection at a time: connections share few threads, and small frames are slow to process."""
MAX_PENDING: Final = 4096
"""Number of calls that are not yet accepted beyond which gRPC ends some of them, whichever client they are of."""
WINDOW_BYTES: Final = 16 * 1024
"""What a client may send of a message before its call is admitted."""
PING_SECONDS: Final = 10.0
MAX_AGE_SECONDS: Final = 1800.0
POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 3.0
"""Time without calls after which a stopping server closes connections; gRPC waits 20 s for a ping to be answered."""

log = structlog.get_logger(__name__)


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Return the options of gRPC's core."""
    return [
        ("grpc.so_reuseport", 0),  # a port that is taken is an error
        ("grpc.max_receive_message_length", settings.grpc_max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", round(1000 * settings.header_timeout)),
        ("grpc.max_connection_idle_ms", 1000 * settings.keep_alive),
        ("grpc.max_connection_age_ms", round(1000 * MAX_AGE_SECONDS)),
        ("grpc.max_connection_age_grace_ms", settings.max_deadline_ms),
        ("grpc.keepalive_time_ms", round(1000 * settings.stall_timeout)),
        ("grpc.keepalive_timeout_ms", round(1000 * settings.stall_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),  # also ends connections whose client no longer reads
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * PING_SECONDS)),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING),
        ("grpc.experimental.tcp_max_read_chunk_size", READ_BYTES),
        ("grpc.http2.bdp_probe", 0),  # which would enlarge the window of messages that wait
    ]


class GrpcServer:
    """Server of one service; does nothing without a port in the settings."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._calls = Calls(service)
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Start listening. Raises OSError if the address or a certificate cannot be used."""
        settings = self._service.settings
        methods = [(method, *handled) for method, handled in METHODS.items()]
        if settings.enable_docs:
            methods.append(REFLECTION_METHOD)
        handlers: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
        for method, path, run in methods:
            service_name, _, name = method.strip("/").partition("/")
            handlers.setdefault(service_name, {})[name] = self._calls.handler(method, path, run)
        server = grpc.aio.server(options=channel_options(settings))
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in handlers.items()]
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self.port = _bind(server, f"{host}:{settings.grpc_port}", settings)
        except RuntimeError as error:
            raise OSError(f"{error} The address may be in use, or not one of this machine.") from None
        await server.start()
        self._server = server
        log.info("listening", host=settings.host, port=self.port, protocol="gRPC")

    async def close(self, forced: Callable[[], bool]) -> None:
        """Refuse new calls, finish those in progress within ``drain_timeout``, or at once when ``forced``."""
        if self._server is None:
            return
        stopping = asyncio.create_task(self._server.stop(self._service.settings.drain_timeout))
        busy = monotonic()
        while not stopping.done():
            await asyncio.wait({stopping}, timeout=POLL_SECONDS)
            if self._calls.in_progress:
                busy = monotonic()
            if forced() or monotonic() - busy > QUIET_SECONDS:
                await self._server.stop(None)
        await stopping


def _bind(server: grpc.aio.Server, address: str, settings: Settings) -> int:
    """Listen on an address, with TLS if there is a certificate; return the port."""
    port: int
    if settings.grpc_certificate is None or settings.grpc_certificate_key is None:
        port = server.add_insecure_port(address)
    else:
        _check_certificate(settings.grpc_certificate, settings.grpc_certificate_key)
        pair = (settings.grpc_certificate_key.read_bytes(), settings.grpc_certificate.read_bytes())
        port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    return port


def _check_certificate(certificate: Path, key: Path) -> None:
    """Raise OSError if a certificate and its key cannot be used: gRPC would blame the address."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")  # never asks for one
    except ssl.SSLError as error:
        reason = f"{certificate} and {key} must be PEM files of a certificate and its key without a password: {error}"
        raise OSError(reason) from None
