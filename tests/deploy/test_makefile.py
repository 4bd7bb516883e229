"""The commands that README names: what they would do, and that the demonstration does it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> str:
    # These tests may themselves be run by make, which hands its flags and variables down.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def recipe(target: str, *variables: str, fresh: Path) -> str:
    """The commands of a target on a machine where nothing is installed yet."""
    return make("--dry-run", f"VENV={fresh}", target, *variables)


@pytest.mark.parametrize("target", ["demo", "serve", "bench"])
def test_a_fresh_machine_gets_the_service_and_no_torch(target: str, tmp_path: Path) -> None:
    commands = recipe(target, fresh=tmp_path / "venv")
    assert "-m venv" in commands
    assert "--require-hashes" in commands
    assert "--requirement deploy/requirements.txt" in commands
    assert "--no-deps --no-build-isolation --editable ." in commands  # whatever it needs is there already, by hash
    assert "train," not in commands
    assert "torch" not in commands + (ROOT / "deploy" / "requirements.txt").read_text()


def test_a_fresh_machine_gets_what_the_tests_need(tmp_path: Path) -> None:
    commands = recipe("test", fresh=tmp_path / "venv")
    assert "--editable '.[cpu,otel,redis,stream,train,dev]'" in commands
    beside, alone = commands.rstrip().splitlines()[-2:]
    assert beside.endswith('-m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not alone"')
    assert alone.endswith("-m pytest -q -m alone")


def test_a_path_with_a_space_is_one_argument(tmp_path: Path) -> None:
    assert 'nightjar demo "my alerts"' in recipe("demo", "ALERTS=my alerts", fresh=tmp_path / "venv")


def test_help_names_every_target_people_use() -> None:
    named = [line.split()[1] for line in make("help").splitlines()]
    checks, upkeep = (
        ["lint", "fast", "test"],
        ["docs", "native", "bench", "fuzz", "audit", "sbom", "release", "kafka", "soak"],
    )
    assert named == ["demo", "demo", "serve", *checks, *upkeep]


def test_continuous_integration_runs_what_readme_names() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)
    assert script.splitlines()[-1] == "make test"


@pytest.mark.skipif(Path(sys.prefix) != VENV or not (VENV / ".cpu").exists(), reason="not run by `make test`")
def test_the_demonstration_shows_all_three_surveys() -> None:
    text = make("demo").lower()
    assert all(survey in text for survey in ("lsst", "ztf", "elasticc"))
