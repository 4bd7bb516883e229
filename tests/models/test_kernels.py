"""The native kernels compute the network's statistics, and accept whatever they are given.

The reference is the network's own code, which other tests hold to sums written out: in double precision where single
rounds as much as it likes, in single precision where frequencies are chosen, since times are rounded to it there.
"""

import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch", reason="the reference is the network's own code, of the [train] extra")

import onnxruntime as ort
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nightjar_alerts.models.native import FLAGS, LEVELS, SOURCES
from nightjar_alerts.models.networks.statistics.curve_statistics import N_LAG_STATISTICS
from nightjar_alerts.models.networks.statistics.curve_statistics import count as count_of_curves
from nightjar_alerts.models.networks.statistics.fold_statistics import COUNT as COUNT_OF_FOLDS
from nightjar_alerts.models.networks.statistics.period_statistics import HATS, OCTAVES
from nightjar_alerts.models.networks.statistics.period_statistics import count as count_of_periods
from support.native import BANDS, Curves, alone, drawn, unsound, written_out

CURVES = count_of_curves(BANDS)
PERIODS = slice(CURVES + N_LAG_STATISTICS, CURVES + N_LAG_STATISTICS + count_of_periods(BANDS))
_FIRST = PERIODS.start + len(OCTAVES) - 1 + 3 * len(HATS)
FREQUENCIES = slice(_FIRST, _FIRST + 2)  # of both, the logarithms
FOLDS = slice(-COUNT_OF_FOLDS, None)
FOLDED = slice(-COUNT_OF_FOLDS, 2 - COUNT_OF_FOLDS)  # logarithms of its frequency and of another
SEEDS = st.integers(0, 2**32 - 1)


class Kernel(NamedTuple):
    """A session of the operator alone, and how it searches for periods."""

    session: ort.InferenceSession
    periods: int

    def __call__(self, curves: Curves) -> list[NDArray[Any]]:
        """Return values, and which are known."""
        told: list[NDArray[Any]] = self.session.run(None, curves)
        return told


HIGHEST = "highest level"
LOWER = [level.name for levels in LEVELS.values() for level in levels[1:]]


@pytest.fixture(
    scope="module",
    params=[(HIGHEST, 1), (HIGHEST, 2), *((level, 2) for level in LOWER)],
    ids=lambda param: f"{param[0]}-{'fitted' if param[1] == 2 else 'summed'}",
)
def kernel(request: pytest.FixtureRequest, native_library: Path) -> Kernel:
    """Kernel of the level that this machine uses, and of every lower one, which other machines use."""
    level, periods = request.param
    library = native_library if level == HIGHEST else lower_library(native_library, level)
    return Kernel(alone(library, periods=periods), periods)


def lower_library(highest: Path, name: str) -> Path:
    """Return the library of a level below the one that this machine uses."""
    levels = LEVELS.get(platform.machine(), ())
    names = [level.name for level in levels]
    used = next(index for index, level in enumerate(levels) if highest.name.startswith(f"{level.name}-"))
    if name not in names[used + 1 :]:
        pytest.skip(f"this machine does not use {name}, or uses nothing higher")
    return highest.with_name(highest.name.replace(names[used], name))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_statistics_are_those_of_the_network(kernel: Kernel, seed: int) -> None:
    curves = drawn(seed)
    value_BK, mask_BK = kernel(curves)
    single_BK, expected_BK = written_out(curves, torch.float32, kernel.periods)
    double_BK, _ = written_out(curves, torch.float64, kernel.periods)
    np.testing.assert_array_equal(mask_BK, expected_BK)
    rest = np.ones(value_BK.shape[1], dtype=bool)
    rest[PERIODS] = rest[FOLDS] = False
    allowed_BK = 1e-4 * np.maximum(1, np.abs(double_BK)) + 2 * np.abs(single_BK - double_BK)
    off_BK = (np.abs(value_BK - double_BK) > allowed_BK) & rest
    assert not off_BK.any(), (np.argwhere(off_BK), value_BK[off_BK], double_BK[off_BK])
    for row in range(len(value_BK)):
        _same_period(value_BK[row], single_BK[row])


def _same_period(value_K: NDArray[Any], expected_K: NDArray[Any]) -> None:
    """Require the same power by octave and, where the same frequencies are chosen, the same of all that is told."""
    octaves = slice(PERIODS.start, PERIODS.start + len(OCTAVES) - 1)
    np.testing.assert_allclose(value_K[octaves], expected_K[octaves], atol=3e-3, rtol=3e-3)
    if np.allclose(value_K[FREQUENCIES], expected_K[FREQUENCIES], atol=1e-5):
        np.testing.assert_allclose(value_K[PERIODS], expected_K[PERIODS], atol=0.05, rtol=0.05)
    if np.allclose(value_K[FOLDED], expected_K[FOLDED], atol=1e-5):
        np.testing.assert_allclose(value_K[FOLDS], expected_K[FOLDS], atol=0.05, rtol=0.05)


