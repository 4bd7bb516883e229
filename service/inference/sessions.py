"""A session of onnxruntime as the engine runs it: a run under way can be interrupted, the session replaced."""

from collections.abc import Callable

import onnxruntime as ort

from models.runtime import run, trimming
from service.inference.batching import Arrays


class SessionRun:
    """Graph inputs to graph outputs; called from several threads at once.

    Parameters
    ----------
    session : the one to begin with, verified.
    open_again : opens another like it; raises what :func:`models.runtime.open_session` does.
    """

    def __init__(self, session: ort.InferenceSession, open_again: Callable[[], ort.InferenceSession]) -> None:
        self._session, self._open_again = session, open_again
        self._under_way: dict[int, ort.RunOptions] = {}

    def __call__(self, inputs: Arrays) -> Arrays:
        """Run the graph."""
        options = ort.RunOptions()
        self._under_way[id(inputs)] = options
        try:
            return run(self._session, inputs, options)
        finally:
            del self._under_way[id(inputs)]

    def interrupt(self, inputs: Arrays) -> None:
        """Make the run of these inputs raise, as soon as the node that it is in has ended; from any thread."""
        options = self._under_way.get(id(inputs))
        if options is not None:
            options.terminate = True

    def trim(self, inputs: Arrays) -> None:
        """Run the graph, and free what runs on larger inputs have left."""
        run(self._session, inputs, trimming())

    def reopen(self) -> None:
        """Run on a new session from now on; seconds of work."""
        self._session = self._open_again()
