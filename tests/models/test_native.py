"""The library of native kernels that a machine uses, and the scores of the bundled models with it."""

import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models import native
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, load_bundle
from nightjar_alerts.models.native import LEVELS, NativeError, build, find, select_library
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.routing import SURVEY_BUNDLES

X86 = LEVELS["x86_64"]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Folder with a (false) library for each level of x86-64."""
    folder = tmp_path / "built"
    folder.mkdir()
    for level in X86:
        (folder / native._name(level)).touch()
    return folder


def processor(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(native, "_features", lambda: frozenset(features))


@pytest.mark.parametrize("level", X86, ids=lambda level: level.name)
def test_find_on_a_processor_returns_its_highest_level(
    level: native.CpuLevel, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, *level.features, "some_newer_feature")
    assert find(built).name.startswith(f"{level.name}-")


def test_find_on_a_processor_without_any_level_raises(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, "sse4_1")
    with pytest.raises(NativeError, match="no native kernels for this machine"):
        find(built)


def test_find_on_another_architecture_raises(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(NativeError, match="riscv64"):
        find(built)


def test_find_after_a_change_of_the_sources_raises(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, *X86[0].features)
    changed = tmp_path / "kernels"
    shutil.copytree(native.SOURCES, changed)
    (changed / "points.h").write_text((changed / "points.h").read_text() + "// changed\n")
    monkeypatch.setattr(native, "SOURCES", changed)
    with pytest.raises(NativeError, match="built from other sources"):
        find(built)


def test_features_of_this_machine_contain_its_level(native_library: Path) -> None:
    (level,) = [level for level in LEVELS[platform.machine()] if native_library.name.startswith(f"{level.name}-")]
    assert level.features <= native._features()


def test_select_library_follows_the_setting(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, *X86[0].features)
    monkeypatch.setattr(native, "BUILT", built)
    assert select_library("off") is None
    assert select_library("auto") == select_library("on") == find(built)
    assert select_library("auto", "cuda") is None
    with pytest.raises(NativeError, match="run on the CPU"):
        select_library("on", "cuda")
    monkeypatch.setattr(native, "BUILT", tmp_path / "nothing")
    assert select_library("auto") is None
    with pytest.raises(NativeError, match="no native kernels"):
        select_library("on")


def test_build_with_a_compiler_error_raises_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    broken = tmp_path / "kernels"
    broken.mkdir()
    (broken / "library.cc").write_text("this is not C++\n")
    monkeypatch.setattr(native, "SOURCES", broken)
    with pytest.raises(NativeError, match="failed"):
        build(tmp_path / "built", "x86_64")
    assert list((tmp_path / "built").iterdir()) == []


def test_build_without_the_compiler_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    with pytest.raises(NativeError, match="pip install ziglang"):
        build(tmp_path, "x86_64")


def test_build_for_an_unknown_architecture_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match="x86_64, aarch64"):
        build(tmp_path, "vax")


@pytest.mark.parametrize("bundle", [DEFAULT_BUNDLE, SURVEY_BUNDLES["ztf"]], ids=["elasticc", "ztf"])
def test_scores_of_golden_inputs_with_kernels_differ_by_less_than_1e5(bundle: Path, native_library: Path) -> None:
    held = load_bundle(bundle)
    with np.load(bundle / "golden.npz") as golden:
        inputs = {name.removeprefix("in/"): golden[name] for name in golden.files if name.startswith("in/")}
    standard, kernels = open_session(held.model), open_session(held.model, kernels=native_library)
    expected = run(standard, inputs)["probabilities"]
    np.testing.assert_allclose(run(kernels, inputs)["probabilities"], expected, rtol=0, atol=1e-5)
