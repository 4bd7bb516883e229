"""Command line, with real services and bundles."""

import io
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from nightjar_alerts.service.__main__ import main
from nightjar_alerts.service.settings import settings_table
from support import alerts
from support.interrupts import interrupted_import

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create two packets, a corrupt one, an archive with a third, and a file that is not a packet."""
    ztf = alerts.container("ztf/4.02", [alerts.ztf_alert()])
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "lsst.avro").write_bytes(alerts.confluent(1000, alerts.lsst_alert()))
    (tmp_path / "ztf.avro").write_bytes(ztf)
    (tmp_path / "broken.avro").write_bytes(ztf[:100])
    (tmp_path / "notes.txt").write_text("not a packet")
    with tarfile.open(tmp_path / "night.tar.gz", "w:gz") as archive:
        for name in ("a.avro", "b.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(ztf)
            archive.addfile(member, io.BytesIO(ztf))
    return tmp_path


def run(*arguments: str) -> int:
    """Return the exit status of a command."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_dead_letters_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dead-letters", f"file:{tmp_path}") == 0
    assert capsys.readouterr().out == f"no dead letters in file:{tmp_path}\n"
    assert run("dead-letters", "letters") == 1
    assert "nightjar: letters: an address begins with kafka://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demo", "{folder}/nowhere"], "does not exist"),
        (["check", "{folder}"], "no readable manifest"),
    ],
)
def test_cli_error_is_a_message(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    (folder / "deep" / "empty").mkdir()
    (folder / "bad.tar.gz").write_bytes(b"\x1f\x8b nonsense")
    assert run(*(argument.format(folder=folder) for argument in arguments)) == 1
    error = capsys.readouterr().err
    assert error.startswith("nightjar: ")
    assert sentence in error


@pytest.mark.parametrize(("module", "extra"), [("service", "cpu"), ("training", "train")])
def test_command_without_onnxruntime_names_the_extra(module: str, extra: str) -> None:
    program = (
        "import runpy, sys; sys.modules['onnxruntime'] = None;"
        f"runpy.run_module('nightjar_alerts.{module}', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "onnxruntime" in ended.stderr
    assert f"pip install '.[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_cli_interrupt_exits_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nightjar_alerts.service.__main__.check_bundle", interrupted)
    assert run("check") == 130


def test_cli_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("nightjar ")


def test_cli_help_describes_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "Verify a bundle without serving it" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["serve", "--prot", "1"]])
def test_cli_invalid_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PORT", "x", "NIGHTJAR_PORT: Input should be a valid integer"),
        ("API_KEYS", "secret", "NIGHTJAR_API_KEYS: not JSON"),
        ("API_KEYS", '["secret"]', "NIGHTJAR_API_KEYS: 0: "),
        ("KEY_LIMITS", '{"*": {"curves": 1}}', "NIGHTJAR_KEY_LIMITS: *.curves: Extra inputs are not permitted"),
        ("ADMIN_HOST", "0.0.0.0", "an admin API on an address other than loopback requires admin_keys"),
    ],
)
def test_cli_invalid_setting_is_a_message(
    name: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTJAR_ADMIN_PORT", "0")
    monkeypatch.setenv(f"NIGHTJAR_{name}", value)
    assert run("serve") == 2
    assert capsys.readouterr().err.startswith(f"nightjar: {sentence}")


def test_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("settings") == 0
    assert capsys.readouterr().out == settings_table()


def test_check(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", str(tiny_bundle)) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny 0.0.1")
    assert len(out.splitlines()) == 6 + 9
    assert "native kernels: Routing" in out or "native kernels: none" in out  # where the library is not built
    altered = shutil.copytree(tiny_bundle, tmp_path / "altered")
    with (altered / "model.onnx").open("ab") as model:
        model.write(b"\0")
    assert run("check", str(altered)) == 1
    assert "sha256" in capsys.readouterr().err


def test_demo(
    tiny_bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTJAR_BUNDLE", str(tiny_bundle))
    monkeypatch.setattr("nightjar_alerts.service.__main__.SAMPLES", folder / "deep")
    assert run("demo", str(folder / "night.tar.gz")) == 0
    out = capfd.readouterr().out
    assert "service ready" in out
    assert "3 light curves: 3 classified" in out
    assert out.endswith("service stopped\n")


def test_cli_demo_without_a_model_shows_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTJAR_BUNDLE", str(tmp_path))
    assert run("demo") == 1
    error = capsys.readouterr().err
    assert "before it was ready" in error
    assert "no readable manifest" in error


def test_serve_on_a_taken_port_ends_before_a_model_is_loaded_and_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "nightjar_alerts.service", "serve", "--host", "127.0.0.1", "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    lines = (ended.stdout + ended.stderr).splitlines()
    assert len(lines) == 1
    assert f"port {port} is taken by another process: set NIGHTJAR_PORT (--port) to a free one" in lines[0]


def test_serve_interrupted_during_its_imports_exits_without_a_traceback() -> None:
    start = "from nightjar_alerts.cli import main; main(['serve'])"
    assert interrupted_import("nightjar_alerts.service.grpc", start) == (130, "nightjar: interrupted\n")
