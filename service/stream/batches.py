"""A batch of messages on its way: what is still to be answered of it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from service.alerts.packet import Packet
from service.stream.accounts import Accounts
from service.stream.letters import Death
from service.stream.messages import Message


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a message."""

    message: Message
    number: int
    packet: Packet


@dataclass(slots=True)
class Batch:
    """Messages that were taken together.

    Attributes
    ----------
    taken : as the source gave them.
    deaths : alerts that are given up, with the message that holds them.
    received_ms : when they came, milliseconds since 1970.
    """

    taken: Sequence[Message]
    accounts: Accounts
    received_ms: int
    deaths: list[tuple[Message, Death]] = field(default_factory=list)
    _open: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Every message is at least one alert."""
        for message in self.taken:
            self._take(message.topic, 1)

    def _take(self, topic: str, count: int) -> None:
        self.accounts.take(topic, count)
        self._open[topic] += count

    def hold(self, message: Message, alerts: int) -> None:
        """A message turned out to hold so many alerts."""
        self._take(message.topic, alerts - 1)

    def bury(self, message: Message, death: Death) -> None:
        """Give up an alert."""
        self.deaths.append((message, death))

    def answered(self, topics: Iterable[tuple[str, str, str]]) -> None:
        """Settle alerts that were acknowledged: their topic, ending and reason."""
        for topic, ending, reason in topics:
            self._open[topic] -= 1
            self.accounts.settle(topic, "classified" if ending == "classified" else "abstained", reason)

    def buried(self) -> None:
        """Settle the alerts that were given up: their letters are acknowledged."""
        for message, death in self.deaths:
            self._open[message.topic] -= 1
            self.accounts.settle(message.topic, "dead", death.reason)
        self.deaths.clear()

    def give_back(self) -> None:
        """Settle what is still open: the broker will deliver it again."""
        for topic, count in self._open.items():
            self.accounts.settle(topic, "returned", count=count)
        self._open.clear()
