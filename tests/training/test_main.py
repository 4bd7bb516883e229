"""The command line: the whole debug pipeline, help, and errors a user can make."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from nightjar_alerts.models.bundle import load_bundle, verify_golden
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, featurise
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.experiments import EXPERIMENTS
from nightjar_alerts.training.fit import loop
from nightjar_alerts.training.fit.checkpoints import load_best
from nightjar_alerts.training.fit.curves import write_metrics
from nightjar_alerts.training.recipes.catalogue import RECIPES
from support.interrupts import interrupted_import
from support.pipeline import PER_CLASS, Pipeline
from support.toy_dataset import write_toy_dataset

COMMANDS = ("simulate", "fit", "describe", "export", "evaluate", "adapt", "card")
TOOLS = (
    "reobserve", "draw", "features", "trees", "ztf-types", "drift", "incomplete", "baseline", "crossvalidate",
    "throughput", "unpack", "export-again", "cuda",
)  # fmt: skip


def test_the_debug_pipeline_simulates_every_class(pipeline: Pipeline) -> None:
    assert len(read_dataset(pipeline.data)) == 20 * PER_CLASS


def test_simulate_onto_an_existing_file_needs_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.parquet"
    out.write_text("precious")
    arguments = ["simulate", "--out", str(out), "--per-class", "1", "--classes", "Ia", "--workers", "1"]
    with pytest.raises(SystemExit, match="--overwrite replaces it"):
        main(arguments)
    assert out.read_text() == "precious"
    main([*arguments, "--overwrite"])
    assert len(read_dataset(out)) == 1
    assert "%" not in capsys.readouterr().err  # a bar is for terminals


def test_its_bundle_classifies_a_light_curve(pipeline: Pipeline) -> None:
    bundle = load_bundle(pipeline.bundle)
    session, manifest = open_session(bundle.model), bundle.manifest
    assert verify_golden(bundle, session) < 1e-5
    curve = LightCurve.from_columns([60_000.0, 60_001.5], [900.0, 1500.0], [50.0, 60.0], ["g", "r"])
    tokens = featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns)
    outputs = run(session, RaggedBatch.collate([tokens]).padded())
    assert outputs["probabilities"].shape == (1, 20)
    assert outputs["probabilities"].sum() == pytest.approx(1.0, abs=1e-5)
    assert np.isfinite(outputs["embedding"]).all()


@pytest.mark.parametrize(
    ("recipe", "total", "active"),
    [
        ("astro-moe-pe", 4_640_422, 1_974_310),
        ("astro-moe-tm", 4_935_334, 2_269_222),
        ("multiband-astromer", 1_525_372, 1_525_372),
    ],
)
def test_describe_prints_the_papers_sizes(
    recipe: str, total: int, active: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["describe", recipe])
    described = capsys.readouterr().out
    assert f"# {total:,} parameters, of which {active:,} are active" in described
    parts = re.findall(r"^#   \w+ ([\d,]+)$", described, re.MULTILINE)
    assert sum(int(part.replace(",", "")) for part in parts) == total
    assert "d_model = 192" in described


def test_describe_without_a_recipe_says_when_to_use_each(capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe"])
    assert [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()] == list(RECIPES)


def test_help_names_every_command_without_loading_torch() -> None:
    code = "import sys\nfrom nightjar_alerts.training.__main__ import main\ntry: main(['--help'])\n"
    code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(command in text for command in COMMANDS)


def test_a_wrong_option_names_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", "--out", str(tmp_path / "x.parquet"), "--per-class", "0"])
    assert stopped.value.code == 2
    assert "argument --per-class: must be at least 1, not 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_help_lists_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: nightjar-train experiment {name}" in text
    assert "--seed int" in text


@pytest.mark.parametrize("command", [*COMMANDS, *(f"makers {tool}" for tool in TOOLS)])
def test_every_option_of_every_command_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    options = text[text.index("options:") :].split("\n  -")[1:]
    assert options
    for option in options:
        assert len(option.replace("(required)", "").split()) > 3, option


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("describe nonsense", "unknown recipe 'nonsense'"),
        ("experiment nonsense", "unknown experiment 'nonsense'"),
        ("fit debug --data {tmp}/absent.parquet", "absent.parquet"),
        ("fit debug --data {tmp}/text.csv", "import it first: nightjar-train import table {tmp}/text.csv --out"),
        ("fit debug --data {tmp}/table.parquet", "import it first: nightjar-train import table {tmp}/table.parquet"),
        ("fit debug --data {tmp}/toy.parquet --pretrained {tmp}", "neither a run folder, nor a bundle's folder"),
        ("export {tmp} {tmp}/out --data {tmp}/toy.parquet", "not a run folder"),
        ("evaluate {tmp} --data {tmp}/toy.parquet --report {tmp}/report.json", "not a run folder"),
        ("evaluate --on surveys {tmp} --data {tmp} --report {tmp}/r.json --split train", "validation or test"),
        ("evaluate --on surveys {tmp} --data {tmp} --report {tmp}/r.json", "holds none of the sets"),
        ("export {tmp} {tmp}/out --data {tmp}/toy.parquet --trees {tmp}/trees.npz", "not a run folder"),
        ("card {tmp}", "manifest"),
    ],
)
def test_mistakes_end_in_one_line(arguments: str, message: str, tmp_path: Path) -> None:
    write_toy_dataset(tmp_path / "toy.parquet", 8)
    (tmp_path / "text.csv").write_text("object_id,mjd\n")
    parquet.write_table(pa.table({"mjd": [1.0]}), tmp_path / "table.parquet")
    with pytest.raises(SystemExit) as stopped:
        main(arguments.format(tmp=tmp_path).split())
    assert isinstance(stopped.value.code, str)
    assert message.format(tmp=tmp_path) in stopped.value.code
    assert "\n" not in stopped.value.code.strip() or "manifest" in message


@pytest.mark.parametrize(
    "arguments", ["", "fit debug", "simulate --out x --per-class 0", "nonsense", "fit debug --lr 3", "makers"]
)
def test_a_wrong_command_line_is_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code
    capsys.readouterr()


def test_export_refuses_a_folder_in_use_and_other_data(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not an empty folder"):
        main(f"export {pipeline.run} {pipeline.bundle} --data {pipeline.data}".split())
    other = write_toy_dataset(tmp_path / "toy.parquet", 8)
    with pytest.raises(SystemExit, match="other data"):
        main(f"export {pipeline.run} {tmp_path / 'out'} --data {other}".split())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_one_sentence(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(number)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control ignores it in the background
    monkeypatch.setattr("nightjar_alerts.models.networks.zoo.count_parameters", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["describe", "debug"])
    assert stopped.value.code == status
    error = capsys.readouterr().err
    assert (error.count("\n"), "interrupted; run the same command again" in error) == (1, True)


@pytest.mark.parametrize(
    "start",
    [
        "from nightjar_alerts.training.__main__ import main",
        "import runpy; runpy.run_module('nightjar_alerts.training', run_name='__main__')",
    ],
)
def test_an_interrupt_during_the_imports_ends_a_command_with_one_line(start: str) -> None:
    assert interrupted_import("nightjar_alerts.training.makers", start) == (130, "nightjar-train: interrupted\n")


def signal_at(step: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a signal to this process during the ``step``-th step from now on."""
    take_step, taken = loop.train_step, []

    def signalled(*arguments: Any) -> None:
        take_step(*arguments)
        taken.append(1)
        if len(taken) == step:
            signal.raise_signal(number)

    monkeypatch.setattr(loop, "train_step", signalled)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_fit_after_a_signal_before_the_first_validation_resumes_to_the_same_numbers(
    number: signal.Signals,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write_toy_dataset(tmp_path / "toy.parquet", 60)
    settings = "--steps 6 --set validation.every=3 --set validation.log_every=1"
    command = f"fit debug --data {data} --threads 1 {settings} --out"
    signal_at(2, number, monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), str(tmp_path / "parts")])
    assert stopped.value.code == status
    assert capsys.readouterr().err == (
        f"nightjar-train: stopped at step 2; run the same command to resume from {tmp_path / 'parts'}\n"
    )
    for name in ("parts", "whole"):
        main([*command.split(), str(tmp_path / name)])
    parts, whole = (load_best(tmp_path / name) for name in ("parts", "whole"))
    assert all(torch.equal(parts[name], value) for name, value in whole.items())
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")


def numbers(run: Path) -> list[dict[str, float]]:
    """Return all metrics of a run but its speed."""
    speeds = ("seconds_per_step", "curves_per_second")
    return [{name: row[name] for name in row if name not in speeds} for row in write_metrics(run)]


def test_fit_with_a_loss_that_is_not_finite_ends_in_one_line(tmp_path: Path) -> None:
    data = write_toy_dataset(tmp_path / "toy.parquet", 60)
    wild = "--set optimizer.lr=1e30 --set optimizer.clip_norm=null"
    with pytest.raises(SystemExit, match=r"^error: the .* (is|not finite) .*\. Start another run with a lower"):
        main(f"fit debug --data {data} --out {tmp_path / 'run'} --threads 1 {wild}".split())


def test_export_of_a_run_without_validation_says_what_to_do(tmp_path: Path) -> None:
    data = write_toy_dataset(tmp_path / "toy.parquet", 60)
    main(f"fit debug --data {data} --out {tmp_path / 'run'} --threads 1 --max-minutes 0.0001".split())
    with pytest.raises(SystemExit, match="no validation has been reached yet"):
        main(f"export {tmp_path / 'run'} {tmp_path / 'bundle'} --data {data}".split())
