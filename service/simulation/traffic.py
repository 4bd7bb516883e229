"""Traffic to simulate: when light curves arrive and how long they are.

Three kinds: Poisson arrivals, visits of a survey telescope (every 37 seconds all alerts of one exposure at once), and
recorded traces. A trace is a text file of one light curve a line, ``seconds length``, in order of arrival; what follows
a ``#`` is a remark. Lengths are lognormal around 50 observations, and one light curve in a hundred comes from a deep
field, with a history of several hundred; the network's limits then cut what is longer than ``longest``.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MEDIAN_LENGTH = 50.0
LOG_SIGMA = 0.745  # mean 66, 95th percentile 170
DEEP_SHARE = 0.01
DEEP_MEDIAN_LENGTH = 700.0
DEEP_LOG_SIGMA = 0.4

VISIT_SECONDS = 37.0
"""From one exposure of the LSST survey to the next, as a mean over a night."""


class Trace(NamedTuple):
    """Light curves in order of arrival.

    Attributes
    ----------
    arrival : seconds since the start, shape (n,), not decreasing.
    length : observations, shape (n,), at least 1.
    """

    arrival: NDArray[np.float64]
    length: NDArray[np.int64]


class TraceError(ValueError):
    """A file is no trace; says where and why."""


def draw_lengths(count: int, longest: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Observations of ``count`` light curves, shape (count,), between 1 and ``longest``."""
    deep = rng.random(count) < DEEP_SHARE
    centre = np.where(deep, np.log(DEEP_MEDIAN_LENGTH), np.log(MEDIAN_LENGTH))
    drawn = rng.lognormal(centre, np.where(deep, DEEP_LOG_SIGMA, LOG_SIGMA))
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def poisson(rate: float, count: int, longest: int, rng: np.random.Generator) -> Trace:
    """``count`` light curves, ``rate`` a second on average, each independent of the others."""
    return Trace(np.cumsum(rng.exponential(1 / rate, count)), draw_lengths(count, longest, rng))


def visits(alerts: int, number: int, longest: int, rng: np.random.Generator) -> Trace:
    """``number`` visits of ``alerts`` light curves, each visit's at one moment."""
    arrival = np.repeat(VISIT_SECONDS * np.arange(number), alerts)
    return Trace(arrival, draw_lengths(alerts * number, longest, rng))


def read_trace(path: Path, longest: int) -> Trace:
    """A recorded trace, its light curves cut to ``longest`` observations.

    Raises
    ------
    TraceError
        When the file cannot be read or a line is not ``seconds length`` in order of arrival.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    arrivals, lengths = [0.0], list[int]()
    for number, line in enumerate(lines, start=1):
        if not (fields := line.partition("#")[0].split()):
            continue
        try:
            arrival, length = float(fields[0]), int(fields[1])
        except (ValueError, IndexError):
            raise TraceError(f"{path}, line {number}: not `seconds length`") from None
        if len(fields) > 2 or length < 1 or not arrivals[-1] <= arrival < np.inf:
            raise TraceError(f"{path}, line {number}: two numbers, seconds in order and a length of 1 or more")
        arrivals.append(arrival)
        lengths.append(length)
    if not lengths:
        raise TraceError(f"{path}: holds no light curve")
    return Trace(np.array(arrivals[1:]), np.minimum(lengths, longest).astype(np.int64))


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as :func:`read_trace` reads it, to the microsecond."""
    rows = (f"{arrival:.6f} {length}\n" for arrival, length in zip(*trace, strict=True))
    path.write_text("# seconds length\n" + "".join(rows))
