"""Turns of clients at work that is done one piece at a time: decoding large bodies, and reading tables.

Both hold the GIL and need memory, so one thread does them. Clients whose work waits have turns in rotation, however
much work each of them sends. A table is read in slices of :data:`SLICE_SECONDS`, between which other clients have their
turns, and ends at its deadline or when its client has left.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, TypeVar

from anyio import CapacityLimiter, from_thread, to_thread

from nightjar_alerts.service.engine.errors import DeadlineExceeded

T = TypeVar("T")

SLICE_SECONDS: Final = 0.05


class Turns:
    """A turn that one task has at a time, and that passes to the waiting clients in rotation."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the client whose turn is next stands first
        self._taken = False

    @property
    def awaited(self) -> bool:
        """True while somebody waits for the turn; may be read in any thread."""
        return bool(self._waiting)

    @asynccontextmanager
    async def turn(self, client: str, deadline: float = math.inf) -> AsyncIterator[None]:
        """Wait for the turn of a client and hold it. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(None if deadline == math.inf else deadline - monotonic()):
                await self._acquire(client)
        except TimeoutError:
            raise DeadlineExceeded from None
        try:
            yield
        finally:
            self._release()

    async def pass_on(self, client: str) -> None:
        """Give the turn to the next client, and wait for the next turn of this one."""
        turn = self._enqueue(client)
        self._release()
        await turn

    async def _acquire(self, client: str) -> None:
        if not self._taken:
            self._taken = True
            return
        turn = self._enqueue(client)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn was given at the same moment
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns  # behind the other clients
            if not turn.done():  # or else its task was cancelled
                turn.set_result(None)
                return
        self._taken = False

    def _enqueue(self, client: str) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        return turn


class WorkEnded(Exception):
    """The client has left, so nobody needs the result of the work."""


class SlicedWork:
    """Work of one request in threads, in slices.

    Attributes
    ----------
    deadline : ``time.monotonic()`` seconds at which the work ends.
    """

    def __init__(self, turns: Turns, client: str, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self._turns, self._client = turns, client
        self._ended = False
        self._slice_end = 0.0
        # A thread keeps its place while other clients have their turns, so the number of threads must not be limited.
        self._thread = CapacityLimiter(1)

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, where it calls :meth:`checkpoint` often.

        When the task is cancelled, the work ends at its next checkpoint. Only then is the cancellation raised, so that
        the memory of the work is counted until it is free.

        Raises
        ------
        DeadlineExceeded
            After the deadline.
        """
        task = asyncio.ensure_future(self._run(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._ended = True
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # retrieved: nobody needs it
            raise

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turns.turn(self._client, self.deadline):
            self._check()
            return await to_thread.run_sync(work, limiter=self._thread)

    def checkpoint(self) -> None:
        """Let other clients have their turns if this slice is over; called in the thread.

        Raises
        ------
        WorkEnded
            If the client has left.
        DeadlineExceeded
            After the deadline.
        """
        if monotonic() < self._slice_end and not self._ended:
            return
        if self._turns.awaited and not self._ended:
            from_thread.run(self._turns.pass_on, self._client)
        self._check()

    def _check(self) -> None:
        """Begin a slice, unless the work has ended."""
        if self._ended:
            raise WorkEnded
        now = monotonic()
        if now >= self.deadline:
            raise DeadlineExceeded
        self._slice_end = min(now + SLICE_SECONDS, self.deadline)
