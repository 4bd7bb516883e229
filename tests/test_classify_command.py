"""``nightjar classify``: files of every kind, in process and by a service, to a table, files and pictures."""

import csv
import gzip
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nightjar_alerts.classify_command import main
from nightjar_alerts.client_settings import ClientSettings
from nightjar_alerts.core.failures import ErrorKind, ModelFailedError
from nightjar_alerts.core.result import Status
from nightjar_alerts.inputs import Input, UnreadFile
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.outputs import COLUMNS
from nightjar_alerts.report import RunReport
from nightjar_alerts.results import Result
from nightjar_alerts.service import SAMPLES
from nightjar_alerts.tables import TableOptions
from support import alerts
from support.curves import NO_TABLES, csv_text, supernovae
from support.edge import HOST, Live, Network, live, loader
from support.interrupts import interrupted_import
from support.results import MODEL, classified

CSV_OPTIONS = ("--flux-kind", "difference")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of every kind of file: packets, an archive, JSON, a table, damaged ones, and one of another kind."""
    ztf = alerts.container("ztf/4.02", [alerts.ztf_alert()])
    home = tmp_path / "night"
    (home / "deep").mkdir(parents=True)
    (home / "deep" / "lsst.avro").write_bytes(alerts.confluent(1000, alerts.lsst_alert()))
    (home / "ztf.avro").write_bytes(ztf)
    (home / "broken.avro").write_bytes(ztf[:100])
    (home / "bad.tar.gz").write_bytes(b"\x1f\x8b nonsense")
    (home / "notes.md").write_text("nothing to classify")
    one, *several = supernovae(3)
    (home / "one.json").write_text(json.dumps(one))
    (home / "several.json").write_text(json.dumps({"light_curves": several}))
    (home / "table.csv").write_text(csv_text(supernovae(2, seed=7)))
    with tarfile.open(home / "night.tar.gz", "w:gz") as archive:
        for name in ("a.avro", "b.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(ztf)
            archive.addfile(member, io.BytesIO(ztf))
    return home


def run(*arguments: object) -> int:
    """Exit status of the command."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def url(edge: Live) -> str:
    return f"http://{HOST}:{edge.port}"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_classify_folder_prints_a_line_per_light_curve_and_what_was_skipped(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--url", url, *CSV_OPTIONS) == 3
    printed = capsys.readouterr()
    heading, *lines = printed.out.splitlines()
    assert heading.split()[:3] == ["object", "class", "prob."]
    closing = next(index for index, line in enumerate(lines) if "light curves: " in line)
    assert closing == 10
    assert lines[closing].startswith("10 light curves: 9 classified, 1 rejected (")
    assert any(line.startswith("broken.avro") and "rejected: " in line for line in lines[:closing])
    for name in ("SN0000", "SN0001", "SN0002", "ZTF24abcdefg"):
        assert any(line.startswith(name) for line in lines[:closing])
    assert lines[closing + 1].startswith("not read: bad.tar.gz: ")
    assert lines[closing + 2] == "no light curves in 1 other file: notes.md"
    assert "table.csv: " in printed.err
    assert "the time is column" in printed.err
    assert "table.csv" not in printed.out


def test_classify_joins_metadata_and_takes_filters_of_other_instruments(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = supernovae(3)
    for curve in curves:
        curve["band"] = ["F606W", *["F814W"] * (len(curve["mjd"]) - 1)]
    (tmp_path / "hst.csv").write_text(csv_text(curves))
    (tmp_path / "redshifts.csv").write_text("SNID,redshift\nSN0000,0.1\nSN0001,0.2\n")
    options = ("--filters", "F606W=590/230", "--filters", "F814W=810", "--object-metadata", tmp_path / "redshifts.csv")
    assert run(tmp_path / "hst.csv", "--url", url, "-o", tmp_path / "out.jsonl", *options, *CSV_OPTIONS) == 0
    printed = capsys.readouterr()
    assert "objects without a row of metadata: 1 of 3 (SN0002)" in printed.err
    documents = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for curve, document in zip(curves, documents, strict=True):
        used = {name: count for name, count in document["points_per_band"].items() if count}
        assert used == {"r": 1} | ({"i": min(len(curve["mjd"]) - 1, 65)} if len(curve["mjd"]) > 1 else {})
    assert run(tmp_path / "hst.csv", "--object-metadata", tmp_path / "hst.csv") == 2
    assert "no column has metadata" in capsys.readouterr().err


def test_classify_in_process_gives_the_classes_of_the_service(default_edge: Live, tmp_path: Path) -> None:
    packets = sorted(SAMPLES.glob("*.avro"))[:3]
    assert run(*packets, "--url", default_edge.url, "-o", tmp_path / "remote.csv") == 0
    assert run(*packets, "-o", tmp_path / "local.csv") == 0
    remote, local = rows_of(tmp_path / "remote.csv"), rows_of(tmp_path / "local.csv")
    for one, other in zip(remote, local, strict=True):
        assert float(one.pop("confidence")) == pytest.approx(float(other.pop("confidence")), abs=2e-5)
        assert one == other
        assert one["status"] == "classified"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".vot"])
