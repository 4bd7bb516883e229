"""Evaluation on a labelled table: counts, scores, stored results, comparisons, the page and bad input."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts import Classifier
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.tables import TableError
from nightjar_alerts.training import __main__ as command
from nightjar_alerts.training.importers.tables import LabelError
from nightjar_alerts.training.score.labelled import evaluate_table
from nightjar_alerts.training.score.report import Report
from nightjar_alerts.training.score.report_page import page

BUNDLE = str(DEFAULT_BUNDLE)
LABELS = ("SN Ia", "SN II", "AGN", "type of nobody", "")
PER_LABEL = 4


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Light curves that rise and fall, with five labels in turn, one of them empty, one of no class."""
    path, rng = tmp_path_factory.mktemp("labelled") / "mine.csv", np.random.default_rng(0)
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["object_id", "mjd", "band", "flux_njy", "flux_err_njy", "type"])
        for number in range(PER_LABEL * len(LABELS)):
            time = np.sort(rng.uniform(0, 80, 12 + number))
            flux = 30_000 * np.exp(-(((time - 30) / 20) ** 2)) + rng.normal(0, 300, len(time))
            for one, value in zip(time, flux, strict=True):
                band = "gr"[int(one * 10) % 2]
                rows.writerow([f"<b>{number}", 60_000 + one, band, value, 300, LABELS[number % len(LABELS)]])
    return path


@pytest.fixture(scope="module")
def report(table: Path) -> Report:
    return evaluate_table([BUNDLE, "romae-elasticc"], table)


def test_evaluate_counts_every_object(report: Report) -> None:
    values = report.values
    first = next(iter(values["models"].values()))
    assert (values["table"]["objects"], values["table"]["left_out"]) == (16, {"without a label": PER_LABEL})
    assert "the label is column 'type' (--label type)" in values["table"]["guesses"]
    assert first["labels_without_a_class"] == {"type of nobody": PER_LABEL}
    assert first["objects"] == 12 == first["scores"]["classified"] + sum(first["not_classified"].values())
    assert sum(group["objects"] for group in first["detections"]) == first["scores"]["classified"]
    assert sum(group["objects"] for group in first["brightness"]) == first["scores"]["classified"]


def test_evaluate_gives_the_scores_of_the_results(table: Path, report: Report) -> None:
    with Classifier(BUNDLE) as classifier:
        named = [result.class_name for result in classifier.classify(table)]
    wanted = [{"SN Ia": "Ia", "SN II": "II"}.get(LABELS[row % 5], LABELS[row % 5]) for row in range(len(named))]
    right = [one == other for one, other in zip(named, wanted, strict=True) if other in ("Ia", "II", "AGN")]
    assert next(iter(report.values["models"].values()))["scores"]["accuracy"] == pytest.approx(np.mean(right))


def test_evaluate_of_stored_results_equals_that_of_the_bundle(table: Path, report: Report, tmp_path: Path) -> None:
    with Classifier(BUNDLE) as classifier:
        classifier.classify(table).write(tmp_path / "stored.jsonl")
    labels = tmp_path / "labels.csv"
    labels.write_text("object_id,type\n" + "".join(f"<b>{row},{LABELS[row % 5]}\n" for row in range(20)))
    stored = next(iter(evaluate_table([str(tmp_path / "stored.jsonl")], labels).values["models"].values()))
    first = next(iter(report.values["models"].values()))
    assert stored["confusion"] == first["confusion"]
    assert stored["scores"]["log_loss"] == pytest.approx(first["scores"]["log_loss"], abs=1e-5)
    assert stored["detections"] == []


def test_evaluate_of_a_model_with_itself_has_no_difference(table: Path) -> None:
    (difference,) = evaluate_table([BUNDLE, BUNDLE], table).values["differences"].values()
    assert difference["log_loss"] == {"difference": 0.0, "low": 0.0, "high": 0.0}


def test_page_has_every_model_and_escapes_names(report: Report) -> None:
    html = page(report)
    assert all(f"<h2>{name}</h2>" in html for name in report.values["models"])
    assert "&lt;b&gt;" in html
    assert "<b>1" not in html


def test_command_writes_json_and_page(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(
        ["evaluate", BUNDLE, str(table), "--classes", "type of nobody=TDE", "--report", str(tmp_path / "e.json")]
    )
    printed, written = json.loads(capsys.readouterr().out), json.loads((tmp_path / "e.json").read_text())
    (name,) = printed["models"]
    assert written["models"][name]["objects"] == 16
    assert (tmp_path / "e.html").is_file()


def test_command_names_what_is_not_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "labels.csv").write_text("object_id,type\na,Ia\nb,Nova\nc,Ia\n")
    sure = {"status": "classified", "object_id": "a", "probabilities": {"Ia": 1.0}}
    (tmp_path / "r.jsonl").write_text(json.dumps(sure))
    command.main(
        ["evaluate", str(tmp_path / "r.jsonl"), str(tmp_path / "labels.csv"), "--report", str(tmp_path / "e.json")]
    )
    printed = capsys.readouterr().err
    assert "not scored: labels without a class: Nova (1)" in printed
    assert "not scored: not classified: no stored result (1)" in printed


