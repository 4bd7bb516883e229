"""Files of the web pages over HTTP: types, headers, compression, caching, package data."""

import gzip
import json
import re
from pathlib import Path

import pytest

from nightjar_alerts.models.photometry import VEGA_AB_OFFSETS
from nightjar_alerts.service.http.edge.errors import MEDIA_TYPE
from nightjar_alerts.service.pages import FILES, POLICY
from support.edge import Live, Network, live, loader

PAGE = Path(__file__).resolve().parents[4] / "service" / "http" / "page"
OWN = [name for name in FILES if not name.startswith(("vendor/", "samples/"))]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/live", "text/html; charset=utf-8"),
        ("/page/app.js", "text/javascript; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
        ("/page/samples/ztf_ZTF26dqoimhj.avro", "application/octet-stream"),
    ],
)
def test_page_file_has_its_type_and_a_strict_policy(edge: Live, path: str, kind: str) -> None:
    status, headers, _ = edge.ask("GET", path)
    assert (status, headers["content-type"]) == (200, kind)
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_page_file_is_compressed_for_clients_that_take_gzip(edge: Live) -> None:
    plain = edge.ask("GET", "/page/app.js")[2]
    _, headers, body = edge.ask("GET", "/page/app.js", headers={"Accept-Encoding": "gzip, br"})
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(body) == plain == (PAGE / "app.js").read_bytes()


def test_page_file_that_the_client_has_is_not_sent_again(edge: Live) -> None:
    _, headers, _ = edge.ask("GET", "/page/app.js")
    status, again, body = edge.ask("GET", "/page/app.js", headers={"If-None-Match": headers["etag"]})
    assert (status, body, again["etag"]) == (304, b"", headers["etag"])
    assert edge.ask("GET", "/page/app.js", headers={"If-None-Match": '"other"'})[0] == 200


@pytest.mark.parametrize(
    "name",
    ["", "nothing.js", "index.html", "../settings.py", "%2e%2e/settings.py", "..%2fabout.py", "/etc/passwd", "vendor/",
     "vendor/htm-LICENSE.txt", "samples/../app.js", "samples/%00"],
)  # fmt: skip
def test_page_file_that_does_not_exist_is_not_found(edge: Live, name: str) -> None:
    status, headers, _ = edge.ask("GET", f"/page/{name}")
    assert (status, headers["content-type"]) == (404, MEDIA_TYPE)


def test_page_names_no_other_host_and_has_no_inline_script() -> None:
    for name in OWN:
        text = FILES[name].read_text()
        hosts = set(re.findall(r"https?://([^/\"'`\s]+)", text)) - {"www.w3.org"}  # the name space of SVG
        assert (name, hosts) == (name, set())
        assert not re.search(r"\sstyle=\"|\son[a-z]+=\"|<script>|javascript:|innerHTML|\beval\(", text), name


def test_page_preloads_every_module_of_the_page() -> None:
    """Without preloading, a module is requested only after the one that imports it."""
    html = (PAGE / "index.html").read_text()
    reached, waiting = set(), ["app.js"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        imports = re.findall(r'^import .*? from "\./(.+?)";', (PAGE / name).read_text(), re.MULTILINE | re.DOTALL)
        waiting += [each for each in imports if each not in reached]
    preloaded = set(re.findall(r'rel="modulepreload" href="page/(.+?)"', html))
    assert preloaded | {"app.js"} == reached


def test_page_offers_every_sample() -> None:
    listed = re.findall(r'\["(\S+\.avro)",', (PAGE / "samples.js").read_text())
    assert sorted(listed) == sorted(name.removeprefix("samples/") for name in FILES if name.startswith("samples/"))


def test_page_vega_zero_points_are_those_of_the_service() -> None:
    text = (PAGE / "photometry.js").read_text()
    members = re.search(r"const VEGA = \{(.*?)\};", text, re.DOTALL)
    assert members is not None
    found = {name: float(value) for name, value in re.findall(r"(\w+): (-?[\d.]+)", members[1])}
    assert found == {**VEGA_AB_OFFSETS, "y": VEGA_AB_OFFSETS["Y"]}


def test_page_vendored_libraries_have_their_licences() -> None:
    vendor = PAGE / "vendor"
    libraries = {path.relative_to(vendor).parts[0] for path in vendor.rglob("*.js")}
    assert libraries == {"htm-preact-standalone-3.1.1.js", "swagger-ui-5.35.0"}
    for licence in ("htm-LICENSE.txt", "preact-LICENSE.txt", "swagger-ui-5.35.0/LICENSE"):
        assert "Licen" in (vendor / licence).read_text()


def test_docs_describe_the_document_of_the_service(edge: Live) -> None:
    page = edge.ask("GET", "/docs")[2].decode()
    assert "swagger-ui-bundle.js" in page
    assert 'load("openapi.json")' in edge.ask("GET", "/page/docs.js")[2].decode()
    assert "/v1/classify" in json.loads(edge.ask("GET", "/openapi.json")[2])["paths"]


def test_page_needs_a_key_where_the_setting_says_so() -> None:
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"  # of "foo"
    with live(loader(Network()), api_keys=(digest,), protected_paths=("docs",)) as edge:
        paths = ("/", "/docs", "/page/app.js")
        assert [edge.ask("GET", path)[0] for path in paths] == [401] * 3
        assert [edge.ask("GET", path, headers={"X-API-Key": "foo"})[0] for path in paths] == [200] * 3