def test_classify_output_has_the_columns_in_every_format(url: str, folder: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"out{suffix}"
    assert run(folder, "--url", url, "-o", output, "--probabilities", "--quiet", *CSV_OPTIONS) == 3
    read: list[dict[str, Any]]
    if suffix == ".csv":
        read = list(rows_of(output))
    elif suffix == ".jsonl":
        read = [json.loads(line) for line in output.read_text().splitlines()]
        assert all({"object_id", "status", "model"} <= set(each) for each in read)
    elif suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason=NO_TABLES)
        read = parquet.read_table(output).to_pylist()
    else:
        table = pytest.importorskip("astropy.table", reason=NO_TABLES)
        read = [dict(zip(row.colnames, row.values(), strict=True)) for row in table.Table.read(output)]
    assert len(read) == 10
    if suffix != ".jsonl":
        assert list(read[0])[: len(COLUMNS)] == list(COLUMNS)
        assert {"Ia", "II"} <= set(read[0])
    statuses = [each["status"] for each in read]
    assert statuses.count("classified") == 9
    rejected = read[statuses.index("rejected")]
    assert rejected["reason"]
    assert not list(tmp_path.glob("*.partial"))


def test_classify_existing_output_is_kept_unless_told_otherwise(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.csv"
    output.write_text("precious")
    packet = folder / "ztf.avro"
    assert run(packet, "--url", url, "-o", output) == 2
    assert "--overwrite replaces it" in capsys.readouterr().err
    assert output.read_text() == "precious"
    assert run(packet, "--url", url, "-o", output, "--resume") == 2
    assert "there is no out.csv.run that says how it was made" in capsys.readouterr().err
    assert output.read_text() == "precious"
    assert run(packet, "--url", url, "-o", output, "--overwrite") == 0
    assert len(rows_of(output)) == 1


def test_classify_resume_of_a_complete_output_names_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nightjar_alerts.classifier.Classifier", lambda *_, **__: Interrupting(None))
    (tmp_path / "a.csv").write_text(csv_text(supernovae(3)))
    (tmp_path / "b.csv").write_text(csv_text(supernovae(3)))
    arguments = (tmp_path / "a.csv", "-o", tmp_path / "out.csv", *CSV_OPTIONS)
    assert run(*arguments) == 0
    assert run(*arguments, "--resume") == 0  # scripts repeat the command until it ends
    assert "is complete: there is nothing to resume" in capsys.readouterr().out
    for other in ((tmp_path / "b.csv", *arguments[1:]), (*arguments, "--probabilities")):
        assert run(*other, "--resume") == 2
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert "out.csv is of another run (files was " in first
    assert "--probabilities was False and is now True" in second


def test_classify_resume_of_a_run_that_is_under_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, output = tmp_path / "a.csv", tmp_path / "out.csv"
    table.write_text(csv_text(supernovae(3)))
    statuses: list[int] = []

    class Running(Interrupting):
        def classify_each(self, inputs: Iterable[Input], options: Any) -> Iterator[list[Result]]:
            if not statuses:
                statuses.append(0)
                statuses.extend(run(table, "-o", output, *CSV_OPTIONS, how) for how in ("--resume", "--overwrite"))
            return super().classify_each(inputs, options)

    monkeypatch.setattr("nightjar_alerts.classifier.Classifier", lambda *_, **__: Running(None))
    assert run(table, "-o", output, *CSV_OPTIONS) == 0
    assert statuses == [0, 2, 2]
    assert capsys.readouterr().err.count("is being written by another run") == 2
    assert len(rows_of(output)) == 3


def test_classify_resume_and_overwrite_together_are_refused(tmp_path: Path) -> None:
    assert run(SAMPLES, "-o", tmp_path / "out.csv", "--resume", "--overwrite") == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prior", "lsst"], "no prior 'lsst'"),
        (["--model", "nope"], "--model: no model 'nope'"),
        (["--url", "localhost:8080"], "--url: 'localhost:8080' is not an http or https address"),
        (["--timeout", "5"], "--timeout is given and changes nothing without --url"),
        (["--survey", "ztf"], "--survey is given and changes nothing, because no table is read"),
        (["--format", "xls"], "--format is 'xls'; it must be one of csv"),
        (["--flux-unit", "furlong"], "--flux-unit is 'furlong'"),
    ],
)
def test_classify_wrong_usage_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert run(next(SAMPLES.glob("*.avro")), "-o", tmp_path / "out.csv", *arguments) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_classify_rejected_light_curve_is_named_on_screen_and_in_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = supernovae(2)
    (tmp_path / "two.json").write_text(
        json.dumps([good, {"fluxerr" if k == "flux_err" else k: v for k, v in bad.items()}])
    )
    assert run(tmp_path / "two.json", "-o", tmp_path / "out.csv") == 3
    row = rows_of(tmp_path / "out.csv")[1]
    assert (row["input"], row["pointer"]) == ("two.json[1]", "/fluxerr")
    assert row["detail"] == "unknown field; send flux_err"
    assert run(tmp_path / "two.json") == 3
    assert "rejected: unknown_field: fluxerr: unknown field; send flux_err" in capsys.readouterr().out


