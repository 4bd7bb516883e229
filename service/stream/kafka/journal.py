"""What was being worked on when a worker died: kept in the metadata of the committed offset, for the next owner.

Kafka does not count deliveries. So each commit says beside the offset how far messages had been handed on
(:attr:`Entry.reach`), and an owner that takes leave of a partition says nothing beside it. Who finds an entry knows
that its predecessor died over the messages between the offset and the reach, and how many died there before:

- after a first death they are handed on as ever, but none before an entry that names it has been acknowledged;
- after :data:`ALONE_AFTER` deaths each is handed on alone, in order, with nothing else under way in the process, after
  an entry that names it and counts the try. Whoever has been tried alone too often is a dead letter.

Deaths are forgotten once all suspects are done, and a batch more of what nobody had time to name.
"""

from dataclasses import dataclass, replace
from typing import Final

from models.limits import whole_number

ALONE_AFTER: Final = 2
"""Deaths after which suspects are tried alone; machines that lose power twice in a row are rare."""
UNNAMED: Final = 256
"""Messages beyond the reach that may have been handed on before the reach was told."""
_SIGN: Final = "nightjar/1"


@dataclass(frozen=True, slots=True)
class Entry:
    """What an owner says beside the offset that it commits.

    Attributes
    ----------
    deaths : owners that died in a row before this one.
    reach : the offset before which messages have been handed on.
    alone : the offset of the message that is tried alone, None when none is.
    tries : how often that one has been tried alone, this time included.
    """

    deaths: int
    reach: int
    alone: int | None = None
    tries: int = 0

    def __str__(self) -> str:
        """The metadata of the commit."""
        alone = "-" if self.alone is None else self.alone
        return f"{_SIGN} {self.deaths} {self.reach} {alone} {self.tries}"

    @classmethod
    def parse(cls, metadata: str | None) -> "Entry | None":
        """Return the entry that metadata holds; None for what a farewell leaves, or anybody else has written."""
        sign, *words = (metadata or "").split(" ")
        if sign != _SIGN or len(words) != 4:
            return None
        deaths, reach, tries = (whole_number(words[place]) for place in (0, 1, 3))
        alone = whole_number(words[2])
        if deaths is None or reach is None or tries is None or (alone is None and words[2] != "-"):
            return None
        return cls(deaths, reach, alone, tries)


class Journal:
    """The journal of one partition, from its assignment to its loss.

    Parameters
    ----------
    found : the entry beside the committed offset, None after a farewell.
    max_deliveries : deliveries that a message may have had.

    Attributes
    ----------
    acknowledged : the last entry of ours that the broker has, None before the first.
    """

    def __init__(self, found: Entry | None, max_deliveries: int) -> None:
        self._found = found
        self._max_deliveries = max_deliveries
        self._entry = Entry(0 if found is None else found.deaths + 1, 0 if found is None else found.reach)
        self._suspects_end = 0 if found is None else found.reach
        self.acknowledged: Entry | None = None

    @property
    def entry(self) -> Entry:
        """What the next commit is to say."""
        return self._entry

    @property
    def deaths(self) -> int:
        """Owners that died in a row before this one."""
        return self._entry.deaths

    def reach_to(self, end: int) -> None:
        """Note that messages before an offset are about to be handed on."""
        if end > self._entry.reach:
            self._entry = replace(self._entry, reach=end)

    def may_go(self, offset: int) -> bool:
        """Whether a message may be handed on as far as the broker knows of it; among others, or alone."""
        told = self.acknowledged
        if told is None:
            return False
        if self.wants_alone(offset):
            return told.alone == offset
        return self.deaths == 0 or told.reach > offset

    def wants_alone(self, offset: int) -> bool:
        """Whether a message may be handed on only while nothing else is under way."""
        return self.deaths >= ALONE_AFTER and offset < self._suspects_end

    def name_alone(self, offset: int) -> None:
        """Note which message is tried alone next."""
        if self._entry.alone != offset:
            self._entry = replace(self._entry, alone=offset, tries=self._tries(offset) + 1)

    def deliveries(self, offset: int) -> int:
        """How often a message has been delivered, this time included, as far as it can be blamed for it.

        One that only was under way with others when workers died is not delivered too often by that.
        """
        if offset >= self._suspects_end or not self.deaths:
            return 1
        tries = self._tries(offset)
        if tries:
            return ALONE_AFTER + tries + 1
        return min(1 + min(self.deaths, ALONE_AFTER), self._max_deliveries)

    def _tries(self, offset: int) -> int:
        """How often a message was tried alone before."""
        return self._found.tries if self._found is not None and self._found.alone == offset else 0

    def done_before(self, offset: int, caught_up: bool) -> None:
        """Note that everything before an offset is done; forget deaths behind which all suspects lie.

        Parameters
        ----------
        caught_up : whether nothing more waits at the broker, nor here.
        """
        if self._entry.alone is not None and offset > self._entry.alone:
            self._entry = replace(self._entry, alone=None, tries=0)
        passed = offset >= self._suspects_end + UNNAMED or (caught_up and offset >= self._suspects_end)
        if self.deaths and passed:
            self._entry = replace(self._entry, deaths=0)
