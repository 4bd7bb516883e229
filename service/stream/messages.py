"""Messages and results that move through the worker; the protocols of its ends, :class:`Source` and :class:`Sink`.

Both ends block and are used from threads: a source's ``poll``, ``keep_alive`` and ``close`` from one, which owns it;
all else of a source, and everything of a sink, from several at once.

What fails for now is tried again after a pause that doubles, up to ten seconds, with jitter (:func:`backoff`);
:class:`Troubles` knows what fails.

A message that nobody could answer becomes a dead letter (:func:`dead_letter`), with everything needed to try again. It
is an ordinary record whose value, key and headers are the message's own; what happened is in further headers. So it
survives any broker, and a worker that reads one takes it for the message it was (:func:`restore`).
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from nightjar_alerts.models.alerts.packet import Packet
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.limits import milliseconds
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.serving import ModelHandle

log = structlog.get_logger(__name__)

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes as a broker delivered them.

    Attributes
    ----------
    topic : topic, stream or folder.
    place : where in the topic, as the broker counts (``partition:offset``, a stream id, a file name); unique there.
    timestamp_ms : the broker's, milliseconds since 1970; None when it has none.
    deliveries : how often it has been handed out, as far as the broker counts that.
    token : the source's own, for :meth:`Source.acknowledge`.
    unread : True where the bytes were not fetched, as fetching may be what kills the process; its dead letter has none.
    tombstone : True where the broker holds a null value: there is nothing to classify, and nothing to keep.
    """

    topic: str
    place: str
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    deliveries: int = 1
    token: object = None
    unread: bool = False
    tombstone: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes to publish. Records with the same key say the same: their readers may keep any one of them."""

    key: bytes
    value: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Status of a source with its broker.

    Attributes
    ----------
    trouble : why nothing can be taken, in words; empty when nothing is known to be wrong.
    assigned : partitions that are this worker's; None where the broker knows of none.
    lag : messages that wait at the broker or are not yet done, by topic and partition ("" where there are none).
    waiting : messages at the broker that could be taken now, as far as it is known.
    member : False while the group that shares the topics does not count this worker in.
    """

    trouble: str = ""
    assigned: int | None = None
    lag: Mapping[tuple[str, str], int] = field(default_factory=dict)
    waiting: int = 0
    member: bool = True


class TransientError(Exception):
    """The broker cannot be used now; the same call may succeed later."""


class FatalError(Exception):
    """The client of a broker can do nothing more: the process must end, and its supervisor start another one."""


class PermanentError(Exception):
    """The broker will never accept this record."""


PART_MESSAGES: Final = 64
"""Most messages that are published together where a source has a commit window."""


class Source(Protocol):
    """End of a worker that gives it messages."""

    finite: bool
    """True where it ends: then ``poll`` returning nothing means that there is nothing more."""

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages; waits about ``timeout`` seconds for the first. Raises TransientError."""

    def keep_alive(self, seconds: float) -> None:
        """Stay a member of the group while nothing can be taken, for a while at most; called instead of ``poll``."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Note that these need not be delivered again. Raises TransientError: then they may be, and nothing is lost."""

    def commit_window(self) -> int | None:
        """Return how many messages more may be answered before offsets are committed; None for any number."""

    def refusal(self) -> str:
        """Return why the broker refuses us, in words; empty when it does not, or is silent. Asked once, at first."""

    def owns(self, message: Message) -> bool:
        """Return whether a message is still ours to answer: not when others have been given its partition since."""

    def status(self) -> SourceStatus:
        """Return the status with the broker; asked a few times a minute."""

    def close(self, clean: bool = True) -> None:
        """Give back whatever was not done.

        Parameters
        ----------
        clean : False when what is not done may be what made the worker end: the broker shall count that.
        """


class FiniteSource:
    """Common part of the sources that end: files, and replays between two moments. No group, nothing to commit."""

    finite = True

    def keep_alive(self, seconds: float) -> None:
        """Sleep: nobody expels us."""
        time.sleep(seconds)

    def commit_window(self) -> None:
        """Return no bound: there is nothing to commit."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Do nothing: what has been read is not kept."""

    def refusal(self) -> str:
        """Return nothing: a source that may not be read raises when it is opened."""
        return ""

    def owns(self, message: Message) -> bool:
        """Return True: nobody else is given what is read here."""
        return True

    def status(self) -> SourceStatus:
        """Return no backlog: a replay is behind by intention."""
        return SourceStatus()

    def close(self, clean: bool = True) -> None:
        """Do nothing: nothing is open, and nobody counts deliveries."""


class Sink(Protocol):
    """End of a worker that takes its records."""

    def publish(self, records: Sequence[Record]) -> list[PermanentError | TransientError | None]:
        """Hand over and wait: for each record, None once it is acknowledged, or why it was not."""

    def refusal(self) -> str:
        """Return a refusal, as a source does."""

    @property
    def trouble(self) -> str:
        """Return why nothing can be published, in words, as far as it is known before anybody tries."""

    def close(self) -> None:
        """End; whatever was published has been acknowledged before."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An alert with its outcome, classified or abstained.

    Attributes
    ----------
    number : of the alert in its message; a container may hold several.
    received_ms : when the message came, milliseconds since 1970.
    prior : name of the class shares that the answer assumes where the model has them; empty for the model's own.
    """

    message: Message
    number: int
    packet: Packet
    outcome: Outcome
    handle: ModelHandle
    received_ms: int
    prior: str = ""

    @property
    def bundle(self) -> Bundle:
        """Model that answered."""
        return self.handle.bundle

    @property
    def key(self) -> str:
        """Topic, alert and model: the same for every delivery, another for every model version.

        The topic is part of it because ELAsTiCC sends one alert id with two lengths of history, on two topics.
        """
        manifest = self.bundle.manifest
        alert = self.packet.alert_id or f"{self.message.place}+{self.number}"
        return f"{self.message.topic}/{alert}/{manifest.name}-{manifest.version}"


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds; once a broker is back nobody shall wait for a minute
JITTER: Final = 0.5  # many workers lose a broker at the same moment, and must not all come back at one


