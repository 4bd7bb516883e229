"""The waiting light curves, in the order they are due, and the work they should need. Not thread-safe by itself.

Within one client they come by rank: time of arrival less the head start of priority. Each priority in use has its own
lane, and the order of the whole is merged from theirs.

Between clients the queue is fair: start-time fair queueing (Goyal, Vin & Cheng 1997), with predicted seconds for
lengths of packets. Each client has a clock that advances by the work it is given; next is the one whose clock shows
least, less the head start of its first light curve. One that was away starts at the least clock of those who were not,
so nobody saves up time. Hence a client waits for its own share of the work, however much another one has sent, and with
a single client all of this is first come, first served.

Work is counted as if every light curve ran alone. Merging only ever saves time, so this is an upper bound, and it
needs no re-planning of the queue when something arrives or leaves.

Predicted wait: how long a request that comes now would wait, and, when it is refused, when to come back. Workers clear
work at a rate that is measured while the queue never runs empty (:class:`ThroughputEstimate`). As in a fluid, every
client is served at the same speed until nothing of it is left. So a client with ``mine`` waiting is done when each of
the others has been served as much, or all it has:

    wait = (mine + sum(min(other, mine))) / rate

A client alone waits for what it has sent before. Amounts are predicted seconds of work, or light curves.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain, islice

from nightjar_alerts.service.engine.batch import Overloaded, QueueEntry
from nightjar_alerts.service.engine.policy import BatchLimits, CostModel, Policy, choose, plan, release


@dataclass(slots=True)
class _Client:
    """Queue of one client; ``clock`` is the predicted seconds of work it was given, on the common scale."""

    clock: float
    # OrderedDict rather than dict: a dict whose first keys were deleted takes ever longer to find its first key.
    lanes: dict[float, OrderedDict[int, QueueEntry]] = field(default_factory=dict)
    size: int = 0
    seconds: float = 0.0

    def in_order(self) -> Iterator[QueueEntry]:
        lanes = [lane.values() for lane in self.lanes.values()]
        return iter(merge(*lanes, key=lambda entry: entry.rank) if len(lanes) > 1 else chain(*lanes))


class RequestQueue:
    """An ordered set of waiting light curves; adding, withdrawing and taking a batch do not depend on its length."""

    def __init__(self, policy: Policy = choose) -> None:
        self._policy = policy
        self._clients: dict[str, _Client] = {}  # those with something waiting
        # Clocks of the others, where they are ahead: a client that sends one light curve at a time must not get the
        # least clock anew with each.
        self._away: dict[str, float] = {}
        self._least = 0.0
        self._size = 0

    def __len__(self) -> int:
        """Return the number of light curves waiting."""
        return self._size

    @property
    def seconds(self) -> float:
        """Predicted seconds of all that waits."""
        # The loop reads this, and the shares and counts below, without the engine's lock, hence the copies.
        return sum((client.seconds for client in list(self._clients.values())), 0.0)

    def shares(self, client: str) -> tuple[float, list[float]]:
        """Predicted seconds of what a client has waiting, and of each of the others."""
        others = [one.seconds for name, one in list(self._clients.items()) if name != client]
        mine = self._clients.get(client)
        return mine.seconds if mine else 0.0, others

    def counts(self, client: str) -> tuple[int, list[int]]:
        """Return the numbers of waiting light curves: (of this client, of each other client)."""
        others = [one.size for name, one in list(self._clients.items()) if name != client]
        mine = self._clients.get(client)
        return mine.size if mine else 0, others

    def add(self, entries: Iterable[QueueEntry]) -> None:
        """Append in order of arrival."""
        for entry in entries:
            client = self._clients.get(entry.client) or self._welcome(entry.client)
            client.lanes.setdefault(entry.priority, OrderedDict())[id(entry)] = entry
            client.size += 1
            client.seconds += entry.seconds
            self._size += 1

    def remove(self, entry: QueueEntry) -> bool:
        """Remove an entry; return True if it was still waiting."""
        client = self._clients.get(entry.client)
        lane = client.lanes.get(entry.priority) if client else None
        if client is None or lane is None or lane.pop(id(entry), None) is None:
            return False
        if not lane:
            del client.lanes[entry.priority]
        client.size -= 1
        client.seconds -= entry.seconds
        self._size -= 1
        if not client.size:  # and with it go the rounding errors of many additions
            self._away[entry.client] = self._clients.pop(entry.client).clock
        if not self._size:  # nobody is ahead of anybody
            self._away.clear()
        return True

    def clear(self) -> list[QueueEntry]:
        """Remove and return everything."""
        entries = self._front(self._size)
        self._clients.clear()
        self._away.clear()
        self._size = 0
        return entries

    def take(
        self, now: float, cost: CostModel, limits: BatchLimits, idle_workers: int
    ) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """Remove and return the next batch, and the entries found expired on the way (both may be empty)."""
        if not self._size:
            return [], []
        window = self._front(limits.window)
        chosen, late = plan(window, len(self), now, cost, limits, idle_workers, self._policy)
        batch, missed = [window[index] for index in chosen], [window[index] for index in late]
        for entry in batch:  # not for those missed, on which no work is spent
            self._clients[entry.client].clock += entry.seconds
        for entry in (*missed, *batch):
            self.remove(entry)
        self._advance()
        return batch, missed

    def held_for(self, now: float, limits: BatchLimits) -> float | None:
        """Seconds for which the policy may still hold back what waits; None when nothing does."""
        window = self._front(limits.window)
        return max(0.0, release(window, limits) - now) if window else None

    def _front(self, count: int) -> list[QueueEntry]:
        """Return the first ``count`` entries in the order they are due."""
        if len(self._clients) < 2:
            return list(islice(chain(*(client.in_order() for client in self._clients.values())), count))
        front: list[QueueEntry] = []
        due = []
        for number, client in enumerate(self._clients.values()):
            entries = client.in_order()
            first = next(entries)
            due.append((client.clock - first.priority, number, client.clock, first, entries))  # entries do not compare
        heapify(due)
        while due and len(front) < count:
            _, number, clock, entry, entries = due[0]
            front.append(entry)
            if (following := next(entries, None)) is None:
                heappop(due)
            else:
                clock += entry.seconds
                heapreplace(due, (clock - following.priority, number, clock, following, entries))
        return front

    def _welcome(self, name: str) -> _Client:
        clock = max(self._away.pop(name, 0.0), self._least)
        self._clients[name] = _Client(clock)
        return self._clients[name]

    def _advance(self) -> None:
        """Set the clock at which a client that comes now starts, and forget clients away that are not ahead of it."""
        if self._clients:
            self._least = max(self._least, min(client.clock for client in self._clients.values()))
        if self._away:
            self._away = {name: clock for name, clock in self._away.items() if clock > self._least}


_STEPS = 40  # of the bisection: to one part in 10**12


def wait(mine: float, others: Sequence[float], rate: float) -> float:
    """Seconds until a client that has ``mine`` waiting has been served."""
    return (mine + sum(min(other, mine) for other in others)) / rate


def time_until(limit: float, own: float, mine: float, others: Sequence[float], rate: float) -> float:
    """Seconds after which ``own`` more work would wait for no longer than ``limit`` seconds, if nothing else came.

    A request that would wait longer than that even in an empty queue fits as soon as nothing else is left.
    """
    low, high = 0.0, max(mine, *others, 0.0)
    if own / rate <= limit:
        for _ in range(_STEPS):
            middle = (low + high) / 2
            remaining = [max(other - middle, 0.0) for other in others]
            fits = wait(max(mine - middle, 0.0) + own, remaining, rate) <= limit
            low, high = (low, middle) if fits else (middle, high)
    return (min(mine, high) + sum(min(other, high) for other in others)) / rate


class ThroughputEstimate:
    """Predicted seconds of work that the workers clear in a second, while all of them are busy.

    Merged runs clear more than one second of work in a second, runs that slow each other down less. Until enough has
    been measured a prior holds: one second for each worker.

    Parameters
    ----------
    workers : runs at the same time.
    """

    _PRIOR_SECONDS, _MEMORY_SECONDS = 0.5, 5.0  # weights, as seconds of measuring, of the prior and of the past

    def __init__(self, workers: int) -> None:
        self._time, self._work = self._PRIOR_SECONDS, self._PRIOR_SECONDS * workers
        self._since: float | None = None
        self.value = float(workers)

    def busy(self, now: float) -> None:
        """Note that no worker is free."""
        if self._since is None:
            self._since = now

    def idle(self) -> None:
        """Note that a worker has nothing to do."""
        self._since = None

    def cleared(self, now: float, seconds: float) -> None:
        """Note that ``seconds`` of predicted work are done."""
        if self._since is None:
            return
        self._time, self._work = self._time + now - self._since, self._work + seconds
        self._since, self.value = now, self._work / self._time
        weight = min(1.0, self._MEMORY_SECONDS / self._time)
        self._time, self._work = weight * self._time, weight * self._work


class Door:
    """Admission to the queue by predicted wait.

    Parameters
    ----------
    rate : at which the queue is worked off.
    max_seconds : predicted wait beyond which a request is refused.
    max_items : the same bound as a number of light curves.
    """

    def __init__(self, backlog: RequestQueue, rate: ThroughputEstimate, max_seconds: float, max_items: int) -> None:
        self._backlog, self._rate = backlog, rate
        self._max_seconds, self._max_items = max_seconds, max_items

    def check(self, seconds: Sequence[float], priority: float, client: str) -> None:
        """Raise Overloaded when there is no room; a queue that is empty has room for anything.

        Parameters
        ----------
        seconds : predicted for each light curve of the request.
        """
        if depth := len(self._backlog):
            rate = self._rate.value
            self._check(self._bound(priority), sum(seconds), *self._backlog.shares(client), rate)
            # Light curves a second. Workers take batches meanwhile, so nothing may be left to divide by.
            rate *= depth / max(self._backlog.seconds, 1e-9)
            self._check(self._max_items / rate, len(seconds), *self._backlog.counts(client), rate)

    def _check(self, bound: float, own: float, mine: float, others: Sequence[float], rate: float) -> None:
        if wait(mine + own, others, rate) > bound:
            raise Overloaded(retry_after=time_until(bound, own, mine, others, rate))

    def _bound(self, priority: float) -> float:
        """Longest predicted wait that is accepted: urgent work may still come when other work is refused."""
        return min(max(self._max_seconds + priority, self._max_seconds / 2), 2 * self._max_seconds)
