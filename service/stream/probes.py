"""HTTP server of a worker: ``/metrics``, ``/healthz``, ``/readyz`` and the live view.

It runs on threads, so that it responds while the worker loads its model and can report a hung event loop.
"""

import hashlib
import hmac
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl

from nightjar_alerts.service.observe.live import (
    INTERVAL_SECONDS,
    LIVE_HEADERS,
    MAX_READERS,
    LiveEvents,
    LiveFeed,
    read_filter,
)
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.pages import FILES, POLICY, PageFile, read_page_file
from nightjar_alerts.service.stream.messages import SourceStatus


class ProgressMonitor:
    """Progress monitor: times of the last consumed and finished messages, and the status of the source.

    A worker is not ready while it cannot consume, or consumes nothing although messages are pending. It is unhealthy,
    so that a supervisor restarts it, if there is no progress for minutes although messages are pending, without an
    external error: a restart does not repair a broker, sink, registry or disk. It is also unhealthy if it is not a
    member of its group although the brokers respond; no messages are pending then, since it has no partitions.

    Parameters
    ----------
    unready_after : seconds without a consumed message, while messages are pending, after which it is not ready.
    unhealthy_after : seconds without progress after which it is unhealthy.
    external_error : returns the current external errors; empty if there are none.
    """

    def __init__(
        self,
        metrics: Metrics,
        unready_after: float,
        unhealthy_after: float,
        external_error: Callable[[], str],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._metrics = metrics
        self._unready_after = unready_after
        self._unhealthy_after = unhealthy_after
        self._external_error = external_error
        self._clock = clock
        self._consumed_at = self._moved_at = self._error_at = self._member_at = clock()
        self._lagging: set[tuple[str, str]] = set()  # labels of the metric of lag
        self.status = SourceStatus()

    def record_consumed(self) -> None:
        """Record that messages were consumed."""
        self._consumed_at = self._moved_at = self._clock()

    def record_finished(self) -> None:
        """Record that a batch has ended."""
        self._moved_at = self._clock()

    def observe(self, status: SourceStatus, in_flight: int) -> None:
        """Record the status of the source and set the metrics; called every few seconds.

        Parameters
        ----------
        in_flight : number of messages consumed but not finished.
        """
        self.status, now = status, self._clock()
        if status.waiting <= 0:
            self._consumed_at = now
            if not in_flight:
                self._moved_at = now
        if self._external_error() or status.error or status.assigned == 0:
            self._error_at = now
        if self._external_error() or status.error or status.member:
            self._member_at = now
        metrics = self._metrics
        for labels, lag in status.lag.items():
            metrics.stream_lag.labels(*labels).set(lag)
        for labels in self._lagging - status.lag.keys():
            metrics.stream_lag.remove(*labels)
        self._lagging = set(status.lag)
        metrics.stream_assigned.set(status.assigned or 0)
        metrics.stream_untaken.set(now - self._consumed_at)
        metrics.stream_not_ready.set(bool(self._external_error() or self.unready()))

    def unready(self) -> str:
        """Return why nothing is consumed; empty while messages are consumed or none are pending."""
        if self.status.error:
            return f"source: {self.status.error}"
        since = self._clock() - self._consumed_at
        if self.status.waiting > 0 and since > self._unready_after:
            return f"source: nothing consumed for {since:.0f} s although {self.status.waiting} messages wait"
        return self._membership_error(self._unready_after)

    def unhealthy(self) -> str:
        """Return an error that requires a restart; empty if there is none."""
        now = self._clock()
        if self._external_error() or self.status.error:
            return ""
        since = now - max(self._moved_at, self._error_at)
        if since > self._unhealthy_after:
            return f"nothing has moved for {since:.0f} s although messages wait"
        return self._membership_error(self._unhealthy_after)

    def _membership_error(self, longest: float) -> str:
        since = self._clock() - self._member_at
        if self.status.member or since <= longest:
            return ""
        return f"source: not a member of its group for {since:.0f} s although the brokers answer"


TIMEOUT_SECONDS: Final = 10.0
MAX_CONNECTIONS: Final = 32
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """HTTP server of a worker's probes and metrics, for GET, HEAD and OPTIONS.

    Parameters
    ----------
    unhealthy, unready : return the reason why the worker is unhealthy or not ready; empty if it is healthy or ready.
    live : live view served at ``/live/events``; None to disable it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        unhealthy: Callable[[], str],
        unready: Callable[[], str],
        live: "LiveView | None" = None,
    ) -> None:
        def respond(path: str) -> tuple[int, str, bytes]:
            if path == "/metrics":
                return 200, METRICS_TYPE, metrics.render()
            if live is not None and (file := _live_page(path)) is not None:
                return 200, file.media_type, file.content
            if path not in ("/healthz", "/readyz"):
                return 404, "text/plain", b"not found\n"
            error = unhealthy() if path == "/healthz" else unready()
            return 503 if error else 200, "text/plain; charset=utf-8", f"{error or 'ok'}\n".encode()

        self._server = _Server((host, port), _handler(respond, live))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """TCP port of the server."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class LiveView:
    """Live view of a worker: its feed of results, and the SHA-256 of the key that grants access."""

    feed: LiveFeed
    key: str

    def open(self, authorization: str, query: str) -> tuple[int, str, LiveEvents | None]:
        """Return the status of a request for events, the reason if it is rejected, and the events.

        The caller must remove its reader from the feed after it has used the events.

        Parameters
        ----------
        authorization : value of the Authorization header.
        query : query string.
        """
        digest = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).hexdigest()
        if not hmac.compare_digest(digest, self.key):
            return 401, "send the key of the live view as Authorization: Bearer", None
        try:
            wanted = read_filter(parse_qsl(query, keep_blank_values=True))
        except ValueError as error:
            return 422, str(error), None
        if not self.feed.add_reader():
            return 429, f"{MAX_READERS} live views are open", None
        return 200, "", LiveEvents(self.feed, wanted)


