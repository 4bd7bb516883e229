"""A batch of messages on its way, and the account of each alert in it: nothing is done before everything is settled."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from models.alerts.packet import Packet
from service.stream.accounts import Accounts, Ending, LostAlertError
from service.stream.letters import Death
from service.stream.messages import Message

NAMED: Final = 5
"""How many lost alerts are named at most."""


class Alert(NamedTuple):
    """One alert of a message."""

    message: Message
    number: int
    packet: Packet


class Buried(NamedTuple):
    """One alert that is given up, and why; number None is a whole message."""

    message: Message
    number: int | None
    death: Death


Place = tuple[str, str]


class Batch:
    """Messages that were taken together.

    Each message is one alert until it is known how many it holds (:meth:`hold`). Every alert is open until it is
    settled, by its place and number: answered, buried, or given back. So an alert that a stage has dropped, or that two
    stages have answered, is found (:meth:`check`, :meth:`answered`) and named.

    Attributes
    ----------
    taken : as the source gave them.
    deaths : alerts that are given up.
    received_ms : when they came, milliseconds since 1970.
    """

    def __init__(self, taken: Sequence[Message], accounts: Accounts, received_ms: int) -> None:
        self.taken = taken
        self.deaths: list[Buried] = []
        self.received_ms = received_ms
        self._accounts = accounts
        self._open: dict[Place, dict[int, str]] = {}  # by message: numbers of open alerts, and their ids where known
        for message in taken:
            self._open[_place(message)] = {0: ""}
            accounts.take(message.topic)

    def hold(self, message: Message, ids: Sequence[str]) -> None:
        """Note how many alerts a message holds, and what they call themselves."""
        self._accounts.take(message.topic, len(ids) - len(self._open[_place(message)]))
        self._open[_place(message)] = dict(enumerate(ids))

    def bury(self, message: Message, number: int | None, death: Death) -> None:
        """Give up an alert, or all alerts of a message."""
        self.deaths.append(Buried(message, number, death))

    def answered(self, alerts: Iterable[tuple[Message, int, str, str]]) -> None:
        """Settle alerts that were acknowledged: message, number, ending and reason of each.

        Raises
        ------
        LostAlertError
            When one has come to an end before.
        """
        for message, number, ending, reason in alerts:
            self._settle(message, number, "classified" if ending == "classified" else "abstained", reason)

    def buried(self, written: Iterable[Message]) -> None:
        """Settle alerts that were given up, of messages whose letters are acknowledged."""
        places = {_place(message) for message in written}
        for message, number, death in self.deaths:
            if _place(message) not in places:
                continue
            for one in self._numbers(message, number):
                self._settle(message, one, "dead", death.reason)
        self.deaths = [one for one in self.deaths if _place(one.message) not in places]

    def _settle(self, message: Message, number: int, ending: Ending, reason: str = "") -> None:
        if self._open[_place(message)].pop(number, None) is None:
            raise LostAlertError(f"{_name(_place(message), number, '')} came to a second end: {ending}")
        self._accounts.settle(message.topic, ending, reason)

    def let_go(self, message: Message) -> None:
        """Give back what is open of a message: others answer it, or it is delivered again."""
        opened = self._open[_place(message)]
        self._accounts.settle(message.topic, "returned", count=len(opened))
        opened.clear()
        self.deaths = [one for one in self.deaths if _place(one.message) != _place(message)]

    def give_back(self) -> None:
        """Give back whatever is open."""
        for message in self.taken:
            self.let_go(message)

    def check(self, answered: Iterable[tuple[Message, int]] = (), written: Iterable[Message] = ()) -> None:
        """Raise LostAlertError, with their names, when alerts are open although every stage is through with them.

        Parameters
        ----------
        answered, written : what is about to be settled: alerts with an answer, messages whose letters are written.
        """
        covered = {(_place(message), number) for message, number in answered}
        places = {_place(message) for message in written}
        for message, number, _ in self.deaths:
            if _place(message) in places:
                covered |= {(_place(message), one) for one in self._numbers(message, number)}
        lost = [
            (message, number, alert_id)
            for message in self.taken
            for number, alert_id in self._open[_place(message)].items()
            if (_place(message), number) not in covered
        ]
        for message, number, _ in lost:
            self._settle(message, number, "lost")
        if lost:
            names = [_name(_place(message), number, alert_id) for message, number, alert_id in lost[:NAMED]]
            more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
            raise LostAlertError(f"no stage has brought to an end: {', '.join(names)}{more}")

    def _numbers(self, message: Message, number: int | None) -> list[int]:
        """The alerts that a death speaks of; those of a whole message that are still open."""
        return list(self._open[_place(message)]) if number is None else [number]


def _place(message: Message) -> Place:
    return message.topic, message.place


def _name(place: Place, number: int, alert_id: str) -> str:
    called = f" ({alert_id})" if alert_id else ""
    return f"alert {number}{called} of {place[0]} {place[1]}"
