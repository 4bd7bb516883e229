"""Fine-tuning from a labelled table to a served model: one small run, and tables that it refuses."""

import csv
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nightjar_alerts import Classifier, TableOptions
from nightjar_alerts.models.bundle import GOLDEN_TOLERANCE, SLUG, load_bundle, verify_golden
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.models.runtime import open_session
from nightjar_alerts.tables import TableObject, text
from nightjar_alerts.training import evaluate, finetune
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.export import domain
from nightjar_alerts.training.finetuning import draws, run
from nightjar_alerts.training.finetuning.backbone import find_backbone
from nightjar_alerts.training.finetuning.measure import named_alone
from nightjar_alerts.training.finetuning.opponent import opponent_predictions
from nightjar_alerts.training.finetuning.run import MAJORITY, OPPONENT
from nightjar_alerts.training.finetuning.table import read_labelled, related
from nightjar_alerts.training.fit import tuning
from nightjar_alerts.training.fit.checkpoints import DataSource
from nightjar_alerts.training.fit.heads import save_run
from nightjar_alerts.training.importers.tables import LabelError
from nightjar_alerts.training.recipes.astro_moe import debug, with_network
from nightjar_alerts.training.score.labelled import FINETUNED, LEARNED
from support.once import common_folder, made_once

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "examples" / "finetune.ipynb"
SMALL = with_network(debug(), "small", n_blocks=1, n_experts=0, n_input_experts=0)
HEADER = ("id", "mjd", "band", "fluxdiff_uJy", "fluxdiff_uJy_error", "type", "host")
DIFFERENCE = TableOptions(flux_kind="difference")
CLASSES = {"bump": 26, "wave": 26, "rare": 4, "": 3}

Row = tuple[Any, ...]


def rows_of(counts: dict[str, int] = CLASSES, *, bands: tuple[str, ...] = ("g", "r"), hosts: bool = False) -> list[Row]:
    """Return the points of objects: bumps are transients, all others waves."""
    rng, rows = np.random.default_rng(0), list[Row]()
    for label, count in counts.items():
        for number in range(count):
            name, time = f"{label or 'none'}-{number}", np.arange(0, 48, 4.0)
            peak, width = rng.uniform(15, 30), rng.uniform(5, 12)
            shape = np.exp(-(((time - peak) / width) ** 2)) if label == "bump" else 1 + 0.5 * np.sin(time / width * 3)
            flux = rng.uniform(20, 200) * shape + rng.normal(0, 1, len(time))
            host = f"host {number // 2}" if hosts else ""
            rows += [
                (name, 60_000 + t, bands[index % len(bands)], round(value, 3), 1.0, label, host)
                for index, (t, value) in enumerate(zip(time, flux, strict=True))
            ]
    return rows


