from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import Address, AddressError, parse_address
from nightjar_alerts.service.stream.connectors import (
    check_addresses,
    kafka_properties,
    open_dead_letters,
    open_sink,
    open_source,
)
from nightjar_alerts.service.stream.files import FolderSink, LinesSink


def test_parse_address_returns_the_parts() -> None:
    address = parse_address("kafka://a:9092,b:9092/lsst-alerts-v11,ztf?group=g&security.protocol=SASL_SSL")
    assert (address.hosts, address.names) == ("a:9092,b:9092", ("lsst-alerts-v11", "ztf"))
    assert address.options == {"group": "g", "security.protocol": "SASL_SSL"}
    address = parse_address("redis://me:p%40ss@host:6380/a%2Fb?db=2")
    assert (address.user, address.password, address.hosts, address.name) == ("me", "p@ss", "host:6380", "a/b")
    assert address.number("db", 0) == 2
    assert parse_address("file:dead%20letters/").path == Path("dead letters")
    assert parse_address("file:///x/y.jsonl").path == Path("/x/y.jsonl")


def test_address_error_hides_the_password() -> None:
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
def test_check_addresses_unusable_address_raises(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "pairs"),
    [
        ("localhost", [("localhost", 1)]),
        ("broker-1.example.org.:9092", [("broker-1.example.org.", 9092)]),
        ("my_broker:9092", [("my_broker", 9092)]),
        ("192.0.2.1:65535", [("192.0.2.1", 65535)]),
        ("[::1]", [("::1", 1)]),
        ("[2001:db8::7]:9092,b", [("2001:db8::7", 9092), ("b", 1)]),
        ("[::ffff:192.0.2.1]:9092", [("::ffff:192.0.2.1", 9092)]),
        ("[fe80::1%25eth0]:9092", [("fe80::1%eth0", 9092)]),
        ("127.0.0.1,2130706433:1", [("127.0.0.1", 1), ("2130706433", 1)]),
    ],
)
def test_host_ports_parses_every_form(hosts: str, pairs: list[tuple[str, int]]) -> None:
    assert parse_address(f"kafka://{hosts}/t").host_ports(1) == pairs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("redis://localhost:abc/in", "port is a number"),
        ("redis://localhost:/in", "port is a number"),
        ("redis://localhost:0/in", "port is a number"),
        ("redis://localhost:65536/in", "port is a number"),
        ("redis://localhost:-1/in", "port is a number"),
        ("kafka://a:9092,,b/t", "is not a host"),
        ("kafka://::1/t", "IPv6 address is written in brackets"),
        ("kafka://2001:db8::7:9092/t", "IPv6 address is written in brackets"),
        ("kafka://[::1]9092/t", "is not a host"),
        ("kafka://[localhost]:1/t", "not "),
        ("kafka://a b/t", "is not a host"),
        ("redis://localhost/0/in", "slash in the name"),
        ("kafka://b/night-*", r"pattern of topics is a regular expression that begins with \^"),
        ("kafka://b/a/b", "is not a topic"),
        ("kafka://b/..", "is not a topic"),
        ("kafka://b/" + "t" * 250, "is not a topic"),
        ("kafka://b/^night-[0-9", "is not a pattern"),
        ("kafka://b/^night-(", "is not a pattern"),
        ("kafka://user:secret@b/a", "NIGHTJAR_KAFKA_CONFIG"),
        ("kafka://b/a?group=g&group=h", "given twice"),
        ("kafka://b/a#b", "%23"),
        ("kafka://b/a?group=", "is empty"),
        ("kafka://256.1.1.1/a", "is not a host"),
        ("kafka://1.2.3/a", "is not a host"),
        ("redis://user:sec/ret@b/a", "%2F"),
        ("redis://user:sec?ret@b/a", "%2F"),
        ("redis://user:7/ret@b/a", "%2F"),
    ],
)
def test_parse_address_invalid_address_raises_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a,b", ("a", "b")),
        ("^night-[0-9]{6,8}", ("^night-[0-9]{6,8}",)),
        ("^a{1,2},b,^(c|d)$", ("^a{1,2}", "b", "^(c|d)$")),
        ("^night-[[:digit:]]+", ("^night-[[:digit:]]+",)),
        ("^a%2Cb", ("^a,b",)),
    ],
)
def test_parse_address_topics_and_patterns(path: str, names: tuple[str, ...]) -> None:
    assert parse_address(f"kafka://b/{path}").names == names


