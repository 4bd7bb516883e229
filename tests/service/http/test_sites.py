"""Host, Origin and Sec-Fetch-Site of requests to a service without API keys."""

import hashlib
import json
import socket
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from nightjar_alerts.service.settings import Settings
from support.edge import HOST, Live, Network, curve, live, loader, outside_address, receive_all

BODY = json.dumps(curve()).encode()
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network()), allowed_hosts="Service, *.example.org, [fd00::7]") as edge:
        yield edge


OWN = [
    "localhost", "LOCALHOST:8080", "localhost.", "nightjar.localhost:1", "127.0.0.1:80", "127.8.9.1", "[::1]:8080",
    "[::ffff:127.0.0.1]", "service", "service:8080", "a.example.org", "b.a.Example.Org.:443", "[fd00::7]:1",
    "[FD00:0::7]", socket.gethostname(), f"{socket.gethostname()}:8080",
]  # fmt: skip
OTHER = [
    "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "example.org",
    "evilexample.org", "service.evil.example", "xlocalhost", "10.0.0.1", "0.0.0.0", "[::]", "[::2]:1", "[fd00::8]",
    "localhost@evil.example", "localhost:80:80", "localhost:x", "localhost, evil.example", "[localhost]", "[::1", "::1",
    "localhost/evil", "127.0.0.1%evil.example", "http://localhost", "", ":80", "a" * 300,
]  # fmt: skip


@pytest.mark.parametrize("host", OWN)
def test_host_of_this_server_is_accepted(edge: Live, host: str) -> None:
    assert edge.ask("GET", "/metrics", headers={"Host": host})[0] == 200
    assert edge.ask("POST", "/v1/classify", BODY, JSON | {"Host": host})[0] == 200


@pytest.mark.parametrize("host", OTHER)
def test_host_of_another_name_is_refused(edge: Live, host: str) -> None:
    """Whatever is asked: a page whose name resolves to this machine could read the response."""
    for method, path in (("GET", "/metrics"), ("GET", "/healthz"), ("GET", "/"), ("OPTIONS", "/v1/classify")):
        status, _, body = edge.ask(method, path, headers={"Host": host})
        assert (status, json.loads(body)["type"]) == (403, "/problems/forbidden")
    assert edge.ask("POST", "/v1/classify", BODY, JSON | {"Host": host})[0] == 403


def test_host_that_is_refused_is_named_with_the_setting(edge: Live) -> None:
    problem = json.loads(edge.ask("GET", "/", headers={"Host": "nightjar.example.com:8080"})[2])
    assert problem["detail"] == (
        "the host name 'nightjar.example.com' is not known: "
        "if it is one of this server, add it to NIGHTJAR_ALLOWED_HOSTS"
    )


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"POST /v1/classify HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n", 403),
    ],
)
def test_host_missing_or_elsewhere_gets_a_fixed_status(edge: Live, head: bytes, status: int) -> None:
    with edge.connect() as connection:
        connection.sendall(head)
        assert int(receive_all(connection).split(b" ", 2)[1]) == status


def test_host_is_the_address_of_the_connection_is_accepted() -> None:
    """As the kubelet probes a pod, and Prometheus scrapes it."""
    address = outside_address()
    with live(loader(Network()), host="0.0.0.0") as edge:
        with socket.create_connection((address, edge.port), timeout=20) as probe:
            probe.sendall(f"GET /readyz HTTP/1.1\r\nHost: {address}:{edge.port}\r\nConnection: close\r\n\r\n".encode())
            assert receive_all(probe).startswith(b"HTTP/1.1 200")
        assert edge.ask("GET", "/readyz", headers={"Host": address})[0] == 403  # arrives at loopback


SAME = [
    {},
    {"Origin": "http://localhost:8080"},
    {"Origin": "http://LOCALHOST:8080", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "null", "Sec-Fetch-Site": "same-origin"},  # of a page that hides its origin
]
CROSS = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:8081"},
    {"Origin": "http://localhost"},
    {"Origin": "http://localhost:8080.evil.example"},
    {"Origin": "http://localhost:8080@evil.example"},
    {"Origin": "chrome-extension://localhost:8080"},
    {"Origin": "http://127.0.0.1:8080"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:8080"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
]


@pytest.mark.parametrize("headers", SAME)
def test_request_of_the_same_origin_is_accepted(edge: Live, headers: dict[str, str]) -> None:
    assert edge.ask("POST", "/v1/classify", BODY, JSON | {"Host": "localhost:8080"} | headers)[0] == 200