def write(path: Path, rows: list[Row], header: tuple[str, ...] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def arguments(folder: Path) -> list[str]:
    return [
        *("finetune", str(folder / "table.csv"), "--output", str(folder / "model"), "--from", str(folder / "backbone")),
        *("--flux-kind", "difference", "--threads", "1"),
    ]


def make(folder: Path) -> None:
    """Fine-tune in two starts, of which SIGTERM ends the first."""
    folder.mkdir()
    write(folder / "table.csv", rows_of())
    torch.manual_seed(0)
    save_run(build(SMALL.network), SMALL, folder, DataSource(name="-", sha256="0", objects=1), folder / "backbone")
    with pytest.MonkeyPatch.context() as short, pytest.MonkeyPatch.context() as patch:
        short.setattr(tuning, "HEAD_STEPS", 100)
        short.setattr(tuning, "BRANCH_STEPS", (10, 10))
        patch.setattr(run, "choose", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit) as stopped:
            main(arguments(folder))
        (features,) = folder.glob("model.work/*/features-0000.npz")
        before = features.stat().st_mtime_ns
        patch.undo()
        main(arguments(folder))
    resumed = {"status": stopped.value.code, "is_kept": features.stat().st_mtime_ns == before}
    (folder / "resumed.json").write_text(json.dumps(resumed))


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(common_folder(tmp_path_factory) / "finetuned", make)


@pytest.fixture(scope="module")
def report(finetuned: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((finetuned / "model" / FINETUNED).read_text())
    return made


def test_finetune_after_sigterm_continues_from_its_features(finetuned: Path) -> None:
    assert json.loads((finetuned / "resumed.json").read_text()) == {"status": 143, "is_kept": True}


def test_finetune_scores_the_untouched_part_beside_the_opponent_and_the_majority(report: dict[str, Any]) -> None:
    assert set(report["scores"]) == {"model", OPPONENT, MAJORITY}
    assert report["scores"]["model"]["macro_f1"] > 0.8 > report["scores"][MAJORITY]["macro_f1"]
    assert {"trees", "heads", "heads and trees", "full"} <= set(report["folds"])


def test_finetune_counts_what_it_leaves_out(report: dict[str, Any]) -> None:
    assert report["left_out"] == {"of a class of fewer than ten independent objects": 4, "without a label": 3}
    assert any("rare (4)" in warning for warning in report["warnings"])


def test_finetune_of_few_objects_holds_the_temperature_and_warns(finetuned: Path, report: dict[str, Any]) -> None:
    calibration = load_bundle(finetuned / "model").manifest.calibration
    assert (calibration.method, calibration.temperature) == ("none", 1.0)
    assert any("not calibrated" in warning for warning in report["warnings"])


def test_finetune_writes_a_bundle_that_states_its_domain_and_origin(finetuned: Path) -> None:
    made = load_bundle(finetuned / "model")
    verify_golden(made, open_session(made.model))
    assert made.manifest.classes.names == ("bump", "wave")
    assert made.manifest.domain is not None
    assert made.manifest.domain.bands == ("g", "r")
    assert made.manifest.data["finetuned"]["test_objects"] + made.manifest.data["objects"] == 52
    assert "wave" in (finetuned / "model" / "CARD.md").read_text()


def test_classifier_of_a_finetuned_folder_names_the_class(finetuned: Path) -> None:
    results = Classifier(finetuned / "model").classify(finetuned / "table.csv", flux_kind="difference")
    assert {result.class_name for result in results} == {"bump", "wave"}


def test_finetuned_model_of_g_and_r_abstains_on_the_i_band(finetuned: Path) -> None:
    time = np.arange(60_000, 60_048, 4.0)
    i_band = {"mjd": time.tolist(), "flux": [9e4] * 12, "flux_err": [1e3] * 12, "band": ["i"] * 12}
    result = Classifier(finetuned / "model").classify(i_band)
    assert (result.status, result.class_name) == ("abstained", None), result


def test_evaluate_counts_the_objects_that_a_finetuned_model_learned_from(
    finetuned: Path, report: dict[str, Any]
) -> None:
    values = evaluate(finetuned / "model", finetuned / "table.csv", options=DIFFERENCE)
    (model,) = values["models"].values()
    assert 0 < model["objects_learned_from"] == len(report[LEARNED]) < model["objects"] == 52


def test_with_heads_of_one_seed_are_equal(finetuned: Path) -> None:
    backbone = find_backbone(str(finetuned / "backbone"))
    one, other = (backbone.with_heads(3, seed=1)[0].state_dict() for _ in range(2))
    assert all(one[name].equal(other[name]) for name in one)


def test_finetune_again_returns_the_finished_result(finetuned: Path, report: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="another table or other options"):
        finetune(
            finetuned / "table.csv", finetuned / "model", backbone=finetuned / "backbone", seed=3, options=DIFFERENCE
        )
    main(arguments(finetuned))
    assert json.loads((finetuned / "model" / FINETUNED).read_text()) == report


def test_finetune_states_the_difference_of_the_graph(report: dict[str, Any]) -> None:
    assert report["parity"]["light_curves"] >= 16
    assert report["parity"]["largest_difference"] < GOLDEN_TOLERANCE


def test_read_labelled_of_a_named_group_keeps_its_objects_together(tmp_path: Path) -> None:
    rows = rows_of({"bump": 30, "wave": 30}, hosts=True)
    table = write(tmp_path / "t.csv", rows, (*HEADER[:-1], "field"))
    assert len(np.unique(read_labelled(table, group="field", options=DIFFERENCE).group_O)) == 15
    assert len(np.unique(read_labelled(table, options=DIFFERENCE).group_O)) == 60


def test_read_labelled_of_a_group_of_most_objects_refuses(tmp_path: Path) -> None:
    rows = [(*row[:-1], "one") for row in rows_of({"bump": 12, "wave": 12})]
    with pytest.raises(LabelError, match="two classes of 10 independent objects"):
        read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE)


def test_read_labelled_with_a_column_that_is_missing_names_it(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12}))
    with pytest.raises(ValueError, match="kind"):
        read_labelled(table, label="kind", options=DIFFERENCE)


