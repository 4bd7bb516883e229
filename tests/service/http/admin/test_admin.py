"""Admin API over real sockets: authentication, changes, listing, and Triton's client."""

import hashlib
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import tritonclient.http as triton
from pydantic import ValidationError
from tritonclient.utils import InferenceServerException

from nightjar_alerts.service.http.admin import Listing
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.http.server import Server
from nightjar_alerts.service.registry.loader import load_one
from nightjar_alerts.service.settings import Settings
from support import oip
from support.edge import HOST, Live, Network, curve, live, loader, settings, wait_until
from support.graph_bundles import classifier_bundle
from support.repository import corrupt, version

KEY = "open sesame"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


class Admin:
    """A service with an admin API, and its model repository."""

    def __init__(self, edge: Live, root: Path) -> None:
        self.edge, self.root = edge, root
        wait_until(lambda: edge.server.admin.started)  # begins to answer after the service's own server
        self.port = int(edge.server.admin.servers[0].sockets[0].getsockname()[1])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and parsed response."""
        connection = HTTPConnection(HOST, self.port, timeout=20)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        finally:
            connection.close()

    def listing(self) -> Listing:
        status, document = self.ask("GET", "/admin/models")
        assert status == 200
        return Listing.model_validate(document)

    def change(self, method: str, path: str, body: Any = None) -> Listing:
        status, document = self.ask(method, path, body)
        assert status == 200, document
        return Listing.model_validate(document)

    def answers(self, model: str = "mine", **changes: Any) -> dict[str, Any]:
        """Return the name of the model that serves a request on the public port."""
        status, reply = self.edge.post(f"/v1/classify?model={model}", curve(**changes))
        assert status == 200, reply
        found: dict[str, Any] = reply["model"]
        return found


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    root = tmp_path / "bundles"
    version(root, "1.0.0", 1.0)
    bundle = classifier_bundle(tmp_path / "default", name="first").path
    with live(load_one, bundle=bundle, repository=root, admin_port=0, workers=1) as edge:
        yield Admin(edge, root)


def test_admin_without_setting_does_not_listen(edge: Live) -> None:
    assert edge.server.admin.started is False
    for path in ("/admin/models", "/admin/reload", "/v2/repository/index"):
        assert [edge.ask(method, path)[0] for method in ("GET", "POST")] == [404, 404]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_admin_on_other_address_requires_keys(host: str) -> None:
    with pytest.raises(ValidationError, match="requires admin_keys"):
        Settings(admin_port=1, admin_host=host)
    Settings(admin_port=1, admin_host=host, admin_keys=(DIGEST,))
    Settings(admin_host=host)


def test_admin_address_in_use_exits_with_1() -> None:
    with socket.create_server((HOST, 0)) as taken:
        chosen = settings(admin_port=taken.getsockname()[1])
        server = Server(Service(chosen, loader(Network())))
        server.run()
    assert server.exit_status == 1


def test_admin_keys_are_not_those_of_the_service() -> None:
    public = hashlib.sha256(b"public").hexdigest()
    with live(loader(Network()), admin_port=0, admin_keys=(DIGEST,), api_keys=(public,)) as edge:
        asked = Admin(edge, Path())
        refused: list[dict[str, str]] = [
            {"authorization": "Bearer public"},
            {"x_api_key": DIGEST},
            {"x_api_key": ""},
            {},
        ]
        for headers in refused:
            for path in ("/admin/models", "/v2/repository/index", "/nowhere"):
                status, problem = asked.ask("GET", path, **headers)
                assert (status, problem["type"]) == (401, "/problems/unauthorized")
        assert asked.ask("GET", "/admin/models", authorization=f"Bearer {KEY}")[0] == 200
        assert asked.ask("GET", "/admin/models", x_api_key=KEY)[0] == 200
        assert edge.ask("GET", "/v1/models", headers={"X-API-Key": KEY})[0] == 401


def test_admin_request_of_a_web_page_is_rejected(admin: Admin) -> None:
    status, problem = admin.ask("POST", "/v2/repository/models/mine/unload", origin="http://evil.example")
    assert (status, problem["type"]) == (403, "/problems/forbidden")
    assert admin.ask("GET", "/admin/models", origin="http://evil.example")[0] == 403
    assert admin.answers()["version"] == "1.0.0"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:1", "10.0.0.1"])
def test_admin_dns_rebinding_is_rejected(admin: Admin, host: str) -> None:
    """A page can send requests without Origin to its own host name, which may resolve to loopback (DNS rebinding)."""
    assert admin.ask("GET", "/admin/models", host=host)[0] == 403
    for here in ("localhost:80", "127.0.0.1", "[::1]:8080"):
        assert admin.ask("GET", "/admin/models", host=here)[0] == 200


def test_admin_unix_socket_is_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with live(loader(Network()), admin_socket=path):
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /admin/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
    assert not path.exists()


def test_admin_models_lists_everything(admin: Admin) -> None:
    version(admin.root, "0.9.0")
    (admin.root / "half").mkdir()
    (admin.root / "half" / "manifest.json").write_text("{")
    listed = admin.change("POST", "/admin/reload")
    assert {(m.name, m.version, m.state, tuple(m.aliases)) for m in listed.models} == {
        ("first", "0.0.1", "serving", ("default",)),
        ("mine", "1.0.0", "serving", ()),
    }
    assert [(found.name, found.version) for found in listed.available] == [("mine", "0.9.0")]
    assert [failure.path.rsplit("/", 1)[1] for failure in listed.failures] == ["half"]
    ready = json.loads(admin.edge.ask("GET", "/readyz")[2])
    assert ready == {"status": "ready", "models": ["first@0.0.1", "mine@1.0.0"], "not_loaded": ["half"]}
    described = json.loads(admin.edge.ask("GET", "/v1/models")[2])["models"]
    assert [(m["name"], m["version"], m["aliases"]) for m in described] == [
        ("first", "0.0.1", ["default"]),
        ("mine", "1.0.0", []),
    ]


def test_admin_load_rollback_and_unload_change_the_version(admin: Admin) -> None:
    version(admin.root, "1.1.0", 2.0)
    admin.change("POST", "/admin/models/mine/load")
    assert admin.answers()["version"] == "1.1.0"
    admin.change("POST", "/admin/models/mine/rollback")
    assert admin.answers()["version"] == "1.0.0"
    admin.change("POST", "/admin/models/mine/load", {"version": "1.1.0"})
    assert admin.answers()["version"] == "1.1.0"
    admin.change("PUT", "/admin/aliases/ztf", {"model": "mine@1.1.0"})
    assert admin.answers("ztf")["name"] == "mine"
    assert admin.ask("POST", "/admin/models/mine/unload")[0] == 409
    admin.change("DELETE", "/admin/aliases/ztf")
    admin.change("POST", "/admin/models/mine/unload")
    status, problem = admin.edge.post("/v1/classify?model=mine", curve())
    assert (status, problem["type"]) == (404, "/problems/not-found")


def test_admin_load_corrupt_bundle_keeps_the_old_version(admin: Admin) -> None:
    corrupt(version(admin.root, "1.1.0", 2.0).path)
    status, problem = admin.ask("POST", "/admin/models/mine/load")
    assert (status, problem["type"]) == (409, "/problems/conflict")
    assert "sha256" in problem["detail"]
    assert admin.answers()["version"] == "1.0.0"
    assert admin.listing().failures[0].version == "1.1.0"
    assert json.loads(admin.edge.ask("GET", "/readyz")[2])["not_loaded"] == ["mine@1.1.0"]


def test_admin_canary_keeps_its_objects(admin: Admin) -> None:
    version(admin.root, "1.1.0", 2.0)
    listed = admin.change("PUT", "/admin/models/mine/canary", {"version": "1.1.0", "percent": 40})
    assert listed.canaries["mine"].percent == 40
    names = [f"ZTF26{i}" for i in range(30)]
    first = [admin.answers(object_id=name) for name in names]
    assert {(model["version"], model.get("role")) for model in first} == {("1.0.0", None), ("1.1.0", "canary")}
    assert [admin.answers(object_id=name) for name in names] == first
    assert admin.change("DELETE", "/admin/models/mine/canary").canaries == {}


def test_admin_shadow_is_compared(admin: Admin) -> None:
    version(admin.root, "1.1.0", 1.0, created="later")
    admin.change("PUT", "/admin/models/mine/shadow", {"model": "mine@1.1.0"})
    for _ in range(200):
        admin.answers()
        if (seen := admin.listing().shadows["mine"]).compared:
            break
    assert (seen.model, seen.share, seen.agreement, seen.mean_distance) == ("mine@1.1.0", 1.0, 1.0, 0.0)
    assert admin.change("DELETE", "/admin/models/mine/shadow").shadows == {}


def test_rollback_in_a_fresh_process_pins_the_older_version(admin: Admin) -> None:
    version(admin.root, "0.9.0", 2.0)
    version(admin.root, "0.8.0", 3.0)
    listed = admin.change("POST", "/admin/models/mine/rollback")
    assert (admin.answers()["version"], listed.pins) == ("0.9.0", {"mine": "0.9.0"})
    assert admin.change("PUT", "/admin/models/mine/pin", {"version": "0.8.0"}).pins == {"mine": "0.8.0"}
    assert admin.change("POST", "/admin/reload").pins == {"mine": "0.8.0"}
    assert admin.answers()["version"] == "0.8.0"
    assert admin.change("DELETE", "/admin/models/mine/pin").pins == {}
    admin.change("POST", "/admin/reload")
    assert admin.answers()["version"] == "1.0.0"
    assert json.loads((admin.root / "pins.json").read_text()) == {}


def test_rollback_pins_file_cannot_be_written_answers_409(admin: Admin) -> None:
    version(admin.root, "0.9.0", 2.0)
    (admin.root / "pins.json").mkdir()
    before = admin.listing()
    for method, path, body in (
        ("POST", "/admin/models/mine/rollback", None),
        ("PUT", "/admin/models/mine/pin", {"version": "0.9.0"}),
    ):
        status, problem = admin.ask(method, path, body)
        assert (status, problem["type"]) == (409, "/problems/conflict")
        assert "pins.json" in problem["detail"]
    after = admin.listing()
    assert ([model for model in after.models if model.state == "serving"], after.pins) == (before.models, {})
    assert admin.answers()["version"] == "1.0.0"


def test_body_cut_off_by_disconnect_changes_nothing(admin: Admin) -> None:
    """An empty body would unload every version."""
    with structlog.testing.capture_logs() as lines:
        for sent in (b"", b'{"vers'):
            with socket.create_connection((HOST, admin.port)) as connection:
                head = b"POST /admin/models/mine/unload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n"
                connection.sendall(head + sent)
        assert admin.ask("PUT", "/admin/aliases/ztf", {"model": "mine"})[0] == 200  # handled after the two
    assert [line["action"] for line in lines if line["event"].startswith("admin change")] == ["set alias"]
    assert admin.answers()["version"] == "1.0.0"


def test_body_without_content_type_or_as_form_is_read_as_json(admin: Admin) -> None:
    for headers in ({}, {"content_type": "application/x-www-form-urlencoded"}, {"content_type": "text/plain"}):
        body = b'{"model": "mine", "x": 1}'
        status, problem = admin.ask("PUT", "/admin/aliases/ztf", body, **headers)
        assert (status, [error["pointer"] for error in problem["errors"]]) == (422, ["/x"])
        assert admin.ask("PUT", "/admin/aliases/ztf", b'{"model": "mine"}', **headers)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/admin/models/nobody/load", None, 404),
        ("POST", "/admin/models/mine/load", {"version": "9.9.9"}, 404),
        ("POST", "/admin/models/mine/load", {"version": "latest"}, 422),
        ("POST", "/admin/models/mine/load", {"version": "１.0.0"}, 422),
        ("POST", "/admin/models/mine/load", {"force": True}, 422),
        ("POST", "/admin/models/mine/load", b"{", 400),
        ("POST", "/admin/models/mine/load", b'{"version":' + b"[" * 900 + b"]" * 900 + b"}", 422),
        ("POST", "/admin/models/mine/load", b"[]", 422),
        ("POST", "/admin/models/mine/load", b" " * 20_000, 413),
        ("POST", "/admin/models/..%2Fmine/load", None, 404),
        ("POST", "/admin/models/first/unload", None, 409),
        ("POST", "/admin/models/mine/rollback", None, 409),
        ("POST", "/admin/models/nobody/rollback", None, 404),
        ("PUT", "/admin/models/mine/pin", {"version": "9.9.9"}, 404),
        ("PUT", "/admin/models/nobody/pin", {"version": "1.0.0"}, 404),
        ("PUT", "/admin/models/mine/pin", {}, 422),
        ("PUT", "/admin/models/mine/pin", None, 422),
        ("DELETE", "/admin/models/mine/pin", None, 404),
        ("PUT", "/admin/aliases/ztf", b"\xff", 400),
        ("PUT", "/admin/aliases/ztf", b"[" * 10_000, 400),
        ("PUT", "/admin/models/mine/canary", b'{"version": "1.1.0", "percent": NaN}', 422),
        ("PUT", "/admin/aliases/mine", {"model": "first"}, 409),
        ("PUT", "/admin/aliases/ZTF", {"model": "first"}, 404),
        ("PUT", "/admin/aliases/ztf", {"model": "../first"}, 422),
        ("DELETE", "/admin/aliases/default", None, 409),
        ("DELETE", "/admin/aliases/nobody", None, 404),
        ("PUT", "/admin/models/mine/canary", {"version": "1.0.0", "percent": 5}, 409),
        ("PUT", "/admin/models/mine/canary", {"version": "1.1.0", "percent": 0}, 422),
        ("PUT", "/admin/models/mine/shadow", {"model": "mine"}, 422),
        ("PUT", "/admin/models/mine/shadow", {"model": "mine@1.0.0", "share": 2}, 422),
        ("DELETE", "/admin/models/mine/shadow", None, 404),
        ("GET", "/admin/nowhere", None, 404),
        ("DELETE", "/admin/models", None, 405),
        ("GET", "/docs", None, 404),
        ("GET", "/openapi.json", None, 404),
    ],
)
def test_admin_rejected_change_is_a_problem_and_changes_nothing(
    refusing: Admin, method: str, path: str, body: Any, status: int
) -> None:
    before = refusing.listing()
    found, problem = refusing.ask(method, path, body)
    assert (found, problem["status"], problem["request_id"] != "") == (status, status, True)
    assert refusing.listing() == before


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("refusing")
    version(folder / "bundles", "1.0.0", 1.0)
    bundle = classifier_bundle(folder / "default", name="first").path
    with live(load_one, bundle=bundle, repository=folder / "bundles", admin_port=0, workers=1) as edge:
        yield Admin(edge, folder / "bundles")


def test_admin_changes_and_rejections_are_logged(admin: Admin) -> None:
    with structlog.testing.capture_logs() as lines:
        admin.change("PUT", "/admin/aliases/ztf", {"model": "mine"})
        admin.ask("DELETE", "/admin/aliases/default")
    told = [line for line in lines if line["event"].startswith("admin change")]
    assert [(line["event"], line["action"], line["alias"], line["peer"]) for line in told] == [
        ("admin change", "set alias", "ztf", HOST),
        ("admin change refused", "end alias", "default", HOST),
    ]


def test_admin_triton_client_is_unchanged(admin: Admin) -> None:
    client, public = triton.InferenceServerClient(f"{HOST}:{admin.port}"), oip.client(admin.edge)
    version(admin.root, "1.1.0", 2.0)
    client.load_model("mine")
    index = {(entry["name"], entry["version"]): entry["state"] for entry in client.get_model_repository_index()}
    assert index == {("first", "0.0.1"): "READY", ("mine", "1.1.0"): "READY", ("mine", "1.0.0"): "UNAVAILABLE"}
    assert public.get_model_metadata("mine")["versions"] == ["1.1.0"]
    assert public.is_model_ready("mine", "1.1.0")
    assert not public.is_model_ready("mine", "1.0.0")
    answer = public.infer("mine", oip.inputs(oip.history(1.0)), model_version="1.1.0")
    assert np.isfinite(answer.as_numpy("probabilities")).all()
    client.unload_model("mine")
    assert not public.is_model_ready("mine")
    with pytest.raises(InferenceServerException, match="no model is served as 'nobody'"):
        client.load_model("nobody")
    with pytest.raises(InferenceServerException, match="config"):
        client.load_model("mine", config="{}")
    with pytest.raises(InferenceServerException, match="aliases lead to first"):
        client.unload_model("first")
