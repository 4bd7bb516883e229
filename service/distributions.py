"""How values are distributed, in little memory: counts in buckets whose bounds grow by a constant factor.

A quantile comes out with a relative error of at most 5 % whatever the values are, and two distributions add up.
"""

from collections.abc import Iterable, Iterator
from math import ceil, exp, floor, log

GROWTH = 1.1
_STEP = log(GROWTH)
SMALLEST = 1e-9  # what is smaller counts as this: no stage is quicker than a nanosecond


class Distribution:
    """Counts of positive values. Not thread-safe by itself."""

    __slots__ = ("_buckets", "count", "largest", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count, self.total, self.largest = 0, 0.0, 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, several times over if asked."""
        bucket = floor(log(max(value, SMALLEST)) / _STEP)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.total += times * value
        self.largest = max(self.largest, value)

    def add_all(self, values: Iterable[float]) -> None:
        """Count each of the values once."""
        for value in values:
            self.add(value)

    def merge(self, other: "Distribution") -> None:
        """Count everything that the other has counted."""
        for bucket, times in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float:
        """Mean of the values, 0 without any; exact."""
        return self.total / self.count if self.count else 0.0

    def quantiles(self, *shares: float) -> Iterator[float]:
        """Values that these shares of all values do not exceed, 0 without any.

        Parameters
        ----------
        shares : between 0 and 1, in ascending order.
        """
        seen, bounds = 0, iter(sorted(self._buckets.items()))
        bucket = 0
        for share in shares:
            while seen < max(1, ceil(share * self.count)) and (following := next(bounds, None)):
                bucket, times = following
                seen += times
            # The middle of the bucket, as ratios go; but the largest value is known exactly.
            yield min(exp((bucket + 0.5) * _STEP), self.largest)
