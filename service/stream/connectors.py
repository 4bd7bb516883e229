"""Sources and sinks, opened by their addresses. Clients of Kafka and Redis are imported only when one names them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import Address, AddressError, Scheme, parse_address
from nightjar_alerts.service.stream.files import FileSource, FolderSink, LinesSink
from nightjar_alerts.service.stream.messages import (
    Sink,
    Source,
)

if TYPE_CHECKING:
    from nightjar_alerts.service.stream.kafka.source import KafkaSource
    from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions

TEXT_FORMATS = ("nightjar", "alerce-json", "lasair")
EXACTLY_ONCE: Final = "exactly_once"


class Connectors(NamedTuple):
    """Source and sinks of a worker; ``transactions`` is set where answers are exactly once."""

    source: Source
    sink: Sink
    dead_letters: Sink
    transactions: "tuple[KafkaSource, KafkaTransactions] | None" = None


def open_connectors(settings: StreamSettings, replay: bool = False, metrics: Metrics | None = None) -> Connectors:
    """Open source and sinks of a worker; raises AddressError for those that make no sense, alone or together.

    It raises as well where a broker refuses us, unless the settings say to keep trying.
    """
    if _wants_transactions(settings):
        connectors = _open_transactional(settings, replay, metrics)
    else:
        sink, dead_letters = open_sink(settings), open_dead_letters(settings)
        connectors = Connectors(open_source(settings, replay, metrics), sink, dead_letters)
    if not settings.retry_auth_errors:
        _check_refusals(connectors)
    return connectors


def check_addresses(settings: StreamSettings) -> None:
    """Refuse addresses that lead nowhere, as far as can be told without asking anybody. Raises AddressError."""
    _parse_source(settings)
    _parse(settings.sink, "sink")
    _parse(settings.dead_letters, "dead letters")
    kafka_properties(settings.kafka_config)


def _check_refusals(connectors: Connectors) -> None:
    """Close everything and raise AddressError where a broker refuses us."""
    source, sink, dead_letters, _ = connectors
    for what, connector in (("source", source), ("sink", sink), ("dead letters", dead_letters)):
        if refusal := connector.refusal():
            for one in (source, sink, dead_letters):
                one.close()
            raise AddressError(f"{what}: {refusal}")


def reads_dead_letters(settings: StreamSettings, replay: bool) -> bool:
    """Return True where the source may hold dead letters of ours; elsewhere no message is taken for one."""
    source, dead = parse_address(settings.source), _parse(settings.dead_letters, "dead letters")
    same_place = source.scheme == dead.scheme and (source.names, source.path) == (dead.names, dead.path)
    return replay or (same_place and _one_cluster(source, dead))


def _wants_transactions(settings: StreamSettings) -> bool:
    value = _parse(settings.sink, "sink").options.get(EXACTLY_ONCE)
    if value not in (None, "yes"):
        raise AddressError(f"{EXACTLY_ONCE} is yes, or not there; not {value[:20]!r}")
    return value == "yes"


def _open_transactional(settings: StreamSettings, replay: bool, metrics: Metrics | None) -> Connectors:
    source, sink = _parse(settings.source, "source"), _parse(settings.sink, "sink")
    if replay:
        raise AddressError(f"a replay commits nothing: {EXACTLY_ONCE} is for workers")
    if (source.scheme, sink.scheme) != ("kafka", "kafka") or not _one_cluster(source, sink):
        raise AddressError(f"{EXACTLY_ONCE} needs a source and a sink of the same Kafka cluster, with equal hosts")
    try:
        from nightjar_alerts.service.stream.kafka.client import GROUP
        from nightjar_alerts.service.stream.kafka.source import KafkaSource
        from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, worker_slot
    except ImportError:
        raise _not_installed(sink) from None
    extra, dead = kafka_properties(settings.kafka_config), _parse(settings.dead_letters, "dead letters")
    # Dead letters of the same cluster are part of the transaction; others are written before it is committed.
    within = dead.only().name if dead.scheme == "kafka" and _one_cluster(dead, sink) else ""
    transactions = KafkaTransactions(
        sink.only(EXACTLY_ONCE), extra, source.options.get("group", GROUP),
        worker_slot(settings.worker_port, source.options.get("group.instance.id")), within,
    )  # fmt: skip
    dead_letters = transactions if within else open_dead_letters(settings)
    member = KafkaSource(source, extra, transactions, settings.max_deliveries, metrics)
    return Connectors(member, transactions, dead_letters, (member, transactions))


def _one_cluster(one: Address, other: Address) -> bool:
    return set(one.hosts.split(",")) == set(other.hosts.split(","))  # in any order: any of them knows all others


def open_source(settings: StreamSettings, replay: bool = False, metrics: Metrics | None = None) -> Source:
    """Open the source of the settings; for a replay, one that ends and commits nothing.

    Raises
    ------
    AddressError
        When the address makes no sense, or its broker's client library is not installed.
    """
    address = _parse_source(settings)
    if address.scheme == "file":
        return FileSource(address.path)
    try:
        return _broker_source(address, settings, replay, metrics)
    except ImportError:
        raise _not_installed(address) from None


def _parse_source(settings: StreamSettings) -> Address:
    address = _parse(settings.source, "source")
    if address.scheme == "file" and not address.path.exists():
        raise AddressError(f"{address.path} does not exist")
    return address


def _broker_source(address: Address, settings: StreamSettings, replay: bool, metrics: Metrics | None) -> Source:
    extra = kafka_properties(settings.kafka_config)
    if replay:
        return _broker_range(address, extra)
    if address.scheme == "kafka":
        from nightjar_alerts.service.stream.kafka.source import KafkaSource

        return KafkaSource(address, extra, None, settings.max_deliveries, metrics)
    from nightjar_alerts.service.stream.redis_streams import RedisSource

    return RedisSource(address, settings.max_deliveries)


def _broker_range(address: Address, extra: Mapping[str, Any]) -> Source:
    if address.scheme == "kafka":
        from nightjar_alerts.service.stream.kafka.replay import KafkaRange

        return KafkaRange(address, extra)
    from nightjar_alerts.service.stream.redis_streams import RedisRange

    return RedisRange(address)


def open_sink(settings: StreamSettings) -> Sink:
    """Open the sink of results; raises AddressError as :func:`open_source` does."""
    address = _parse(settings.sink, "sink")
    if address.scheme == "file" and not settings.sink.endswith("/"):
        if settings.sink_format not in TEXT_FORMATS:
            raise AddressError(f"{settings.sink_format} is no text: end the sink's path with / for a file each")
        return LinesSink(address.path)
    return _open_sink(address, settings)


def open_dead_letters(settings: StreamSettings) -> Sink:
    """Open the sink of dead letters: a folder, a topic or a stream; raises AddressError as :func:`open_source` does."""
    return _open_sink(_parse(settings.dead_letters, "dead letters"), settings)


def _open_sink(address: Address, settings: StreamSettings) -> Sink:
    try:
        return _SINKS[address.scheme](address, settings)
    except ImportError:
        raise _not_installed(address) from None


def _folder_sink(address: Address, settings: StreamSettings) -> Sink:
    return FolderSink(address.path)


def _kafka_sink(address: Address, settings: StreamSettings) -> Sink:
    from nightjar_alerts.service.stream.kafka.sink import KafkaSink

    return KafkaSink(address, kafka_properties(settings.kafka_config))


def _redis_sink(address: Address, settings: StreamSettings) -> Sink:
    from nightjar_alerts.service.stream.redis_streams import RedisSink

    return RedisSink(address)


_SINKS: Final[Mapping[Scheme, Callable[[Address, StreamSettings], Sink]]] = {
    "file": _folder_sink,
    "kafka": _kafka_sink,
    "redis": _redis_sink,
}


def kafka_properties(path: Path | None) -> dict[str, Any]:
    """Read properties of librdkafka from a JSON file. Raises AddressError."""
    if path is None:
        return {}
    try:
        properties = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AddressError(f"{path} cannot be read: {type(error).__name__}") from None
    if not isinstance(properties, dict):
        raise AddressError(f"{path} holds no JSON object")
    return properties


def _parse(text: str, what: str) -> Address:
    if not text:
        raise AddressError(f"a worker needs a {what}: NIGHTJAR_{what.upper().replace(' ', '_')}, or an option")
    return parse_address(text)


def _not_installed(address: Address) -> AddressError:
    return AddressError(f"{address.scheme}:// needs the `stream` extra: pip install 'nightjar-alerts[stream]'")
