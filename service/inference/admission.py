"""How long a client that comes now would wait, and when to come back: functions of the work that is queued.

Workers clear work at a rate, measured while the queue never runs empty, and share it fairly among clients
(:mod:`service.inference.backlog`). As a fluid, every client is served at the same speed until it has nothing left.
So who has ``mine`` waiting is done when each of the others has been served as much, or all it has:

    wait = (mine + sum(min(other, mine))) / rate

A client alone waits for what it has sent before. Amounts are predicted seconds of work, or light curves.
"""

from collections.abc import Sequence

from service.inference.backlog import Backlog
from service.inference.failures import Overloaded

_STEPS = 40  # of the bisection: to one part in a million million


def wait(mine: float, others: Sequence[float], rate: float) -> float:
    """Seconds until a client that has ``mine`` waiting has been served."""
    return (mine + sum(min(other, mine) for other in others)) / rate


def time_until(limit: float, own: float, mine: float, others: Sequence[float], rate: float) -> float:
    """Seconds after which ``own`` more work would wait for no longer than ``limit`` seconds, if nothing else came.

    What would wait for longer even by itself has room when nothing else is left.
    """
    low, high = 0.0, max(mine, *others, 0.0)
    if own / rate <= limit:
        for _ in range(_STEPS):
            middle = (low + high) / 2
            left = [max(other - middle, 0.0) for other in others]
            fits = wait(max(mine - middle, 0.0) + own, left, rate) <= limit
            low, high = (low, middle) if fits else (middle, high)
    return (min(mine, high) + sum(min(other, high) for other in others)) / rate


class DrainRate:
    """Predicted seconds of work that the workers clear in a second, while all of them are busy.

    Runs that are merged clear more than a second's worth, runs that disturb each other less. Until there is enough to
    tell, the prior holds: each worker clears one.

    Parameters
    ----------
    workers : runs at the same time.
    """

    _PRIOR_SECONDS, _MEMORY_SECONDS = 0.5, 5.0

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
        kept = min(1.0, self._MEMORY_SECONDS / self._time)
        self._time, self._work = kept * self._time, kept * self._work


class Door:
    """Who may still join the queue.

    Parameters
    ----------
    rate : at which the queue is worked off.
    max_seconds : predicted wait beyond which a request is refused.
    max_items : light curves that a client may find before it, likewise.
    """

    def __init__(self, backlog: Backlog, rate: DrainRate, max_seconds: float, max_items: int) -> None:
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
            rate *= depth / max(self._backlog.seconds, 1e-9)  # light curves a second
            self._check(self._max_items / rate, len(seconds), *self._backlog.counts(client), rate)

    def _check(self, bound: float, own: float, mine: float, others: Sequence[float], rate: float) -> None:
        if wait(mine + own, others, rate) > bound:
            raise Overloaded(retry_after=time_until(bound, own, mine, others, rate))

    def _bound(self, priority: float) -> float:
        """Longest wait that is taken: what is urgent may still come when other work is refused."""
        return min(max(self._max_seconds + priority, self._max_seconds / 2), 2 * self._max_seconds)
