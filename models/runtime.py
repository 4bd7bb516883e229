"""onnxruntime sessions, tuned for ragged light-curve batches on shared cores or on a GPU.

- Memory patterns are off: onnxruntime would store one for every new shape.
- Threads never spin, which would keep a core busy between the messages of a sparse stream.
- On a CPU each run uses one thread, and callers run concurrently on one session: the fastest layout measured.
- The execution provider is checked, because onnxruntime falls back to the CPU silently.
- A graph is opened from the bytes that were hashed and must contain all its weights: external weights would be read
  from files that the manifest does not list.
"""

import hashlib
import platform
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Provider = Literal["cpu", "cuda"]
Inputs = Mapping[str, NDArray[Any]]
"""Inputs of a graph by name."""

_PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

# Ragged batches need a different amount of memory each time; the default, doubling, would soon fill the device.
_SETTINGS: dict[str, dict[str, str]] = {"CUDAExecutionProvider": {"arena_extend_strategy": "kSameAsRequested"}}


class ProviderError(RuntimeError):
    """The requested execution provider is not available, or the session runs on another one."""


class GraphError(RuntimeError):
    """The graph is not the verified one, or has external weights."""


def open_session(
    path: Path,
    provider: Provider = "cpu",
    sha256: str = "",
    kernels: Path | None = None,
) -> ort.InferenceSession:
    """Open a graph on one execution provider.

    Parameters
    ----------
    sha256 : hex digest that the file must have; empty: not checked.
    kernels : library of native kernels (``models.native``), which replace the operators that they implement.

    Raises
    ------
    ProviderError
        If the provider is not installed, or the session fell back to another one.
    GraphError
        If the file has another digest or the graph has external weights.
    """
    provider_name, options = _PROVIDERS[provider], session_options(kernels)
    if provider == "cuda" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    if provider_name not in ort.get_available_providers():
        raise ProviderError(f"{provider_name} is not available in this onnxruntime: `gpu` is the extra for cuda")
    session = _session(path, sha256, options, provider_name)
    if session.get_providers()[0] != provider_name:
        raise ProviderError(f"asked for {provider_name}, the session runs on {session.get_providers()[0]}")
    return session


def _session(path: Path, sha256: str, options: ort.SessionOptions, provider: str) -> ort.InferenceSession:
    data = path.read_bytes()
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise GraphError(f"{path} is not the file that was verified")
    with tempfile.TemporaryDirectory() as empty:  # where onnxruntime looks for external weights
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", empty)
        try:
            return ort.InferenceSession(data, options, providers=[(provider, _SETTINGS.get(provider, {}))])
        except Exception as error:  # the runtime's exceptions share no useful base class
            if "external" in str(error).lower():
                raise GraphError(f"{path} keeps weights in other files, which no hash covers") from error
            raise


def session_options(kernels: Path | None = None) -> ort.SessionOptions:
    """Return the options that all sessions use; the module docstring gives the reasons."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if platform.machine() == "aarch64":
        # KleidiAI's kernels keep gigabytes where shapes change (github.com/microsoft/onnxruntime/issues/29538).
        options.add_session_config_entry("mlas.disable_kleidiai", "1")
    if kernels is not None:
        options.register_custom_ops_library(str(kernels))
    return options


def run(
    session: ort.InferenceSession, inputs: Inputs, options: ort.RunOptions | None = None
) -> dict[str, NDArray[Any]]:
    """Run a session; inputs that it does not declare are ignored.

    Parameters
    ----------
    inputs : graph inputs by name, as from :meth:`models.lightcurve.RaggedBatch.padded`.
    options : setting ``terminate`` from another thread makes the run raise.
    """
    names = [output.name for output in session.get_outputs()]
    feeds = {node.name: inputs[node.name] for node in session.get_inputs()}
    return {name: np.asarray(value) for name, value in zip(names, session.run(names, feeds, options), strict=True)}


def run_within(seconds: float, session: ort.InferenceSession, inputs: Inputs) -> dict[str, NDArray[Any]]:
    """Run an unverified session; raises TimeoutError if the run takes longer than ``seconds``."""
    options = ort.RunOptions()
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return run(session, inputs, options)
    except Exception as error:
        if options.terminate:
            raise TimeoutError(f"a run took longer than {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


class OnnxGraph:
    """Callable graph on one session; thread-safe on both CPU and GPU."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session

    def __call__(self, inputs: Inputs) -> dict[str, NDArray[Any]]:
        """Run the graph."""
        return run(self._session, inputs)

    def trim(self, inputs: Inputs) -> None:
        """Run the graph and free the CPU memory that runs on larger inputs left allocated."""
        options = ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        run(self._session, inputs, options)
