"""Open sources and sinks by address. The Kafka and Redis clients are imported only if an address needs them."""

import json
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import FORMS, Address, AddressError, about_setting, parse_address
from nightjar_alerts.service.stream.files import FileSource, FolderSink, LinesSink
from nightjar_alerts.service.stream.messages import Sink, Source

if TYPE_CHECKING:
    from nightjar_alerts.service.stream.kafka.source import KafkaSource
    from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions

TEXT_FORMATS = ("nightjar", "alerce-json", "lasair")
EXACTLY_ONCE: Final = "exactly_once"
DEFAULT_PORTS: Final = {"kafka": 9092, "redis": 6379, "file": 0}


class Connectors(NamedTuple):
    """Source and sinks of a worker; ``transactions`` is set for exactly-once delivery."""

    source: Source
    sink: Sink
    dead_letters: Sink
    transactions: "tuple[KafkaSource, KafkaTransactions] | None" = None


def open_connectors(settings: StreamSettings, replay: bool = False, metrics: Metrics | None = None) -> Connectors:
    """Open source and sinks of a worker.

    Raises
    ------
    AddressError
        If an address or a combination of addresses cannot be used, or a broker rejects this client and
        ``retry_auth_errors`` is false.
    """
    check_addresses(settings, replay)
    if _is_exactly_once(settings):
        connectors = _open_transactional(settings, replay, metrics)
    else:
        sink, dead_letters = open_sink(settings), open_dead_letters(settings)
        connectors = Connectors(open_source(settings, replay, metrics), sink, dead_letters)
    if not settings.retry_auth_errors:
        _check_access(settings, connectors)
    return connectors


def check_addresses(settings: StreamSettings, replay: bool = False) -> None:
    """Check addresses without connecting. Raises AddressError."""
    source = _parse(settings, "source")
    with about_setting("source", settings.source):
        if source.scheme == "file" and not source.path.exists():
            raise AddressError(f"{source.path} does not exist")
    for setting in ("sink", "dead_letters"):
        target = _parse(settings, setting)
        with about_setting(setting, getattr(settings, setting)):
            if target.scheme != "file":
                _ = target.name
            elif setting == "dead_letters":
                FolderSink(target.path)  # raises if not writable
            if not replay and _reads_from(source, target):
                raise AddressError(
                    "this is also the source, so what the worker writes would come back to it; "
                    "`nightjar replay` reads dead letters again"
                )
    kafka_properties(settings.kafka_config)


def _check_access(settings: StreamSettings, connectors: Connectors) -> None:
    """Close all connectors and raise AddressError if a broker rejects this client."""
    opened: dict[str, Source | Sink] = {
        "source": connectors.source,
        "sink": connectors.sink,
        "dead_letters": connectors.dead_letters,
    }
    for setting, connector in opened.items():
        if reason := connector.check_access():
            for other in opened.values():
                other.close()
            with about_setting(setting, getattr(settings, setting)):
                raise AddressError(reason)


def _reads_from(source: Address, target: Address) -> bool:
    """Return whether a source reads the records that are written to a target."""
    if source.scheme != target.scheme:
        return False
    if source.scheme == "file":
        return source.path.resolve() == target.path.resolve()
    if source.scheme == "redis" and source.integer("db", 0) != target.integer("db", 0):
        return False
    return any(_matches(name, target.name) for name in source.names) and _same_cluster(source, target)


def _matches(name: str, topic: str) -> bool:
    return name == topic or (name.startswith("^") and re.match(name, topic) is not None)


def _same_cluster(first: Address, second: Address) -> bool:
    """Return whether two addresses have a host in common, by name or by IP address."""
    hosts, other_hosts = (set(address.host_ports(DEFAULT_PORTS[address.scheme])) for address in (first, second))
    return bool(hosts & other_hosts) or bool(_resolved(hosts) & _resolved(other_hosts))


