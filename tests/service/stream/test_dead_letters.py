from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_alerts.models.limits import LATEST_MILLISECONDS
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.dead_letters import PREFIX, dead_letter, restore
from nightjar_alerts.service.stream.files import FileSource, FolderSink
from nightjar_alerts.service.stream.ledger import DeliveryLedger, UnbalancedError
from nightjar_alerts.service.stream.messages import DeadLetterCause, Message

MESSAGES = st.builds(
    Message,
    topic=st.text(min_size=1, max_size=20),
    message_id=st.text(max_size=20),
    value=st.binary(max_size=50),
    key=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(st.text("abc-", min_size=1, max_size=8), st.binary(max_size=8)), max_size=3).map(tuple),
    timestamp_ms=st.none() | st.integers(0, LATEST_MILLISECONDS),
)


@given(MESSAGES)
def test_restore_dead_letter_returns_the_original_message(message: Message) -> None:
    record = dead_letter(message, DeadLetterCause("decode", "truncated_avro", "é" * 2000), "echo@1")
    arrived = Message("dead", "0:7", record.value, record.key, record.headers, 5, token="where it lies")
    again = restore(arrived)
    same = ("topic", "message_id", "value", "key", "headers", "timestamp_ms")
    assert [getattr(again, name) for name in same] == [getattr(message, name) for name in same]
    assert again.token == "where it lies"


@given(st.dictionaries(st.sampled_from(["topic", "place", "timestamp", "key"]), st.binary(max_size=8)))
def test_restore_other_headers_is_unchanged_or_valid(facts: dict[str, bytes]) -> None:
    headers = tuple((PREFIX + name, value) for name, value in facts.items())
    assert isinstance(restore(Message("dead", "1", b"", headers=headers)), Message)


SOUND = {"topic": b"alerts", "place": b"0:1", "timestamp": b"", "key": b"none"}
LONG = {"topic": b"t" * 256, "place": b"p" * 1025, "timestamp": b"9" * 21, "key": b"a" * ((2 << 20) + 2)}


@pytest.mark.parametrize("fact", list(LONG))
def test_restore_header_longer_than_the_maximum_is_unchanged(fact: str) -> None:
    sound, long = (
        Message("dead", "1", b"", headers=tuple((PREFIX + name, value) for name, value in facts.items()))
        for facts in (SOUND, SOUND | {fact: LONG[fact]})
    )
    assert restore(sound).topic == "alerts"
    assert restore(long) is long


def test_restore_headers_of_maximum_length_are_accepted() -> None:
    message = Message("t" * 249, "a.tar.gz/" + "d" * 900 + "#12345", b"", key=bytes(1 << 20), timestamp_ms=2**62)
    record = dead_letter(message, DeadLetterCause("decode", "empty"), "echo@1")
    again = restore(Message("dead", "1", b"", headers=record.headers))
    assert (again.topic, again.message_id, again.key) == (message.topic, message.message_id, message.key)


def test_dead_letter_second_one_of_a_message_has_the_same_key() -> None:
    message = Message("alerts", "3:14", b"x")
    keys = {
        dead_letter(message, DeadLetterCause("decode", reason), "echo@1").key for reason in ("empty", "internal_error")
    }
    assert keys == {b"alerts/3:14"}


def test_folder_sink_keeps_dead_letters_of_files_with_the_same_name(tmp_path: Path) -> None:
    letters = FolderSink(tmp_path)
    for night in (b"first", b"second", b"first"):
        record = dead_letter(Message("night", "alert.avro#0", night), DeadLetterCause("decode", "empty"), "echo@1")
        assert letters.publish([record]) == [None]
    assert sorted(message.value for message in FileSource(tmp_path).poll(10, 0)) == [b"first", b"second"]


def test_ledger_unresolved_alerts_do_not_balance() -> None:
    ledger, messages = DeliveryLedger(Metrics()), [Message("a", str(number), b"") for number in range(5)]
    ledger.open(messages)
    for message in messages[:3]:
        ledger.resolve(message, 0, "classified")
    ledger.resolve(messages[3], 0, "dead", "empty")
    with pytest.raises(UnbalancedError, match="'pending': 1"):
        ledger.check()
    ledger.close(messages)
    ledger.check()
    assert ledger.summary() == {"a": {"in": 5, "classified": 3, "dead:empty": 1, "returned": 1, "pending": 0}}
