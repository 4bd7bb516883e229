"""Dead letters: messages that nobody could answer, kept with everything needed to try again.

A letter is an ordinary record whose value, key and headers are the message's own; what happened is in further headers.
So a letter survives any broker, and a worker that reads one takes it for the message it was.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from service.stream.messages import Headers, Message, Record

PREFIX: Final = "nightjar-dead-"
NO_KEY: Final = "none"


@dataclass(frozen=True, slots=True)
class Death:
    """Why a message is given up: at which stage, a machine-readable reason, words for people."""

    stage: str
    reason: str
    detail: str = ""


def letter(message: Message, death: Death, model: str) -> Record:
    """The dead letter of a message.

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
    headers = tuple((PREFIX + name, value.encode()) for name, value in facts.items())
    return Record(f"{message.topic}/{message.place}".encode(), message.value, (*message.headers, *headers))


def restored(message: Message) -> Message:
    """The message that a letter was; any other message as it is.

    What is kept of the letter is where it lies now, so that its source can be told when it is done.
    """
    facts = _facts(message.headers)
    if facts is None:
        return message
    key = facts["key"]
    return replace(
        message,
        topic=facts["topic"],
        place=facts["place"],
        key=None if key == NO_KEY else bytes.fromhex(key),
        headers=tuple(header for header in message.headers if not header[0].startswith(PREFIX)),
        timestamp_ms=int(facts["timestamp"]) if facts["timestamp"] else None,
    )


def _facts(headers: Headers) -> Mapping[str, str] | None:
    """What a letter says about itself; None when it is none, or not one of ours."""
    facts = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    if not {"topic", "place", "timestamp", "key"} <= facts.keys():
        return None
    told = {name: value.decode(errors="replace") for name, value in facts.items()}
    sound = all(c in "0123456789abcdef" for c in told["key"]) or told["key"] == NO_KEY
    return told if sound and len(told["key"]) % 2 == 0 and (told["timestamp"] or "0").isdecimal() else None
