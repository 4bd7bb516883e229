"""The library of kernels is found only where it was built from these sources, for this machine, by whom one trusts."""

import os
import shutil
from pathlib import Path

import pytest

from nightjar_alerts.models import native
from nightjar_alerts.models.native import NativeError, build, chosen, compiler, find, key


@pytest.fixture
def built(native_library: Path, tmp_path: Path) -> Path:
    """Folder with a copy of the library, to be tampered with."""
    folder = tmp_path / "built"
    folder.mkdir(mode=0o755)
    for path in (native_library, native_library.with_suffix(".json")):
        shutil.copy(path, folder)
        (folder / path.name).chmod(0o644)
    return folder


def test_a_library_is_found_by_its_sources_and_processor(built: Path) -> None:
    assert find(built).name == f"{key()}.so"


def test_another_source_is_another_library(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "kernels"
    shutil.copytree(native.SOURCES, changed)
    (changed / "points.h").write_text((changed / "points.h").read_text() + "// changed\n")
    monkeypatch.setattr(native, "SOURCES", changed)
    with pytest.raises(NativeError, match="built from other sources or for another processor"):
        find(built)


def test_another_processor_needs_another_library(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_processor", lambda: ["elsewhere"])
    with pytest.raises(NativeError, match="another processor"):
        find(built)


def test_an_altered_library_is_refused(built: Path) -> None:
    path = find(built)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(NativeError, match="not what the compiler wrote"):
        find(built)


def test_a_note_that_says_nothing_is_refused(built: Path) -> None:
    find(built).with_suffix(".json").write_text("[]")
    with pytest.raises(NativeError, match="does not say what was built"):
        find(built)


@pytest.mark.parametrize("name", ["", f"{key()}.so", f"{key()}.json"])
def test_a_library_that_others_may_write_is_refused(built: Path, name: str) -> None:
    (built / name).chmod(0o777)
    with pytest.raises(NativeError, match="may be written by others"):
        find(built)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_another_user_is_refused(built: Path) -> None:
    os.chown(find(built), 4321, 4321)
    with pytest.raises(NativeError, match="another user"):
        find(built)


def test_kernels_are_off_on_or_where_there_are_any(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BUILT", built)
    assert chosen("off") is None
    assert chosen("auto") == chosen("on") == built / f"{key()}.so"
    assert chosen("auto", "cuda") is None
    with pytest.raises(NativeError, match="run on the CPU"):
        chosen("on", "cuda")
    monkeypatch.setattr(native, "BUILT", tmp_path / "nothing")
    assert chosen("auto") is None
    with pytest.raises(NativeError, match="no kernels are built"):
        chosen("on")


def test_a_compiler_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NativeError, match=r"false .* failed"):
        build(tmp_path / "built")
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    with pytest.raises(NativeError, match="does not start"):
        build(tmp_path / "built")
    assert not list((tmp_path / "built").iterdir())


def test_without_a_compiler_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    with pytest.raises(NativeError, match=r"nightjar-alerts\[native\]"):
        compiler()
