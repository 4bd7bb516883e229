"""onnxruntime sessions, tuned for ragged light-curve batches on shared cores.

Notable: memory patterns are off (they grow with every new shape), threads never spin (on a sparse stream that burns a
core), each run uses ``threads`` intra-op threads and callers run concurrently on one session, which beat every other
layout measured on CPU. The provider asked for is asserted: onnxruntime itself falls back to CPU without a word. A graph
is opened from the very bytes that were hashed, and all its weights stand in them: onnxruntime would read others from
whatever file the graph names, which no manifest lists. A run under way can be interrupted, the session replaced.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Provider = Literal["cpu", "cuda"]
Run = Mapping[str, NDArray[Any]]

_PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

# Ragged batches want a different amount each time; doubled steps, the default, would soon hold the whole device.
_SETTINGS: dict[str, dict[str, str]] = {"CUDAExecutionProvider": {"arena_extend_strategy": "kSameAsRequested"}}


class ProviderError(RuntimeError):
    """The execution provider asked for is not the one the session runs on."""


class GraphError(RuntimeError):
    """The graph is not the one that was verified, or keeps weights outside itself."""


def open_session(
    path: Path,
    provider: Provider = "cpu",
    threads: int = 1,
    sha256: str = "",
    axes: Mapping[str, int] | None = None,
) -> ort.InferenceSession:
    """Open a graph on one execution provider.

    Parameters
    ----------
    sha256 : hex digest that the file must have, where one is known.
    axes : lengths of named axes, where all runs have the same. Arithmetic on lengths then folds away, which the CPU
        does otherwise; so on a GPU nothing is left to it, and a graph of which something would be is refused.

    Raises
    ------
    ProviderError
        When the provider is not installed, or the session fell back to another one.
    GraphError
        When the file has another digest, or is no graph that holds all its weights.
    """
    wanted, options = _PROVIDERS[provider], session_options(threads)
    for name, size in (axes or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    if provider == "cuda" and axes:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if provider == "cuda" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    if wanted not in ort.get_available_providers():
        raise ProviderError(f"{wanted} is not available in this onnxruntime; install the matching extra")
    session = _session(path, sha256, options, wanted)
    if session.get_providers()[0] != wanted:
        raise ProviderError(f"asked for {wanted}, the session runs on {session.get_providers()[0]}")
    return session


def _session(path: Path, sha256: str, options: ort.SessionOptions, provider: str) -> ort.InferenceSession:
    data = path.read_bytes()
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise GraphError(f"{path} is not the file that was verified")
    with tempfile.TemporaryDirectory() as nothing:  # where weights beside the graph would be looked for
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", nothing)
        try:
            return ort.InferenceSession(data, options, providers=[(provider, _SETTINGS.get(provider, {}))])
        except Exception as error:  # onnxruntime raises a family of its own that share no base class
            if "external" in str(error).lower():
                raise GraphError(f"{path} keeps weights outside the graph, where no hash covers them") from error
            raise


def session_options(threads: int) -> ort.SessionOptions:
    """Return the options of every session of a graph; the module docstring says why."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def trimming() -> ort.RunOptions:
    """Options of a run that frees what larger runs have left in the session's memory on the CPU."""
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def run(session: ort.InferenceSession, inputs: Run, options: ort.RunOptions | None = None) -> dict[str, NDArray[Any]]:
    """Run a session on the inputs it declares; others are ignored.

    Parameters
    ----------
    inputs : graph inputs by name, as :meth:`models.lightcurve.RaggedBatch.padded` makes them.
    options : of this run; setting their ``terminate`` from another thread makes it raise.
    """
    names = [output.name for output in session.get_outputs()]
    feeds = {node.name: inputs[node.name] for node in session.get_inputs()}
    return {name: np.asarray(value) for name, value in zip(names, session.run(names, feeds, options), strict=True)}


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

    def __call__(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph."""
        with self.watched(inputs) as options:
            return run(self._session, inputs, options)

    @contextmanager
    def watched(self, inputs: Run) -> Iterator[ort.RunOptions]:
        """Options of a run of these inputs, which can be interrupted until the block ends."""
        options = ort.RunOptions()
        self._under_way[id(inputs)] = options
        try:
            yield options
        finally:
            del self._under_way[id(inputs)]

    def interrupt(self, inputs: dict[str, NDArray[Any]]) -> None:
        """Make the run of these inputs raise, as soon as the node that it is in has ended; from any thread."""
        options = self._under_way.get(id(inputs))
        if options is not None:
            options.terminate = True

    def trim(self, inputs: dict[str, NDArray[Any]]) -> None:
        """Run the graph, and free what runs on larger inputs have left."""
        run(self._session, inputs, trimming())

    def reopen(self) -> None:
        """Run on a new session from now on; seconds of work."""
        self._session = self._open_again()
