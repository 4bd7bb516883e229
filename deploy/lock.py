"""Print the newest versions that satisfy pyproject.toml, one ``name==version`` a line.

``make lock`` writes them to ``deploy/constraints.txt``, which every ``pip install`` of this project obeys, so that a
fresh machine gets the versions the tests passed with. Constraints, not requirements: they fix versions and install
nothing, so one file serves the base install, the image, training and the tests.

The resolver is pip's own (a dry run); nothing is installed. ``--hashes UV`` then has uv write ``requirements.txt`` and
``build-requirements.txt`` of the same versions: what serves and what builds the package, with hashes. Training and the
tests stay pinned by version alone, as a hash of torch would name one of its builds, the one that brings CUDA.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Not gpu: onnxruntime-gpu owns the same folder as onnxruntime.
EXTRAS = ("cpu", "arrow", "otel", "redis", "stream", "train", "dev")
HEADER = "# Written by `make lock`. The versions every install of this project uses; see deploy/lock.py."


def requirements(pyproject: Path) -> list[str]:
    """Return requirement strings of the base install and of EXTRAS, as pyproject.toml states them."""
    project: dict[str, Any] = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]


def resolve(names: list[str]) -> list[str]:
    """``name==version`` for everything pip would install for `wanted` in an empty environment, sorted by name."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run([*command, *names], check=True, stdout=subprocess.PIPE).stdout)
    parts = [entry["metadata"] for entry in report["install"]]
    # A local version (torch 2.13.0+cpu) names one build of a release: other machines may need another build of it.
    return sorted(f"{m['name'].lower()}=={m['version'].split('+')[0]}" for m in parts)


HASHED = {
    "requirements.txt": ("serves (extras cpu, otel, redis, stream)", ["cpu", "otel", "redis", "stream"]),
    "build-requirements.txt": ("builds the package", None),
}
BUILD = "hatchling>=1.28\neditables>=0.5\n"  # the second is what hatchling asks for when it installs in place


def write_hashed(uv: str) -> None:
    """Write the files of :data:`HASHED` beside the constraints, of the versions that these name."""
    folder = ROOT / "deploy"
    options = ["--python-version", "3.11", "--universal", "--generate-hashes", "--no-header", "--no-annotate"]
    for name, (what, extras) in HASHED.items():
        chosen = [option for extra in extras or () for option in ("--extra", extra)]
        source = ["-"] if extras is None else [str(ROOT / "pyproject.toml"), *chosen]
        command = [uv, "pip", "compile", *source, *options, "--constraint", str(folder / "constraints.txt")]
        text = subprocess.run(command, input=BUILD, check=True, stdout=subprocess.PIPE, text=True).stdout
        head = f"# Written by `make lock`: what {what}, with the hashes of every file that pip may take for it.\n"
        (folder / name).write_text(head + text)


def main() -> None:
    """Write the header and the resolved versions to standard output, or the files with hashes."""
    if sys.argv[1:2] == ["--hashes"]:
        write_hashed(sys.argv[2])
        return
    sys.stdout.write("\n".join([HEADER, *resolve(requirements(ROOT / "pyproject.toml"))]) + "\n")


if __name__ == "__main__":
    main()
