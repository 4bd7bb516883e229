"""Admission of requests, shared by HTTP and gRPC: API key, limit of concurrent requests, quotas of the key.

The path decides what a request needs, also that of a gRPC method (:mod:`service.grpc.methods`): ``/v1`` and the models
of ``/v2`` except probes are guarded.
"""

import re
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

from nightjar_alerts.service.http.edge.budget import ConcurrencyLimiter
from nightjar_alerts.service.http.edge.errors import OVERLOADED, UNAVAILABLE, to_problem
from nightjar_alerts.service.http.edge.keys import ANONYMOUS, KeyRing, Quotas
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import Headers

RequestState = dict[str, Any]
"""State of a request: ``request_id`` and, once admitted, ``key``, ``client_id`` and ``charged`` light curves."""

_GUARDED: Final = re.compile(r"/v1/|/v2/models/(?!.+/ready$)")
_PROTECTED: Final = {
    "metrics": r"/metrics$",
    "docs": r"/$|/docs$|/live$|/page/|/openapi\.json$|/problems/",
    "v2": r"/v2(?:/|$)",
}


def is_guarded(path: str) -> bool:
    """Return True for paths that require an API key, if keys are set, and count as requests in progress."""
    return _GUARDED.match(path) is not None


class Admission:
    """Admits requests with a valid API key within the limits of concurrency and quota.

    Parameters
    ----------
    quotas : quotas of the keys; None if no key has limits.
    protected_paths : further paths that require a key; see :attr:`Settings.protected_paths`.
    metrics : counts the requests of each key.
    """

    def __init__(
        self,
        keys: KeyRing,
        max_requests: int,
        quotas: Quotas | None = None,
        protected_paths: Collection[str] = (),
        metrics: Metrics | None = None,
    ) -> None:
        self._keys, self._quotas, self._metrics = keys, quotas, metrics
        self._keyed = bool(keys)
        self._limiter = ConcurrencyLimiter(max_requests)
        self._protected = re.compile("|".join(_PROTECTED[name] for name in protected_paths) or r"(?!)")

    def check_unguarded(self, path: str, headers: Headers) -> None:
        """Check the key of a request for a path that is not guarded. Raises ProblemError (401)."""
        if self._keyed and self._protected.match(path):
            self._keys.authenticate({"headers": headers})

    @asynccontextmanager
    async def admitted(
        self, headers: Headers, host: str, state: RequestState, started: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[None]:
        """Admit a request for a guarded path, and hold its place.

        A request that fails because the service is full (429 ``overloaded``, 503) is refunded to its key, unless its
        response has started: a stream that ends early is charged for all light curves that it has sent.

        Parameters
        ----------
        host : address of the client, which stands for it without keys.
        started : returns whether the response has started.

        Raises
        ------
        ProblemError
            401 without a valid key, 429 beyond a limit.
        """
        key = self._keys.authenticate({"headers": headers}) if self._keyed else ""
        client_id = key or host
        state.update(key=key, client_id=client_id)
        account = key or ANONYMOUS  # in metrics and quotas
        if self._metrics is not None:
            self._metrics.key_requests.labels(account).inc()
        self._limiter.acquire(client_id)
        try:
            if self._quotas is not None:
                await self._quotas.admit(account)
            try:
                yield
            except Exception as error:
                if self._quotas is not None and not started() and to_problem(error).kind in (OVERLOADED, UNAVAILABLE):
                    await self._quotas.refund(account, state.get("charged", 0))
                raise
        finally:
            self._limiter.release(client_id)

    async def charge(self, state: RequestState, curves: int) -> None:
        """Charge light curves to the API key of an admitted request."""
        account = state.get("key", "") or ANONYMOUS
        if self._metrics is not None:
            self._metrics.key_curves.labels(account).inc(curves)
        state["charged"] = state.get("charged", 0) + curves  # refunded if the request is rejected as a whole
        if self._quotas is not None:
            await self._quotas.charge(account, curves)
