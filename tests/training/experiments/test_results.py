import json
from pathlib import Path

import pytest

from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.experiments.position import Position
from nightjar_alerts.training.experiments.runner import (
    ExperimentOptions,
    RunRecord,
    mean_and_spread,
    number,
    read_records,
    table,
    write_record,
)


def record(seed: int, mse: float, variant: str = "cls-180", steps: int = 3130) -> RunRecord:
    return RunRecord(
        experiment="position",
        variant=variant,
        seed=seed,
        metrics={"MSE": mse},
        paper={"MSE": "0.062"},
        floor={"MSE": 0.0},
        settings={"width": 180},
        command="nightjar-train experiment position",
        steps=steps,
        published_steps=3130,
        minutes=20.0,
        machine="a processor",
        threads=1,
    )


def test_a_record_survives_the_file(tmp_path: Path) -> None:
    written = record(40, 0.06)
    path = write_record(written, tmp_path)
    assert path == tmp_path / "position" / "cls-180-40.json"
    assert read_records("position", tmp_path) == [written]
    assert json.loads(path.read_text())["metrics"] == {"MSE": 0.06}


def test_no_records_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no records of experiment 'position'"):
        read_records("position", tmp_path)


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    write_record(record(40, 0.06), tmp_path).write_text("{}")
    with pytest.raises(ValueError, match=r"cls-180-40\.json is not a record"):
        read_records("position", tmp_path)


def test_a_table_has_mean_and_sample_deviation_over_seeds() -> None:
    lines = table([record(40, 0.05), record(41, 0.07), record(42, 0.09)]).splitlines()
    assert len(lines) == 3
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["cls-180", "MSE", "40, 41, 42", "0.07 ± 0.02", "0.062", "0", "3,130", "20", "a processor"]


def test_runs_of_other_lengths_are_rows_of_their_own() -> None:
    lines = table([record(40, 0.05), record(41, 0.5, steps=626)]).splitlines()
    assert len(lines) == 4
    assert "626 of 3,130" in lines[3]
    assert "±" not in lines[2] + lines[3].replace("0.062", "")


def test_the_spread_is_left_out_for_one_seed() -> None:
    assert mean_and_spread([0.25]) == "0.25"
    assert mean_and_spread([1.0, 3.0]) == "2 ± 1.4"


@pytest.mark.parametrize(("value", "text"), [(200.083, "200.1"), (12345.6, "12346"), (0.0033, "0.0033"), (0.0, "0")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_the_command_names_what_differs_from_the_defaults() -> None:
    options = Position(width=432, cls=False, seed=41, max_minutes=5.0, records=Path("elsewhere"))
    assert options.command() == "nightjar-train experiment position --seed 41 --width 432 --cls false"
    assert isinstance(options, ExperimentOptions)
    assert options.settings()["width"] == 432
    assert "records" not in options.settings()


def test_the_table_command_prints_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(record(40, 0.06), tmp_path)
    main(["experiment", "table", "position", "--records", str(tmp_path)])
    assert capsys.readouterr().out.startswith("| variant | metric |")


def test_the_table_of_nothing_is_one_line_of_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="error: no records"):
        main(["experiment", "table", "position", "--records", str(tmp_path)])


def test_help_lists_the_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    """A per cent sign in a docstring breaks argparse only here."""
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("position", "interpolation", "spirals", "pendulum", "table"))
