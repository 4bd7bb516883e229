"""Recent results for the live view: counts by class, the most unusual objects of the last hour, the newest results.

A :class:`LiveFeed` has the results of all clients. Reading it therefore requires a separate key, the setting
``live_key``, without which the live view is disabled.
"""

import heapq
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from nightjar_alerts.core.result import Classified, ResultFields
from nightjar_alerts.core.serializer import encode_json

MAX_RECENT: Final = 5000
"""Number of results that are kept. If more arrive within :data:`INTERVAL_SECONDS`, the rest is only counted."""
MAX_SHOWN: Final = 50
"""Maximum number of results in one event."""
MAX_UNUSUAL: Final = 20
MINUTES: Final = 60
INTERVAL_SECONDS: Final = 1.0
"""Interval between events."""
MAX_READERS: Final = 16
LIVE_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers of a response with events; the second one disables buffering in nginx."""


DETAILS: Final = ("probabilities", "prediction_set", "coverage", "warnings")
"""Members of a classified result that events contain unchanged."""
DIGITS: Final = 4
"""Decimals of probabilities in events."""


class LiveResult(NamedTuple):
    """One result in an event. ``time`` is in seconds since 1970; ``details`` has the members in :data:`DETAILS`."""

    time: float
    object_id: str
    survey: str
    name: str
    confidence: float
    novelty: float | None
    unusual: bool
    details: Mapping[str, Any]


class LiveFilter(NamedTuple):
    """Filter of the results of a reader; empty or 0 matches any."""

    name: str = ""
    survey: str = ""
    min_confidence: float = 0.0
    min_novelty: float = 0.0
    unusual: bool = False

    def matches(self, result: LiveResult) -> bool:
        """Return whether a result matches the filter."""
        return (
            (not self.name or result.name == self.name)
            and (not self.survey or result.survey == self.survey)
            and result.confidence >= self.min_confidence
            and (result.novelty or 0.0) >= self.min_novelty
            and (result.unusual or not self.unusual)
        )


@dataclass(slots=True)
class _Minute:
    """Counts of one minute, and its most unusual results as a heap of (novelty, number, result)."""

    number: int
    classes: Counter[str] = field(default_factory=Counter)
    without_class: Counter[str] = field(default_factory=Counter)
    unusual: list[tuple[float, int, LiveResult]] = field(default_factory=list)


class LiveFeed:
    """Results of the last hour: the newest, counts by class, and the most unusual. Safe to use from any thread.

    Parameters
    ----------
    clock : seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[LiveResult] = deque(maxlen=MAX_RECENT)
        self._minutes: deque[_Minute] = deque(maxlen=MINUTES)
        self._readers = threading.BoundedSemaphore(MAX_READERS)
        self.count = 0

    def publish(self, results: Sequence[ResultFields], surveys: Sequence[str] | None = None) -> None:
        """Add results; those without a class are only counted by status.

        Parameters
        ----------
        surveys : survey of each result, if the results do not have it.
        """
        now = self._clock()
        with self._lock:
            minute = self._minute(int(now // 60))
            for index, fields in enumerate(results):
                if not isinstance(fields, Classified):
                    minute.without_class[fields.status] += 1
                    continue
                novelty = fields.novelty
                result = LiveResult(
                    now,
                    fields.object_id,
                    surveys[index] if surveys is not None else fields.survey or "",
                    fields.class_name,
                    fields.confidence,
                    novelty,
                    bool(fields.unusual),
                    {name: value for name in DETAILS if (value := getattr(fields, name))},
                )
                self.count += 1
                self._recent.append(result)
                minute.classes[result.name] += 1
                if novelty is not None:
                    entry = (novelty, self.count, result)
                    if len(minute.unusual) < MAX_UNUSUAL:
                        heapq.heappush(minute.unusual, entry)
                    elif novelty > minute.unusual[0][0]:
                        heapq.heapreplace(minute.unusual, entry)

    def _minute(self, number: int) -> _Minute:
        if not self._minutes or self._minutes[-1].number < number:
            self._minutes.append(_Minute(number))
        return self._minutes[-1]

    def since(self, number: int, wanted: LiveFilter, seconds: float) -> dict[str, Any]:
        """Return the document of one event: the results after the first ``number``, newest last, and their rate.

        Parameters
        ----------
        wanted : filter of the results.
        seconds : duration in which these results arrived.
        """
        with self._lock:
            new = self.count - number
            held = min(new, len(self._recent))
            recent = list(islice(self._recent, len(self._recent) - held, None))
        matching = [result for result in recent if wanted.matches(result)]
        step = max(1, -(-len(matching) // MAX_SHOWN))
        shown = matching[::-1][::step][::-1]  # always includes the newest
        return {
            "count": number + new,
            "per_second": new / seconds,
            "matching": len(matching),
            "results": [_members(result) for result in shown],
        }

    def summary(self) -> dict[str, Any]:
        """Return the counts by class, the counts by minute and the most unusual objects of the last hour."""
        first = int(self._clock() // 60) - MINUTES + 1
        with self._lock:
            minutes = [minute for minute in self._minutes if minute.number >= first]
            classes = sum((minute.classes for minute in minutes), Counter[str]())
            without_class = sum((minute.without_class for minute in minutes), Counter[str]())
            per_minute = [0] * MINUTES
            for minute in minutes:
                per_minute[minute.number - first] = minute.classes.total()
            unusual = [entry for minute in minutes for entry in minute.unusual]
        best: dict[tuple[str, str], LiveResult] = {}
        for _, _, result in sorted(
            unusual
        ):  # an object with several alerts is listed once, with its most unusual result
            best.pop((result.survey, result.object_id), None)
            best[result.survey, result.object_id] = result
        most_unusual = list(best.values())[::-1][:MAX_UNUSUAL]
        return {
            "classes": dict(classes.most_common()),
            "without_class": dict(without_class.most_common()),
            "per_minute": per_minute,
            "unusual": [_members(result) for result in most_unusual],
        }

    def add_reader(self) -> bool:
        """Register a reader; return False if there are :data:`MAX_READERS` already."""
        return self._readers.acquire(blocking=False)

    def remove_reader(self) -> None:
        """Unregister a reader."""
        self._readers.release()


def _members(result: LiveResult) -> dict[str, Any]:
    return {
        "time": result.time,
        "object_id": result.object_id,
        "survey": result.survey,
        "class": result.name,
        "confidence": result.confidence,
        "novelty": result.novelty,
        "unusual": result.unusual,
        **result.details,
        "probabilities": {name: round(value, DIGITS) for name, value in result.details["probabilities"].items()},
    }


class LiveEvents:
    """Server-sent events of one reader: results in each, and a summary with every fifth.

    Parameters
    ----------
    wanted : filter of the results.
    """

    SUMMARY_EVERY: Final = 5

    def __init__(self, feed: LiveFeed, wanted: LiveFilter) -> None:
        self._feed, self._wanted = feed, wanted
        self._number, self._events = max(0, feed.count - MAX_SHOWN), 0
        self._at: float | None = None

    def next(self) -> bytes:
        """Return the next events to send. The first call returns the latest results, with a rate of 0."""
        now = time.monotonic()
        seconds = math.inf if self._at is None else max(now - self._at, 1e-3)
        results = self._feed.since(self._number, self._wanted, seconds)
        self._number, self._at = results["count"], now
        text = b""
        if self._events % self.SUMMARY_EVERY == 0:
            text = b"event: summary\ndata: " + encode_json(self._feed.summary()) + b"\n\n"
        self._events += 1
        return text + b"event: results\ndata: " + encode_json(results) + b"\n\n"


def read_filter(parameters: Sequence[tuple[str, str]]) -> LiveFilter:
    """Parse query parameters as a filter.

    Raises
    ------
    ValueError
        If a parameter is unknown, repeated or invalid; the message names it.
    """
    values: dict[str, Any] = {}
    for name, text in parameters:
        if name not in _PARAMETERS:
            raise ValueError(f"{name}: unknown parameter; there are {', '.join(_PARAMETERS)}")
        field_name, convert = _PARAMETERS[name]
        if field_name in values:
            raise ValueError(f"{name}: given twice")
        try:
            values[field_name] = convert(text)
        except (ValueError, KeyError):
            raise ValueError(f"{name}: invalid value") from None
    return LiveFilter(**values)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


_PARAMETERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "class": ("name", str),
    "survey": ("survey", str),
    "min_confidence": ("min_confidence", _fraction),
    "min_novelty": ("min_novelty", _fraction),
    "unusual": ("unusual", {"true": True, "false": False}.__getitem__),
}
