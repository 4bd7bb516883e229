"""Limits that clients share fairly: the memory of request bodies, and the number of concurrent requests."""

from collections import Counter
from typing import Final, Self

from nightjar_alerts.service.http.edge.errors import OVERLOADED, ProblemError

RETRY_AFTER_FULL: Final = 1.0
"""Seconds after which a client may retry a request that exceeded one of these limits."""


class MemoryBudget:
    """Limit on the bytes of all request bodies in memory.

    A client with several bodies may use half of the limit at most.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._held_by: Counter[str] = Counter()
        self._bodies_of: Counter[str] = Counter()

    def reserve(self, client: str) -> "Reservation":
        """Return a reservation for one request of a client, to be used in a ``with`` statement."""
        return Reservation(self, client)

    def begin(self, client: str) -> None:
        """Count a body of a client."""
        self._bodies_of[client] += 1

    def end(self, client: str) -> None:
        """Stop counting a body of a client."""
        self._bodies_of[client] -= 1
        if not self._bodies_of[client]:
            del self._bodies_of[client], self._held_by[client]

    def change(self, size: int, client: str) -> None:
        """Reserve bytes, or release them if ``size`` is negative. Raises ProblemError (429) beyond a limit."""
        if size > 0:
            if self.held + size > self.limit:
                detail = "request body memory limit reached; retry later"
                raise ProblemError(OVERLOADED, detail, retry_after=RETRY_AFTER_FULL)
            if self._bodies_of[client] > 1 and self._held_by[client] + size > self.limit // 2:
                detail = "request body memory limit of this client reached; retry later"
                raise ProblemError(OVERLOADED, detail, retry_after=RETRY_AFTER_FULL)
        self.held += size
        self._held_by[client] += size


class Reservation:
    """Bytes reserved by one request."""

    def __init__(self, budget: MemoryBudget, client: str) -> None:
        self._budget, self._client = budget, client
        self.size = 0

    def __enter__(self) -> Self:
        """Start the reservation."""
        self._budget.begin(self._client)
        return self

    def __exit__(self, *_: object) -> None:
        """Release all bytes."""
        self.resize(0)
        self._budget.end(self._client)

    def resize(self, size: int) -> None:
        """Set the number of reserved bytes. Raises ProblemError (429) beyond a limit."""
        self._budget.change(size - self.size, self._client)
        self.size = size


class ConcurrencyLimiter:
    """Limit of concurrent requests, shared fairly between clients.

    Parameters
    ----------
    limit : maximum number of requests. Those of another client count up to the client's own number, so a client with
        few requests is admitted while others have many.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: Counter[str] = Counter()

    def acquire(self, client: str) -> None:
        """Start a request. Raises ProblemError (429) beyond the limit."""
        own = self._taken[client] + 1
        if own + sum(min(count, own) for name, count in self._taken.items() if name != client) > self.limit:
            if not self._taken[client]:
                del self._taken[client]
            detail = f"{self.limit} requests are in progress"
            raise ProblemError(OVERLOADED, detail, limit=self.limit, retry_after=RETRY_AFTER_FULL)
        self._taken[client] += 1

    def release(self, client: str) -> None:
        """End a request."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
