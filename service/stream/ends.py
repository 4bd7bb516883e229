"""Sources and sinks by their address; clients of Kafka and Redis are imported only when an address names them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from service.settings import StreamSettings
from service.stream.addresses import Address, AddressError, Scheme, parse_address
from service.stream.files import FileSource, FolderSink, LinesSink
from service.stream.messages import Sink, Source

if TYPE_CHECKING:
    from service.stream.kafka.sink import KafkaTransactions
    from service.stream.kafka.source import KafkaSource

TEXT_FORMATS = ("nightjar", "alerce-json", "lasair")
EXACTLY_ONCE: Final = "exactly_once"


class Ends(NamedTuple):
    """Ends of a worker, its source and its sinks; with transactions, such as take part in them."""

    source: Source
    sink: Sink
    letters: Sink
    transactions: "tuple[KafkaSource, KafkaTransactions] | None" = None


Rebalanced = Callable[[float], None]
"""Is told for how many seconds a change of the group kept a source from taking anything."""


def _nobody(seconds: float) -> None: ...


def open_ends(settings: StreamSettings, replay: bool = False, rebalanced: Rebalanced = _nobody) -> Ends:
    """Open all three ends of a worker; raises AddressError for those that make no sense, alone or together.

    So it does for those whose broker will not let us in, unless the settings say to go on trying.
    """
    if _wants_transactions(settings):
        ends = _open_transactional(settings, replay, rebalanced)
    else:
        sink, letters = open_sink(settings), open_letters(settings)
        ends = Ends(open_source(settings, replay, rebalanced), sink, letters)
    if not settings.keep_trying:
        _refuse(ends)
    return ends


def _refuse(ends: Ends) -> None:
    """Close what leads nowhere, and say why."""
    for what, end in (("source", ends.source), ("sink", ends.sink), ("dead letters", ends.letters)):
        if refusal := end.refusal():
            for one in (ends.source, ends.sink, ends.letters):
                one.close()
            raise AddressError(f"{what}: {refusal}")


def reads_letters(settings: StreamSettings, replay: bool) -> bool:
    """Return whether what comes may be a letter of ours: nobody else's message is believed to be one."""
    source, letters = parse_address(settings.source), _parse(settings.dead_letters, "dead letters")
    same_place = source.scheme == letters.scheme and (source.names, source.path) == (letters.names, letters.path)
    return replay or (same_place and _one_cluster(source, letters))


def _wants_transactions(settings: StreamSettings) -> bool:
    value = _parse(settings.sink, "sink").options.get(EXACTLY_ONCE)
    if value not in (None, "yes"):
        raise AddressError(f"{EXACTLY_ONCE} is yes, or not there; not {value[:20]!r}")
    return value == "yes"


def _open_transactional(settings: StreamSettings, replay: bool, rebalanced: Rebalanced) -> Ends:
    source, sink = _parse(settings.source, "source"), _parse(settings.sink, "sink")
    if replay:
        raise AddressError(f"a replay commits nothing: {EXACTLY_ONCE} is for workers")
    if (source.scheme, sink.scheme) != ("kafka", "kafka") or not _one_cluster(source, sink):
        raise AddressError(f"{EXACTLY_ONCE} needs a source and a sink of the same Kafka cluster, with equal hosts")
    try:
        from service.stream.kafka.sink import KafkaTransactions, LetterTopic, ResultTopic
        from service.stream.kafka.source import KafkaSource
    except ImportError:
        raise _not_installed(sink) from None
    extra, dead = kafka_properties(settings.kafka_config), _parse(settings.dead_letters, "dead letters")
    results, transactions = sink.name, KafkaTransactions(sink.only(EXACTLY_ONCE), extra)
    within = dead.scheme == "kafka" and _one_cluster(dead, sink)
    letters = LetterTopic(transactions, dead.only().name) if within else open_letters(settings)
    member = KafkaSource(source, extra, True, settings.max_deliveries, rebalanced)
    return Ends(member, ResultTopic(transactions, results), letters, (member, transactions))


def _one_cluster(one: Address, other: Address) -> bool:
    return set(one.hosts.split(",")) == set(other.hosts.split(","))


def open_source(settings: StreamSettings, replay: bool = False, rebalanced: Rebalanced = _nobody) -> Source:
    """Open the source of the settings; for a replay, one that ends and commits nothing.

    Raises
    ------
    AddressError
        When the address makes no sense, or its broker's client library is not installed.
    """
    address = _parse(settings.source, "source")
    if address.scheme == "file":
        if not address.path.exists():
            raise AddressError(f"{address.path} does not exist")
        return FileSource(address.path)
    try:
        return _broker_source(address, settings, replay, rebalanced)
    except ImportError:
        raise _not_installed(address) from None


def _broker_source(address: Address, settings: StreamSettings, replay: bool, rebalanced: Rebalanced) -> Source:
    extra = kafka_properties(settings.kafka_config)
    if replay:
        return _broker_range(address, extra)
    if address.scheme == "kafka":
        from service.stream.kafka.source import KafkaSource

        return KafkaSource(address, extra, False, settings.max_deliveries, rebalanced)
    from service.stream.redis_streams import RedisSource

    return RedisSource(address)


def _broker_range(address: Address, extra: Mapping[str, Any]) -> Source:
    if address.scheme == "kafka":
        from service.stream.kafka.source import KafkaRange

        return KafkaRange(address, extra)
    from service.stream.redis_streams import RedisRange

    return RedisRange(address)


def open_sink(settings: StreamSettings) -> Sink:
    """Open the sink of results; raises AddressError likewise."""
    address = _parse(settings.sink, "sink")
    if address.scheme == "file" and not settings.sink.endswith("/"):
        if settings.sink_format not in TEXT_FORMATS:
            raise AddressError(f"{settings.sink_format} is no text: end the sink's path with / for a file each")
        return LinesSink(address.path)
    return _open_sink(address, settings)


def open_letters(settings: StreamSettings) -> Sink:
    """Open the sink of dead letters: a folder, a topic or a stream. Raises AddressError likewise."""
    return _open_sink(_parse(settings.dead_letters, "dead letters"), settings)


def _open_sink(address: Address, settings: StreamSettings) -> Sink:
    try:
        return _SINKS[address.scheme](address, settings)
    except ImportError:
        raise _not_installed(address) from None


def _folder_sink(address: Address, settings: StreamSettings) -> Sink:
    return FolderSink(address.path)


def _kafka_sink(address: Address, settings: StreamSettings) -> Sink:
    from service.stream.kafka.sink import KafkaSink

    return KafkaSink(address, kafka_properties(settings.kafka_config))


def _redis_sink(address: Address, settings: StreamSettings) -> Sink:
    from service.stream.redis_streams import RedisSink

    return RedisSink(address)


_SINKS: Final[Mapping[Scheme, Callable[[Address, StreamSettings], Sink]]] = {
    "file": _folder_sink,
    "kafka": _kafka_sink,
    "redis": _redis_sink,
}


def kafka_properties(path: Path | None) -> dict[str, Any]:
    """Read properties from the settings' file."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AddressError(f"{path} cannot be read: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise AddressError(f"{path} holds no JSON object")
    return found


def _parse(text: str, what: str) -> Address:
    if not text:
        raise AddressError(f"a worker needs a {what}: NIGHTJAR_{what.upper().replace(' ', '_')}, or an option")
    return parse_address(text)


def _not_installed(address: Address) -> AddressError:
    return AddressError(f"{address.scheme}:// needs the `stream` extra: pip install 'nightjar-alerts[stream]'")
