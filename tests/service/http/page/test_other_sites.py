"""A page of another site in a real browser: DNS rebinding and cross-site requests to a service and a worker."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.probes import Probes
from support.edge import HOST, Live, Network, curve, live, loader

from .conftest import SECONDS, Launch

pytestmark = pytest.mark.slow

FETCH = """async ([url, options]) => {
  try { return (await fetch(url, options)).status } catch (error) { return String(error) }
}"""
TABLE = "object_id,mjd,band,flux,flux_err\na,60000,r,900,30\na,60001,g,990,30\n"


@pytest.fixture(scope="module")
def browser(launch: Launch) -> Iterator[Browser]:
    """Chromium for which every name of evil.example is this machine."""
    # Chromium's own protection of local networks is off: that of the service is tested.
    with launch(
        f"--host-resolver-rules=MAP *.example {HOST}",
        "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessRespectPreflightResults",
    ) as launched:
        yield launched


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(1000 * SECONDS)
        yield context.new_page()


@pytest.fixture(scope="module")
def edge() -> Iterator[Live]:
    with live(loader(Network())) as edge:
        yield edge


@pytest.fixture(scope="module")
def evil() -> Iterator[str]:
    """A site that has one page: it is empty."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield f"http://evil.example:{server.server_port}"
        server.shutdown()


def classified(edge: Live) -> float:
    return edge.metric("nightjar_key_requests_total", key="anonymous")


def test_page_whose_name_resolves_to_the_service_reads_nothing(page: Page, edge: Live) -> None:
    """After rebinding, the service is of the same origin as the page: no rule of the browser protects it."""
    before = classified(edge)
    reply = page.goto(f"http://evil.example:{edge.port}/")
    assert reply is not None
    assert (reply.status, reply.json()["type"]) == (403, "/problems/forbidden")
    post = {"method": "POST", "body": json.dumps(curve()), "headers": {"Content-Type": "application/json"}}
    for path, options in (("/metrics", {}), ("/v1/models", {}), ("/v1/classify", post)):
        assert page.evaluate(FETCH, [path, options]) == 403
    assert classified(edge) == before


def test_page_whose_name_resolves_to_the_worker_reads_nothing(page: Page) -> None:
    with closing(Probes(HOST, 0, Metrics(), lambda: "", lambda: "")) as probes:
        reply = page.goto(f"http://evil.example:{probes.port}/metrics")
        assert reply is not None
        assert reply.status == 403
        assert page.evaluate(FETCH, ["/healthz", {}]) == 403


@pytest.mark.parametrize("encoding", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/alerts", "/v1/tables"])
def test_form_of_another_site_is_refused(page: Page, edge: Live, evil: str, path: str, encoding: str) -> None:
    before, refused = classified(edge), edge.metric("nightjar_rejected_total", reason="forbidden")
    page.goto(evil)
    action = f"http://{HOST}:{edge.port}{path}"
    page.set_content(f"<form method=post enctype={encoding} action={action}><textarea name=x></textarea></form>")
    page.fill("textarea", TABLE)
    with page.expect_navigation() as navigation:
        page.evaluate("document.forms[0].submit()")
    assert navigation.value.status == 403
    assert navigation.value.request.header_value("origin") == evil
    assert edge.metric("nightjar_rejected_total", reason="forbidden") == refused + 1
    assert classified(edge) == before


def test_form_of_a_page_without_an_origin_is_refused(page: Page, edge: Live) -> None:
    """A ``data:`` URL sends ``Origin: null``."""
    form = f"<form method=post enctype=text/plain action=http://{HOST}:{edge.port}/v1/tables><textarea name=x></form>"
    page.goto(f"data:text/html,{form}")
    with page.expect_navigation() as navigation:
        page.evaluate("document.forms[0].submit()")
    assert navigation.value.status == 403


def test_script_of_another_site_is_refused(page: Page, edge: Live, evil: str) -> None:
    """Without CORS it does not see the status, but a request without a preflight arrives."""
    before, refused = classified(edge), edge.metric("nightjar_rejected_total", reason="forbidden")
    page.goto(evil)
    url = f"http://{HOST}:{edge.port}/v1/tables"
    assert page.evaluate(FETCH, [url, {"method": "POST", "body": TABLE, "mode": "no-cors"}]) == 0
    assert "TypeError" in page.evaluate(FETCH, [url, {"method": "POST", "body": TABLE}])
    json_post = {"method": "POST", "body": "{}", "headers": {"Content-Type": "application/json"}}
    assert "TypeError" in page.evaluate(FETCH, [url, json_post])  # ends with the preflight
    assert edge.metric("nightjar_rejected_total", reason="forbidden") == refused + 2
    assert classified(edge) == before


def test_page_of_the_service_by_an_allowed_name_classifies(page: Page) -> None:
    with live(loader(Network()), allowed_hosts="nightjar.example") as edge:
        page.goto(f"http://nightjar.example:{edge.port}/")
        post = {"method": "POST", "body": json.dumps(curve()), "headers": {"Content-Type": "application/json"}}
        assert page.evaluate(FETCH, ["/v1/classify", post]) == 200
