"""The floor plan holds: small folders, no import cycles, few modules that one other module alone imports."""

from pathlib import Path

from deploy.structure import read_plan

ROOT = Path(__file__).resolve().parents[1]
MOST_IN_A_FOLDER = 20
MOST_SINGLE_IMPORTERS = 60
"""As many as there are. A module that only one other imports is part of that one, unless it is an idea of its own;
whoever merges some lowers this number, and whoever adds one finds another to merge."""

PLAN = read_plan(ROOT)


def test_no_folder_is_too_full() -> None:
    assert {name: count for name, count in PLAN.folders.items() if count > MOST_IN_A_FOLDER} == {}


def test_nothing_imports_itself_round_about() -> None:
    assert PLAN.cycles == []


def test_few_modules_have_a_single_importer() -> None:
    found = [f"{name} <- {importer}" for name, importer in PLAN.single_importers]
    assert len(found) <= MOST_SINGLE_IMPORTERS, found


def test_figures_of_a_small_tree(tmp_path: Path) -> None:
    room = tmp_path / "models"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "first.py").write_text("from models import second\n")
    (room / "second.py").write_text("def late() -> None:\n    import models.first\n")
    (room / "third.py").write_text("from models.second import late\nimport models.fourth as other\n")
    (room / "fourth.py").write_text("")
    plan = read_plan(tmp_path)
    assert (plan.files, plan.folders) == (5, {"models": 4})
    assert plan.cycles == [["models.first", "models.second"]]
    assert plan.single_importers == [("models.first", "models.second"), ("models.fourth", "models.third")]
