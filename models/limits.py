"""Bounds on whatever comes from outside: integers, times, depth, size and cost, for HTTP and streams alike.

Text from outside is converted to numbers here only. Python refuses to convert thousands of digits, floats overflow at
309 of them and clocks end sooner, each with another exception; :func:`whole_number` and :func:`milliseconds` return
None instead. The depth of documents and the size of a schema are looked at before anything is built from them (the
constants below, used by :mod:`models.alerts`), and the time of a packet while it is read (:class:`Allowance`), on the
clock of the thread's own work: a machine that was asleep or is busy otherwise costs no packet its answer.
"""

import re
import time
from collections.abc import Callable
from typing import Final

LARGEST_INT64: Final = 2**63 - 1
LATEST_MILLISECONDS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, where Python's calendar ends."""
MAX_DIGITS: Final = 19
"""Digits of the largest integer of 64 bits."""

MAX_SCHEMA_BYTES: Final = 192 << 10
"""The largest real schema, LSST 4.1 with its documentation, has 57 kB."""
MAX_SCHEMA_DEPTH: Final = 32
"""Counted through references to named types; real schemas have 8."""
MAX_SCHEMA_NODES: Final = 20_000
"""Types of a schema, every reference written out and every branch of a union counted; real ones have under 2,000."""
MAX_NEW_SCHEMAS: Final = 16
"""Most schemas in one request that were not seen before."""
PACKET_SECONDS: Final = 20.0
"""Seconds of work on one packet. The largest lawful one takes about a second."""

_DIGITS: Final = re.compile(rf"[0-9]{{1,{MAX_DIGITS}}}")


def whole_number(text: str | bytes | int | None, most: int = LARGEST_INT64, least: int = 0) -> int | None:
    """Return the integer between ``least`` and ``most`` that some text (ASCII digits alone) or number is, else None.

    Never raises, whatever the text holds and however long it is.
    """
    if isinstance(text, bool) or text is None:
        return None
    if isinstance(text, int):
        return text if least <= text <= most else None
    if len(text) > MAX_DIGITS:
        return None
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if least <= value <= most else None


def milliseconds(text: str | bytes | int | None) -> int | None:
    """Return the milliseconds since 1970 that a broker or client states, None for what is no time of this calendar.

    A time is at most :data:`LATEST_MILLISECONDS`, so that it is exact as a float and has a date.
    """
    return whole_number(text, most=LATEST_MILLISECONDS)


class TooCostly(Exception):
    """Something from outside has used up what one of its kind may cost."""


class Allowance:
    """Seconds of work that one packet may take, on the clock of the thread that works.

    Parameters
    ----------
    seconds : from now on.
    clock : of seconds of work; the thread's processor time.
    """

    __slots__ = ("_clock", "_until", "seconds")

    def __init__(self, seconds: float = PACKET_SECONDS, clock: Callable[[], float] = time.thread_time) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until = clock() + seconds

    def check(self) -> None:
        """Raise TooCostly when the seconds are used up."""
        if self._clock() > self._until:
            raise TooCostly(f"reading it took more than {self.seconds:g} s of work")