def test_read_labelled_counts_objects_with_several_labels(tmp_path: Path) -> None:
    rows = rows_of({"bump": 12, "wave": 12})
    rows[0] = (*rows[0][:5], "wave", "")
    labelled = read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE)
    assert labelled.left_out == {"with several labels": 1}


@pytest.mark.parametrize(("odd", "reason"), [(["bump", "wave"], "with several labels"), ([], "without a label")])
def test_read_labelled_of_lists_of_labels_counts_those_without_one(odd: list[str], reason: str, tmp_path: Path) -> None:
    rows = rows_of({"bump": 13, "wave": 12})
    objects = [rows[start : start + 12] for start in range(0, len(rows), 12)]
    columns = {name: [[row[index] for row in one] for one in objects] for index, name in enumerate(HEADER[:-1])}
    columns["id"] = [one[0] for one in columns["id"]]
    columns["type"][0] = odd
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    labelled = read_labelled(tmp_path / "t.parquet", options=DIFFERENCE)
    assert (labelled.counts, labelled.left_out) == ({"bump": 12, "wave": 12}, {reason: 1})


def test_read_labelled_of_labels_that_look_alike_warns(tmp_path: Path) -> None:
    labelled = read_labelled(write(tmp_path / "t.csv", rows_of({"SN Ia": 12, "sn  ia": 12})), options=DIFFERENCE)
    assert labelled.warnings == (
        "labels that differ only in case or blanks are different classes: 'SN Ia' and 'sn  ia'",
    )


def test_related_joins_equal_and_near_positions() -> None:
    empty, bands = np.zeros(0), np.zeros(0, dtype=object)
    places = [(0.0, 0.0), (0.0, 0.0), (0.0, 0.5 / 3600), (0.0, 5 / 3600), (0.0, 0.0)]
    items = [TableObject(str(row), empty, empty, empty, bands, ra=ra, dec=dec) for row, (ra, dec) in enumerate(places)]
    assert related(items).tolist() == [0, 0, 0, 1, 0]


def test_read_labelled_of_more_rows_than_a_batch_reads_all_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BATCH_ROWS", 50)
    labelled = read_labelled(write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12})), options=DIFFERENCE)
    assert labelled.counts == {"bump": 12, "wave": 12}


def test_read_labelled_with_a_label_in_some_rows_takes_it(tmp_path: Path) -> None:
    rows = [
        (*row[:5], "nan" if index % 2 else row[5], "") for index, row in enumerate(rows_of({"bump": 12, "wave": 12}))
    ]
    labelled = read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE)
    assert (labelled.counts, labelled.left_out) == ({"bump": 12, "wave": 12}, {})


def test_read_labelled_of_a_missing_boolean_counts_no_label(tmp_path: Path) -> None:
    columns = dict(zip(HEADER, map(list, zip(*rows_of({"bump": 13, "wave": 12}), strict=True)), strict=True))
    columns["type"] = [
        None if name == "bump-3" else label == "bump"
        for name, label in zip(columns["id"], columns["type"], strict=True)
    ]
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    labelled = read_labelled(tmp_path / "t.parquet", options=DIFFERENCE)
    assert (labelled.counts, labelled.left_out) == ({"False": 12, "True": 12}, {"without a label": 1})


