"""Errors of a run: of one light curve, or of the model, which then fails every run."""

import re
from enum import StrEnum
from typing import ClassVar


class RunError(Exception):
    """Base of the errors of running a network. A light curve with such an error has the status ``failed``.

    Attributes
    ----------
    reason : reason code of the result.
    """

    reason: ClassVar[str]


class InferenceFailed(RunError):
    """The network failed on this light curve when run alone; ``__cause__`` holds the reason, for the log only."""

    reason = "inference_failed"

    def __init__(self) -> None:
        super().__init__("the network failed on this light curve")


class RunAborted(RunError):
    """Base of failures that were not caused by the light curve: a later attempt may succeed."""


class OutOfMemory(RunAborted):
    """There was not enough memory to run this light curve, even alone."""

    reason = "out_of_memory"

    def __init__(self) -> None:
        super().__init__("there was not enough memory to run this light curve")


_NO_MEMORY = re.compile(r"bad[_ ]alloc|allocate memory|out of memory|OUT_OF_MEMORY|ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception of numpy or onnxruntime means that memory ran out."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def error_of(error: Exception) -> RunError:
    """Convert an exception of a run with one light curve to the error that its caller receives."""
    if isinstance(error, RunError):
        return error
    failed = OutOfMemory() if is_out_of_memory(error) else InferenceFailed()
    failed.__cause__ = error
    return failed


class ErrorKind(StrEnum):
    """Kinds of errors of a model, as named in metrics and logs."""

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


class ModelFailedError(RuntimeError):
    """The model fails every run, also of a dummy light curve: no later light curve would be classified.

    A lost GPU, or memory that other programs use, is the usual cause, which ``__cause__`` holds. Restart the process.

    Attributes
    ----------
    kind : what failed.
    """

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__(f"{MESSAGES[kind]}; restart the process")
        self.kind = kind
