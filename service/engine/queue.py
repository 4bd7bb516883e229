"""The queue of light curves, fair between clients, and its admission control. Not thread-safe by itself.

**Order.** Light curves of one client run in order of arrival. Between clients the queue is fair by start-time fair
queueing (Goyal, Vin & Cheng 1997), with predicted seconds in place of packet lengths: each client has a clock that
advances by its predicted work, and the client with the smallest clock is next. A client that returns starts at the
smallest clock of the waiting clients, so that idle time earns no credit. With a single client the queue is first in,
first out.

Every batch contains the first light curve in this order. The others come from clients whose clock is ahead of the
smallest one by at most the largest batch, so that the length of its light curves does not favour a client:

    Theorem. Let B be the most work in one batch since the queue was last empty. The clocks of any two waiting clients
    differ by at most 2 B.

    Proof. A batch advances the clock c of a client only if c <= v + B for the smallest clock v before the batch, and by
    at most B. So c <= v + 2 B after it, while no clock of a waiting client is less than v. Clients that arrive start at
    the smallest clock, or at their previous clock if it is ahead.

So between clients that start to wait at the same time the work done differs by at most 2 B, whatever they send, and
between clients that start at different times by at most 4 B.

**Withdrawal.** An entry whose future is done was cancelled by its caller, or failed at its deadline. The queue drops it
when it next chooses a batch.

**Predicted work.** Work is counted as if every light curve ran alone. Merging only saves time, so this is an upper
bound, and the queue need not be replanned when an entry arrives or leaves.

**Predicted wait.** It decides whether a new request is admitted and, if not, when to retry. The rate at which workers
clear work is measured while all of them are busy (:class:`ThroughputEstimate`). The queue is modelled as a fluid: every
client is served at the same speed until its work is done. A client with ``own`` work is done when each other client has
been served as much, or has nothing left:

    wait = (own + sum(min(other, own))) / rate
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice

from nightjar_alerts.core.cost import CostModel
from nightjar_alerts.core.policy import BatchLimits, Policy, choose, plan
from nightjar_alerts.service.engine.batch import QueueEntry
from nightjar_alerts.service.engine.errors import Overloaded


@dataclass(slots=True)
class _Client:
    """Entries of one client. ``clock`` is its virtual time in predicted seconds of work, comparable between clients."""

    clock: float
    # Not a dict, which takes ever longer to find its first key as first keys are deleted.
    entries: OrderedDict[QueueEntry, None] = field(default_factory=OrderedDict)
    seconds: float = 0.0


class RequestQueue:
    """Queue of entries; the cost of adding entries and of choosing a batch does not depend on its length."""

    def __init__(self, policy: Policy = choose) -> None:
        self._policy = policy
        self._clients: dict[str, _Client] = {}  # clients with entries in the queue
        # Clocks of clients without entries that are ahead of the others: a client that sends one light curve at a time
        # must not start at the smallest clock with each of them.
        self._absent_clocks: dict[str, float] = {}
        self._min_clock = 0.0
        self._largest_batch = 0.0  # predicted seconds, since the queue was last empty
        self._size = 0

    def __len__(self) -> int:
        """Return the number of entries, including cancelled ones that were not dropped yet."""
        return self._size

    @property
    def seconds(self) -> float:
        """Predicted seconds of all entries."""
        # The event loop calls this and shares() without the engine's lock, hence the copies.
        return sum((client.seconds for client in list(self._clients.values())), 0.0)

    def shares(self, client: str) -> tuple[float, list[float]]:
        """Return the predicted seconds of the entries of a client, and of each other client."""
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
        self._absent_clocks.clear()
        self._largest_batch = 0.0
        self._size = 0
        return entries

    def take(
        self, now: float, cost: CostModel, limits: BatchLimits, idle_workers: int
    ) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """Remove and return the next batch and the expired entries; either may be empty."""
        window = self._first_entries(limits.window)
        chosen, late = plan(window, len(self), now, cost, limits, idle_workers, self._policy)
        batch, expired = [window[index] for index in chosen], [window[index] for index in late]
        for entry in batch:  # not for expired entries, which are not run
            self._clients[entry.client].clock += entry.seconds
        self._largest_batch = max(self._largest_batch, sum(entry.seconds for entry in batch))
        for entry in (*expired, *batch):
            self._remove(entry)
        self._advance_min_clock()
        return batch, expired

    def _first_entries(self, count: int) -> list[QueueEntry]:
        """Return up to ``count`` entries from which a batch may be chosen, in order of service.

        Entries whose future is done are dropped.
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
        """Merge the entries of several clients by clock, without clients that are too far ahead."""
        front: list[QueueEntry] = []
        heap = []
        for number, client in enumerate(self._clients.values()):
            entries = _unfinished(client, dropped)
            if (first := next(entries, None)) is not None:
                heap.append((client.clock, number, first, entries))  # entries cannot be compared, hence the number
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
        if not client.entries:  # this also discards the rounding errors of `seconds`
            self._absent_clocks[entry.client] = self._clients.pop(entry.client).clock
        if not self._size:  # no client is ahead of another
            self._absent_clocks.clear()
            self._largest_batch = 0.0

    def _add_client(self, name: str) -> _Client:
        clock = max(self._absent_clocks.pop(name, 0.0), self._min_clock)
        self._clients[name] = _Client(clock)
        return self._clients[name]

    def _advance_min_clock(self) -> None:
        """Advance the clock at which new clients start; forget absent clients that are not ahead of it."""
        if self._clients:
            self._min_clock = max(self._min_clock, min(client.clock for client in self._clients.values()))
        if self._absent_clocks:
            ahead = {name: clock for name, clock in self._absent_clocks.items() if clock > self._min_clock}
            self._absent_clocks = ahead


