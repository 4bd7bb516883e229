"""The queue of light curves, fair between clients, and the admission to it. Not thread-safe by itself.

**Order.** Light curves of one client run in order of arrival. Between clients the queue is fair by start-time fair
queueing (Goyal, Vin & Cheng 1997), with predicted seconds in place of packet lengths: each client has a clock that
advances by its predicted work, and the client with the smallest clock is next. A client that returns starts at the
smallest clock of the waiting clients, so that no client saves up time. With a single client the queue is first in,
first out.

Every batch holds the first light curve in this order. Its batch mates come from clients whose clock is ahead of the
least one by at most the largest batch, so that length does not decide who is served:

    Theorem. Let B be the most work in one batch since the queue was last empty. The clocks of any two waiting clients
    differ by at most 2 B.

    Proof. A batch moves the clock c of a client only if c <= v + B for the least clock v before the batch, and by at
    most B. So c <= v + 2 B after it, while no clock of a waiting client is less than v. Clients that arrive start at
    the least clock or where they left.

So among clients that begin to wait together none is given more than 2 B more work than another, whatever they send,
and 4 B among clients that wait from different times on.

**Withdrawal.** An entry whose future is done was cancelled by its caller, or failed at its deadline. The queue drops it
when it next chooses a batch.

**Predicted work.** Work is counted as if every light curve ran alone. Merging only saves time, so this is an upper
bound, and it needs no new plan of the queue when something arrives or leaves.

**Predicted wait** of a new request, which decides whether it is admitted and, if not, when to come back. Workers clear
work at a rate that is measured while the queue is never empty (:class:`ThroughputEstimate`). Treat the queue as a fluid
in which every client is served at the same speed until nothing of its work is left. A client with ``own`` work is done
when each of the others has been served as much, or all it has:

    wait = (own + sum(min(other, own))) / rate
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice

from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.cost import CostModel
from nightjar_alerts.service.engine.errors import Overloaded
from nightjar_alerts.service.engine.policy import BatchLimits, Policy, choose, plan


@dataclass(slots=True)
class _Client:
    """Entries of one client; ``clock`` is the predicted seconds of work it was given, on the common scale."""

    clock: float
    # OrderedDict rather than dict: a dict whose first keys were deleted takes ever longer to find its first key.
    entries: OrderedDict[QueueEntry, None] = field(default_factory=OrderedDict)
    seconds: float = 0.0


class RequestQueue:
    """An ordered set of entries; adding entries and choosing a batch do not depend on its length."""

    def __init__(self, policy: Policy = choose) -> None:
        self._policy = policy
        self._clients: dict[str, _Client] = {}  # clients with entries in the queue
        # Clocks of other clients, where they are ahead: a client that sends one light curve at a time must not start
        # at the least clock again with each.
        self._away: dict[str, float] = {}
        self._least_clock = 0.0
        self._largest_batch = 0.0  # predicted seconds, since the queue was last empty
        self._size = 0

    def __len__(self) -> int:
        """Return the number of entries, those included that were cancelled and not dropped yet."""
        return self._size

    @property
    def seconds(self) -> float:
        """Predicted seconds of all entries."""
        # The event loop reads this and the shares below without the engine's lock, hence the copies.
        return sum((client.seconds for client in list(self._clients.values())), 0.0)

    def shares(self, client: str) -> tuple[float, list[float]]:
        """Return the predicted seconds of a client's entries, and those of each other client."""
        others = [other.seconds for name, other in list(self._clients.items()) if name != client]
        own = self._clients.get(client)
        return own.seconds if own else 0.0, others

    def add(self, entries: Iterable[QueueEntry]) -> None:
        """Append entries in order of arrival."""
        for entry in entries:
            client = self._clients.get(entry.client) or self._add_client(entry.client)
            client.entries[entry] = None
            client.seconds += entry.seconds
            self._size += 1

    def clear(self) -> list[QueueEntry]:
        """Remove and return all entries."""
        entries = [entry for client in self._clients.values() for entry in client.entries]
        self._clients.clear()
        self._away.clear()
        self._largest_batch = 0.0
        self._size = 0
        return entries

    def take(
        self, now: float, cost: CostModel, limits: BatchLimits, idle_workers: int
    ) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """Remove and return the next batch, and the entries found expired (both may be empty)."""
        window = self._front(limits.window)
        chosen, late = plan(window, len(self), now, cost, limits, idle_workers, self._policy)
        batch, expired = [window[index] for index in chosen], [window[index] for index in late]
        for entry in batch:  # not for the expired entries, which cost no work
            self._clients[entry.client].clock += entry.seconds
        self._largest_batch = max(self._largest_batch, sum(entry.seconds for entry in batch))
        for entry in (*expired, *batch):
            self._remove(entry)
        self._advance_least_clock()
        return batch, expired

    def _front(self, count: int) -> list[QueueEntry]:
        """Return up to ``count`` entries, in the order in which they should run, from which a batch may be chosen.

        Finished entries met on the way are dropped.
        """
        dropped: list[QueueEntry] = []
        if len(self._clients) == 1:
            (client,) = self._clients.values()
            front = list(islice(_unfinished(client, dropped), count))
        else:
            front = self._merged(count, dropped)
        for entry in dropped:
            self._remove(entry)
        return front

    def _merged(self, count: int, dropped: list[QueueEntry]) -> list[QueueEntry]:
        """Merge the entries of several clients by their clocks; leave out clients that are too far ahead."""
        front: list[QueueEntry] = []
        heap = []
        for number, client in enumerate(self._clients.values()):
            entries = _unfinished(client, dropped)
            if (first := next(entries, None)) is not None:
                heap.append((client.clock, number, first, entries))  # entries do not compare, hence the number
        if heap:
            latest = min(heap)[0] + self._largest_batch
            heap = [client for client in heap if client[0] <= latest]
        heapify(heap)
        while heap and len(front) < count:
            clock, number, entry, entries = heap[0]
            front.append(entry)
            if (following := next(entries, None)) is None:
                heappop(heap)
            else:
                heapreplace(heap, (clock + entry.seconds, number, following, entries))
        return front

    def _remove(self, entry: QueueEntry) -> None:
        client = self._clients[entry.client]
        del client.entries[entry]
        client.seconds -= entry.seconds
        self._size -= 1
        if not client.entries:  # the rounding errors of many additions go with it
            self._away[entry.client] = self._clients.pop(entry.client).clock
        if not self._size:  # no client is ahead of another
            self._away.clear()
            self._largest_batch = 0.0

    def _add_client(self, name: str) -> _Client:
        clock = max(self._away.pop(name, 0.0), self._least_clock)
        self._clients[name] = _Client(clock)
        return self._clients[name]

    def _advance_least_clock(self) -> None:
        """Set the clock at which a new client starts, and forget the absent clients that are not ahead of it."""
        if self._clients:
            self._least_clock = max(self._least_clock, min(client.clock for client in self._clients.values()))
        if self._away:
            self._away = {name: clock for name, clock in self._away.items() if clock > self._least_clock}


