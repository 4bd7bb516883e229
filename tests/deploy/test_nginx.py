"""deploy/nginx.conf in a real nginx in front of a real service: TLS, limits, streams, client addresses, floods."""

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.bench.nginx import NginxProcess, client_context, is_installed, running_nginx
from nightjar_alerts.service.local import HOST, ServiceProcess, free_port, running
from support.edge import curve, receive_all, wait_until

JSON = {"Content-Type": "application/json"}
FLOOD = 1000  # connections

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="nginx or openssl is not installed (apt-get install nginx openssl)"),
]


class Proxy:
    """A running nginx: where it listens, and how to talk to it."""

    def __init__(self, nginx: NginxProcess) -> None:
        self.plain_port, self.port, self.log = nginx.plain_port, nginx.port, nginx.folder / "access.log"
        self._tls = client_context(nginx.certificate)

    def connect(self, source: str = HOST) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "localhost", self.port, timeout=30, context=self._tls, source_address=(source, 0)
        )

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON, source: str = HOST
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body of one request on its own connection."""
        with closing(self.connect(source)) as connection:
            connection.request(method, path, body, dict(headers))
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()

    def tls_socket(self) -> ssl.SSLSocket:
        plain = socket.create_connection((HOST, self.port), timeout=30)
        return self._tls.wrap_socket(plain, server_hostname="localhost")


@contextmanager
def proxy(folder: Path, service_port: int, changes: Mapping[str, str] | None = None) -> Iterator[Proxy]:
    """The shipped configuration with the ports and paths of this test, and further replacements."""
    with running_nginx(folder, service_port, changes) as nginx:
        yield Proxy(nginx)


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    settings = {"NIGHTJAR_LOG_LEVEL": "debug", "NIGHTJAR_LOG_FORMAT": "json"}
    with running(settings=settings) as live:
        yield live


@pytest.fixture(scope="module")
def nginx(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """nginx with limits that the tests of other things do not reach."""
    folder = tmp_path_factory.mktemp("nginx") / "wide"
    with proxy(folder, service.port, {"rate=100r/s": "rate=10000r/s"}) as live:
        yield live


def test_nginx_classifies_over_tls(nginx: Proxy) -> None:
    status, headers, body = nginx.request("POST", "/v1/classify", json.dumps(curve()))
    assert (status, json.loads(body)["results"][0]["status"]) == (200, "classified")
    assert headers["strict-transport-security"] == "max-age=31536000"
    assert "server-timing" in headers
    with closing(http.client.HTTPConnection(HOST, nginx.plain_port, timeout=30)) as plain:
        plain.request("GET", "/v1/models?x=1", headers={"Host": "nightjar.example.org"})
        reply = plain.getresponse()
        assert (reply.status, reply.headers["Location"]) == (308, "https://nightjar.example.org/v1/models?x=1")


def test_nginx_batch_of_1000_light_curves_passes(nginx: Proxy) -> None:
    body = json.dumps({"light_curves": [curve(60, object_id=str(number)) for number in range(1000)]})
    assert len(body) > 1 << 20  # what nginx accepts by default
    status, _, reply = nginx.request("POST", "/v1/classify", body)
    assert (status, len(json.loads(reply)["results"])) == (200, 1000)


@pytest.mark.parametrize(
    ("path", "megabytes", "status"),
    [
        ("/v1/classify", 9, 413),
        ("/v1/alerts", 63, 200),
        ("/v1/alerts", 65, 413),
        ("/v1/evolution", 9, 422),
        ("/v1/evolution", 65, 413),
        ("/v1/models", 1, 413),
    ],
)
def test_nginx_body_size_is_that_of_the_service(nginx: Proxy, path: str, megabytes: int, status: int) -> None:
    got, headers, body = nginx.request(
        "POST", path, b"\0" * (megabytes << 20), {"Content-Type": "application/octet-stream"}
    )
    assert got == status, body
    if status == 413:
        assert headers["content-type"] == "application/problem+json"
        assert json.loads(body)["status"] == 413


def test_nginx_without_the_service_answers_a_problem(tmp_path: Path) -> None:
    with proxy(tmp_path / "alone", free_port()) as alone:
        status, headers, body = alone.request("GET", "/readyz")
    assert (status, headers["content-type"], headers["retry-after"]) == (502, "application/problem+json", "5")
    problem = json.loads(body)
    assert problem["request_id"] == headers["x-request-id"]
    assert (problem["status"], problem["type"]) == (502, "/problems/unavailable")


@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics?a=b", "/%6detrics", "//metrics", "/admin/v1/models", "/ndjson-stream"]
)
def test_nginx_internal_pages_are_not_exposed(nginx: Proxy, path: str) -> None:
    assert nginx.request("GET", path)[0] == 404


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /metrics%00 HTTP/1.1", 400),
        (b"POST /v1/classify%00 HTTP/1.1", 400),
        (b"GET /v1/models%zz HTTP/1.1", 400),
        (b"GET /v1/\x00 HTTP/1.1", 400),
        (b"GET /../metrics HTTP/1.1", 400),
        (b"GET /..%2fmetrics HTTP/1.1", 400),
        (b"GET http://localhost/%00 HTTP/1.1", 400),
        (b"get / HTTP/1.1", 400),
        (b"CONNECT localhost:443 HTTP/1.1", 400),
        (b"OPTIONS * HTTP/1.1", 400),
        (b"\x16\x03\x01", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1", 414),
        (b"GET /readyz HTTP/1.1\r\nX-Long: " + b"a" * 20_000, 400),
        (b"GET /readyz HTTP/1.1\r\nHost: elsewhere", 400),
        (b"TRACE / HTTP/1.1", 405),
        (b"POST /v1/classify HTTP/1.1\r\nTransfer-Encoding: gzip", 501),
        (b"GET / HTTP/3.0", 505),
        (b"GET /malformed-request HTTP/1.1", 404),
        (b"GET /v1/%ff%0d%0a HTTP/1.1", 404),
    ],
)
def test_nginx_malformed_request_gets_a_problem(nginx: Proxy, line: bytes, status: int) -> None:
    with closing(nginx.tls_socket()) as connection:
        connection.sendall(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, _, body = receive_all(connection).partition(b"\r\n\r\n")
    assert int(head.split(b" ", 2)[1]) == status
    assert b"application/problem+json" in head
    assert json.loads(body)["status"] == status


def test_nginx_server_metadata_of_the_inference_protocol_is_served(nginx: Proxy) -> None:
    status, _, body = nginx.request("GET", "/v2")
    assert (status, json.loads(body)["name"]) == (200, "nightjar")


def test_nginx_http_on_the_port_of_https_gets_a_problem(nginx: Proxy) -> None:
    with closing(socket.create_connection((HOST, nginx.port), timeout=30)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, _, body = receive_all(plain).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["type"] == "/problems/malformed"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_nginx_keeps_what_browsers_say_about_a_page(nginx: Proxy, headers: dict[str, str], status: int) -> None:
    own = {"Host": f"localhost:{nginx.port}", "Origin": f"https://localhost:{nginx.port}"}
    assert nginx.request("POST", "/v1/classify", json.dumps(curve()), JSON | own | headers)[0] == status


def test_nginx_public_name_in_allowed_hosts_is_served(tmp_path: Path) -> None:
    with (
        running(settings={"NIGHTJAR_ALLOWED_HOSTS": "nightjar.example.org"}) as named,
        proxy(tmp_path / "named", named.port) as nginx,
    ):
        for host, status in (("nightjar.example.org", 200), ("other.example.org", 403)):
            headers = JSON | {"Host": host, "Origin": f"https://{host}"}
            assert nginx.request("POST", "/v1/classify", json.dumps(curve()), headers)[0] == status


def test_nginx_ndjson_is_unbuffered_both_ways(nginx: Proxy) -> None:
    """Each answer arrives before the next light curve is sent, and the stream may be larger than any single body."""
    line = json.dumps(curve(20_000)).encode() + b"\n"
    with closing(nginx.connect()) as connection:
        connection.putrequest("POST", "/v1/classify?deadline_ms=300000")
        connection.putheader("Content-Type", "application/x-ndjson; charset=utf-8")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        send_chunk(connection, line)
        reply = connection.getresponse()
        for _ in range(3):
            assert json.loads(reply.readline())["status"] == "classified"
            send_chunk(connection, line)
        many = 1 + (9 << 20) // len(line)
        for _ in range(many):
            send_chunk(connection, line)
            assert json.loads(reply.readline())["status"] == "classified"
        assert json.loads(reply.readline())["status"] == "classified"
        connection.send(b"0\r\n\r\n")
        assert [json.loads(rest).get("status") for rest in reply.read().splitlines()] in ([], [None])


def send_chunk(connection: http.client.HTTPSConnection, data: bytes) -> None:
    connection.send(b"%x\r\n%s\r\n" % (len(data), data))


def test_nginx_ndjson_with_a_content_length_beyond_a_body_passes(nginx: Proxy) -> None:
    """A client that keeps few lines unanswered; docs/operations.md says why it must."""
    line = json.dumps(curve(20_000)).encode() + b"\n"
    lines = 1 + (9 << 20) // len(line)
    with closing(nginx.connect()) as connection:
        connection.putrequest("POST", "/v1/classify?deadline_ms=300000")
        connection.putheader("Content-Type", "application/x-ndjson")
        connection.putheader("Content-Length", str(lines * len(line)))
        connection.endheaders()
        connection.send(line)
        reply = connection.getresponse()
        assert reply.status == 200
        for _ in range(lines - 1):
            assert json.loads(reply.readline())["status"] == "classified"
            connection.send(line)
        assert json.loads(reply.readline())["status"] == "classified"


def test_nginx_client_address_and_request_id_reach_the_service(nginx: Proxy, service: ServiceProcess) -> None:
    headers = {**JSON, "X-Request-ID": "my-id-1", "X-Forwarded-For": "6.6.6.6"}
    _, replied, _ = nginx.request("GET", "/v1/models", headers=headers, source="127.0.0.77")
    assert replied["x-request-id"] == "my-id-1"
    wait_until(lambda: "my-id-1" in service.log.read_text(), 5)
    [line] = [line for line in service.log.read_text().splitlines() if "my-id-1" in line]
    assert json.loads(line)["client"] == "127.0.0.77"
    wait_until(lambda: "my-id-1" in nginx.log.read_text(), 5)
    assert re.search(r'^127\.0\.0\.77 \[.*\] "GET /v1/models" 200 .* my-id-1$', nginx.log.read_text(), re.MULTILINE)


def test_nginx_request_id_that_is_no_token_is_replaced(nginx: Proxy) -> None:
    _, headers, _ = nginx.request("GET", "/readyz", headers={"X-Request-ID": 'a"b c'})
    assert re.fullmatch(r"[0-9a-f]{32}", headers["x-request-id"])


def test_nginx_path_prefix_serves_pages_and_redirects(service: ServiceProcess, tmp_path: Path) -> None:
    changes = {"# rewrite ^/nightjar": "rewrite ^/nightjar", "# proxy_redirect": "proxy_redirect"}
    with proxy(tmp_path / "prefix", service.port, changes) as prefixed:
        assert prefixed.request("POST", "/nightjar/v1/classify", json.dumps(curve()))[0] == 200
        for path in ("/nightjar/", "/nightjar/docs"):
            status, headers, body = prefixed.request("GET", path)
            assert (status, '="/' in body.decode()) == (200, False)  # every link is relative
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert prefixed.request("GET", "/nightjar/page/app.js")[0] == 200
        assert prefixed.request("GET", "/nightjar/metrics")[0] == 404
        status, _, _ = prefixed.request(
            "POST", "/nightjar/v1/classify", json.dumps(curve()) + "\n", {"Content-Type": "application/x-ndjson"}
        )
        assert status == 200


def test_nginx_rate_limit_counts_each_address(service: ServiceProcess, tmp_path: Path) -> None:
    changes = {"rate=100r/s": "rate=1r/m", "burst=200": "burst=3"}
    with proxy(tmp_path / "rate", service.port, changes) as limited:
        replies = [limited.request("GET", "/readyz") for _ in range(6)]
        assert [status for status, _, _ in replies] == [200] * 4 + [429] * 2
        _, headers, body = replies[-1]
        assert (headers["retry-after"], json.loads(body)["type"]) == ("1", "/problems/rate-limited")
        assert limited.request("GET", "/readyz", source="127.0.0.2")[0] == 200


def test_nginx_connection_limit_counts_each_address(service: ServiceProcess, tmp_path: Path) -> None:
    with proxy(
        tmp_path / "connections", service.port, {"limit_conn connections 64": "limit_conn connections 2"}
    ) as limited:
        with ExitStack() as stack:
            for _ in range(2):  # two requests whose bodies are on the way
                half = stack.enter_context(closing(limited.connect()))
                half.putrequest("POST", "/v1/classify")
                half.putheader("Content-Length", "100")
                half.endheaders()
                half.send(b"{")
            wait_until(lambda: limited.request("GET", "/readyz")[0] == 429)
            assert limited.request("GET", "/readyz", source="127.0.0.2")[0] == 200
        wait_until(lambda: limited.request("GET", "/readyz")[0] == 200)


@pytest.mark.parametrize(
    ("start", "timeout"),
    [
        (b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", "client_header_timeout 10s"),
        (b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", "client_body_timeout   30s"),
    ],
    ids=["headers", "body"],
)
def test_nginx_slow_client_is_disconnected(service: ServiceProcess, tmp_path: Path, start: bytes, timeout: str) -> None:
    shorter = re.sub(r"\d+s", "1s", timeout)
    with proxy(tmp_path / "slow", service.port, {timeout: shorter}) as quick, closing(quick.tls_socket()) as slow:
        slow.sendall(start)
        began = time.monotonic()
        try:
            while slow.recv(4096):
                pass
        except OSError:
            pass  # reset_timedout_connection
        assert time.monotonic() - began < 15


def test_nginx_flood_of_idle_and_slow_connections_leaves_others_served(nginx: Proxy, service: ServiceProcess) -> None:
    starts = (
        b"",
        b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    )
    hello = b"\x16\x03\x01\x02\x00\x01"  # the beginning of a TLS handshake that never goes on
    with ExitStack() as stack:
        for number in range(FLOOD):
            idle = stack.enter_context(closing(socket.create_connection((HOST, nginx.port), timeout=30)))
            idle.sendall(hello if number % 2 else b"")
        for number in range(60):  # as many whole connections as one address may have with requests
            slow = stack.enter_context(closing(nginx.tls_socket()))
            slow.sendall(starts[number % 3])
        for _ in range(20):
            began = time.monotonic()
            status, _, _ = nginx.request("POST", "/v1/classify", json.dumps(curve()), source="127.0.0.2")
            assert status == 200
            assert time.monotonic() - began < 10
        assert service.get("/readyz") == 200
