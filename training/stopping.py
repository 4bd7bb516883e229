"""SIGINT and SIGTERM as an exception with the exit status that shells expect: 130 and 143."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STOPPED: Final = 128 + signal.SIGINT


class Stopped(KeyboardInterrupt):
    """A signal stopped the work; ``status`` is the exit status."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.status = 128 + number


@contextmanager
def stoppable(message: str) -> Iterator[None]:
    """Raise `Stopped` with a message after SIGINT or SIGTERM; work that ends itself on a signal keeps its status."""

    def stop(number: int, _: object) -> None:
        raise Stopped(message, number)

    is_main = threading.current_thread() is threading.main_thread()  # only it may set handlers
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped as error:
        raise Stopped(message, error.status - 128) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
