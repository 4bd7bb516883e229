"""The run folder: what a training run writes, and how a finished or killed run is read back.

``runs/<recipe>-<seed>/`` holds

- ``config.json``: the recipe, resolved, and the fingerprints of the data file and of the weights it started from;
- ``starts.jsonl``: one line per start of the run (``training.fit.provenance``): command, commit, versions, machine;
- ``log.jsonl``: one line per logged interval and per validation;
- ``checkpoint.pt``: everything that the next step depends on; a run killed at any moment resumes from it and ends
  with the weights that an uninterrupted run ends with;
- ``best.pt``: the weights with the best validation score (averaged weights where the recipe averages); what is
  exported.

Files are replaced atomically: a kill during a write leaves the previous file. Weights are loaded with
``weights_only=True``, which runs no code from the file.
"""

import hashlib
import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from models.zoo import build
from training.recipes.schema import Recipe

CONFIG, STARTS, LOG, CHECKPOINT, BEST = "config.json", "starts.jsonl", "log.jsonl", "checkpoint.pt", "best.pt"

State = dict[str, Tensor]


class RunError(ValueError):
    """A run folder that cannot be used as asked."""


class DataSource(BaseModel):
    """Which data file a run was trained on."""

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
    """State of a run after ``step`` steps. Random numbers need no state: each step's come from (seed, step)."""

    step: int
    network: State
    optimiser: dict[str, Any]
    average: State | None
    best_score: float
    stale: int


def fingerprint(path: Path, objects: int) -> DataSource:
    """Name, hash and size of a data file."""
    return DataSource(name=path.name, sha256=sha256(path), objects=objects)


def sha256(path: Path) -> str:
    """Hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_run(folder: Path, config: BaseModel) -> Checkpoint | None:
    """Create a run folder, or return the checkpoint to resume from.

    A folder of an older version, whose configuration lacks fields that have come since, holds the same run where these
    have their defaults.

    Raises
    ------
    RunError
        When the folder holds a run of another recipe or other data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = config.model_dump_json(indent=2).encode()
    if not (folder / CONFIG).exists():
        write_atomic(folder / CONFIG, content)
    elif (folder / CONFIG).read_bytes() != content and not _holds(folder / CONFIG, config):
        raise RunError(f"{folder} holds another run (recipe or data differ); name another folder or remove it")
    checkpoint = load_checkpoint(folder / CHECKPOINT) if (folder / CHECKPOINT).exists() else None
    _rewind_log(folder / LOG, checkpoint.step if checkpoint else 0)
    return checkpoint


def _holds(path: Path, config: BaseModel) -> bool:
    """Compared as written: in memory a field may hold more than its declared type says and saves."""
    try:
        return type(config).model_validate_json(path.read_bytes()).model_dump_json() == config.model_dump_json()
    except ValidationError:
        return False


def read_config(folder: Path) -> RunConfig:
    """Recipe and data of a run; raises RunError when the folder holds none."""
    try:
        return RunConfig.model_validate_json((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}") from None


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically."""
    # Not asdict on the tensors: it would deep-copy them.
    _save_atomic(path, {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises RunError when the file is not one."""
    try:
        return Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, TypeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        # torch's own message advises loading without safeguards.
        raise RunError(f"{path} is not a readable checkpoint ({type(error).__name__})") from error


def save_weights(path: Path, weights: State) -> None:
    """Write weights atomically."""
    _save_atomic(path, weights)


def load_network(run: Path) -> tuple[nn.Module, RunConfig]:
    """Build the network of a run folder with its best weights, in evaluation mode.

    Raises
    ------
    RunError
        When the folder is no run or has no validated weights yet.
    """
    config = read_config(run)
    network = build(config.recipe.network, config.recipe.task)
    network.load_state_dict(load_best(run))
    return network.eval(), config


def load_best(run: Path) -> State:
    """Best weights of a run folder; raises RunError when there are none yet."""
    weights: State = torch.load(best_path(run), map_location="cpu", weights_only=True)
    return weights


def best_path(run: Path) -> Path:
    """File of the best weights of a run folder; raises RunError when there are none yet."""
    if not (run / BEST).exists():
        raise RunError(f"{run} has no {BEST}: no validation has been reached yet")
    return run / BEST


def append_log(folder: Path, line: dict[str, Any]) -> None:
    """Add one line to the run's log."""
    with (folder / LOG).open("a") as file:
        file.write(json.dumps(line) + "\n")


def append_start(folder: Path, line: dict[str, Any]) -> None:
    """Note that the run was started, or resumed."""
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's log."""
    path = folder / LOG
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rewind_log(path: Path, step: int) -> None:
    """Drop lines written after the checkpoint: their steps are about to be repeated (the last one may be torn)."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (json.JSONDecodeError, KeyError):
            continue
    write_atomic(path, "".join(f"{line}\n" for line in kept).encode())


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file's content so that a reader, or a kill, sees the old file or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _save_atomic(path: Path, content: object) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
