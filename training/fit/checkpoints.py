"""Checkpoints and provenance of a training run.

The run folder, ``runs/<recipe>-<seed>/``, has

- ``config.json``: the resolved recipe, and the hashes of the data file and of the initial weights;
- ``starts.jsonl``: one line per start of the run: command, commit, versions, machine;
- ``log.jsonl``: one line per logged interval and per validation;
- ``metrics.csv`` and ``learning-curves.png``: the same as a table and as a picture (``training.fit.curves``);
- ``checkpoint.pt``: the state of the run; a run killed at any moment resumes from it and ends with the same weights as
  an uninterrupted run;
- ``best.pt``: the weights with the best validation score (averaged weights if the recipe averages), which are exported.

``config.json`` and a line of ``starts.jsonl`` are enough to reproduce the weights. The same recipe and data give
bitwise equal weights on the same kind of machine with the same versions, threads and number of processes. A commit that
ends in ``+`` has uncommitted changes.

Files are replaced atomically: a kill during a write leaves the previous file. Weights are loaded with
``weights_only=True``, which runs no code from the file.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from nightjar_alerts.models.bundle import sha256_of
from nightjar_alerts.models.common import processor_name, write_atomic
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.recipes.schema import Recipe

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nightjar-alerts", "torch", "numpy", "pydantic", "pyarrow")


def describe_start(step: int, device: str, processes: int) -> dict[str, Any]:
    """Describe the command, versions and machine of a run started or resumed at ``step``."""
    return {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.orig_argv,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name() if device == "cuda" else processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a clone that is not installed
        return None


def commit() -> str | None:
    """Return the hash of HEAD, with a plus sign for uncommitted changes; None outside a checkout or without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


CONFIG, STARTS, LOG, CHECKPOINT, BEST = "config.json", "starts.jsonl", "log.jsonl", "checkpoint.pt", "best.pt"

MAX_CHANGES = 5  # that an error names

State = dict[str, Tensor]


class RunError(ValueError):
    """A run folder that cannot be used."""


class DataSource(BaseModel):
    """Data file that a run was trained on."""

    model_config = ConfigDict(frozen=True)

    name: str
    sha256: str
    objects: int


class RunConfig(BaseModel):
    """Content of ``config.json``."""

    model_config = ConfigDict(frozen=True)

    recipe: Recipe
    data: DataSource
    pretrained: str | None = None
    pretrained_sha256: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """State of a run after ``step`` steps. Random numbers need no state, since they depend on (seed, step) only."""

    step: int
    network: State
    optimizer: dict[str, Any]
    average: State | None
    best_score: float
    stale: int


def fingerprint(path: Path, objects: int) -> DataSource:
    """Return name, hash and number of objects of a data file."""
    return DataSource(name=path.name, sha256=sha256_of(path), objects=objects)


def open_run(folder: Path, config: BaseModel) -> Checkpoint | None:
    """Create a run folder, or return the checkpoint to resume from.

    Fields that the stored configuration lacks, because an older version wrote it, have their defaults.

    Raises
    ------
    RunError
        If the folder has a run of another recipe or other data, or is a file.
    """
    if folder.is_file():
        raise RunError(f"{folder} is a file; name a folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    content = config.model_dump_json(indent=2).encode()
    if not (folder / CONFIG).exists():
        write_atomic(folder / CONFIG, content)
    elif (folder / CONFIG).read_bytes() != content and (changes := _changes(folder / CONFIG, config)):
        raise RunError(f"{folder} holds another run ({changes}); name another folder or remove it")
    checkpoint = load_checkpoint(folder / CHECKPOINT) if (folder / CHECKPOINT).exists() else None
    _rewind_log(folder / LOG, checkpoint.step if checkpoint else 0)
    return checkpoint


def _changes(path: Path, config: BaseModel) -> str:
    """Describe the differences from a stored configuration; empty if there are none.

    Both are compared as written, since fields may hold subclasses of their declared types.
    """
    try:
        stored = json.loads(type(config).model_validate_json(path.read_bytes()).model_dump_json())
    except ValidationError:
        return "its configuration is unreadable"
    before, now = dict(_leaves(stored)), dict(_leaves(json.loads(config.model_dump_json())))
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    texts = [f"{name} is {before.get(name)}, now {now.get(name)}" for name in changed]
    return ", ".join([*texts[:MAX_CHANGES], *["..."] * (len(texts) > MAX_CHANGES)])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else name)


def read_config(folder: Path) -> RunConfig:
    """Return recipe and data of a run. Raises RunError if the folder is not a run folder, or has a damaged one."""
    try:
        return RunConfig.model_validate_json((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"{folder / CONFIG} is not the configuration of a run: {where} {first['msg']}") from error


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically."""
    # asdict would deep-copy the tensors.
    _save_atomic(path, {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises RunError if the file is not a readable checkpoint."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if "optimiser" in state:  # its name in runs that older versions started
            state["optimizer"] = state.pop("optimiser")
        return Checkpoint(**state)
    except Exception as error:  # torch raises unrelated exceptions for files that it did not write
        # The message of torch advises to load without weights_only, so it is not shown.
        raise RunError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); remove it to start the run again"
        ) from error


def save_weights(path: Path, weights: State) -> None:
    """Write weights atomically."""
    _save_atomic(path, weights)


def load_network(run: Path) -> tuple[nn.Module, RunConfig]:
    """Build the network of a run folder with its best weights, in evaluation mode.

    Raises
    ------
    RunError
        If the folder is not a run folder, has no validated weights yet, or has those of another network.
    """
    config = read_config(run)
    network = build(config.recipe.network, config.recipe.task)
    try:
        network.load_state_dict(load_best(run))
    except RuntimeError as error:
        raise RunError(f"{run / BEST} has the weights of another network than that in {CONFIG}") from error
    return network.eval(), config


def load_best(run: Path) -> State:
    """Return the best weights of a run folder. Raises RunError if there are none yet, or they cannot be read."""
    path = best_path(run)
    try:
        weights: State = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # as in `load_checkpoint`
        raise RunError(f"{path} has no readable weights ({type(error).__name__}); train in another folder") from error
    return weights


def best_path(run: Path) -> Path:
    """Return the file of the best weights of a run folder. Raises RunError if there are none yet."""
    if not (run / BEST).exists():
        raise RunError(f"{run} has no {BEST}: no validation has been reached yet; run `fit` again to resume it")
    return run / BEST


def append_log(folder: Path, line: dict[str, Any]) -> None:
    """Append a line to the run's log."""
    with (folder / LOG).open("a") as file:
        file.write(json.dumps(line) + "\n")


def append_start(folder: Path, line: dict[str, Any]) -> None:
    """Append a line for a start or resumption of the run."""
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return all lines of a run's log."""
    path = folder / LOG
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rewind_log(path: Path, step: int) -> None:
    """Remove lines after the checkpoint, whose steps will be repeated, and incomplete lines."""
    if not path.exists():
        return
    lines = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                lines.append(line)
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())


def _save_atomic(path: Path, content: object) -> None:
    # torch's archive on a full disk may hide the OSError behind a RuntimeError, so it is made in memory.
    made = BytesIO()
    torch.save(content, made)
    write_atomic(path, made.getvalue())