def _live_page(path: str) -> PageFile | None:
    """Return the file of the live view at a path; None if there is none."""
    name = "live.html" if path in ("/", "/live") else path.removeprefix("/page/")
    return read_page_file(name) if name in FILES else None


class _Server(ThreadingHTTPServer):
    """Server with one thread per connection, for few requests: probes and scrapes every few seconds."""

    daemon_threads = True
    request_queue_size = 4 * MAX_CONNECTIONS  # with the default of 5, connections of a burst wait for seconds

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._timers: dict[Any, threading.Timer] = {}
        self.closing = threading.Event()

    def remove_time_limit(self, request: Any) -> None:
        """Remove the time limit of a request; each write still has a timeout."""
        self._timers[request].cancel()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread, or close the connection if there are too many."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Respond within :data:`TIMEOUT_SECONDS`, or close the connection."""
        # The timeout of the handler restarts with each byte received.
        timer = self._timers[request] = threading.Timer(TIMEOUT_SECONDS, _disconnect, [request])
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            del self._timers[request]
            self._slots.release()


def _disconnect(request: socket.socket) -> None:
    with suppress(OSError):  # already closed
        request.shutdown(socket.SHUT_RDWR)


def _handler(respond: Callable[[str], tuple[int, str, bytes]], live: LiveView | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server: _Server
        timeout = TIMEOUT_SECONDS
        server_version, sys_version = "nightjar", ""  # hides the Python version

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if live is not None and path == "/live/events":
                self._send_events(live, query)
            else:
                body = self._send_head()
                self.wfile.write(body)

        def _send_events(self, live: LiveView, query: str) -> None:
            status, reason, events = live.open(self.headers.get("Authorization", ""), query)
            if events is None:
                body = f"{reason}\n".encode()
                self._send_headers(status, "text/plain; charset=utf-8", {"Content-Length": str(len(body))})
                self.wfile.write(body)
                return
            try:
                self.server.remove_time_limit(self.connection)
                self._send_headers(200, "text/event-stream; charset=utf-8", LIVE_HEADERS)
                with suppress(OSError):  # the client disconnected, or does not read
                    while not self.server.closing.is_set():
                        self.wfile.write(events.next())
                        self.server.closing.wait(INTERVAL_SECONDS)
            finally:
                live.feed.remove_reader()

        def _send_headers(self, status: int, kind: str, more: Mapping[str, str]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()

        def do_HEAD(self) -> None:
            self._send_head()

        def do_OPTIONS(self) -> None:
            self.send_response(204)
            self.send_header("Allow", "GET, HEAD, OPTIONS")
            self.end_headers()

        def _send_head(self) -> bytes:
            """Send status and headers; return the body."""
            status, kind, body = respond(self.path.partition("?")[0])
            policy = {"Content-Security-Policy": POLICY} if kind.startswith("text/html") else {}
            self._send_headers(status, kind, {"Content-Length": str(len(body)), **policy})
            return body

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: there is a request every few seconds."""

    return Handler
