"""deploy/constraints.txt names a version for everything pyproject.toml asks for, and one that satisfies it."""

import runpy
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def constraints() -> dict[str, str]:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def wanted() -> list[Requirement]:
    lock = runpy.run_path(str(ROOT / "deploy" / "lock.py"))
    return [Requirement(line) for line in lock["requirements"](ROOT / "pyproject.toml")]


def test_every_requirement_has_a_version_that_satisfies_it() -> None:
    pinned = constraints()
    missing = [str(r) for r in wanted() if canonicalize_name(r.name) not in pinned]
    unmet = [str(r) for r in wanted() if not r.specifier.contains(pinned.get(canonicalize_name(r.name), ""))]
    assert (missing, unmet) == ([], []), "run `make lock`"


def test_no_constraint_names_one_machines_build_of_a_package() -> None:
    """Two machines may need two builds of one release, as with torch 2.13.0 and 2.13.0+cpu."""
    assert [version for version in constraints().values() if "+" in version] == []