@pytest.mark.slow
def test_frequencies_are_those_of_the_network(kernel: Kernel) -> None:
    """Few points fit many frequencies equally well, and rounding chooses among them."""
    same, same_folded = list[bool](), list[bool]()
    for seed in range(200):
        curves = drawn(seed)
        enough = np.ptp(np.where(curves["mask"], curves["time"], 0), axis=1) > 30
        enough &= curves["mask"].sum(1) >= 30
        found, (expected, _) = kernel(curves)[0], written_out(curves, torch.float32, kernel.periods)
        same += np.isclose(found[:, FREQUENCIES], expected[:, FREQUENCIES], atol=1e-5)[enough, 0].tolist()
        same_folded += np.isclose(found[:, FOLDED], expected[:, FOLDED], atol=1e-5)[enough, 0].tolist()
    assert len(same) > 50
    assert np.mean(same) >= 0.99
    assert np.mean(same_folded) >= 0.97


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_nothing_that_is_sent_is_too_odd(kernel: Kernel, seed: int) -> None:
    value_BK, mask_BK = kernel(unsound(seed))
    assert value_BK.shape == mask_BK.shape
    assert (value_BK[~mask_BK] == 0).all()


def test_a_light_curve_is_told_alike_alone_and_among_others(kernel: Kernel) -> None:
    curves = drawn(7)
    together = kernel(curves)
    for row in range(len(curves["redshift"])):
        some = curves["mask"][row] if curves["mask"][row].any() else slice(1)
        one = {name: value[row : row + 1] for name, value in curves.items()}
        one = {name: value[:, some] if value.ndim == 2 else value for name, value in one.items()}
        for whole, single in zip(together, kernel(one), strict=True):
            np.testing.assert_array_equal(whole[row], single[0])


def test_three_thousand_points_are_no_trouble(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    shape = (2, 3000)
    curves = drawn(0) | {
        "flux": rng.normal(100, 30, shape).astype(np.float32),
        "flux_err": np.ones(shape, dtype=np.float32),
        "time": rng.uniform(0, 4000, shape).astype(np.float32),
        "band": rng.integers(0, BANDS, shape),
        "mask": np.ones(shape, dtype=bool),
        "redshift": np.zeros(2, dtype=np.float32),
    }
    value_BK, mask_BK = kernel(curves)
    _, expected_BK = written_out(curves, torch.float32, kernel.periods)
    np.testing.assert_array_equal(mask_BK, expected_BK)
    assert np.isfinite(value_BK).all()


def test_threads_do_not_disturb_each_other(kernel: Kernel) -> None:
    asked = [drawn(seed) for seed in range(24)]
    expected = [kernel(curves) for curves in asked]
    found: list[list[NDArray[Any]]] = [[] for _ in range(4)]

    def ask(place: int) -> None:
        for curves in asked:
            found[place] += kernel(curves)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for told in found:
        for one, other in zip(told, [part for parts in expected for part in parts], strict=True):
            np.testing.assert_array_equal(one, other)


def _misshapen() -> Iterator[tuple[str, Curves]]:
    curves = drawn(3)
    for name, value in curves.items():
        yield f"more rows of {name}", curves | {name: np.concatenate([value, value])}
        yield f"{name} without rows", curves | {name: value[:0]}
        if value.ndim == 2:
            yield f"{name} without a length", curves | {name: value[:, 0]}
            yield f"{name} too short", curves | {name: value[:, :-1]}
    yield "no points", {name: value[:, :0] if value.ndim == 2 else value for name, value in curves.items()}


@pytest.mark.parametrize(("what", "curves"), [*_misshapen()])
def test_inputs_that_do_not_fit_together_are_refused(kernel: Kernel, what: str, curves: Curves) -> None:
    with pytest.raises(Exception, match="Statistics"):  # onnxruntime raises a family of its own that share no base
        kernel(curves)
    kernel(drawn(3))


def test_no_light_curves_have_no_statistics(kernel: Kernel) -> None:
    value_BK, mask_BK = kernel({name: value[:0] for name, value in drawn(3).items()})
    assert value_BK.shape == mask_BK.shape
    assert len(value_BK) == 0


@pytest.mark.parametrize("attributes", [{"bands": 0}, {"bands": 33}, {"periods": 3}, {"periods": -1}])
def test_no_kernel_was_written_for_that(native_library: Path, attributes: dict[str, int]) -> None:
    with pytest.raises(Exception, match="unsupported attributes"):
        alone(native_library, **attributes)


SANITIZED: Final = (
    *(flag for flag in FLAGS if "visibility" not in flag and "_LIBCPP" not in flag),
    *("-march=native", "-shared", "-O1", "-g", "-fno-sanitize-recover=all", "-fsanitize=address,undefined"),
)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ and its sanitizers")
def test_kernels_with_sanitizers_report_no_error(tmp_path: Path) -> None:
    runtimes = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    if not all(runtimes):
        pytest.skip("the compiler has no sanitizers")
    library = tmp_path / "sanitized.so"
    subprocess.run(["g++", *SANITIZED, "-o", str(library), str(SOURCES / "library.cc")], check=True)
    environment = {"LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": "tests:."}
    done = subprocess.run(
        [sys.executable, "-m", "support.native", str(library)],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _runtime(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    return path if Path(path).is_absolute() else ""
