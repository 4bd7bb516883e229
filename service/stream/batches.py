"""Batches of messages that were polled together, and the output of each stage."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.service.stream.messages import AlertResult, DeadLetterCause, Message, identity


class Alert(NamedTuple):
    """One alert of a message; ``number`` is its index in the message."""

    message: Message
    number: int
    packet: Packet


class FailedAlert(NamedTuple):
    """One alert that becomes a dead letter, with the cause; ``number`` is None for a whole message."""

    message: Message
    number: int | None
    cause: DeadLetterCause


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Messages that were polled together, with the output of the stages so far; immutable.

    Each stage returns a new batch: decoding adds ``alerts``, inference replaces them by ``results``, encoding adds the
    record of each result, and every stage adds its failures to ``failed``.

    Attributes
    ----------
    messages : in the order of the source.
    received_ms : time of the poll, milliseconds since 1970.
    alert_ids : ids of the alerts in each decoded message, by index in ``messages``; for the ledger.
    alerts : decoded alerts, to be classified.
    results : classified or abstained alerts, to be published.
    failed : alerts to be written as dead letters.
    tombstones : messages with a null value.
    """

    messages: Sequence[Message]
    received_ms: int
    alert_ids: Mapping[int, Sequence[str]] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    results: tuple[AlertResult, ...] = ()
    failed: tuple[FailedAlert, ...] = ()
    tombstones: tuple[Message, ...] = ()

    def part(self, messages: Sequence[Message]) -> "Batch":
        """Return the batch restricted to some of its messages."""
        chosen = set(map(identity, messages))
        return replace(
            self,
            messages=messages,
            alerts=tuple(alert for alert in self.alerts if identity(alert.message) in chosen),
            results=tuple(result for result in self.results if identity(result.message) in chosen),
            failed=tuple(alert for alert in self.failed if identity(alert.message) in chosen),
            tombstones=tuple(message for message in self.tombstones if identity(message) in chosen),
        )

    def split(self, size: int) -> list["Batch"]:
        """Return parts of at most ``size`` messages, in order."""
        return [self.part(self.messages[first : first + size]) for first in range(0, len(self.messages), size)]

    def fail(self, failed: Iterable[FailedAlert]) -> "Batch":
        """Return the batch with failed alerts added and their results removed."""
        added = tuple(failed)
        numbers = {(identity(alert.message), alert.number) for alert in added}
        results = tuple(result for result in self.results if (identity(result.message), result.number) not in numbers)
        return replace(self, results=results, failed=(*self.failed, *added))

    def first_failures(self) -> list[FailedAlert]:
        """Return the first failure of each message: a message has at most one dead letter."""
        first: dict[int, FailedAlert] = {}
        for alert in self.failed:
            first.setdefault(identity(alert.message), alert)
        return list(first.values())


def merge(batch: Batch, parts: Collection[Batch]) -> Batch:
    """Return the batch with the outputs of its processed parts."""
    return replace(
        batch,
        alerts=tuple(alert for part in parts for alert in part.alerts),
        results=tuple(result for part in parts for result in part.results),
        failed=tuple(alert for part in parts for alert in part.failed),
        tombstones=tuple(message for part in parts for message in part.tombstones),
    )
