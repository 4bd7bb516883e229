"""The quality floor: lint, format, types, import directions, sizes of files and functions, nothing of this machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("service", "models", "training", "deploy", "tests")
PYTHON_FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

LONGEST_FILE = 600  # lines; 100 to 400 are the rule, but nothing is cut in two for a number
LONGEST_FUNCTION = 60


def python_tool(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


CHECKS = {
    "lint": python_tool("ruff", "check", "."),
    "format": python_tool("ruff", "format", "--check", "."),
    "types": python_tool("mypy", "src/nightjar_alerts", "deploy", "tests"),
    "imports": [str(Path(sys.executable).with_name("lint-imports"))],
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_tree_passes(check: str) -> None:
    done = subprocess.run(CHECKS[check], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(CHECKS[check])}\n{done.stdout}{done.stderr}"


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_beyond_reading() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in PYTHON_FILES}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_no_function_needs_scrolling() -> None:
    lengths = {
        f"{relative(path)}:{function.lineno} {function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in PYTHON_FILES
        for function in functions(path)
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}


def test_no_test_folder_is_a_package() -> None:
    """A ``tests/service/__init__.py`` would shadow the package it tests."""
    shadows = [ROOT / "tests" / room / "__init__.py" for room in ROOMS]
    assert [relative(path) for path in shadows if path.exists()] == []


def tracked_text() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return {relative(path): path.read_text(errors="replace") for path in paths if path.is_file()}


def test_no_path_of_a_developers_machine_is_tracked() -> None:
    """No file may depend on where this checkout, or anybody's home, happens to be."""
    place = re.compile("|".join((re.escape(f"{ROOT}/"), "/home/" + "[a-z]", "/Users/" + "[a-z]")))
    assert {name: match.group() for name, text in tracked_text().items() if (match := place.search(text))} == {}
