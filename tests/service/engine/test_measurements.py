"""Measurements are found again under the circumstances that they were made in, and under no others."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nightjar_alerts.service.engine.machine import (
    Circumstances,
    CoreLayout,
    Measured,
    Measurements,
    processor,
    usable_cores,
    usual_folder,
)
from nightjar_alerts.service.engine.policy import RunSample

CIRCUMSTANCES = Circumstances(processor="x", cores=2, provider="cpu", bundle="0" * 64, wish=CoreLayout())
MEASURED = Measured(runs=((1, 4, 4, 1e-3), (8, 64, 500, 2.5e-2)), max_tokens=512, layout=(2, 1, 4), tuned=True)


def test_kept_measurements_are_recalled(tmp_path: Path) -> None:
    Measurements(tmp_path / "new", CIRCUMSTANCES).keep(MEASURED)
    found = Measurements(tmp_path / "new", CIRCUMSTANCES).recall()
    assert found == MEASURED
    assert found.samples == [RunSample(1, 4, 4, 1e-3), RunSample(8, 64, 500, 2.5e-2)]
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "change",
    [
        {"processor": "y"},
        {"cores": 3},
        {"provider": "cuda"},
        {"bundle": "1" * 64},
        {"onnxruntime": "0"},
        {"wish": CoreLayout(threads=2)},
        {"format": 0},
    ],
)
def test_other_circumstances_recall_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    Measurements(tmp_path, CIRCUMSTANCES).keep(MEASURED)
    assert Measurements(tmp_path, CIRCUMSTANCES.model_copy(update=change)).recall() is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(b"0.001", b"-0.001"),
        lambda text: text.replace(b"0.001", b"NaN"),
        lambda text: text.replace(b'"max_tokens"', b'"max_token"'),
        lambda text: b"\xff" + text,
    ],
)
def test_a_damaged_file_is_told_and_passed_over(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    store = Measurements(tmp_path, CIRCUMSTANCES)
    store.keep(MEASURED)
    [path] = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with capture_logs() as logs:
        assert store.recall() is None
    assert [entry["log_level"] for entry in logs] == ["warning"]
    store.keep(MEASURED)
    assert store.recall() == MEASURED


def test_a_file_with_another_ones_name_is_passed_over(tmp_path: Path) -> None:
    store, other = Measurements(tmp_path, CIRCUMSTANCES), CIRCUMSTANCES.model_copy(update={"cores": 9})
    store.keep(MEASURED)
    [path] = tmp_path.iterdir()
    Measurements(tmp_path, other).keep(MEASURED)
    [stranger] = set(tmp_path.iterdir()) - {path}
    stranger.replace(path)
    assert store.recall() is None


def test_a_folder_that_cannot_be_written_costs_a_line_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Measurements(tmp_path / "file" / "folder", CIRCUMSTANCES)
    with capture_logs() as logs:
        store.keep(MEASURED)
    assert [entry["log_level"] for entry in logs] == ["info"]
    with capture_logs():
        assert store.recall() is None


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Measurements(tmp_path, CIRCUMSTANCES)
    store.keep(MEASURED)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with capture_logs() as logs:
        store.keep(MEASURED.model_copy(update={"max_tokens": 9}))
    assert len(logs) == 1
    assert store.recall() == MEASURED
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_folder_nothing_is_remembered() -> None:
    store = Measurements(None, CIRCUMSTANCES)
    store.keep(MEASURED)
    assert store.recall() is None


def test_the_usual_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert usual_folder() == tmp_path / "cache" / "nightjar"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/not/valid")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert usual_folder() == tmp_path / ".cache" / "nightjar"


@pytest.mark.parametrize(
    ("limit", "most"),
    [("max 100000\n", 10**6), ("100000 100000\n", 1), ("150000 100000", 1), ("50000 100000", 1), ("nonsense", 10**6)],
)
def test_a_container_may_have_fewer_cores_than_its_host(tmp_path: Path, limit: str, most: int) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path) == min(usable_cores(tmp_path / "none"), most) >= 1


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    assert processor()
    assert processor(tmp_path)  # its architecture, where nothing tells more
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast 9\n\nprocessor\t: 1\nmodel name\t: Fast 9\n")
    assert processor(tmp_path) == "Fast 9"
    device = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "information").write_text("Model: \t\t NVIDIA H100\nIRQ:   \t\t 1\n")
    assert processor(tmp_path) == "Fast 9, NVIDIA H100"
