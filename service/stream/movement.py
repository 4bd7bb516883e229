"""Whether alerts move: what the worker's probes and metrics say of it.

Not ready is a worker that can take nothing, for whatever reason, or takes nothing although the broker has more. It is
unhealthy, so that a supervisor starts it anew, when nothing moves for minutes although messages wait and no trouble
outside explains it: a broker, sink, registry or disk that is down is none of its making and does not pass sooner.
"""

from collections.abc import Callable
from time import monotonic

from service.observe.metrics import Metrics
from service.stream.messages import Standing


class Movement:
    """When messages were taken and done last, and how the source stands.

    Parameters
    ----------
    unready_after : seconds without a message taken, while more wait, after which the worker is not ready.
    unhealthy_after : seconds without any movement after which it is unhealthy.
    outside : what is wrong outside, in words; empty when nothing is.
    """

    def __init__(
        self,
        metrics: Metrics,
        unready_after: float,
        unhealthy_after: float,
        outside: Callable[[], str],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._metrics = metrics
        self._unready_after = unready_after
        self._unhealthy_after = unhealthy_after
        self._outside = outside
        self._clock = clock
        self._taken_at = self._moved_at = self._idle_at = self._trouble_at = clock()
        self.standing = Standing()

    def took(self) -> None:
        """Note that messages were taken."""
        self._taken_at = self._moved_at = self._clock()

    def ended(self) -> None:
        """Note that a batch has ended."""
        self._moved_at = self._clock()

    def observe(self, standing: Standing, under_way: int) -> None:
        """Take in how the source stands, and tell the metrics; called every few seconds.

        Parameters
        ----------
        under_way : messages taken and not done.
        """
        self.standing, now = standing, self._clock()
        if standing.waiting <= 0:
            self._taken_at = now
            if not under_way:
                self._moved_at = now
        if self._outside() or standing.trouble or standing.assigned == 0:
            self._trouble_at = now
        metrics = self._metrics
        metrics.stream_lag.clear()
        for (topic, partition), lag in standing.lag.items():
            metrics.stream_lag.labels(topic, partition).set(lag)
        metrics.stream_assigned.set(standing.assigned or 0)
        metrics.stream_untaken.set(now - self._taken_at)
        metrics.stream_not_ready.set(bool(self._outside() or self.unready()))

    def unready(self) -> str:
        """Why nothing is taken, in words; empty when there is nothing to take, or it is taken."""
        if self.standing.trouble:
            return f"source: {self.standing.trouble}"
        since = self._clock() - self._taken_at
        if self.standing.waiting > 0 and since > self._unready_after:
            return f"source: nothing taken for {since:.0f} s although {self.standing.waiting} messages wait"
        return ""

    def unhealthy(self) -> str:
        """What only a new process mends, in words; empty when nothing is known to be wrong."""
        now = self._clock()
        if self._outside() or self.standing.trouble:
            return ""
        since = now - max(self._moved_at, self._trouble_at)
        return f"nothing has moved for {since:.0f} s although messages wait" if since > self._unhealthy_after else ""
