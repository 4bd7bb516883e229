"""Cost and layout of runs on this machine, measured at warm-up and kept on disk for the next start.

samples = measure(run, program)
cost = CostModel.fit(samples)

**Layout**: runs at the same time, threads inside each, and batches bound ahead, tried out at the first start. On a CPU
one run with one thread on each core is tried first, and is often the best: threads inside a run of a small network wait
for each other more than they work. What can still be gained is the time between runs: assembling a batch and copying
its answers out is work of the interpreter, a twentieth of a run or so, during which its core has no run. Two ways to
fill that gap are tried: more batches in flight than runs, so that the inputs of the next run are ready when a slot
comes free; and more runs than cores, which leaves it to the operating system. A network too large for one core's cache,
or a GPU, may prefer few runs with many threads; so that is tried too.

**Measurements** are kept between starts, one file for each combination of what they depend on: the machine (processor,
usable cores), onnxruntime, the provider, the bundle, and what the settings ask of the layout. A file is written whole
or not at all. What cannot be read or written is measured again, at every start if need be; all that this costs is a few
seconds of warm-up.
"""

import os
import platform
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from hashlib import sha256
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Annotated, NamedTuple

import numpy as np
import onnxruntime as ort
import structlog
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from nightjar_alerts.models.common import write_atomic
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.models.runtime import MemoryBound
from nightjar_alerts.service.engine.batch import (
    Arrays,
    ModelInput,
    RunGraph,
    TaskProgram,
    is_out_of_memory,
    padded_length,
)
from nightjar_alerts.service.engine.policy import RunSample


class Shape(NamedTuple):
    """A warm-up batch: one light curve of ``length`` points and ``batch - 1`` of ``others``."""

    batch: int
    length: int
    others: int


WARM_UP_SHAPES = (
    Shape(1, 4, 0),
    Shape(1, 128, 0),
    Shape(16, 32, 32),
    Shape(16, 64, 4),
    Shape(32, 8, 8),
    Shape(4, 192, 192),
    Shape(1, 384, 0),
    Shape(8, 192, 16),
    Shape(1, 32, 0),
    Shape(4, 48, 48),
    Shape(16, 4, 4),
    Shape(16, 64, 64),
)
"""From one faint transient to a full batch, even and ragged; the most informative first, as the time may run out."""

LONG_HISTORY = 512
LONGEST_PROBE = 1024
"""A network made for longer histories than ``LONG_HISTORY`` is also measured on one of up to this length: the shapes
above say little about attention, whose cost grows with the square."""

WARM_UP_SECONDS = 1.5
MIN_SAMPLES = 6  # one more than the cost model has terms

TYPICAL_LENGTH = 64
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
"""Padded points in a batch that are tried, as light curves of the typical length."""
DEVICE_WIDTHS = (*WIDTHS, 16_384, 32_768, 65_536, 131_072)
"""Padded points in a batch that are tried on a GPU, which runs thousands of points at once."""
USUAL_WIDTH = 1024
SLACK = 1.05  # ratio of seconds for each point: a smaller rise is noise
GAIN = 0.97  # a batch wider than usual must be this much cheaper for each point: all in it wait for its end


