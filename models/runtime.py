"""onnxruntime sessions, tuned for ragged light-curve batches on shared cores, or on a device with its own memory.

Notable: memory patterns are off (they grow with every new shape), threads never spin (on a sparse stream that burns a
core), each run uses ``threads`` intra-op threads and callers run concurrently on one session, which beat every other
layout measured on CPU. The provider asked for is asserted: onnxruntime itself falls back to CPU silently. A graph
is opened from the very bytes that were hashed, and all its weights stand in them: onnxruntime would read others from
whatever file the graph names, which no manifest lists. A run under way can be interrupted, the session replaced.

**On a device** buffers are page-locked and used again, and copies go on beside runs::

    run = DeviceRun(session, open_again, "cuda", Cudart.of_this_process())
    ready = run.stage(inputs)    # copied to the device, while another thread's run computes there
    outputs = run(ready)

- onnxruntime copies inputs from ordinary memory, which the driver copies once more, into memory that the device may
  read. Here the inputs are written into memory that is page-locked from the start, and outputs come back into such;
- buffers have room for so many bytes and are bound by address, so one serves every shape that fits; they double when
  one does not, and never shrink;
- a :class:`RunBuffers` holds all buffers of a run. There are as many as runs and staged batches have ever been at one
  time. A copy that one thread waits for does not hold up the run of another: runs have streams of their own;
- what the driver is asked (page-locking, free memory) goes through the CUDA runtime library that onnxruntime has loaded
  into the process. On the CPU all of this works and gains nothing; it is there so that tests can run it.

Nothing here has run on a GPU yet.
"""

