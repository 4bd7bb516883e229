"""Print the newest versions that satisfy pyproject.toml, one ``name==version`` a line.

``make lock`` writes them to ``deploy/constraints.txt``, which every ``pip install`` of this project obeys, so that a
fresh machine gets the versions the tests passed with. Constraints, not requirements: they fix versions and install
nothing, so one file serves the base install, the image, training and the tests.

The resolver is pip's own (a dry run); nothing is installed.
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
    """Requirement strings of the base install and of EXTRAS, as pyproject.toml states them."""
    project: dict[str, Any] = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]


def resolve(wanted: list[str]) -> list[str]:
    """``name==version`` for everything pip would install for `wanted` in an empty environment, sorted by name."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run([*command, *wanted], check=True, stdout=subprocess.PIPE).stdout)
    found = [entry["metadata"] for entry in report["install"]]
    # A local version (torch 2.13.0+cpu) names one build of a release: other machines may need another build of it.
    return sorted(f"{m['name'].lower()}=={m['version'].split('+')[0]}" for m in found)


def main() -> None:
    """Write the header and the resolved versions to standard output."""
    sys.stdout.write("\n".join([HEADER, *resolve(requirements(ROOT / "pyproject.toml"))]) + "\n")


if __name__ == "__main__":
    main()
