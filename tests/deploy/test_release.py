"""A release: every package of the lock in its bill, the bill in the wheel, the same bytes again, sums that hold."""

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deploy import sbom
from deploy.release import NotReleasable, build, check_wheel, release

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_760_000_000

LOCK = """# Written by hand.
one==1.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
two-too==2.0.1 ; sys_platform == 'linux' \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def test_a_package_is_named_with_its_address_and_hashes() -> None:
    one, two = sbom.packages(LOCK)
    assert (one["purl"], two["purl"]) == ("pkg:pypi/one@1.0", "pkg:pypi/two-too@2.0.1")
    hashes = [each["hashes"][0]["content"] for each in one["externalReferences"]]
    assert hashes == ["a" * 64, "b" * 64]


def test_a_package_without_a_hash_has_no_place_in_a_bill() -> None:
    with pytest.raises(ValueError, match="three"):
        sbom.packages(LOCK + "three==3\n")


def test_the_bill_names_every_package_that_serves() -> None:
    lock = (ROOT / "deploy" / "requirements.txt").read_text()
    locked = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", lock, re.MULTILINE))
    bill = sbom.document()
    libraries = {part["name"]: part for part in bill["components"] if part["type"] == "library"}
    assert {canonicalize_name(name): version for name, version in locked.items()} == {
        canonicalize_name(name): part["version"] for name, part in libraries.items()
    }
    named = [each["hashes"] for part in libraries.values() for each in part["externalReferences"]]
    assert len(named) == len(re.findall(r"--hash=sha256:", lock))
    assert all(part["purl"].startswith("pkg:pypi/") and part["externalReferences"] for part in libraries.values())


def test_the_bill_names_every_bundle_and_is_whole() -> None:
    bill = sbom.document()
    graphs = {
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (ROOT / "models/pretrained").rglob("model.onnx")
    }
    parts = [part for part in bill["components"] if part["type"] == "machine-learning-model"]
    assert {part["hashes"][0]["content"] for part in parts} == graphs
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(set(references)) == len(references)
    assert bill["dependencies"][0]["dependsOn"] == references
    assert (
        bill["metadata"]["component"]["version"]
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    )
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])


def test_the_same_tree_has_the_same_bill() -> None:
    assert sbom.text() == sbom.text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a tree like that of which the image is built, with one small bundle."""
    folder = tmp_path / "tree"
    shutil.copytree(ROOT / "service", folder / "service", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "training").mkdir()
    (folder / "models" / "pretrained" / "small" / "1.0.0").mkdir(parents=True)
    (folder / "models" / "__init__.py").touch()
    (folder / "training" / "__init__.py").touch()
    bundle = folder / "models" / "pretrained" / "small" / "1.0.0"
    (bundle / "manifest.json").write_text(json.dumps({"name": "small", "version": "1.0.0"}))
    (bundle / "model.onnx").write_bytes(b"graph")
    (folder / "deploy").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("requirements.txt", "sbom.py"):
        shutil.copy(ROOT / "deploy" / name, folder / "deploy" / name)
    return folder


def test_a_wheel_holds_its_bill_and_is_the_same_again(tree: Path, tmp_path: Path) -> None:
    first, second = (build(tree, tmp_path / name, EPOCH) for name in ("first", "second"))
    names = [path.name for path in first]
    assert [Path(name).suffix for name in names] == [".gz", ".whl", ".json", ""]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for line in first[-1].read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / "first" / name).read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(first[1]) as wheel:
        (inside,) = (name for name in wheel.namelist() if "/sboms/" in name)
        assert wheel.read(inside) == first[2].read_bytes()


def test_a_wheel_that_does_not_match_its_bill_is_not_released(tree: Path, tmp_path: Path) -> None:
    _, wheel, bill, _ = build(tree, tmp_path / "built", EPOCH)
    another = tmp_path / bill.name
    another.write_text("another")
    with pytest.raises(NotReleasable, match="bill of materials"):
        check_wheel(wheel, another)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("models/pretrained/other/1.0.0/model.onnx", b"another graph")
    with pytest.raises(NotReleasable, match="bundles"):
        check_wheel(wheel, bill)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_commit_is_released_and_nothing_else(tree: Path, tmp_path: Path) -> None:
    git(tree, "init")
    git(tree, "add", ".")
    git(tree, "commit", "--message", "All of it")
    (tree / "service" / "stray.py").write_text("# not tracked\n")
    _, wheel, *_ = release(tree, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        assert "service/stray.py" not in archive.namelist()
    (tree / "README.md").write_text("changed")
    with pytest.raises(NotReleasable, match=r"README\.md"):
        release(tree, tmp_path / "dist")


def test_no_secret_is_released(tree: Path, tmp_path: Path) -> None:
    (tree / "service" / "oops.py").write_text('TOKEN = "ghp_' + "a1B2c3D4e5F6" * 3 + '"\n')
    git(tree, "init")
    git(tree, "add", ".")
    git(tree, "commit", "--message", "Oops")
    with pytest.raises(NotReleasable, match=r"service/oops\.py:1: GitHub token"):
        release(tree, tmp_path / "dist")
