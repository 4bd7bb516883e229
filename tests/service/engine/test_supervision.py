"""Graphs that really hang, really ask for too much, really fail for good: what the supervisor makes of each."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.runtime import SessionRun, open_session
from nightjar_alerts.service.engine import engine as engine_module
from nightjar_alerts.service.engine.batch import (
    Arrays,
    Classification,
    EngineDead,
    ModelInput,
    OutOfMemory,
    RunGraph,
    RunHung,
    is_out_of_memory,
    program_of,
)
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.load import LoadedModel, load_model
from nightjar_alerts.service.engine.policy import CostModel
from nightjar_alerts.service.engine.supervise import (
    HUNG_FACTOR,
    FatalEngineError,
    Fault,
    Supervisor,
    fault_of,
    supervise,
)
from support.graphs import EchoGraph, echo_manifest, poison, question
from support.trouble import ENDLESS, GREEDY, trouble_bundle

CHEAP = CostModel(1e-6, 0.0, 0.0)
FLOOR = 0.2
PROGRAM = Classification(echo_manifest())

Faults = list[tuple[Fault, bool]]


def inputs(*markers: float) -> Arrays:
    return PROGRAM.assemble([question(marker) for marker in markers])


KNOWN_GOOD = 1.0


def supervised(graph: RunGraph, faults: Faults | None = None, cost: CostModel = CHEAP) -> Supervisor:
    told = [] if faults is None else faults
    return Supervisor(graph, cost, inputs(KNOWN_GOOD), FLOOR, lambda *fault: told.append(fault))


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return trouble_bundle(tmp_path_factory.mktemp("trouble") / "trouble")


def session_run(bundle: Bundle) -> SessionRun:
    return SessionRun(open_session(bundle.model), partial(open_session, bundle.model))


def asked(bundle: Bundle, **columns: float) -> ModelInput:
    values = {"flux": 100.0, "flux_err": 1.0} | columns
    made = {name: np.full(10, value) for name, value in values.items()}
    curve = LightCurve.from_columns(60_000 + np.arange(10), made["flux"], made["flux_err"], ["r"] * 10)
    prepared: ModelInput = program_of(bundle.manifest).prepare(curve)  # type: ignore[arg-type]  # it classifies
    return prepared


def of(bundle: Bundle, *questions: ModelInput) -> Arrays:
    return program_of(bundle.manifest).assemble(questions)


@contextmanager
def watched(supervisor: Supervisor) -> Iterator[None]:
    """The watchdog of the engine, in a thread."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            supervisor.watch(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    done.set()
    thread.join()


def test_an_ordinary_run_passes_through() -> None:
    faults: Faults = []
    supervisor = supervised(EchoGraph(), faults)
    assert supervisor(inputs(5.0, 6.0))["probabilities"][:, 0].tolist() == [5.0, 6.0]
    assert (supervisor.trouble, supervisor.watch(1e9), faults) == ("", None, [])


def test_a_graph_that_loops_for_ever_is_interrupted(trouble: Bundle) -> None:
    faults: Faults = []
    supervisor = supervised(session_run(trouble), faults)
    with watched(supervisor), pytest.raises(RunHung):
        supervisor(of(trouble, asked(trouble, **ENDLESS)))
    assert faults == [(Fault.RUN_HUNG, True)]
    assert supervisor.trouble == ""
    assert supervisor(of(trouble, asked(trouble)))["probabilities"].shape == (1, 20)


def test_a_long_run_has_the_time_that_is_predicted_for_it_many_times_over() -> None:
    graph = EchoGraph()
    supervisor = supervised(graph, cost=CostModel(1.0, 0.0, 0.0))
    graph.hold()
    thread = threading.Thread(target=supervisor, args=(inputs(5.0),))
    thread.start()
    assert graph.started.acquire(timeout=10)
    assert supervisor.watch(0.9 * HUNG_FACTOR) is None
    assert supervisor.trouble == ""
    assert supervisor.watch(0.2 * HUNG_FACTOR) is None
    assert supervisor.trouble == "an inference run hangs"
    graph.release()
    thread.join(10)
    assert supervisor.trouble == ""