import ctypes
import hashlib
import math
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol

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
    kernels: Path | None = None,
) -> ort.InferenceSession:
    """Open a graph on one execution provider.

    Parameters
    ----------
    sha256 : hex digest that the file must have, where one is known.
    axes : lengths of named axes, where all runs have the same. Arithmetic on lengths, which runs on the CPU, then folds
        away; so on a GPU no node is left to the CPU, and a graph that would leave one is refused.
    kernels : library of kernels of our own (``models.native``), which take over what they can.

    Raises
    ------
    ProviderError
        When the provider is not installed, or the session fell back to another one.
    GraphError
        When the file has another digest, or is no graph that holds all its weights.
    """
    provider_name, options = _PROVIDERS[provider], session_options(threads, kernels)
    for name, size in (axes or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    if provider == "cuda" and axes:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
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
    with tempfile.TemporaryDirectory() as nothing:  # where weights beside the graph would be looked for
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", nothing)
        try:
            return ort.InferenceSession(data, options, providers=[(provider, _SETTINGS.get(provider, {}))])
        except Exception as error:  # onnxruntime raises a family of its own that share no base class
            if "external" in str(error).lower():
                raise GraphError(f"{path} keeps weights outside the graph, where no hash covers them") from error
            raise


def session_options(threads: int, kernels: Path | None = None) -> ort.SessionOptions:
    """Return the options of every session of a graph; the module docstring says why."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if kernels is not None:
        options.register_custom_ops_library(str(kernels))
    return options


def trimming_options() -> ort.RunOptions:
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


def run_within(seconds: float, session: ort.InferenceSession, inputs: Run) -> dict[str, NDArray[Any]]:
    """Run a session of which nothing is known yet; raises TimeoutError when it has to be interrupted."""
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
        """Options of a run of these inputs, which :meth:`interrupt` can stop until the ``with`` block ends."""
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
        run(self._session, inputs, trimming_options())

    def reopen(self) -> None:
        """Run on a new session from now on; seconds of work."""
        self._session = self._open_again()


Device = Literal["cpu", "cuda"]
Bytes = NDArray[np.uint8]
LEAST_BYTES: Final = 4096
_LIBRARIES: Final = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class Driver(Protocol):
    """Calls to the driver of a device."""

    def page_lock(self, memory: Bytes) -> bool:
        """Lock memory so that the device reads it directly, as long as the array lives; False where that fails."""

    def free_bytes(self) -> int:
        """Bytes of the device's memory that nobody has taken."""


class Cudart:
    """The CUDA runtime library of this process."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def of_this_process(cls) -> "Cudart | None":
        """Return the library; None where there is none."""
        for name in _LIBRARIES:
            with suppress(OSError):
                return cls(ctypes.CDLL(name))
        return None

    def page_lock(self, memory: Bytes) -> bool:
        """See :class:`Driver`."""
        address = memory.ctypes.data
        if self._library.cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(memory.nbytes), ctypes.c_uint(0)):
            return False
        weakref.finalize(memory, self._library.cudaHostUnregister, ctypes.c_void_p(address))
        return True

    def free_bytes(self) -> int:
        """See :class:`Driver`. Raises OSError where the driver does not tell."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if code := self._library.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
            raise OSError(f"the CUDA driver does not tell its free memory: error {code}")
        return free.value


class _Buffer:
    """Bytes of the host, page-locked where the driver does that, and as many on the device."""

    def __init__(self, device: Device, driver: Driver | None) -> None:
        self._device, self._driver = device, driver
        self.host: Bytes = np.empty(0, dtype=np.uint8)
        self._there: ort.OrtValue | None = None

    def reserve(self, size: int) -> None:
        """Hold at least so many bytes; what was held is lost when it grows."""
        if size <= self.host.nbytes:
            return
        self.host = np.zeros(max(LEAST_BYTES, 2 ** math.ceil(math.log2(size))), dtype=np.uint8)
        self._there = None
        if self._driver is not None:
            self._driver.page_lock(self.host)

    def send(self, value: NDArray[Any]) -> int:
        """Copy a value to the device and return its address there."""
        self.reserve(value.nbytes)
        self.host[: value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        if self._there is None:
            self._there = ort.OrtValue.ortvalue_from_numpy(self.host, self._device, 0)
        elif self._device != "cpu":
            self._there.update_inplace(self.host)
        return int(self._there.data_ptr())


class RunBuffers:
    """All buffers of one run, by the names of its inputs and outputs."""

    def __init__(self, device: Device, driver: Driver | None) -> None:
        self.device, self._driver = device, driver
        self._buffers: dict[str, _Buffer] = {}

    def buffer(self, name: str) -> _Buffer:
        """Return the buffer of a name."""
        return self._buffers.setdefault(name, _Buffer(self.device, self._driver))


class StagedInputs(dict[str, NDArray[Any]]):
    """Inputs of a run, as ever, which are also on the device, bound to one run of one session: ``spent`` after it."""

    def __init__(self, inputs: Mapping[str, NDArray[Any]], buffers: RunBuffers, session: ort.InferenceSession) -> None:
        super().__init__(inputs)
        self.buffers, self.session, self.spent = buffers, session, False
        self.binding = session.io_binding()
        for node in session.get_inputs():
            value = inputs[node.name]
            address = buffers.buffer(node.name).send(value)
            self.binding.bind_input(node.name, buffers.device, 0, value.dtype.type, value.shape, address)
        self._answers = {node.name: self._answer(node) for node in session.get_outputs()}

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Return copies of what the run has answered: the buffers will be written again."""
        values = self.binding.get_outputs()
        bound = zip(self._answers.items(), values, strict=True)
        return {name: np.asarray(value.numpy()) if place is None else place.copy() for (name, place), value in bound}

    def _answer(self, node: Any) -> NDArray[Any] | None:
        """Bind an output to page-locked memory, where its shape is known before; None where it is not."""
        axes = {
            axis: size
            for node_in in self.session.get_inputs()
            for axis, size in zip(node_in.shape, self[node_in.name].shape, strict=True)
            if isinstance(axis, str)
        }
        shape: list[Any] = [axes.get(axis) if isinstance(axis, str) else axis for axis in node.shape]
        kind = _KINDS.get(node.type)
        if kind is None or None in shape:
            self.binding.bind_output(node.name, "cpu")
            return None
        count = math.prod(shape)
        buffer = self.buffers.buffer(f"{node.name}/told")
        buffer.reserve(max(1, count * np.dtype(kind).itemsize))
        place = buffer.host[: count * np.dtype(kind).itemsize].view(kind).reshape(shape)
        self.binding.bind_output(node.name, "cpu", 0, kind, shape, int(buffer.host.ctypes.data))
        return place


_KINDS: Final[Mapping[str, type[np.generic]]] = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


class DeviceRun(SessionRun):
    """Graph inputs to graph outputs through buffers that are used again; called from several threads at once.

    Parameters
    ----------
    driver : page-locks memory; None: nothing is page-locked.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        open_again: Callable[[], ort.InferenceSession],
        device: Device,
        driver: Driver | None = None,
    ) -> None:
        super().__init__(session, open_again)
        self._device, self._driver = device, driver
        self._free_buffers: list[RunBuffers] = []  # free ones; append and pop are one step of the interpreter each

    def stage(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Copy inputs to the device, so that a run can begin at once; they come back as they were where that fails.

        Whoever stages inputs has to run them, or their buffers are lost.
        """
        try:
            return self._staged(inputs)
        except Exception:  # the run will try again, and its error be dealt with as that of a run
            return inputs

    def __call__(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph, on what was staged or on what is staged now."""
        ready = isinstance(inputs, StagedInputs) and inputs.session is self._session and not inputs.spent
        staged = inputs if ready else self._staged(inputs)
        assert isinstance(staged, StagedInputs)
        with self.watched(inputs) as options:
            staged.spent = True
            try:
                staged.session.run_with_iobinding(staged.binding, options)
                return staged.outputs()
            finally:
                self._free_buffers.append(staged.buffers)

    def _staged(self, inputs: Mapping[str, NDArray[Any]]) -> StagedInputs:
        try:
            buffers = self._free_buffers.pop()
        except IndexError:
            buffers = RunBuffers(self._device, self._driver)
        return StagedInputs(inputs, buffers, self._session)


SHARE_OF_MEMORY: Final = 0.8


class MemoryBound:
    """Bound on the width of batches by the memory of a device, from what batches have taken.

    The runtime keeps what runs have asked for, so that free memory falls with the widest batch so far.

    Parameters
    ----------
    free_bytes : of the device, now.
    runs : at the same time; each takes memory of its own.
    """

    def __init__(self, free_bytes: Callable[[], int], runs: int = 1) -> None:
        self._free_bytes, self._runs = free_bytes, runs
        self._at_first = free_bytes()
        self._for_each = 0.0

    def note_run(self, padded: int) -> None:
        """Look at the free memory after a batch of so many padded observations."""
        used_bytes = max(0, self._at_first - self._free_bytes())
        self._for_each = max(self._for_each, used_bytes / padded)

    def fits(self, padded: int) -> bool:
        """Return True unless batches so wide would take more than :data:`SHARE_OF_MEMORY` of what was free."""
        return padded * self._for_each * self._runs <= SHARE_OF_MEMORY * self._at_first
