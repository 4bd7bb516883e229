from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import Address, AddressError, parse_address
from nightjar_alerts.service.stream.connectors import kafka_properties, open_dead_letters, open_sink, open_source
from nightjar_alerts.service.stream.files import FolderSink, LinesSink


def test_an_address_in_parts() -> None:
    address = parse_address("kafka://a:9092,b:9092/lsst-alerts-v11,ztf?group=g&security.protocol=SASL_SSL")
    assert (address.hosts, address.names) == ("a:9092,b:9092", ("lsst-alerts-v11", "ztf"))
    assert address.options == {"group": "g", "security.protocol": "SASL_SSL"}
    address = parse_address("redis://me:p%40ss@host:6380/a%2Fb?db=2")
    assert (address.user, address.password, address.hosts, address.name) == ("me", "p@ss", "host:6380", "a/b")
    assert address.number("db", 0) == 2
    assert parse_address("file:dead%20letters/").path == Path("dead letters")
    assert parse_address("file:///x/y.jsonl").path == Path("/x/y.jsonl")


def test_a_password_is_never_shown() -> None:
    assert "secret" not in repr(parse_address("redis://me:secret@host/stream"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with"),
        ("http://host/topic", "begins with"),
        ("kafka:///topic", "names a host"),
        ("kafka://host", "names a host"),
        ("redis://user:secret@/stream", "names a host"),
        ("file://elsewhere/path", "file:///path"),
        ("file:", "file:///path"),
    ],
)
def test_an_address_that_leads_nowhere(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


def test_options_are_known_or_librdkafkas() -> None:
    kafka, redis = parse_address("kafka://h/t?client.id=x&grup=g"), parse_address("redis://h/t?client.id=x")
    for address in (kafka, redis):
        with pytest.raises(AddressError, match="unknown option"):
            address.only("group")
    assert parse_address("kafka://h/t?client.id=x").only().options == {"client.id": "x"}
    with pytest.raises(AddressError, match="idle is a number"):
        parse_address("redis://h/t?idle=soon").number("idle", 1)
    with pytest.raises(AddressError, match="exactly one"):
        _ = Address("kafka", "h", ("a", "b")).name


def opened(**changes: Any) -> Any:
    return open_sink(StreamSettings(**changes))


def test_a_files_sink_is_lines_or_a_folder(tmp_path: Path) -> None:
    assert isinstance(opened(sink=f"file:{tmp_path}/out.jsonl"), LinesSink)
    assert isinstance(opened(sink=f"file:{tmp_path}/out/", sink_format="elasticc"), FolderSink)
    assert isinstance(open_dead_letters(StreamSettings()), FolderSink)
    with pytest.raises(AddressError, match="elasticc is no text"):
        opened(sink=f"file:{tmp_path}/out.jsonl", sink_format="elasticc")
    with pytest.raises(AddressError, match="needs a sink"):
        opened()
    with pytest.raises(AddressError, match="needs a source"):
        open_source(StreamSettings())


def test_kafka_properties_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kafka.json"
    assert kafka_properties(None) == {}
    for wrong in ("", "[1]"):
        path.write_text(wrong)
        with pytest.raises(AddressError):
            kafka_properties(path)
    path.write_text('{"sasl.password": "secret"}')
    assert kafka_properties(path) == {"sasl.password": "secret"}


@pytest.mark.parametrize(("scheme", "tls"), [("redis", False), ("rediss", True)])
def test_redis_is_reached_by_tls_where_the_address_says_so(scheme: str, tls: bool) -> None:
    redis = pytest.importorskip("redis", reason="needs the [stream] extra")
    from nightjar_alerts.service.stream.redis_streams import connect

    address = parse_address(f"{scheme}://user:secret@redis:6380/alerts")
    assert (address.scheme, address.tls) == ("redis", tls)
    assert (connect(address).connection_pool.connection_class is redis.SSLConnection) == tls