def test_classify_empty_file_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.csv").write_text("mjd,flux\n")
    assert run(tmp_path / "empty.csv") == 1
    assert "not read: empty.csv: is empty: it holds no rows" in capsys.readouterr().out


def test_classify_option_without_effect_is_named_as_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(csv_text(supernovae(2)))
    assert run(tmp_path / "a.csv", "--mag-system", "AB", *CSV_OPTIONS) == 1
    assert "not read: a.csv: --mag-system is given and changes nothing" in capsys.readouterr().out


class Interrupting:
    """An engine that is interrupted after so many inputs."""

    def __init__(self, after: int | None) -> None:
        self.after = after
        self.names: list[str] = []

    def classify_each(self, inputs: Iterable[Input], options: Any) -> Iterator[list[Result]]:
        for each in inputs:
            if len(self.names) == self.after:
                raise KeyboardInterrupt
            assert isinstance(each, LightCurve)
            self.names.append(each.object_id)
            yield [Result(classified(object_id=each.object_id), MODEL)]

    def __repr__(self) -> str:
        """Return what a resumed run must have in common with the interrupted one."""
        return "Interrupting()"

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("damage", [b"", b'{"model": {}, "status": "clas', b'{"model": {}, "status": "classified"}\n'])
def test_classify_interrupted_run_is_resumed_without_loss_or_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.setattr("nightjar_alerts.classify_command.CHUNK", 10)
    table, output = tmp_path / "table.csv", tmp_path / "out.csv"
    table.write_text(csv_text(supernovae(45)))
    (tmp_path / "x.tar.gz").write_bytes(b"\x1f\x8b nonsense")
    engines = [Interrupting(25), Interrupting(None)]
    monkeypatch.setattr("nightjar_alerts.classifier.Classifier", lambda *_, **__: engines[0])
    arguments = (tmp_path / "x.tar.gz", table, "-o", output, *CSV_OPTIONS)
    assert run(*arguments) == 130
    assert not output.exists()
    with (tmp_path / "out.csv.partial").open("ab") as partial:
        partial.write(damage)
    monkeypatch.setattr("nightjar_alerts.classifier.Classifier", lambda *_, **__: engines[1])
    assert run(table, "-o", output, "--resume", *CSV_OPTIONS) == 2  # other files
    assert run(*arguments) == 2  # neither resumed nor overwritten
    assert run(*arguments, "--resume") == 3
    expected = [f"SN{number:04d}" for number in range(45)]
    assert [row["object_id"] for row in rows_of(output)] == expected
    assert engines[1].names == expected[20:]
    assert not (tmp_path / "out.csv.partial").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--prior", "lsst-alerts"], "--prior was not given and is now lsst-alerts"),
        (["--survey", "ztf"], "--survey was not given and is now ztf"),
        (["--model", "astro-moe-ztf"], "--model was not given and is now astro-moe-ztf"),
    ],
)
def test_classify_resume_with_other_options_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    monkeypatch.setattr("nightjar_alerts.classify_command.CHUNK", 10)
    monkeypatch.setattr("nightjar_alerts.classifier.Classifier", lambda *_, **__: Interrupting(25))
    table, output = tmp_path / "table.csv", tmp_path / "out.csv"
    table.write_text(csv_text(supernovae(45)))
    assert run(table, "-o", output, *CSV_OPTIONS) == 130
    assert run(table, "-o", output, *CSV_OPTIONS, "--resume", *options) == 2
    assert named in capsys.readouterr().err
    assert not output.exists()


