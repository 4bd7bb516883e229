"""A release: wheel and source archive of a commit, their bill of materials, and the SHA-256 of each.

    make release                        of what is committed, into dist/
    python -m deploy.release FOLDER     the same, elsewhere

Built by the hatchling of ``deploy/build-requirements.txt`` from an export of the commit, so that nothing gets in that
is not tracked, with the commit's time in every archive: whoever builds the same commit gets the same bytes.
"""

import argparse
import hashlib
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SUMS: Final = "SHA256SUMS"


class NotReleasable(RuntimeError):
    """The tree cannot be released, or what was built of it is not whole; the message says why."""


def release(repository: Path, folder: Path) -> list[Path]:
    """Build the committed state of a repository into a folder; returns the files, the sums last.

    Raises
    ------
    NotReleasable
        For changes that are not committed, for what looks like a secret, or for a wheel without its bill.
    """
    if changed := _git(repository, "status", "--porcelain", "--untracked-files=no").decode().strip():
        raise NotReleasable(f"not committed:\n{changed}")
    epoch = int(_git(repository, "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="nightjar-") as scratch:
        tree = Path(scratch)
        with tarfile.open(fileobj=BytesIO(_git(repository, "archive", "HEAD"))) as archive:
            archive.extractall(tree, filter="data")
        scan = [sys.executable, "-m", "deploy.secret_scan", str(tree)]
        scanned = subprocess.run(scan, cwd=ROOT, capture_output=True, text=True, check=False)
        if scanned.returncode:
            raise NotReleasable(f"looks like a secret:\n{scanned.stdout}{scanned.stderr}")
        return build(tree, folder, epoch)


def build(tree: Path, folder: Path, epoch: int) -> list[Path]:
    """Build a source tree.

    Parameters
    ----------
    epoch : seconds since 1970 that the archives bear as the time of every file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve())]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(done.stdout + done.stderr)
    archives = [folder / Path(line).name for line in (done.stdout + done.stderr).splitlines() if _is_archive(line)]
    own = runpy.run_path(str(tree / "deploy" / "sbom.py"))  # that of the tree, as the build has it
    bill = folder / own["NAME"]
    bill.write_text(own["text"](tree))
    check_wheel(next(path for path in archives if path.suffix == ".whl"), bill)
    return [*archives, bill, _write_sums(folder, [*archives, bill])]


def check_wheel(wheel: Path, bill: Path) -> None:
    """Raise NotReleasable unless the wheel holds this bill, and the bundles that the bill names."""
    written = bill.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.endswith(f".dist-info/sboms/{bill.name}")]
        if len(inside) != 1 or archive.read(inside[0]) != written:
            raise NotReleasable(f"{wheel.name} does not hold its bill of materials")
        graphs = [name for name in archive.namelist() if re.fullmatch(r"models/pretrained/.+/model\.onnx", name)]
        hashes = {hashlib.sha256(archive.read(name)).hexdigest() for name in graphs}
    named = set(re.findall(rb'"machine-learning-model".*?"content": "([0-9a-f]{64})"', written, re.DOTALL))
    if hashes != {each.decode() for each in named}:
        raise NotReleasable(f"the bundles in {wheel.name} are not those of its bill")


def _is_archive(line: str) -> bool:
    return line.strip().endswith((".whl", ".tar.gz"))


def _write_sums(folder: Path, files: Sequence[Path]) -> Path:
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)]
    sums = folder / SUMS
    sums.write_text("".join(lines))
    return sums


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=True).stdout


def main() -> int:
    """Build a release and print the names of its files."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.release", description="build a release of what is committed"
    )
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    try:
        files = release(ROOT, parser.parse_args().folder)
    except NotReleasable as error:
        sys.stderr.write(f"not released: {error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
