"""The floor plan holds: small folders, no import cycles, few modules that one other module alone imports; plain words.

Plain words: the first line of a docstring is a request ("Return ...") or a noun that stands alone, the name of a test
says who or what does something, a class has a name that no other class has, and a variable is called by a noun.
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

PARTICIPLES = frozenset({"found", "told", "asked", "known", "kept", "wanted", "seen", "shown", "made", "given"})
"""Names that say what befell a thing, and not what it is."""
AXES = re.compile(r"_[A-Z0-9]+$")
"""Of a tensor, at the end of its name."""
PRODUCT = ("service", "models", "training", "deploy")
STORED_NAMES = (
    "models/lightcurve.py kept",  # a field of manifests
    "models/networks/astro_moe.py told",  # a module, after which nodes of graphs are named
)
"""Names that bundles hold, so that they stay as they are."""

PLAN = read_plan(ROOT)


def files_of(rooms: tuple[str, ...]) -> list[Path]:
    """Return the Python files of some rooms."""
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def test_no_folder_is_too_full() -> None:
    assert {name: count for name, count in PLAN.folders.items() if count > MOST_IN_A_FOLDER} == {}


def test_nothing_imports_itself_round_about() -> None:
    assert PLAN.cycles == []


def test_few_modules_have_a_single_importer() -> None:
    pairs = [f"{name} <- {importer}" for name, importer in PLAN.single_importers]
    assert len(pairs) <= MOST_SINGLE_IMPORTERS, pairs


def riddles(path: Path) -> list[str]:
    """Return the names of tests and first lines of docstrings in a file that cannot be read alone, with their lines."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds):
            name, text = getattr(node, "name", ""), ast.get_docstring(node) or ""
            if RIDDLE.match(text) or RIDDLE_OF_A_NAME.match(name):
                lines.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {name}: {text.splitlines()[:1]}")
    return lines


def test_names_of_tests_and_first_lines_of_docstrings_stand_alone() -> None:
    assert [riddle for path in files_of(ROOMS) for riddle in riddles(path)] == []


def public_classes(path: Path) -> list[str]:
    """Return the names of the top-level classes of a file that others may import."""
    return [
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    ]


def test_a_class_has_a_name_of_its_own() -> None:
    """A name that means one thing here and another there is read wrongly in one of the two places."""
    places: dict[str, list[str]] = {}
    for path in files_of(PRODUCT):
        for name in public_classes(path):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert shared == {}


def participles(source: str) -> list[str]:
    """Return the variables, arguments and attributes of a program that bear a participle for a name."""
    names = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                if AXES.sub("", name).strip("_") in PARTICIPLES:
                    names.append(name)
    return names


def test_variables_have_nouns_for_names() -> None:
    places = [
        f"{path.relative_to(ROOT)} {name}" for path in files_of(PRODUCT) for name in participles(path.read_text())
    ]
    assert sorted(places) == sorted(STORED_NAMES)


def test_participles_of_a_small_program() -> None:
    source = "kept_BL = found = 1\nself._told = [known for known in rows]\ndef ask(seen, shown_value): rows = given\n"
    assert sorted(participles(source)) == ["_told", "found", "kept_BL", "known", "seen"]


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
