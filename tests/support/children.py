"""Forked processes of tests."""

import multiprocessing
from collections.abc import Iterator
from typing import Any


def assert_raises_in_child(stream: Iterator[Any]) -> None:
    """Continue an iterator in a forked process, and check that it raises RuntimeError there."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_continue, args=(stream, sender))
    child.start()
    assert receiver.poll(60)
    assert "started in another process" in receiver.recv()
    child.join(60)
    assert child.exitcode == 0


def _continue(stream: Iterator[Any], sender: Any) -> None:
    try:
        sender.send(repr(next(stream)))
    except RuntimeError as error:
        sender.send(str(error))
