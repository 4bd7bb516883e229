"""Errors of the engine, in addition to those of a run (:mod:`core.failures`).

Transports convert them to a response; this module does not depend on HTTP.
"""

from nightjar_alerts.core.failures import ErrorKind, ModelFailedError, RunError


class Overloaded(RunError):
    """The queue is too long to accept this request; ``retry_after`` predicts the seconds until it fits."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too much work is queued; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExceeded(RunError):
    """The deadline passed, or would have passed before the end of the run."""

    reason = "deadline_exceeded"

    def __init__(self) -> None:
        super().__init__("the deadline passed before an answer could be computed")


class EngineClosed(RunError):
    """The engine is starting, draining or stopped and accepts no work."""

    def __init__(self) -> None:
        super().__init__("the engine is not accepting work")


class EngineDead(RunError):
    """The engine failed for good; the process has to be replaced."""

    def __init__(self) -> None:
        super().__init__("the inference engine has failed")


def kind_of(error: BaseException) -> ErrorKind:
    """Return the kind of the error that stopped an engine."""
    return error.kind if isinstance(error, ModelFailedError) else ErrorKind.THREAD_DIED