def test_address_name_of_a_pattern_raises() -> None:
    with pytest.raises(AddressError, match="is a pattern"):
        _ = parse_address("kafka://b/^a").name


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        ("2026-11-21", 1_795_219_200_000),
        ("2026-11-21T05:00:00", 1_795_237_200_000),
        ("2026-11-21T05:00:00Z", 1_795_237_200_000),
        ("2026-11-21T05:00:00+02:00", 1_795_230_000_000),
        ("2026-11-21T05:00:00%2B02:00", 1_795_230_000_000),
        ("2026-11-21%2005:00", 1_795_237_200_000),
    ],
)
def test_timestamp_ms_parses_iso_times(time: str, milliseconds: int) -> None:
    assert parse_address(f"kafka://b/a?since={time}").timestamp_ms("since") == milliseconds


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("source", "alerts/", "NIGHTJAR_SOURCE=alerts/: an address begins with .* Forms: kafka://HOST:PORT/TOPIC"),
        ("sink", "x.jsonl", r"NIGHTJAR_SINK=x\.jsonl: an address begins with .* file:PATH\.jsonl"),
        ("dead_letters", "redis://u:secret@h", r"NIGHTJAR_DEAD_LETTERS=redis://\*\*\*@h: an address names a host and"),
        ("source", "kafka://h:x/t?sasl.password=secret&x=1", r"sasl\.password=\*\*\*&x=1: 'h:x': the port"),
        ("sink", "redis://u:sec/ret@h/a", r"NIGHTJAR_SINK=redis://\*\*\*@h/a: the characters / "),
        ("sink", "redis://u:sec?ret@h/a", r"NIGHTJAR_SINK=redis://\*\*\*@h/a: the characters / "),
        ("source", "file:/missing", "NIGHTJAR_SOURCE=file:/missing: /missing does not exist"),
        ("kafka_config", Path("/missing"), "NIGHTJAR_KAFKA_CONFIG=/missing: cannot be read: No such file"),
    ],
)
def test_address_error_names_setting_value_and_form(setting: str, value: Any, reason: str, tmp_path: Path) -> None:
    ends = {"source": f"file:{tmp_path}", "sink": f"file:{tmp_path}/x", "dead_letters": f"file:{tmp_path}/letters/"}
    with pytest.raises(AddressError, match=reason) as caught:
        check_addresses(StreamSettings(**(ends | {setting: value})))
    assert "secret" not in str(caught.value)


def test_check_options_accepts_known_and_librdkafka_options() -> None:
    kafka, redis = parse_address("kafka://h/t?client.id=x&grup=g"), parse_address("redis://h/t?client.id=x")
    for address in (kafka, redis):
        with pytest.raises(AddressError, match="unknown option"):
            address.check_options("group")
    assert parse_address("kafka://h/t?client.id=x").check_options().options == {"client.id": "x"}
    for wrong in ("soon", "-1", "nan", "1e999"):
        with pytest.raises(AddressError, match="idle is a number"):
            parse_address(f"redis://h/t?idle={wrong}").number("idle", 1)
    with pytest.raises(AddressError, match="db is a whole number"):
        parse_address("redis://h/t?db=1.5").integer("db", 0)
    with pytest.raises(AddressError, match="exactly one"):
        _ = Address("kafka", "h", ("a", "b")).name


def opened(**changes: Any) -> Any:
    return open_sink(StreamSettings(**changes))


def test_open_sink_file_is_lines_or_a_folder(tmp_path: Path) -> None:
    assert isinstance(opened(sink=f"file:{tmp_path}/out.jsonl"), LinesSink)
    assert isinstance(opened(sink=f"file:{tmp_path}/out/", sink_format="elasticc"), FolderSink)
    assert isinstance(open_dead_letters(StreamSettings()), FolderSink)
    with pytest.raises(AddressError, match=r"NIGHTJAR_SINK=.*elasticc is a binary format.*Forms: "):
        opened(sink=f"file:{tmp_path}/out.jsonl", sink_format="elasticc")
    with pytest.raises(AddressError, match="needs a sink"):
        opened()
    with pytest.raises(AddressError, match="needs a source"):
        open_source(StreamSettings())


def test_kafka_properties_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kafka.json"
    assert kafka_properties(None) == {}
    for wrong in ("", "[1]"):
        path.write_text(wrong)
        with pytest.raises(AddressError):
            kafka_properties(path)
    path.write_text('{"sasl.password": "secret"}')
    assert kafka_properties(path) == {"sasl.password": "secret"}


@pytest.mark.parametrize(("scheme", "tls"), [("redis", False), ("rediss", True)])
def test_redis_rediss_address_uses_tls(scheme: str, tls: bool) -> None:
    redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")
    from nightjar_alerts.service.stream.redis_streams import connect

    address = parse_address(f"{scheme}://user:secret@redis:6380/alerts")
    assert (address.scheme, address.tls) == ("redis", tls)
    assert (connect(address)().connection_pool.connection_class is redis.SSLConnection) == tls
