"""deploy/constraints.txt names a version for everything pyproject.toml asks for, and one that satisfies it."""

import re
import runpy
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def constraints() -> dict[str, str]:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def required() -> list[Requirement]:
    lock = runpy.run_path(str(ROOT / "deploy" / "lock.py"))
    return [Requirement(line) for line in lock["requirements"](ROOT / "pyproject.toml")]


def test_every_requirement_has_a_version_that_satisfies_it() -> None:
    pinned = constraints()
    missing = [str(r) for r in required() if canonicalize_name(r.name) not in pinned]
    unmet = [str(r) for r in required() if not r.specifier.contains(pinned.get(canonicalize_name(r.name), ""))]
    assert (missing, unmet) == ([], []), "run `make lock`"


def test_no_constraint_names_one_machines_build_of_a_package() -> None:
    """Two machines may need two builds of one release, as with torch 2.13.0 and 2.13.0+cpu."""
    assert [version for version in constraints().values() if "+" in version] == []


def hashed(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package in a file."""
    text = (ROOT / "deploy" / name).read_text()
    entries = re.findall(r"^(\S+?)==([^\s;]+)[^\\\n]*((?:\\\n\s+--hash=sha256:[0-9a-f]{64}\s*)+)", text, re.MULTILINE)
    assert len(entries) == len(re.findall("^[a-z0-9]", text, re.MULTILINE | re.IGNORECASE)), "one without a hash"
    return {canonicalize_name(package): (version, hashes.count("sha256")) for package, version, hashes in entries}


def test_serving_packages_have_hashes_and_the_versions_of_the_tests() -> None:
    packages, pinned = hashed("requirements.txt"), constraints()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    served = [
        *project["dependencies"],
        *(line for extra in ("cpu", "otel", "redis", "stream") for line in extras[extra]),
    ]
    assert {canonicalize_name(Requirement(line).name) for line in served} <= set(packages), "run `make lock`"
    assert {name: version for name, (version, _) in packages.items() if pinned.get(name, version) != version} == {}
    assert not {"torch", "pyarrow"} & set(packages)


def test_the_build_backend_is_named_with_hashes() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    packages = hashed("build-requirements.txt")
    for line in lines:
        requirement = Requirement(line)
        assert packages[canonicalize_name(requirement.name)][0] in requirement.specifier


def test_nothing_that_serves_is_installed_without_a_hash() -> None:
    for name in ("Makefile", "deploy/Dockerfile"):
        text = (ROOT / name).read_text()
        assert "--require-hashes" in text
        assert "--no-build-isolation" in text, "an isolated build takes whatever backend is new"