def test_a_run_that_cannot_be_interrupted_is_fatal() -> None:
    graph = EchoGraph()
    supervisor = supervised(graph)
    graph.hold()
    thread = threading.Thread(target=supervisor, args=(inputs(5.0),))
    thread.start()
    assert graph.started.acquire(timeout=10)
    assert supervisor.watch(1.5 * FLOOR) is None
    broken = supervisor.watch(1.5 * FLOOR)
    assert isinstance(broken, FatalEngineError)
    assert (broken.fault, str(broken)) == (Fault.RUN_HUNG, "an inference run hangs")
    graph.release()
    thread.join(10)


def test_a_process_that_was_stopped_as_a_whole_finds_nothing_hung() -> None:
    """After SIGSTOP and SIGCONT the clock has gone on and the watchdog has not."""
    graph = EchoGraph()
    supervisor = supervised(graph)
    graph.hold()
    thread = threading.Thread(target=supervisor, args=(inputs(5.0),))
    thread.start()
    assert graph.started.acquire(timeout=10)
    supervisor.watch(0.01)
    time.sleep(1.5 * FLOOR)
    supervisor.watch(0.01)
    assert supervisor.trouble == ""
    graph.release()
    thread.join(10)


def test_more_memory_than_there_is(trouble: Bundle) -> None:
    faults: Faults = []
    supervisor = supervised(session_run(trouble), faults)
    with pytest.raises(OutOfMemory) as caught:
        supervisor(of(trouble, asked(trouble, **GREEDY)))
    assert is_out_of_memory(caught.value.__cause__ or ValueError())
    assert faults == [(Fault.OUT_OF_MEMORY, True)]
    with pytest.raises(Exception, match="allocate memory"):  # a batch: its caller tries halves of it
        supervisor(of(trouble, asked(trouble), asked(trouble, **GREEDY)))


@pytest.mark.parametrize(
    ("error", "so"),
    [
        (MemoryError(), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 17"), True),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("Non-zero status code returned while running Gather node"), False),
    ],
)
def test_missing_memory_is_recognised(error: Exception, so: bool) -> None:
    assert is_out_of_memory(error) == so


def test_numpy_says_it_as_well() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(2**60, dtype=np.uint8)
    assert is_out_of_memory(caught.value)


def test_a_curve_that_fails_alone_is_to_blame_as_long_as_others_run() -> None:
    graph, faults = EchoGraph(), list[tuple[Fault, bool]]()
    graph.on_marker[7.0] = poison
    supervisor = supervised(graph, faults)
    for _ in range(10):  # however often it comes
        with pytest.raises(ZeroDivisionError):
            supervisor(inputs(7.0))
    assert graph.seen == [7.0, KNOWN_GOOD] * 10
    assert faults == []


class Device:
    """A graph on a device that can be lost, and comes back, or not, when the session is opened again."""

    def __init__(self, comes_back: bool = True) -> None:
        self.graph = EchoGraph()
        self.lost, self.comes_back, self.opened = False, comes_back, 0

    def __call__(self, inputs: Arrays) -> Arrays:
        if self.lost:
            raise RuntimeError("CUDA error 999")
        return self.graph(inputs)

    def interrupt(self, inputs: Arrays) -> None:
        raise AssertionError

    def reopen(self) -> None:
        self.opened += 1
        self.lost = not self.comes_back


def test_a_provider_that_is_lost_is_opened_again_and_nobody_notices() -> None:
    device, faults = Device(), list[tuple[Fault, bool]]()
    supervisor = supervised(device, faults)
    device.lost = True
    with pytest.raises(RuntimeError):
        supervisor(inputs(5.0, 6.0))
    assert supervisor(inputs(5.0))["probabilities"][0, 0] == 5.0
    assert (device.opened, faults, supervisor.trouble) == (1, [(Fault.PROVIDER_LOST, True)], "")


def test_a_session_that_really_fails_every_run_is_replaced(trouble: Bundle, tiny_graph: Path) -> None:
    """A session of another graph: onnxruntime refuses every input that it is given."""
    graph = SessionRun(open_session(tiny_graph), partial(open_session, trouble.model))
    supervisor = Supervisor(graph, CHEAP, of(trouble, asked(trouble)), FLOOR)
    assert supervisor(of(trouble, asked(trouble)))["probabilities"].shape == (1, 20)


@pytest.fixture
def tiny_graph(tmp_path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    info = onnx.helper.make_tensor_value_info
    path = tmp_path / "other.onnx"
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["flux"], ["other"])],
        "other",
        [info("flux", onnx.TensorProto.DOUBLE, [1])],
        [info("other", onnx.TensorProto.DOUBLE, [1])],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_a_provider_that_is_lost_twice_is_fatal() -> None:
    device = Device()
    supervisor = supervised(device)
    for again in (False, True):
        device.lost = True
        if again:
            with pytest.raises(FatalEngineError, match="the execution provider fails every run"):
                supervisor(inputs(5.0))
        else:
            supervisor(inputs(5.0))
    assert device.opened == 1