def test_command_takes_the_options_of_tables(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(table.read_text().replace("flux_njy,flux_err_njy", "a,b").replace(",g,", ",one,"))
    columns = ("--columns", "flux=a", "--columns", "flux_err=b", "--flux-unit", "nJy", "--filters", "one=g")
    scores = []
    for path, options in ((table, ()), (renamed, columns)):
        command.main(
            ["evaluate", BUNDLE, str(path), "--flux-kind", "difference", *options, "--report", str(tmp_path / "e.json")]
        )
        scores.append(json.loads(capsys.readouterr().out)["models"])
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "band"], "no label is a class of"),
        (["--label", "object_id"], r"'object_id' names the objects, .* it may be .*type \(SN Ia, SN II"),
        (["--classes", "SN Ia"], "write LABEL=CLASS"),
        (["--classes", "SN Ia=Nova"], "has no class 'Nova'"),
        (["--classes", "SN Iz=Ia"], "no object has the label 'SN Iz'"),
        (["--report", "."], "name a file outside"),
        (["--report", f"{BUNDLE}/report.json"], "name a file outside"),
        (["--report", "scores.html"], "must be two files"),
        (["--columns", "time"], "--columns time: must be NAME=VALUE"),
        (["--columns", "time=when"], "is 'when', which the table does not have"),
        (["--data", "sim.parquet", "--report", "r.json", "--band", "g"], "no effect with --data"),
    ],
)
def test_command_names_what_is_wrong(table: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        command.main(["evaluate", BUNDLE, str(table), *arguments])


@pytest.mark.parametrize("other", ["[]", "not JSON"])
def test_evaluate_of_a_bundle_with_another_report_counts_no_learned_objects(
    other: str, table: Path, tmp_path: Path
) -> None:
    bundle = shutil.copytree(BUNDLE, tmp_path / "bundle")
    (bundle / "report.json").write_text(other)
    (model,) = evaluate_table([str(bundle)], table).values["models"].values()
    assert model["objects_learned_from"] == 0


def test_evaluate_of_labels_alone_needs_stored_results(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("object_id,type\na,SN Ia\nb,SN II\n")
    with pytest.raises(TableError, match="time"):
        evaluate_table([BUNDLE], tmp_path / "labels.csv")


def test_evaluate_counts_stored_results_that_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("object_id,type\na,Ia\nb,II\nb,Ia\nc,\n")
    result = {"status": "classified", "object_id": "a", "probabilities": {"Ia": 0.9, "II": 0.1}}
    lines = [result, result, result | {"object_id": "z"}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = evaluate_table([str(tmp_path / "r.jsonl")], tmp_path / "labels.csv").values
    (model,) = values["models"].values()
    assert values["table"]["left_out"] == {"with several labels": 1, "without a label": 1}
    assert (model["replaced_results"], model["results_without_a_label"]) == (1, 1)


def test_evaluate_keeps_classes_apart_that_differ_in_signs_or_case(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("object_id,type\na,-1\nb,1\nc,AGN\nd,agn\n")
    sure = {"a": "-1", "b": "1", "c": "AGN", "d": "agn"}
    results = [{"status": "classified", "object_id": one, "probabilities": {name: 1.0}} for one, name in sure.items()]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    (model,) = evaluate_table([str(tmp_path / "r.jsonl")], tmp_path / "labels.csv").values["models"].values()
    assert model["scores"]["accuracy"] == 1.0


def test_evaluate_compares_whole_numbers_with_the_classes_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("object_id,type\na,1.0\na,1\nb,2\nc,-1\n")
    results = [{"status": "classified", "object_id": one, "probabilities": {"1": 0.8, "2.0": 0.2}} for one in "abc"]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    (model,) = evaluate_table([str(tmp_path / "r.jsonl")], tmp_path / "labels.csv").values["models"].values()
    assert model["labels_without_a_class"] == {"-1": 1}
    assert (model["objects"], model["scores"]["accuracy"]) == (2, 0.5)


@pytest.mark.parametrize("label", ["-1", "1.5", "SN Ia (91bg)", "β", "★", "SN"])
def test_evaluate_matches_no_label_to_a_class_of_other_letters_or_digits(label: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(f"object_id,type\nb,{label}\na,sn ia\n")
    shares = dict.fromkeys(["1", "10", "Ia", "α"], 0.25)
    (tmp_path / "r.jsonl").write_text(
        json.dumps({"status": "classified", "object_id": "a", "probabilities": shares}) + "\n"
    )
    (model,) = evaluate_table([str(tmp_path / "r.jsonl")], tmp_path / "labels.csv").values["models"].values()
    assert (model["objects"], model["labels_without_a_class"]) == (1, {label: 1})


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"a\n', "line 2 is not JSON"), ('{"status": "classified"}\n', "line 2 is a classified result without")],
)
def test_evaluate_of_a_damaged_results_file_names_the_line(
    tmp_path: Path, table: Path, line: str, message: str
) -> None:
    (tmp_path / "r.jsonl").write_text('{"status": "failed"}\n' + line)
    with pytest.raises(LabelError, match=message):
        evaluate_table([str(tmp_path / "r.jsonl")], table)
