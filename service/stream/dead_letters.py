"""Dead letters: messages that could not be processed, with everything needed to retry them.

A dead letter is an ordinary record, so that any broker can store it. It has the value, key and headers of the message,
and headers ``nightjar-dead-*`` that describe the failure. A replay of dead letters restores the messages
(:func:`restore`).
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.service.stream.messages import MAX_TOPIC_LENGTH, DeadLetterCause, Headers, Message, Record

PREFIX: Final = "nightjar-dead-"
NO_KEY: Final = "none"
SHORT_BYTES: Final = 64 << 10
"""Bytes of the value and of the original key that a shortened dead letter keeps."""
SHORT_KEY_BYTES: Final = 4 << 10
"""Maximum bytes of the record key of a shortened dead letter; a longer key is replaced by its hash."""
_LONGEST_FACTS: Final[Mapping[str, int]] = {
    "topic": MAX_TOPIC_LENGTH,
    "place": 1024,  # name of an archive and path in it; at most 40 for brokers
    "timestamp": 20,  # any 64-bit integer
    "key": 2 << 20,  # in hexadecimal; by default brokers accept records of a megabyte
}
"""Headers that identify the message of a dead letter, with their maximum length in bytes."""


def dead_letter(message: Message, cause: DeadLetterCause, model: str) -> Record:
    """Return the dead letter of a message.

    Its key identifies the message, so that a second dead letter of the message replaces the first in a folder or a
    compacted topic.
    """
    facts = {
        "stage": cause.stage,
        "reason": cause.reason,
        "detail": cause.detail[:500],
        "model": model,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "topic": message.topic,
        "place": message.message_id,
        "timestamp": "" if message.timestamp_ms is None else str(message.timestamp_ms),
        "deliveries": str(message.deliveries),
        "key": NO_KEY if message.key is None else message.key.hex(),
    }
    headers = tuple((PREFIX + name, _bytes(value)) for name, value in facts.items())
    own = tuple(header for header in message.headers if not header[0].startswith(PREFIX))  # reserved for Nightjar
    return Record(_bytes(f"{message.topic}/{message.message_id}"), message.value, (*own, *headers))


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # file names need not be UTF-8


def is_dead_letter(record: Record) -> bool:
    """Return True for a record that :func:`dead_letter` has made."""
    return any(name == PREFIX + "stage" for name, _ in record.headers)


def is_shortened(record: Record) -> bool:
    """Return True for a dead letter that holds only the beginning of its message."""
    return any(name == PREFIX + "length" for name, _ in record.headers)


def shorten(record: Record) -> Record:
    """Return the dead letter with the beginning of its value, and the length and SHA-256 of the whole value.

    The headers of the message are dropped and a long key is replaced by its hash, so that the result is small for any
    message. A shortened dead letter is returned unchanged.
    """
    if is_shortened(record):
        return record
    whole = {"length": str(len(record.value)), "sha256": hashlib.sha256(record.value).hexdigest()}
    own = [(name, value[: 2 * SHORT_BYTES]) for name, value in record.headers if name.startswith(PREFIX)]
    headers = (*own, *((PREFIX + name, value.encode()) for name, value in whole.items()))
    long = len(record.key) > SHORT_KEY_BYTES
    key = b"sha256:" + hashlib.sha256(record.key).hexdigest().encode() if long else record.key
    return Record(key, record.value[:SHORT_BYTES], headers)


def restore(message: Message) -> Message:
    """Return the original message of a dead letter; return any other message unchanged.

    The token stays that of the dead letter, so that its source can acknowledge it.
    """
    facts = _facts(message.headers)
    if facts is None:
        return message
    key = facts["key"]
    return replace(
        message,
        topic=facts["topic"],
        message_id=facts["place"],
        key=None if key == NO_KEY else bytes.fromhex(key),
        headers=tuple(header for header in message.headers if not header[0].startswith(PREFIX)),
        timestamp_ms=milliseconds(facts["timestamp"]),
    )


def _facts(headers: Headers) -> Mapping[str, str] | None:
    """Return the facts in the headers of a dead letter; None for any other message."""
    facts = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    if not _LONGEST_FACTS.keys() <= facts.keys():
        return None
    if any(len(facts[name]) > longest for name, longest in _LONGEST_FACTS.items()):
        return None
    texts = {name: value.decode(errors="replace") for name, value in facts.items()}
    valid_key = all(c in "0123456789abcdef" for c in texts["key"]) or texts["key"] == NO_KEY
    return texts if valid_key and len(texts["key"]) % 2 == 0 else None


def describe(message: Message) -> str:
    """Return a summary of a dead letter as text: its message, stage and reason, without the bytes.

    Control characters are escaped, since headers may contain any bytes.
    """
    headers = {name: value.decode(errors="backslashreplace") for name, value in message.headers}
    facts = {name.removeprefix(PREFIX): value for name, value in headers.items() if name.startswith(PREFIX)}
    if not facts:
        return f"{printable(message.topic)} {printable(message.message_id)}\n  not a dead letter\n"
    size = f"{len(message.value)} bytes"
    if "length" in facts:
        size = f"first {len(message.value)} of {facts['length']} bytes, SHA-256 {facts.get('sha256', '')}"
    names = ("stage", "reason", "detail", "time", "model", "deliveries")
    shown: dict[str, str] = {name: facts[name] for name in names if name in facts}
    shown["value"] = size
    title = f"{facts.get('topic', '')} {facts.get('place', '')}"
    return "\n".join([printable(title), *(f"  {name:<10} {printable(value)}" for name, value in shown.items()), ""])


def printable(text: str) -> str:
    """Return a text with its control characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
