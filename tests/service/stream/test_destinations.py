"""A destination that rejects every record loses no alert: the worker retries and is not ready."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")

from nightjar_alerts.service.local import free_port
from nightjar_alerts.service.stream.addresses import AddressError, parse_address
from nightjar_alerts.service.stream.connectors import open_connectors
from nightjar_alerts.service.stream.messages import Record
from nightjar_alerts.service.stream.redis_streams import GROUP, RETURNED, RedisSink, RedisSource
from support.redis import RedisServer, needs_redis, redis_server
from support.stream import alert, chosen, dead_letters, eventually, results, running

pytestmark = [pytest.mark.slow, needs_redis]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(
    not has_ipv6(), reason="this machine has no IPv6 loopback (sysctl net.ipv6.conf.lo.disable_ipv6=0)"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def client(server: RedisServer, **options: Any) -> Any:
    return redis.Redis(port=server.port, protocol=2, **options)


def address(server: RedisServer, stream: str, options: str = "", login: str = "") -> str:
    return f"redis://{login}127.0.0.1:{server.port}/{stream}{options}"


def feed(server: RedisServer, *values: bytes) -> None:
    for value in values:
        client(server).xadd("alerts", {"value": value})


def without_replicas(other: Any) -> Callable[[], object]:
    other.config_set("min-replicas-to-write", 1)
    return lambda: other.config_set("min-replicas-to-write", 0)


def wrong_type(other: Any) -> Callable[[], object]:
    other.set("results", "x")
    return lambda: other.delete("results")


def no_permission(other: Any) -> Callable[[], object]:
    other.execute_command("ACL", "SETUSER", "default", "-xadd")
    return lambda: other.execute_command("ACL", "SETUSER", "default", "+xadd")


def out_of_memory(other: Any) -> Callable[[], object]:
    other.config_set("maxmemory", "1")
    return lambda: other.config_set("maxmemory", "0")


def read_only(other: Any) -> Callable[[], object]:
    other.replicaof("127.0.0.1", "1")
    return lambda: other.replicaof("NO", "ONE")


def misconfigured(other: Any) -> Callable[[], object]:
    snapshot = Path(other.config_get("dir")["dir"], "dump.rdb")
    snapshot.mkdir()  # no snapshot can be written there
    other.config_set("save", "3600 1")
    other.bgsave()
    eventually(lambda: other.info("persistence")["rdb_last_bgsave_status"] == "err")

    def repair() -> None:
        snapshot.rmdir()
        other.save()

    return repair


REFUSALS: dict[str, tuple[Callable[[Any], Callable[[], object]], str]] = {
    "NOREPLICAS": (without_replicas, "NOREPLICAS"),
    "WRONGTYPE": (wrong_type, "WRONGTYPE"),
    "NOPERM": (no_permission, "permission"),
    "OOM": (out_of_memory, "memory"),
    "READONLY": (read_only, "read only"),
    "MISCONF": (misconfigured, "MISCONF"),
}


@pytest.mark.parametrize("place", ["sink", "dead_letters"])
@pytest.mark.parametrize("name", REFUSALS)
def test_redis_destination_that_rejects_is_retried(name: str, place: str, server: RedisServer, tmp_path: Path) -> None:
    begin, text = REFUSALS[name]
    feed(server, alert(1), alert(2), b"junk")
    (tmp_path / "other").mkdir()
    with redis_server(tmp_path / "other") as other_server:
        other = client(other_server)
        repair = begin(other)
        ends = {"source": address(server, "alerts"), place: address(other_server, "results")}
        with running(chosen(tmp_path, retry_auth_errors=True, **ends)) as worker:
            eventually(lambda: text in worker.ask("/readyz")[1])
            status, reason = worker.ask("/readyz")
            assert (status, "results" in reason) == (503, True)
            repair()
            wanted = 2 if place == "sink" else 1
            eventually(lambda: other.exists("results") and other.xlen("results") == wanted)
            eventually(lambda: worker.ask("/readyz")[0] == 200)
            eventually(lambda: client(server).xpending("alerts", GROUP)["pending"] == 0)
            assert worker.stop() == 0
        totals = worker.totals()
        assert (totals["classified"], totals["dead:unknown_envelope"], totals["in"]) == (2, 1, 3)
        if place == "dead_letters":
            assert other.xrange("results")[0][1][b"value"] == b"junk"


@contextmanager
def cluster_node(folder: Path) -> Iterator[RedisServer]:
    """A node of a cluster, without slots."""
    folder.mkdir()
    bus = str(free_port())  # the default, 10,000 above the server's port, may be no port at all
    with redis_server(folder, "--cluster-enabled", "yes", "--cluster-port", bus) as node:
        yield node


def retried_until(
    repair: Callable[[], object], text: str, sink: RedisServer, options: str, server: RedisServer, folder: Path
) -> None:
    """Run a worker whose sink rejects records, repair the sink, and check that no alert was lost or dead-lettered."""
    feed(server, alert(1), alert(2))
    ends = {"source": address(server, "alerts"), "sink": address(sink, "results", options)}
    with running(chosen(folder, retry_auth_errors=True, **ends)) as worker:
        eventually(lambda: text in worker.ask("/readyz")[1])
        status, reason = worker.ask("/readyz")
        assert (status, "results" in reason) == (503, True)
        repair()
        eventually(lambda: worker.totals().get("classified") == 2)
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 2, "classified": 2, "pending": 0}
    assert dead_letters(folder) == []


@pytest.mark.parametrize(("options", "text"), [("", "CLUSTERDOWN"), ("?cluster=yes", "sink")])
def test_redis_cluster_outage_is_retried(options: str, text: str, server: RedisServer, tmp_path: Path) -> None:
    with cluster_node(tmp_path / "node") as node:

        def assign() -> None:
            client(node).execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        retried_until(assign, text, node, options, server, tmp_path)


def test_redis_moved_slot_is_retried_and_followed_in_a_cluster(server: RedisServer, tmp_path: Path) -> None:
    with cluster_node(tmp_path / "one") as one, cluster_node(tmp_path / "two") as two:
        first, second = client(one), client(two)
        second.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        bus = second.config_get("cluster-port")["cluster-port"]
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", two.port, bus)
        eventually(lambda: first.execute_command("CLUSTER INFO")["cluster_state"] == "ok")

        def move() -> None:
            slot, identity = first.cluster("KEYSLOT", "results"), first.cluster("MYID")
            for node in (second, first):
                node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity)

        retried_until(move, "MOVED", one, "", server, tmp_path)
        # The other node is asked for, which knows where the slot is.
        feed(server, alert(3))
        ends = {"source": address(server, "alerts"), "sink": address(two, "results", "?cluster=yes")}
        with running(chosen(tmp_path, **ends)) as worker:
            eventually(lambda: first.xlen("results") == 3)
            assert worker.stop() == 0


@needs_ipv6
def test_redis_at_an_ipv6_address_is_read_and_written(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--bind", "::1", "127.0.0.1") as server:
        feed(server, alert(1))
        base = f"redis://[::1]:{server.port}"
        with running(chosen(tmp_path, source=f"{base}/alerts", sink=f"{base}/results")) as worker:
            eventually(lambda: client(server).xlen("results") == 1)
            assert worker.stop() == 0


def test_redis_rejected_acknowledgement_makes_the_worker_not_ready(server: RedisServer, tmp_path: Path) -> None:
    feed(server, alert(1))
    source = address(server, "alerts")
    with running(chosen(tmp_path, source=source)) as worker:
        eventually(lambda: worker.totals().get("classified") == 1)
        client(server).execute_command("ACL", "SETUSER", "default", "-xack")
        feed(server, alert(2))
        eventually(lambda: "acknowledge" in worker.ask("/readyz")[1])
        assert worker.ask("/readyz")[0] == 503
        client(server).execute_command("ACL", "SETUSER", "default", "+xack")
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        assert worker.stop() == 0
    assert dead_letters(tmp_path) == []


def test_redis_graceful_stops_do_not_count_as_deliveries(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    feed(server, *map(alert, range(5)))
    with redis_server(tmp_path / "other") as other_server:
        other = client(other_server)
        repair = out_of_memory(other)
        ends = {"source": address(server, "alerts"), "sink": address(other_server, "results")}
        for _ in range(7):
            with running(chosen(tmp_path, drain_timeout=0, **ends)) as worker:
                eventually(lambda: "sink" in worker.ask("/readyz")[1])
                assert worker.stop() == 0
            assert worker.totals()["returned"] == 5
        repair()
        consumers = {one["name"] for one in client(server).xinfo_consumers("alerts", GROUP)}
        assert consumers == {RETURNED.encode()}
        with running(chosen(tmp_path, **ends)) as worker:
            eventually(lambda: worker.totals().get("classified") == 5)
            assert worker.stop() == 0
        assert other.xlen("results") == 5
    assert dead_letters(tmp_path) == []


def test_redis_unclean_close_counts_the_delivery(server: RedisServer) -> None:
    feed(server, b"body")
    source = RedisSource(parse_address(address(server, "alerts", "?idle=0.01")))
    (message,) = source.poll(1, 0.1)
    source.close(clean=False)
    eventually(lambda: bool(client(server).xpending_range("alerts", GROUP, "-", "+", 1, idle=10)))
    (again,) = RedisSource(parse_address(address(server, "alerts", "?idle=0.01&consumer=x"))).poll(1, 0.1)
    assert (message.deliveries, again.deliveries) == (1, 2)


SOURCE_RIGHTS = ["+xgroup", "+xreadgroup", "+xpending", "+xclaim", "+xack"]


def test_redis_user_with_the_documented_permissions_suffices(server: RedisServer, tmp_path: Path) -> None:
    rights = [*SOURCE_RIGHTS, "+xadd", "~alerts", "~results", "~dead"]
    client(server).execute_command("ACL", "SETUSER", "worker", "on", ">secret", *rights)
    feed(server, alert(1), b"junk")
    login = "worker:secret@"
    ends = {"source": "alerts", "sink": "results", "dead_letters": "dead"}
    addresses = {end: address(server, stream, login=login) for end, stream in ends.items()}
    with running(chosen(tmp_path, **addresses)) as worker:
        eventually(lambda: client(server).exists("results", "dead") == 2)
        assert worker.stop() == 0


@pytest.mark.parametrize("right", SOURCE_RIGHTS[1:])
def test_redis_source_without_a_permission_exits_and_names_it(right: str, server: RedisServer, tmp_path: Path) -> None:
    rights = [one for one in SOURCE_RIGHTS if one != right]
    client(server).execute_command("ACL", "SETUSER", "worker", "on", ">secret", *rights, "~alerts")
    source = address(server, "alerts", login="worker:secret@")
    with pytest.raises(AddressError, match=f"NIGHTJAR_SOURCE=.*not authorised.*'{right[1:]}'") as caught:
        open_connectors(chosen(tmp_path, source=source))
    assert "secret" not in str(caught.value)


def test_redis_sink_without_a_permission_exits_and_adds_nothing(server: RedisServer, tmp_path: Path) -> None:
    source, sink = address(server, "alerts"), address(server, "results")
    open_connectors(chosen(tmp_path, source=source, sink=sink))
    assert client(server).exists("results") == 0
    client(server).execute_command("ACL", "SETUSER", "default", "-xadd")
    with pytest.raises(AddressError, match=r"NIGHTJAR_SINK=.*not authorised.*'xadd'"):
        open_connectors(chosen(tmp_path, source=source, sink=sink))


def test_redis_cluster_streams_are_read_and_written(tmp_path: Path) -> None:
    with cluster_node(tmp_path / "node") as server:
        client(server).execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: client(server).execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        for number in range(4):
            client(server).xadd("alerts" if number % 2 else "more", {"value": alert(number)})
        ends = {
            "source": address(server, "alerts,more", "?cluster=yes"),
            "sink": address(server, "results", "?cluster=yes"),
        }
        with running(chosen(tmp_path, **ends)) as worker:
            eventually(lambda: client(server).xlen("results") == 4)
            assert worker.stop() == 0
        assert worker.totals() == {"in": 4, "classified": 4, "pending": 0}


@pytest.mark.parametrize("password", ["", "secret"])
def test_redis_sentinel_names_the_server(password: str, server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "sentinel").mkdir()
    configuration = tmp_path / "sentinel" / "sentinel.conf"
    lines = [f"sentinel monitor mymaster 127.0.0.1 {server.port} 1"]
    login = options = ""
    if password:
        feed(server, alert(1))
        client(server).config_set("requirepass", password)
        lines += [f"sentinel auth-pass mymaster {password}", f"requirepass {password}"]
        login, options = f":{password}@", "&sentinel_auth=yes"
    configuration.write_text("\n".join([*lines, ""]))
    with redis_server(tmp_path / "sentinel", str(configuration), "--sentinel", plain=True) as sentinel:
        if not password:
            feed(server, alert(1))
        ends = {
            "source": address(sentinel, "alerts", f"?sentinel=mymaster{options}", login),
            "sink": address(sentinel, "results", f"?sentinel=mymaster&db=1{options}", login),
        }
        with running(chosen(tmp_path, **ends)) as worker:
            eventually(lambda: client(server, db=1, password=password or None).xlen("results") == 1)
            assert worker.stop() == 0


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a CA (ca.crt) and a certificate for servers and clients (node.crt, node.key)."""
    folder = tmp_path_factory.mktemp("certificates")
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
            "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", "node.key",
            "-out", "node.csr")  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(folder, "x509", "-req", "-in", "node.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "names", "-out", "node.crt")  # fmt: skip
    return folder


def test_redis_tls_with_a_private_authority_and_client_certificates(certificates: Path, tmp_path: Path) -> None:
    files = {name: str(certificates / name) for name in ("ca.crt", "node.crt", "node.key")}
    tls = [
        "--tls-cert-file",
        files["node.crt"],
        "--tls-key-file",
        files["node.key"],
        "--tls-ca-cert-file",
        files["ca.crt"],
    ]
    with redis_server(tmp_path, *tls, tls=True) as server:
        options = f"?ssl_ca_certs={files['ca.crt']}&ssl_certfile={files['node.crt']}&ssl_keyfile={files['node.key']}"
        base = f"rediss://localhost:{server.tls_port}"
        feed(server, alert(1))
        ends = {"source": f"{base}/alerts{options}", "sink": f"{base}/results{options}"}
        with running(chosen(tmp_path, **ends)) as worker:
            eventually(lambda: client(server).xlen("results") == 1)
            assert worker.stop() == 0
        with pytest.raises(AddressError, match=r"NIGHTJAR_SOURCE=.*no TLS connection.*certificate verify failed"):
            open_connectors(chosen(tmp_path, source=f"{base}/alerts"))
        authority = f"?ssl_ca_certs={files['ca.crt']}"
        with pytest.raises(AddressError, match="no TLS connection"):  # the server asks for a client certificate
            open_connectors(chosen(tmp_path, source=f"{base}/alerts{authority}"))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("?ssl_ca_certs=/nope", "write rediss://"),
        ("?group=g&idle=soon", "idle is a number"),
        ("?delete=true", "delete is yes or no"),
        ("?cluster=yes&db=1", "only database 0"),
    ],
)
def test_redis_invalid_option_is_named(query: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=reason):
        open_connectors(chosen(tmp_path, source=f"redis://localhost/in{query}"))


