"""The floor plan holds: small folders, no import cycles, few modules that one other module alone imports; plain words.

Plain words: the first line of a docstring is a request ("Return ...") or a noun that stands alone, and the name of a
test says who or what does something.
"""

import ast
import re
from pathlib import Path

from deploy.structure import read_plan

ROOT = Path(__file__).resolve().parents[1]
MOST_IN_A_FOLDER = 20
MOST_SINGLE_IMPORTERS = 44
"""As many as there are. A module that only one other imports is part of that one, unless it is an idea of its own;
whoever merges some lowers this number, and whoever adds one finds another to merge."""

ROOMS = ("service", "models", "training", "deploy", "tests")
RIDDLE = re.compile(
    r"(What|Where|Whether|When|Which|Who|Whoever|Whose|How|Why|The same|That|It|Its|They|Their|And|Also|As|Else|If"
    r"|Until|Of|By|Not)\b"
)
RIDDLE_OF_A_NAME = re.compile(r"test_(what|who|whoever|where|whether|which|how|why|it|they|whose)_")
"""Openings that need something before them."""

PLAN = read_plan(ROOT)


def test_no_folder_is_too_full() -> None:
    assert {name: count for name, count in PLAN.folders.items() if count > MOST_IN_A_FOLDER} == {}


def test_nothing_imports_itself_round_about() -> None:
    assert PLAN.cycles == []


def test_few_modules_have_a_single_importer() -> None:
    found = [f"{name} <- {importer}" for name, importer in PLAN.single_importers]
    assert len(found) <= MOST_SINGLE_IMPORTERS, found


def riddles(path: Path) -> list[str]:
    """Return the names of tests and first lines of docstrings in a file that cannot be read alone, with their lines."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds):
            name, text = getattr(node, "name", ""), ast.get_docstring(node) or ""
            if RIDDLE.match(text) or RIDDLE_OF_A_NAME.match(name):
                found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {name}: {text.splitlines()[:1]}")
    return found


def test_names_of_tests_and_first_lines_of_docstrings_stand_alone() -> None:
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert [riddle for path in paths for riddle in riddles(path)] == []


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