@pytest.mark.parametrize("one", ["1", "1.0", " 1.0", "1.000e+00"])
def test_read_labelled_of_whole_numbers_names_the_same_classes_as_a_float_column(one: str, tmp_path: Path) -> None:
    rows = rows_of({one: 12, "2": 12})
    columns = dict(zip(HEADER, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table({**columns, "type": list(map(float, columns["type"]))}), tmp_path / "t.parquet")
    write(tmp_path / "t.csv", rows)
    for name in ("t.csv", "t.parquet"):
        assert read_labelled(tmp_path / name, options=DIFFERENCE).counts == {"1": 12, "2": 12}


@pytest.mark.parametrize("how", [{"label": "id"}, {"columns": {"label": "id"}}])
def test_read_labelled_with_the_names_of_objects_as_label_lists_other_columns(
    how: dict[str, Any], tmp_path: Path
) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12}))
    options = TableOptions(flux_kind="difference", columns=how.get("columns", {}))
    with pytest.raises(LabelError, match=r"'id' names the objects, so every .* its own value; .* type \(bump, wave\)"):
        read_labelled(table, label=how.get("label", ""), options=options)


@pytest.mark.parametrize("label", ["x" * 10_000, "one\x07two"])
def test_read_labelled_of_a_class_that_is_no_name_refuses_in_short(label: str, tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="a class is at most 100 printable characters") as refused:
        read_labelled(write(tmp_path / "t.csv", rows_of({"bump": 12, label: 12})), options=DIFFERENCE)
    assert len(str(refused.value)) < 300


def test_read_labelled_of_related_objects_says_how_many_are_independent(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12}))
    with pytest.raises(LabelError, match=r"bump \(12, of which 1 independent by column 'type'\)"):
        read_labelled(table, group="type", options=DIFFERENCE)


def test_observe_counts_objects_without_a_band_of_the_model(tmp_path: Path, finetuned: Path) -> None:
    rows = rows_of({"bump": 60, "wave": 60})
    rows = [(*row[:2], "y", *row[3:]) if row[0] == "bump-3" else row for row in rows]
    observed = draws.observe(
        read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE), find_backbone(str(finetuned / "backbone"))
    )
    assert observed.left_out == {"without a point in the bands g, r": 1}
    assert observed.warnings == ("band Y is left out: only 1 of 120 objects have points in it",)


def test_observe_warns_of_points_that_the_model_does_not_see(tmp_path: Path, finetuned: Path) -> None:
    rows = rows_of({"bump": 12, "wave": 12})
    rows = [
        row for name, mjd, *row_ in rows for row in ((name, mjd, *row_), (name, mjd - 200, row_[0], 0.0, *row_[2:]))
    ]
    labelled = read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE)
    (warning,) = draws.observe(labelled, find_backbone(str(finetuned / "backbone"))).warnings
    assert "the model does not see 50% of the points: earlier than 30 days before the first detection" in warning


def test_observe_of_a_class_in_a_rare_band_refuses(
    tmp_path: Path, finetuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain, "COMMON_BAND", 0.5)
    rows = rows_of({"bump": 12, "wave": 20})
    rows = [(*row[:2], "z", *row[3:]) if row[5] == "bump" else row for row in rows]
    labelled = read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE)
    with pytest.raises(LabelError, match="class 'bump' has 0 objects with points in the bands g, r"):
        draws.observe(labelled, find_backbone(str(finetuned / "backbone")))


def test_observe_counts_independent_objects_of_a_class(
    tmp_path: Path, finetuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain, "COMMON_BAND", 0.5)
    rows = rows_of({"bump": 24, "wave": 60}, hosts=True)
    rows = [(*row[:2], "z", *row[3:]) if row[0] in {f"bump-{number}" for number in range(6)} else row for row in rows]
    labelled = read_labelled(write(tmp_path / "t.csv", rows), options=DIFFERENCE)
    with pytest.raises(LabelError, match=r"'bump' has 18 objects .* g, r, of which 9 are independent, fewer than 10"):
        draws.observe(labelled, find_backbone(str(finetuned / "backbone")))


