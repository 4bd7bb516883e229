"""Batches of messages, and the account of each alert in them: a batch is done when every alert of it is settled."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from nightjar_alerts.models.alerts.packet import Packet
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.stream.messages import LONGEST_TOPIC, DeadLetterCause, Message

Ending = Literal["classified", "abstained", "dead", "tombstone", "returned", "lost"]
TOPICS: Final = 256
"""Most topics with a count of their own. Others, and long names, are ``other``: dead letters may bring any number."""
OTHER: Final = "other"


class UnbalancedError(Exception):
    """The account does not balance: a bug, and alerts may be lost."""


class LostAlertError(UnbalancedError):
    """An alert that fell between the stages, or came to two ends; says which."""


class Accounts:
    """Accounts of all alerts: in = classified + abstained + dead + tombstones + returned, for each topic.

    They balance at every shutdown. An alert is *in* when it was taken from the broker, and leaves in exactly one way:
    the sink acknowledged its classification, its abstention or its dead letter; it was a *tombstone*, a null value; or
    it was *returned*: given back before any of that, because the worker stopped or failed or its partition was given to
    others, and the broker delivers it again. An alert that came to none of these ends is *lost* between the stages: an
    error, after which the worker stops and the broker delivers the alert again.

    Used on one thread.
    """

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
        # A pattern may match any number of topics, and every label of a metric takes memory for good.
        if len(topic) > LONGEST_TOPIC:
            return OTHER
        return topic if topic in self._in or len(self._in) < TOPICS else OTHER

    @property
    def pending(self) -> int:
        """Alerts that are in and have come to no end."""
        return self._in.total() - sum(endings.total() for endings in self._out.values())

    def count(self, *endings: Ending) -> int:
        """Return the number of alerts that came to one of these ends, in all topics."""
        counts = (counter.items() for counter in self._out.values())
        return sum(number for items in counts for (ending, _), number in items if ending in endings)

    def summary(self) -> dict[str, Mapping[str, int]]:
        """Return what became of the alerts of each topic, reasons beside endings."""
        summary: dict[str, Mapping[str, int]] = {}
        for topic, count in self._in.items():
            endings = self._out.get(topic, Counter())
            by_ending = {
                f"{ending}:{reason}" if reason else ending: n for (ending, reason), n in sorted(endings.items())
            }
            summary[topic] = {"in": count, **by_ending, "pending": count - endings.total()}
        return summary

    def check(self) -> None:
        """Raise UnbalancedError unless every alert has come to exactly one end, and not to be lost."""
        wrong = {topic: counts for topic, counts in self.summary().items() if counts["pending"] or counts.get("lost")}
        if wrong:
            raise UnbalancedError(f"alerts without an end, or with two: {wrong}")


MAX_NAMED: Final = 5
"""Number of lost alerts that are named at most."""


class Alert(NamedTuple):
    """One alert of a message."""

    message: Message
    number: int
    packet: Packet


class DeadAlert(NamedTuple):
    """One alert that is given up, and why; number None is a whole message."""

    message: Message
    number: int | None
    cause: DeadLetterCause


class Batch:
    """Messages that were taken together.

    Each message is one alert until it is known how many it holds (:meth:`set_alerts`). Every alert is open until it is
    settled, by its message and number: answered, given up, or given back. So an alert that a stage has dropped, or that
    two stages have answered, is found (:meth:`check`, :meth:`settle_answers`) and named. Messages are told apart as
    objects (:func:`identity`): every stage hands on the very ones that were taken.

    Attributes
    ----------
    messages : as the source gave them.
    dead : alerts that are given up.
    received_ms : when they came, milliseconds since 1970.
    on_wait : is called before the batch waits for something outside, for any time: others need not wait for it.
    """

    def __init__(self, messages: Sequence[Message], accounts: Accounts, received_ms: int) -> None:
        self.messages = messages
        self.dead: list[DeadAlert] = []
        self.received_ms = received_ms
        self.on_wait: Callable[[], None] = lambda: None
        self._accounts = accounts
        self._open: dict[int, dict[int, str]] = {}  # by message: numbers of open alerts, and their ids where known
        for message in messages:
            self._open[identity(message)] = {0: ""}
            accounts.take(message.topic)

    def split(self, size: int) -> list["Batch"]:
        """Return batches of so many messages at most, in order, which settle what is open here; the dead are theirs."""
        parts = []
        for first in range(0, len(self.messages), size):
            part = Batch((), self._accounts, self.received_ms)  # its messages are on the account already
            part.messages = self.messages[first : first + size]
            part._open = {one: self._open[one] for one in map(identity, part.messages)}
            part.dead = [one for one in self.dead if part.has(one.message)]
            parts.append(part)
        self.dead = []
        return parts

    def has(self, message: Message) -> bool:
        """Return whether a message is one of these."""
        return identity(message) in self._open

    def set_alerts(self, message: Message, ids: Sequence[str]) -> None:
        """Note how many alerts a message holds, and their ids."""
        # It was counted as one when it was taken; after a first try that failed, as many as were found in it then.
        self._accounts.take(message.topic, len(ids) - len(self._open[identity(message)]))
        self._open[identity(message)] = dict(enumerate(ids))

    def give_up(self, message: Message, number: int | None, cause: DeadLetterCause) -> None:
        """Give up an alert, or all alerts of a message."""
        self.dead.append(DeadAlert(message, number, cause))

    def settle_tombstone(self, message: Message) -> None:
        """Settle a message with a null value, unless an earlier attempt at the batch has."""
        if self._open[identity(message)]:
            self._settle(message, 0, "tombstone")

    def settle_answers(self, alerts: Iterable[tuple[Message, int, str, str]]) -> None:
        """Settle alerts that were acknowledged: message, number, ending and reason of each.

        Raises
        ------
        LostAlertError
            When one has come to an end before.
        """
        for message, number, ending, reason in alerts:
            self._settle(message, number, "classified" if ending == "classified" else "abstained", reason)

    def settle_dead_letters(self, messages: Iterable[Message]) -> None:
        """Settle alerts that were given up, of messages whose dead letters are acknowledged."""
        settled_ids = {identity(message) for message in messages}
        for message, number, cause in self.dead:
            if identity(message) not in settled_ids:
                continue
            for one in self._numbers(message, number):
                self._settle(message, one, "dead", cause.reason)
        self.dead = [one for one in self.dead if identity(one.message) not in settled_ids]

    def _settle(self, message: Message, number: int, ending: Ending, reason: str = "") -> None:
        if self._open[identity(message)].pop(number, None) is None:
            raise LostAlertError(f"{_name(message, number, '')} came to a second end: {ending}")
        self._accounts.settle(message.topic, ending, reason)

    def return_message(self, message: Message) -> None:
        """Count what is open of a message as returned: others answer it, or it is delivered again."""
        open_alerts = self._open[identity(message)]
        self._accounts.settle(message.topic, "returned", count=len(open_alerts))
        open_alerts.clear()
        self.dead = [one for one in self.dead if identity(one.message) != identity(message)]

    def return_all(self) -> None:
        """Count whatever is open as returned."""
        for message in self.messages:
            self.return_message(message)

    def check(self, answered: Iterable[tuple[Message, int]] = (), written: Iterable[Message] = ()) -> None:
        """Raise LostAlertError, with their names, when alerts are open although every stage is through with them.

        Parameters
        ----------
        answered : alerts with an answer, about to be settled.
        written : messages whose dead letters are written, their alerts about to be settled.
        """
        covered_alerts = {(identity(message), number) for message, number in answered}
        dead_ids = {identity(message) for message in written}
        for message, number, _ in self.dead:
            if identity(message) in dead_ids:
                covered_alerts |= {(identity(message), one) for one in self._numbers(message, number)}
        lost = [
            (message, number, alert_id)
            for message in self.messages
            for number, alert_id in self._open[identity(message)].items()
            if (identity(message), number) not in covered_alerts
        ]
        for message, number, _ in lost:  # so that the account tells them, and does not merely fail to balance
            self._settle(message, number, "lost")
        if lost:
            names = [_name(message, number, alert_id) for message, number, alert_id in lost[:MAX_NAMED]]
            more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
            raise LostAlertError(f"no stage has brought to an end: {', '.join(names)}{more}")

    def _numbers(self, message: Message, number: int | None) -> list[int]:
        """Return the alerts that a :class:`DeadAlert` means; those of a whole message that are still open."""
        return list(self._open[identity(message)]) if number is None else [number]


def identity(message: Message) -> int:
    """Return what tells a message apart from all others that are held, which its place does not.

    Two dead letters of one message lie in two places and are restored to the same one: a worker was killed after it had
    written the dead letter, and before it could acknowledge the message.
    """
    return id(message)


def _name(message: Message, number: int, alert_id: str) -> str:
    suffix = f" ({alert_id})" if alert_id else ""
    return f"alert {number}{suffix} of {message.topic} {message.place}"