def test_classify_resume_of_an_empty_partial_file_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.classifier.Classifier", lambda *_, **__: Interrupting(None))
    table, output = tmp_path / "table.csv", tmp_path / "out.csv"
    table.write_text(csv_text(supernovae(3)))
    (tmp_path / "out.csv.partial").write_bytes(b'{"run":')  # killed while it wrote the arguments
    assert run(table, "-o", output, *CSV_OPTIONS, "--resume") == 0
    assert len(rows_of(output)) == 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NIGHTJAR_TIMEOUT", "1m", "NIGHTJAR_TIMEOUT: Input should be a valid number"),
        ("NIGHTJAR_TIMEOUT", "0", "NIGHTJAR_TIMEOUT: Input should be greater than 0"),
        ("NIGHTJAR_API_KEY_FILE", "/missing", "NIGHTJAR_API_KEY_FILE: /missing cannot be read: No such file"),
    ],
)
def test_classify_invalid_environment_ends_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    assert run("x.csv") == 2
    assert message in capsys.readouterr().err


def test_classify_file_named_twice_is_classified_once(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packet = tmp_path / "again" / "ztf.avro"
    packet.parent.mkdir()
    packet.write_bytes((folder / "ztf.avro").read_bytes())
    assert run(packet, packet.parent, packet, "--url", url) == 0
    captured = capsys.readouterr()
    assert "named more than once, and classified once: ztf.avro" in captured.err
    assert "1 light curve: 1 classified" in captured.out
    assert "no files" not in captured.out


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX: run on Linux or macOS")
def test_classify_ctrl_c_ends_without_a_traceback_and_keeps_results(tmp_path: Path) -> None:
    (tmp_path / "pipe.csv").write_text(csv_text(supernovae(600)))
    command = [sys.executable, "-m", "nightjar_alerts.service", "classify", "pipe.csv", "-o", "out.csv", *CSV_OPTIONS]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    partial = tmp_path / "out.csv.partial"
    end = time.monotonic() + 120
    while not (partial.exists() and b'{"report"' in partial.read_bytes()) and time.monotonic() < end:
        assert process.poll() is None or (tmp_path / "out.csv").exists()
        if process.poll() is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert b"Traceback" not in error
    if process.returncode:  # unless it was faster than the signal
        assert process.returncode == 130
        assert b"--resume" in error
        assert partial.exists()


def test_classify_plot_writes_a_picture_per_object(url: str, folder: Path, tmp_path: Path) -> None:
    pictures, again = tmp_path / "pictures", tmp_path / "again.json"
    again.write_bytes((folder / "several.json").read_bytes())
    assert run(folder / "several.json", again, "--url", url, "--plot", pictures) == 0
    assert sorted(path.name for path in pictures.iterdir()) == [
        "SN0001.svg", "SN0001_2.svg", "SN0002.svg", "SN0002_2.svg",
    ]  # fmt: skip
    for path in pictures.iterdir():
        assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")


NASTY_IDS = ("星" * 100, "\ud800", "=HYPERLINK(1)", "-rf", "\x1b]0;title\x07\x1b[2J", "a\u202eb", "good", "x" * 300)


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """A file of light curves with names that somebody chose to do harm."""
    curves = [{**curve, "object_id": name} for curve, name in zip(supernovae(8), NASTY_IDS, strict=True)]
    path = tmp_path / "nasty.json"
    path.write_text(json.dumps(curves))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".vot"])