def measure(
    run: RunGraph,
    program: TaskProgram,
    repeats: int = 3,
    budget: float = WARM_UP_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> list[RunSample]:
    """Run the graph on made-up light curves of several shapes: the best duration of each.

    Every shape runs once untimed first, since the first run of a shape allocates. Once ``budget`` seconds are spent the
    remaining shapes are left out, but the first few are always measured.

    Parameters
    ----------
    clock : seconds. Where a run is the work of the calling thread alone, ``time.thread_time`` keeps other processes out
        of the fit: on a crowded machine they stretch long runs more than short ones, which would make merging look bad.
    """
    end = monotonic() + budget
    samples: list[RunSample] = []
    for shape in warm_up_shapes(program.most_points):
        if monotonic() > end and len(samples) >= MIN_SAMPLES:
            break
        samples.append(measure_one(run, program, shape, repeats, clock))
    return samples


def measure_one(
    run: RunGraph, program: TaskProgram, shape: Shape, repeats: int, clock: Callable[[], float]
) -> RunSample:
    """Measure one shape and return its shortest duration."""
    questions = probe(program, shape)
    inputs = program.assemble(questions)
    run(inputs)
    # The shortest, not the mean: whatever disturbs a run can only lengthen it.
    seconds = min(_timed(run, inputs, clock) for _ in range(repeats))
    return RunSample(len(questions), padded_length(inputs), sum(map(len, questions)), seconds)


def widest(
    run: RunGraph,
    program: TaskProgram,
    repeats: int = 3,
    clock: Callable[[], float] = monotonic,
    room: MemoryBound | None = None,
) -> int:
    """Find the number of padded points beyond which a batch has nothing to gain.

    The cost model is a straight line in their number, and says nothing of the size at which activations leave a cache
    or a memory. So batches of :data:`WIDTHS` are tried in turn, until a point has become dearer, or, beyond the usual
    width, until it has stopped becoming cheaper.

    Parameters
    ----------
    room : of a device with memory of its own. Widths go on beyond those of a CPU, and each is first tried with the
        longest light curves, which take most memory: no batch that is met later takes more than one that was tried.
    """
    length = min(TYPICAL_LENGTH, program.most_points)
    best, best_width = float("inf"), WIDTHS[0]
    for width in WIDTHS if room is None else DEVICE_WIDTHS:
        if room is not None and not _has_room(run, program, width, room):
            break
        sample = measure_one(run, program, Shape(max(1, width // length), length, length), repeats, clock)
        seconds_per_point = sample.seconds / (sample.batch * sample.length)
        if seconds_per_point > best * (SLACK if width <= USUAL_WIDTH else GAIN):
            break
        best, best_width = min(best, seconds_per_point), width
    return best_width


def _has_room(run: RunGraph, program: TaskProgram, width: int, room: MemoryBound) -> bool:
    """Return True if a batch of the longest light curves fits into memory; tried unless it is foreseen to fail."""
    longest = min(program.most_points, LONGEST_PROBE)
    shape = Shape(max(1, width // longest), longest, longest)
    if not room.fits(shape.batch * longest):
        return False
    try:
        run(program.assemble(probe(program, shape)))
    except Exception as error:  # the runtime's exceptions share no useful base class
        if is_out_of_memory(error):
            return False
        raise
    room.note_run(shape.batch * longest)
    return room.fits(shape.batch * longest)


def warm_up_shapes(most_points: int) -> tuple[Shape, ...]:
    """Shapes to measure for a network that takes histories of up to ``most_points``."""
    if most_points <= LONG_HISTORY:
        return WARM_UP_SHAPES
    return (*WARM_UP_SHAPES[:2], Shape(1, min(most_points, LONGEST_PROBE), 0), *WARM_UP_SHAPES[2:])


def probe(program: TaskProgram, shape: Shape) -> list[ModelInput]:
    """Questions of a shape, about made-up light curves as long as the network's limits allow."""
    lengths = [shape.length] + [shape.others] * (shape.batch - 1)
    bands = np.flatnonzero(program.manifest.band_map.table() >= 0).tolist()
    made_up = {length: program.made_up(_made_up(length, bands)) for length in set(lengths)}
    return [made_up[length] for length in lengths]


def _made_up(length: int, bands: Sequence[int]) -> LightCurve:
    steps = np.arange(length)
    flux = 1000.0 * np.sin(0.1 * steps)
    band = [FILTERS[index] for index in np.resize(np.array(bands), length)]
    return LightCurve.from_columns(60_000.0 + steps, flux, np.full(length, 100.0), band, detected=np.zeros(length))


def _timed(run: RunGraph, inputs: Arrays, clock: Callable[[], float]) -> float:
    started = clock()
    run(inputs)
    return clock() - started


SECONDS_EACH = 0.2  # for which each layout runs in each round
ROUNDS = 2  # each layout once in every round, so that a machine that gets slower meanwhile favours none
TUNE_SECONDS = 2.5  # after which no other layout is tried
WORTH_IT = 1.05  # times the rate of the simplest layout, in every round: one gain alone is often noise

MIX = (Shape(16, 48, 48), Shape(8, 96, 96), Shape(24, 24, 24), Shape(3, 256, 200), Shape(12, 64, 64))
"""Batches such as a long queue gives, of about the same number of points each."""


class CoreLayout(NamedTuple):
    """Use of a machine's cores; as a wish, 0 leaves the choice open.

    Attributes
    ----------
    runs : at the same time.
    threads : of the runtime inside each run.
    batches : batches bound at the same time, those that wait for their run included.
    """

    runs: int = 0
    threads: int = 0
    batches: int = 0

    @property
    def is_open(self) -> bool:
        """True when at least one member is left open."""
        return not all(self)


ONE_BY_ONE = CoreLayout(1, 1, 1)


def usual(wish: CoreLayout, cores: int) -> CoreLayout:
    """Fill a wish in without measuring: runs of one thread, as many as there are cores."""
    threads = wish.threads or 1
    runs = wish.runs or max(1, cores // threads)
    return CoreLayout(runs, threads, max(runs, wish.batches))


def candidates(wish: CoreLayout, cores: int, on_gpu: bool) -> list[CoreLayout]:
    """Layouts that fulfil a wish, the simplest first."""
    half = max(1, cores // 2)
    ideas = [usual(wish, cores)]
    if on_gpu:
        ideas += [CoreLayout(1, 1, 1), CoreLayout(1, 1, 2), CoreLayout(2, 1, 2), CoreLayout(2, 1, 4)]
    else:
        ideas += [CoreLayout(cores, 1, 2 * cores), CoreLayout(2 * cores, 1, 2 * cores), CoreLayout(half, 2, 2 * half)]
        ideas += [CoreLayout(1, cores, 2)]
    layouts = [
        layout
        for layout in dict.fromkeys(ideas)
        if all(wish_part in (0, part) for wish_part, part in zip(wish, layout, strict=True)) and layout.threads <= cores
    ]
    return layouts or [usual(wish, cores)]


def tune(
    layouts: Sequence[CoreLayout], open_graph: Callable[[int], RunGraph], program: TaskProgram
) -> tuple[CoreLayout, bool]:
    """Return the fastest layout (the first unless another is clearly better) and whether all were tried.

    Parameters
    ----------
    open_graph : function from a number of threads to a graph whose runs have that many.
    """
    if len(layouts) == 1:
        return layouts[0], True
    end = monotonic() + TUNE_SECONDS
    graphs = {threads: open_graph(threads) for threads in {layout.threads for layout in layouts}}
    batches = [probe(program, shape) for shape in MIX]
    for graph in graphs.values():
        for batch in batches:
            graph(program.assemble(batch))  # the first run of a shape allocates
    rates: dict[CoreLayout, list[float]] = {layout: [] for layout in layouts}
    for layout in [*layouts] * ROUNDS:
        if monotonic() < end:
            rates[layout].append(throughput(layout, graphs[layout.threads], program, batches, SECONDS_EACH))
    winner = max(layouts, key=lambda layout: _least_gain(rates[layout], rates[layouts[0]]))
    worth_it = _least_gain(rates[winner], rates[layouts[0]]) > WORTH_IT
    return winner if worth_it else layouts[0], all(rates.values())


def _least_gain(rates: Sequence[float], simplest: Sequence[float]) -> float:
    """Return the least ratio to the simplest layout's rate in the same round; 0 where there was no time to try."""
    # Not strict: time may have run out before this layout had its turn in the last round.
    return min((rate / usual for rate, usual in zip(rates, simplest, strict=False)), default=0.0)


def throughput(
    layout: CoreLayout, run: RunGraph, program: TaskProgram, batches: Sequence[Sequence[ModelInput]], seconds: float
) -> float:
    """Points per second of a layout that never runs out of work."""
    slot = threading.Semaphore(layout.runs) if layout.batches > layout.runs else nullcontext()
    # Shared by the threads without a lock: next() of a count, and append() to a list, are one step of the interpreter.
    turns, done, started = count(), list[int](), monotonic()

    def work() -> None:
        while monotonic() < started + seconds:
            batch = batches[next(turns) % len(batches)]
            inputs = program.assemble(batch)
            with slot:
                outputs = run(inputs)
            program.split(outputs, batch)
            done.append(sum(map(len, batch)))

    threads = [threading.Thread(target=work, name=f"tune-{number}") for number in range(layout.batches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (monotonic() - started)


FORMAT = 1  # of the file; a change of the shapes that are measured counts as well

log = structlog.get_logger(__name__)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Circumstances(_Frozen):
    """Everything that measurements depend on; a change of any member means another file."""

    format: int = FORMAT
    processor: str
    cores: int
    onnxruntime: str = ort.__version__
    provider: str
    kernels: tuple[str, ...] = ()
    bundle: str
    wish: tuple[int, int, int]


_Layout = tuple[PositiveInt, PositiveInt, PositiveInt]
_Run = tuple[PositiveInt, PositiveInt, PositiveInt, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
"""A :class:`RunSample`, as a file has it."""


class Measured(_Frozen):
    """Measurements of one bundle on this machine.

    Attributes
    ----------
    runs : measured runs, as members of :class:`RunSample`; the cost model is fitted to them.
    max_tokens : padded points beyond which a batch has nothing to gain.
    layout : use of the machine's cores, as members of :class:`CoreLayout`.
    tuned : whether other layouts were tried.
    """

    runs: tuple[_Run, ...] = Field(min_length=1)
    max_tokens: PositiveInt
    layout: _Layout
    tuned: bool

    @property
    def samples(self) -> list[RunSample]:
        """The runs, as the cost model is fitted to them."""
        return [RunSample(*run) for run in self.runs]


class _File(_Frozen):
    circumstances: Circumstances
    measured: Measured


class Measurements:
    """Measurements on disk, one file for each processor, runtime and bundle; nothing is stored with ``folder`` None."""

    def __init__(self, folder: Path | None, circumstances: Circumstances) -> None:
        self._circumstances = circumstances
        name = sha256(circumstances.model_dump_json().encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"costs-{name}.json"

    def recall(self) -> Measured | None:
        """Return the stored measurements, or None when there are none that can be read."""
        if self._path is None:
            return None
        try:
            stored = _File.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).partition("\n")[0]
            log.warning("measurements of an earlier start cannot be used", path=str(self._path), reason=reason)
            return None
        return stored.measured if stored.circumstances == self._circumstances else None

    def keep(self, measured: Measured) -> None:
        """Remember for the next start."""
        if self._path is None:
            return
        text = _File(circumstances=self._circumstances, measured=measured).model_dump_json(indent=1)
        try:
            write_atomic(self._path, text.encode(), shared=True)
        except OSError as error:
            log.info("measurements cannot be kept for the next start", path=str(self._path), reason=str(error))


def usual_folder() -> Path | None:
    """Return the system's folder for caches: ``$XDG_CACHE_HOME/nightjar``, or ``~/.cache/nightjar``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "nightjar"
    except RuntimeError:  # this user has no home folder
        return None


def usable_cores(control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use at a time: fewer than the machine has under ``taskset`` or in a container.

    Parameters
    ----------
    control_group : folder of the container's limits, as Linux shows them (version 2).
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = map(int, (control_group / "cpu.max").read_text().split())
    except (OSError, ValueError):  # there is no such thing here, or it says that there is no limit
        return cores
    return max(1, min(cores, quota // period))


def processor(system: Path = Path("/proc")) -> str:
    """Return the names of the processor and of NVIDIA devices; the architecture where there is no Linux.

    Parameters
    ----------
    system : Linux's ``/proc``.
    """
    devices = [
        name for file in sorted(system.glob("driver/nvidia/gpus/*/information")) for name in _values(file, "Model")
    ]
    names = [*_values(system / "cpuinfo", "model name")[:1], *devices]
    return ", ".join(names) or platform.processor() or platform.machine()


def _values(file: Path, name: str) -> list[str]:
    """Values of a name in a file of lines ``name: value``."""
    try:
        lines = [line.partition(":") for line in file.read_text().splitlines()]
    except OSError:
        return []
    return [value.strip() for key, _, value in lines if key.strip() == name]
