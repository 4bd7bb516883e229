"""Errors of the engine: errors of a request or light curve, and fatal errors.

Transports convert an :class:`EngineError` to a response; this module does not depend on HTTP.
"""

import re
from enum import StrEnum


class EngineError(Exception):
    """Base of every rejection and every failure of the engine."""


class Overloaded(EngineError):
    """The queue is too long to accept this request; ``retry_after`` predicts the seconds until it fits."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too much work is queued; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExceeded(EngineError):
    """The deadline passed, or would have passed before the end of the run."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before an answer could be computed")


class InferenceFailed(EngineError):
    """The network failed on this light curve when run alone; ``__cause__`` holds the reason, for the log only."""

    def __init__(self) -> None:
        super().__init__("the network failed on this light curve")


class RunAborted(EngineError):
    """Base of failures that were not caused by the light curve: a later attempt may succeed."""


class OutOfMemory(RunAborted):
    """There was not enough memory to run this light curve, even alone."""

    def __init__(self) -> None:
        super().__init__("there was not enough memory to run this light curve")


class EngineClosed(EngineError):
    """The engine is starting, draining or stopped and accepts no work."""

    def __init__(self) -> None:
        super().__init__("the engine is not accepting work")


class EngineDead(EngineError):
    """The engine failed for good; the process has to be replaced."""

    def __init__(self) -> None:
        super().__init__("the inference engine has failed")


_NO_MEMORY = re.compile(r"bad[_ ]alloc|allocate memory|out of memory|OUT_OF_MEMORY|ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception of numpy or onnxruntime means that memory ran out."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def error_of(error: Exception) -> EngineError:
    """Convert an exception of a run with one light curve to the error that its caller receives."""
    if isinstance(error, EngineError):
        return error
    failed = OutOfMemory() if is_out_of_memory(error) else InferenceFailed()
    failed.__cause__ = error
    return failed


class ErrorKind(StrEnum):
    """Kinds of engine errors, as named in metrics and logs."""

    THREAD_DIED = "thread_died"
    OUT_OF_MEMORY = "out_of_memory"
    RUN_HUNG = "run_hung"
    PROVIDER_LOST = "provider_lost"


MESSAGES = {
    ErrorKind.THREAD_DIED: "an inference thread died",
    ErrorKind.OUT_OF_MEMORY: "there is no memory left for inference",
    ErrorKind.RUN_HUNG: "an inference run hangs",
    ErrorKind.PROVIDER_LOST: "the execution provider fails every run",
}


class FatalEngineError(BaseException):
    """The engine cannot continue. Not an ``Exception``, so that it is not handled as a failed batch and bisected."""

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__(MESSAGES[kind])
        self.kind = kind


def kind_of(error: BaseException) -> ErrorKind:
    """Return the kind of the error that stopped an engine."""
    return error.kind if isinstance(error, FatalEngineError) else ErrorKind.THREAD_DIED