def _unfinished(client: _Client, dropped: list[QueueEntry]) -> Iterator[QueueEntry]:
    """Yield the entries of a client whose future is pending; append the remaining ones to ``dropped``."""
    for entry in client.entries:
        if entry.future.done():
            dropped.append(entry)
        else:
            yield entry


_BISECTIONS = 40  # to one part in 10**12


def wait(own: float, others: Sequence[float], rate: float) -> float:
    """Return the predicted seconds until a client with ``own`` seconds of queued work has been served."""
    return (own + sum(min(other, own) for other in others)) / rate


def time_until(limit: float, added: float, own: float, others: Sequence[float], rate: float) -> float:
    """Return the seconds after which ``added`` work would wait at most ``limit``, if nothing else arrives.

    For a request that would wait longer even with an empty queue, return the seconds until the queue is empty.
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
    """Predicted seconds of work that the workers clear per second while all of them are busy.

    Merging increases it; runs that slow each other down decrease it. The prior, which counts until enough has been
    measured, is one second per worker.

    Parameters
    ----------
    workers : number of concurrent runs.
    """

    _PRIOR_SECONDS, _MEMORY_SECONDS = 0.5, 5.0  # weights of the prior and of past measurements, in seconds of measuring

    def __init__(self, workers: int) -> None:
        self._time, self._work = self._PRIOR_SECONDS, self._PRIOR_SECONDS * workers
        self._since: float | None = None
        self.value = float(workers)

    def busy(self, now: float) -> None:
        """Record that no worker is idle."""
        if self._since is None:
            self._since = now

    def idle(self) -> None:
        """Record that a worker is idle."""
        self._since = None

    def cleared(self, now: float, seconds: float) -> None:
        """Record that ``seconds`` of predicted work were done."""
        if self._since is None:
            return
        self._time, self._work = self._time + now - self._since, self._work + seconds
        self._since, self.value = now, self._work / self._time
        weight = min(1.0, self._MEMORY_SECONDS / self._time)
        self._time, self._work = weight * self._time, weight * self._work


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission control by predicted wait.

    Attributes
    ----------
    throughput : rate at which the workers clear the queue.
    max_seconds : predicted wait beyond which a request is rejected.
    """

    queue: RequestQueue
    throughput: ThroughputEstimate
    max_seconds: float

    def check(self, seconds: float, client: str) -> None:
        """Raise Overloaded if a request of ``seconds`` predicted work would wait too long; never for an empty queue."""
        if len(self.queue):
            rate = self.throughput.value
            own, others = self.queue.shares(client)
            if wait(own + seconds, others, rate) > self.max_seconds:
                raise Overloaded(retry_after=time_until(self.max_seconds, seconds, own, others, rate))
