"""A poison message affects only itself, from the source through every stage to the dead letters."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

# What follows imports the extra, hence stands after the question whether it is there.
# ruff: noqa: E402
redis = pytest.importorskip("redis", reason="redis is missing: pip install 'nightjar-alerts[cpu]'")
pytest.importorskip("confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'")

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream import worker as worker_room
from nightjar_alerts.service.stream.batches import Batch, FailedAlert
from nightjar_alerts.service.stream.connectors import Connectors
from nightjar_alerts.service.stream.dead_letters import PREFIX, SHORT_BYTES, dead_letter, restore, shorten
from nightjar_alerts.service.stream.formats import encode_record
from nightjar_alerts.service.stream.kafka.buffer import message_of as of_kafka
from nightjar_alerts.service.stream.ledger import DeliveryLedger
from nightjar_alerts.service.stream.messages import (
    ActiveErrors,
    DeadLetterCause,
    Message,
    PermanentError,
    Record,
    RecordTooLargeError,
    SourceStatus,
    TransientError,
)
from nightjar_alerts.service.stream.publishing import PublishStage
from nightjar_alerts.service.stream.redis_streams import to_message as of_redis
from support.redis import needs_redis, redis_server
from support.stream import alert, chosen, dead_letters, eventually, results, running

ANY = st.binary(max_size=40) | st.sampled_from([b"9" * 5000, b"9" * 400, b"-1", b"1e400", b"\xff\xfe", b"none", b""])
FACTS = st.sampled_from([*(PREFIX + name for name in ("topic", "place", "timestamp", "key", "length", "sha256"))])
NAMES = FACTS | st.text(max_size=8)
HEADERS = st.lists(st.tuples(NAMES, ANY), max_size=6)


@given(st.dictionaries(st.sampled_from([b"value", b"key", b"timestamp"]) | st.binary(max_size=6), ANY), HEADERS)
def test_redis_any_entry_can_be_a_message_and_a_dead_letter(fields: dict[bytes, bytes], headers: list[Any]) -> None:
    fields |= {b"h:" + name.encode(errors="replace"): value for name, value in headers}
    message = of_redis(b"\xffalerts", b"1700000000000-0", fields)
    for one in (message, restore(message)):
        record = dead_letter(one, DeadLetterCause("decode", "empty", "\udcff"), "echo@1")
        short = shorten(record)
        assert shorten(short) == short
        assert restore(Message("dead", "1", record.value, headers=record.headers)).value == message.value
        assert one.timestamp_ms is None or 0 <= one.timestamp_ms < 2**63


class Broken:
    """Kafka message with header names that are not UTF-8, for which the client raises or, called again, crashes."""

    def __init__(self) -> None:
        self.calls = 0

    def headers(self) -> list[Any]:
        self.calls += 1
        raise SystemError("returned a result with an exception set")

    def topic(self) -> str:
        return "alerts"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def value(self) -> bytes:
        return alert(1)

    def key(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 2**62


def test_kafka_unreadable_headers_are_left_out() -> None:
    broken = Broken()
    message = of_kafka(broken)  # has all that is used of one
    assert (message.value, message.headers, broken.calls) == (alert(1), (), 1)


def test_shortened_dead_letter_has_length_and_hash() -> None:
    whole = dead_letter(Message("alerts", "0:1", bytes(5 << 20), key=bytes(1 << 20), headers=(("h", bytes(1 << 20)),)),
                   DeadLetterCause("decode", "record_too_large"), "echo@1")  # fmt: skip
    short = shorten(whole)
    headers = dict(short.headers)
    assert len(short.value) == SHORT_BYTES
    assert sum(len(value) for value in headers.values()) < 3 * SHORT_BYTES
    assert headers[PREFIX + "length"] == b"5242880"
    assert len(headers[PREFIX + "sha256"]) == 64
    assert (short.key, headers[PREFIX + "reason"]) == (whole.key, b"record_too_large")
    hostile = Message("alerts", "0:1", bytes(1 << 20), headers=((PREFIX + "length", b"1"),))
    assert len(shorten(dead_letter(hostile, DeadLetterCause("decode", "empty"), "echo@1")).value) == SHORT_BYTES


class Script:
    """A source of given messages, and both sinks, which reject records above a size."""

    finite = True
    error = ""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._remaining = list(messages)
        self.records: list[Record] = []
        self.acknowledged: list[Message] = []

    def poll(self, limit: int, timeout: float) -> list[Message]:
        messages, self._remaining = self._remaining[:limit], self._remaining[limit:]
        return messages

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        if any(record.value.startswith(b"\xff") for record in records):
            raise ValueError("a client that cannot bear some bytes")
        self.records += [record for record in records if len(record.value) <= SHORT_BYTES]
        return [None if len(record.value) <= SHORT_BYTES else RecordTooLargeError("too large") for record in records]

    def acknowledge(self, messages: Sequence[Message]) -> None:
        self.acknowledged += messages

    def heartbeat(self, seconds: float) -> None: ...

    def commit_window(self) -> None: ...

    def check_access(self) -> str:
        return ""

    def owns(self, message: Message) -> bool:
        return True

    def status(self) -> SourceStatus:
        return SourceStatus()

    def close(self, clean: bool = True) -> None: ...


BODIES = st.binary(max_size=60).filter(lambda one: not one.startswith(b"\xff")) | st.sampled_from(
    [alert(1), alert(2)[:-3], b'{"diaSource": {}}', b"\0" * (SHORT_BYTES + 9), b"[" * 3000, b'{"a":' * 900]
)
MESSAGES = st.lists(
    st.builds(
        lambda value, key, headers, time: Message("alerts", "", value, key, tuple(headers), time),
        value=BODIES, key=st.none() | ANY, headers=HEADERS, time=st.none() | st.integers(-(2**70), 10**420),
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each example is a worker: shrinking one takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(messages=MESSAGES)
def test_any_message_is_resolved(messages: list[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    numbered = [replace(message, message_id=f"0:{number}") for number, message in enumerate(messages)]
    script = Script(numbered)
    monkeypatch.setattr(worker_room, "open_connectors", lambda *_: Connectors(script, script, script))
    with running(chosen(tmp_path, source="file:/", batch_messages=5)) as worker:
        assert worker.join() in (0, 1, 3)  # by what could be read
    totals = worker.totals()
    assert totals.get("in", 0) == len(numbered)
    assert totals.get("pending", 0) == 0
    assert {message.message_id for message in script.acknowledged} == {message.message_id for message in numbered}


def twice(value: bytes) -> list[Message]:
    """Two dead letters of one message, as left by a worker that was killed before it acknowledged the message."""
    record = dead_letter(Message("alerts", "0:1", value), DeadLetterCause("decode", "empty"), "echo@1")
    return [Message("dead", f"0:{place}", record.value, record.key, record.headers, token=place) for place in (7, 8)]


@pytest.mark.parametrize("batch_messages", [1, 2])
@pytest.mark.parametrize("value", [alert(1), b"junk", b""])
def test_replay_two_dead_letters_of_one_message_are_both_resolved(
    value: bytes, batch_messages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(twice(value))
    monkeypatch.setattr(worker_room, "open_connectors", lambda *_: Connectors(script, script, script))
    with running(chosen(tmp_path, source="file:/", batch_messages=batch_messages), replay=True) as worker:
        assert worker.join() == (0 if value == alert(1) else 1)
    totals = worker.totals()
    assert (totals["in"], totals["pending"], totals.get("lost", 0)) == (2, 0, 0)
    assert {message.token for message in script.acknowledged} == {7, 8}
    assert len(script.records) == 2
    assert len({record.key for record in script.records}) == 1  # whoever reads them keeps any one


async def test_message_with_many_failed_alerts_has_one_dead_letter() -> None:
    metrics, script = Metrics(), Script([])
    messages, ledger = [restore(one) for one in twice(b"")], DeliveryLedger(metrics)
    ledger.open(messages)
    failed = []
    for message in messages:
        ledger.expand(message, ["a", "b", "c"])
        failed += [FailedAlert(message, number, DeadLetterCause("decode", f"reason {number}")) for number in range(3)]
    batch = Batch(messages, 0, failed=tuple(failed))
    with ThreadPoolExecutor(1) as executor:
        publishing = PublishStage(
            script, script, partial(encode_record, form="nightjar"), executor, ActiveErrors(metrics), metrics
        )
        ledger.resolve_failed(failed, await publishing.write_dead_letters(batch.first_failures(), "echo@1"))
    ledger.check_resolved(messages)
    reasons = [dict(record.headers)[PREFIX + "reason"] for record in script.records]
    assert reasons == [b"reason 0", b"reason 0"]


async def test_large_dead_letter_is_shortened_and_counted() -> None:
    metrics, script = Metrics(), Script([])
    message = Message("alerts", "0:1", bytes(SHORT_BYTES + 9))
    failed = [FailedAlert(message, 0, DeadLetterCause("decode", "record_too_large"))]
    with ThreadPoolExecutor(1) as executor:
        publishing = PublishStage(
            script, script, partial(encode_record, form="nightjar"), executor, ActiveErrors(metrics), metrics
        )
        assert await publishing.write_dead_letters(failed, "echo@1") == [message]
    assert [len(record.value) for record in script.records] == [SHORT_BYTES]
    assert metrics.registry.get_sample_value("nightjar_stream_dead_letters_shortened_total") == 1


class Mailbox(Script):
    """Sink of dead letters that rejects records larger than a megabyte, as Kafka does."""

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        sizes = [
            len(record.key) + len(record.value) + sum(len(name) + len(value) for name, value in record.headers)
            for record in records
        ]
        return [None if size <= 1_000_000 else RecordTooLargeError("too large") for size in sizes]


class Impatient(ActiveErrors):
    """Raises instead of sending a dead letter forever."""

    async def wait(self, step: str, reason: str, pause: float) -> None:
        raise AssertionError(f"{step}: {reason}")


@pytest.mark.parametrize("believed", [True, False])
async def test_dead_letter_with_a_long_topic_is_accepted(believed: bool) -> None:
    facts = {"topic": b"t" * 1_000_000, "place": b"x", "timestamp": b"", "key": b"none"}
    headers = tuple((PREFIX + name, value) for name, value in facts.items())
    message = restore(Message("alerts", "0:1", b"garbage", headers=headers))
    if believed:  # whatever a source makes of such names
        message = Message("t" * 1_000_000, "x", b"garbage")
    metrics, mailbox = Metrics(), Mailbox([])
    failed = [FailedAlert(message, 0, DeadLetterCause("decode", "unknown_envelope"))]
    with ThreadPoolExecutor(1) as executor:
        publishing = PublishStage(
            mailbox, mailbox, partial(encode_record, form="nightjar"), executor, Impatient(metrics), metrics
        )
        assert await publishing.write_dead_letters(failed, "echo@1") == [message]


@needs_redis
def test_messages_that_crashed_earlier_versions_are_resolved(tmp_path: Path) -> None:
    facts = {b"topic": b"t", b"place": b"p", b"key": b"none", b"timestamp": b"9" * 4301}
    poison: list[dict[bytes, bytes]] = [
        {b"timestamp": b"9" * 5000},
        {b"h:" + PREFIX.encode() + name: value for name, value in facts.items()},
        {b"timestamp": b"9" * 400},
    ]
    with redis_server(tmp_path) as server:
        client = redis.Redis(port=server.port, protocol=2)
        for number, fields in enumerate(poison):
            client.xadd("alerts", {b"value": alert(number), **fields})
        with running(chosen(tmp_path, source=f"redis://127.0.0.1:{server.port}/alerts")) as worker:
            eventually(lambda: worker.totals().get("classified") == len(poison))
            assert worker.stop() == 0
    assert {one["topic"] for one in results(tmp_path)} == {"alerts"}  # a header makes no dead letter of a message
    assert dead_letters(tmp_path) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    with redis_server(tmp_path) as server:
        yield server


@needs_redis
def test_redis_messages_in_flight_at_two_crashes_are_isolated(server: Any) -> None:
    from nightjar_alerts.service.stream.addresses import parse_address
    from nightjar_alerts.service.stream.redis_streams import RedisSource

    client = redis.Redis(port=server.port, protocol=2)
    for number in range(4):
        client.xadd("alerts", {"value": b"%d" % number})
    where = parse_address(f"redis://127.0.0.1:{server.port}/alerts?idle=0.05")
    for name in ("first", "second"):  # both die with all four
        dying = RedisSource(parse_address(f"redis://127.0.0.1:{server.port}/alerts?idle=0.05&consumer={name}"))
        messages: list[Message] = []
        while len(messages) < 4:
            messages += dying.poll(10, 0.1)
    client.xadd("alerts", {"value": b"new"})
    sleep(0.1)
    heir = RedisSource(where)
    deliveries: list[list[bytes]] = []
    while sum(map(len, deliveries)) < 5:
        batch = heir.poll(10, 0.1)
        if batch:
            assert heir.poll(10, 0.01) == [] or batch[0].deliveries == 1  # nothing goes beside a suspect
            deliveries.append([message.value for message in batch])
            heir.acknowledge(batch)
    assert deliveries == [[b"0"], [b"1"], [b"2"], [b"3"], [b"new"]]
