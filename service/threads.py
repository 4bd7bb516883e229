"""Work in threads, awaited by the event loop, whose results are freed as soon as nobody uses them.

asyncio's own ways (``to_thread``, ``run_in_executor``) tie a thread's future and the loop's to each other, so that a
result, or a refusal with the frames and the body that it was raised over, lives on until Python next looks for cycles.
After many of them that takes a tenth of a second, in which no other thread does anything. Here nothing ties them: a
result is gone when its user is.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import thread_time
from typing import Final, TypeVar

T = TypeVar("T")


def nothing_refused(result: object) -> float:
    """Return 0: work that raises where it refuses something refuses no part of its result."""
    return 0.0


REST: Final = 10.0
"""Rest of a client after a refusal, as a multiple of the processor time that the refused work took."""
REST_SECONDS: Final = (1e-3, 0.5)
"""Shortest rest that is worth a timer, and the longest one."""


async def in_thread(threads: Executor, work: Callable[[], T], ended: Callable[[], None] = lambda: None) -> T:
    """Return the result of ``work``, done by one of some threads in the context of the caller.

    Parameters
    ----------
    ended : called on the event loop when the thread is free again, also when nobody waits for the result any more.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    threads.submit(copy_context().run, work).add_done_callback(partial(_done, loop, outcome, ended))
    try:
        return await outcome
    finally:
        del outcome  # an exception would keep itself: by its traceback this frame, and by that the future


def _done(
    loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[T], ended: Callable[[], None], future: Future[T]
) -> None:
    with suppress(RuntimeError):  # the loop has closed
        loop.call_soon_threadsafe(_tell, outcome, ended, future)


def _tell(outcome: asyncio.Future[T], ended: Callable[[], None], future: Future[T]) -> None:
    ended()
    if outcome.done():  # the caller has left
        return
    if future.cancelled():
        outcome.cancel()
    elif (error := future.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(future.result())


class Rests:
    """Clients that rest after a refusal, in every pool of threads that shares this object."""

    def __init__(self) -> None:
        self._resting: Counter[str] = Counter()  # a client may have been refused in two pools of threads at once
        self._callbacks: list[Callable[[], None]] = []

    def __contains__(self, client: str) -> bool:
        """Return True while a client rests."""
        return client in self._resting

    def tell(self, over: Callable[[], None]) -> None:
        """Call ``over`` from now on whenever a rest is over."""
        self._callbacks.append(over)

    def begin(self, client: str, seconds: float) -> None:
        """Let a client rest from now on."""
        self._resting[client] += 1
        asyncio.get_running_loop().call_later(seconds, self._end, client)

    def _end(self, client: str) -> None:
        self._resting[client] -= 1
        if not self._resting[client]:
            del self._resting[client]
            for callback in self._callbacks:
                callback()


class FairThreads:
    """A few threads, of which a client has one at a time; the others' work goes before a client's second.

    Decoding holds the interpreter's lock: in two threads it is no quicker than in one, and everybody else would wait
    for the lock behind both. For the same reason a client of which something was refused, a whole body or a packet of
    many, rests for :data:`REST` times what that took: one refusal right after the other would leave the lock to
    nobody else.

    Parameters
    ----------
    rests : shared with other pools of threads: a client that was refused in one has no turn in another either.
    """

    def __init__(self, count: int, name: str, rests: Rests | None = None) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = count
        self._at_work: set[str] = set()
        self._rests = Rests() if rests is None else rests
        self._rests.tell(self._call_others)
        self._refused_seconds: dict[str, float] = {}  # of those whose last work has just raised
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, client: str, work: Callable[[], T], refused: Callable[[T], float] = nothing_refused) -> T:
        """Return the result of ``work``, done in the context of the caller when it is the client's turn.

        Parameters
        ----------
        refused : the share of a result that was refused; work that raises has refused everything.
        """
        await self._turn(client)
        # Given back by the thread, not when the caller leaves: until then it is at work.
        timed = partial(self._timed, client, work, refused)
        return await in_thread(self._threads, timed, partial(self._give_back, client))

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _timed(self, client: str, work: Callable[[], T], refused: Callable[[T], float]) -> T:
        began, share = thread_time(), 1.0
        try:
            result = work()
            share = refused(result)
            return result
        finally:
            self._refused_seconds[client] = share * (thread_time() - began)

    async def _turn(self, client: str) -> None:
        if self._free and self._may_begin(client):
            self._take(client)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just come
                self._give_back(client)
            raise

    def _may_begin(self, client: str) -> bool:
        return client not in self._at_work and client not in self._rests

    def _take(self, client: str) -> None:
        self._free -= 1
        self._at_work.add(client)

    def _give_back(self, client: str) -> None:
        self._free += 1
        self._at_work.discard(client)
        shortest, longest = REST_SECONDS
        rest = REST * self._refused_seconds.pop(client, 0.0)
        if rest >= shortest:
            self._rests.begin(client, min(rest, longest))
        self._call_others()

    def _call_others(self) -> None:
        for name in list(self._waiting):
            if not self._free:
                return
            if self._may_begin(name):
                self._call(name)

    def _call(self, client: str) -> None:
        """Give a client's first turn that is still wanted, and put the client behind all others."""
        turns = self._waiting.pop(client)
        while turns:
            turn = turns.popleft()
            if not turn.done():
                self._take(client)
                turn.set_result(None)
                break
        if turns:
            self._waiting[client] = turns
