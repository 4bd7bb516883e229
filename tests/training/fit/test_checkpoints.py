"""The run folder: atomic files, rejected folders, and no code execution from a checkpoint."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.fit.checkpoints import (
    BEST,
    CHECKPOINT,
    CONFIG,
    LOG,
    Checkpoint,
    DataSource,
    RunConfig,
    RunError,
    append_log,
    fingerprint,
    load_checkpoint,
    load_network,
    open_run,
    read_config,
    read_log,
    save_checkpoint,
    save_weights,
)
from nightjar_alerts.training.recipes.astro_moe import debug

RUN = RunConfig(recipe=debug(), data=DataSource(name="x.parquet", sha256="0" * 64, objects=3))


def checkpoint(step: int = 3) -> Checkpoint:
    optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}]}
    return Checkpoint(step, {"w": torch.arange(3.0)}, optimizer, None, 0.5, 1)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / CHECKPOINT, checkpoint())
    loaded = load_checkpoint(tmp_path / CHECKPOINT)
    assert (loaded.step, loaded.best_score, loaded.stale, loaded.average) == (3, 0.5, 1, None)
    assert torch.equal(loaded.network["w"], torch.arange(3.0))
    assert loaded.optimizer["param_groups"] == [{"lr": 1e-3, "betas": (0.9, 0.999)}]
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", [b"", b"junk", b"not a checkpoint", pickle.dumps({"step": 1}, protocol=2)])
def test_other_files_than_checkpoints_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(RunError, match="readable checkpoint"):
        load_checkpoint(tmp_path / CHECKPOINT)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    torch.save({"step": Bomb(tmp_path / "ran")}, tmp_path / CHECKPOINT)
    with pytest.raises(RunError, match="readable checkpoint"):
        load_checkpoint(tmp_path / CHECKPOINT)
    assert not (tmp_path / "ran").exists()


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / CHECKPOINT, checkpoint())
    whole = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="readable checkpoint"):
        load_checkpoint(tmp_path / CHECKPOINT)


def test_a_new_run_writes_its_configuration_and_an_old_one_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "debug-0"
    assert open_run(folder, RUN) is None
    assert read_config(folder) == RUN
    save_checkpoint(folder / CHECKPOINT, checkpoint())
    resumed = open_run(folder, RUN)
    assert resumed is not None
    assert resumed.step == 3


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    open_run(tmp_path, RUN)
    other = RUN.model_copy(update={"recipe": debug().model_copy(update={"seed": 1})})
    with pytest.raises(RunError, match="another run"):
        open_run(tmp_path, other)


def test_the_log_forgets_what_came_after_the_checkpoint_and_torn_lines(tmp_path: Path) -> None:
    open_run(tmp_path, RUN)
    for step in (1, 2, 3, 4, 5):
        append_log(tmp_path, {"step": step, "loss": 1.0})
    with (tmp_path / LOG).open("a") as file:
        file.write('null\n{"step": 6, "lo')
    save_checkpoint(tmp_path / CHECKPOINT, checkpoint(3))
    open_run(tmp_path, RUN)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3]


def test_weights_load_in_evaluation_mode(tmp_path: Path) -> None:
    open_run(tmp_path, RUN)
    with pytest.raises(RunError, match="no validation"):
        load_network(tmp_path)
    torch.manual_seed(0)
    weights = build(RUN.recipe.network).state_dict()
    save_weights(tmp_path / BEST, weights)
    network, config = load_network(tmp_path)
    assert config == RUN
    assert not network.training
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


def test_load_network_of_damaged_weights_names_the_file(tmp_path: Path) -> None:
    open_run(tmp_path, RUN)
    (tmp_path / BEST).write_bytes(b"not weights")
    with pytest.raises(RunError, match=r"best\.pt has no readable weights"):
        load_network(tmp_path)


def test_load_network_of_other_weights_names_the_file(tmp_path: Path) -> None:
    open_run(tmp_path, RUN)
    save_weights(tmp_path / BEST, {"w": torch.arange(3.0)})
    with pytest.raises(RunError, match=r"best\.pt has the weights of another network"):
        load_network(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"recipe": {"name": 3}}'])
def test_read_config_of_another_file_names_it(content: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(RunError, match=r"config\.json is not the configuration of a run"):
        read_config(tmp_path)


def test_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=CONFIG):
        read_config(tmp_path)
    assert read_log(tmp_path) == []


def test_fingerprint_differs_between_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    a, b = fingerprint(tmp_path / "a", 1), fingerprint(tmp_path / "b", 1)
    assert a.sha256 != b.sha256
    assert json.loads(a.model_dump_json())["name"] == "a"


def test_open_run_reads_the_spelling_of_older_runs(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(RUN.model_dump_json().replace('"optimizer"', '"optimiser"'))
    state = {name: getattr(checkpoint(), name) for name in Checkpoint.__dataclass_fields__}
    state["optimiser"] = state.pop("optimizer")
    torch.save(state, tmp_path / CHECKPOINT)
    resumed = open_run(tmp_path, RUN)
    assert resumed is not None
    assert resumed.optimizer == checkpoint().optimizer