@pytest.mark.parametrize("by_service", [True, False])
def test_classify_with_invalid_names_reads_all_others(
    url: str, nasty: Path, tmp_path: Path, suffix: str, by_service: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--url", url) if by_service else ()
    output = tmp_path / f"out{suffix}"
    assert run(nasty, "-o", output, "--plot", tmp_path / "pictures", *options) == 3
    assert capsys.readouterr().out.startswith("8 light curves: 6 classified, 1 rejected")
    assert output.exists()
    pictures = [path.name for path in (tmp_path / "pictures").iterdir()]
    assert len(pictures) == 8
    assert not [name for name in pictures if name.startswith(("-", "."))]


@pytest.mark.parametrize(
    "change",
    [{"band": ["\ud800"]}, {"survey": "\ud800"}, {"\ud800": 1}, {"metadata": {"\ud800": 1}}, {"flux_unit": "\ud800"}],
)
def test_classify_body_with_half_of_a_pair_is_rejected_alone(url: str, tmp_path: Path, change: dict[str, Any]) -> None:
    bad, good = supernovae(2)
    (tmp_path / "two.json").write_text(json.dumps([bad | change, good]))
    assert run(tmp_path / "two.json", "--url", url, "-o", tmp_path / "out.csv") == 3
    assert [row["status"] for row in rows_of(tmp_path / "out.csv")] == ["rejected", "classified"]


def test_classify_table_with_half_of_a_pair_reads_all_others(url: str, tmp_path: Path) -> None:
    ids = ("a", "\ud800", "b")
    rows = [
        {"name": name, "mjd": 60_000 + day, "filter": "g" if day else "\udfff", "mag": 19.5, "mag_err": 0.1}
        for name in ids
        for day in range(5)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(tmp_path / "t.jsonl", "--url", url, "-o", tmp_path / "out.parquet") == 3
    assert (tmp_path / "out.parquet").exists()


def test_classify_prints_names_without_what_a_terminal_obeys(
    url: str, nasty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "a\x1b[2J.csv"
    table.write_text(csv_text(supernovae(1)).replace("SN0000", "b\x1b[2J"))
    assert run(nasty, table, tmp_path / "a\x1b[2J.csv", "--url", url, *CSV_OPTIONS) == 3
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "\u202e" not in printed.out
    assert "b\\x1b[2J" in printed.out


def test_classify_csv_has_no_formulas_and_json_lines_has_the_names(url: str, nasty: Path, tmp_path: Path) -> None:
    run(nasty, "-o", tmp_path / "out.csv", "--url", url)
    run(nasty, "-o", tmp_path / "out.jsonl", "--url", url)
    names = [row["object_id"] for row in rows_of(tmp_path / "out.csv")]
    assert (names[2], names[3], names[6]) == ("'=HYPERLINK(1)", "'-rf", "good")
    documents = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [document["object_id"] for document in documents] == [NASTY_IDS[0], "\\ud800", *NASTY_IDS[2:7], ""]


def test_classify_picture_that_cannot_be_drawn_is_named_and_the_run_goes_on(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = Result.to_svg

    def fail(result: Result) -> str:
        if result.object_id == "SN0001":
            raise OverflowError("too large")
        return draw(result)

    monkeypatch.setattr(Result, "to_svg", fail)
    assert run(folder / "several.json", "--url", url, "--plot", tmp_path / "pictures") == 0
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["SN0002.svg"]
    assert "no picture of SN0001: OverflowError: too large" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ztf.avro", "one.json", "several.json", "table.csv", "table.csv.gz", "night.tar.gz"])
def test_classify_standard_input_is_recognised_by_its_content(
    url: str, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "table.csv.gz").write_bytes(gzip.compress((folder / "table.csv").read_bytes()))
    with (folder / name).open() as data:
        monkeypatch.setattr(sys, "stdin", data)
        status = run("-", "--url", url, *(CSV_OPTIONS if "table" in name else ()))
    out, error = capsys.readouterr()
    assert status in (0, 3), error
    assert "classified" in out
    assert "rejected" not in out or name == "night.tar.gz"


def test_classify_standard_input_of_a_process_is_read(url: str, folder: Path) -> None:
    command = [sys.executable, "-m", "nightjar_alerts.service", "classify", "-", "--url", url]
    with (folder / "ztf.avro").open("rb") as data:
        done = subprocess.run(command, stdin=data, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "classified" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["nowhere.avro"], 1, "nowhere.avro does not exist"),
        (["{folder}/ztf.avro", "--url", "http://127.0.0.1:9"], 1, "does not answer"),
        (["{folder}/ztf.avro", "--url", "ftp://x"], 2, "not an http"),
        (
            ["{folder}/ztf.avro", "--model", "nothing"],
            2,
            "no model 'nothing': it is neither a folder nor one of astro-moe-elasticc",
        ),
        (["{folder}/ztf.avro", "--prior", "nothing"], 2, "nothing"),
        (["{folder}/ztf.avro", "--prior", '{{"Nova": 1}}'], 2, "no class 'Nova'"),
        (["{folder}/ztf.avro", "--prior", '{{"Ia": }}'], 2, "is not valid JSON"),
        (["{folder}/ztf.avro", "-o", "x.xlsx"], 2, "the name must end in one of .csv"),
        (["{folder}/ztf.avro", "-o", "{folder}/none/x.csv"], 2, "does not exist"),
        (["{folder}/ztf.avro", "--resume"], 2, "need --output"),
        (["{folder}/table.csv", "--columns", "time"], 2, "--columns time: must be NAME=VALUE"),
        (["{folder}/table.csv", "--flux-unit", "Jansky?"], 2, "--flux-unit is"),
        ([], 2, "usage"),
    ],
)
def test_classify_failure_is_a_sentence(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    monkeypatch.setattr("nightjar_alerts.client.FIRST_PAUSE_SECONDS", 0.001)
    assert run(*(argument.format(folder=folder) for argument in arguments)) == status
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_classify_key_that_is_wrong_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(loader(Network()), api_keys=("ab" * 32,)) as guarded:
        assert run(folder / "ztf.avro", "--url", f"http://{HOST}:{guarded.port}", "--api-key", "wrong") == 1
    assert "401 API key required" in capsys.readouterr().err


def test_classify_by_a_model_that_fails_every_run_is_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ModelFailedError(ErrorKind.PROVIDER_LOST)

    monkeypatch.setattr("nightjar_alerts.core.runner.ThreadRunner.start", fail)
    assert run(folder / "one.json") == 1
    assert "nightjar: the execution provider fails every run; restart the process\n" in capsys.readouterr().err


def test_classify_nothing_readable_exits_with_1(url: str, folder: Path) -> None:
    assert run(folder / "bad.tar.gz", "--url", url) == 1
    assert run(folder / "notes.md", "--url", url) == 1


def test_classify_table_that_can_be_read_in_two_ways_names_the_option(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "odd.csv").write_text("a,b,c,d\n1,2,3,4\n2,3,4,5\n")
    assert run(folder / "odd.csv") == 1
    assert "--columns" in capsys.readouterr().out


def test_classify_table_without_filters_lists_the_values_of_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.csv").write_text("mjd,mag,mag_err\n60000.1,18.1,0.1\n60001.1,18.0,0.1\n")
    assert run(tmp_path / "one.csv") == 1
    assert "Use --band VALUE, where VALUE is u, g, r" in capsys.readouterr().out


def test_classify_prints_options_that_a_shell_and_the_command_take(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"SN1,{60000 + n}.5,{('Johnson B', 'SDSS-r')[n % 2]},{18 + n / 10},0.1" for n in range(6)]
    (tmp_path / "one.csv").write_text("\n".join(["name,Obs date (MJD),Filt,mag,mag_err", *rows]))
    assert run(tmp_path / "one.csv", "--url", url) == 0
    noted = capsys.readouterr().err
    hints = [line[line.index("(--") + 1 : -1] for line in noted.splitlines() if "(--" in line]
    assert "--columns 'time=Obs date (MJD)'" in hints
    assert "--filters 'Johnson B=B' --filters SDSS-r=r" in hints
    assert run(tmp_path / "one.csv", "--url", url, *(word for hint in hints for word in shlex.split(hint))) == 0


def test_classify_tables_alike_prints_the_guesses_once(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        (tmp_path / f"object{number}.csv").write_text(csv_text(supernovae(1, seed=number)))
    assert run(tmp_path, "--url", url, *CSV_OPTIONS) == 0
    noted = capsys.readouterr().err.splitlines()
    assert sum("the time is column" in line for line in noted) == 1
    assert noted[-1] == "3 more tables were understood in the same way as one of these"


@pytest.mark.parametrize(
    "options",
    [
        ("--columns", "nothing=a"),
        ("--signed-magnitudes", "perhaps"),
        ("--coverage", "2"),
        ("--minimum", "mjd=a"),
        ("--bad-flags", "flags=1.5"),
    ],
)
def test_classify_wrong_value_of_an_option_is_wrong_usage(folder: Path, options: tuple[str, ...]) -> None:
    assert run(folder / "ztf.avro", *options) == 2


def test_classify_help_describes_every_option_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--flux-kind VALUE difference (from a template image) or total" in shown
    assert "--survey VALUE survey of the photometry" in shown
    for name in TableOptions.option_names():
        assert f"--{name.replace('_', '-')} " in shown


def test_command_interrupted_during_its_imports_exits_without_a_traceback() -> None:
    start = "from nightjar_alerts.cli import main; main(['classify', 'any.csv'])"
    assert interrupted_import("nightjar_alerts.classify_command", start) == (130, "nightjar: interrupted\n")


@pytest.mark.parametrize("option", [("--minimum", "quality=0.9"), ("--bad-flags", "flags=4")])
def test_classify_leaves_out_rows_by_quality_and_flags(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    rows = [f"SN1,{60000 + n},{'gr'[n % 2]},{18 + n / 10},0.1,{n % 3 / 2},{(n % 3 < 2) * 5}" for n in range(9)]
    (tmp_path / "one.csv").write_text("\n".join(["name,mjd,band,mag,mag_err,quality,flags", *rows]))
    assert run(tmp_path / "one.csv", "--url", url, *option) == 0
    assert "points left out: 6" in capsys.readouterr().err


@pytest.mark.parametrize(("unread", "more"), [(9, []), (10, []), (12, ["not read: 2 more"])])
def test_report_lines_list_ten_unread_files(unread: int, more: list[str]) -> None:
    report = RunReport()
    for number in range(unread):
        report.add_unread(UnreadFile(f"{number}.csv", "not a table"))
    assert report.lines()[1:] == [f"not read: {number}.csv: not a table" for number in range(min(unread, 10))] + more


def test_report_restored_from_its_values_is_the_same() -> None:
    counts = Counter[tuple[Status, str]]({("classified", ""): 2, ("rejected", "empty"): 1})
    filters = Counter({"w": 3})
    warnings, shown = {"unit": (2, "another unit?", "SN 1")}, [("a.csv", "not a table")]
    report = RunReport(4, counts, 1, shown, 1, ["notes.txt"], ["empty/"], warnings, filters)
    restored = RunReport()
    restored.update(json.loads(json.dumps(report.to_dict())))
    assert restored == report


def test_classify_warning_names_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["name,mjd,band,mag,mag_err"]
    rows += [f"SN{k},{60000 + 3 * n},{'gr'[n % 2]},{18 + 0.3 * n},0.05" for k in range(10) for n in range(8)]
    rows += [f"Star A,{60000 + 3 * n},{'gr'[n % 2]},{17 + 0.3 * (n % 5)},0.02" for n in range(60)]
    (tmp_path / "two.csv").write_text("\n".join(rows))
    assert run(tmp_path / "two.csv", "--quiet") == 0
    assert "warning: 1 of 11 (Star A): " in capsys.readouterr().out


def test_report_counts_observations_of_filters_without_a_band_across_resumed_runs() -> None:
    result = Result(classified(other_filters={"BP": 2, "RP": 1}), MODEL)
    report, resumed = RunReport(), RunReport()
    report.add_results("a.csv", [result, result])
    resumed.update(json.loads(json.dumps(report.to_dict())))
    resumed.add_results("b.csv", [result])
    assert "observations not used because of their filter: 6 in BP, 3 in RP" in resumed.lines()


def test_classify_reads_address_key_and_timeout_from_the_environment(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {f"NIGHTJAR_{name.upper()}" for name in ClientSettings.model_fields} == {
        "NIGHTJAR_URL", "NIGHTJAR_API_KEY", "NIGHTJAR_TIMEOUT",
    }  # fmt: skip
    (tmp_path / "key").write_text("secret\n")
    monkeypatch.setenv("NIGHTJAR_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NIGHTJAR_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr("nightjar_alerts.client.FIRST_PAUSE_SECONDS", 0.001)
    assert run(folder / "ztf.avro") == 1
    monkeypatch.setenv("NIGHTJAR_URL", url)
    assert run(folder / "ztf.avro") == 0


def test_command_with_the_base_install_classifies_without_web_packages(folder: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('fastapi', 'pydantic_settings', 'httpx', 'uvicorn', 'prometheus_client', 'redis'):\n"
        "    sys.modules[name] = None\n"
        "from nightjar_alerts.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run([*command, "classify", str(folder / "ztf.avro")], capture_output=True, text=True, timeout=120)
    assert (done.returncode, "1 light curve: 1 classified" in done.stdout) == (0, True), done.stderr
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120)
    assert (shown.returncode, "classify FILE..." in shown.stdout) == (0, True), shown.stderr
    served = subprocess.run([*command, "serve"], capture_output=True, text=True, timeout=120)
    assert served.returncode == 1
    assert "pip install '.[cpu]'" in served.stderr


TABLE = "name,mjd,band,mag,err\n" + "".join(f"a,{58_000 + k},{'gr'[k % 2]},{18 + 0.1 * k},0.05\n" for k in range(8))


def test_classify_missing_file_does_not_end_the_run(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.csv").write_text(TABLE)
    assert run(tmp_path / "good.csv", tmp_path / "missing.csv", "--url", url) == 3
    assert "missing.csv: does not exist" in capsys.readouterr().out


def test_classify_output_to_standard_output_is_json_lines(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.csv").write_text(TABLE)
    assert run(tmp_path / "good.csv", "--url", url, "-o", "-", "--quiet") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["object_id"] == "a"


def test_classify_compressed_output_is_written(url: str, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(TABLE)
    assert run(tmp_path / "good.csv", "--url", url, "-o", tmp_path / "out.csv.gz") == 0
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()).decode().splitlines()[1].startswith("a,")


def test_classify_flux_unit_is_read_in_any_case(url: str, tmp_path: Path) -> None:
    text = TABLE.replace("mag,err", "flux,flux_err")
    (tmp_path / "flux.csv").write_text(text)
    assert run(tmp_path / "flux.csv", "--url", url, "--flux-unit", "ujy") == 0
