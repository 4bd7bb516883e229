"""Limits on untrusted input from HTTP and streams: integers, times, depth, size and cost.

Converting untrusted text to numbers can fail with different exceptions: Python refuses thousands of digits, floats
overflow at 309 digits, and dates end in the year 9999. :func:`whole_number` and :func:`milliseconds` return None
instead. :mod:`alerts` checks the depth and size of schemas against the constants below before it builds anything
from them. :class:`Allowance` limits the time spent on a packet. It uses the thread's CPU time, so that packets are not
rejected because the machine was suspended or busy.
"""

import re
import time
from collections.abc import Callable
from typing import Final

LARGEST_INT64: Final = 2**63 - 1
LATEST_MILLISECONDS: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, the end of Python's calendar."""
MAX_DIGITS: Final = 19
"""Number of digits of the largest 64-bit integer."""

MAX_SCHEMA_BYTES: Final = 192 << 10
"""Maximum size of a schema. The largest real one, LSST 4.1 with its documentation, has 57 kB."""
MAX_SCHEMA_DEPTH: Final = 32
"""Maximum nesting of a schema, including references to named types; real schemas have 8 levels."""
MAX_SCHEMA_NODES: Final = 20_000
"""Maximum number of types in a schema with all references expanded and all union branches counted; real ones have under
2,000."""
MAX_NEW_SCHEMAS: Final = 16
"""Maximum number of schemas in one request that were not seen before."""
PACKET_SECONDS: Final = 20.0
"""Maximum CPU seconds for one packet. The largest valid one takes about a second."""

_DIGITS: Final = re.compile(rf"[0-9]{{1,{MAX_DIGITS}}}")


def whole_number(text: str | bytes | int | None, most: int = LARGEST_INT64) -> int | None:
    """Return text (ASCII digits) or a number as an integer, None unless it is one from 0 to ``most``.

    Never raises, whatever the content and length of the text.
    """
    if isinstance(text, bool) or text is None:
        return None
    if isinstance(text, int):
        return text if 0 <= text <= most else None
    if len(text) > MAX_DIGITS:
        return None
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if value <= most else None


def milliseconds(text: str | bytes | int | None) -> int | None:
    """Return milliseconds since 1970 from a broker or client as an integer, None if they are not a valid time.

    Times end at :data:`LATEST_MILLISECONDS`, so they are exact as floats and convert to dates.
    """
    return whole_number(text, most=LATEST_MILLISECONDS)


class TooCostly(Exception):
    """Untrusted input exceeded its allowance of CPU time."""


class Allowance:
    """CPU time that a thread may spend on one packet.

    Parameters
    ----------
    seconds : allowance, from now on.
    clock : returns CPU seconds; by default those of the thread.
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
