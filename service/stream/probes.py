"""``/metrics``, ``/healthz`` and ``/readyz`` of a worker, on a port of their own and on threads of their own.

They answer while the worker loads its model, and also when its event loop hangs: then they say so.
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from service.observe.metrics import Metrics

TIMEOUT_SECONDS: Final = 10.0
MAX_CONNECTIONS: Final = 32
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """A small HTTP server.

    Parameters
    ----------
    alive, ready : what is wrong, in words; empty when nothing is.
    """

    def __init__(
        self, host: str, port: int, metrics: Metrics, alive: Callable[[], str], ready: Callable[[], str]
    ) -> None:
        def answer(path: str) -> tuple[int, str, bytes]:
            if path == "/metrics":
                return 200, METRICS_TYPE, metrics.render()
            if path not in ("/healthz", "/readyz"):
                return 404, "text/plain", b"not found\n"
            trouble = alive() if path == "/healthz" else ready()
            return 503 if trouble else 200, "text/plain; charset=utf-8", f"{trouble or 'ok'}\n".encode()

        self._server = _Server((host, port), _handler(answer))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """One thread for each connection, of which there are few: probes and scrapes come every few seconds."""

    daemon_threads = True
    request_queue_size = 4 * MAX_CONNECTIONS  # with five, a burst would wait whole seconds to be connected at all

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread, or hang up where all places are taken."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and give the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


def _handler(answer: Callable[[str], tuple[int, str, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_SECONDS
        server_version, sys_version = "nightjar", ""  # not which Python answers

        def do_GET(self) -> None:
            status, kind, body = answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: nobody wants to read of them."""

    return Handler