def backoff() -> Iterator[float]:
    """Yield seconds to wait after each failed try: twice as long each time, up to ten, with jitter."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(1 - JITTER, 1 + JITTER)
        pause = min(LONGEST_PAUSE, 2 * pause)


class Troubles:
    """Troubles that stand now, by step of the worker, for probes and logs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._now: dict[str, str] = {}

    def begin(self, step: str, reason: str) -> None:
        """Note a failed try."""
        self._metrics.stream_retries.labels(step).inc()
        if step not in self._now:
            log.warning("trying again", step=step, reason=reason)
        self._now[step] = reason

    def end(self, step: str) -> None:
        """Note that a step works."""
        if self._now.pop(step, None) is not None:
            log.info("works again", step=step)

    def __str__(self) -> str:
        """Return everything that fails, in words; empty when nothing does."""
        return "; ".join(f"{step}: {reason}" for step, reason in self._now.items())

    async def wait(self, step: str, reason: str, pause: float) -> None:
        """Note a failed try and pause."""
        self.begin(step, reason)
        await asyncio.sleep(pause)


PREFIX: Final = "nightjar-dead-"
NO_KEY: Final = "none"
SHORT_BYTES: Final = 64 << 10
"""Bytes kept of the value, and of the key, of a message whose dead letter is too large for where it goes."""
SHORT_KEY_BYTES: Final = 4 << 10
"""Bytes of a record's key beyond which a shortened dead letter has the key's hash in its place."""
LONGEST_TOPIC: Final = 255
"""Longest name of a topic that is believed: Kafka allows 249 characters, file systems 255 bytes."""
_LONGEST_FACTS: Final[Mapping[str, int]] = {
    "topic": LONGEST_TOPIC,
    "place": 1024,  # an archive's name and a path in it; of brokers, no more than 40
    "timestamp": 20,  # any number of 64 bits
    "key": 2 << 20,  # in hexadecimal; brokers take records of a megabyte unless configured otherwise
}
"""Facts that a dead letter tells about its message, and the most bytes of each: more was not written by us."""


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Cause for which a message or an alert is given up: the stage, a machine-readable reason, words for people."""

    stage: str
    reason: str
    detail: str = ""


def dead_letter(message: Message, cause: DeadLetterCause, model: str) -> Record:
    """Return the dead letter of a message.

    Its record key names the message, so that a second dead letter of it replaces the first in a folder or a compacted
    topic.
    """
    facts = {
        "stage": cause.stage,
        "reason": cause.reason,
        "detail": cause.detail[:500],
        "model": model,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "topic": message.topic,
        "place": message.place,
        "timestamp": "" if message.timestamp_ms is None else str(message.timestamp_ms),
        "deliveries": str(message.deliveries),
        "key": NO_KEY if message.key is None else message.key.hex(),
    }
    headers = tuple((PREFIX + name, _bytes(value)) for name, value in facts.items())
    own = tuple(header for header in message.headers if not header[0].startswith(PREFIX))  # only we write those
    return Record(_bytes(f"{message.topic}/{message.place}"), message.value, (*own, *headers))


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # names of files need be no UTF-8


def is_shortened(record: Record) -> bool:
    """Return True for a dead letter that holds the beginning of its message alone."""
    return any(name == PREFIX + "length" for name, _ in record.headers)


def shorten(record: Record) -> Record:
    """Return the dead letter with the beginning of the value alone, and the length and SHA-256 of the whole.

    The message's own headers are left out, and a long key is replaced by its hash: whatever the message is, the result
    is small. One that is short already is returned as it is.
    """
    if is_shortened(record):
        return record
    whole = {"length": str(len(record.value)), "sha256": hashlib.sha256(record.value).hexdigest()}
    ours = [(name, value[: 2 * SHORT_BYTES]) for name, value in record.headers if name.startswith(PREFIX)]
    headers = (*ours, *((PREFIX + name, value.encode()) for name, value in whole.items()))
    long = len(record.key) > SHORT_KEY_BYTES
    key = b"sha256:" + hashlib.sha256(record.key).hexdigest().encode() if long else record.key
    return Record(key, record.value[:SHORT_BYTES], headers)


def restore(message: Message) -> Message:
    """Return the message that a dead letter was; any other message as it is.

    Of the dead letter the token is kept, so that its source can acknowledge it.
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
    """Return the facts in the headers of a dead letter; None when it is none, or not one of ours."""
    facts = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    if not _LONGEST_FACTS.keys() <= facts.keys():
        return None
    if any(len(facts[name]) > longest for name, longest in _LONGEST_FACTS.items()):
        return None
    texts = {name: value.decode(errors="replace") for name, value in facts.items()}
    sound = all(c in "0123456789abcdef" for c in texts["key"]) or texts["key"] == NO_KEY
    return texts if sound and len(texts["key"]) % 2 == 0 else None