def test_read_labelled_of_hosts_keeps_their_objects_together(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 30, "wave": 30}, hosts=True))
    assert len(np.unique(read_labelled(table, options=DIFFERENCE).group_O)) == 15


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"bump": 20}, "two classes of 10 independent objects each; column 'type' has bump"),
        ({"bump": 20, "wave": 9}, "two classes of 10"),
        ({"": 5}, "no labelled light curve that can be used: 5 without a label"),
        ({f"c{number}": 1 for number in range(12)}, "12 values for 12 objects: every object has its own value"),
    ],
)
def test_read_labelled_without_two_classes_says_what_it_found(
    counts: dict[str, int], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(LabelError, match=expected):
        read_labelled(write(tmp_path / "t.csv", rows_of(counts)), options=DIFFERENCE)


def test_read_labelled_with_two_columns_of_labels_lists_their_values(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12}), (*HEADER[:-1], "class"))
    with pytest.raises(LabelError, match=r"2 columns may be the label; name one with --label: type \(bump, wave"):
        read_labelled(table, options=DIFFERENCE)


def test_read_labelled_without_a_usual_name_lists_candidates(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12}), (*HEADER[:-2], "what", "host"))
    with pytest.raises(LabelError, match=r"--label; it may be .*what \(bump, wave\)"):
        read_labelled(table, options=DIFFERENCE)
    assert read_labelled(table, label="what", options=DIFFERENCE).counts == {"bump": 12, "wave": 12}


def test_finetune_in_unknown_bands_names_them(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", rows_of({"bump": 12, "wave": 12}, bands=("qq",)))
    with pytest.raises(ValueError, match="Which filters are 'qq'"):
        finetune(table, tmp_path / "out")


def test_finetune_without_the_device_refuses_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device"):
        finetune(tmp_path / "none.csv", tmp_path / "out", device="cuda")


@pytest.mark.parametrize(("folder", "name"), [("Modèle δ 2", "mod-le---2"), ("超新星", "model"), ("SN_1", "sn-1")])
def test_name_of_a_folder_in_any_alphabet_is_one_of_a_bundle(folder: str, name: str) -> None:
    assert re.match(SLUG, run.name_of(Path(folder)))
    assert run.name_of(Path(folder)) == name


def test_finetune_into_a_folder_with_a_damaged_report_says_so(tmp_path: Path, finetuned: Path) -> None:
    copied = shutil.copytree(finetuned / "model", tmp_path / "model")
    (copied / FINETUNED).write_text("{}")
    with pytest.raises(ValueError, match=r"report\.json is damaged; remove"):
        finetune(finetuned / "table.csv", copied, backbone=finetuned / "backbone", options=DIFFERENCE)


def test_finetune_into_a_folder_of_something_else_refuses(tmp_path: Path, finetuned: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds something else"):
        finetune(finetuned / "table.csv", tmp_path, backbone=finetuned / "backbone", options=DIFFERENCE)


def test_named_alone_takes_the_threshold_with_the_largest_f1_on_the_objects_to_learn_from() -> None:
    p_O, learns_O = np.array([0.9, 0.3, 0.2, 0.1, 0.3, 0.29]), np.array([True] * 4 + [False] * 2)
    label_O = np.array([0, 0, 1, 1, 0, 1])
    named_OC = named_alone(np.stack([p_O, 1 - p_O], axis=1), label_O, learns_O, ~learns_O)
    assert named_OC.tolist() == [[True, False], [False, False]]


def test_opponent_predictions_of_objects_to_learn_from_are_of_fits_without_them() -> None:
    rng = np.random.default_rng(0)
    value_OF, label_O = rng.normal(size=(200, 3)).astype(np.float32), rng.integers(0, 2, 200)
    p_OC, _ = opponent_predictions(value_OF, label_O, np.arange(200) < 160, np.arange(200) % 3, 2, 0)
    assert (p_OC[:160].argmax(1) == label_O[:160]).mean() < 0.7
    np.testing.assert_allclose(p_OC.sum(1), 1)


@pytest.mark.nightly
def test_finetune_notebook_runs_from_top_to_bottom(
    tmp_path: Path, finetuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "HEAD_STEPS", 20)
    monkeypatch.setattr(tuning, "BRANCH_STEPS", (2, 2))
    monkeypatch.chdir(NOTEBOOK.parent)
    own = {"astro-moe-elasticc": str(finetuned / "backbone"), '"model"': repr(str(tmp_path / "model"))}
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            for text, replacement in own.items():
                source = source.replace(text, replacement)
            exec(compile(source, f"{NOTEBOOK.name}:{cell['id']}", "exec"), names)
            assert cell["outputs"] == [], "committed without outputs"
    assert len(names["results"]) == 60