def _resolved(hosts: set[tuple[str, int]]) -> set[tuple[object, int]]:
    found: set[tuple[object, int]] = set()
    for host, port in hosts:
        with suppress(OSError):  # the name cannot be resolved yet
            found |= {(info[4][0], port) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    return found


def _is_exactly_once(settings: StreamSettings) -> bool:
    with about_setting("sink", settings.sink):
        return parse_address(settings.sink).flag(EXACTLY_ONCE)


def _open_transactional(settings: StreamSettings, replay: bool, metrics: Metrics | None) -> Connectors:
    source, sink = _parse(settings, "source"), _parse(settings, "sink")
    dead = _parse(settings, "dead_letters")
    with about_setting("sink", settings.sink):
        if replay:
            raise AddressError(f"a replay commits nothing: {EXACTLY_ONCE} is for workers")
        if (source.scheme, sink.scheme) != ("kafka", "kafka") or not _same_cluster(source, sink):
            raise AddressError(f"{EXACTLY_ONCE} needs a source and a sink of the same Kafka cluster, with equal hosts")
        try:
            from nightjar_alerts.service.stream.kafka.client import GROUP
            from nightjar_alerts.service.stream.kafka.source import KafkaSource
            from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, worker_slot
        except ImportError:
            raise _not_installed(sink) from None
        extra = kafka_properties(settings.kafka_config)
        # Dead letters in the same cluster are part of the transaction; others are written before the commit.
        within = dead.check_options().name if dead.scheme == "kafka" and _same_cluster(dead, sink) else ""
        transactions = KafkaTransactions(
            sink.check_options(EXACTLY_ONCE), extra, source.options.get("group", GROUP),
            worker_slot(settings.worker_port, source.options.get("group.instance.id")), within,
        )  # fmt: skip
    dead_letters = transactions if within else open_dead_letters(settings)
    with about_setting("source", settings.source):
        member = KafkaSource(source, extra, transactions, settings.max_deliveries, metrics)
    return Connectors(member, transactions, dead_letters, (member, transactions))


def open_source(settings: StreamSettings, replay: bool = False, metrics: Metrics | None = None) -> Source:
    """Open the source of the settings; for a replay, a finite source that commits nothing.

    Raises
    ------
    AddressError
        If the address cannot be used, or the client library of its broker is not installed.
    """
    address = _parse(settings, "source")
    with about_setting("source", settings.source):
        if address.scheme == "file":
            return FileSource(address.check_options().path)
        try:
            return _broker_source(address, settings, replay, metrics)
        except ImportError:
            raise _not_installed(address) from None


def _broker_source(address: Address, settings: StreamSettings, replay: bool, metrics: Metrics | None) -> Source:
    if address.scheme == "kafka":
        extra = kafka_properties(settings.kafka_config)
        if replay:
            from nightjar_alerts.service.stream.kafka.replay import KafkaRange

            return KafkaRange(address, extra)
        from nightjar_alerts.service.stream.kafka.source import KafkaSource

        return KafkaSource(address, extra, None, settings.max_deliveries, metrics)
    from nightjar_alerts.service.stream.redis_streams import RedisRange, RedisSource

    return RedisRange(address) if replay else RedisSource(address, settings.max_deliveries)


def open_sink(settings: StreamSettings) -> Sink:
    """Open the sink of results. Raises AddressError as :func:`open_source` does."""
    address = _parse(settings, "sink")
    with about_setting("sink", settings.sink):
        if address.scheme == "file" and not settings.sink.endswith("/"):
            if settings.sink_format not in TEXT_FORMATS:
                raise AddressError(
                    f"{settings.sink_format} is a binary format: end the path with / for a file for each record"
                )
            return LinesSink(address.check_options().path)
        return _open_sink(address, settings)


def open_dead_letters(settings: StreamSettings) -> Sink:
    """Open the sink of dead letters: a folder, a topic or a stream. Raises AddressError as :func:`open_source`."""
    address = _parse(settings, "dead_letters")
    with about_setting("dead_letters", settings.dead_letters):
        return _open_sink(address, settings)


def _open_sink(address: Address, settings: StreamSettings) -> Sink:
    if address.scheme == "file":
        return FolderSink(address.check_options().path)
    try:
        if address.scheme == "kafka":
            from nightjar_alerts.service.stream.kafka.sink import KafkaSink

            return KafkaSink(address, kafka_properties(settings.kafka_config))
        from nightjar_alerts.service.stream.redis_streams import RedisSink

        return RedisSink(address)
    except ImportError:
        raise _not_installed(address) from None


def kafka_properties(path: Path | None) -> dict[str, Any]:
    """Read librdkafka properties from a JSON file. Raises AddressError."""
    if path is None:
        return {}
    try:
        properties = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not JSON"
        raise AddressError(f"NIGHTJAR_KAFKA_CONFIG={path}: cannot be read: {reason}") from None
    if not isinstance(properties, dict):
        raise AddressError(f"NIGHTJAR_KAFKA_CONFIG={path}: not a JSON object of librdkafka properties")
    return properties


def _parse(settings: StreamSettings, setting: str) -> Address:
    text: str = getattr(settings, setting)
    if not text:
        option = setting.replace("_", "-")
        raise AddressError(
            f"a worker needs a {option}: set NIGHTJAR_{setting.upper()} or --{option}. Forms: {FORMS[setting]}"
        )
    with about_setting(setting, text):
        return parse_address(text)


def _not_installed(address: Address) -> AddressError:
    return AddressError(
        f"{address.scheme}:// needs the `stream` extra, in the clone of the repository: pip install '.[stream]'"
    )
