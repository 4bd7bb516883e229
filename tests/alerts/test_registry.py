"""The registry's client against a real HTTP server that misbehaves on demand."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nightjar_alerts.alerts.packet import PacketError, RejectReason
from nightjar_alerts.alerts.schema_registry import (
    MAX_REMEMBERED,
    RETRY_SECONDS,
    UNKNOWN_SECONDS,
    SchemaRegistry,
    SchemaUnavailableError,
)
from nightjar_alerts.models.limits import MAX_SCHEMA_BYTES
from support import alerts


class Fake(ThreadingHTTPServer):
    """A schema registry: what it holds, what was asked of it, and a status to answer everything with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.credentials: list[str | None] = []
        self.broken: int | None = None
        self.location = ""
        self.slow: set[str] = set()
        self.begun, self.go_on = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def hold(self, schema_id: int, name: str) -> None:
        text = json.dumps(alerts.schema(name))
        self.replies[f"/schemas/ids/{schema_id}"] = json.dumps({"schema": text}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Fake

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.credentials.append(self.headers.get("Authorization"))
        body = self.server.replies.get(self.path)
        if self.path in self.server.slow:
            self.server.begun.set()
            self.server.go_on.wait(5)
        self.send_response(self.server.broken or (200 if body else 404))
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(body or b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Fake]:
    server = Fake()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_schema_is_fetched_once(registry: Fake) -> None:
    registry.hold(17, "lsst/11.1")
    schemas = SchemaRegistry(registry.url + "/")
    assert schemas.plan(17).version == "11.1"
    assert schemas.plan(17) is schemas.plan(17)
    assert registry.requests == ["/schemas/ids/17"]


def test_the_next_process_reads_it_from_disk(registry: Fake, tmp_path: Path) -> None:
    registry.hold(17, "ztf/4.02")
    SchemaRegistry(registry.url, tmp_path / "new").plan(17)
    registry.broken = 500
    assert SchemaRegistry(registry.url, tmp_path / "new").plan(17).survey.name == "ztf"
    assert len(registry.requests) == 1


def test_a_file_that_was_cut_is_fetched_again(registry: Fake, tmp_path: Path) -> None:
    registry.hold(17, "ztf/4.02")
    (tmp_path / "17.avsc").write_text('{"type": "rec')
    assert SchemaRegistry(registry.url, tmp_path).plan(17).survey.name == "ztf"
    assert SchemaRegistry(None if not registry.requests else registry.url, tmp_path).plan(17).survey.name == "ztf"
    assert len(registry.requests) == 1


def test_a_disk_that_takes_nothing_costs_only_the_cache(registry: Fake, tmp_path: Path) -> None:
    registry.hold(17, "ztf/4.02")
    (tmp_path / "file").write_text("in the way")
    assert SchemaRegistry(registry.url, tmp_path / "file" / "cache").plan(17).survey.name == "ztf"


def test_an_unknown_id_is_asked_for_once(registry: Fake) -> None:
    schemas = SchemaRegistry(registry.url)
    for _ in range(3):
        with pytest.raises(PacketError, match="schema id 70400: the registry does not know it") as caught:
            schemas.plan(70_400)
        assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA
    assert len(registry.requests) == 1


def test_ids_of_strangers_do_not_fill_the_memory(registry: Fake) -> None:
    schemas = SchemaRegistry()
    good = schemas.plan(704)
    for schema_id in range(50_000, 50_000 + 2 * MAX_REMEMBERED):
        with pytest.raises(PacketError):
            schemas.plan(schema_id)
    assert len(schemas._errors) == MAX_REMEMBERED
    assert not schemas._locks
    assert schemas.plan(704) is good


def test_an_unknown_id_is_asked_for_again_after_a_minute(registry: Fake) -> None:
    now = [0.0]
    schemas = SchemaRegistry(registry.url, clock=lambda: now[0])
    for seconds in (0.0, 0.9 * UNKNOWN_SECONDS, 1.1 * UNKNOWN_SECONDS):
        now[0] = seconds
        with pytest.raises(PacketError):
            schemas.plan(70_400)
    assert len(registry.requests) == 2
    registry.hold(70_400, "ztf/4.02")
    now[0] = 3 * UNKNOWN_SECONDS
    assert schemas.plan(70_400).survey.name == "ztf"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_credentials_do_not_follow_a_redirect(registry: Fake, status: int) -> None:
    elsewhere = Fake()
    thread = threading.Thread(target=elsewhere.serve_forever, args=(0.01,))
    thread.start()
    try:
        registry.broken, registry.location = status, f"{elsewhere.url}/latest/meta-data/"
        with pytest.raises(SchemaUnavailableError, match=f"answered {status}"):
            SchemaRegistry(registry.url.replace("//", "//user:secret@")).plan(17)
        assert elsewhere.requests == []
    finally:
        elsewhere.shutdown()
        elsewhere.server_close()
        thread.join()


def test_a_slow_answer_for_one_id_keeps_no_other_waiting(registry: Fake) -> None:
    registry.hold(17, "ztf/4.02")
    registry.hold(18, "lsst/11.1")
    registry.slow.add("/schemas/ids/17")
    schemas = SchemaRegistry(registry.url)
    with ThreadPoolExecutor(1) as waiting:
        first = waiting.submit(schemas.plan, 17)
        registry.begun.wait(5)
        assert schemas.plan(18).version == "11.1"
        assert not first.done()
        registry.go_on.set()
        assert first.result(5).survey.name == "ztf"


def test_an_outage_is_no_answer(registry: Fake) -> None:
    registry.hold(17, "lsst/11.1")
    registry.broken = 503
    now = [0.0]
    schemas = SchemaRegistry(registry.url, clock=lambda: now[0])
    with pytest.raises(SchemaUnavailableError, match="the registry answered 503") as caught:
        schemas.plan(17)
    assert 0.5 * RETRY_SECONDS <= caught.value.retry_after <= 1.5 * RETRY_SECONDS
    with pytest.raises(SchemaUnavailableError, match="a moment ago"):
        schemas.plan(17)
    assert len(registry.requests) == 1
    registry.broken, now[0] = None, 2 * RETRY_SECONDS
    assert schemas.plan(17).version == "11.1"


def test_ids_that_nobody_could_answer_leave_nothing_behind(registry: Fake) -> None:
    """Each left a lock for good, and ids come with messages."""
    registry.hold(1, "ztf/4.02")
    schemas = SchemaRegistry(registry.url)
    schemas.plan(1)
    registry.broken = 503
    for schema_id in range(70_000, 70_050):
        with pytest.raises(SchemaUnavailableError):
            schemas.plan(schema_id)
    assert not schemas._locks


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422, 429, 500, 502, 503])
def test_registry_error_status_known_id_is_read_with_the_shipped_schema(
    registry: Fake, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    registry.broken = status
    schemas = SchemaRegistry(registry.url)
    assert (schemas.plan(1101).version, schemas.plan(704).version) == ("11.1", "7.4")
    (warning,) = caplog.records
    assert (warning.levelname, "shipped" in warning.getMessage()) == ("WARNING", True)


@pytest.mark.parametrize("reply", [b"<html>sign in</html>", b"", b"{}", b'{"schema": 5}', b"\xff\xfe"])
def test_registry_reply_without_schema_known_id_is_read_with_the_shipped_schema(registry: Fake, reply: bytes) -> None:
    registry.replies["/schemas/ids/1101"] = reply
    assert SchemaRegistry(registry.url).plan(1101).version == "11.1"


def test_registry_that_answers_slowly_known_id_is_read_with_the_shipped_schema(
    registry: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightjar_alerts.alerts.schema_registry.TIMEOUT_SECONDS", 0.3)
    registry.slow.add("/schemas/ids/1101")
    assert SchemaRegistry(registry.url).plan(1101).version == "11.1"
    registry.go_on.set()


def test_registry_that_trickles_known_id_is_read_with_the_shipped_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.alerts.schema_registry.TIMEOUT_SECONDS", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    thread = threading.Thread(target=trickle)
    thread.start()
    assert SchemaRegistry(f"http://127.0.0.1:{listener.getsockname()[1]}").plan(1101).version == "11.1"
    thread.join(10)
    listener.close()


def test_registry_schema_of_a_known_id_outranks_the_shipped_one(registry: Fake) -> None:
    registry.hold(704, "ztf/4.02")
    assert SchemaRegistry(registry.url).plan(704).survey.name == "ztf"


def test_nobody_there() -> None:
    schemas = SchemaRegistry("http://127.0.0.1:9")
    assert schemas.plan(704).version == "7.4"
    with pytest.raises(SchemaUnavailableError, match="cannot be reached"):
        schemas.plan(70_000)


def test_without_a_registry_the_schemas_at_hand_count() -> None:
    schemas = SchemaRegistry()
    assert schemas.plan(1000).version == "10.0"
    with pytest.raises(PacketError) as caught:
        schemas.plan(1299)
    assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA


@pytest.mark.parametrize(
    "reply",
    [
        b" ",
        b"{",
        b"[]",
        b'{"schema": 5}',
        b"<html>please sign in</html>",
        b'{"error_code": 50001, "message": "Error in the backend data store"}',
    ],
)
def test_registry_reply_without_a_schema_is_unavailable(registry: Fake, reply: bytes) -> None:
    registry.replies["/schemas/ids/17"] = reply
    clock = [0.0]
    schemas = SchemaRegistry(registry.url, clock=lambda: clock[0])
    with pytest.raises(SchemaUnavailableError, match="holds no schema"):
        schemas.plan(17)
    registry.hold(17, "ztf/4.02")
    clock[0] += 10.0
    assert schemas.plan(17).survey.name == "ztf"


@pytest.mark.parametrize(
    "reply",
    [
        b'{"schema": "{}", "schemaType": "PROTOBUF"}',
        b'{"schema": "{}", "references": [1]}',
        b'{"schema": "' + b" " * 4 * MAX_SCHEMA_BYTES + b'"}',
    ],
)
def test_registry_reply_with_an_unusable_schema_is_unknown(registry: Fake, reply: bytes) -> None:
    registry.replies["/schemas/ids/17"] = reply
    with pytest.raises(PacketError) as caught:
        SchemaRegistry(registry.url).plan(17)
    assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA


def test_a_schema_from_the_registry_must_be_safe(registry: Fake) -> None:
    recursive = {"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}
    registry.replies["/schemas/ids/17"] = json.dumps({"schema": json.dumps(recursive)}).encode()
    with pytest.raises(PacketError) as caught:
        SchemaRegistry(registry.url).plan(17)
    assert caught.value.reason is RejectReason.UNSAFE_SCHEMA


def test_credentials_are_sent_and_never_shown(registry: Fake) -> None:
    registry.hold(17, "lsst/11.1")
    SchemaRegistry(registry.url.replace("//", "//me:s%40cret@")).plan(17)
    assert registry.credentials == ["Basic bWU6c0BjcmV0"]
    with pytest.raises(ValueError, match="is not an http or https address") as caught:
        SchemaRegistry("ftp://me:secret@registry")
    assert "secret" not in str(caught.value)
