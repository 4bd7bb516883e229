"""Run a script of this folder with a public client in an environment of its own."""

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent


def run_client(folder: Path, script: str, requirements: list[str], *arguments: str) -> list[Any]:
    """Install requirements into a new environment, run a script with arguments, and return its output lines."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    if (installed := subprocess.run(install, capture_output=True, text=True)).returncode:
        pytest.skip(
            f"pip cannot install {', '.join(requirements)}, set its index (PIP_INDEX_URL): {installed.stderr[-300:]}"
        )
    command = [python, "-W", "ignore", str(SCRIPTS / script), *arguments]
    paths = os.environ | {"PYTHONPATH": str(SCRIPTS.parents[1])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=paths)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]
