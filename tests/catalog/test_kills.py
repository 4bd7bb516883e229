"""``nightjar catalog`` killed at random moments: no row is lost, none is there twice."""

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install 'nightjar-alerts[tables]'")

from support.catalogs import COMMAND, QUIET, content, nested_folder, rubin_rows, write_hats

pytestmark = pytest.mark.slow
FILES = 12


def written(output: Path) -> set[Path]:
    return {path.relative_to(output) for path in output.rglob("[!.]*.parquet")}


def killed_and_completed(source: Path, output: Path, kills: int, seed: int) -> int:
    """Kill a run again and again, at random moments, and complete it; return how often it was killed."""
    moments = random.Random(seed)
    done = 0
    while done < kills:
        before = written(output)
        running = subprocess.Popen([*COMMAND, source, output, *QUIET], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Most of the time is the start; from the first new file on, the moments fall into the work.
        while running.poll() is None and written(output) == before:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.15))
        if running.poll() is not None:
            break
        running.send_signal(signal.SIGKILL)
        running.communicate()
        done += 1
    last = subprocess.run([*COMMAND, source, output, *QUIET], capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    return done


def check(output: Path, undisturbed: Path) -> None:
    """Check that two outputs have the same files and rows, up to rounding of probabilities."""
    assert written(output) == written(undisturbed)
    assert not list(output.rglob(".*.part*"))
    one, other = content(output), content(undisturbed)
    assert one["object_id"].to_pylist() == other["object_id"].to_pylist()
    for name in one.column_names:
        if one.schema.field(name).type.equals("float"):
            assert one[name].to_pylist() == pytest.approx(other[name].to_pylist(), abs=2e-5)
        elif name != "model":
            assert one[name] == other[name], name


def run_once(source: Path, output: Path) -> Path:
    subprocess.run([*COMMAND, source, output, *QUIET], check=True, capture_output=True)
    return output


def of_parquet(tmp_path: Path, rows: int) -> Path:
    return nested_folder(tmp_path / "in", [rows] * FILES)


def of_hats(tmp_path: Path, rows: int) -> Path:
    pytest.importorskip("lsdb", reason="lsdb is missing: pip install 'nightjar-alerts[catalog]'")
    return write_hats(tmp_path / "rubin", rubin_rows(rows * FILES), ("ra", "dec"), rows, 60.0)


def killed(source: Path, tmp_path: Path, kills: int, least: int) -> None:
    undisturbed = run_once(source, tmp_path / "whole")
    total = 0
    for number in range(kills):  # a run has a dozen files, so several of them are killed three times each
        output = tmp_path / f"killed-{number}"
        total += killed_and_completed(source, output, min(3, kills - total), number)
        check(output, undisturbed)
        if total >= kills:
            break
    assert total >= least


def test_catalog_killed_on_parquet_equals_an_undisturbed_run(tmp_path: Path) -> None:
    killed(of_parquet(tmp_path, 100), tmp_path, kills=2, least=1)


def test_catalog_killed_on_hats_equals_an_undisturbed_run(tmp_path: Path) -> None:
    killed(of_hats(tmp_path, 60), tmp_path, kills=2, least=1)


def test_catalog_killed_leaves_no_worker_behind(tmp_path: Path) -> None:
    source, output = of_parquet(tmp_path, 100), tmp_path / "out"
    command = [*COMMAND, str(source), str(output), "--workers", "2", *QUIET]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None and not written(output):
            time.sleep(0.01)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        running.kill()
    assert children
    deadline = time.monotonic() + 60.0
    while any(is_running(int(child)) for child in children):
        assert time.monotonic() < deadline, "a worker waits for work"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.nightly
@pytest.mark.parametrize("make", [of_parquet, of_hats])
def test_catalog_killed_twenty_times_equals_an_undisturbed_run(tmp_path: Path, make: Any) -> None:
    killed(make(tmp_path, 300), tmp_path, kills=20, least=20)