def _unfinished(client: _Client, dropped: list[QueueEntry]) -> Iterator[QueueEntry]:
    """Yield the entries of a client whose future is pending; append the others to ``dropped``."""
    for entry in client.entries:
        if entry.future.done():
            dropped.append(entry)
        else:
            yield entry


_BISECTIONS = 40  # to one part in 10**12


def wait(own: float, others: Sequence[float], rate: float) -> float:
    """Return the seconds until a client that has ``own`` work queued has been served."""
    return (own + sum(min(other, own) for other in others)) / rate


def time_until(limit: float, added: float, own: float, others: Sequence[float], rate: float) -> float:
    """Return the seconds after which ``added`` more work would wait no longer than ``limit``, if nothing else came.

    A request that would wait longer than that even in an empty queue fits as soon as the queue is empty.
    """
    low, high = 0.0, max(own, *others, 0.0)
    if added / rate <= limit:
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            remaining = [max(other - middle, 0.0) for other in others]
            fits = wait(max(own - middle, 0.0) + added, remaining, rate) <= limit
            low, high = (low, middle) if fits else (middle, high)
    return (min(own, high) + sum(min(other, high) for other in others)) / rate


class ThroughputEstimate:
    """Predicted seconds of work that the workers clear in one second while all of them are busy.

    Merged runs clear more than one second of work in a second; runs that slow each other down clear less. Until enough
    has been measured a prior holds: one second for each worker.

    Parameters
    ----------
    workers : number of runs at the same time.
    """

    _PRIOR_SECONDS, _MEMORY_SECONDS = 0.5, 5.0  # weights of the prior and of the past, as seconds of measuring

    def __init__(self, workers: int) -> None:
        self._time, self._work = self._PRIOR_SECONDS, self._PRIOR_SECONDS * workers
        self._since: float | None = None
        self.value = float(workers)

    def busy(self, now: float) -> None:
        """Record that no worker is idle."""
        if self._since is None:
            self._since = now

    def idle(self) -> None:
        """Record that a worker has nothing to do."""
        self._since = None

    def cleared(self, now: float, seconds: float) -> None:
        """Record that ``seconds`` of predicted work are done."""
        if self._since is None:
            return
        self._time, self._work = self._time + now - self._since, self._work + seconds
        self._since, self.value = now, self._work / self._time
        weight = min(1.0, self._MEMORY_SECONDS / self._time)
        self._time, self._work = weight * self._time, weight * self._work


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission to the queue by predicted wait.

    Attributes
    ----------
    throughput : rate at which the queue is worked off.
    max_seconds : predicted wait beyond which a request is rejected.
    """

    queue: RequestQueue
    throughput: ThroughputEstimate
    max_seconds: float

    def check(self, seconds: float, client: str) -> None:
        """Raise Overloaded if a request of ``seconds`` predicted work would wait too long; an empty queue takes any."""
        if len(self.queue):
            rate = self.throughput.value
            own, others = self.queue.shares(client)
            if wait(own + seconds, others, rate) > self.max_seconds:
                raise Overloaded(retry_after=time_until(self.max_seconds, seconds, own, others, rate))
