"""Work in threads, awaited by the event loop, whose results are freed as soon as their user is done.

asyncio's own ways (``to_thread``, ``run_in_executor``) tie a thread's future and the loop's to each other, so that a
result, or a refusal with the frames and the body that it was raised over, lives on until Python next looks for cycles.
After many of them that takes a tenth of a second, in which no other thread does anything. Here nothing ties them: a
result is gone when its user is.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")


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
        loop.call_soon_threadsafe(_set_outcome, outcome, ended, future)


def _set_outcome(outcome: asyncio.Future[T], ended: Callable[[], None], future: Future[T]) -> None:
    ended()
    if outcome.done():  # the caller has left
        return
    if future.cancelled():
        outcome.cancel()
    elif (error := future.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(future.result())
