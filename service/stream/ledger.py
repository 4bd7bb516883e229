"""Delivery ledger: tracks every alert from its message to its acknowledgement."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.batches import FailedAlert
from nightjar_alerts.service.stream.messages import MAX_TOPIC_LENGTH, AlertResult, Message, identity

Disposition = Literal["classified", "abstained", "dead", "tombstone", "returned", "lost"]
MAX_TOPICS: Final = 256
"""Maximum number of topics that are counted separately. Others, and long names, count as ``other``."""
OTHER: Final = "other"
MAX_NAMED: Final = 5
"""Maximum number of lost alerts that an error names."""


class UnbalancedError(Exception):
    """The ledger does not balance: a bug, and alerts may be lost."""


class LostAlertError(UnbalancedError):
    """An alert that no stage resolved, or that two stages resolved; the text names it."""


class DeliveryLedger:
    """Ledger of all alerts: in = classified + abstained + dead + tombstones + returned, for each topic.

    This must hold at every shutdown. An alert is *in* once it was consumed, and is resolved in exactly one way:

    - *classified*, *abstained* or *dead*: the sink has acknowledged its result or dead letter;
    - *tombstone*: a message with a null value;
    - *returned*: given back before that, because the worker stopped or failed or its partition was reassigned. The
      broker delivers the alert again.

    An alert that is unresolved when its batch is done is *lost*. That is an error: the worker stops, and the broker
    delivers the alert again.

    A message counts as one alert until it is decoded (:meth:`expand`). Messages in flight are distinguished by
    :func:`~nightjar_alerts.service.stream.messages.identity`, so stages must not copy them.

    Not thread-safe.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._in: Counter[str] = Counter()
        self._out: dict[str, Counter[tuple[Disposition, str]]] = {}
        self._open: dict[int, dict[int, str]] = {}  # by message: ids of open alerts, if known, by number

    def open(self, messages: Iterable[Message]) -> None:
        """Record messages that were consumed, each as one unresolved alert."""
        for message in messages:
            self._open[identity(message)] = {0: ""}
            self._count_in(message.topic, 1)

    def expand(self, message: Message, alert_ids: Sequence[str]) -> None:
        """Record the alerts in a message; if it is decoded twice, the second call replaces the first."""
        self._count_in(message.topic, len(alert_ids) - len(self._open[identity(message)]))
        self._open[identity(message)] = dict(enumerate(alert_ids))

    def _count_in(self, topic: str, count: int) -> None:
        topic = self._label(topic)
        self._in[topic] += count
        self._metrics.stream_in.labels(topic).inc(count)

    def resolve(self, message: Message, number: int, disposition: Disposition, reason: str = "") -> None:
        """Resolve an open alert. Raises LostAlertError if it was resolved before."""
        if self._open[identity(message)].pop(number, None) is None:
            raise LostAlertError(f"{_name(message, number, '')} was resolved a second time: {disposition}")
        self._count_out(message.topic, disposition, reason, 1)

    def _count_out(self, topic: str, disposition: Disposition, reason: str, count: int) -> None:
        topic = self._label(topic)
        if count:
            self._out.setdefault(topic, Counter())[disposition, reason] += count
            self._metrics.stream_out.labels(topic, disposition, reason).inc(count)

    def resolve_results(self, results: Iterable[AlertResult]) -> None:
        """Resolve alerts whose results the sink acknowledged, or whose results the format cannot express."""
        for result in results:
            outcome = result.outcome
            disposition: Disposition = "classified" if outcome.status == "classified" else "abstained"
            self.resolve(result.message, result.number, disposition, outcome.reason)

    def resolve_failed(self, failed: Iterable[FailedAlert], written: Iterable[Message]) -> None:
        """Resolve failed alerts of messages whose dead letters were acknowledged."""
        written_ids = set(map(identity, written))
        for alert in failed:
            if identity(alert.message) in written_ids:
                for number in self._numbers(alert):
                    self.resolve(alert.message, number, "dead", alert.cause.reason)

    def resolve_tombstones(self, messages: Iterable[Message]) -> None:
        """Resolve messages with a null value."""
        for message in messages:
            self.resolve(message, 0, "tombstone")

    def give_back(self, messages: Iterable[Message]) -> None:
        """Resolve the open alerts of messages as returned; the broker delivers these messages again."""
        for message in messages:
            open_alerts = self._open[identity(message)]
            self._count_out(message.topic, "returned", "", len(open_alerts))
            open_alerts.clear()

    def close(self, messages: Iterable[Message]) -> None:
        """Give back the open alerts of messages and forget the messages."""
        for message in messages:
            self.give_back([message])
            del self._open[identity(message)]

    def check_resolved(
        self,
        messages: Iterable[Message],
        results: Iterable[AlertResult] = (),
        failed: Iterable[FailedAlert] = (),
        tombstones: Iterable[Message] = (),
    ) -> None:
        """Raise LostAlertError, which names the alerts, if alerts of these messages are open after their batch is done.

        Parameters
        ----------
        results, failed, tombstones : alerts that are about to be resolved.
        """
        covered = {(identity(result.message), result.number) for result in results}
        covered |= {(identity(message), 0) for message in tombstones}
        for alert in failed:
            covered |= {(identity(alert.message), number) for number in self._numbers(alert)}
        lost = [
            (message, number, alert_id)
            for message in messages
            for number, alert_id in self._open[identity(message)].items()
            if (identity(message), number) not in covered
        ]
        for message, number, _ in lost:  # so that the final account shows them as lost
            self.resolve(message, number, "lost")
        if lost:
            names = [_name(message, number, alert_id) for message, number, alert_id in lost[:MAX_NAMED]]
            more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
            raise LostAlertError(f"no stage resolved {', '.join(names)}{more}")

    def _numbers(self, alert: FailedAlert) -> list[int]:
        """Return the numbers of the failed alerts; for a whole message, those of its open alerts."""
        return list(self._open[identity(alert.message)]) if alert.number is None else [alert.number]

    def _label(self, topic: str) -> str:
        # The number of topics of a pattern or of dead letters is unbounded, and metric labels are never freed.
        if len(topic) > MAX_TOPIC_LENGTH:
            return OTHER
        return topic if topic in self._in or len(self._in) < MAX_TOPICS else OTHER

    def count(self, *dispositions: Disposition) -> int:
        """Return the number of alerts with one of these dispositions, in all topics."""
        counts = (counter.items() for counter in self._out.values())
        return sum(number for items in counts for (disposition, _), number in items if disposition in dispositions)

    def summary(self) -> dict[str, Mapping[str, int]]:
        """Return the number of alerts per topic, by disposition and reason."""
        summary: dict[str, Mapping[str, int]] = {}
        for topic, count in self._in.items():
            counts = self._out.get(topic, Counter())
            by_name = {f"{kind}:{reason}" if reason else kind: n for (kind, reason), n in sorted(counts.items())}
            summary[topic] = {"in": count, **by_name, "pending": count - counts.total()}
        return summary

    def check(self) -> None:
        """Raise UnbalancedError unless every alert was resolved exactly once, and none was lost."""
        wrong = {topic: counts for topic, counts in self.summary().items() if counts["pending"] or counts.get("lost")}
        if wrong:
            raise UnbalancedError(f"alerts that were not resolved, or twice: {wrong}")


def _name(message: Message, number: int, alert_id: str) -> str:
    suffix = f" ({alert_id})" if alert_id else ""
    return f"alert {number}{suffix} of {message.topic} {message.message_id}"
