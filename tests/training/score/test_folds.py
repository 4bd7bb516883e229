"""Cross-validation: every object is tested once, and networks and trees share the folds."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.fit import loop
from nightjar_alerts.training.recipes.astro_moe import debug
from nightjar_alerts.training.score.folds import crossvalidate, of_fold, table
from support.toy_dataset import TOY_CLASSES, write_toy_dataset

pytestmark = pytest.mark.slow


def test_folds_share_out_the_objects(tmp_path: Path) -> None:
    dataset = read_dataset(write_toy_dataset(tmp_path / "toy.parquet", 120))
    splits = [of_fold(debug(), fold, 3).data for fold in range(3)]
    tested = [row for data in splits for row in split_indices(dataset, data.fractions, data.turn)["test"]]
    assert sorted(tested) == list(range(120))


def test_trees_are_scored_on_every_object(tmp_path: Path) -> None:
    data = write_toy_dataset(tmp_path / "toy.parquet", 120)
    report = crossvalidate(debug(), data, None, folds=2, trees=["boosted", "forest"], features="summary")
    assert set(report["models"]) == {"boosted trees, summary features", "random forest, summary features"}
    for model in report["models"].values():
        assert sum(map(sum, model["confusion"])) == 120
        assert model["scores"]["macro_f1"]["mean"] > 0.8
        assert len(model["scores"]["macro_f1"]["values"]) == 2


def test_a_recipe_is_trained_once_for_each_fold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, runs, report = write_toy_dataset(tmp_path / "toy.parquet", 120), tmp_path / "runs", tmp_path / "report.json"
    arguments = f"--data {data} --runs {runs} --report {report} --folds 2 --steps 10 --no-trees"
    main(["makers", "crossvalidate", "debug", *arguments.split()])
    first = json.loads(report.read_text())
    turns = [
        json.loads((runs / f"fold-{fold}" / "config.json").read_text())["recipe"]["data"]["turn"] for fold in (0, 1)
    ]
    assert turns == [0.0, 0.5]
    assert capsys.readouterr().out == table(first) + "\n"
    assert set(TOY_CLASSES) <= set(first["models"]["debug"]["f1"])
    main(["makers", "crossvalidate", "debug", *arguments.split()])  # nothing is left to train: the same report
    assert json.loads(report.read_text()) == first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_crossvalidate_after_a_signal_keeps_what_is_finished(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, take_step, steps = write_toy_dataset(tmp_path / "toy.parquet", 120), loop.train_step, []

    def signalled(*arguments: Any) -> None:
        take_step(*arguments)
        steps.append(1)
        if len(steps) == 5:  # the second step of the second fold
            signal.raise_signal(number)

    def crossvalidated(runs: str) -> str:
        arguments = f"--data {data} --report {tmp_path / runs}.json --folds 2 --steps 3 --no-trees --runs"
        main(["makers", "crossvalidate", "debug", *arguments.split(), str(tmp_path / runs)])
        return (tmp_path / f"{runs}.json").read_text()

    monkeypatch.setattr(loop, "train_step", signalled)
    with pytest.raises(SystemExit) as stopped:
        crossvalidated("runs")
    assert stopped.value.code == 128 + number
    assert f"run the same command to resume from {tmp_path / 'runs' / 'fold-1'}" in capsys.readouterr().err
    resumed = crossvalidated("runs")
    assert len(steps) == 6  # none was taken twice
    assert resumed == crossvalidated("whole")
