"""Runs through buffers that are used again, on the CPU; the driver of a GPU is a stand-in."""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from nightjar_alerts.models.runtime import (
    SHARE_OF_MEMORY,
    Cudart,
    DeviceRun,
    MemoryBound,
    SessionRun,
    StagedInputs,
    open_session,
)


class Driver:
    """Page-locks everything, and says so."""

    def __init__(self) -> None:
        self.locked: list[int] = []

    def page_lock(self, memory: NDArray[np.uint8]) -> bool:
        self.locked.append(memory.nbytes)
        return True

    def free_bytes(self) -> int:
        return 0


def opener(folder: Path) -> Callable[[], ort.InferenceSession]:
    """A graph that counts what is not masked and turns the sign of the rest round; one length of its is not known."""
    sizes = {"x": TensorProto.FLOAT, "mask": TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name, kind in sizes.items()]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length"]),
        helper.make_tensor_value_info("places", TensorProto.INT64, [2, "unknown"]),
    ]
    nodes = [
        helper.make_node("Neg", ["x"], ["minus"]),
        helper.make_node("Where", ["mask", "x", "minus"], ["y"]),
        helper.make_node("NonZero", ["mask"], ["places"]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "g.onnx")
    return lambda: open_session(folder / "g.onnx")


def asked(batch: int, length: int) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(batch * length)
    return {"x": rng.normal(size=(batch, length)).astype(np.float32), "mask": rng.random((batch, length)) < 0.5}


SHAPES = [(2, 3), (64, 90), (1, 1), (5, 70), (64, 91), (2, 3)]


def same(outputs: dict[str, NDArray[np.generic]], inputs: dict[str, NDArray[np.generic]]) -> None:
    x, mask = inputs["x"], inputs["mask"]
    np.testing.assert_array_equal(outputs["y"], np.where(mask, x, np.negative(x)))
    np.testing.assert_array_equal(outputs["places"], np.stack(np.nonzero(mask)))


def test_buffers_serve_every_shape_and_grow_seldom(tmp_path: Path) -> None:
    again, driver = opener(tmp_path), Driver()
    run = DeviceRun(again(), again, "cpu", driver)
    answers = [(run(inputs), inputs) for inputs in (asked(*shape) for shape in SHAPES * 5)]
    for outputs, inputs in answers:  # none was overwritten by a later one
        same(outputs, inputs)
    assert 3 <= len(driver.locked) <= 8
    assert all(size & (size - 1) == 0 for size in driver.locked)


def test_staged_inputs_are_the_inputs_and_answer_the_same(tmp_path: Path) -> None:
    again = opener(tmp_path)
    run = DeviceRun(again(), again, "cpu")
    first, second = run.stage(asked(4, 9)), run.stage(asked(3, 7))  # two at a time
    assert isinstance(first, StagedInputs)
    assert first["mask"].shape == (4, 9)
    same(run(second), second)
    same(run(first), first)
    same(run(first), first)  # once more: staged anew, for its buffers may be another's by now


def test_runs_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    again = opener(tmp_path)
    run, wrong = DeviceRun(again(), again, "cpu"), list[BaseException]()

    def work(number: int) -> None:
        try:
            for turn in range(60):
                inputs = asked(1 + (number + turn) % 7, 1 + turn)
                same(run(run.stage(inputs)), inputs)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_after_a_session_was_replaced_what_was_staged_for_it_is_staged_again(tmp_path: Path) -> None:
    again = opener(tmp_path)
    run = DeviceRun(again(), again, "cpu")
    staged = run.stage(asked(4, 9))
    run.reopen()
    same(run(staged), staged)


def test_inputs_that_cannot_be_staged_come_back_and_fail_as_a_run(tmp_path: Path) -> None:
    again = opener(tmp_path)
    run, inputs = DeviceRun(again(), again, "cpu"), {"x": np.zeros((1, 1), dtype=np.float32)}
    assert run.stage(inputs) is inputs
    with pytest.raises(KeyError, match="mask"):
        run(inputs)


def test_a_bundle_answers_the_same_through_buffers(tiny_bundle: Path) -> None:
    from nightjar_alerts.training.export.profile import random_inputs

    def again() -> ort.InferenceSession:
        return open_session(tiny_bundle / "model.onnx")

    plain, bound = SessionRun(again(), again), DeviceRun(again(), again, "cpu")
    for batch, length in ((1, 30), (7, 12), (3, 40)):
        inputs = random_inputs(batch, length, metadata=True)
        outputs = bound(bound.stage(inputs))
        for name, value in plain(inputs).items():
            np.testing.assert_array_equal(outputs[name], value)


class Library:
    """The functions of the CUDA runtime that are called, on a device of 10 GB of which 4 are free."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.registered = code, list[int]()

    def cudaHostRegister(self, address: ctypes.c_void_p, size: ctypes.c_size_t, flags: ctypes.c_uint) -> int:
        assert (size.value, flags.value) == (64, 0)
        if not self.code:
            self.registered.append(address.value or 0)
        return self.code

    def cudaHostUnregister(self, address: ctypes.c_void_p) -> int:
        self.registered.remove(address.value or 0)
        return self.code

    def cudaMemGetInfo(self, free: object, total: object) -> int:
        free._obj.value, total._obj.value = 4 * 10**9, 10**10  # type: ignore[attr-defined]  # what byref gives
        return self.code


def test_memory_is_page_locked_as_long_as_it_lives() -> None:
    library = Library()
    memory = np.zeros(64, dtype=np.uint8)
    assert Cudart(library).page_lock(memory)
    assert library.registered == [memory.ctypes.data]
    del memory
    assert library.registered == []


def test_a_driver_that_refuses_is_told() -> None:
    assert Cudart(Library()).free_bytes() == 4 * 10**9
    refusing = Cudart(Library(code=2))
    assert not refusing.page_lock(np.zeros(64, dtype=np.uint8))
    with pytest.raises(OSError, match="error 2"):
        refusing.free_bytes()


def test_room_is_what_the_widest_batch_leaves() -> None:
    free = iter([1000, 900, 700])
    bound = MemoryBound(lambda: next(free), runs=2)
    assert bound.fits(10**9)  # nothing is known yet
    bound.note_run(50)  # 2 bytes for each
    assert bound.fits(int(1000 * SHARE_OF_MEMORY / 2 / 2))
    assert not bound.fits(1 + int(1000 * SHARE_OF_MEMORY / 2 / 2))
    bound.note_run(60)  # 5 for each
    assert not bound.fits(1 + int(1000 * SHARE_OF_MEMORY / 5 / 2))
