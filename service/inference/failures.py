"""What the engine says when it cannot answer. Transports turn these into replies; none of them knows about HTTP."""


class EngineFailure(Exception):
    """Base of everything below: catch it to catch any refusal or failure of the engine."""


class Overloaded(EngineFailure):
    """The backlog is too long to take this request; ``retry_after`` predicts how many seconds until it fits."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too much work is queued; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExceeded(EngineFailure):
    """The deadline passed, or would have passed before the run could end."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before an answer could be computed")


class InferenceFailed(EngineFailure):
    """The network failed on this one light curve, alone; ``__cause__`` holds the reason, for the log only."""

    def __init__(self) -> None:
        super().__init__("the network failed on this light curve")


class RunAborted(EngineFailure):
    """Base of what kept a run from ending through no fault of the light curve: a later try may succeed."""


class OutOfMemory(RunAborted):
    """There was no memory to run this light curve, alone."""

    def __init__(self) -> None:
        super().__init__("there was not enough memory to run this light curve")


class RunHung(RunAborted):
    """The run that this light curve was in took many times as long as predicted, and was given up."""

    def __init__(self) -> None:
        super().__init__("the run took far too long and was given up")


class EngineClosed(EngineFailure):
    """The engine is starting, draining or stopped and takes no work."""

    def __init__(self) -> None:
        super().__init__("the engine is not accepting work")


class EngineDead(EngineFailure):
    """A worker thread died; the process has to be replaced."""

    def __init__(self) -> None:
        super().__init__("the inference engine has failed")


def failure_of(error: Exception) -> EngineFailure:
    """What a light curve is told whose run alone raised this."""
    if isinstance(error, EngineFailure):
        return error
    failure = OutOfMemory() if isinstance(error, MemoryError) else InferenceFailed()
    failure.__cause__ = error
    return failure
