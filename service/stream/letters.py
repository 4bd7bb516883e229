"""Dead letters: messages that nobody could answer, kept with everything needed to try again.

A letter is an ordinary record whose value, key and headers are the message's own; what happened is in further headers.
So a letter survives any broker, and a worker that reads one takes it for the message it was.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from models.limits import milliseconds
from service.stream.messages import Headers, Message, Record

PREFIX: Final = "nightjar-dead-"
NO_KEY: Final = "none"
SHORT_BYTES: Final = 64 << 10
"""Bytes kept of the value, and of the key, of a message whose letter is too large for wherever letters go."""


@dataclass(frozen=True, slots=True)
class Death:
    """Reason for which a message is given up: the stage, a machine-readable reason, words for people."""

    stage: str
    reason: str
    detail: str = ""


def letter(message: Message, death: Death, model: str) -> Record:
    """Return the dead letter of a message.

    Its record key names the message, so that a second letter of the same message replaces the first where keys do.
    """
    facts = {
        "stage": death.stage,
        "reason": death.reason,
        "detail": death.detail[:500],
        "model": model,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "topic": message.topic,
        "place": message.place,
        "timestamp": "" if message.timestamp_ms is None else str(message.timestamp_ms),
        "deliveries": str(message.deliveries),
        "key": NO_KEY if message.key is None else message.key.hex(),
    }
    headers = tuple((PREFIX + name, _bytes(value)) for name, value in facts.items())
    own = tuple(header for header in message.headers if not header[0].startswith(PREFIX))  # such are ours to write
    return Record(_bytes(f"{message.topic}/{message.place}"), message.value, (*own, *headers))


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # names of files need be no UTF-8


def is_shortened(record: Record) -> bool:
    """Return True for a letter that holds the beginning of its message alone."""
    return any(name == PREFIX + "length" for name, _ in record.headers)


def shortened(record: Record) -> Record:
    """Return the letter with the beginning of the value alone, and the length and SHA-256 of the whole.

    The message's own headers are left out; a letter that is short already is returned as it is.
    """
    if is_shortened(record):
        return record
    whole = {"length": str(len(record.value)), "sha256": hashlib.sha256(record.value).hexdigest()}
    ours = [(name, value[: 2 * SHORT_BYTES]) for name, value in record.headers if name.startswith(PREFIX)]
    headers = (*ours, *((PREFIX + name, value.encode()) for name, value in whole.items()))
    return Record(record.key, record.value[:SHORT_BYTES], headers)


def restored(message: Message) -> Message:
    """Return the message that a letter was; any other message as it is.

    What is kept of the letter is where it lies now, so that its source can be told when it is done.
    """
    facts = _facts(message.headers)
    if facts is None:
        return message  # whatever it is: the stages read it as any other
    key = facts["key"]
    return replace(
        message,
        topic=facts["topic"],
        place=facts["place"],
        key=None if key == NO_KEY else bytes.fromhex(key),
        headers=tuple(header for header in message.headers if not header[0].startswith(PREFIX)),
        timestamp_ms=milliseconds(facts["timestamp"]),
    )


def _facts(headers: Headers) -> Mapping[str, str] | None:
    """Return what a letter says about itself; None when it is none, or not one of ours."""
    facts = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    if not {"topic", "place", "timestamp", "key"} <= facts.keys():
        return None
    told = {name: value.decode(errors="replace") for name, value in facts.items()}
    sound = all(c in "0123456789abcdef" for c in told["key"]) or told["key"] == NO_KEY
    return told if sound and len(told["key"]) % 2 == 0 else None
