"""Graphs that hang, need too much memory, or fail every run, and the resulting errors."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.core.adapter import Adapter, Arrays, ModelInput
from nightjar_alerts.core.cost import CostModel, LiveCost
from nightjar_alerts.core.failures import ErrorKind, InferenceFailed, ModelFailedError, OutOfMemory, is_out_of_memory
from nightjar_alerts.core.items import Prediction
from nightjar_alerts.core.load import LoadedModel, load_model
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.runtime import OnnxGraph, open_session
from nightjar_alerts.service.engine import engine as engine_module
from nightjar_alerts.service.engine.engine import Engine, EngineOptions
from nightjar_alerts.service.engine.errors import EngineDead, kind_of
from nightjar_alerts.service.engine.watchdog import HUNG_FACTOR, Watchdog
from support.engines import batch_of, runner
from support.graphs import EchoGraph, echo_manifest, model_input, poison
from support.trouble import ENDLESS, GREEDY, trouble_bundle

CHEAP = CostModel(1e-6, 0.0, 0.0)
FLOOR = 0.2
ADAPTER = Adapter(echo_manifest())


def watchdog(cost: CostModel = CHEAP) -> Watchdog:
    return Watchdog(LiveCost(cost), FLOOR)


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return trouble_bundle(tmp_path_factory.mktemp("trouble") / "trouble")


def asked(bundle: Bundle, **columns: float) -> ModelInput:
    values = {"flux": 100.0, "flux_err": 1.0} | columns
    made = {name: np.full(10, value) for name, value in values.items()}
    curve = LightCurve.from_columns(60_000 + np.arange(10), made["flux"], made["flux_err"], ["r"] * 10)
    return Adapter(bundle.manifest).prepare(curve)


def test_check_within_many_times_the_prediction_returns_nothing() -> None:
    watching = watchdog(CostModel(1.0, 0.0, 0.0))
    with watching.watch(1, 10):
        assert watching.check(0.9 * HUNG_FACTOR) is None
        error = watching.check(0.2 * HUNG_FACTOR)
    assert isinstance(error, ModelFailedError)
    assert (error.kind, str(error)) == (ErrorKind.RUN_HUNG, "an inference run hangs; restart the process")
    assert watching.check(1e9) is None


def test_check_short_run_allows_the_minimum_time() -> None:
    watching = watchdog()
    with watching.watch(1, 10):
        assert watching.check(0.9 * FLOOR) is None
        assert isinstance(watching.check(0.2 * FLOOR), ModelFailedError)


def test_check_after_a_run_that_failed_returns_nothing() -> None:
    watching = watchdog()
    with pytest.raises(ZeroDivisionError), watching.watch(1, 10):
        raise ZeroDivisionError
    assert watching.check(1e9) is None


def test_check_after_the_process_was_stopped_returns_nothing() -> None:
    """After SIGSTOP and SIGCONT the clock has advanced, but the age of the run has not."""
    watching = watchdog()
    with watching.watch(1, 10):
        assert watching.check(0.01) is None
        time.sleep(1.5 * FLOOR)
        assert watching.check(0.01) is None


def test_run_batch_out_of_memory_fails_only_that_light_curve(trouble: Bundle) -> None:
    recoveries: list[int] = []
    graph, adapter = OnnxGraph(open_session(trouble.model)), Adapter(trouble.manifest)
    running = runner(graph, lambda: recoveries.append(1), adapter)
    [result], reports = running.run_batch(batch_of(asked(trouble, **GREEDY)))
    assert isinstance(result, OutOfMemory)
    assert is_out_of_memory(result.__cause__ or ValueError())
    assert (recoveries, reports) == ([1], [])
    (good, greedy), [report] = running.run_batch(batch_of(asked(trouble), asked(trouble, **GREEDY)))
    assert isinstance(good, Prediction)
    assert isinstance(greedy, OutOfMemory)
    assert report.size == 1
    assert recoveries == [1, 1, 1]  # the batch, and the light curve alone


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
def test_is_out_of_memory_of_runtime_errors_is_true(error: Exception, so: bool) -> None:
    assert is_out_of_memory(error) == so


def test_is_out_of_memory_of_numpy_errors_is_true() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(2**60, dtype=np.uint8)
    assert is_out_of_memory(caught.value)


def test_run_batch_curve_that_always_fails_fails_alone() -> None:
    graph = EchoGraph()
    graph.on_marker[7.0] = poison
    for _ in range(10):  # however often it comes
        [result], _ = runner(graph).run_batch(batch_of(model_input(7.0)))
        assert isinstance(result, InferenceFailed)
        assert isinstance(result.__cause__, ZeroDivisionError)
    assert graph.seen.count(7.0) == 10
    assert len(graph.seen) == 20  # after each failure a made-up light curve has run


def test_run_batch_of_a_provider_that_fails_every_run_raises_a_fatal_error() -> None:
    sizes: list[int] = []

    def lost(arrays: Arrays) -> Arrays:
        sizes.append(len(arrays["mask"]))
        raise RuntimeError("CUDA error 999")

    with pytest.raises(ModelFailedError, match="the execution provider fails every run") as caught:
        runner(lost).run_batch(batch_of(model_input(5.0), model_input(6.0)))
    assert kind_of(caught.value) is ErrorKind.PROVIDER_LOST
    assert sizes == [2, 1, 1]  # the batch, its first light curve, and one that is made up


def test_run_batch_by_a_session_of_another_graph_raises_a_fatal_error(trouble: Bundle, tmp_path: Path) -> None:
    """onnxruntime rejects every input."""
    onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'nightjar-alerts[train]'")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["flux"], ["other"])],
        "other",
        [info("flux", onnx.TensorProto.DOUBLE, [1])],
        [info("other", onnx.TensorProto.DOUBLE, [1])],
    )
    path = tmp_path / "other.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    running = runner(OnnxGraph(open_session(path)), adapter=Adapter(trouble.manifest))
    with pytest.raises(ModelFailedError):
        running.run_batch(batch_of(asked(trouble)))


def test_run_batch_without_memory_for_any_run_raises_a_fatal_error() -> None:
    def full(_: Arrays) -> Arrays:
        raise MemoryError

    with pytest.raises(ModelFailedError, match="no memory left"):
        runner(full).run_batch(batch_of(model_input(5.0)))


@contextmanager
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_module, "WATCH_SECONDS", 0.02)
    yield


async def in_an_engine(loaded: LoadedModel, use: Callable[[Engine], Awaitable[object]]) -> list[BaseException]:
    """Run ``use`` with an engine; return the fatal errors of the engine."""
    deaths: list[BaseException] = []
    adapter, options = Adapter(loaded.bundle.manifest), EngineOptions(workers=2, hung_run_seconds=FLOOR)
    engine = Engine(loaded.graph, adapter, loaded.cost, options, on_death=deaths.append)
    await engine.start()
    try:
        await use(engine)
        await asyncio.sleep(0)
    finally:
        await engine.stop()
    return deaths


async def test_engine_curve_out_of_memory_does_not_affect_batch_mates(trouble: Bundle) -> None:
    async def use(engine: Engine) -> None:
        greedy = engine.enqueue([asked(trouble), asked(trouble, **GREEDY), asked(trouble)])
        results = await asyncio.gather(*(entry.future for entry in greedy), return_exceptions=True)
        assert [isinstance(each, OutOfMemory) for each in results] == [False, True, False]
        assert (await engine.submit(asked(trouble))).outputs["probabilities"].shape == (20,)
        assert engine.alive

    assert await in_an_engine(load_model(trouble.path), use) == []


async def test_engine_with_a_graph_that_loops_forever_dies(trouble: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(trouble.path)

    async def use(engine: Engine) -> None:
        with pytest.raises(EngineDead):
            await engine.submit(asked(trouble, **ENDLESS))

    with quick_watch(monkeypatch):
        (death,) = await in_an_engine(loaded, use)
    assert kind_of(death) is ErrorKind.RUN_HUNG


async def test_engine_with_a_hung_run_fails_everything_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = EchoGraph()
    loaded = LoadedModel(Bundle(Path("echo"), echo_manifest(), "0" * 64), "cpu", graph, CHEAP, 0.0, 0.0)

    async def use(engine: Engine) -> None:
        graph.hold()
        entries = engine.enqueue([model_input(float(marker)) for marker in range(40)])
        results = await asyncio.gather(*(entry.future for entry in entries), return_exceptions=True)
        assert {type(each) for each in results} == {EngineDead}
        assert not engine.alive
        graph.release()

    with quick_watch(monkeypatch):
        (death,) = await in_an_engine(loaded, use)
    assert kind_of(death) is ErrorKind.RUN_HUNG
