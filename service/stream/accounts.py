"""The account of every alert: in = classified + abstained + dead + returned, for each topic, at every shutdown.

An alert is *in* when it was taken from the broker, and leaves in exactly one way: the sink acknowledged its
classification, or its abstention, or the dead letters its letter; or it was *returned*: given up before any of that,
because the worker stopped or failed or its partition was given to others, and the broker delivers it again. An alert
that came to none of these ends is *lost* between the stages: an error, after which the worker stops and the broker
delivers the alert again.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

from service.observe.metrics import Metrics

Ending = Literal["classified", "abstained", "dead", "returned", "lost"]
TOPICS: Final = 256
"""Topics that are told apart; names beyond are one, ``other``, as letters may bring any number of them."""
OTHER: Final = "other"


class UnbalancedError(Exception):
    """Alerts went in and did not come out: a bug, and alerts may be lost."""


class LostAlertError(UnbalancedError):
    """An alert that fell between the stages, or came to two ends; says which."""


class Accounts:
    """Counts alerts; used on one thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._in: Counter[str] = Counter()
        self._out: dict[str, Counter[tuple[Ending, str]]] = {}

    def take(self, topic: str, count: int = 1) -> None:
        """Count alerts that came in."""
        topic = self._label(topic)
        self._in[topic] += count
        self._metrics.stream_in.labels(topic).inc(count)

    def settle(self, topic: str, ending: Ending, reason: str = "", count: int = 1) -> None:
        """Count alerts that have come to an end."""
        topic = self._label(topic)
        if count:
            self._out.setdefault(topic, Counter())[ending, reason] += count
            self._metrics.stream_out.labels(topic, ending, reason).inc(count)

    def _label(self, topic: str) -> str:
        return topic if topic in self._in or len(self._in) < TOPICS else OTHER

    @property
    def pending(self) -> int:
        """Alerts that are in and have come to no end."""
        return self._in.total() - sum(endings.total() for endings in self._out.values())

    def summary(self) -> dict[str, Mapping[str, int]]:
        """What became of the alerts of each topic, reasons beside endings."""
        told: dict[str, Mapping[str, int]] = {}
        for topic, count in self._in.items():
            endings = self._out.get(topic, Counter())
            named = {f"{ending}:{reason}" if reason else ending: n for (ending, reason), n in sorted(endings.items())}
            told[topic] = {"in": count, **named, "pending": count - endings.total()}
        return told

    def check(self) -> None:
        """Raise UnbalancedError unless every alert has come to exactly one end, and not to be lost."""
        wrong = {topic: told for topic, told in self.summary().items() if told["pending"] or told.get("lost")}
        if wrong:
            raise UnbalancedError(f"alerts without an end, or with two: {wrong}")