def test_unwritable_dead_letter_folder_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AddressError, match=r"NIGHTJAR_DEAD_LETTERS=.*cannot be written"):
        open_connectors(chosen(tmp_path, source=f"file:{tmp_path}", dead_letters=f"file:{tmp_path}/file/"))


def test_dead_letter_folder_that_fails_later_stops_polling(server: RedisServer, tmp_path: Path) -> None:
    settings = chosen(tmp_path, source=address(server, "alerts"), batch_messages=4, max_inflight_messages=1000)
    with running(settings) as worker:
        eventually(lambda: worker.ask("/readyz")[0] == 200)
        (tmp_path / "letters").rmdir()
        (tmp_path / "letters").write_text("")
        feed(server, b"junk")
        eventually(lambda: "dead letters" in worker.ask("/readyz")[1])
        feed(server, *map(alert, range(40)))
        eventually(lambda: client(server).xlen("alerts") == 41)
        taken = worker.totals()["in"]
        (tmp_path / "letters").unlink()
        eventually(lambda: worker.totals()["in"] == 41)
        assert worker.stop() == 0
    assert taken <= 5
    assert len(results(tmp_path)) == 40
    assert len(dead_letters(tmp_path)) == 1


@pytest.mark.parametrize(
    ("source", "dead"),
    [
        ("redis://localhost/d", "redis://localhost:6379/d"),
        ("redis://localhost/d", "redis://127.0.0.1/d"),
        ("redis://localhost/a,d", "redis://localhost/d"),
        ("kafka://localhost/d", "kafka://localhost:9092/d"),
        ("kafka://a:1,b:1/d", "kafka://b:1/d"),
        ("kafka://localhost/^al.*", "kafka://localhost/alerts-dead"),
        ("file:.", "file:./"),
    ],
)
@pytest.mark.parametrize("place", ["dead_letters", "sink"])
def test_source_equal_to_a_sink_is_rejected(
    source: str, dead: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AddressError, match=f"NIGHTJAR_{place.upper()}=.*this is also the source"):
        open_connectors(chosen(tmp_path, source=source, **{place: dead}))


def test_stream_of_another_database_is_not_the_source(server: RedisServer, tmp_path: Path) -> None:
    ends = {"source": address(server, "d"), "dead_letters": address(server, "d", "?db=1")}
    open_connectors(chosen(tmp_path, **ends)).source.close()


def test_redis_sink_reports_a_missing_server_by_stream() -> None:
    (report,) = RedisSink(parse_address("redis://127.0.0.1:1/results")).publish([Record(b"k", b"v")])
    assert "stream results" in str(report)
