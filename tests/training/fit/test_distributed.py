"""Two real processes under torchrun do what one does; without torchrun nothing is communicated.

What the two processes check among themselves (gradients of every task, counts, messages) is in
``support/two_processes.py``.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nightjar_alerts.models.networks import ranks as batch_means
from nightjar_alerts.training.__main__ import main
from nightjar_alerts.training.fit.checkpoints import CHECKPOINT, STARTS, load_checkpoint, read_log
from nightjar_alerts.training.fit.distributed import Ranks, is_first, join_launch
from support.toy_dataset import write_toy_dataset

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# Float32 sums in another order, seen through ten steps of AdamW, which divides small gradients by themselves: measured
# 8e-7 at most, where weights have moved by 1e-2.
ABSOLUTE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("data") / "toy.parquet", 120)


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Path, str]:
    """Folder of what two processes trained, and what they printed."""
    folder = tmp_path_factory.mktemp("runs")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(ROOT / "tests" / "support" / "two_processes.py"), str(data), str(folder)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_two_processes_train_the_weights_of_one(launch: tuple[Path, str], data: Path, tmp_path: Path) -> None:
    main(f"fit debug --data {data} --out {tmp_path} --steps 10 --threads 1".split())
    one, two = (load_checkpoint(folder / CHECKPOINT) for folder in (tmp_path, launch[0] / "command"))
    assert one.network.keys() == two.network.keys()
    assert one.average is not None
    assert two.average is not None
    for name, weights in one.network.items():
        torch.testing.assert_close(two.network[name], weights, rtol=0.0, atol=ABSOLUTE, msg=name)
        torch.testing.assert_close(two.average[name], one.average[name], rtol=0.0, atol=ABSOLUTE, msg=name)
    alone, together = (read_log(folder) for folder in (tmp_path, launch[0] / "command"))
    assert [line.keys() for line in alone] == [line.keys() for line in together]
    for left, right in zip(alone, together, strict=True):
        assert right.get("starved_experts") == left.get("starved_experts")
        for name, load in left.get("expert_load", {}).items():
            assert right["expert_load"][name] == pytest.approx(load, abs=0.01), name
        nested = {"starved_experts", "expert_load"}
        for name in left.keys() - nested - {"seconds_per_step", "curves_per_second", "padding"}:
            assert right[name] == pytest.approx(left[name], rel=1e-3), name


def test_only_the_first_of_two_processes_writes_output(launch: tuple[Path, str]) -> None:
    folder, printed = launch
    assert json.loads(printed)["step"] == 10
    assert json.loads((folder / "command" / STARTS).read_text())["processes"] == 2


def test_a_resumed_run_of_two_processes_is_the_uninterrupted_one(launch: tuple[Path, str]) -> None:
    whole, parts = (load_checkpoint(launch[0] / name / CHECKPOINT) for name in ("whole", "parts"))
    starts = (launch[0] / "parts" / STARTS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in starts] == [0, 3]
    assert all(torch.equal(value, parts.network[name]) for name, value in whole.network.items())
    assert whole.best_score == parts.best_score


def test_torchrun_that_is_terminated_leaves_a_checkpoint(data: Path, tmp_path: Path) -> None:
    options = f"--data {data} --out {tmp_path / 'run'} --steps 5000 --threads 1 --set validation.log_every=1"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "-m", "nightjar_alerts.training", "fit", "debug", *options.split()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not read_log(tmp_path / "run") and time.monotonic() < deadline:
            time.sleep(0.1)
        process.terminate()
        _, printed = process.communicate(timeout=120)
    step = load_checkpoint(tmp_path / "run" / CHECKPOINT).step
    assert 0 < step < 5000
    assert f"stopped at step {step}; run the same command to resume" in printed


def test_without_torchrun_nothing_is_communicated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_reduce", "broadcast", "broadcast_object_list", "all_gather_object", "init_process_group"):
        monkeypatch.setattr(dist, name, None)
    ranks = join_launch("cpu")
    assert ranks == Ranks()
    assert is_first()
    linear, batch = nn.Linear(2, 1), {"x": torch.ones(3, 2)}
    assert ranks.share(batch) is batch
    with ranks.joined():
        loss = batch_means.mean(linear(batch["x"]).sum(), 3)
    loss.backward()
    ranks.align(linear)
    assert ranks.average_gradients(linear, loss) == loss
    assert not ranks.any(False)
    assert ranks.from_first(lambda: 3) == 3
    assert ranks.means({}, set()) == {}


@pytest.mark.parametrize("count", [0, torch.tensor(0)])
def test_the_mean_of_nothing_is_zero(count: int | torch.Tensor) -> None:
    assert batch_means.mean(torch.zeros(2), count).tolist() == [0.0, 0.0]


def test_share_distributes_rows_in_turn() -> None:
    batch = (torch.arange(7), [torch.arange(14).view(7, 2)], torch.tensor(5))
    first, second = (Ranks(rank, 2, alone=False).share(batch) for rank in (0, 1))
    assert (first[0].tolist(), second[0].tolist()) == ([0, 2, 4, 6], [1, 3, 5])
    assert second[1][0].tolist() == [[2, 3], [6, 7], [10, 11]]
    assert first[2] == second[2] == 5