@pytest.mark.parametrize("headers", CROSS)
def test_request_of_another_site_may_only_read(edge: Live, headers: dict[str, str]) -> None:
    headers |= {"Host": "localhost:8080"}
    before = edge.metric("nightjar_rejected_total", reason="forbidden")
    for path in ("/v1/classify", "/v1/alerts", "/v1/tables", "/v2/models/echo/infer", "/nowhere"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "FORM"):
            assert edge.ask(method, path, BODY, JSON | headers)[0] == 403
    assert edge.metric("nightjar_rejected_total", reason="forbidden") == before + 4 * 5
    for method in ("GET", "HEAD"):
        assert edge.ask(method, "/v1/models", headers=headers)[0] == 200
    assert edge.ask("OPTIONS", "/v1/classify", headers=headers)[0] == 204


@pytest.mark.parametrize(("host", "origin"), [("b.example.org", "https"), ("b.example.org:443", "https")])
def test_request_through_a_proxy_with_tls_is_of_the_same_origin(edge: Live, host: str, origin: str) -> None:
    headers = {"Host": host, "Origin": f"{origin}://b.example.org", "X-Forwarded-Proto": "https"}
    assert edge.ask("POST", "/v1/classify", BODY, JSON | headers)[0] == 200


def test_request_of_an_origin_with_cors_is_accepted() -> None:
    origins = ("https://broker.example",)
    with live(loader(Network()), cors_origins=origins) as edge:
        headers = {"Origin": origins[0], "Sec-Fetch-Site": "cross-site"}
        status, replied, _ = edge.ask("POST", "/v1/classify", BODY, JSON | headers)
        assert (status, replied["access-control-allow-origin"]) == (200, origins[0])
        assert edge.ask("POST", "/v1/classify", BODY, JSON | headers | {"Host": "evil.example"})[0] == 403
        assert edge.ask("POST", "/v1/classify", BODY, JSON | {"Origin": "https://broker.example.org"})[0] == 403
    with live(loader(Network()), cors_origins=("*",)) as edge:
        assert (
            edge.ask("POST", "/v1/classify", BODY, JSON | {"Origin": "null", "Sec-Fetch-Site": "cross-site"})[0] == 200
        )


@pytest.mark.parametrize("origins", [(), ("https://broker.example",)])
def test_preflight_for_a_private_network_is_not_granted(origins: tuple[str, ...]) -> None:
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    with live(loader(Network()), cors_origins=origins) as edge:
        for origin in ("https://evil.example", *origins):
            headers = preflight | {"Origin": origin, "Access-Control-Request-Private-Network": "true"}
            assert "access-control-allow-private-network" not in edge.ask("OPTIONS", "/v1/classify", headers=headers)[1]


def test_request_with_api_key_is_not_checked() -> None:
    """A page does not have the key, and browsers do not add it."""
    digest = hashlib.sha256(b"key").hexdigest()
    with live(loader(Network()), api_keys=(digest,)) as edge:
        headers = JSON | {"Host": "nightjar.example", "Origin": "https://portal.example"}
        assert edge.ask("POST", "/v1/classify", BODY, headers | {"X-API-Key": "key"})[0] == 200
        assert edge.ask("POST", "/v1/classify", BODY, headers)[0] == 401


def test_allowed_hosts_are_written_in_their_usual_form() -> None:
    given = " Nightjar.Example., *.EXAMPLE.org,, 192.0.2.7 ,[FD00::0:7],::ffff:10.0.0.1"
    assert Settings(allowed_hosts=given).allowed_hosts == "nightjar.example,*.example.org,192.0.2.7,fd00::7,10.0.0.1"


@pytest.mark.parametrize(
    "given", ["*", "*.", "a b", "http://a", "a:80", "a/b", "10.0.0.0/8", "a,*", "[a]", "é", "a\nb"]
)
def test_allowed_hosts_that_are_no_names_are_rejected(given: str) -> None:
    with pytest.raises(ValidationError, match="is not a host name or address"):
        Settings(allowed_hosts=given)


def test_service_on_loopback_is_checked_as_well(edge: Live) -> None:
    assert edge.service.settings.host == HOST
    assert edge.ask("GET", "/metrics", headers={"Host": "evil.example"})[0] == 403