def test_a_provider_that_does_not_come_back_is_fatal() -> None:
    device = Device(comes_back=False)
    device.lost = True
    with pytest.raises(FatalEngineError) as caught:
        supervised(device)(inputs(5.0))
    assert fault_of(caught.value) is Fault.PROVIDER_LOST


def test_several_threads_that_lose_the_provider_open_it_once() -> None:
    device, answers = Device(), list[float]()
    supervisor = supervised(device)
    device.lost = True
    together = threading.Barrier(4)

    def run(marker: float) -> None:
        together.wait()
        answers.append(float(supervisor(inputs(marker))["probabilities"][0, 0]))

    threads = [threading.Thread(target=run, args=(float(marker),)) for marker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (sorted(answers), device.opened) == ([0.0, 1.0, 2.0, 3.0], 1)


def test_memory_that_is_gone_for_everybody_is_not_the_fault_of_a_curve() -> None:
    def full(_: Arrays) -> Arrays:
        raise MemoryError

    with pytest.raises(FatalEngineError, match="no memory left"):
        supervised(full)(inputs(5.0))


@contextmanager
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_module, "WATCH_SECONDS", 0.02)
    yield


async def in_an_engine(loaded: LoadedModel, use: Callable[[Engine], Awaitable[object]]) -> list[BaseException]:
    """Run ``use`` with an engine around a supervised model; return the errors that the engine died of."""
    deaths: list[BaseException] = []
    supervisor = supervise(loaded, FLOOR, lambda *_: None)
    program = program_of(loaded.bundle.manifest)
    engine = Engine(
        supervisor, program, loaded.cost, EngineOptions(workers=2), on_death=deaths.append, guard=supervisor
    )
    await engine.start()
    try:
        await use(engine)
    finally:
        await engine.stop()
    return deaths


async def test_batch_mates_in_an_engine(trouble: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(trouble.path)

    async def use(engine: Engine) -> None:
        greedy = engine.enqueue([asked(trouble), asked(trouble, **GREEDY), asked(trouble)])
        told = await asyncio.gather(*(entry.future for entry in greedy), return_exceptions=True)
        assert [isinstance(each, OutOfMemory) for each in told] == [False, True, False]
        endless = engine.enqueue([asked(trouble, **ENDLESS)])
        with pytest.raises(RunHung):
            await endless[0].future
        assert (await engine.submit(asked(trouble))).outputs["probabilities"].shape == (20,)
        assert engine.alive

    with quick_watch(monkeypatch):
        assert await in_an_engine(loaded, use) == []


async def test_an_engine_dies_of_what_its_guard_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = EchoGraph()
    loaded = LoadedModel(Bundle(Path("echo"), echo_manifest(), "0" * 64), "cpu", graph, CHEAP, 0.0, 0.0)

    async def use(engine: Engine) -> None:
        graph.hold()
        entries = engine.enqueue([question(float(marker)) for marker in range(40)])
        told = await asyncio.gather(*(entry.future for entry in entries), return_exceptions=True)
        assert {type(each) for each in told} == {EngineDead}
        assert not engine.alive
        graph.release()

    with quick_watch(monkeypatch):
        (death,) = await in_an_engine(loaded, use)
    assert fault_of(death) is Fault.RUN_HUNG
